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
    /// How many operations may be under way at once; more wait in order. At least 1.
    pub max_streams: usize,
    /// How many streams may be opening at once. At least 1.
    pub max_opening: usize,
    /// How long an unused stream is kept.
    pub idle_close: Duration,
    /// How long opening a stream may take, and how long a request may take to begin.
    pub open_timeout: Duration,
    /// How long a file operation may go without progress.
    pub inactivity: Duration,
    /// Where the tools for file operations are looked for inside, as in `PATH`. Nothing that the tenant sets changes it.
    pub tools: String,
    /// Whether a stream serves more than one command.
    pub reuse: bool,
}

impl GuestConfig {
    /// The usual bounds: 64 streams, 8 of them opening, 60 seconds idle, 30 seconds to open, 60 without progress, with reuse.
    #[must_use]
    pub fn new(workdir: SandboxPath) -> Self {
        Self {
            workdir,
            env: Env::new(),
            max_streams: 64,
            max_opening: 8,
            idle_close: Duration::from_secs(60),
            open_timeout: Duration::from_secs(30),
            inactivity: Duration::from_secs(60),
            tools: "/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            reuse: true,
        }
    }

    /// Sets the variables that are sent over each stream.
    #[must_use]
    pub fn with_env(mut self, env: Env) -> Self {
        self.env = env;
        self
    }
}
