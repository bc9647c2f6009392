//! Where a Kubernetes node stack lives on a host: the contract.
#![cfg(target_os = "linux")]

mod error;
mod event;
mod exec;
mod grant;
mod grant_parts;
mod grant_wire;
mod logs;
mod mode;
mod node_fs;
mod node_path;
mod node_root;
mod op;
mod requirements;
mod slot;
mod spec;
mod status;
mod wire;

pub use async_trait::async_trait;

pub use error::{Effect, Error, ErrorKind, Reason, Result};
pub use event::{Event, EventSink, FailedKind, OpId, Operation, Phase};
pub use exec::{ExecOutput, ExecSpec, ExecStatus};
pub use grant::{
    DeviceClassGrant, DeviceGrant, DeviceRule, Grant, GrantKind, LibDirMount, LibraryPathGrant, MountGrant, Purpose,
    lib_dir_mounts,
};
pub use grant_parts::{DeviceClass, HostPath};
pub use logs::{Cursor, LogFormat, LogOptions, UnitName, journal_output_args, journal_tail_args};
pub use mode::Mode;
pub use node_fs::{NodeFileKind, NodeFs, NodeMetadata};
pub use node_path::NodePath;
pub use node_root::{DirRoot, NodeRoot};
pub use op::{Cancel, OpCtx};
pub use requirements::{CommandReq, KernelReq, Requirements};
pub use slot::{SlotName, SlotPair, SlotRef};
pub use spec::{IgnoredGrant, NodeSpec, PrepareReport};
pub use status::{SlotState, Status, UnitStatus};

#[doc(hidden)]
pub mod __private {
    pub use crate::node_path::is_normal_literal;
}
