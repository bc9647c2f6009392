//! Shows an untrusted job run in a sandbox on this machine: files in, a result out, a deadline that fires, an escape that fails.
//!
//! `cargo run --example quickstart --features k8s -- --k8s` does the same on the cluster of your kubeconfig's current context, in its
//! namespace, or where `CONTEXT` and `NAMESPACE` say: it makes one Pod there and removes it. The namespace must allow an init container
//! with `NET_ADMIN`, which cuts the network off.
#![allow(clippy::print_stderr, reason = "an example talks")]

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox::{Error, ErrorKind, ExecRequest, Networking, Provider, Sandbox, SandboxExt, SandboxPath, SessionId, Spec};
use sandbox_local::{LocalConfig, LocalProvider};

/// What somebody sent us to run. It draws a picture from the numbers in `input.txt`; it could be anything.
const JOB: &str = r#"
read -r width height depth < input.txt
awk -v w="$width" -v h="$height" -v d="$depth" 'BEGIN {
    ink = " .:-=+*#%@"
    for (row = 0; row < h; row++) {
        line = ""
        for (column = 0; column < w; column++) {
            a = column / w * 3.2 - 2.3; b = row / h * 2.4 - 1.2; x = y = 0
            for (n = 0; n < d && x * x + y * y < 4; n++) { t = x * x - y * y + a; y = 2 * x * y + b; x = t }
            line = line substr(ink, n == d ? 10 : n % 9 + 1, 1)
        }
        print line
    }
}' > picture.txt
"#;

/// What somebody else sent us. Each line tries something that must fail.
const ESCAPE: &str = r#"
try() { if eval "$2" 2>/dev/null; then echo "OUT $1"; else echo "held $1"; fi; }
try "read the host's passwords"      'cat /etc/shadow'
try "change the host's programs"     'echo x > /usr/bin/bash'
try "see the host's processes"       '[ "$(ls -d /proc/[0-9]* | wc -l)" -gt 20 ]'
try "become root of a new namespace" 'unshare --user --map-root-user true'
try "mount something"                'mount -t tmpfs none /mnt'
try "reach the network"              'exec 3<>/dev/tcp/1.1.1.1/53'
"#;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {}", whole(&*error));
            ExitCode::FAILURE
        }
    }
}

/// An error with what caused it: each speaks for its own level only.
fn whole(error: &dyn std::error::Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(reason) = cause {
        let words = reason.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = reason.source();
    }
    text
}

/// Where the sandbox is made, and how.
async fn place() -> Result<(Arc<dyn Provider>, Spec), Error> {
    let wrong = |what: String| Error::new(ErrorKind::InvalidRequest).because(what);
    match std::env::args().nth(1).as_deref() {
        None => {
            let provider = LocalProvider::new(LocalConfig::default())?;
            let spec = Spec::new(SessionId::generate(), "host").with_networking(Networking::None);
            Ok((Arc::new(provider), spec))
        }
        #[cfg(feature = "k8s")]
        Some("--k8s") => on_a_cluster().await,
        #[cfg(not(feature = "k8s"))]
        Some("--k8s") => Err(wrong("--k8s: build with --features k8s".to_owned())),
        Some(other) => Err(wrong(format!("{other:?}: the only argument is --k8s"))),
    }
}

/// As an ordinary user on a root that cannot be written. `NET_SETUP_IMAGE` names another image to cut the network off with.
#[cfg(feature = "k8s")]
async fn on_a_cluster() -> Result<(Arc<dyn Provider>, Spec), Error> {
    let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut config = sandbox_k8s::K8sConfig::default();
    (config.context, config.namespace) = (var("CONTEXT"), var("NAMESPACE"));
    if let Some(image) = var("NET_SETUP_IMAGE") {
        config = config.with_net_setup_image(image);
    }
    let provider = config.connect().await?;
    let mut hardening = sandbox::Hardening::restricted();
    hardening.read_only_root = true;
    let spec = Spec::new(SessionId::generate(), "debian:stable-slim").with_hardening(hardening);
    let spec = spec.with_networking(Networking::None);

    // What would fail is found before anything is made.
    let found = provider.preflight(&spec).await?;
    for finding in &found.findings {
        eprintln!("{}: {}: {}", if finding.fatal { "in the way" } else { "not so well" }, finding.what, finding.why);
    }
    match found.is_ready() {
        true => Ok((Arc::new(provider), spec)),
        false => {
            let why = format!("the namespace {:?} does not let it be made", provider.namespace());
            Err(Error::new(ErrorKind::Forbidden).because(why))
        }
    }
}

async fn run() -> Outcome {
    let begun = Instant::now();
    let (provider, spec) = place().await?;
    let sandbox = provider.provision(&spec).await?;
    let ready = begun.elapsed();

    // A sandbox outlives its handles, so it is reaped whatever came of the work: `show` returns errors and does not panic,
    // not even where nobody reads its output any more.
    let shown = show(&*sandbox, ready).await;
    let begun = Instant::now();
    provider.reap(&spec.session).await?;
    shown?;
    writeln!(stdout(), "Reaped in {:.0?}: nothing of it is left.", begun.elapsed())?;
    Ok(())
}

async fn show(sandbox: &dyn Sandbox, ready: Duration) -> Outcome {
    writeln!(stdout(), "A sandbox for {} after {ready:.0?}.\n", sandbox.id())?;

    let at = |name: &str| SandboxPath::new(format!("/workspace/{name}"));
    sandbox.write_bytes(&at("input.txt")?, "76 24 90\n").await?;
    let job = sandbox.exec(ExecRequest::shell(JOB).with_limit(Duration::from_secs(20))).await?;
    writeln!(stdout(), "{}", sandbox.read_to_string(&at("picture.txt")?, 1 << 20).await?)?;
    writeln!(stdout(), "The job drew that in {:.0?} and ended with code {}.\n", job.elapsed, job.exit_code)?;

    let greedy = ExecRequest::shell("while :; do :; done").with_limit(Duration::from_millis(500));
    let result = sandbox.exec(greedy).await?;
    writeln!(
        stdout(),
        "A job that never ends: timed out: {}, after {:.0?} of 500ms.\n",
        result.timed_out,
        result.elapsed
    )?;

    writeln!(stdout(), "A job that wants out:")?;
    let result = sandbox.exec(ExecRequest::shell(ESCAPE).with_limit(Duration::from_secs(10))).await?;
    for line in result.stdout.to_string_lossy().lines() {
        writeln!(stdout(), "  {line}")?;
    }
    writeln!(stdout())?;
    Ok(())
}
