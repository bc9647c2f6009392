//! What a guest needs to know of its sandbox.

use std::time::Duration;

use sandbox::{Env, SandboxPath};

/// What a [`Guest`](crate::Guest) needs to know, and its bounds.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GuestConfig {
    /// Where commands start.
    pub workdir: SandboxPath,
    /// Variables of the sandbox that its shells do not have by themselves: they are sent over each stream.
    pub env: Env,
    /// How many operations may be under way at once; more wait in order. One whose command has to be killed is under way until that was
    /// carried out. At least 1.
    pub max_streams: usize,
    /// How many streams may be opening at once; while streams are freed every few milliseconds, no more than two. At least 1.
    pub max_opening: usize,
    /// How long an unused stream is kept.
    pub idle_close: Duration,
    /// How long a call may take from its turn until what it asks for begins: opening a stream and the control stream, sending the
    /// request, and the sandbox's word that it was taken up. One deadline for all of it, however many streams turn out dead.
    pub begin_timeout: Duration,
    /// How long content may stand still once a file operation has begun, in either direction, and how long the sandbox may take to
    /// answer when it has everything. A trickle is a standstill, too: all waits are taken from this time, and only what moves gives some of
    /// it back, a second for every 16 KiB.
    pub inactivity: Duration,
    /// Where the tools for file operations are looked for inside, as in `PATH`. Nothing that the tenant sets changes it.
    pub tools: String,
    /// Whether a stream serves more than one command.
    pub reuse: bool,
}

impl GuestConfig {
    /// The usual bounds: 64 streams, 8 of them opening, 60 seconds idle, 30 seconds to begin, 30 without progress, with reuse.
    #[must_use]
    pub fn new(workdir: SandboxPath) -> Self {
        Self {
            workdir,
            env: Env::new(),
            max_streams: 64,
            max_opening: 8,
            idle_close: Duration::from_secs(60),
            begin_timeout: Duration::from_secs(30),
            inactivity: Duration::from_secs(30),
            tools: "/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            reuse: true,
        }
    }

    /// Sets how long a call may take until what it asks for begins.
    #[must_use]
    pub fn with_begin_timeout(mut self, timeout: Duration) -> Self {
        self.begin_timeout = timeout;
        self
    }

    /// Sets how long content may stand still.
    #[must_use]
    pub fn with_inactivity(mut self, timeout: Duration) -> Self {
        self.inactivity = timeout;
        self
    }

    /// Sets the variables that are sent over each stream.
    #[must_use]
    pub fn with_env(mut self, env: Env) -> Self {
        self.env = env;
        self
    }
}
