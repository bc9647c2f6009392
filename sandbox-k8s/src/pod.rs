//! From a spec to a Pod: pure, and tested against golden files.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities as PodCapabilities, Container, EmptyDirVolumeSource, EnvVar, LocalObjectReference, Pod, PodDNSConfig,
    PodSecurityContext, PodSpec, ResourceRequirements, SeccompProfile, SecurityContext, Toleration as PodToleration,
    Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sandbox::{Capability, Env, Error, ErrorKind, GateToken, Hardening, Networking, Recreated, Spec};
use sha2::{Digest, Sha256};

use crate::config::K8sConfig;
use crate::gate;
use crate::names::{Key, Keys, NETSETUP, SANDBOX, SCHEMA, hex, pod_name};

const INIT: &str = include_str!("scripts/init.bash");
const NETSETUP_SCRIPT: &str = include_str!("scripts/netsetup.sh");
/// The most that the variables whose values are not text may take in their annotation; all annotations together may have 256 KiB.
const MAX_BINARY_ENV: usize = 192 * 1024;
/// The longest detail of an earlier death.
const MAX_DETAIL: usize = 1024;
/// The longest note that an earlier sandbox is no more: each of its characters can take twelve bytes.
pub(crate) const MAX_NOTE: usize = 12 * MAX_DETAIL + 256;

/// What tells this making of a sandbox from every other one.
#[derive(Debug, Clone)]
pub(crate) struct Making {
    pub(crate) nonce: String,
    pub(crate) recreated: Option<Recreated>,
    /// The token of its gate, where there is one.
    pub(crate) token: Option<GateToken>,
}

impl Making {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self { nonce: crate::names::nonce()?, recreated: None, token: None })
    }
}

/// The Pod of a session.
///
/// # Errors
///
/// `InvalidSpec` for what no Pod can hold: a working directory or an amount of variables.
pub(crate) fn pod(spec: &Spec, config: &K8sConfig, making: &Making) -> Result<Pod, Error> {
    let workdir = workdir(spec)?;
    let cut_off = is_cut_off(spec);
    let hardening = &spec.hardening;
    if spec.gate.is_some() {
        gate::check(hardening)?;
    }
    let init = match &spec.gate {
        Some(gate) => Some(gate::container(gate, making.token.as_ref(), config)),
        None => cut_off.then(|| netsetup(config)),
    };
    let (volumes, mounts) = volumes(&workdir, hardening, config);
    let sandbox = Container {
        name: SANDBOX.to_owned(),
        image: Some(spec.image.clone()),
        image_pull_policy: Some(config.image_pull_policy.name().to_owned()),
        command: Some(command("/bin/bash", &["--norc", "--noprofile", "-p", "-c", INIT, SANDBOX, &workdir])),
        working_dir: Some(workdir),
        env: some(env_vars(&gate::env(spec)?)),
        resources: resources(hardening),
        security_context: security(hardening, if spec.gate.is_some() { gate::DROPS } else { cut_off_drops(cut_off) }),
        volume_mounts: some(mounts),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    };
    let pod = PodSpec {
        containers: vec![sandbox],
        init_containers: init.map(|container| vec![container]),
        restart_policy: Some("Never".to_owned()),
        automount_service_account_token: Some(false),
        service_account_name: config.service_account.clone(),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(i64::from(config.grace(true).max(1))),
        runtime_class_name: config.runtime_class.clone(),
        priority_class_name: config.priority_class.clone(),
        active_deadline_seconds: config.max_lifetime.and_then(|time| i64::try_from(time.as_secs()).ok()),
        host_users: config.user_namespaces.map(|own| !own),
        security_context: Some(PodSecurityContext {
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
            fs_group: hardening.fs_group.map(i64::from),
            ..PodSecurityContext::default()
        }),
        node_selector: (!config.node_selector.is_empty()).then(|| config.node_selector.clone()),
        tolerations: some(config.tolerations.iter().map(toleration).collect()),
        image_pull_secrets: some(
            config.image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() }).collect(),
        ),
        dns_policy: cut_off.then(|| "None".to_owned()),
        // The API wants one: this is an address at which nobody answers.
        dns_config: cut_off
            .then(|| PodDNSConfig { nameservers: Some(vec!["127.0.0.1".to_owned()]), ..PodDNSConfig::default() }),
        volumes: some(volumes),
        ..PodSpec::default()
    };
    Ok(Pod { metadata: metadata(spec, config, making)?, spec: Some(pod), status: None })
}

fn metadata(spec: &Spec, config: &K8sConfig, making: &Making) -> Result<ObjectMeta, Error> {
    let keys = Keys::of(config);
    let labels = [
        (keys.name(Key::Session), spec.session.as_str()),
        (keys.name(Key::Deployment), &config.deployment),
        (keys.name(Key::Networking), networking_label(spec)),
        ("app.kubernetes.io/name".to_owned(), "sandbox"),
        ("app.kubernetes.io/component".to_owned(), "session"),
        ("app.kubernetes.io/managed-by".to_owned(), "sandbox-k8s"),
    ];
    let mut annotations = BTreeMap::from([
        (keys.name(Key::Fingerprint), fingerprint(spec)),
        (keys.name(Key::Bound), bound(spec)),
        (keys.name(Key::Nonce), making.nonce.clone()),
        (keys.name(Key::Schema), SCHEMA.to_owned()),
    ]);
    if let Some(recreated) = &making.recreated {
        annotations.insert(keys.name(Key::Recreated), self::recreated(recreated)?);
    }
    if let Some(binary) = binary_env(&gate::env(spec)?)? {
        annotations.insert(keys.name(Key::Env), binary);
    }
    Ok(ObjectMeta {
        name: Some(pod_name(&spec.session)),
        labels: Some(labels.into_iter().map(|(key, value)| (key, value.to_owned())).collect()),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    })
}

/// The kind of networking, as a label.
pub(crate) fn networking_label(spec: &Spec) -> &'static str {
    if spec.gate.is_some() { "gated" } else { spec.networking.name() }
}

/// Why an earlier sandbox is no more, as an annotation.
pub(crate) fn recreated(why: &Recreated) -> Result<String, Error> {
    let detail: String = why.detail.chars().take(MAX_DETAIL).collect();
    json(&Recreated::new(why.reason, detail))
}

fn netsetup(config: &K8sConfig) -> Container {
    Container {
        name: NETSETUP.to_owned(),
        image: Some(config.net_setup_image.clone()),
        image_pull_policy: Some(config.image_pull_policy.name().to_owned()),
        command: Some(command("/bin/sh", &["-c", NETSETUP_SCRIPT])),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(PodCapabilities {
                add: Some(vec!["NET_ADMIN".to_owned()]),
                drop: Some(vec!["ALL".to_owned()]),
            }),
            read_only_root_filesystem: Some(true),
            run_as_user: Some(0),
            ..SecurityContext::default()
        }),
        resources: Some(amounts(("10m", "16Mi"), ("500m", "64Mi"))),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

/// Processor time and memory: what is reserved, and what is the most. A namespace with a quota wants both of every container.
pub(crate) fn amounts(requests: (&str, &str), limits: (&str, &str)) -> ResourceRequirements {
    let amount = |(cpu, memory): (&str, &str)| {
        Some(BTreeMap::from([
            ("cpu".to_owned(), Quantity(cpu.to_owned())),
            ("memory".to_owned(), Quantity(memory.to_owned())),
        ]))
    };
    ResourceRequirements { limits: amount(limits), requests: amount(requests), ..ResourceRequirements::default() }
}

/// The working directory as text, which a Pod needs.
fn workdir(spec: &Spec) -> Result<String, Error> {
    String::from_utf8(spec.workdir.as_bytes().to_vec()).map_err(|_| {
        Error::new(ErrorKind::InvalidSpec)
            .because(format!("workdir \"{}\": on Kubernetes it must be UTF-8", spec.workdir))
    })
}

/// Kubernetes expands `$(NAME)` in commands and values and folds `$$`.
pub(crate) fn dollars(text: &str) -> String {
    text.replace('$', "$$")
}

fn command(program: &str, args: &[&str]) -> Vec<String> {
    std::iter::once(&program).chain(args).map(|word| dollars(word)).collect()
}

fn env_vars(env: &Env) -> Vec<EnvVar> {
    env.iter()
        .filter_map(|(name, value)| Some((name, std::str::from_utf8(value).ok()?)))
        .map(|(name, value)| EnvVar { name: name.to_owned(), value: Some(dollars(value)), ..EnvVar::default() })
        .collect()
}

/// The variables whose values are not text, as JSON. They reach each command over its stream.
fn binary_env(env: &Env) -> Result<Option<String>, Error> {
    let mut binary = Env::new();
    for (name, value) in env.iter().filter(|(_, value)| std::str::from_utf8(value).is_err()) {
        binary.set(name, value.clone())?;
    }
    if binary.is_empty() {
        return Ok(None);
    }
    let text = json(&binary)?;
    if text.len() > MAX_BINARY_ENV {
        return Err(Error::new(ErrorKind::InvalidSpec).because(format!(
            "env: on Kubernetes values that are not UTF-8 may take {MAX_BINARY_ENV} bytes as JSON; these take {}",
            text.len()
        )));
    }
    Ok(Some(text))
}

/// A digest of what is compared when the session is provisioned again. With a gate the networking is the gate's, which fetches it
/// anew.
pub(crate) fn fingerprint(spec: &Spec) -> String {
    match spec.gate {
        Some(_) => spec.clone().with_networking(Networking::Unrestricted).fingerprint(),
        None => spec.fingerprint(),
    }
}

/// A digest of what is kept as it was at the creation.
pub(crate) fn bound(spec: &Spec) -> String {
    let mut hash = Sha256::new();
    for part in [serde_json::to_vec(&spec.env), serde_json::to_vec(&spec.hardening)] {
        let part = part.unwrap_or_default();
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

fn json<T: serde::Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string(value)
        .map_err(|e| Error::new(ErrorKind::Other).because("plain data does not become JSON").caused_by(e))
}

/// An empty list is left out: the API gives none back, and a diff would show it.
fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Processor time that a sandbox reserves at most; its limit is what contains it.
const CPU_REQUEST: u64 = 100;

fn resources(hardening: &Hardening) -> Option<ResourceRequirements> {
    let mut limits = BTreeMap::new();
    let mut requests = BTreeMap::new();
    let mut bound = |name: &str, limit: String, request: String| {
        limits.insert(name.to_owned(), Quantity(limit));
        requests.insert(name.to_owned(), Quantity(request));
    };
    if let Some(millis) = hardening.cpu_millis.value() {
        bound("cpu", format!("{millis}m"), format!("{}m", millis.min(CPU_REQUEST)));
    }
    // These can't be throttled, and evictions rank by what was asked for: they are reserved in full.
    if let Some(bytes) = hardening.memory_bytes.value() {
        bound("memory", bytes.to_string(), bytes.to_string());
    }
    if let Some(bytes) = hardening.disk_bytes.value() {
        bound("ephemeral-storage", bytes.to_string(), bytes.to_string());
    }
    (!limits.is_empty()).then(|| ResourceRequirements {
        limits: Some(limits),
        requests: Some(requests),
        ..ResourceRequirements::default()
    })
}

/// Whether the network is cut off, and not a gate's to guard.
pub(crate) fn is_cut_off(spec: &Spec) -> bool {
    spec.gate.is_none() && !matches!(spec.networking, Networking::Unrestricted)
}

/// A raw socket reaches the segment without a route.
fn cut_off_drops(cut_off: bool) -> &'static [Capability] {
    if cut_off { &[Capability::NET_RAW] } else { &[] }
}

/// The security of the sandbox's container; `always` is dropped whatever is asked for.
fn security(hardening: &Hardening, always: &[Capability]) -> Option<SecurityContext> {
    let mut drop: Vec<String> = hardening.cap_drop.names();
    for name in always.iter().map(|capability| capability.name()) {
        if !hardening.cap_drop.is_all() && !drop.iter().any(|known| known == name) {
            drop.push(name.to_owned());
        }
    }
    let context = SecurityContext {
        // Otherwise a program with the set-user-id bit wins back what was dropped.
        allow_privilege_escalation: (!drop.is_empty()).then_some(false),
        capabilities: (!drop.is_empty()).then_some(PodCapabilities { add: None, drop: Some(drop) }),
        read_only_root_filesystem: hardening.read_only_root.then_some(true),
        run_as_user: hardening.run_as_user.map(i64::from),
        run_as_group: hardening.run_as_group.map(i64::from),
        run_as_non_root: hardening.run_as_non_root.then_some(true),
        ..SecurityContext::default()
    };
    (context != SecurityContext::default()).then_some(context)
}

/// The places that can be written where the root cannot, or where the user is one that the image does not know.
fn volumes(workdir: &str, hardening: &Hardening, config: &K8sConfig) -> (Vec<Volume>, Vec<VolumeMount>) {
    let stranger = hardening.run_as_user.is_some_and(|id| id != 0);
    if !hardening.read_only_root && !stranger {
        return (Vec::new(), Vec::new());
    }
    let bytes = hardening.disk_bytes.value().unwrap_or(config.volume_bytes);
    [workdir, "/tmp", "/mnt"]
        .into_iter()
        .map(|path| {
            let name = volume_name(path);
            let volume = Volume {
                name: name.clone(),
                empty_dir: Some(EmptyDirVolumeSource {
                    size_limit: Some(Quantity(bytes.to_string())),
                    ..EmptyDirVolumeSource::default()
                }),
                ..Volume::default()
            };
            (volume, VolumeMount { name, mount_path: path.to_owned(), ..VolumeMount::default() })
        })
        .unzip()
}

/// A readable stem, and a digest that makes it the path's own.
fn volume_name(path: &str) -> String {
    let stem: String =
        path.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).take(50).collect();
    format!("w{}-{}", stem.trim_end_matches('-'), &hex(&Sha256::digest(path))[..8])
}

fn toleration(toleration: &crate::Toleration) -> PodToleration {
    PodToleration {
        key: toleration.key.clone(),
        operator: toleration.operator.map(|operator| operator.to_string()),
        value: toleration.value.clone(),
        effect: toleration.effect.map(|effect| effect.to_string()),
        toleration_seconds: toleration.toleration_seconds,
    }
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
