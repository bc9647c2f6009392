//! How commands end, and those that are talked to.

use std::time::Instant;

use isolation::{Cancel, ErrorKind, ExecSpec, ExecStatus, OpCtx, SlotName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::super::bed::{mark, none, ok, refused, sh};
use super::super::{B, millis, secs};
use crate::{Failure, Outcome, ensure, equal, within};

pub(super) async fn timeout_kills(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let (mark, begun) = (mark(), Instant::now());
    // The second one leaves its session, where there is a program for that.
    let script = format!("trap '' TERM; echo before; sleep {mark} & setsid sleep {mark} 2>/dev/null & sleep {mark}");
    let output = ok("a command", bed.exec(&slot, &sh(&script).with_timeout(millis(500))).await)?;
    equal("its end", output.status, ExecStatus::TimedOut)?;
    equal("what it said before", output.stdout_text().as_str(), "before")?;
    let took = begun.elapsed();
    ensure(took < secs(3), "waiting for a command of 500 ms", "at most 2.5 s more", || format!("{took:?}"))?;
    bed.gone("after the timeout", &mark).await
}

pub(super) async fn cancel_ends_it(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    for by_drop in [true, false] {
        let (mark, cancel) = (mark(), Cancel::new());
        let ctx = bed.ctx().with_cancel(cancel.clone());
        let spec = ExecSpec::new(["sleep", mark.as_str()]);
        {
            let call = bed.backend().exec(&ctx, &slot, &spec);
            tokio::pin!(call);
            tokio::select! {
                ended = &mut call => {
                    return Err(Failure::new("a command of half a minute", "that it runs", crate::short(&ended)));
                }
                seen = bed.seen(&mark) => seen?,
            }
            if !by_drop {
                cancel.cancel();
                let ended = within("a cancelled call", secs(5), &mut call).await?;
                refused("a cancelled call", ended, ErrorKind::Cancelled)?;
            }
        }
        bed.gone(if by_drop { "after the call was dropped" } else { "after the call was cancelled" }, &mark).await?;
    }
    Ok(())
}

pub(super) async fn unknown_slot(bed: B) -> Outcome {
    refused("a command", bed.exec(&bed.a(), &ExecSpec::new(["true"])).await, ErrorKind::UnknownSlot).map(drop)
}

pub(super) async fn stopped_slot(bed: B) -> Outcome {
    let slot = bed.a();
    bed.prepare(&slot).await?;
    refused("a command before the start", bed.exec(&slot, &ExecSpec::new(["true"])).await, ErrorKind::NotRunning)?;
    bed.start(&slot).await?;
    bed.stop(&slot).await?;
    refused("a command after the stop", bed.exec(&slot, &ExecSpec::new(["true"])).await, ErrorKind::NotRunning)
        .map(drop)
}

pub(super) async fn met_by_a_stop(bed: B) -> Outcome {
    let slot = bed.a();
    bed.prepare(&slot).await?;
    for destroy in [false, true] {
        let quick = ExecSpec::new(["true"]);
        let early = bed.exec(&slot, &quick);
        let ctx = bed.ctx();
        let (early, started) = within("a command met by a start", secs(30), async {
            tokio::join!(early, bed.backend().start(&ctx, &slot))
        })
        .await?;
        drop(early);
        ok("starting beside a command", started)?;
        let mark = mark();
        let command = ExecSpec::new(["sleep", mark.as_str()]);
        let long = bed.exec(&slot, &command);
        let end = async {
            bed.seen(&mark).await?;
            if destroy { bed.destroy(&slot).await } else { bed.stop(&slot).await }
        };
        let (_, ended) = within("a command met by a stop", secs(40), async { tokio::join!(long, end) }).await?;
        ended?;
        let late = within("a command after it", secs(15), bed.exec(&slot, &ExecSpec::new(["true"]))).await?;
        ensure(late.is_err(), "a command in a slot that does not run", "an error", || crate::short(&late))?;
    }
    Ok(())
}

pub(super) async fn stream_is_talked_to(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let script = sh("while read -r line; do echo \"got $line\"; done; exit 5");
    let mut stream = ok("a stream", bed.backend().exec_stream(&bed.ctx(), &slot, &script).await)?;
    let (Some(mut input), Some(mut output)) = (stream.stdin.take(), stream.stdout.take()) else {
        return Err(Failure::new("a stream", "an input and an output", crate::short(&stream)));
    };
    let io = |step: &str, error: std::io::Error| Failure::new(step, "success", error.to_string());
    for word in ["one", "two"] {
        let line = format!("{word}\n");
        input.write_all(line.as_bytes()).await.map_err(|error| io("writing to it", error))?;
        input.flush().await.map_err(|error| io("writing to it", error))?;
        let mut answer = vec![0; line.len() + 4];
        let read = within("its answer", secs(10), output.read_exact(&mut answer)).await?;
        read.map_err(|error| io("reading from it", error))?;
        equal("its answer", String::from_utf8_lossy(&answer).into_owned(), format!("got {line}"))?;
    }
    drop(input);
    let status = within("its end", secs(10), stream.wait()).await?;
    equal("its end", ok("waiting for it", status)?, ExecStatus::Exited(5))
}

pub(super) async fn dropped_stream_ends(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let mark = mark();
    let command = ExecSpec::new(["sleep", mark.as_str()]);
    let stream = ok("a stream", bed.backend().exec_stream(&OpCtx::new(secs(20)), &slot, &command).await)?;
    bed.seen(&mark).await?;
    drop(stream);
    bed.gone("after the handle was dropped", &mark).await
}

pub(super) async fn cancelled_stream_ends(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let (mark, cancel) = (mark(), Cancel::new());
    let (command, ctx) = (ExecSpec::new(["sleep", mark.as_str()]), bed.ctx().with_cancel(cancel.clone()));
    let mut stream = ok("a stream", bed.backend().exec_stream(&ctx, &slot, &command).await)?;
    bed.seen(&mark).await?;
    cancel.cancel();
    // Nobody waits for it, and its handle is held.
    bed.gone("after the call was cancelled", &mark).await?;
    let ended = within("waiting for a cancelled command", secs(10), stream.wait()).await?;
    refused("waiting for a cancelled command", ended, ErrorKind::Cancelled).map(drop)
}

/// Both ways to run a command refuse it, and with the same kind of error.
async fn alike(bed: &B, step: &str, ctx: &OpCtx, slot: &SlotName, spec: &ExecSpec) -> Outcome {
    let want = match bed.backend().exec(ctx, slot, spec).await {
        Ok(output) => return Err(Failure::new(format!("`exec`: {step}"), "an error", crate::short(&output))),
        Err(error) => error.kind(),
    };
    refused(&format!("`exec_stream`: {step}"), bed.backend().exec_stream(ctx, slot, spec).await, want).map(drop)
}

pub(super) async fn stream_is_refused_alike(bed: B) -> Outcome {
    let (slot, command) = (bed.a(), ExecSpec::new(["true"]));
    alike(&bed, "a slot that was never prepared", &bed.ctx(), &slot, &command).await?;
    none("after commands in an absent slot", "no change", &bed.changes().await)?;
    bed.prepare(&slot).await?;
    alike(&bed, "a slot that was never started", &bed.ctx(), &slot, &command).await?;
    bed.start(&slot).await?;
    let before = bed.footprint().await;
    for argv in [vec![], vec![""], vec!["a\0b"], vec!["touch", "/tmp/\0"]] {
        let step = format!("the command {argv:?}");
        alike(&bed, &step, &bed.ctx(), &slot, &ExecSpec::new(argv)).await?;
    }
    let cancel = Cancel::new();
    cancel.cancel();
    alike(&bed, "a cancelled call", &bed.ctx().with_cancel(cancel), &slot, &command).await?;
    alike(&bed, "a call whose deadline has passed", &OpCtx::new(millis(0)), &slot, &command).await?;
    none("after the refused commands", "no change", &before.changes(&bed.footprint().await))?;
    bed.stop(&slot).await?;
    alike(&bed, "a slot that was stopped", &bed.ctx(), &slot, &command).await
}
