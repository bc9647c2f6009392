//! Work that blocks, beside the runtime's own threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Effect, Error, ErrorKind, OpCtx, Result};

/// Tells work on a thread of its own that nobody waits for it any more. Clones tell the same.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Whether nobody waits any more.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails once nobody waits any more: ask between two steps, and leave with the error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`], with [`Effect::Partial`].
    pub fn check(&self) -> Result<()> {
        if self.is_set() {
            return Err(Error::new(ErrorKind::Cancelled, "go on with blocking work").with_effect(Effect::Partial));
        }
        Ok(())
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct SetOnDrop(Stop);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Runs work that blocks, such as copying or removing a tree, on a thread that may block, so that no task of the runtime waits for it.
///
/// *Deadline, cancel, drop.* The call is bounded as by [`OpCtx::bound`], and when that ends it, or its future is dropped, it is over at once.
/// A thread can't be ended from outside: the work's [`Stop`] is set, and the work goes on until it asks. So whatever must not be given back
/// before the work has ended, such as a [`SlotGuard`](crate::SlotGuard), is moved into it. Work that no thread has taken up by then never
/// begins. A runtime that is shut down waits for work that has begun.
///
/// *Panic.* A panic of the work goes on in the caller, if that still waits.
///
/// ```
/// use std::time::Duration;
/// use isolation::{OpCtx, run_blocking};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> isolation::Result<()> {
/// let ctx = OpCtx::new(Duration::from_secs(10));
/// let sum = run_blocking(&ctx, "add up", |stop| {
///     let mut sum = 0;
///     for n in 1..=100 {
///         stop.check()?;
///         sum += n;
///     }
///     Ok(sum)
/// });
/// assert_eq!(sum.await?, 5050);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As the work, and as [`OpCtx::bound`]. `operation` is what its errors say could not be done.
///
/// # Panics
///
/// Outside a tokio runtime, and as the work.
pub async fn run_blocking<T: Send + 'static>(
    ctx: &OpCtx,
    operation: &str,
    work: impl FnOnce(&Stop) -> Result<T> + Send + 'static,
) -> Result<T> {
    let stop = Stop::default();
    let _stop = SetOnDrop(stop.clone());
    let joined = on_thread(operation, move || {
        stop.check()?;
        work(&stop)
    });
    ctx.bound(operation, joined).await
}

/// Runs a short look at files or processes on a thread that may block. Whoever drops the future does not end it: what must not be given back
/// before is moved into it.
pub(crate) async fn on_thread<T: Send + 'static>(
    operation: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime is being shut down, and no thread has taken it up.
        Err(Err(cause)) => Err(Error::new(ErrorKind::Cancelled, operation).because(cause)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::Cancel;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn tasks_go_on_beside_it() {
        let (send, receive) = mpsc::channel();
        let ctx = OpCtx::new(LONG);
        // There is one thread for tasks, so that a task that waited for the other would hang.
        let work = run_blocking(&ctx, "wait", move |_| Ok(receive.recv_timeout(LONG).ok()));
        let (got, ()) = tokio::join!(biased; work, async move { send.send(7).unwrap() });
        assert_eq!(got.unwrap(), Some(7));
    }

    #[tokio::test]
    async fn the_call_is_over_at_once_and_the_work_at_its_next_question() {
        for by_drop in [true, false] {
            let (begun, has_begun) = tokio::sync::oneshot::channel();
            let (ended, has_ended) = tokio::sync::oneshot::channel();
            let ctx = OpCtx::new(LONG).with_cancel(Cancel::new());
            let work = run_blocking(&ctx, "wait", move |stop| {
                begun.send(()).unwrap();
                while stop.check().is_ok() {
                    std::thread::yield_now();
                }
                ended.send(stop.check().unwrap_err().effect()).unwrap();
                Ok(())
            });
            let mut work = Box::pin(work);
            tokio::select! {
                biased;
                done = work.as_mut() => panic!("{done:?}"),
                begun = has_begun => begun.unwrap(),
            }
            if by_drop {
                drop(work);
            } else {
                ctx.cancel().cancel();
                let error = work.await.unwrap_err();
                assert_eq!((error.kind(), error.effect()), (ErrorKind::Cancelled, Effect::Unknown));
            }
            assert_eq!(tokio::time::timeout(LONG, has_ended).await.unwrap().unwrap(), Effect::Partial);
        }
    }

    #[tokio::test]
    async fn a_cancelled_call_begins_nothing() {
        let ctx = OpCtx::new(LONG);
        ctx.cancel().cancel();
        let error = run_blocking(&ctx, "begin", |_| -> Result<()> { panic!("it began") }).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Cancelled, Effect::None));
    }

    #[tokio::test]
    #[should_panic(expected = "of the work")]
    async fn a_panic_goes_on() {
        let _ = run_blocking(&OpCtx::new(LONG), "panic", |_| -> Result<()> { panic!("a panic of the work") }).await;
    }
}
