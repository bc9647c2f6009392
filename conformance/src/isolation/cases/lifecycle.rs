//! Preparing, starting, stopping, restarting, destroying, looking.

use isolation::{ErrorKind, Mode, NodeSpec, SlotState, node_path};

use super::super::bed::{mark, none, ok, refused, until};
use super::{B, Case, secs};
use crate::{Failure, Outcome, ensure, equal};

const PREPARE_TWICE: &str = "Preparing again with an equal spec changes nothing and says so.";
const STOP_AGAIN: &str = "Stopping what is stopped, or was never prepared, succeeds and changes nothing.";
const STOP: &str = "When `stop` returns, the slot is not running and the processes of its node stack are gone.";
const RESTART: &str = "Restarting gives a new instance that is ready on return and sees the same files.";
const ONE_RUNS: &str = "Starting a slot, or restarting a stopped one, while its pair runs fails as `Conflict` and leaves both as they are.";
const DESTROY: &str = "Destroying stops first and leaves neither files nor processes of the slot.";
const DESTROY_AGAIN: &str = "Destroying what is gone, or was never prepared, succeeds and changes nothing.";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "lifecycle::mode_is_constant",
            "The mode of a backend never changes, and parses back to itself.",
            mode_is_constant,
        ),
        Case::new(
            "lifecycle::requirements_are_pure",
            "Requirements are the same at every call, without duplicates and empty names, and asking for them touches nothing.",
            requirements_are_pure,
        ),
        Case::new(
            "lifecycle::prepared_is_not_running",
            "Preparing makes the slot `Prepared` and not running.",
            prepared_is_not_running,
        ),
        Case::new("lifecycle::prepare_twice_changes_nothing", PREPARE_TWICE, prepare_twice_changes_nothing),
        Case::new("lifecycle::prepare_twice_says_so", PREPARE_TWICE, prepare_twice_says_so),
        Case::new("lifecycle::slots_are_apart", "Work on one slot leaves the other slot as it is.", slots_are_apart),
        Case::new(
            "lifecycle::start_is_ready",
            "When `start` returns, the slot is running and a command can run inside at once.",
            start_is_ready,
        )
        .repeat(3),
        Case::new(
            "lifecycle::start_twice",
            "Starting what runs succeeds and leaves the running instance alone.",
            start_twice,
        ),
        Case::new(
            "lifecycle::start_unknown",
            "Starting a slot that was never prepared fails as `UnknownSlot` and leaves nothing.",
            start_unknown,
        ),
        Case::new(
            "lifecycle::restart_unknown",
            "Restarting a slot that was never prepared fails as `UnknownSlot` and leaves nothing.",
            restart_unknown,
        ),
        Case::new("lifecycle::stop_stops", STOP, stop_stops),
        Case::new("lifecycle::stop_ends_processes", STOP, stop_ends_processes),
        Case::new("lifecycle::stop_again", STOP_AGAIN, stop_again),
        Case::new("lifecycle::stop_unknown", STOP_AGAIN, stop_unknown),
        Case::new(
            "lifecycle::stop_keeps_files",
            "Stopping keeps the files, and the slot can be started again and sees them.",
            stop_keeps_files,
        ),
        Case::new("lifecycle::restart_renews", RESTART, restart_renews),
        Case::new("lifecycle::restart_keeps_files", RESTART, restart_keeps_files),
        Case::new(
            "lifecycle::restart_is_soft",
            "Restarting never touches the host or the other slot.",
            restart_is_soft,
        ),
        Case::new("lifecycle::restart_stopped", "Restarting a stopped slot starts it.", restart_stopped),
        Case::new("lifecycle::destroy_leaves_nothing", DESTROY, destroy_leaves_nothing),
        Case::new("lifecycle::destroy_ends_processes", DESTROY, destroy_ends_processes),
        Case::new("lifecycle::destroy_again", DESTROY_AGAIN, destroy_again),
        Case::new("lifecycle::destroy_unknown", DESTROY_AGAIN, destroy_unknown),
        Case::new(
            "lifecycle::anew_after_destroy",
            "After `destroy` the slot is `Absent` and can be prepared anew.",
            anew_after_destroy,
        ),
        Case::new(
            "lifecycle::lives_leave_nothing",
            "A whole life from `prepare` to `destroy` leaves nothing behind, however often it is repeated.",
            lives_leave_nothing,
        )
        .deadline(secs(600)),
        Case::new("lifecycle::status_changes_nothing", "`status` never changes anything.", status_changes_nothing),
        Case::new(
            "lifecycle::unknown_is_absent",
            "A slot that was never prepared is `Absent`, not an error.",
            unknown_is_absent,
        ),
        Case::new("lifecycle::one_runs_at_a_time", ONE_RUNS, one_runs_at_a_time)
            .needs("exclusive", |caps| caps.exclusive),
        Case::new("lifecycle::restart_beside_the_pair", ONE_RUNS, restart_beside_the_pair)
            .needs("exclusive", |caps| caps.exclusive),
    ]
}

async fn mode_is_constant(bed: B) -> Outcome {
    let (first, second) = (bed.backend().mode(), bed.backend().mode());
    equal("asking for the mode twice", second, first)?;
    equal("the mode", first, bed.harness().mode())?;
    equal("parsing the mode's own name", ok("parsing", first.to_string().parse::<Mode>())?, first)
}

async fn requirements_are_pure(bed: B) -> Outcome {
    let first = bed.backend().requirements();
    equal("asking twice", bed.backend().requirements(), first.clone())?;
    none("after asking", "no change", &bed.changes().await)?;
    let mut names: Vec<String> = first.host_commands.iter().flat_map(|need| need.names().to_vec()).collect();
    names.extend(first.host_packages.iter().map(|name| format!("package {name}")));
    names.extend(first.after.iter().map(|unit| format!("after {unit}")));
    names.extend(first.writable_paths.iter().map(|path| format!("path {}", path.display())));
    let many = names.len();
    ensure(!names.iter().any(String::is_empty), "the requirements", "no empty name", || format!("{first:?}"))?;
    names.sort();
    names.dedup();
    equal("the requirements without duplicates", names.len(), many)
}

async fn prepared_is_not_running(bed: B) -> Outcome {
    let slot = bed.a();
    bed.prepare(&slot).await?;
    bed.state("after preparing", &slot, &[SlotState::Prepared, SlotState::Stopped]).await?;
    ensure(!bed.status(&slot).await?.running(), "after preparing", "not running", || "running".to_owned())
}

async fn prepare_twice_changes_nothing(bed: B) -> Outcome {
    let slot = bed.a();
    bed.prepare(&slot).await?;
    let before = bed.footprint().await;
    files_get_later_times().await?;
    bed.prepare(&slot).await?;
    none("preparing again", "no change", &before.changes(&bed.footprint().await))
}

/// Waits until whatever is written can be told from what was written before by its time.
async fn files_get_later_times() -> Outcome {
    let failed = |error: std::io::Error| Failure::new("writing a file", "success", error.to_string());
    let file = tempfile::NamedTempFile::new().map_err(failed)?;
    let write = || std::fs::write(&file, "x").and_then(|()| file.path().metadata()?.modified()).map_err(failed);
    let first = write()?;
    let later = until(secs(5), || async { Ok((write()? > first).then_some(())) }).await?;
    later.ok_or_else(|| Failure::new("writing a file for five seconds", "a later time", "the first one"))
}

async fn prepare_twice_says_so(bed: B) -> Outcome {
    let spec = bed.spec(&bed.a());
    let (_, first) = bed.prepare_with(&spec).await?;
    let (_, second) = bed.prepare_with(&spec).await?;
    equal("`changed` of the first and the second report", (first.changed, second.changed), (true, false))
}

async fn slots_are_apart(bed: B) -> Outcome {
    let (a, b) = (bed.a(), bed.b());
    let root = bed.prepare(&b).await?;
    let file = node_path!("/etc/theirs");
    ok("writing a file of the other slot", root.fs().and_then(|fs| fs.write_atomic(&file, 0o644, b"theirs")))?;
    let parts = [root.dir().to_string_lossy().into_owned(), b.to_string()];
    let parts = [parts[0].as_str(), parts[1].as_str()];
    let (before, rendered) = (bed.footprint().await.about(&parts), bed.harness().rendered(&b).await);
    bed.prepare(&a).await?;
    bed.start(&a).await?;
    bed.stop(&a).await?;
    bed.destroy(&a).await?;
    none("a life of one slot", "no change of the other", &before.changes(&bed.footprint().await.about(&parts)))?;
    equal("the other slot's configuration", bed.harness().rendered(&b).await, rendered)?;
    bed.start(&b).await
}

async fn start_is_ready(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    bed.sh(&slot, "true").await?;
    bed.state("after starting", &slot, &[SlotState::Running, SlotState::Degraded]).await
}

async fn start_twice(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let first = bed.status(&slot).await?;
    bed.start(&slot).await?;
    let second = bed.status(&slot).await?;
    ensure(first.instance.is_some(), "the status of a running slot", "an instance", || crate::short(&first))?;
    equal("the instance after a second start", (second.instance, second.main_pid), (first.instance, first.main_pid))
}

async fn start_unknown(bed: B) -> Outcome {
    let slot = bed.a();
    refused("starting", bed.backend().start(&bed.ctx(), &slot).await, ErrorKind::UnknownSlot)?;
    none("after the refused start", "no change", &bed.changes().await)
}

async fn restart_unknown(bed: B) -> Outcome {
    let slot = bed.a();
    refused("restarting", bed.backend().restart(&bed.ctx(), &slot).await, ErrorKind::UnknownSlot)?;
    none("after the refused restart", "no change", &bed.changes().await)
}

async fn stop_stops(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    bed.stop(&slot).await?;
    bed.state("after stopping", &slot, &[SlotState::Stopped, SlotState::Prepared]).await
}

async fn stop_ends_processes(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let mark = mark();
    bed.sh(&slot, &format!("sleep {mark} >/dev/null 2>&1 &")).await?;
    bed.seen(&mark).await?;
    bed.stop(&slot).await?;
    bed.gone("after stopping", &mark).await
}

async fn stop_again(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    bed.stop(&slot).await?;
    let before = bed.footprint().await;
    bed.stop(&slot).await?;
    none("stopping again", "no change", &before.changes(&bed.footprint().await))
}

async fn stop_unknown(bed: B) -> Outcome {
    bed.stop(&bed.a()).await?;
    none("stopping a slot that was never prepared", "no change", &bed.changes().await)
}

async fn stop_keeps_files(bed: B) -> Outcome {
    let (slot, root) = bed.up().await?;
    let file = node_path!("/etc/kept");
    ok("writing a file", root.fs().and_then(|fs| fs.write_atomic(&file, 0o644, b"kept")))?;
    bed.stop(&slot).await?;
    let read = ok("reading it after the stop", root.fs().and_then(|fs| fs.read(&file, 100)))?;
    equal("the file after the stop", read, b"kept".to_vec())?;
    bed.start(&slot).await?;
    let inside = root.inside(&file);
    equal("the file inside, after the start", bed.sh(&slot, &format!("cat '{}'", inside.display())).await?, "kept")
}

async fn restart_renews(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let first = bed.status(&slot).await?.instance;
    bed.restart(&slot).await?;
    bed.sh(&slot, "true").await?;
    let second = bed.status(&slot).await?.instance;
    ensure(second.is_some() && first != second, "the instance after a restart", "another one", || format!("{second:?}"))
}

async fn restart_keeps_files(bed: B) -> Outcome {
    let (slot, root) = bed.up().await?;
    let file = node_path!("/etc/kept");
    ok("writing a file", root.fs().and_then(|fs| fs.write_atomic(&file, 0o644, b"kept")))?;
    bed.restart(&slot).await?;
    let inside = root.inside(&file);
    equal("the file inside", bed.sh(&slot, &format!("cat '{}'", inside.display())).await?, "kept")
}

async fn restart_is_soft(bed: B) -> Outcome {
    let boot = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let other = bed.prepare(&bed.b()).await?;
    let (slot, _) = bed.up().await?;
    let parts = [other.dir().to_string_lossy().into_owned()];
    let parts = [parts[0].as_str()];
    let (id, before) = (boot(), bed.footprint().await.about(&parts));
    bed.restart(&slot).await?;
    equal("the host's boot", boot(), id)?;
    none("restarting", "no change of the other slot", &before.changes(&bed.footprint().await.about(&parts)))
}

async fn restart_stopped(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    bed.stop(&slot).await?;
    bed.restart(&slot).await?;
    bed.sh(&slot, "true").await.map(drop)
}

async fn destroy_leaves_nothing(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    bed.destroy(&slot).await?;
    none("destroying a running slot", "nothing of it left", &bed.changes().await)
}

async fn destroy_ends_processes(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let mark = mark();
    bed.sh(&slot, &format!("sleep {mark} >/dev/null 2>&1 &")).await?;
    bed.seen(&mark).await?;
    bed.destroy(&slot).await?;
    bed.gone("after destroying", &mark).await
}

async fn destroy_again(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    bed.destroy(&slot).await?;
    bed.destroy(&slot).await?;
    none("destroying again", "no change", &bed.changes().await)
}

async fn destroy_unknown(bed: B) -> Outcome {
    bed.destroy(&bed.a()).await?;
    none("destroying a slot that was never prepared", "no change", &bed.changes().await)
}

async fn anew_after_destroy(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    bed.destroy(&slot).await?;
    bed.state("after destroying", &slot, &[SlotState::Absent]).await?;
    let (_, report) = bed.prepare_with(&NodeSpec::clone(&bed.spec(&slot))).await?;
    ensure(report.changed, "preparing anew", "`changed`", || crate::short(&report))?;
    bed.start(&slot).await?;
    bed.sh(&slot, "true").await.map(drop)
}

async fn lives_leave_nothing(bed: B) -> Outcome {
    for life in 1..=5 {
        let (slot, _) = bed.up().await?;
        bed.sh(&slot, "true").await?;
        bed.restart(&slot).await?;
        bed.stop(&slot).await?;
        bed.destroy(&slot).await?;
        none(&format!("life number {life}"), "nothing left", &bed.changes().await)?;
    }
    Ok(())
}

async fn status_changes_nothing(bed: B) -> Outcome {
    let slot = bed.a();
    bed.status(&slot).await?;
    none("asking about a slot that was never prepared", "no change", &bed.changes().await)?;
    bed.up().await?;
    let before = bed.footprint().await;
    bed.status(&slot).await?;
    none("asking about a running slot", "no change", &before.changes(&bed.footprint().await))?;
    bed.stop(&slot).await?;
    let before = bed.footprint().await;
    bed.status(&slot).await?;
    none("asking about a stopped slot", "no change", &before.changes(&bed.footprint().await))
}

async fn unknown_is_absent(bed: B) -> Outcome {
    bed.state("asking about a slot that was never prepared", &bed.a(), &[SlotState::Absent]).await
}

async fn one_runs_at_a_time(bed: B) -> Outcome {
    let (a, _) = bed.up().await?;
    let b = bed.b();
    bed.prepare(&b).await?;
    let first = bed.status(&a).await?;
    refused("starting the other slot", bed.backend().start(&bed.ctx(), &b).await, ErrorKind::Conflict)?;
    equal("the running slot's instance", bed.status(&a).await?.instance, first.instance)?;
    bed.state("the other slot", &b, &[SlotState::Prepared, SlotState::Stopped]).await?;
    bed.stop(&a).await?;
    bed.start(&b).await
}

async fn restart_beside_the_pair(bed: B) -> Outcome {
    let (a, b) = (bed.a(), bed.b());
    bed.prepare(&a).await?;
    bed.prepare(&b).await?;
    for was_started in [false, true] {
        if was_started {
            bed.stop(&a).await?;
            bed.start(&b).await?;
            bed.stop(&b).await?;
        }
        bed.start(&a).await?;
        let (before, first) = (bed.footprint().await, bed.status(&a).await?);
        refused("restarting the other slot", bed.backend().restart(&bed.ctx(), &b).await, ErrorKind::Conflict)?;
        let second = bed.status(&a).await?;
        equal("the running slot", (second.state, second.instance), (first.state, first.instance))?;
        bed.state("the other slot", &b, &[SlotState::Prepared, SlotState::Stopped]).await?;
        none("the refused restart", "no change", &before.changes(&bed.footprint().await))?;
    }
    bed.stop(&a).await?;
    bed.restart(&b).await
}
