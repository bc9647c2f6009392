//! Calls that are cut short, and calls that are not to begin.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::task::Poll;

use isolation::{Cancel, ErrorKind, ExecSpec, OpCtx, Operation, node_path};

use super::super::super::bed::{none, ok, refused};
use super::super::{B, millis, secs};
use super::{LIFECYCLE, call};
use crate::{Failure, Outcome, ensure, equal, within};

/// So often a call is polled before it is cut: at each of its waits in turn.
const POLLS: [u32; 7] = [1, 2, 3, 4, 6, 10, 20];

/// Polls `future` so often; its output, if that was enough.
async fn polled<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

pub(super) async fn cut_short_and_again(bed: B) -> Outcome {
    let slot = bed.a();
    for polls in POLLS {
        for operation in LIFECYCLE {
            let ctx = bed.ctx();
            let _ = polled(polls, call(&bed, operation, &ctx, &slot)).await;
            let again = call(&bed, operation, &ctx, &slot).await;
            ok(&format!("{operation} again, after it was cut short at its poll {polls}"), again)?;
        }
        none("after the lives that were cut short", "nothing left", &bed.changes().await)?;
    }
    Ok(())
}

pub(super) async fn cancelled_meanwhile(bed: B) -> Outcome {
    let slot = bed.a();
    for polls in POLLS {
        for operation in LIFECYCLE {
            let step = format!("{operation} whose cancel fires at its poll {polls}");
            let cancel = Cancel::new();
            let ctx = bed.ctx().with_cancel(cancel.clone());
            let mut calling = pin!(call(&bed, operation, &ctx, &slot));
            let done = match polled(polls, calling.as_mut()).await {
                Some(done) => done,
                None => {
                    cancel.cancel();
                    within(&step, secs(10), calling).await?
                }
            };
            if let Err(error) = &done
                && error.kind() != ErrorKind::Cancelled
            {
                return Err(Failure::new(step, "success or `Cancelled`", format!("{error:?}")));
            }
            let again = call(&bed, operation, &bed.ctx(), &slot).await;
            ok(&format!("{operation} again, after its cancel fired at its poll {polls}"), again)?;
        }
        none("after the lives that were cancelled", "nothing left", &bed.changes().await)?;
    }
    Ok(())
}

pub(super) async fn cancelled_before(bed: B) -> Outcome {
    let cancel = Cancel::new();
    cancel.cancel();
    none_begins(&bed, ErrorKind::Cancelled, || bed.ctx().with_cancel(cancel.clone())).await
}

pub(super) async fn deadline_passed(bed: B) -> Outcome {
    none_begins(&bed, ErrorKind::Timeout, || OpCtx::new(millis(0))).await
}

/// Makes each call that changes something where it would, and sees it refused without any change.
async fn none_begins(bed: &B, kind: ErrorKind, ctx: impl Fn() -> OpCtx) -> Outcome {
    let slot = bed.a();
    refused("`prepare` of an absent slot", call(bed, Operation::Prepare, &ctx(), &slot).await, kind)?;
    none("the refused `prepare`", "no change", &bed.changes().await)?;
    let root = bed.prepare(&slot).await?;
    let before = bed.footprint().await;
    for operation in [Operation::Start, Operation::Restart, Operation::Destroy] {
        let step = format!("{operation} of a prepared slot");
        refused(&step, call(bed, operation, &ctx(), &slot).await, kind)?;
        none(&step, "no change", &before.changes(&bed.footprint().await))?;
    }
    bed.start(&slot).await?;
    let (before, running) = (bed.footprint().await, bed.status(&slot).await?);
    let file = node_path!("/etc/left-by-a-command");
    let left = || ok("looking for the file of a command", root.fs().and_then(|fs| fs.metadata(&file)));
    let touch = ExecSpec::new([Path::new("touch").as_os_str(), root.inside(&file).as_os_str()]);
    refused("a command in a running slot", bed.backend().exec(&ctx(), &slot, &touch).await, kind)?;
    ensure(left()?.is_none(), "the refused command", "no file of it", || file.to_string())?;
    for operation in [Operation::Restart, Operation::Stop, Operation::Destroy] {
        let step = format!("{operation} of a running slot");
        refused(&step, call(bed, operation, &ctx(), &slot).await, kind)?;
        let now = bed.status(&slot).await?;
        equal(
            &format!("{step}: state and instance"),
            (now.state, now.instance),
            (running.state, running.instance.clone()),
        )?;
        none(&step, "no change", &before.changes(&bed.footprint().await))?;
    }
    // Nor has the command run since.
    ensure(left()?.is_none(), "the refused command, later", "no file of it", || file.to_string())
}
