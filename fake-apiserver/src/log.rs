//! What the server was asked.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use tokio::sync::watch;

use crate::call::{Call, Verb, decode};
use crate::on::On;

/// Requests that are remembered; older ones are forgotten first.
const KEPT: usize = 65_536;

/// One request, as it came in.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Logged {
    /// When its head had been read.
    pub at: SystemTime,
    /// The same on the monotonic clock.
    pub instant: Instant,
    /// The HTTP method.
    pub method: String,
    /// Path and query, as they came over the wire.
    pub target: String,
    /// What it does.
    pub verb: Verb,
    /// To what kind of object.
    pub resource: String,
    /// To what part of the object.
    pub subresource: Option<String>,
    /// In which namespace.
    pub namespace: Option<String>,
    /// To which object.
    pub name: Option<String>,
    /// The body, if it was read.
    pub body: Bytes,
    /// The status of the answer, once there was one.
    pub status: Option<u16>,
}

impl Logged {
    /// Whether the path or the query holds this text, as it came or decoded.
    #[must_use]
    pub fn mentions(&self, text: &str) -> bool {
        self.target.contains(text)
            || decode(&self.target).contains(text)
            || decode(&self.target.replace('+', " ")).contains(text)
    }

    /// Whether `on` means this request.
    #[must_use]
    pub fn is(&self, on: &On) -> bool {
        let (namespace, name) = (self.namespace.as_deref(), self.name.as_deref());
        on.fits(self.verb, &self.resource, self.subresource.as_deref(), namespace, name)
    }
}

#[derive(Debug, Default)]
struct Entries {
    first: u64,
    list: VecDeque<Logged>,
}

#[derive(Debug)]
pub(crate) struct Log {
    entries: Mutex<Entries>,
    pub(crate) changed: watch::Sender<u64>,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self { entries: Mutex::default(), changed: watch::Sender::new(0) }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Entries) -> T) -> T {
        let out = f(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.send_modify(|count| *count += 1);
        out
    }

    pub(crate) fn add(&self, call: &Call, method: &str, target: &str) -> u64 {
        let entry = Logged {
            at: SystemTime::now(),
            instant: Instant::now(),
            method: method.to_owned(),
            target: target.to_owned(),
            verb: call.verb,
            resource: call.resource.clone(),
            subresource: call.subresource.clone(),
            namespace: call.namespace.clone(),
            name: call.name.clone(),
            body: Bytes::new(),
            status: None,
        };
        self.with(|entries| {
            entries.list.push_back(entry);
            if entries.list.len() > KEPT {
                entries.list.pop_front();
                entries.first += 1;
            }
            entries.first + entries.list.len() as u64 - 1
        })
    }

    pub(crate) fn edit(&self, id: u64, edit: impl FnOnce(&mut Logged)) {
        self.with(|entries| {
            let at = id.checked_sub(entries.first).and_then(|at| usize::try_from(at).ok());
            if let Some(entry) = at.and_then(|at| entries.list.get_mut(at)) {
                edit(entry);
            }
        });
    }

    pub(crate) fn all(&self) -> Vec<Logged> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).list.iter().cloned().collect()
    }
}
