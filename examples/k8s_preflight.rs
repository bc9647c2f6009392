//! Shows whether sandboxes can live on a cluster, what their image lacks, and how a second process finds a session again.
//!
//! `cargo run --example k8s_preflight --features k8s -- [IMAGE]` takes your kubeconfig's current context and that one's namespace, or those
//! that `CONTEXT` and `NAMESPACE` name. It makes two Pods there, one after the other, and removes them.

use std::error::Error;
use std::io::{Write, stdout};
use std::time::Duration;

use sandbox::{ExecRequest, Hardening, Provider, SessionId, Spec};
use sandbox_k8s::{K8sConfig, K8sProvider};

type Outcome = Result<(), Box<dyn Error>>;

/// A provider as each process of a service makes it: the same configuration finds the same sandboxes.
async fn connect() -> Result<K8sProvider, sandbox::Error> {
    let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut config = K8sConfig::default().with_deployment("k8s-preflight");
    (config.context, config.namespace) = (var("CONTEXT"), var("NAMESPACE"));
    config.connect().await
}

#[tokio::main]
async fn main() -> Outcome {
    let image = std::env::args().nth(1).unwrap_or_else(|| "debian:stable-slim".to_owned());
    let provider = connect().await?;
    // It passes Pod Security `restricted`, with the network that Pods have there.
    let hardening = Hardening::restricted();
    let spec = Spec::new(SessionId::generate(), &image).with_hardening(hardening.clone());

    let found = provider.preflight(&spec).await?;
    writeln!(stdout(), "Kubernetes {}, namespace {}", found.server, provider.namespace())?;
    for finding in &found.findings {
        let weight = if finding.fatal { "in the way" } else { "not so well" };
        writeln!(stdout(), "  {weight}: {}: {}", finding.what, finding.why)?;
    }
    if !found.is_ready() {
        return Err("sandboxes cannot live there yet".into());
    }

    let report = provider.probe_image(&image, &hardening).await?;
    writeln!(stdout(), "{image}: bash {}, as user {}; complete: {}", report.bash, report.user, report.is_complete())?;
    for tool in report.missing.iter().chain(&report.missing_for_files) {
        writeln!(stdout(), "  it lacks {tool}")?;
    }

    provider.provision(&spec).await?;
    // Whatever comes of it, the sandbox is reaped: nothing between here and there returns or panics.
    let met = meet(&spec.session).await;
    provider.reap(&spec.session).await?;
    met
}

/// What a second process does, which knows nothing but the session's id.
async fn meet(session: &SessionId) -> Outcome {
    let sandbox = connect().await?.attach(session).await?;
    let job = ExecRequest::shell("echo \"hello from $HOSTNAME\"").with_limit(Duration::from_secs(10));
    let result = sandbox.exec(job).await?;
    writeln!(stdout(), "attached: {}", result.stdout.to_string_lossy().trim())?;
    Ok(())
}
