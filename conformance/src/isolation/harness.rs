//! What an implementer hands to the suite.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use isolation::{Backend, Mode, NodeSpec, SlotName, SlotPair};
use serde::{Deserialize, Serialize};

use super::Footprint;

/// What a backend, or the harness around it, can do beyond what every backend must. A case that needs what is not
/// claimed is listed as not applicable, never as passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Caps {
    /// Only one slot of the pair runs at a time.
    pub exclusive: bool,
    /// Commands can be talked to.
    pub stream_exec: bool,
    /// Commands can run as another user, here `nobody`.
    pub exec_user: bool,
    /// Death by a signal is reported as that, and not as 128 and its number.
    pub signal_status: bool,
    /// A stopped slot's log can be read.
    pub logs_when_stopped: bool,
    /// Mounts that an operator configured (`host-mount`) are taken: applied, or ignored with a reason. Where this is not claimed they
    /// are refused as `GrantUnsupported`, and a case sees to that.
    pub mounts: bool,
    /// Device nodes (`host-device`) are taken, likewise.
    pub devices: bool,
    /// Mounts are really visible inside.
    pub mounts_visible: bool,
    /// Read-only mounts really can't be written to.
    pub mounts_read_only: bool,
    /// Granted devices are really usable inside.
    pub devices_usable: bool,
    /// The status names the main process, and the suite may kill it.
    pub main_pid: bool,
    /// [`Harness::executed`] knows what the backend ran.
    pub executed: bool,
    /// [`Harness::inject`] can hide a declared command.
    pub fault_hide_command: bool,
    /// It can hold a slot's lock, as another process would.
    pub fault_hold_lock: bool,
    /// It can make a log end with a failure.
    pub fault_break_log: bool,
    /// It can have a unit of the host write to the host's journal.
    pub fault_host_line: bool,
    /// It can take the service manager away.
    pub fault_manager_away: bool,
    /// It can leave what a crash in `prepare` leaves.
    pub fault_half_root: bool,
    /// It can leave a registration without a running node.
    pub fault_stale_registration: bool,
    /// It can mount something into a root.
    pub fault_foreign_mount: bool,
    /// It can make the place where roots are read-only or full.
    pub fault_no_space: bool,
    /// It can reboot the host, or what to the backend is one.
    pub fault_reboot: bool,
}

/// A fault that a harness can bring about.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault<'a> {
    /// One of the declared commands does not resolve any more.
    HideCommand,
    /// Another process holds the slot.
    HoldLock(&'a SlotName),
    /// The next log opened ends by itself with exit status 1 and this on its standard error.
    BreakLog(&'a str),
    /// A unit of the host, and of no node, writes this line to the host's journal; a unit of the node has the same name.
    HostLine {
        /// The unit.
        unit: &'a str,
        /// The line.
        line: &'a str,
    },
    /// The service manager can't be asked.
    ManagerAway,
    /// A crash during `prepare`: a root with some of its files, among them a stray one called `half-done`, that nobody has
    /// finished.
    HalfRoot(&'a SlotName),
    /// A slot's node was registered and died without a trace.
    StaleRegistration(&'a SlotName),
    /// The directory `source` is bound at `target`, a directory inside a root.
    ForeignMount {
        /// A directory of the host.
        source: &'a Path,
        /// A directory inside a root.
        target: &'a Path,
    },
    /// Nothing can be written where roots are.
    NoSpace,
    /// The host is rebooted, or what to the backend is one: nothing of it runs any more, and then what starts with a host does. It is over
    /// once [`Harness::inject`] returns, and nodes may come up after that.
    Reboot,
}

/// Your backend, as the suite takes it. Each case gets one of its own.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// The backend.
    fn backend(&self) -> Arc<dyn Backend>;

    /// The mode it says it is.
    fn mode(&self) -> Mode;

    /// What it claims.
    fn caps(&self) -> Caps;

    /// The slots the suite may use; it destroys both after each case.
    fn pair(&self) -> SlotPair;

    /// A small spec for a slot, without grants.
    fn spec(&self, slot: &SlotName) -> NodeSpec;

    /// What on the host is the backend's: files with their contents, units, machines, containers, mounts, processes.
    async fn footprint(&self) -> Footprint;

    /// The configuration that the backend rendered for a slot, all files one after the other; empty if there is none.
    async fn rendered(&self, slot: &SlotName) -> String;

    /// Writes a line to the journal of a slot's node, as `unit` would.
    async fn emit_log(&self, slot: &SlotName, unit: &str, line: &str);

    /// The programs of the host that the backend has run so far, if that is known.
    fn executed(&self) -> Vec<String>;

    /// Brings a fault about and gives what ends it when it is dropped; `None` if it can't.
    async fn inject(&self, fault: Fault<'_>) -> Option<Box<dyn Any + Send>>;
}
