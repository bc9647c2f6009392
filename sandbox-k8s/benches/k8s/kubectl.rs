//! The peer.

use std::process::Stdio;

/// `kubectl` on one context.
pub(crate) struct Kubectl {
    program: std::ffi::OsString,
    context: String,
}

impl Kubectl {
    pub(crate) fn new(context: String) -> Self {
        Self { program: std::env::var_os("TESTBED_KUBECTL").unwrap_or_else(|| "kubectl".into()), context }
    }

    pub(crate) async fn run(&self, args: &[&str]) {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(["--context", &self.context]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(command.status().await.unwrap().success(), "kubectl {args:?}");
    }

    pub(crate) async fn run_owned(&self, args: Vec<String>) {
        self.run(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }

    /// Makes a plain Pod and waits until it is Ready.
    pub(crate) async fn ready_pod(&self, n: usize, image: &str) {
        let name = format!("bench-{n}");
        let args = ["run", &name, "--image", image, "--image-pull-policy=IfNotPresent", "--restart=Never"];
        self.run(&[&args[..], &["--command", "--", "sleep", "600"]].concat()).await;
        self.run(&["wait", "--for=condition=Ready", "pod", &name, "--timeout=60s"]).await;
    }

    pub(crate) async fn remove_pod(&self, n: usize) {
        self.run(&["delete", "pod", &format!("bench-{n}"), "--grace-period=0", "--force"]).await;
    }
}
