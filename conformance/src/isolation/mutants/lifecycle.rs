//! What goes wrong over a slot's life.

use std::time::Duration;

use isolation::{
    Error, ErrorKind, ExecSpec, Grant, HostPath, Mode, NodePath, OpCtx, Purpose, SlotName, SlotState, Status, node_path,
};

use super::Mutant;
use super::hooks::{Hooks, Inner};

/// Spoils a file of the slot's root, if it has one.
fn touch(inner: &Inner, slot: &SlotName, name: &str) {
    if let (Some(root), Ok(path)) = (inner.root(slot), NodePath::new(name))
        && let Ok(fs) = root.fs()
    {
        // A hidden fault must not show as another one.
        let _ = fs.write_atomic(&path, 0o644, b"spoilt");
    }
}

fn spoil_kept(inner: &Inner, slot: &SlotName) {
    touch(inner, slot, "/etc/kept");
}

async fn is(inner: &Inner, ctx: &OpCtx, slot: &SlotName, state: fn(SlotState) -> bool) -> isolation::Result<bool> {
    Ok(state(inner.backend().status(ctx, slot).await?.state))
}

/// A spec that differs from the usual one.
fn other_spec(inner: &Inner, slot: &SlotName) -> isolation::NodeSpec {
    let usr = HostPath::new("/usr").map(|usr| Grant::mount(Purpose::HostMount, usr).with_target(node_path!("/mnt/x")));
    inner.spec(slot).with_grants(usr.into_iter().collect())
}

/// Runs commands where nobody who ends the slot finds them.
pub(super) fn astray(spec: ExecSpec) -> ExecSpec {
    let mut argv: Vec<std::ffi::OsString> =
        ["env", "-i", "PATH=/usr/bin:/bin", "setsid", "-w"].map(Into::into).to_vec();
    argv.extend(spec.argv.iter().cloned());
    let mut astray = ExecSpec::new(argv);
    astray.cwd = spec.cwd;
    astray
}

fn astray_exec() -> Hooks {
    Hooks::new().exec(|i, ctx, (slot, spec)| async move { i.backend().exec(&ctx, &slot, &astray(spec)).await })
}

pub(super) fn mutants() -> Vec<Mutant> {
    let mut all = beginnings();
    all.extend(ends());
    all.extend(looks());
    all
}

fn beginnings() -> Vec<Mutant> {
    vec![
        Mutant::new(
            "the mode alternates",
            &["lifecycle::mode_is_constant"],
            Hooks::new().mode(|i| if i.count() % 2 == 0 { Mode::None } else { Mode::Container }),
        ),
        Mutant::new(
            "requirements grow",
            &["lifecycle::requirements_are_pure"],
            Hooks::new().requirements(|i| {
                let needs = i.backend().requirements();
                (0..i.count()).fold(needs, |needs, n| needs.with_command(format!("c{n}")))
            }),
        ),
        Mutant::new(
            "preparing starts",
            &["lifecycle::prepared_is_not_running"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                let prepared = i.backend().prepare(&ctx, &spec).await?;
                i.backend().start(&ctx, &spec.slot).await.map(|()| prepared)
            }),
        ),
        Mutant::new(
            "preparing again writes a file",
            &["lifecycle::prepare_twice_changes_nothing"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                let prepared = i.backend().prepare(&ctx, &spec).await?;
                touch(&i, &spec.slot, "/etc/again");
                Ok(prepared)
            }),
        ),
        Mutant::new(
            "preparing always says that something changed",
            &["lifecycle::prepare_twice_says_so"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                let (root, mut report) = i.backend().prepare(&ctx, &spec).await?;
                report.changed = true;
                Ok((root, report))
            }),
        ),
        Mutant::new(
            "preparing one slot prepares the other anew",
            &["lifecycle::slots_are_apart"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                if spec.slot == *i.pair().a() {
                    let b = i.pair().b().clone();
                    i.backend().prepare(&ctx, &other_spec(&i, &b)).await?;
                }
                i.backend().prepare(&ctx, &spec).await
            }),
        ),
        Mutant::new(
            "starting returns before it has started",
            &["lifecycle::start_is_ready"],
            Hooks::new().start(|i, _, slot| async move {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    i.backend().start(&OpCtx::new(Duration::from_secs(10)), &slot).await
                });
                Ok(())
            }),
        ),
        Mutant::new(
            "starting restarts",
            &["lifecycle::start_twice"],
            Hooks::new().start(|i, ctx, slot| async move { i.backend().restart(&ctx, &slot).await }),
        ),
        Mutant::new(
            "starting prepares",
            &["lifecycle::start_unknown", "faults::half_a_root"],
            Hooks::new().start(|i, ctx, slot| async move {
                i.backend().prepare(&ctx, &i.spec(&slot)).await?;
                i.backend().start(&ctx, &slot).await
            }),
        ),
        Mutant::new(
            "restarting prepares",
            &["lifecycle::restart_unknown"],
            Hooks::new().restart(|i, ctx, slot| async move {
                i.backend().prepare(&ctx, &i.spec(&slot)).await?;
                i.backend().restart(&ctx, &slot).await
            }),
        ),
        Mutant::new(
            "restarting what runs does nothing",
            &["lifecycle::restart_renews"],
            Hooks::new().restart(|i, ctx, slot| async move { i.backend().start(&ctx, &slot).await }),
        ),
        Mutant::new(
            "restarting spoils files",
            &["lifecycle::restart_keeps_files"],
            Hooks::new().restart(|i, ctx, slot| async move {
                spoil_kept(&i, &slot);
                i.backend().restart(&ctx, &slot).await
            }),
        ),
        Mutant::new(
            "restarting touches the other slot",
            &["lifecycle::restart_is_soft"],
            Hooks::new().restart(|i, ctx, slot| async move {
                let pair = i.pair();
                touch(&i, pair.other(&slot)?, "/etc/touched");
                i.backend().restart(&ctx, &slot).await
            }),
        ),
        Mutant::new(
            "restarting leaves a stopped slot stopped",
            &["lifecycle::restart_stopped"],
            Hooks::new().restart(|i, ctx, slot| async move {
                if is(&i, &ctx, &slot, SlotState::is_running).await? {
                    i.backend().restart(&ctx, &slot).await?;
                }
                Ok(())
            }),
        ),
        Mutant::new(
            "starting one slot stops the other",
            &["lifecycle::one_runs_at_a_time"],
            Hooks::new().start(|i, ctx, slot| async move {
                let pair = i.pair();
                i.backend().stop(&ctx, pair.other(&slot)?).await?;
                i.backend().start(&ctx, &slot).await
            }),
        ),
        Mutant::new(
            "restarting a stopped slot stops the other",
            &["lifecycle::restart_beside_the_pair"],
            Hooks::new().restart(|i, ctx, slot| async move {
                let pair = i.pair();
                if !is(&i, &ctx, &slot, SlotState::is_running).await? {
                    i.backend().stop(&ctx, pair.other(&slot)?).await?;
                }
                i.backend().restart(&ctx, &slot).await
            }),
        ),
        Mutant::new(
            "restarting what can't start restarts the other",
            &["lifecycle::restart_beside_the_pair"],
            Hooks::new().restart(|i, ctx, slot| async move {
                let pair = i.pair();
                let done = i.backend().restart(&ctx, &slot).await;
                if done.is_err() {
                    i.backend().restart(&ctx, pair.other(&slot)?).await?;
                }
                done
            }),
        ),
    ]
}

fn ends() -> Vec<Mutant> {
    vec![
        Mutant::new("stopping does nothing", &["lifecycle::stop_stops"], Hooks::new().stop(|_, _, _| async { Ok(()) })),
        Mutant::new("commands outlive the stop", &["lifecycle::stop_ends_processes"], astray_exec()),
        Mutant::new("commands outlive the slot", &["lifecycle::destroy_ends_processes"], astray_exec()),
        Mutant::new(
            "stopping what is stopped fails",
            &["lifecycle::stop_again"],
            Hooks::new().stop(|i, ctx, slot| async move {
                match is(&i, &ctx, &slot, SlotState::is_running).await? {
                    true => i.backend().stop(&ctx, &slot).await,
                    false => Err(Error::new(ErrorKind::NotRunning, "stop the slot")),
                }
            }),
        ),
        Mutant::new(
            "stopping an unknown slot fails",
            &["lifecycle::stop_unknown"],
            Hooks::new().stop(|i, ctx, slot| async move {
                match is(&i, &ctx, &slot, |state| state == SlotState::Absent).await? {
                    false => i.backend().stop(&ctx, &slot).await,
                    true => Err(Error::new(ErrorKind::UnknownSlot, "stop the slot")),
                }
            }),
        ),
        Mutant::new(
            "stopping spoils files",
            &["lifecycle::stop_keeps_files"],
            Hooks::new().stop(|i, ctx, slot| async move {
                spoil_kept(&i, &slot);
                i.backend().stop(&ctx, &slot).await
            }),
        ),
        Mutant::new(
            "destroying only stops",
            &["lifecycle::destroy_leaves_nothing"],
            Hooks::new().destroy(|i, ctx, slot| async move { i.backend().stop(&ctx, &slot).await }),
        ),
        Mutant::new(
            "destroying twice fails",
            &["lifecycle::destroy_again"],
            Hooks::new().destroy(|i, ctx, slot| async move {
                match i.remember("destroyed", ()) {
                    None => i.backend().destroy(&ctx, &slot).await,
                    Some(()) => Err(Error::new(ErrorKind::UnknownSlot, "destroy the slot")),
                }
            }),
        ),
        Mutant::new(
            "destroying an unknown slot fails",
            &["lifecycle::destroy_unknown"],
            Hooks::new().destroy(|i, ctx, slot| async move {
                match is(&i, &ctx, &slot, |state| state == SlotState::Absent).await? {
                    false => i.backend().destroy(&ctx, &slot).await,
                    true => Err(Error::new(ErrorKind::UnknownSlot, "destroy the slot")),
                }
            }),
        ),
        Mutant::new(
            "a destroyed slot is called stopped",
            &["lifecycle::anew_after_destroy", "lifecycle::unknown_is_absent"],
            Hooks::new().status(|i, ctx, slot| async move {
                let status = i.backend().status(&ctx, &slot).await?;
                Ok(if status.state == SlotState::Absent { Status::new(SlotState::Stopped) } else { status })
            }),
        ),
        Mutant::new(
            "each life leaves a file",
            &["lifecycle::lives_leave_nothing"],
            Hooks::new().destroy(|i, ctx, slot| async move {
                i.backend().destroy(&ctx, &slot).await?;
                if let Some(root) = i.root(&slot) {
                    let _ = std::fs::write(root.dir().with_extension("left"), "");
                }
                Ok(())
            }),
        ),
        Mutant::new(
            "destroying goes through mounts",
            &["faults::mounts_survive"],
            Hooks::new().destroy(|i, ctx, slot| async move {
                if let Some(root) = i.root(&slot) {
                    let _ = std::fs::remove_dir_all(root.dir());
                }
                i.backend().destroy(&ctx, &slot).await
            }),
        ),
    ]
}

fn looks() -> Vec<Mutant> {
    vec![
        Mutant::new(
            "looking writes",
            &["lifecycle::status_changes_nothing"],
            Hooks::new().status(|i, ctx, slot| async move {
                touch(&i, &slot, "/etc/looked");
                i.backend().status(&ctx, &slot).await
            }),
        ),
        Mutant::new(
            "an unknown slot is an error",
            &["lifecycle::unknown_is_absent"],
            Hooks::new().status(|i, ctx, slot| async move {
                let status = i.backend().status(&ctx, &slot).await?;
                match status.state {
                    SlotState::Absent => Err(Error::new(ErrorKind::UnknownSlot, "look at the slot")),
                    _ => Ok(status),
                }
            }),
        ),
        Mutant::new(
            "a slot that can't be asked about is called stopped",
            &["faults::manager_away"],
            Hooks::new().status(|i, ctx, slot| async move {
                Ok(i.backend().status(&ctx, &slot).await.unwrap_or_else(|_| Status::new(SlotState::Stopped)))
            }),
        ),
        Mutant::new(
            "what once ran is called running for ever",
            &["faults::killed_from_outside"],
            Hooks::new().status(|i, ctx, slot| async move {
                if let Some(status) = i.recall::<Status>("running") {
                    return Ok(status);
                }
                let status = i.backend().status(&ctx, &slot).await?;
                if status.running() {
                    i.remember("running", status.clone());
                }
                Ok(status)
            }),
        ),
    ]
}
