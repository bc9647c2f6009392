//! One disposable place to run untrusted commands per session: the contract that every backend keeps.
//!
//! A [`Provider`] makes, finds, lists, exports and removes sandboxes; a [`Sandbox`] runs commands with deadlines and moves files.
//! This crate has the two traits, their plain-data types, one opaque [`Error`], and [`Checked`], the wrapper that holds a backend
//! to its own claims. It does no input or output on its own account and knows no backend:
//!
//! - `sandbox-local`: this machine, nothing to install;
//! - `sandbox-k8s`: one hardened Pod per session;
//! - yours: implement the two traits, with a carrier of bytes for `sandbox-guest` or without; for sandboxes on one machine, only how they are
//!   made, entered and ended. Then run the `conformance` suite against it.
//!
//! ```no_run
//! use std::time::Duration;
//! use sandbox::{Error, ExecRequest, ExecResult, Provider, Sandbox, SandboxExt, SandboxPath, SessionId, Spec};
//!
//! async fn run(provider: &dyn Provider) -> Result<(), Error> {
//!     let spec = Spec::new(SessionId::generate(), "host");
//!     let sandbox = provider.provision(&spec).await?;
//!     let result = work(&*sandbox).await;
//!     provider.reap(&spec.session).await?;
//!     assert_eq!(result?.stdout.bytes, "42\n");
//!     Ok(())
//! }
//!
//! async fn work(sandbox: &dyn Sandbox) -> Result<ExecResult, Error> {
//!     sandbox.write_bytes(&SandboxPath::new("/workspace/in.txt")?, "6 7").await?;
//!     let job = ExecRequest::shell("read a b < in.txt; echo $((a * b))").with_limit(Duration::from_secs(5));
//!     sandbox.exec(job).await
//! }
//! ```
//!
//! # A sandbox outlives its handles
//!
//! Dropping a handle, returning early and even the end of the process leave the sandbox where it is: the session id finds it again
//! ([`attach`](Provider::attach)), and only [`reap`](Provider::reap) and [`destroy`](Sandbox::destroy) remove it. So put the work into a
//! function of its own, reap, and only then look at the result, as above. What a crash left behind is found through
//! [`owned`](Provider::owned): reap each session that your own records do not know. Record a session before you provision it, and leave
//! alone what is younger than your longest provision: somebody may be making it.
//!
//! # When the caller dies
//!
//! A command outlives the process that runs it, too: a dropped future kills it, a process that is killed cannot. One with a limit is killed
//! at that limit, or up to two seconds later, by a watchdog inside the sandbox, which leaves alone what an ended one left in the background;
//! one without runs on, unheard, until it ends, stands still on output that nobody reads, or goes with its sandbox. So give every command a limit. That holds for backends on `sandbox-guest`, as those above are.
//!
//! # Errors
//!
//! Match on [`Error::kind`], and decide on a retry by [`Error::effect`]. A command that fails is a value, never an error.
//!
//! # Dropped futures
//!
//! Every future of this crate can be dropped at any point; each method says what that leaves.

mod capabilities;
mod checked;
mod env;
mod error;
mod exec;
mod ext;
mod gate;
mod hardening;
mod id;
mod networking;
mod owned;
mod path;
mod process;
mod provider;
mod spec;
mod stream;
mod vars;

pub use async_trait::async_trait;
pub use capabilities::Capabilities;
pub use checked::Checked;
pub use env::{Dropped, Env};
pub use error::{Death, Effect, Error, ErrorKind};
pub use exec::{Command, ExecRequest, ExecResult, Output};
pub use ext::{ProviderExt, SandboxExt};
pub use gate::{GateMinter, GateRevoker, GateSpec, GateTelemetry, GateToken};
pub use hardening::{CapDrop, Capability, Hardening, Limit};
pub use id::SessionId;
pub use networking::{AllowedHost, Limited, Networking};
pub use owned::{Owned, OwnedState, OwnedStream, Recreated};
pub use path::SandboxPath;
pub use process::{Exit, Process, ProcessControl, Signal, SpawnRequest};
pub use provider::{Provider, Sandbox};
pub use spec::Spec;
pub use stream::{Body, ByteStream, ExportStream, FileBatch, FileWrite, ReadStream};
