//! Where a Kubernetes node stack lives on a host: the contract.
//!
//! A *node stack* is containerd, kubelet, CNI plugins and CoreDNS. It lives in one of two *slots*, so that
//! a new one can be prepared beside the one that runs. An *agent* on the host prepares, starts, stops,
//! restarts, destroys, inspects, enters and logs a slot through [`Backend`] and never cares whether the
//! node is a systemd-nspawn machine, a privileged container or units on the host itself ([`Mode`]).
//!
//! This crate is vocabulary and contract. It names neither systemd nor Kubernetes clients, and on its own
//! account it touches the host only where it says so: [`NodeFs`], the sources of root file systems,
//! [`SlotLocks`], [`preflight`], [`discover`], and programs started by a [`SystemRunner`] that you hand to
//! a backend. It is for Linux hosts; on other systems the crate is empty.
//!
//! It does **not** isolate an untrusted command: that is what the crate `sandbox` is for. A node is as
//! privileged as its host.
//!
//! # Using a backend
//!
//! ```
//! use std::time::Duration;
//! use isolation::fake::FakeBackend;
//! use isolation::{Backend, BackendExt, ExecSpec, NodeSpec, OpCtx, Ready, SlotName, SlotPair, node_path};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let backend = FakeBackend::stateful(dir, SlotPair::default());
//! let ctx = OpCtx::new(Duration::from_secs(60));
//! let slot = SlotName::new("kube1")?;
//!
//! let (root, _) = backend.prepare(&ctx, &NodeSpec::new(slot.clone())).await?;
//! root.fs()?.write_atomic(&node_path!("/etc/motd"), 0o644, b"hello")?;
//! backend.start(&ctx, &slot).await?;
//! backend.wait_ready(&ctx, &slot, &Ready::Booted).await?;
//! let motd = root.inside(&node_path!("/etc/motd"));
//! let output = backend.exec_ok(&ctx, &slot, &ExecSpec::new(["cat".into(), motd.into_os_string()])).await?;
//! assert_eq!(output.stdout_text(), "hello");
//! backend.destroy(&ctx, &slot).await?;
//! # Ok(())
//! # }
//! ```
//!
//! * A file is opened by the agent at [`NodeRoot::path`], or better through [`NodeRoot::fs`], and written
//!   into the node's configuration as [`NodeRoot::inside`].
//! * Every call has a deadline: it is in the [`OpCtx`], with what cancels the call and where events go.
//! * Match on [`Error::kind`], decide about a retry by [`Error::effect`]. A command that exits with
//!   something else than 0 is a value, not an error.
//! * Which modes a program can operate is its own [`ModeTable`].
//!
//! # Writing a fourth mode
//!
//! 1. Implement [`Backend`]. Its documentation is the contract; each sentence of its lists is a rule. The
//!    source of [`fake`] is the smallest backend that keeps them all.
//! 2. Take what touches the host as arguments: a [`HostRunner`] for programs, a [`NodeFs`] for files, a
//!    [`RootfsSource`] for the root file system. Then your unit tests need no root.
//! 3. Begin each lifecycle call with [`OpCtx::lifecycle`], which bounds it and emits its events, and hold a
//!    [`SlotLocks`] guard while it works.
//! 4. In `prepare`, write everything under another name, and the mark of a finished root last. In
//!    `destroy`, remove the mark first, and ask [`mounts_below`] before you remove a tree.
//! 5. Return logs through [`start_log_stream`], commands to talk to through [`ExecStream`].
//! 6. Declare in [`Requirements`] every program you run and every path you write.
//! 7. Run the suite of the crate `conformance`: one short test file. It quotes the sentence that is broken.
//!
//! There are no default methods to forget in a wrapper; write `#[deny(clippy::missing_trait_methods)]` on
//! yours all the same.
#![cfg(target_os = "linux")]

mod backend;
mod backend_ext;
pub mod discover;
mod error;
mod error_kind;
mod event;
mod exec;
mod exec_stream;
pub mod fake;
mod grant;
mod grant_parts;
mod grant_wire;
mod host;
mod lock;
mod log_entries;
mod log_stream;
mod logs;
mod mode;
mod mode_table;
mod mounts;
mod node_fs;
mod node_path;
mod node_root;
mod op;
pub mod preflight;
mod process;
mod redact;
mod requirements;
mod slot;
mod source;
mod spec;
mod stats;
mod status;
mod wire;

pub use async_trait::async_trait;

pub use backend::Backend;
pub use backend_ext::{BackendExt, Ready, UnitAction};
pub use error::{Error, Result};
pub use error_kind::{Effect, ErrorKind, Reason};
pub use event::{Event, EventSink, FailedKind, OpId, Operation, Phase};
pub use exec::{ExecOutput, ExecSpec, ExecStatus};
pub use exec_stream::ExecStream;
pub use grant::{
    DeviceClassGrant, DeviceGrant, DeviceRule, Grant, GrantKind, LibDirMount, LibraryPathGrant, MountGrant, Purpose,
    lib_dir_mounts,
};
pub use grant_parts::{DeviceClass, HostPath};
pub use host::{HostCommand, HostRunner, SystemRunner};
pub use lock::{SlotGuard, SlotLocks};
pub use log_entries::{LogEntries, LogEntry};
pub use log_stream::{LogStream, start_log_stream};
pub use logs::{Cursor, LogFormat, LogOptions, UnitName, journal_output_args, journal_tail_args};
pub use mode::Mode;
pub use mode_table::{ModeEntry, ModeTable};
pub use mounts::mounts_below;
pub use node_fs::{NodeFileKind, NodeFs, NodeMetadata};
pub use node_path::NodePath;
pub use node_root::{DirRoot, NodeRoot};
pub use op::{Cancel, OpCtx};
pub use redact::Redact;
pub use requirements::{CommandReq, KernelReq, Requirements};
pub use slot::{SlotName, SlotPair, SlotRef};
pub use source::{DirSource, PreparedSource, RootfsSource, TarSource, UnpackLimits};
pub use spec::{IgnoredGrant, NodeSpec, PrepareReport};
pub use stats::SlotStats;
pub use status::{SlotState, Status, UnitStatus};

#[doc(hidden)]
pub mod __private {
    pub use crate::node_path::is_normal_literal;
}
