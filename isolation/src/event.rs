//! What happens to a slot, as it happens.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::{ErrorKind, SlotName};

/// The operations of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Operation {
    /// `prepare`.
    Prepare,
    /// `start`.
    Start,
    /// `stop`.
    Stop,
    /// `restart`.
    Restart,
    /// `destroy`.
    Destroy,
    /// `status`.
    Status,
    /// `exec` and `exec_stream`.
    Exec,
    /// `logs`.
    Logs,
}

impl Operation {
    /// The verb.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Destroy => "destroy",
            Self::Status => "status",
            Self::Exec => "exec",
            Self::Logs => "logs",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Joins the events of one call. Unique in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OpId(u64);

impl OpId {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// One thing that happened during a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Event {
    /// The call it belongs to.
    pub op_id: OpId,
    /// Which operation.
    pub operation: Operation,
    /// On which slot.
    pub slot: SlotName,
    /// When.
    pub at: SystemTime,
    /// What.
    pub phase: Phase,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Phase {
    /// The call began.
    Started,
    /// A step of the call, for humans; never holds an argument list, a variable or a file's content.
    Progress(String),
    /// The call succeeded.
    Finished,
    /// The call failed.
    Failed(FailedKind),
}

/// Why a call failed, as far as an event says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedKind {
    /// The kind's text.
    pub kind: String,
}

impl From<ErrorKind> for FailedKind {
    fn from(kind: ErrorKind) -> Self {
        Self { kind: kind.to_string() }
    }
}

/// Where events go: a function that must not block.
#[derive(Clone, Default)]
pub struct EventSink(Option<Arc<dyn Fn(Event) + Send + Sync>>);

impl EventSink {
    /// Calls `sink` for each event, on the task of the call: it must return at once.
    pub fn new(sink: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(sink)))
    }

    /// A sink and the events that arrive in it. When `capacity` events wait, newer ones are dropped.
    pub fn channel(capacity: usize) -> (Self, tokio::sync::mpsc::Receiver<Event>) {
        let (sender, receiver) = tokio::sync::mpsc::channel(capacity.max(1));
        (Self::new(move |event| drop(sender.try_send(event))), receiver)
    }

    /// Sends an event.
    pub fn emit(&self, event: Event) {
        if let Some(sink) = &self.0 {
            sink(event);
        }
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "EventSink(..)" } else { "EventSink(none)" })
    }
}
