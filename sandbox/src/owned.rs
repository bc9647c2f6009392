//! What a provider says of the sandboxes it has.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::SystemTime;

use futures::Stream;
use futures::stream::{BoxStream, StreamExt};
use serde::{Deserialize, Serialize};

use crate::{Death, Error, SessionId};

/// A sandbox that a provider has, dead or alive.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Owned {
    /// Its session.
    pub session: SessionId,
    /// When it was made, where that is known.
    pub created: Option<SystemTime>,
    /// What it is doing.
    pub state: OwnedState,
    /// What tells it from an earlier sandbox of the same session, in the backend's own terms.
    pub incarnation: String,
}

impl Owned {
    /// An entry, for implementers.
    #[must_use]
    pub fn new(session: SessionId, state: OwnedState, incarnation: impl Into<String>) -> Self {
        Self { session, created: None, state, incarnation: incarnation.into() }
    }

    /// Adds when it was made.
    #[must_use]
    pub fn created_at(mut self, created: SystemTime) -> Self {
        self.created = Some(created);
        self
    }
}

/// What a sandbox is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OwnedState {
    /// It is being made.
    Starting,
    /// It has been started, and is neither dead nor being removed, as far as is known. Whether it runs commands, [`attach`](crate::Provider::attach)
    /// tells.
    Running,
    /// It is dead, and its remains wait for a reap or the next provision.
    Ended,
    /// It is being removed.
    Ending,
    /// Nobody can tell.
    Unknown,
}

/// The sandboxes of a provider, page by page: memory stays flat however many there are.
#[must_use = "a stream does nothing unless it is read"]
pub struct OwnedStream(BoxStream<'static, Result<Owned, Error>>);

impl OwnedStream {
    /// Wraps a stream, for implementers.
    pub fn new(inner: impl Stream<Item = Result<Owned, Error>> + Send + 'static) -> Self {
        Self(inner.boxed())
    }

    /// The next sandbox, `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Owned, Error>> {
        StreamExt::next(self).await
    }
}

impl Stream for OwnedStream {
    type Item = Result<Owned, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for OwnedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnedStream")
    }
}

/// An earlier sandbox of the session died, and its files with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recreated {
    /// Why the earlier one is no more.
    pub reason: Death,
    /// The same in the backend's own words.
    pub detail: String,
}

impl Recreated {
    /// A report, for implementers.
    #[must_use]
    pub fn new(reason: Death, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }
}
