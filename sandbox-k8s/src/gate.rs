//! The gate of a Pod: a native sidecar, which the kubelet starts before the sandbox and starts again when it ends.

use k8s_openapi::api::core::v1::{Capabilities, Container, EnvVar, ExecAction, Pod, Probe, SecurityContext};
use sandbox::{Capability, Env, Error, ErrorKind, GateSpec, GateToken, Hardening, Spec};

use crate::config::K8sConfig;
use crate::names::{GATE, GATE_UID};
use crate::pod::{amounts, dollars};

/// What a gated sandbox never has: with these it could send as the gate does, or past its firewall.
pub(crate) const DROPS: &[Capability] = &[Capability::NET_RAW, Capability::SETUID, Capability::SETGID];
/// Where a gate listens: on the Pod's loopback.
const PROXY: &str = "http://127.0.0.1:15080";
/// How often, at one a second, a gate may fail before it listens.
pub(crate) const STARTUP_FAILURES: i32 = 60;

/// Refuses a sandbox that could be taken for its gate: the firewall knows the gate by its user.
pub(crate) fn check(hardening: &Hardening) -> Result<(), Error> {
    let refuse = |what: String| Err(Error::new(ErrorKind::InvalidSpec).because(what));
    match hardening.run_as_user {
        Some(user) if user == GATE_UID => refuse(format!("run_as_user {user}: it is the gate's own user")),
        Some(_) => Ok(()),
        None => refuse(format!(
            "run_as_user: a sandbox with a gate must name one, since the image's own could be the gate's, {GATE_UID}"
        )),
    }
}

/// The variables of the sandbox: with a gate, those that send programs to it, whatever else was asked for or stands in the image.
pub(crate) fn env(spec: &Spec) -> Result<Env, Error> {
    let mut env = spec.env.clone();
    if spec.gate.is_some() {
        for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"] {
            env.set(name, PROXY)?;
        }
        for name in ["NO_PROXY", "no_proxy"] {
            env.set(name, "")?;
        }
    }
    Ok(env)
}

/// The container of a gate. Without a token it is one that is only looked at, as in a dry run.
pub(crate) fn container(gate: &GateSpec, token: Option<&GateToken>, config: &K8sConfig) -> Container {
    let var =
        |name: &str, value: &str| EnvVar { name: name.to_owned(), value: Some(dollars(value)), ..EnvVar::default() };
    let mut env = vec![
        var("CONTROLPLANE_URL", &gate.control_plane),
        var("GATE_TOKEN", token.map_or("", GateToken::expose)),
        // Stated, so that no image can move the one user that may send.
        var("GATE_UID", &GATE_UID.to_string()),
    ];
    if let Some(telemetry) = &gate.telemetry {
        env.push(var("OTEL_EXPORTER_OTLP_ENDPOINT", &telemetry.endpoint));
        if telemetry.insecure {
            env.push(var("OTEL_EXPORTER_OTLP_INSECURE", "true"));
        }
    }
    let names = |list: &[&str]| Some(list.iter().map(|name| (*name).to_owned()).collect());
    // It listens on loopback alone, which no probe from outside the Pod reaches.
    let probe = |period, failures| Probe {
        exec: Some(ExecAction { command: names(&["/gate", "-healthcheck"]) }),
        period_seconds: Some(period),
        failure_threshold: Some(failures),
        timeout_seconds: Some(5),
        ..Probe::default()
    };
    Container {
        name: GATE.to_owned(),
        image: Some(gate.image.clone()),
        image_pull_policy: Some(config.image_pull_policy.name().to_owned()),
        restart_policy: Some("Always".to_owned()),
        env: Some(env),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                // The firewall, and then the change to its own user.
                add: names(&["NET_ADMIN", "SETUID", "SETGID"]),
                drop: names(&["ALL"]),
            }),
            read_only_root_filesystem: Some(true),
            run_as_user: Some(0),
            ..SecurityContext::default()
        }),
        resources: Some(amounts(("10m", "32Mi"), ("1000m", "256Mi"))),
        startup_probe: Some(probe(1, STARTUP_FAILURES)),
        readiness_probe: Some(probe(5, 3)),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

/// Whether a Pod has a gate.
pub(crate) fn is_gated(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).any(|container| container.name == GATE)
}
