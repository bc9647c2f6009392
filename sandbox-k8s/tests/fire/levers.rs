//! What breaks a cluster, and mends it.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{Any, Outcome};

/// How long one lever may take: a component that is started is waited for.
const LEVER: Duration = Duration::from_secs(60);

/// What the test bed can do to a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    ApiServer,
    Etcd,
    Kubelet,
    Node,
}

impl Fault {
    fn begins(self) -> &'static [&'static str] {
        match self {
            // It would take its time to say goodbye, and end well what is under way.
            Self::ApiServer => &["kill", "apiserver"],
            // Stopped it would drop its connections, which the API server notices; so it answers nothing.
            Self::Etcd => &["pause", "etcd"],
            Self::Kubelet => &["kill", "kubelet"],
            Self::Node => &["cut-node"],
        }
    }

    fn ends(self) -> &'static [&'static str] {
        match self {
            Self::ApiServer => &["start", "apiserver"],
            Self::Etcd => &["resume", "etcd"],
            Self::Kubelet => &["start", "kubelet"],
            Self::Node => &["join-node"],
        }
    }

    /// Makes it happen.
    pub(crate) async fn begin(self) -> Result<Broken, Any> {
        // First: who gives up in the middle mends as well.
        let broken = Broken(Some(self));
        pull(self.begins()).await?;
        Ok(broken)
    }
}

/// A fault under way. Dropped, it is mended.
#[derive(Debug)]
pub(crate) struct Broken(Option<Fault>);

impl Broken {
    /// Ends it, and waits until the component works.
    pub(crate) async fn mend(mut self) -> Outcome {
        let Some(fault) = self.0 else { return Ok(()) };
        pull(fault.ends()).await?;
        self.0 = None;
        Ok(())
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        if let Some(fault) = self.0.take()
            && let Err(error) = pull_now(fault.ends())
        {
            eprintln!("  {fault:?} is not mended: {error}");
        }
    }
}

async fn pull(words: &'static [&'static str]) -> Outcome {
    let pulled = tokio::task::spawn_blocking(move || pull_now(words));
    tokio::time::timeout(LEVER, pulled).await.map_err(|_| format!("{words:?} takes longer than {LEVER:?}"))??
}

fn pull_now(words: &[&str]) -> Outcome {
    let var = |name: &str| std::env::var_os(name).ok_or_else(|| format!("{name} is not set"));
    let mut command = Command::new(var("TESTBED")?);
    command.arg("fault").arg(var("TESTBED_CLUSTER")?).args(words).stdin(Stdio::null());
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{words:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()).into())
}
