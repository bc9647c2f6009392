//! What every call carries: a deadline, a way to cancel, a place for events.

use std::future::Future;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use crate::{Effect, Error, ErrorKind, Event, EventSink, OpId, Operation, Phase, Result, SlotName};

/// How long after the deadline work may still say why it is late.
const LAST_WORD: Duration = Duration::from_millis(10);

/// Cancels calls from elsewhere. Clones share one state; it fires once and for good.
#[derive(Debug, Clone)]
pub struct Cancel(watch::Sender<bool>);

impl Cancel {
    /// One that has not fired.
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Fires.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Whether it has fired.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns once it has fired.
    pub async fn cancelled(&self) {
        let mut receiver = self.0.subscribe();
        // The sender lives in `self`, so the wait can't fail.
        let _ = receiver.wait_for(|fired| *fired).await;
    }
}

impl Default for Cancel {
    fn default() -> Self {
        Self::new()
    }
}

/// What a call carries: a deadline, a way to cancel, a place for events.
///
/// ```
/// use std::time::Duration;
/// use isolation::OpCtx;
///
/// let ctx = OpCtx::new(Duration::from_secs(30));
/// assert!(ctx.remaining() <= Duration::from_secs(30));
/// ```
#[derive(Debug, Clone)]
pub struct OpCtx {
    begun: Instant,
    deadline: Instant,
    cancel: Cancel,
    events: EventSink,
    span: Span,
}

impl OpCtx {
    /// A call that may take `limit` from now on, traced below the span that is entered now. There is no call without a
    /// deadline.
    pub fn new(limit: Duration) -> Self {
        let begun = Instant::now();
        // A century is the same as for ever, and can be added to any instant.
        let limit = limit.min(Duration::from_secs(100 * 365 * 86_400));
        Self {
            begun,
            deadline: begun + limit,
            cancel: Cancel::new(),
            events: EventSink::default(),
            span: Span::current(),
        }
    }

    /// Sets what cancels the call.
    #[must_use]
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Sets where events go.
    #[must_use]
    pub fn with_events(mut self, events: EventSink) -> Self {
        self.events = events;
        self
    }

    /// This context with a deadline no later than `limit` from now. What [`Error::after`] tells of it counts from now, too.
    #[must_use]
    pub fn within(&self, limit: Duration) -> Self {
        let now = Self::new(limit);
        Self { begun: now.begun, deadline: self.deadline.min(now.deadline), ..self.clone() }
    }

    /// When the call must have returned.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// How much time is left.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// What cancels the call.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Where events go.
    pub fn events(&self) -> &EventSink {
        &self.events
    }

    /// Runs `work` until it ends, the deadline passes or the call is cancelled.
    ///
    /// # Errors
    ///
    /// The work's own; else [`ErrorKind::Timeout`] or [`ErrorKind::Cancelled`], with
    /// [`Effect::Unknown`] because the work was dropped half-way.
    pub async fn bound<T>(&self, operation: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        if self.cancel.is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, operation));
        }
        if self.remaining().is_zero() {
            return Err(Error::timeout(operation, self.begun.elapsed()).with_effect(Effect::None));
        }
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => {
                Err(Error::new(ErrorKind::Cancelled, operation).with_effect(Effect::Unknown))
            }
            done = &mut work => done,
            () = tokio::time::sleep_until(self.deadline) => {
                let late = Error::timeout(operation, self.begun.elapsed());
                // Two that wait for one instant wake in any order, and what is inside knows better why it is late.
                tokio::time::timeout(LAST_WORD, work).await.unwrap_or(Err(late))
            }
        }
    }

    /// Runs one lifecycle call: bounded as by [`bound`](Self::bound), in a tracing span of its own below the context's,
    /// with an event at its start and one at its end.
    ///
    /// A future dropped half-way ends with a `Failed` event of kind "cancelled".
    ///
    /// # Errors
    ///
    /// As [`bound`](Self::bound).
    pub async fn lifecycle<T>(
        &self,
        operation: Operation,
        slot: &SlotName,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut scope = Scope { ctx: self, op_id: OpId::next(), operation, slot, ended: false };
        let span = tracing::info_span!(parent: &self.span, "lifecycle", %operation, %slot, op_id = %scope.op_id);
        scope.emit(Phase::Started);
        let done = self.bound(&format!("{operation} the slot"), work.instrument(span)).await;
        scope.ended = true;
        match &done {
            Ok(_) => scope.emit(Phase::Finished),
            Err(error) => scope.emit(Phase::Failed(error.kind().into())),
        }
        done
    }
}

struct Scope<'a> {
    ctx: &'a OpCtx,
    op_id: OpId,
    operation: Operation,
    slot: &'a SlotName,
    ended: bool,
}

impl Scope<'_> {
    fn emit(&self, phase: Phase) {
        let (op_id, operation, at) = (self.op_id, self.operation, SystemTime::now());
        tracing::debug!(%operation, slot = %self.slot, %op_id, ?phase, "lifecycle");
        self.ctx.events.emit(Event { op_id, operation, slot: self.slot.clone(), at, phase });
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.emit(Phase::Failed(ErrorKind::Cancelled.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn deadline_and_cancel_end_a_call() {
        let ctx = OpCtx::new(Duration::from_secs(1));
        let error = ctx.bound("wait", std::future::pending::<Result<()>>()).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Timeout, Effect::Unknown));
        assert_eq!(error.after(), Some(Duration::from_secs(1)));
        let error = ctx.bound("wait", async { Ok(()) }).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Timeout, Effect::None));

        let ctx = OpCtx::new(Duration::from_secs(60));
        tokio::time::sleep(Duration::from_secs(5)).await;
        let narrower = ctx.within(Duration::from_secs(2));
        let error = narrower.bound("wait", std::future::pending::<Result<()>>()).await.unwrap_err();
        assert_eq!(error.after(), Some(Duration::from_secs(2)));

        let ctx = OpCtx::new(Duration::MAX);
        let cancel = ctx.cancel().clone();
        let (done, ()) = tokio::join!(ctx.bound("wait", std::future::pending::<Result<()>>()), async {
            cancel.cancel();
        });
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(ctx.bound("x", async { Ok(()) }).await.unwrap_err().effect(), Effect::None);
    }

    #[tokio::test(start_paused = true)]
    async fn every_call_has_two_events_of_one_id() {
        let slot = SlotName::new("kube1").unwrap();
        let (sink, mut events) = EventSink::channel(8);
        let ctx = OpCtx::new(Duration::from_secs(1)).with_events(sink);
        ctx.lifecycle(Operation::Start, &slot, async { Ok(()) }).await.unwrap();
        let lost = ctx.lifecycle(Operation::Stop, &slot, std::future::pending::<Result<()>>());
        assert!(tokio::time::timeout(Duration::from_millis(1), lost).await.is_err());
        let mut seen = Vec::new();
        while let Ok(event) = events.try_recv() {
            seen.push(event);
        }
        assert_eq!(seen.len(), 4);
        assert_eq!(seen[0].op_id, seen[1].op_id);
        assert_ne!(seen[1].op_id, seen[2].op_id);
        assert_eq!(seen[1].phase, Phase::Finished);
        assert_eq!(seen[3].phase, Phase::Failed(ErrorKind::Cancelled.into()));
    }
}
