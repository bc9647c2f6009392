//! What goes wrong between calls, and with faults.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use isolation::{
    Cancel, DirRoot, Error, ErrorKind, EventSink, NodeRoot, OpCtx, PrepareReport, Result, SlotName, SlotState, Status,
};

use super::Mutant;
use super::hooks::{Hooks, Inner};

fn fresh() -> OpCtx {
    OpCtx::new(Duration::from_secs(20))
}

/// What finds calls that begin though they are not to.
const NOT_TO_BEGIN: &[&str] = &["order::cancelled_before", "order::deadline_passed"];

/// Does what it is not to begin, and then says that it did not.
async fn secretly<T>(ctx: &OpCtx, work: impl Future<Output = Result<T>>) -> Result<T> {
    let done = work.await?;
    ctx.bound("begin", async { Ok(done) }).await
}

pub(super) fn mutants() -> Vec<Mutant> {
    let mut all = waits();
    all.extend(cuts());
    all.extend(beginnings());
    all.extend(faults());
    all
}

fn waits() -> Vec<Mutant> {
    vec![
        Mutant::new(
            "a second call at once is refused",
            &["order::one_after_the_other"],
            Hooks::new().restart(|i, ctx, slot| async move {
                if i.remember("busy", true) == Some(true) {
                    return Err(Error::new(ErrorKind::Conflict, "restart the slot"));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
                let done = i.backend().restart(&ctx, &slot).await;
                i.remember("busy", false);
                done
            }),
        ),
        Mutant::new(
            "a start that waited for a destroy does not look again",
            &["order::one_after_the_other"],
            Hooks::new().start(|i, ctx, slot| async move {
                let known = i.backend().status(&ctx, &slot).await?.state != SlotState::Absent;
                match i.backend().start(&ctx, &slot).await {
                    Err(error) if error.kind() == ErrorKind::UnknownSlot && known => {
                        i.backend().prepare(&ctx, &i.spec(&slot)).await?;
                        i.backend().start(&ctx, &slot).await
                    }
                    done => done,
                }
            }),
        ),
        Mutant::new(
            "a held slot counts as started",
            &["order::busy_at_the_deadline"],
            Hooks::new().start(|i, ctx, slot| async move {
                match i.backend().start(&ctx, &slot).await {
                    Err(error) if error.kind() == ErrorKind::Busy => Ok(()),
                    done => done,
                }
            }),
        ),
        Mutant::new(
            "a restart of a held slot does nothing and succeeds",
            &["order::busy_at_the_deadline", "order::one_after_the_other"],
            Hooks::new().restart(|i, ctx, slot| async move {
                match i.backend().restart(&ctx.within(Duration::from_millis(100)), &slot).await {
                    Err(error) if error.kind() == ErrorKind::Busy => Ok(()),
                    done => done,
                }
            }),
        ),
        Mutant::new(
            "nobody waits for a holder",
            &["order::waits_for_the_holder", "order::busy_at_the_deadline"],
            Hooks::new().start(|i, ctx, slot| async move {
                i.backend().start(&ctx.within(Duration::from_millis(10)), &slot).await
            }),
        ),
        Mutant::new(
            "one slot waits for the other",
            &["order::slots_do_not_wait"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                let pair = i.pair();
                i.backend().prepare(&ctx.within(Duration::from_secs(2)), &i.spec(pair.other(&spec.slot)?)).await?;
                i.backend().prepare(&ctx, &spec).await
            }),
        ),
        Mutant::new(
            "looking waits for a lifecycle call",
            &["order::looking_does_not_wait"],
            Hooks::new().status(|i, ctx, slot| async move {
                i.backend().start(&ctx, &slot).await?;
                i.backend().status(&ctx, &slot).await
            }),
        ),
    ]
}

fn cuts() -> Vec<Mutant> {
    vec![
        Mutant::new(
            "a call that was cut short stays in the way",
            &["order::cut_short_and_again"],
            Hooks::new().start(|i, ctx, slot| async move {
                if i.recall::<bool>("under way").is_some() {
                    return Err(Error::new(ErrorKind::Conflict, "start the slot"));
                }
                i.remember("under way", true);
                tokio::task::yield_now().await;
                let done = i.backend().start(&ctx, &slot).await;
                i.forget("under way");
                done
            }),
        ),
        Mutant::new(
            "a cancelled stop is told as late",
            &["order::cancelled_meanwhile"],
            Hooks::new().stop(|i, ctx, slot| async move {
                tokio::task::yield_now().await;
                i.backend().stop(&ctx, &slot).await.map_err(|error| match error.kind() {
                    ErrorKind::Cancelled => Error::new(ErrorKind::Timeout, "stop the slot"),
                    _ => error,
                })
            }),
        ),
        Mutant::new(
            "a restart that was cancelled stays in the way",
            &["order::cancelled_meanwhile"],
            Hooks::new().restart(|i, ctx, slot| async move {
                if i.recall::<bool>("under way").is_some() {
                    return Err(Error::new(ErrorKind::Conflict, "restart the slot"));
                }
                tokio::task::yield_now().await;
                let done = i.backend().restart(&ctx, &slot).await;
                if ctx.cancel().is_cancelled() {
                    i.remember("under way", true);
                }
                done
            }),
        ),
        Mutant::new(
            "stopping is not told",
            &["order::events_in_pairs"],
            Hooks::new().stop(|i, ctx, slot| async move {
                i.backend().stop(&ctx.with_events(EventSink::default()), &slot).await
            }),
        ),
        Mutant::new(
            "a refused spec is not told",
            &["order::events_in_pairs"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                spec.validate()?;
                i.backend().prepare(&ctx, &spec).await
            }),
        ),
        Mutant::new(
            "every end is told as a success",
            &["order::events_in_pairs"],
            Hooks::new().start(|i, ctx, slot| async move {
                let events = ctx.events().clone();
                let cheerful = EventSink::new(move |mut event| {
                    if matches!(event.phase, isolation::Phase::Failed(_)) {
                        event.phase = isolation::Phase::Finished;
                    }
                    events.emit(event);
                });
                i.backend().start(&ctx.with_events(cheerful), &slot).await
            }),
        ),
        Mutant::new(
            "errors tell the command",
            &["order::no_secrets"],
            Hooks::new().exec(|i, ctx, (slot, spec)| async move {
                let told = format!("{:?}", spec.argv);
                i.backend().exec(&ctx, &slot, &spec).await.map_err(|error| error.with_detail(told))
            }),
        ),
    ]
}

fn beginnings() -> Vec<Mutant> {
    vec![
        Mutant::new(
            "nobody asks whether the call is cancelled",
            &["order::cancelled_before"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                i.backend().prepare(&ctx.with_cancel(Cancel::new()), &spec).await
            }),
        ),
        Mutant::new(
            "nobody looks at the deadline",
            &["order::deadline_passed"],
            Hooks::new().prepare(|i, _, spec| async move { i.backend().prepare(&fresh(), &spec).await }),
        ),
        Mutant::new(
            "a start that is not to begin starts in secret",
            NOT_TO_BEGIN,
            Hooks::new().start(|i, ctx, slot| async move { secretly(&ctx, i.backend().start(&fresh(), &slot)).await }),
        ),
        Mutant::new(
            "a stop that is not to begin stops in secret",
            NOT_TO_BEGIN,
            Hooks::new().stop(|i, ctx, slot| async move { secretly(&ctx, i.backend().stop(&fresh(), &slot)).await }),
        ),
        Mutant::new(
            "a restart that is not to begin restarts in secret what runs",
            NOT_TO_BEGIN,
            Hooks::new().restart(|i, ctx, slot| async move {
                match i.backend().status(&fresh(), &slot).await?.running() {
                    true => secretly(&ctx, i.backend().restart(&fresh(), &slot)).await,
                    false => i.backend().restart(&ctx, &slot).await,
                }
            }),
        ),
        Mutant::new(
            "a destroy that is not to begin destroys in secret",
            NOT_TO_BEGIN,
            Hooks::new()
                .destroy(|i, ctx, slot| async move { secretly(&ctx, i.backend().destroy(&fresh(), &slot)).await }),
        ),
        Mutant::new(
            "a command that is not to begin runs in secret",
            NOT_TO_BEGIN,
            Hooks::new().exec(|i, ctx, (slot, spec)| async move {
                secretly(&ctx, i.backend().exec(&fresh(), &slot, &spec)).await
            }),
        ),
    ]
}

/// No process has this id.
const STRANGER: &str = "4194304";

/// Makes a slot one that comes up with the host, or none, as the stateful fake keeps it.
fn register(inner: &Inner, slot: &SlotName, comes_up: bool) {
    if let Some(root) = inner.root(slot) {
        let file = root.dir().with_extension("pid");
        // A hidden fault must not show as another one.
        let _ = if comes_up { std::fs::write(file, STRANGER) } else { std::fs::remove_file(file) };
    }
}

fn faults() -> Vec<Mutant> {
    vec![
        Mutant::new(
            "half a root is taken for a whole one",
            &["faults::half_a_root"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                let known = i.root(&spec.slot).filter(|root| root.dir().exists());
                match known {
                    Some(root) => Ok((root, PrepareReport::new(false))),
                    None => i.backend().prepare(&ctx, &spec).await,
                }
            }),
        ),
        Mutant::new(
            "a stale registration is in the way",
            &["faults::stale_registration"],
            Hooks::new().start(|i, ctx, slot| async move {
                let stopped = !i.backend().status(&ctx, &slot).await?.running();
                let registered = i.root(&slot).is_some_and(|root| root.dir().with_extension("pid").exists());
                match stopped && registered {
                    true => Err(Error::new(ErrorKind::Command, "start the slot").with_detail("it exists already")),
                    false => i.backend().start(&ctx, &slot).await,
                }
            }),
        ),
        Mutant::new(
            "a start is forgotten at a reboot",
            &["faults::reboot_starts_again"],
            Hooks::new().start(|i, ctx, slot| async move {
                i.backend().start(&ctx, &slot).await?;
                register(&i, &slot, false);
                Ok(())
            }),
        ),
        Mutant::new(
            "a restart is forgotten at a reboot",
            &["faults::reboot_starts_again"],
            Hooks::new().restart(|i, ctx, slot| async move {
                i.backend().restart(&ctx, &slot).await?;
                register(&i, &slot, false);
                Ok(())
            }),
        ),
        Mutant::new(
            "a stop is forgotten at a reboot",
            &["faults::reboot_starts_nothing_else"],
            Hooks::new().stop(|i, ctx, slot| async move {
                i.backend().stop(&ctx, &slot).await?;
                register(&i, &slot, true);
                Ok(())
            }),
        ),
        Mutant::new(
            "what is prepared comes up at a reboot",
            &["faults::reboot_starts_nothing_else"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                let (root, report) = i.backend().prepare(&ctx, &spec).await?;
                let _ = std::fs::write(root.dir().with_extension("pid"), STRANGER);
                Ok((root, report))
            }),
        ),
        Mutant::new(
            "a full disk is a broken transport",
            &["faults::no_space"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                let prepared = i.backend().prepare(&ctx, &spec).await;
                prepared.map_err(|error| match error.kind() {
                    ErrorKind::Io => Error::new(ErrorKind::Transport, "prepare the slot"),
                    _ => error,
                })
            }),
        ),
        Mutant::new(
            "a root that did not fit is called prepared",
            &["faults::no_space"],
            Hooks::new()
                .prepare(|i, ctx, spec| async move {
                    let prepared = i.backend().prepare(&ctx, &spec).await;
                    i.remember("full", prepared.is_err());
                    prepared
                })
                .status(|i, ctx, slot| async move {
                    match i.recall("full") {
                        Some(true) => Ok(Status::new(SlotState::Prepared)),
                        _ => i.backend().status(&ctx, &slot).await,
                    }
                }),
        ),
        Mutant::new(
            "stopping without a service manager succeeds",
            &["faults::manager_away"],
            Hooks::new().stop(|i, ctx, slot| async move {
                let _ = i.backend().stop(&ctx, &slot).await;
                Ok(())
            }),
        ),
        Mutant::new(
            "a missing command is found out half-way",
            &["requirements::commands_are_declared"],
            Hooks::new().requirements(|i| {
                let mut needs = i.backend().requirements();
                needs.host_commands.clear();
                needs
            }),
        ),
        Mutant::new(
            "preparing goes on without a command",
            &["faults::missing_command"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                match i.backend().prepare(&ctx, &spec).await {
                    Err(error) if error.kind() == ErrorKind::NotPrepared => {
                        let root = DirRoot::new(spec.slot, std::env::temp_dir().join("no-such-root"))?;
                        Ok((Arc::new(root) as Arc<dyn NodeRoot>, PrepareReport::new(true)))
                    }
                    done => done,
                }
            }),
        ),
        Mutant::new(
            "a node killed from outside comes back as if nothing was",
            &["faults::killed_from_outside"],
            Hooks::new().status(|i, ctx, slot| async move {
                let status = i.backend().status(&ctx, &slot).await?;
                let failed = status.state == SlotState::Failed;
                let before: Option<isolation::Status> = if failed { i.recall("before") } else { None };
                i.remember("before", before.clone().unwrap_or_else(|| status.clone()));
                Result::Ok(before.unwrap_or(status))
            }),
        ),
    ]
}
