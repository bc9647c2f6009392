//! What a gate is tried with.

use std::fmt;

use sandbox::{GateSpec, Networking};

/// A gate, the one host that it lets through, and the credential that it puts in place: what the case `networking::gate` needs
/// besides the claim `gate`.
///
/// The origin is an HTTP server of yours that the gate can reach and that answers `POST /echo` with the `Authorization` header and the
/// body that it got. The gate's policy, which your control plane serves, allows the origin's host and no other, and names one credential
/// for that host, to be put in place in headers and bodies.
#[derive(Clone, PartialEq, Eq)]
pub struct GateFixture {
    pub(super) spec: GateSpec,
    pub(super) networking: Networking,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) placeholder: String,
    pub(super) secret: String,
}

impl GateFixture {
    /// The gate of `spec`, given `networking`, in front of the origin at `host` and `port`.
    pub fn new(spec: GateSpec, networking: Networking, host: impl Into<String>, port: u16) -> Self {
        let (placeholder, secret) = (String::new(), String::new());
        Self { spec, networking, host: host.into(), port, placeholder, secret }
    }

    /// The credential: what the sandbox knows, and what the origin is to get in its place. Both are plain text without spaces; the
    /// texts of failures never hold the secret.
    #[must_use]
    pub fn with_credential(mut self, placeholder: impl Into<String>, secret: impl Into<String>) -> Self {
        (self.placeholder, self.secret) = (placeholder.into(), secret.into());
        self
    }
}

impl fmt::Debug for GateFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spec, networking, host, port, placeholder, secret: _ } = self;
        let mut shown = f.debug_struct("GateFixture");
        shown.field("spec", spec).field("networking", networking).field("host", host).field("port", port);
        shown.field("placeholder", placeholder).finish_non_exhaustive()
    }
}
