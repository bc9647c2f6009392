//! Names of objects, containers, labels and annotations.

use k8s_openapi::api::core::v1::Pod;
use sandbox::{Error, ErrorKind, SessionId};

use crate::config::K8sConfig;

/// What the names of the Pods begin with, before the hyphen: three bytes, so that every session's name is a DNS label.
const PREFIX: &str = "sbx";
/// The container that the tenant's commands run in.
pub(crate) const SANDBOX: &str = "sandbox";
/// The init container that cuts the network off.
pub(crate) const NETSETUP: &str = "netsetup";
/// The native sidecar that is the gate.
pub(crate) const GATE: &str = "gate";
/// The user that a gate becomes once its firewall stands: it alone may send past that.
pub(crate) const GATE_UID: u32 = 65532;
/// The version of what the labels and annotations mean.
pub(crate) const SCHEMA: &str = "1";

/// Labels and annotations under the domain of a deployment.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    domain: String,
}

/// What is stamped on a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// Label: the session id.
    Session,
    /// Label: the deployment.
    Deployment,
    /// Label: the kind of networking, for network policies.
    Networking,
    /// What is compared when the session is provisioned again.
    Fingerprint,
    /// A digest of what is not compared: variables and hardening.
    Bound,
    /// Which call has made it.
    Nonce,
    /// [`SCHEMA`].
    Schema,
    /// Why an earlier sandbox of the session is no more.
    Recreated,
    /// The variables whose values are not text.
    Env,
}

impl Keys {
    pub(crate) fn of(config: &K8sConfig) -> Self {
        Self { domain: config.domain.clone() }
    }

    pub(crate) fn name(&self, key: Key) -> String {
        let name = match key {
            Key::Session => "session",
            Key::Deployment => "deployment",
            Key::Networking => "networking",
            Key::Fingerprint => "fingerprint",
            Key::Bound => "bound",
            Key::Nonce => "nonce",
            Key::Schema => "schema",
            Key::Recreated => "recreated",
            Key::Env => "env",
        };
        format!("{}/{name}", self.domain)
    }

    /// Selects the Pods of a deployment, or of one session of it. Neither value can change what a selector means: both are checked
    /// label values.
    pub(crate) fn selector(&self, deployment: &str, session: Option<&SessionId>) -> String {
        let mine = format!("{}={deployment}", self.name(Key::Deployment));
        match session {
            Some(session) => format!("{mine},{}={session}", self.name(Key::Session)),
            None => format!("{mine},{}", self.name(Key::Session)),
        }
    }
}

/// One very Pod: its name can be another one's later, its uid cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodId {
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl PodId {
    pub(crate) fn of(pod: &Pod) -> Self {
        let of = |part: &Option<String>| part.clone().unwrap_or_default();
        Self { name: of(&pod.metadata.name), uid: of(&pod.metadata.uid) }
    }

    pub(crate) fn is(&self, pod: &Pod) -> bool {
        pod.metadata.uid.as_deref() == Some(&self.uid)
    }
}

/// The name of a session's Pod.
pub(crate) fn pod_name(session: &SessionId) -> String {
    session.object_name(PREFIX)
}

/// A fresh nonce: 32 hexadecimal digits.
pub(crate) fn nonce() -> Result<String, Error> {
    let mut bits = [0u8; 16];
    getrandom::fill(&mut bits)
        .map_err(|e| Error::new(ErrorKind::Unavailable).because(format!("no source of randomness: {e}")))?;
    Ok(hex(&bits))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
