//! Dropped futures, and what one command costs another.

use std::time::{Duration, Instant};

use sandbox::ExecRequest;

use super::super::Subject;
use super::limits::timed_out;
use super::{B, Case, mark, millis, secs};
use crate::{Failure, Outcome, ensure, equal, within};

const DROPPED: &str = "A command whose future is dropped is killed.";
const APART: &str = "A failed command, a dropped future or a timeout costs no other command anything.";
const AT_ONCE: &str = "All operations can run at once, through one handle or several.";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("exec::many_at_once", AT_ONCE, many_at_once).races().deadline(secs(240)),
        Case::new("drop::kills", DROPPED, drop_kills).races(),
        Case::new("drop::at_every_moment", DROPPED, drop_at_every_moment).races(),
        Case::new("drop::many_in_waves", DROPPED, drop_many_in_waves).races().deadline(secs(240)),
        Case::new("drop::costs_no_other_command", APART, drop_costs_no_other_command).races(),
        Case::new("limit::costs_no_other_command", APART, limit_costs_no_other_command).races(),
        Case::new("exec::failure_costs_no_other_command", APART, failure_costs_no_other_command).races(),
    ]
}

/// Starts `text`, waits until it wrote `/tmp/up`, and drops the future.
async fn start_and_drop(sandbox: &Subject, text: String) -> Outcome {
    let up = async {
        while sandbox.sh("test -e /tmp/up").await?.exit_code != 0 {
            tokio::time::sleep(millis(50)).await;
        }
        Ok(())
    };
    let run = sandbox.inner.exec(ExecRequest::shell(text));
    let either = futures::future::select(Box::pin(up), run);
    match within("the command to start", secs(30), either).await? {
        futures::future::Either::Left((up, _)) => up,
        futures::future::Either::Right((result, _)) => {
            Err(Failure::new("a long command", "that it runs until it is dropped", crate::short(&result)))
        }
    }
}

async fn drop_kills(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    start_and_drop(&sandbox, format!("sleep {mark} & touch /tmp/up; sleep {mark}")).await?;
    sandbox.unmarked(&mark, secs(5)).await?;
    equal("the next command", sandbox.ok("echo alive").await?, "alive\n")
}

async fn drop_at_every_moment(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    for moment in [0, 1, 2, 3, 5, 8, 13, 20, 30, 50, 100, 200] {
        let run = sandbox.inner.exec(ExecRequest::shell(format!("sleep {mark}")));
        if let Ok(result) = tokio::time::timeout(millis(moment), run).await {
            return Err(Failure::new("a long command", "that it runs", crate::short(&result)));
        }
    }
    sandbox.unmarked(&mark, secs(10)).await?;
    equal("the next command", sandbox.ok("echo alive").await?, "alive\n")
}

/// More of them than anybody keeps in mind at once, and faster than one by one can be looked after.
async fn drop_many_in_waves(bed: B) -> Outcome {
    const DEAD: Duration = secs(30);
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    for _ in 0..6 {
        let wave = (0..60).map(|_| sandbox.inner.exec(ExecRequest::shell(format!("sleep {mark}"))));
        let wave = futures::future::select_all(wave.map(Box::pin));
        if let Ok((result, ..)) = tokio::time::timeout(millis(1200), wave).await {
            return Err(Failure::new("one of many long commands", "that it runs", crate::short(&result)));
        }
    }
    sandbox.unmarked(&mark, DEAD).await?;
    equal("the next command", sandbox.ok("echo alive").await?, "alive\n")
}

/// Runs a command from before `work` until after it, and wants it whole.
async fn beside(sandbox: &Subject, work: impl Future<Output = Outcome>) -> Outcome {
    let other = sandbox
        .sh("echo begun; > /tmp/begun; until [[ -e /tmp/enough ]]; do sleep 0.1; done; sleep 300 & echo end; exit 9");
    let work = async {
        sandbox.ok("until [[ -e /tmp/begun ]]; do sleep 0.05; done").await?;
        let worked = work.await;
        // Who is struck by mistake may be struck late.
        tokio::time::sleep(millis(300)).await;
        sandbox.ok("rm /tmp/begun; > /tmp/enough").await?;
        worked
    };
    let (result, worked) = tokio::join!(other, work);
    worked?;
    let result = result?;
    sandbox.ok("rm /tmp/enough").await?;
    equal("the other command", result.stdout.to_string_lossy(), "begun\nend\n")?;
    equal("its code", (result.exit_code, result.timed_out), (9, false))
}

async fn drop_costs_no_other_command(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    beside(&sandbox, async {
        start_and_drop(&sandbox, format!("touch /tmp/up; sleep {mark}")).await?;
        sandbox.unmarked(&mark, secs(5)).await
    })
    .await
}

async fn limit_costs_no_other_command(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    beside(&sandbox, async { timed_out("a sleep", &sandbox.timed("sleep 60", secs(1)).await?) }).await?;
    let mark = mark();
    for round in 0..5 {
        beside_shells(&sandbox, &mark).await.map_err(|failure| failure.within(format!("round {round}")))?;
    }
    sandbox.unmarked(&mark, secs(10)).await
}

/// Commands with much to kill run out of time beside others that are busy, idle or just done with something that goes on printing: not
/// one of those is hit.
async fn beside_shells(sandbox: &Subject, mark: &str) -> Outcome {
    const OTHERS: i32 = 6;
    let each = |text: fn(i32) -> String| {
        futures::future::join_all((0..OTHERS).map(move |n| async move {
            let result = sandbox.sh(text(n)).await?;
            equal("another command", result.stdout.to_string_lossy(), format!("{n}\n"))?;
            equal("its code", (result.exit_code, result.timed_out), (n, false))
        }))
    };
    // Afterwards what serves them is idle, or taken by what they left behind.
    let idle = each(|n| format!("sleep 0.1; echo {n}; exit {n}")).await;
    let retired = each(|n| format!("(exec >/dev/null; sleep 1) & (sleep 0.2; sleep 1) & echo {n}; exit {n}")).await;
    let late = futures::future::join_all((0..3).map(|_| async {
        let text =
            format!("sleep {mark} & (sleep {mark} & sleep {mark}) & sleep {mark} | cat | cat & sleep {mark} | cat");
        timed_out("a command with much to kill", &sandbox.timed(text, millis(300)).await?)
    }));
    let busy = each(|n| format!("for i in 1 2 3 4 5 6; do sleep 0.1 >/dev/null; done; echo {n}; exit {n}"));
    let (late, busy) = tokio::join!(late, busy);
    let after = each(|n| format!("echo {n}; exit {n}")).await;
    [idle, retired, late, busy, after].into_iter().flatten().collect()
}

async fn failure_costs_no_other_command(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    beside(&sandbox, async {
        for text in ["exit 3", "kill -9 $$", "exec 1>&- 2>&-; exit 1", "kill -TERM 0"] {
            sandbox.sh(text).await?;
        }
        Ok(())
    })
    .await
}

async fn many_at_once(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let begun = Instant::now();
    let runs = (0..64).map(|n| {
        let sandbox = sandbox.clone();
        async move {
            let result = sandbox.sh(format!("sleep 1; echo {n}; echo {n} >&2; exit {n}")).await?;
            equal("its own output", result.stdout.to_string_lossy(), format!("{n}\n"))?;
            equal("its own errors", result.stderr.to_string_lossy(), format!("{n}\n"))?;
            equal("its own code", result.exit_code, n)
        }
    });
    for outcome in within("64 commands at once", secs(200), futures::future::join_all(runs)).await? {
        outcome?;
    }
    let took = begun.elapsed();
    ensure(took < secs(30), "64 commands of one second each", "side by side, within 30 s", || format!("{took:?}"))
}
