//! Who waits for whom, what a cut call leaves, what is told meanwhile.

mod cuts;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::join_all;
use isolation::{
    Cancel, ErrorKind, EventSink, ExecSpec, Grant, HostPath, LogOptions, OpCtx, Operation, Phase, Purpose, SlotName,
    SlotState,
};

use super::super::Fault;
use super::super::bed::{ok, refused};
use super::{B, Case, millis, secs};
use crate::{Failure, Outcome, ensure, equal, within};

const HELD: &str = "A lifecycle call on a slot that another process holds waits, and fails as `Busy` at its deadline.";

/// The lifecycle calls, in an order in which all of them succeed.
const LIFECYCLE: [Operation; 5] =
    [Operation::Prepare, Operation::Start, Operation::Restart, Operation::Stop, Operation::Destroy];

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "order::one_after_the_other",
            "Lifecycle calls on one slot happen one after the other, across processes too.",
            one_after_the_other,
        ),
        Case::new("order::busy_at_the_deadline", HELD, busy_at_the_deadline).needs("hold lock", |c| c.fault_hold_lock),
        Case::new("order::waits_for_the_holder", HELD, waits_for_the_holder).needs("hold lock", |c| c.fault_hold_lock),
        Case::new(
            "order::slots_do_not_wait",
            "Lifecycle calls on two slots do not wait for each other.",
            slots_do_not_wait,
        )
        .needs("hold lock", |c| c.fault_hold_lock),
        Case::new(
            "order::looking_does_not_wait",
            "`status`, `exec` and `logs` never wait for a lifecycle call.",
            looking_does_not_wait,
        )
        .needs("hold lock", |c| c.fault_hold_lock),
        Case::new(
            "order::cut_short_and_again",
            "A lifecycle call that was cut short can be repeated and then succeeds.",
            cuts::cut_short_and_again,
        )
        .deadline(secs(600)),
        Case::new(
            "order::cancelled_meanwhile",
            "A lifecycle call whose `Cancel` fires ends within ten seconds, as a success or as `Cancelled`, and can be repeated.",
            cuts::cancelled_meanwhile,
        )
        .deadline(secs(600)),
        Case::new(
            "order::cancelled_before",
            "A call that is cancelled before it begins changes nothing and fails as `Cancelled`.",
            cuts::cancelled_before,
        ),
        Case::new(
            "order::deadline_passed",
            "A call whose deadline has passed fails as `Timeout` and changes nothing.",
            cuts::deadline_passed,
        ),
        Case::new(
            "order::events_in_pairs",
            "Every lifecycle call emits one event when it starts and one when it finishes or fails, with the same id.",
            events_in_pairs,
        ),
        Case::new(
            "order::no_secrets",
            "Arguments, environment and input of a command never appear in an error or an event.",
            no_secrets,
        ),
    ]
}

async fn one_after_the_other(bed: B) -> Outcome {
    let slot = bed.a();
    bed.prepare(&slot).await?;
    let calls = (0..8).map(|n| {
        let (bed, slot) = (Arc::clone(&bed), slot.clone());
        async move {
            let (backend, ctx) = (bed.backend(), bed.ctx());
            match n % 4 {
                0 => ok("starting at once with others", backend.start(&ctx, &slot).await),
                1 => ok("stopping at once with others", backend.stop(&ctx, &slot).await),
                2 => ok("restarting at once with others", backend.restart(&ctx, &slot).await),
                _ => ok("preparing at once with others", backend.prepare(&ctx, &bed.spec(&slot)).await.map(drop)),
            }
        }
    });
    join_all(calls).await.into_iter().collect::<Outcome<Vec<()>>>()?;
    let running = bed.status(&slot).await?.running();
    let command = bed.exec(&slot, &ExecSpec::new(["true"])).await;
    match (running, command) {
        (true, Ok(_)) => {}
        (false, Err(error)) if error.kind() == ErrorKind::NotRunning => {}
        (running, command) => {
            let got = format!("running: {running}, a command: {command:?}");
            return Err(Failure::new("after eight calls at once", "a status and a command that agree", got));
        }
    }
    // Restarts one after the other, in whatever order, end with a node that runs; each of them when its own has begun.
    bed.start(&slot).await?;
    for _ in 0..3 {
        let calls = (0..6).map(|n| {
            let (bed, slot) = (Arc::clone(&bed), slot.clone());
            async move {
                match n % 3 {
                    0 => ok("starting beside restarts", bed.backend().start(&bed.ctx(), &slot).await),
                    _ => ok("restarting beside others", bed.backend().restart(&bed.ctx(), &slot).await),
                }
            }
        });
        join_all(calls).await.into_iter().collect::<Outcome<Vec<()>>>()?;
        bed.state("after six starts and restarts at once", &slot, &[SlotState::Running, SlotState::Degraded]).await?;
        bed.sh(&slot, "true").await?;
    }
    // Beside another process, where the harness can be one: nobody ends before it has let go, and then all do.
    if bed.harness().caps().fault_hold_lock {
        let held = bed.inject(Fault::HoldLock(&slot)).await?;
        let released = AtomicBool::new(false);
        let calls = LIFECYCLE.iter().filter(|operation| **operation != Operation::Destroy).map(|operation| {
            let (bed, slot, released) = (Arc::clone(&bed), slot.clone(), &released);
            async move {
                let done = call(&bed, *operation, &bed.ctx(), &slot).await;
                let waited = released.load(Ordering::Relaxed);
                ensure(waited, &format!("{operation} of a held slot"), "that it waits", || crate::short(&done))?;
                ok(&format!("{operation} of a slot that was released"), done)
            }
        });
        let release = async {
            let waited = somebody_gives_up(&bed, Operation::Stop, &slot, millis(500)).await;
            released.store(true, Ordering::Relaxed);
            drop(held);
            waited
        };
        let (done, waited) = tokio::join!(join_all(calls), release);
        done.into_iter().chain([waited]).collect::<Outcome<Vec<()>>>()?;
    }
    beside_a_destroy(&bed, &slot).await
}

/// What waited for a destroy finds nothing to start, and what came first is destroyed.
async fn beside_a_destroy(bed: &B, slot: &SlotName) -> Outcome {
    bed.start(slot).await?;
    let held = if bed.harness().caps().fault_hold_lock { Some(bed.inject(Fault::HoldLock(slot)).await?) } else { None };
    let (ctx, calls) = (bed.ctx(), [Operation::Start, Operation::Restart]);
    let behind_it = async {
        // Where the slot is held, the destroy is the first in line by the time that somebody has given up.
        if held.is_some() {
            somebody_gives_up(bed, Operation::Stop, slot, millis(300)).await?;
        }
        let release = async {
            match held {
                Some(_held) => somebody_gives_up(bed, Operation::Stop, slot, millis(300)).await,
                None => Ok(()),
            }
        };
        let (done, waited) = tokio::join!(join_all(calls.map(|operation| call(bed, operation, &ctx, slot))), release);
        waited.map(|()| done)
    };
    let (destroyed, done) = tokio::join!(call(bed, Operation::Destroy, &ctx, slot), behind_it);
    ok("destroy at once with others", destroyed)?;
    for (operation, done) in calls.iter().zip(done?) {
        let step = format!("{operation} at once with others");
        match done {
            Err(error) if error.kind() == ErrorKind::UnknownSlot => {}
            done => ok(&step, done)?,
        }
    }
    bed.state("after a destroy, a start and a restart at once", slot, &[SlotState::Absent]).await?;
    Ok(())
}

/// Returns once a call has given up on a held slot after so long: whoever came before it has waited that long, too.
async fn somebody_gives_up(bed: &B, operation: Operation, slot: &SlotName, after: Duration) -> Outcome {
    let (step, begun) = (format!("{operation} of a slot that stays held"), Instant::now());
    let error = refused(&step, call(bed, operation, &OpCtx::new(after), slot).await, ErrorKind::Busy)?;
    let waited = begun.elapsed();
    // Clocks differ by a little.
    let want = format!("that it waits for {after:?}");
    ensure(waited + millis(100) >= after, &step, &want, || format!("{waited:?}, then {error}"))
}

/// One lifecycle call.
async fn call(bed: &B, operation: Operation, ctx: &OpCtx, slot: &SlotName) -> isolation::Result<()> {
    let backend = bed.backend();
    match operation {
        Operation::Prepare => backend.prepare(ctx, &bed.spec(slot)).await.map(drop),
        Operation::Start => backend.start(ctx, slot).await,
        Operation::Restart => backend.restart(ctx, slot).await,
        Operation::Stop => backend.stop(ctx, slot).await,
        _ => backend.destroy(ctx, slot).await,
    }
}

async fn busy_at_the_deadline(bed: B) -> Outcome {
    let slot = bed.a();
    bed.prepare(&slot).await?;
    let held = bed.inject(Fault::HoldLock(&slot)).await?;
    let (begun, ctx) = (Instant::now(), OpCtx::new(millis(1500)));
    let error = refused("starting a held slot", bed.backend().start(&ctx, &slot).await, ErrorKind::Busy)?;
    let waited = begun.elapsed();
    ensure((millis(1400)..secs(8)).contains(&waited), "waiting", "1.5 s", || format!("{waited:?}, then {error}"))?;
    drop(held);
    bed.start(&slot).await?;
    let held = bed.inject(Fault::HoldLock(&slot)).await?;
    let before = bed.status(&slot).await?;
    let calls = LIFECYCLE.map(|operation| {
        let (bed, slot, ctx) = (Arc::clone(&bed), slot.clone(), OpCtx::new(millis(800)));
        async move {
            let done = call(&bed, operation, &ctx, &slot).await;
            refused(&format!("{operation} of a held slot"), done, ErrorKind::Busy)
        }
    });
    join_all(calls).await.into_iter().collect::<Outcome<Vec<_>>>()?;
    let after = bed.status(&slot).await?;
    equal("the running slot, after five calls that got nowhere", after.instance, before.instance)?;
    drop(held);
    Ok(())
}

async fn waits_for_the_holder(bed: B) -> Outcome {
    let slot = bed.a();
    bed.prepare(&slot).await?;
    let held = bed.inject(Fault::HoldLock(&slot)).await?;
    let release = async {
        let waited = somebody_gives_up(&bed, Operation::Start, &slot, millis(1500)).await;
        drop(held);
        waited
    };
    let ctx = bed.ctx();
    let (started, waited) = tokio::join!(bed.backend().start(&ctx, &slot), release);
    waited?;
    ok("starting a slot that is released meanwhile", started)
}

async fn slots_do_not_wait(bed: B) -> Outcome {
    let (a, b) = (bed.a(), bed.b());
    let held = bed.inject(Fault::HoldLock(&a)).await?;
    within("a life of the other slot", secs(30), async {
        bed.prepare(&b).await?;
        bed.start(&b).await?;
        bed.destroy(&b).await
    })
    .await??;
    drop(held);
    Ok(())
}

async fn looking_does_not_wait(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let held = bed.inject(Fault::HoldLock(&slot)).await?;
    let ctx = || OpCtx::new(secs(5));
    ok("`status` of a held slot", bed.backend().status(&ctx(), &slot).await)?;
    ok("`exec` in a held slot", bed.backend().exec(&ctx(), &slot, &ExecSpec::new(["true"])).await)?;
    let log = ok("`logs` of a held slot", bed.backend().logs(&ctx(), &slot, &LogOptions::default()).await)?;
    ok("closing its log", log.close().await)?;
    drop(held);
    Ok(())
}

async fn events_in_pairs(bed: B) -> Outcome {
    let slot = bed.a();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let sink = EventSink::new(move |event| sink.lock().unwrap_or_else(|poison| poison.into_inner()).push(event));
    let ctx = bed.ctx().with_events(sink);
    let backend = bed.backend();
    refused("starting a slot that was never prepared", backend.start(&ctx, &slot).await, ErrorKind::UnknownSlot)?;
    let invalid = Grant::device(Purpose::HostMount, ok("a device", HostPath::new("/dev/null"))?);
    let invalid = backend.prepare(&ctx, &bed.spec(&slot).with_grants(vec![invalid])).await;
    refused("preparing with a grant that is none", invalid, ErrorKind::InvalidGrant)?;
    let cancel = Cancel::new();
    cancel.cancel();
    let cancelled = backend.start(&ctx.clone().with_cancel(cancel), &slot).await;
    refused("starting, and cancelled before", cancelled, ErrorKind::Cancelled)?;
    ok("preparing", backend.prepare(&ctx, &bed.spec(&slot)).await)?;
    ok("starting", backend.start(&ctx, &slot).await)?;
    ok("restarting", backend.restart(&ctx, &slot).await)?;
    ok("stopping", backend.stop(&ctx, &slot).await)?;
    ok("destroying", backend.destroy(&ctx, &slot).await)?;
    let events = std::mem::take(&mut *seen.lock().unwrap_or_else(|poison| poison.into_inner()));
    let ends: Vec<_> = events.iter().filter(|event| !matches!(event.phase, Phase::Progress(_))).collect();
    let failed = |kind: ErrorKind| Phase::Failed(kind.into());
    let calls = [
        (Operation::Start, failed(ErrorKind::UnknownSlot)),
        (Operation::Prepare, failed(ErrorKind::InvalidGrant)),
        (Operation::Start, failed(ErrorKind::Cancelled)),
        (Operation::Prepare, Phase::Finished),
        (Operation::Start, Phase::Finished),
        (Operation::Restart, Phase::Finished),
        (Operation::Stop, Phase::Finished),
        (Operation::Destroy, Phase::Finished),
    ];
    equal("the number of first and last events of eight calls", ends.len(), 2 * calls.len())?;
    let (mut ids, count) = (std::collections::BTreeSet::new(), calls.len());
    for (n, (pair, (operation, end))) in ends.chunks(2).zip(calls).enumerate() {
        let step = format!("the events of call {n}, {operation}");
        let shape = (&pair[0].phase, &pair[1].phase, pair[0].operation, pair[1].operation, &pair[0].slot);
        equal(&step, shape, (&Phase::Started, &end, operation, operation, &slot))?;
        equal(&format!("{step}: their ids"), pair[0].op_id, pair[1].op_id)?;
        ids.insert(pair[0].op_id);
    }
    equal("the number of ids of eight calls", ids.len(), count)
}

async fn no_secrets(bed: B) -> Outcome {
    const SECRET: &str = "hunter2-and-3";
    let (slot, _) = bed.up().await?;
    let heard = Arc::new(Mutex::new(String::new()));
    let sink = Arc::clone(&heard);
    let sink = EventSink::new(move |event| {
        sink.lock().unwrap_or_else(|poison| poison.into_inner()).push_str(&format!("{event:?}"));
    });
    let secretive = |program: &str| ExecSpec::new([program, SECRET]).with_env("TOKEN", SECRET).with_stdin(SECRET);
    let mut errors = Vec::new();
    for (program, limit) in [("/no/such/program", secs(10)), ("sleep", millis(100)), ("true", millis(0))] {
        let mut spec = secretive(program);
        if program == "sleep" {
            spec.argv = ["sh", "-c", "sleep 10", SECRET].map(Into::into).to_vec();
        }
        let ctx = OpCtx::new(limit).with_events(sink.clone());
        if let Err(error) = bed.backend().exec(&ctx, &slot, &spec).await {
            errors.push(error);
        }
    }
    let nul = secretive("a\0b");
    errors.extend(bed.exec(&slot, &nul).await.err());
    bed.stop(&slot).await?;
    errors.extend(bed.exec(&slot, &secretive("true")).await.err());
    ensure(errors.len() >= 3, "commands that can't succeed", "errors", || format!("{} of them", errors.len()))?;
    for error in &errors {
        let text = format!("{error} {error:?} {:?} {:?}", error.argv(), std::error::Error::source(error));
        ensure(!text.contains(SECRET), "the text of an error", "no secret in it", || text.clone())?;
    }
    let heard = heard.lock().unwrap_or_else(|poison| poison.into_inner()).clone();
    ensure(!heard.contains(SECRET), "the events", "no secret in them", || heard.clone())
}
