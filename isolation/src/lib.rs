//! Where a Kubernetes node stack lives on a host: the contract.
#![cfg(target_os = "linux")]

mod backend;
mod backend_ext;
mod error;
mod event;
mod exec;
mod exec_stream;
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
mod node_fs;
mod node_path;
mod node_root;
mod op;
mod process;
mod redact;
mod requirements;
mod slot;
mod source;
mod spec;
mod status;
mod wire;

pub use async_trait::async_trait;

pub use backend::Backend;
pub use backend_ext::{BackendExt, Ready, UnitAction};
pub use error::{Effect, Error, ErrorKind, Reason, Result};
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
pub use node_fs::{NodeFileKind, NodeFs, NodeMetadata};
pub use node_path::NodePath;
pub use node_root::{DirRoot, NodeRoot};
pub use op::{Cancel, OpCtx};
pub use redact::Redact;
pub use requirements::{CommandReq, KernelReq, Requirements};
pub use slot::{SlotName, SlotPair, SlotRef};
pub use source::{DirSource, PreparedSource, RootfsSource, TarSource, UnpackLimits};
pub use spec::{IgnoredGrant, NodeSpec, PrepareReport};
pub use status::{SlotState, Status, UnitStatus};

#[doc(hidden)]
pub mod __private {
    pub use crate::node_path::is_normal_literal;
}
