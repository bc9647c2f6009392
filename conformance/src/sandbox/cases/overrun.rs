//! Commands that run past their limit and try to hide it.

use std::time::{Duration, Instant};

use sandbox::ExecRequest;

use super::super::subject::told;
use super::limits::timed_out;
use super::{B, Case, mark, secs};
use crate::{Outcome, ensure, equal};

const OVERRUN: &str = "A command that ran past its limit is never reported as punctual, whatever it kills or closes.";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("limit::overrun_kills_watchdogs", OVERRUN, overrun_kills_watchdogs).races(),
        Case::new("limit::overrun_kills_its_parent", OVERRUN, overrun_kills_its_parent).races(),
        Case::new("limit::overrun_exits_0", OVERRUN, overrun_exits_0),
        Case::new("limit::overrun_closes_its_output", OVERRUN, overrun_closes_its_output),
        Case::new("limit::overrun_traps_term", OVERRUN, overrun_traps_term),
        Case::new("limit::overruns_and_others", OVERRUN, overruns_and_others),
        Case::new("limit::overrun_by_a_hair", OVERRUN, overrun_by_a_hair).races().repeat(3),
    ]
}

/// Kills everything that could be watching: siblings, children of its parent, whatever is not itself or process 1.
const KILL_WATCHDOGS: &str = "for d in /proc/[0-9]*; do p=${d#/proc/}; case $p in 1|$$|$BASHPID|$PPID) ;; *) kill -9 $p 2>/dev/null ;; esac; done";

/// Runs `text` with a limit of 1 s; whatever happens, it is not told as an ordinary end.
async fn overrun(bed: &B, text: &str, must_time_out: bool) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let begun = Instant::now();
    let result = sandbox.try_exec(ExecRequest::shell(text.to_owned()).with_limit(secs(1))).await?;
    let took = begun.elapsed();
    ensure(took < secs(8), text, "an answer soon after the limit", || format!("{took:?}"))?;
    match result {
        Ok(result) if must_time_out => timed_out(text, &result),
        Ok(result) if result.timed_out => Ok(()),
        Ok(result) => ensure(result.elapsed < secs(1), text, "a timeout, or an end within its limit", || told(&result)),
        Err(error) => ensure(!must_time_out, text, "timed out", || crate::short(&error)),
    }
}

async fn overrun_kills_watchdogs(bed: B) -> Outcome {
    let mark = mark();
    overrun(&bed, &format!("{KILL_WATCHDOGS}; sleep {mark}"), true).await?;
    bed.sandbox().await?.unmarked(&mark, secs(5)).await
}

async fn overrun_kills_its_parent(bed: B) -> Outcome {
    let mark = mark();
    overrun(&bed, &format!("{KILL_WATCHDOGS}; ((PPID > 1)) && kill -9 $PPID; sleep {mark}"), false).await?;
    let sandbox = bed.sandbox().await?;
    equal("a later command", sandbox.ok("echo alive").await?, "alive\n")
}

async fn overrun_exits_0(bed: B) -> Outcome {
    overrun(&bed, &format!("{KILL_WATCHDOGS}; sleep 2; exit 0"), true).await
}

async fn overrun_closes_its_output(bed: B) -> Outcome {
    let mark = mark();
    overrun(&bed, &format!("{KILL_WATCHDOGS}; exec >&- 2>&- <&-; sleep {mark}"), true).await?;
    bed.sandbox().await?.unmarked(&mark, secs(5)).await
}

async fn overrun_traps_term(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let text = "trap 'exit 0' TERM; for i in {1..300}; do sleep 0.1; done";
    let result = sandbox.exec(ExecRequest::shell(text).with_limit(secs(1)).with_grace(secs(1))).await?;
    timed_out(text, &result)
}

/// Side by side, each with a limit of 2 s: who runs past it is told so whatever its code, and who does not is not.
async fn overruns_and_others(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let run = |text: &'static str, grace| {
        let request = ExecRequest::shell(text).with_limit(secs(2)).with_grace(grace);
        let sandbox = sandbox.clone();
        async move { sandbox.exec(request).await }
    };
    let none = Duration::ZERO;
    let (ignores, leaves, punctual, killed, code) = tokio::join!(
        run("trap '' TERM; sleep 60", secs(1)),
        run("trap 'exit 0' TERM; for i in {1..600}; do sleep 0.1; done", secs(1)),
        run("sleep 1.9", none),
        run("kill -9 $$", none),
        run("exit 124", none),
    );
    timed_out("a command that ignores SIGTERM", &ignores?)?;
    timed_out("a command that ends with code 0 at SIGTERM", &leaves?)?;
    // On a machine that is busy it may have needed more than its limit.
    let punctual = punctual?;
    let right = punctual.success() || punctual.timed_out && punctual.elapsed >= secs(2);
    ensure(right, "1.9 s of 2 s", "an ordinary end, unless it took 2 s", || told(&punctual))?;
    let ends = |result: Outcome<sandbox::ExecResult>| result.map(|result| (result.timed_out, result.exit_code));
    equal("kill -9 $$", ends(killed)?, (false, 137))?;
    equal("exit 124", ends(code)?, (false, 124))
}

async fn overrun_by_a_hair(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("true").await?;
    let result = sandbox.timed("trap '' TERM; sleep 2.6; exit 0", secs(1)).await?;
    timed_out("2.6 s of 1 s", &result)?;
    let result = sandbox.timed("sleep 0.5; exit 0", secs(2)).await?;
    ensure(result.success(), "0.5 s of 2 s", "an ordinary end", || told(&result))
}
