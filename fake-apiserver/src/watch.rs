//! Watches: a body that goes on as things change.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::call::Call;
use crate::refusal::Refusal;
use crate::rule::Liar;
use crate::selector::Selector;
use crate::shared::Shared;
use crate::store::{Change, metadata_only};

/// How long a watch lasts when the client names no time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Changes that are told at once.
const BATCH: usize = 64;

/// How a watch goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WatchFault {
    /// It ends at once, properly and without an event.
    EndAtOnce,
    /// Its first event is the error 410: the version is too old.
    Gone,
    /// Its first line is no JSON; then it ends.
    Garbage,
    /// It opens and never says anything, not even that its time is up.
    Silent,
    /// Its first event stops in the middle, and the body ends as if it were whole.
    HalfEvent,
}

struct Watch {
    shared: Arc<Shared>,
    changed: tokio::sync::watch::Receiver<u64>,
    resource: String,
    namespace: Option<String>,
    selector: Selector,
    metadata: bool,
    /// Told up to here.
    cursor: u64,
    /// Bookmarks sent on request so far; `None` if the client wants none.
    bookmarks: Option<u64>,
    deadline: Instant,
    fault: Option<WatchFault>,
    lie: Option<Liar>,
    /// Events that come before any change.
    first: Vec<Value>,
    over: bool,
}

/// The body of a watch.
pub(crate) fn start(
    shared: &Arc<Shared>,
    call: &Call,
    metadata: bool,
    fault: Option<WatchFault>,
    lie: Option<Liar>,
) -> Result<impl Stream<Item = Result<Bytes, Infallible>> + Send + use<>, Refusal> {
    let selector = Selector::parse(call.query.get("labelSelector"), call.query.get("fieldSelector"))?;
    let from = match call.query.get("resourceVersion") {
        None | Some("0") => None,
        Some(text) => Some(text.parse::<u64>().map_err(|_| {
            let why = format!("resourceVersion: Invalid value: {text:?}");
            Refusal::bad_request(why)
        })?),
    };
    let timeout = match call.query.get("timeoutSeconds") {
        None => DEFAULT_TIMEOUT,
        Some(text) => Duration::from_secs(
            text.parse::<u32>().map_err(|_| Refusal::bad_request(format!("timeoutSeconds: {text:?}")))?.into(),
        ),
    };
    let wants_bookmarks = call.query.flag("allowWatchBookmarks");
    let initial = call.query.flag("sendInitialEvents");
    let namespace = call.namespace.clone();
    // Before the first look, so that no change falls in between.
    let changed = shared.changed.subscribe();
    let (cursor, bookmarks, first) = shared.store(|store| {
        let objects = match from {
            Some(_) if !initial => Vec::new(),
            _ => store.select(&call.resource, namespace.as_deref(), &selector),
        };
        let mut first: Vec<Value> = objects.iter().map(|object| event("ADDED", object, metadata)).collect();
        if initial && wants_bookmarks {
            let mut bookmark = bookmark(&call.resource, store.revision(), metadata);
            bookmark["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
            first.push(bookmark);
        }
        (from.filter(|_| !initial).unwrap_or(store.revision()), store.bookmarks, first)
    });
    let watch = Watch {
        shared: Arc::clone(shared),
        changed,
        resource: call.resource.clone(),
        namespace,
        selector,
        metadata,
        cursor,
        bookmarks: wants_bookmarks.then_some(bookmarks),
        deadline: Instant::now() + timeout,
        fault,
        lie,
        first,
        over: false,
    };
    Ok(stream::unfold(watch, |mut watch| async move {
        let lines = watch.next().await?;
        Some((Ok(lines), watch))
    }))
}

impl Watch {
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        match self.fault {
            Some(WatchFault::EndAtOnce) => return None,
            Some(WatchFault::Silent) => std::future::pending().await,
            Some(WatchFault::Gone) => return self.end(&[gone(self.cursor)]),
            Some(WatchFault::Garbage) => {
                self.over = true;
                return Some(Bytes::from_static(b"}this is no JSON{\n"));
            }
            Some(WatchFault::HalfEvent) | None => {}
        }
        let mut events = self.events().await;
        if let Some(lie) = &self.lie {
            events.iter_mut().for_each(|event| lie(&mut event["object"]));
        }
        if self.fault == Some(WatchFault::HalfEvent) {
            self.over = true;
            let line = lines(&events[..events.len().min(1)]);
            return Some(line.slice(..line.len() / 2));
        }
        Some(lines(&events)).filter(|lines| !lines.is_empty())
    }

    fn end(&mut self, events: &[Value]) -> Option<Bytes> {
        self.over = true;
        Some(lines(events))
    }

    /// The next events; at the end of the watch's time, its last.
    async fn events(&mut self) -> Vec<Value> {
        if !self.first.is_empty() {
            return std::mem::take(&mut self.first);
        }
        loop {
            self.changed.mark_unchanged();
            let (changes, asked, revision) =
                self.shared.store(|store| (store.changes_after(self.cursor, BATCH), store.bookmarks, store.revision()));
            let Some(changes) = changes else {
                self.over = true;
                return vec![gone(self.cursor)];
            };
            let mut events = Vec::new();
            for change in &changes {
                self.cursor = change.revision;
                events.extend(self.event_of(change));
            }
            let told = changes.len() < BATCH;
            if told && self.bookmarks.is_some_and(|sent| sent < asked) {
                self.bookmarks = Some(asked);
                events.push(bookmark(&self.resource, self.cursor.max(revision), self.metadata));
            }
            if !events.is_empty() {
                return events;
            }
            if !told {
                continue;
            }
            let time_is_up = tokio::select! {
                changed = self.changed.changed() => changed.is_err(),
                () = tokio::time::sleep_until(self.deadline) => true,
            };
            if time_is_up {
                self.over = true;
                let last = self.bookmarks.map(|_| bookmark(&self.resource, self.cursor, self.metadata));
                return last.into_iter().collect();
            }
        }
    }

    /// What a change means for somebody who sees only what is selected.
    fn event_of(&self, change: &Change) -> Option<Value> {
        if change.key.resource != self.resource || self.namespace.as_ref().is_some_and(|n| *n != change.key.namespace) {
            return None;
        }
        let selected = |object: &&Arc<Value>| self.selector.matches(object);
        let before = change.before.as_ref().filter(selected);
        match (before, change.after.as_ref().filter(selected)) {
            (None, None) => None,
            (None, Some(after)) => Some(event("ADDED", after, self.metadata)),
            (Some(_), Some(after)) => Some(event("MODIFIED", after, self.metadata)),
            // The last state that was seen, under the version of the change.
            (Some(before), None) => {
                let mut event = event("DELETED", before, self.metadata);
                event["object"]["metadata"]["resourceVersion"] = change.revision.to_string().into();
                Some(event)
            }
        }
    }
}

fn event(kind: &str, object: &Value, metadata: bool) -> Value {
    let object = if metadata { metadata_only(object) } else { object.clone() };
    json!({"type": kind, "object": object})
}

fn bookmark(resource: &str, revision: u64, metadata: bool) -> Value {
    let (kind, version) = match (metadata, resource) {
        (true, _) => ("PartialObjectMetadata", "meta.k8s.io/v1"),
        (false, "pods") => ("Pod", "v1"),
        (false, "nodes") => ("Node", "v1"),
        (false, "namespaces") => ("Namespace", "v1"),
        (false, _) => ("Event", "v1"),
    };
    let object = json!({
        "kind": kind,
        "apiVersion": version,
        "metadata": {"resourceVersion": revision.to_string(), "creationTimestamp": null},
    });
    json!({"type": "BOOKMARK", "object": object})
}

fn gone(from: u64) -> Value {
    let mut status = Refusal::expired(format!("too old resource version: {from}")).status();
    status["reason"] = "Expired".into();
    json!({"type": "ERROR", "object": status})
}

fn lines(events: &[Value]) -> Bytes {
    let mut out = Vec::new();
    for event in events {
        out.extend_from_slice(event.to_string().as_bytes());
        out.push(b'\n');
    }
    out.into()
}
