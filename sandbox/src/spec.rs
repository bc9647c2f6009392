//! What a provision asks for.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::id::quoted;
use crate::{Env, Error, ErrorKind, GateSpec, Hardening, Networking, SandboxPath, SessionId};

/// What a provision asks for: plain data, which can be stored and sent.
///
/// Of a sandbox that exists already, `image`, `workdir` and the kind of `networking` are compared; `env` and `hardening` stay as
/// they were at its creation.
///
/// ```
/// use sandbox::{Env, SessionId, Spec};
///
/// let spec = Spec::new(SessionId::new("job_7")?, "debian:stable-slim").with_env(Env::new().with("LANG", "C.UTF-8")?);
/// spec.validate()?;
/// # Ok::<(), sandbox::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Spec {
    /// The session: its whole identity.
    pub session: SessionId,
    /// What the sandbox is made from, in the backend's own terms; never empty.
    pub image: String,
    /// Where commands start; [`Spec::DEFAULT_WORKDIR`] unless said otherwise.
    #[serde(default = "default_workdir")]
    pub workdir: SandboxPath,
    /// What it may reach.
    #[serde(default)]
    pub networking: Networking,
    /// Variables that every command sees.
    #[serde(default)]
    pub env: Env,
    /// How it is contained.
    #[serde(default)]
    pub hardening: Hardening,
    /// The gate through which its traffic goes, if there is to be one. Needs [`Capabilities::gate`](crate::Capabilities::gate).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateSpec>,
}

fn default_workdir() -> SandboxPath {
    SandboxPath::new(Spec::DEFAULT_WORKDIR).expect("the default is legal")
}

/// Trees that a working directory may neither be, nor hold, nor lie in: scratch space, the kernel's own trees, and `/mnt/session`, which is
/// kept for what a caller puts beside the work, such as a user's uploads.
const TAKEN: &[&str] = &["/tmp", "/mnt/session", "/proc", "/sys", "/dev"];

impl Spec {
    /// `/workspace`.
    pub const DEFAULT_WORKDIR: &'static str = "/workspace";
    /// The longest image, in bytes.
    pub const MAX_IMAGE: usize = 4096;

    /// A sandbox for `session` from `image`, everything else at its default.
    #[must_use]
    pub fn new(session: SessionId, image: impl Into<String>) -> Self {
        Self {
            session,
            image: image.into(),
            workdir: default_workdir(),
            networking: Networking::default(),
            env: Env::default(),
            hardening: Hardening::default(),
            gate: None,
        }
    }

    /// Sets where commands start.
    #[must_use]
    pub fn with_workdir(mut self, workdir: SandboxPath) -> Self {
        self.workdir = workdir;
        self
    }

    /// Sets what it may reach.
    #[must_use]
    pub fn with_networking(mut self, networking: Networking) -> Self {
        self.networking = networking;
        self
    }

    /// Sets the variables that every command sees.
    #[must_use]
    pub fn with_env(mut self, env: Env) -> Self {
        self.env = env;
        self
    }

    /// Sets how it is contained.
    #[must_use]
    pub fn with_hardening(mut self, hardening: Hardening) -> Self {
        self.hardening = hardening;
        self
    }

    /// Sets the gate through which its traffic goes.
    #[must_use]
    pub fn with_gate(mut self, gate: GateSpec) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Checks what does not depend on a backend. Every `provision` does this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSpec`], naming the field, the value and the rule.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidSpec).because(what));
        if self.image.is_empty() {
            return refuse("image \"\": it must not be empty".to_owned());
        }
        let image = quoted(self.image.as_bytes());
        if self.image.len() > Self::MAX_IMAGE {
            return refuse(format!("image {image}: it must have at most {} bytes", Self::MAX_IMAGE));
        }
        if self.image.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return refuse(format!("image {image}: it must contain neither spaces nor control characters"));
        }
        let workdir = quoted(self.workdir.as_bytes());
        if self.workdir.as_bytes().contains(&b'\n') {
            return refuse(format!("workdir {workdir}: it must not contain a newline"));
        }
        for taken in TAKEN {
            let tree = SandboxPath::new(*taken)?;
            if self.workdir.starts_with(&tree) || tree.starts_with(&self.workdir) {
                return refuse(format!("workdir {workdir}: it must not be, hold or lie in {taken}"));
            }
        }
        if let Some(gate) = &self.gate {
            gate.validate()?;
            if self.networking == Networking::None {
                return refuse("gate: networking none has no traffic to go through one".to_owned());
            }
        }
        self.hardening.validate()
    }

    /// What is compared when a sandbox exists already, by field. A new field is either here or left out by name. A sandbox with
    /// another gate is no mismatch: the backend that has gates replaces it.
    fn compared(&self) -> [(&'static str, &[u8]); 3] {
        let Self { session: _, image, workdir, networking, env: _, hardening: _, gate: _ } = self;
        [("image", image.as_bytes()), ("workdir", workdir.as_bytes()), ("networking", networking.name().as_bytes())]
    }

    /// A digest of what is compared when a sandbox exists already, as 64 hexadecimal digits: `image`, `workdir` and the kind
    /// of `networking`.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for part in [b"v1".as_slice()].into_iter().chain(self.compared().map(|(_, value)| value)) {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mut hex = String::with_capacity(64);
        for byte in hash.finalize() {
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    }

    /// What makes `wanted` another spec than this one, of what is compared, in words for people. Empty if their fingerprints are the
    /// same.
    #[must_use]
    pub fn differences(&self, wanted: &Self) -> String {
        let pairs = self.compared().into_iter().zip(wanted.compared());
        let differing = pairs.filter(|((_, is), (_, wanted))| is != wanted);
        let said =
            differing.map(|((name, is), (_, wanted))| format!("{name} is {}, not {}", quoted(is), quoted(wanted)));
        said.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec::new(SessionId::new("s").unwrap(), "img")
    }

    fn workdir(path: &str) -> Spec {
        spec().with_workdir(SandboxPath::new(path).unwrap())
    }

    #[test]
    fn accepted() {
        spec().validate().unwrap();
        for path in ["/workspace", "/w", "/home/user", "/tmpx", "/mnt/data", "/a b"] {
            workdir(path).validate().unwrap_or_else(|e| panic!("{e}"));
        }
        let json = serde_json::to_string(&spec()).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&json).unwrap(), spec());
        let short: Spec = serde_json::from_str(r#"{"session":"s","image":"img"}"#).unwrap();
        assert_eq!(short, spec());
    }

    #[test]
    fn rejected() {
        let long = "x".repeat(4097);
        for image in ["", " ", "a b", "a\nb", "a\0", long.as_str()] {
            let error = Spec::new(SessionId::new("s").unwrap(), image).validate().expect_err(image);
            assert_eq!(error.kind(), ErrorKind::InvalidSpec);
            assert!(error.to_string().contains("image \""), "{error}");
        }
        for path in
            ["/tmp", "/tmp/x", "/mnt", "/mnt/session", "/mnt/session/up", "/proc/1", "/sys", "/dev/shm", "/a\nb"]
        {
            let error = workdir(path).validate().expect_err(path);
            assert_eq!(error.kind(), ErrorKind::InvalidSpec);
            assert!(error.to_string().contains("workdir \""), "{error}");
        }
        for json in
            [r#"{"session":"S","image":"i"}"#, r#"{"session":"s"}"#, r#"{"session":"s","image":"i","imgae":"j"}"#]
        {
            assert!(serde_json::from_str::<Spec>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn fingerprint_covers_what_is_compared_and_nothing_else() {
        let same = spec().with_env(Env::new().with("A", "1").unwrap()).with_hardening(Hardening::restricted());
        assert_eq!(same.fingerprint(), spec().fingerprint());
        let mut others = vec![
            workdir("/w"),
            spec().with_networking(Networking::None),
            spec().with_networking(Networking::limited([])),
        ];
        others.push(Spec::new(SessionId::new("s").unwrap(), "img2"));
        let prints: std::collections::HashSet<_> = others.iter().chain([&spec()]).map(Spec::fingerprint).collect();
        assert_eq!(prints.len(), 5);
        // It is stored, and compared by other versions of this crate.
        let known = "486d1d73b78ed48e9c6b043e9ba627db4bacece3e84c15f643d23cd177805daf";
        assert_eq!(spec().fingerprint(), known);
        for other in &others {
            assert_ne!(spec().differences(other), "", "{other:?}");
        }
        assert_eq!(spec().differences(&same), "");
        let both = workdir("/w").with_networking(Networking::None);
        let said = "workdir is \"/workspace\", not \"/w\"; networking is \"unrestricted\", not \"none\"";
        assert_eq!(spec().differences(&both), said);
    }
}
