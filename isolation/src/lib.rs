//! Where a Kubernetes node stack lives on a host: the contract.
//!
//! A *node stack* is containerd, kubelet, CNI plugins and CoreDNS. It lives in one of two *slots*, so that
//! a new one can be prepared beside the one that runs. An *agent* on the host prepares, starts, stops,
//! restarts, destroys, inspects, enters and logs a slot through [`Backend`] and never cares whether the
//! node is a systemd-nspawn machine, a privileged container or units on the host itself ([`Mode`]).
//!
//! This crate is vocabulary and contract. It names neither systemd nor Kubernetes clients, and on its own
//! account it touches the host only where it says so: [`NodeFs`], the sources of root file systems,
//! [`SlotLocks`] and [`SlotStore`], [`preflight`], [`discover`], and programs started by a [`SystemRunner`] that you
//! hand to a backend, or by a [`Supervisor`]. It is for Linux hosts; on other systems the crate is empty.
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
//! The mode `container` is experimental, and therefore opt-in in whoever's table it stands.
//!
//! # Writing a fourth mode
//!
//! The example `custom_backend` of this repository is one from end to end, in one short file; [`fake`] is another. In this order:
//!
//! **1. Give it an entry.** An application operates the modes that stand in its [`ModeTable`], and a mode is one entry: which
//! [`Mode`], how its backend is made, whether it must be asked for. Nothing is registered anywhere else. A mode with a wire
//! name of its own is also one variant of [`Mode`]; until it has one, an entry may put your backend under an existing name.
//!
//! ```
//! use std::sync::Arc;
//! use isolation::fake::FakeBackend;
//! use isolation::{Backend, Mode, ModeEntry, ModeTable};
//!
//! type Make = fn() -> Arc<dyn Backend>;
//! let mine: Make = || Arc::new(FakeBackend::new().with_mode(Mode::None));
//! let table = ModeTable::new().with(ModeEntry::new(Mode::None, mine).opt_in());
//!
//! let configured: Mode = "none".parse()?;
//! let backend = table.get(configured, &[Mode::None])?();
//! assert_eq!(backend.mode(), Mode::None);
//! # Ok::<(), isolation::Error>(())
//! ```
//!
//! **2. Take the host as arguments.** The constructor gets a [`HostRunner`] for programs, [`NodeFs`] roots for files and a
//! [`RootfsSource`] for what is unpacked. [`SystemRunner`] is the real one; with one of your own, unit tests assert argument
//! lists and files without root.
//!
//! **3. Decide what a slot is.** A root directory ([`DirRoot`], or your own [`NodeRoot`] if the path inside differs), a
//! configuration, a running instance. Something on disk must say that the root is finished: that mark is written last and
//! removed first, so that whatever a crash leaves is not taken for a root; nor is a finished root whose change to another spec was cut
//! short, until a `prepare` has ended it. A [`SlotStore`] keeps roots and marks below one directory;
//! where no service manager runs the instance, a [`Supervisor`] does.
//!
//! **4. Write the lifecycle calls**: `prepare`, `start`, `stop`, `restart`, `destroy`. Each has the same shape:
//!
//! ```
//! # use isolation::{OpCtx, Operation, Result, SlotLocks, SlotRef, Error, ErrorKind};
//! # struct Mine { locks: SlotLocks }
//! # impl Mine {
//! # fn known(&self, _: &dyn SlotRef) -> Result<()> { Ok(()) }
//! # async fn up(&self) -> Result<()> { Ok(()) }
//! async fn start(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
//!     // Bounds the call by deadline and cancel, and tells its beginning and its end.
//!     ctx.lifecycle(Operation::Start, slot.slot(), async {
//!         // What was never prepared is refused before anything is touched, locks included.
//!         self.known(slot)?;
//!         // One at a time, across processes; `Busy` at the deadline.
//!         let _held = self.locks.acquire(ctx, slot.slot()).await?;
//!         // Whoever held it may have destroyed the slot.
//!         self.known(slot)?;
//!         self.up().await
//!     })
//!     .await
//! }
//! # }
//! ```
//!
//! [`SlotStore::lifecycle`] has this shape, for every call but `prepare`. Not to be able to look is an error, never "was not prepared". The
//! work may be dropped at any `await`, and the same call must then succeed. Copying and removing trees block: [`run_blocking`] keeps them
//! off the runtime, and the slot stays held until such work has ended if a clone of the [`SlotGuard`] is moved into it, as [`SlotStore`]
//! does. What was started comes up again with the host: `start` says so to whatever starts things there, and `stop` takes it back. Where that is
//! your own program, [`SlotStore::lifecycle`] has kept it, and [`SlotStore::comes_up`] tells at boot. Validate the spec first, give every grant a
//! place in the [`PrepareReport`], ask [`mounts_below`] before a tree is removed, call [`Supervisor::forget`] before [`SlotStore::remove`], and say with
//! [`Error::with_effect`] when something was changed before a failure.
//!
//! **5. Write the calls that look**: `status`, `exec`, `exec_stream`, `logs`. They run under [`OpCtx::bound`] and take no
//! lock. `exec` begins with [`ExecSpec::validate`], which [`HostCommand::of`] does; a non-zero exit is a value. A journal is a command given
//! to [`start_log_stream`], a reader given to [`LogStream::from_reader`], or a [`Journal`] in memory, whose streams get the call's
//! cancel by [`LogStream::with_cancel`]; a command that is talked to gets it by [`ExecStream::with_cancel`], since the call has returned by then.
//!
//! **6. Be honest in [`Requirements`]**: every program you run, every path you write, every unit to start after. `prepare`
//! refuses a host that lacks a program ([`Requirements::check_commands`]), and [`preflight`] says so beforehand.
//!
//! **7. Run the suite** of the crate `conformance`: implement its `Harness` (how to make the backend, what is its on the host,
//! which faults you can bring about, what you claim), and the test file is one `main`:
//!
//! ```text
//! use conformance::isolation::{Harness, Setup};
//!
//! fn main() -> std::process::ExitCode {
//!     conformance::main(Setup::new("mine", || async { Ok(Arc::new(Mine) as Arc<dyn Harness>) }))
//! }
//!
//! [[test]]                                         # in Cargo.toml; without it nothing is run, and all is well
//! name = "conformance"
//! harness = false
//!
//! cargo test --test conformance                    # everything you claim
//! cargo test --test conformance -- lifecycle::     # one area
//! ```
//!
//! What you do not claim is listed as not applicable, never as passed. Begin with no claims and add them one by one. Only that grants of mounts
//! or devices are taken has to be claimed at once: without the claim they must be refused.
//!
//! **8. Read a failure.** It names the case (`order::cut_short_and_again`), the sentence of [`Backend`] that is broken, the
//! step, what was wanted and what was there, and the last calls before it. Look the sentence up, then what the case does: its
//! name is that of a function below `conformance/src/isolation/cases`. "Nothing left" failures list the files and processes
//! that are too many. A failure while the slots are destroyed afterwards belongs to `destroy`, whatever the case was about.
//!
//! A wrapper around another backend needs steps 1 and 7 alone. There are no default methods to forget in it; write
//! `#[deny(clippy::missing_trait_methods)]` on it all the same.
#![cfg(target_os = "linux")]

mod backend;
mod backend_ext;
mod blocking;
pub mod discover;
mod error;
mod error_kind;
mod event;
mod exec;
mod exec_stream;
mod exec_wire;
pub mod fake;
mod grant;
mod grant_parts;
mod grant_wire;
mod host;
mod journal;
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
mod nonce;
mod op;
pub mod preflight;
mod process;
mod redact;
mod requirements;
mod slot;
mod slot_store;
mod source;
mod spec;
mod stats;
mod status;
mod supervisor;
mod wire;

pub use async_trait::async_trait;

pub use backend::Backend;
pub use backend_ext::{BackendExt, Ready, UnitAction};
pub use blocking::{Stop, run_blocking};
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
pub use journal::Journal;
pub use lock::{SlotGuard, SlotLocks};
pub use log_entries::{LogEntries, LogEntry};
pub use log_stream::{LogStream, start_log_stream};
pub use logs::{Cursor, LogFormat, LogOptions, UnitName, journal_output_args, journal_tail_args};
pub use mode::Mode;
pub use mode_table::{ModeEntry, ModeTable};
pub use mounts::mounts_below;
pub use node_fs::{NodeFileKind, NodeFs, NodeMetadata};
pub use node_path::NodePath;
pub use node_root::{DirRoot, HostRoot, NodeRoot};
pub use op::{Cancel, OpCtx};
pub use redact::Redact;
pub use requirements::{CommandReq, KernelReq, Requirements};
pub use slot::{SlotName, SlotPair, SlotRef};
pub use slot_store::SlotStore;
pub use source::{DirSource, PreparedSource, RootfsSource, TarSource, UnpackLimits};
pub use spec::{IgnoredGrant, NodeSpec, PrepareReport};
pub use stats::SlotStats;
pub use status::{SlotState, Status, UnitStatus};
pub use supervisor::Supervisor;

#[doc(hidden)]
pub mod __private {
    pub use crate::node_path::is_normal_literal;
}
