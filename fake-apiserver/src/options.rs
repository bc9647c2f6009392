//! How a server is made.

use std::time::Duration;

use crate::kubelet::Step;

/// How a server is made: what it says of itself, and how fast its kubelet is.
///
/// ```
/// use std::time::Duration;
///
/// use fake_apiserver::{Options, Protocol, Step};
///
/// let options = Options::new().version(1, 29).protocols(&[Protocol::V4]).step(Step::Ready, Duration::from_millis(20));
/// # drop(options);
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) version: (u32, u32),
    pub(crate) protocols: Vec<Protocol>,
    pub(crate) steps: [Duration; 4],
    pub(crate) drain: Duration,
    pub(crate) not_running: NotRunning,
}

/// The subprotocols of an exec stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// `v4.channel.k8s.io`: the end of standard input can't be told but by closing everything.
    V4,
    /// `v5.channel.k8s.io`: channel 255 closes one channel.
    V5,
}

impl Protocol {
    /// Its name in `Sec-WebSocket-Protocol`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "v4.channel.k8s.io",
            Self::V5 => "v5.channel.k8s.io",
        }
    }
}

/// How exec refuses a container that does not run. A cluster does one or the other, by its version and the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotRunning {
    /// The upgrade is refused with 500: the kubelet's own answer, passed on.
    Refuse,
    /// The stream opens, and its only word is a failed status: an API server that speaks to the kubelet in another
    /// protocol than the client.
    InStream,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            version: (1, 33),
            protocols: vec![Protocol::V5, Protocol::V4],
            steps: [Duration::ZERO; 4],
            drain: Duration::from_secs(2),
            not_running: NotRunning::Refuse,
        }
    }
}

impl Options {
    /// Kubernetes 1.33, both protocols, a kubelet that takes no time.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What `/version` says.
    #[must_use]
    pub fn version(mut self, major: u32, minor: u32) -> Self {
        self.version = (major, minor);
        self
    }

    /// The exec protocols on offer.
    #[must_use]
    pub fn protocols(mut self, protocols: &[Protocol]) -> Self {
        self.protocols = protocols.to_vec();
        self
    }

    /// How long a step of the kubelet takes. Zero, the default, is the next tick.
    #[must_use]
    pub fn step(mut self, step: Step, time: Duration) -> Self {
        self.steps[step as usize] = time;
        self
    }

    /// How long an exec stream waits for its output to end once its process has, while somebody else holds it.
    #[must_use]
    pub fn drain(mut self, time: Duration) -> Self {
        self.drain = time;
        self
    }

    /// How exec refuses a container that does not run.
    #[must_use]
    pub fn not_running(mut self, how: NotRunning) -> Self {
        self.not_running = how;
        self
    }
}
