//! What a host does wrong.

use isolation::{ErrorKind, OpCtx, SlotName, SlotState, node_path};

use super::super::Fault;
use super::super::bed::{none, ok, refused, until};
use super::{B, Case, secs};
use crate::{Failure, Outcome, ensure, equal};

const REBOOT: &str = "A slot that was started runs again after a reboot of the host, as a new instance, and one that was stopped or never started does not.";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "faults::half_a_root",
            "No call takes a root that was prepared half-way for a finished one.",
            half_a_root,
        )
        .needs("half root", |c| c.fault_half_root),
        Case::new(
            "faults::stale_registration",
            "A start that meets a stale registration of its own slot clears it and goes on.",
            stale_registration,
        )
        .needs("stale registration", |c| c.fault_stale_registration),
        Case::new(
            "faults::manager_away",
            "If the service manager can't be asked, `status` is an error and never says that the slot is stopped.",
            manager_away,
        )
        .needs("manager away", |c| c.fault_manager_away),
        Case::new(
            "faults::killed_from_outside",
            "After the node's main process was killed from outside, `status` no longer calls it running, or it runs as a new instance.",
            killed_from_outside,
        )
        .needs("main pid", |c| c.main_pid),
        Case::new(
            "faults::no_space",
            "A full disk or a read-only file system gives an `Io` error and leaves no partial final file.",
            no_space,
        )
        .needs("no space", |c| c.fault_no_space),
        Case::new(
            "faults::mounts_survive",
            "Destroying never removes what is mounted into the root.",
            mounts_survive,
        )
        .needs("foreign mount", |c| c.fault_foreign_mount),
        Case::new(
            "faults::missing_command",
            "If a declared command is missing, `prepare` fails before it changes anything.",
            missing_command,
        )
        .needs("hide command", |c| c.fault_hide_command),
        Case::new("faults::reboot_starts_again", REBOOT, reboot_starts_again)
            .needs("reboot", |c| c.fault_reboot)
            .deadline(secs(600)),
        Case::new("faults::reboot_starts_nothing_else", REBOOT, reboot_starts_nothing_else)
            .needs("reboot", |c| c.fault_reboot)
            .deadline(secs(600)),
    ]
}

async fn half_a_root(bed: B) -> Outcome {
    let slot = bed.a();
    let whole = bed.prepare(&slot).await?;
    let names =
        |root: &dyn isolation::NodeRoot| root.fs().and_then(|fs| fs.read_dir(&isolation::NodePath::root(), 10_000));
    let want = ok("listing a whole root", names(&whole))?;
    bed.destroy(&slot).await?;
    bed.inject(Fault::HalfRoot(&slot)).await?;
    refused("starting half a root", bed.backend().start(&bed.ctx(), &slot).await, ErrorKind::UnknownSlot)?;
    let root = bed.prepare(&slot).await?;
    equal("the root prepared after a crash", ok("listing it", names(&root))?, want)?;
    bed.start(&slot).await
}

async fn stale_registration(bed: B) -> Outcome {
    let slot = bed.a();
    bed.prepare(&slot).await?;
    bed.inject(Fault::StaleRegistration(&slot)).await?;
    bed.start(&slot).await?;
    bed.sh(&slot, "true").await.map(drop)
}

async fn manager_away(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let away = bed.inject(Fault::ManagerAway).await?;
    match bed.backend().status(&OpCtx::new(secs(10)), &slot).await {
        Err(_) => {}
        Ok(status) => {
            return Err(Failure::new("`status` without a service manager", "an error", crate::short(&status)));
        }
    }
    let stopped = bed.backend().stop(&OpCtx::new(secs(10)), &slot).await;
    ensure(stopped.is_err(), "`stop` without a service manager", "an error", || "success".to_owned())?;
    drop(away);
    bed.state("once it is back", &slot, &[SlotState::Running, SlotState::Degraded]).await
}

async fn killed_from_outside(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let before = bed.status(&slot).await?;
    let Some(pid) = before.main_pid else {
        return Err(Failure::new("the status of a running slot", "a main process, as claimed", crate::short(&before)));
    };
    let killed = tokio::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().await;
    ensure(killed.is_ok_and(|status| status.success()), "killing the main process", "success", String::new)?;
    let look = || async {
        let now = bed.status(&slot).await?;
        Ok((!now.running() || now.instance != before.instance).then_some(()))
    };
    match until(secs(5), look).await? {
        Some(()) => Ok(()),
        None => {
            let now = crate::short(&bed.status(&slot).await?);
            Err(Failure::new("5 s after the kill", "not running, or another instance", now))
        }
    }
}

async fn no_space(bed: B) -> Outcome {
    let slot = bed.a();
    bed.prepare(&slot).await?;
    let whole: Vec<String> = bed.footprint().await.things().map(str::to_owned).collect();
    bed.destroy(&slot).await?;
    let full = bed.inject(Fault::NoSpace).await?;
    let spec = bed.spec(&slot);
    let prepared = bed.backend().prepare(&bed.ctx(), &spec).await.map(drop);
    let error = refused("preparing without space", prepared, ErrorKind::Io)?;
    ensure(error.path().is_some(), "the error", "the path that can't be written", || format!("{error:?}"))?;
    bed.state("after the refused `prepare`", &slot, &[SlotState::Absent]).await?;
    drop(full);
    bed.state("once there is space", &slot, &[SlotState::Absent]).await?;
    bed.prepare(&slot).await?;
    let again: Vec<String> = bed.footprint().await.things().map(str::to_owned).collect();
    equal("what is there after preparing again", again, whole)?;
    bed.start(&slot).await
}

async fn mounts_survive(bed: B) -> Outcome {
    let slot = bed.a();
    let root = bed.prepare(&slot).await?;
    let target = node_path!("/var/lib/mounted");
    ok("making a mount point", root.fs().and_then(|fs| fs.create_dir_all(&target, 0o755)))?;
    let outside = tempfile::tempdir().map_err(|error| Failure::new("making a directory", "one", error.to_string()))?;
    let sentinel = outside.path().join("sentinel");
    let written = std::fs::write(&sentinel, "survives");
    written.map_err(|error| Failure::new("writing a sentinel", "success", error.to_string()))?;
    let mounted = Fault::ForeignMount { source: outside.path(), target: &root.path(&target) };
    let mounted = bed.inject(mounted).await?;
    let destroyed = bed.backend().destroy(&bed.ctx(), &slot).await;
    let survived = std::fs::read_to_string(&sentinel).unwrap_or_default();
    drop(mounted);
    equal("the file on the other side of the mount", survived.as_str(), "survives")?;
    match destroyed {
        Err(error) if error.kind() != ErrorKind::Conflict => {
            Err(Failure::new("destroying over a mount", "success or `Conflict`", format!("{error:?}")))
        }
        _ => bed.destroy(&slot).await,
    }
}

async fn missing_command(bed: B) -> Outcome {
    let slot = bed.a();
    let hidden = bed.inject(Fault::HideCommand).await?;
    let spec = bed.spec(&slot);
    let prepared = bed.backend().prepare(&bed.ctx(), &spec).await;
    refused("preparing without a declared command", prepared.map(drop), ErrorKind::NotPrepared)?;
    none("the refused `prepare`", "no change", &bed.changes().await)?;
    drop(hidden);
    bed.prepare(&slot).await.map(drop)
}

async fn reboot_starts_again(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let first = bed.status(&slot).await?;
    bed.inject(Fault::Reboot).await?;
    bed.runs_anew("a reboot after a start", &slot, &first).await?;
    // What comes up with the host does so again and again, and whoever restarts it changes nothing about that.
    bed.restart(&slot).await?;
    let second = bed.status(&slot).await?;
    bed.inject(Fault::Reboot).await?;
    bed.runs_anew("a reboot after a restart", &slot, &second).await?;
    bed.start(&slot).await?;
    bed.sh(&slot, "true").await.map(drop)
}

async fn down(bed: &B, step: &str, slot: &SlotName) -> Outcome {
    let status = bed.status(slot).await?;
    ensure(!status.running(), &format!("{slot} after {step}"), "not running", || crate::short(&status))
}

async fn reboot_starts_nothing_else(bed: B) -> Outcome {
    let (a, b) = (bed.a(), bed.b());
    bed.prepare(&a).await?;
    bed.prepare(&b).await?;
    bed.inject(Fault::Reboot).await?;
    down(&bed, "a reboot before any start", &a).await?;
    down(&bed, "a reboot before any start", &b).await?;
    // Each time the host is seen to start nodes before it is believed not to have started another.
    bed.start(&b).await?;
    down(&bed, "a start of the other slot", &a).await?;
    let first = bed.status(&b).await?;
    bed.inject(Fault::Reboot).await?;
    bed.runs_anew("a reboot", &b, &first).await?;
    down(&bed, "a reboot in which the other slot came up", &a).await?;
    bed.stop(&b).await?;
    bed.inject(Fault::Reboot).await?;
    down(&bed, "a reboot after a stop", &b).await?;
    bed.start(&a).await?;
    let first = bed.status(&a).await?;
    bed.inject(Fault::Reboot).await?;
    bed.runs_anew("another reboot", &a, &first).await?;
    down(&bed, "two reboots after a stop", &b).await
}
