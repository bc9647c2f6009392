//! What goes wrong with logs.

use isolation::{Cancel, Error, ErrorKind, LogOptions, LogStream, OpCtx, SlotName, SlotState, UnitName};
use tokio::io::AsyncReadExt;

use super::Mutant;
use super::hooks::{Hooks, Inner};

/// A mutant that asks for another log.
fn asked(name: &'static str, cases: &'static [&'static str], change: fn(LogOptions) -> LogOptions) -> Mutant {
    let logs = move |i: Inner, ctx: OpCtx, (slot, options): (SlotName, LogOptions)| async move {
        i.backend().logs(&ctx, &slot, &change(options)).await
    };
    Mutant::new(name, cases, Hooks::new().logs(logs))
}

/// A mutant whose logs begin with what the host has written, for those who name a unit or for those who name none.
fn with_the_hosts(name: &'static str, named: bool) -> Mutant {
    let logs = move |i: Inner, ctx: OpCtx, (slot, options): (SlotName, LogOptions)| async move {
        let log = i.backend().logs(&ctx, &slot, &options).await?;
        let hosts = if options.unit.is_some() == named { i.host_lines() } else { Vec::new() };
        let hosts = std::io::Cursor::new(hosts.join("\n").into_bytes());
        Ok(LogStream::from_reader(hosts.chain(&b"\n"[..]).chain(log), |_| async { Ok(()) }))
    };
    Mutant::new(name, &["logs::not_the_hosts"], Hooks::new().logs(logs))
}

pub(super) fn mutants() -> Vec<Mutant> {
    vec![
        with_the_hosts("a unit's log has that of the host's unit, too", true),
        with_the_hosts("a log of all units has those of the host, too", false),
        asked("nobody follows", &["logs::follow_sees_new_lines"], |options| options.with_follow(false)),
        asked("the line limit is ignored", &["logs::last_lines"], |options| options.with_lines(0)),
        asked("ten lines are enough", &["logs::all_lines", "logs::all_lines_following"], |options| {
            if options.lines.is_some() { options } else { options.with_lines(10) }
        }),
        asked("the unit is ignored", &["logs::one_unit"], |mut options| {
            options.unit = None;
            options
        }),
        asked("only one unit is shown", &["logs::all_units"], |mut options| {
            options.unit = options.unit.or_else(|| UnitName::new("kubelet.service").ok());
            options
        }),
        Mutant::new(
            "the logs of both slots are one",
            &["logs::not_the_other_slots"],
            Hooks::new().logs(|i, ctx, (slot, options)| async move {
                let log = i.backend().logs(&ctx, &slot, &options).await?;
                match i.backend().logs(&ctx, i.pair().other(&slot)?, &options).await {
                    Ok(other) => Ok(LogStream::from_reader(other.chain(log), |_| async { Ok(()) })),
                    Err(_) => Ok(log),
                }
            }),
        ),
        asked("the cursor is ignored", &["logs::cursor"], |mut options| {
            options.after = None;
            options
        }),
        Mutant::new(
            "closing early is an error",
            &["logs::closed_early", "logs::cancelled"],
            Hooks::new().logs(|i, ctx, (slot, options)| async move {
                let log = i.backend().logs(&ctx, &slot, &options).await?;
                let strict = LogStream::from_reader(log, |ended| async move {
                    if ended { Ok(()) } else { Err(Error::new(ErrorKind::Command, "read a log")) }
                });
                Ok(strict.with_cancel(ctx.cancel()))
            }),
        ),
        Mutant::new(
            "cancelling does nothing",
            &["logs::cancelled"],
            Hooks::new().logs(|i, ctx, (slot, options)| async move {
                i.backend().logs(&ctx.with_cancel(Cancel::new()), &slot, &options).await
            }),
        ),
        Mutant::new(
            "a failed log is none",
            &["logs::failure_is_told"],
            Hooks::new().logs(|i, ctx, (slot, options)| async move {
                let log = i.backend().logs(&ctx, &slot, &options).await?;
                Ok(LogStream::from_reader(log, |_| async { Ok(()) }))
            }),
        ),
        Mutant::new(
            "a log leaves a process",
            &["logs::dropped"],
            Hooks::new().logs(|i, ctx, (slot, options)| async move {
                // It ends by itself, after the case has given up waiting, and is a zombie until then and after.
                let left = std::process::Command::new("sleep").arg("29").spawn();
                drop(left);
                i.backend().logs(&ctx, &slot, &options).await
            }),
        ),
        Mutant::new(
            "destroying one slot empties the logs of both",
            &["logs::beside_the_other"],
            Hooks::new()
                .destroy(|i, ctx, slot| async move {
                    i.remember("emptied", i.root(&slot).is_some());
                    i.backend().destroy(&ctx, &slot).await
                })
                .logs(|i, ctx, (slot, options)| async move {
                    match i.recall("emptied") {
                        Some(true) => Ok(LogStream::from_reader(tokio::io::empty(), |_| async { Ok(()) })),
                        _ => i.backend().logs(&ctx, &slot, &options).await,
                    }
                }),
        ),
        asked("of one unit the last lines of all are counted", &["logs::last_lines"], |mut options| {
            if options.lines.is_some() {
                options.unit = None;
            }
            options
        }),
        asked("whoever follows gets all units", &["logs::one_unit"], |mut options| {
            options.unit = options.unit.filter(|_| !options.follow);
            options
        }),
        asked("whoever follows begins at the beginning", &["logs::cursor"], |mut options| {
            options.after = options.after.filter(|_| !options.follow);
            options
        }),
        Mutant::new(
            "a stopped slot has no log",
            &["logs::stopped_slot"],
            Hooks::new().logs(|i, ctx, (slot, options)| async move {
                match i.backend().status(&ctx, &slot).await?.state {
                    SlotState::Stopped => Err(Error::new(ErrorKind::NotRunning, "open a log")),
                    _ => i.backend().logs(&ctx, &slot, &options).await,
                }
            }),
        ),
        Mutant::new(
            "an unknown slot has an empty log",
            &["logs::unknown_slot"],
            Hooks::new().logs(|i, ctx, (slot, options)| async move {
                match i.backend().logs(&ctx, &slot, &options).await {
                    Err(_) => Ok(LogStream::from_reader(tokio::io::empty(), |_| async { Ok(()) })),
                    log => log,
                }
            }),
        ),
        Mutant::new(
            "eight logs are enough",
            &["logs::many_at_once"],
            Hooks::new().logs(|i, ctx, (slot, options)| async move {
                if i.count() >= 8 {
                    return Err(Error::new(ErrorKind::Transport, "open a log"));
                }
                i.backend().logs(&ctx, &slot, &options).await
            }),
        ),
    ]
}
