//! What a slot is on disk, and what it is while it runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use futures::FutureExt;
use isolation::{
    Cancel, DirRoot, ExecStream, Grant, GrantKind, HostCommand, NodeFs, NodePath, NodeRoot, NodeSpec, Result, SlotName,
    SlotRef, SlotState, Status,
};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::task::JoinSet;

use crate::journal::Journal;

/// The longest line of a program that is kept whole.
const LINE: u64 = 4096;

/// The configuration of a slot: mounts in their order, what is discovered in an order of its own.
pub(crate) fn render(spec: &NodeSpec, main: &HostCommand) -> String {
    let line = |grant: &Grant| {
        let source = match grant {
            Grant::DeviceClass(class) => class.class.to_string(),
            other => other.source().map(ToString::to_string).unwrap_or_default(),
        };
        let target = grant.target().map(|target| target.to_string()).unwrap_or_default();
        let access = if grant.is_read_only() { "ro" } else { "rw" };
        format!("{} {access} {source} {target}\n", grant.kind())
    };
    let (mounts, mut rest): (Vec<_>, Vec<_>) = spec.grants.iter().partition(|grant| grant.kind() == GrantKind::Mount);
    rest.sort_by_key(|grant| line(grant));
    let lines: String = mounts.into_iter().chain(rest).map(line).collect();
    format!("slot {}\nmain {}\n{lines}", spec.slot, main.program)
}

/// A directory of the host. Commands have no root of their own, so the path inside is the agent's path.
#[derive(Debug, Clone)]
pub(crate) struct BayRoot(DirRoot);

impl BayRoot {
    pub(crate) fn new(slot: &SlotName, dir: &Path) -> Result<Self> {
        DirRoot::new(slot.clone(), dir.join(slot.as_str())).map(Self)
    }
}

impl SlotRef for BayRoot {
    fn slot(&self) -> &SlotName {
        self.0.slot()
    }
}

impl NodeRoot for BayRoot {
    fn dir(&self) -> &Path {
        self.0.dir()
    }

    fn path(&self, path: &NodePath) -> PathBuf {
        self.0.path(path)
    }

    fn inside(&self, path: &NodePath) -> PathBuf {
        self.0.path(path)
    }

    fn fs(&self) -> Result<NodeFs> {
        self.0.fs()
    }
}

/// What a slot that was started once does now.
#[derive(Debug)]
pub(crate) enum Bay {
    Up(Node),
    Down(SlotState),
}

impl Bay {
    pub(crate) fn has_ended(&mut self) -> bool {
        match self {
            Self::Up(node) => node.main.wait().now_or_never().is_some(),
            Self::Down(_) => false,
        }
    }

    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Up(node) => {
                let status = Status::new(SlotState::Running).with_since(node.since).with_instance(&node.instance);
                node.main.pid().into_iter().fold(status, Status::with_main_pid)
            }
            Self::Down(state) => Status::new(*state),
        }
    }
}

/// A program that runs. Dropping it kills the program and ends the commands beside it.
#[derive(Debug)]
pub(crate) struct Node {
    main: ExecStream,
    since: SystemTime,
    instance: String,
    ended: Cancel,
    /// Listen to the program; gone with the node.
    _listeners: JoinSet<()>,
}

impl Node {
    pub(crate) fn new(mut main: ExecStream, slot: &SlotName, journal: &Arc<Journal>) -> Self {
        let since = SystemTime::now();
        let nanos = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let instance = format!("{}.{nanos}", main.pid().unwrap_or_default());
        let mut listeners = JoinSet::new();
        for output in [main.stdout.take(), main.stderr.take()].into_iter().flatten() {
            listeners.spawn(listen(output, slot.clone(), Arc::clone(journal)));
        }
        Self { main, since, instance, ended: Cancel::new(), _listeners: listeners }
    }

    pub(crate) fn ended(&self) -> &Cancel {
        &self.ended
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// What the program writes is its journal.
async fn listen(output: impl AsyncRead + Unpin, slot: SlotName, journal: Arc<Journal>) {
    let (mut output, mut line) = (BufReader::new(output), Vec::new());
    while let Ok(1..) = (&mut output).take(LINE).read_until(b'\n', &mut line).await {
        journal.write(&slot, "main.service", String::from_utf8_lossy(&line).trim_end_matches('\n'));
        line.clear();
    }
}
