//! Limits, kills and stragglers.

use std::time::{Duration, Instant};

use sandbox::ExecRequest;

use super::super::Subject;
use super::super::subject::told;
use super::{B, Case, mark, millis, secs, soon};
use crate::{Failure, Outcome, ensure, equal, same};

const KILLED: &str =
    "A command that runs into its limit is killed and reported as timed out, and the sandbox stays usable.";
const GROUP: &str = "What a command started dies with it at its limit, also what left its process group.";
const CLEAN: &str = "A command that ends in time leaves no watchdog behind and nothing in its output.";
const ENDS: &str = "A command ends when its process ends: a background process that holds its output neither delays the result nor dies of it.";
const LATE: &str = "What a background process prints after its command ended is in no later result.";
const GRACE: &str = "At the limit the command gets `SIGKILL` (or `SIGTERM`, and `SIGKILL` after `grace`).";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("limit::kills", KILLED, kills),
        Case::new("limit::silent_or_loud", KILLED, silent_or_loud),
        Case::new("limit::ignored_signals", KILLED, ignored_signals),
        Case::new("limit::code_is_137", "The exit code is 137 if it timed out.", code_is_137),
        Case::new("limit::kills_the_group", GROUP, kills_the_group),
        Case::new("limit::kills_who_left_the_group", GROUP, kills_who_left_the_group),
        Case::new("limit::returns_soon", "The call returns at most two seconds later, plus `grace`.", returns_soon),
        Case::new("limit::below_a_second", "Limits below a second are kept as they are, not rounded.", below_a_second),
        Case::new("limit::keeps_what_was_printed", KILLED, keeps_what_was_printed),
        Case::new("limit::leaves_nothing_behind", CLEAN, leaves_nothing_behind),
        Case::new(
            "limit::costs_nothing_in_time",
            "A limit does not delay a command that ends in time.",
            costs_nothing_in_time,
        ),
        Case::new("limit::stragglers_do_not_delay", ENDS, stragglers_do_not_delay),
        Case::new("limit::stragglers_live_on", ENDS, stragglers_live_on),
        Case::new("limit::late_output_stays_out", LATE, late_output_stays_out).races().repeat(3),
        Case::new("limit::self_kill_is_no_timeout", "A command that kills itself in time is not timed out.", self_kill),
        Case::new("limit::exit_124_is_no_timeout", "Exit code 124 is not a timeout.", exit_124),
        Case::new("limit::grace_is_for_cleaning_up", GRACE, grace_is_for_cleaning_up),
        Case::new("limit::grace_ends", GRACE, grace_ends),
        Case::new("limit::no_grace_no_term", GRACE, no_grace_no_term),
    ]
}

/// Wants `result` to be a timeout.
pub(super) fn timed_out(step: &str, result: &sandbox::ExecResult) -> Outcome {
    ensure(result.timed_out, step, "timed out", || told(result))
}

async fn kills(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    let result = sandbox.timed(format!("sleep {mark}"), secs(1)).await?;
    timed_out("a long sleep", &result)?;
    equal("what the platform printed", (result.stdout.total, result.stderr.total), (0, 0))?;
    sandbox.unmarked(&mark, secs(3)).await?;
    equal("the next command", sandbox.ok("echo alive").await?, "alive\n")?;
    let args = ExecRequest::args(["sleep", mark.as_str()]).with_limit(secs(1));
    timed_out("a program", &sandbox.exec(args).await?)?;
    sandbox.unmarked(&mark, secs(3)).await
}

async fn silent_or_loud(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let result = sandbox.timed("yes", secs(1)).await?;
    timed_out("a command that never stops printing", &result)?;
    ensure(result.stdout.bytes.starts_with(b"y\ny\n"), "its output", "the first bytes", || told(&result))?;
    timed_out("a busy loop", &sandbox.timed("while :; do :; done", secs(1)).await?)?;
    equal("the next command", sandbox.ok("echo alive").await?, "alive\n")
}

async fn ignored_signals(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    let text = format!("trap '' TERM HUP INT QUIT; (trap '' TERM; sleep {mark}); sleep {mark}");
    timed_out("a command that ignores signals", &sandbox.timed(text, secs(1)).await?)?;
    sandbox.unmarked(&mark, secs(3)).await?;
    let text = format!("sleep {mark} & kill -STOP $!; kill -STOP $$");
    timed_out("a command that stops itself", &sandbox.timed(text, secs(1)).await?)?;
    sandbox.unmarked(&mark, secs(3)).await
}

async fn code_is_137(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for text in ["sleep 60", "trap 'exit 0' TERM; while :; do sleep 0.1; done"] {
        let result = sandbox.exec(ExecRequest::shell(text).with_limit(secs(1)).with_grace(millis(500))).await?;
        equal(text, (result.timed_out, result.exit_code), (true, 137))?;
    }
    Ok(())
}

async fn kills_the_group(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    let text =
        format!("sleep {mark} & (sleep {mark} & sleep {mark}) & bash -c 'sleep {mark}; :' & sleep {mark} | cat & wait");
    let run = sandbox.timed(text, secs(4));
    let (result, up) = tokio::join!(run, sandbox.all_marked(&mark, 5, secs(3)));
    up?;
    timed_out("the command", &result?)?;
    sandbox.unmarked(&mark, secs(5)).await
}

async fn kills_who_left_the_group(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    // In a session of its own, beside its parent, without it, and with no output of the command.
    let text = format!(
        "setsid sleep {mark} & (setsid sleep {mark} &) ; setsid sleep {mark} </dev/null >/dev/null 2>&1 & \
         set -m; sleep {mark} & setsid bash -c 'setsid sleep {mark}; :' & wait"
    );
    let run = sandbox.timed(text, secs(4));
    let (result, up) = tokio::join!(run, sandbox.all_marked(&mark, 5, secs(3)));
    up?;
    timed_out("the command", &result?)?;
    sandbox.unmarked(&mark, secs(5)).await?;
    let text = format!("setsid sh -c 'sleep {mark}' & (sleep {mark} &) ; sleep {mark}");
    timed_out(&text, &sandbox.timed(text.clone(), secs(2)).await?)?;
    sandbox.unmarked(&mark, secs(5)).await
}

async fn returns_soon(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for (limit, grace) in [(1000, 0), (300, 0), (1000, 1000)] {
        let text = "trap '' TERM; sleep 60 & sleep 60";
        let request = ExecRequest::shell(text).with_limit(millis(limit)).with_grace(millis(grace));
        let begun = Instant::now();
        let result = sandbox.exec(request).await?;
        let took = begun.elapsed();
        timed_out("the command", &result)?;
        let most = millis(limit + grace + 2000) + START;
        ensure(
            took <= most,
            &format!("a limit of {limit} ms and {grace} ms of grace"),
            &format!("an answer within {most:?}"),
            || format!("{took:?}"),
        )?;
    }
    Ok(())
}

/// What a command may take to start on a busy machine, before its limit counts.
const START: Duration = Duration::from_millis(1500);

async fn below_a_second(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("true").await?;
    let result = sandbox.timed("sleep 30", millis(250)).await?;
    timed_out("sleep 30 with 250 ms", &result)?;
    ensure(
        result.elapsed >= millis(240) && result.elapsed < millis(950),
        "when it was killed",
        "after 250 ms, not after a second",
        || format!("{:?}", result.elapsed),
    )?;
    let result = sandbox.timed("sleep 1.2; echo whole", millis(1900)).await?;
    ensure(result.success() && result.stdout.bytes == "whole\n", "1.2 s of 1.9 s", "an ordinary end", || told(&result))
}

async fn keeps_what_was_printed(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let result = sandbox.timed("echo out; echo err >&2; sleep 60", secs(1)).await?;
    timed_out("the command", &result)?;
    same("stdout", &result.stdout.bytes, b"out\n")?;
    same("stderr", &result.stderr.bytes, b"err\n")
}

/// The processes of the sandbox, besides the one that counts.
pub(super) async fn processes(sandbox: &Subject) -> Outcome<usize> {
    let printed = sandbox.ok("set -- /proc/[0-9]*; echo $#").await?;
    printed.trim().parse().map_err(|_| Failure::new("counting processes", "a number", printed))
}

/// As many as there are once what a command leaves for a moment has gone: the fewest of twenty looks.
async fn settled(sandbox: &Subject) -> Outcome<usize> {
    let mut fewest = usize::MAX;
    for _ in 0..20 {
        fewest = fewest.min(processes(sandbox).await?);
    }
    Ok(fewest)
}

async fn leaves_nothing_behind(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.timed("true", secs(60)).await?;
    let before = settled(&sandbox).await?;
    for _ in 0..3 {
        let result = sandbox.timed("true", secs(60)).await?;
        ensure(
            result.success() && result.stderr.total == 0 && result.stdout.total == 0,
            "a quick command",
            "no output",
            || told(&result),
        )?;
    }
    soon(secs(3), || async {
        let now = processes(&sandbox).await?;
        ensure(now <= before, "processes after three commands", &format!("{before}, as before"), || now.to_string())
    })
    .await?;
    equal("files in /tmp", sandbox.ok("ls -A /tmp").await?, "")?;
    equal("files in the working directory", sandbox.ok("ls -A").await?, "")
}

async fn costs_nothing_in_time(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let mut differences = Vec::new();
    for round in 0..5 {
        let mut took = [Duration::ZERO; 2];
        for at in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let request = ExecRequest::shell("true");
            let request = if at == 1 { request.with_limit(secs(60)) } else { request };
            let begun = Instant::now();
            sandbox.exec(request).await?;
            took[at] = begun.elapsed();
        }
        differences.push(took[1].saturating_sub(took[0]));
    }
    differences.sort_unstable();
    ensure(differences[2] < millis(500), "how much longer a command with a limit takes", "less than 0.5 s", || {
        format!("{differences:?}")
    })
}

async fn stragglers_do_not_delay(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    for (text, limit) in [
        (format!("sleep {mark} & echo started"), Some(secs(20))),
        (format!("sleep {mark} & echo started"), None),
        (format!("setsid sleep {mark} & echo started"), Some(secs(3))),
        (format!("(sleep {mark} &) ; echo started"), Some(secs(3))),
        (format!("nohup sleep {mark} </dev/zero & disown; echo started"), Some(secs(3))),
    ] {
        let mut request = ExecRequest::shell(text.clone());
        request.limit = limit;
        let begun = Instant::now();
        let result = sandbox.exec(request).await?;
        let took = begun.elapsed();
        ensure(
            result.success() && result.stdout.bytes.starts_with(b"started\n"),
            &text,
            "exit code 0 and `started`",
            || told(&result),
        )?;
        ensure(took < millis(2500), &text, "an answer at once", || format!("after {took:?}"))?;
    }
    Ok(())
}

async fn stragglers_live_on(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let text = "(for i in 1 2 3 4 5 6; do sleep 0.3; echo out $i; echo err $i >&2; done; head -c 300000 /dev/zero; \
                echo lived > /tmp/lived) & echo started";
    let result = sandbox.timed(text, secs(1)).await?;
    ensure(result.success(), "the command", "exit code 0", || told(&result))?;
    soon(secs(10), || async {
        let lived = sandbox.sh("test -e /tmp/lived").await?.success();
        let step = "a background process that prints after its command";
        ensure(lived, step, "that it lives to its end", || "no trace of it".to_owned())
    })
    .await
}

async fn late_output_stays_out(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    // What comes while a later command runs, and not only between two.
    for n in 0..2 {
        let until = |name: &str| format!("until [[ -e /tmp/{name} ]]; do sleep 0.02; done; rm /tmp/{name}");
        sandbox.sh(format!("({}; echo LATE; echo LATE >&2; > /tmp/said) & echo first", until("go"))).await?;
        let result = sandbox.timed(format!("> /tmp/go; {}; echo {n}; echo e{n} >&2", until("said")), secs(20)).await?;
        equal("stdout of a later command that lasts", result.stdout.to_string_lossy(), format!("{n}\n"))?;
        equal("stderr of a later command that lasts", result.stderr.to_string_lossy(), format!("e{n}\n"))?;
    }
    let printer = "(setsid bash -c 'for i in {1..60}; do echo LATE; echo LATE >&2; sleep 0.05; done' &) ; \
                   (for i in {1..60}; do echo LATE; echo LATE >&2; sleep 0.05; done) & echo first";
    for _ in 0..2 {
        sandbox.sh(printer).await?;
    }
    // Spread over the time in which it is printed.
    for n in 0..20 {
        let result = sandbox.sh(format!("echo {n}; echo e{n} >&2")).await?;
        equal("stdout of a later command", result.stdout.to_string_lossy(), format!("{n}\n"))?;
        equal("stderr of a later command", result.stderr.to_string_lossy(), format!("e{n}\n"))?;
        tokio::time::sleep(millis(50)).await;
    }
    Ok(())
}

async fn self_kill(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let begun = Instant::now();
    let result = sandbox.timed("kill -9 $$", secs(30)).await?;
    equal("kill -9 $$", (result.timed_out, result.exit_code), (false, 137))?;
    ensure(begun.elapsed() < secs(10), "kill -9 $$", "an answer at once", || format!("{:?}", begun.elapsed()))?;
    // Once whoever watches it is there.
    let result = sandbox.timed("sleep 0.3; kill -9 0", secs(5)).await?;
    ensure(!result.timed_out, "kill -9 0", "not timed out", || told(&result))
}

async fn exit_124(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let result = sandbox.timed("exit 124", secs(30)).await?;
    equal("exit 124", (result.timed_out, result.exit_code), (false, 124))
}

async fn grace_is_for_cleaning_up(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let text = "trap 'sleep 0.3; echo saved > /tmp/saved; exit 3' TERM; while :; do sleep 0.05; done";
    let result = sandbox.exec(ExecRequest::shell(text).with_limit(secs(1)).with_grace(secs(5))).await?;
    timed_out("the command", &result)?;
    ensure(result.elapsed < secs(4), "a command that ends within its grace", "an answer then", || {
        format!("{:?}", result.elapsed)
    })?;
    equal("what it saved", sandbox.ok("cat /tmp/saved").await?, "saved\n")
}

async fn grace_ends(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    let text =
        format!("trap 'echo term > /tmp/term' TERM; (trap '' TERM; exec sleep {mark}) & while :; do sleep 0.05; done");
    let result = sandbox.exec(ExecRequest::shell(text).with_limit(secs(1)).with_grace(secs(1))).await?;
    timed_out("the command", &result)?;
    ensure(result.elapsed >= millis(1500), "a command that ignores SIGTERM", "its whole grace", || {
        format!("{:?}", result.elapsed)
    })?;
    // That alone tells it from a kill at once, where one that comes late takes as long.
    equal("what it noted of SIGTERM", sandbox.ok("cat /tmp/term").await?, "term\n")?;
    sandbox.unmarked(&mark, secs(5)).await
}

async fn no_grace_no_term(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let text = "trap 'echo term > /tmp/term' TERM; while :; do sleep 0.05; done";
    timed_out("the command", &sandbox.timed(text, secs(1)).await?)?;
    equal("traces of SIGTERM", sandbox.ok("ls /tmp/term 2>/dev/null; true").await?, "")
}
