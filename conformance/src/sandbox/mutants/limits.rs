//! What can be wrong about limits, kills and dropped futures.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sandbox::{Command, Error, ErrorKind, ExecRequest, ExecResult, Output};
use tokio::time::sleep;

use super::{Hooks, Inner, Mutant};

fn hooks() -> Hooks {
    Hooks::default()
}

/// Kills everything in a sandbox but its first process.
async fn kill_all(inner: &Inner) {
    let _ = inner.exec(ExecRequest::shell("kill -9 -1").with_limit(Duration::from_secs(5))).await;
}

/// Kills everything in a sandbox when it is dropped armed.
struct KillAll(Option<Inner>);

impl Drop for KillAll {
    fn drop(&mut self) {
        if let Some(inner) = self.0.take() {
            tokio::spawn(async move { kill_all(&inner).await });
        }
    }
}

/// Runs a command that no dropped future ends.
async fn detached(inner: Inner, request: ExecRequest) -> Result<ExecResult, Error> {
    let run = tokio::spawn(async move { inner.exec(request).await });
    run.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Other)))
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[allow(clippy::too_many_lines)]
pub(super) fn mutants() -> Vec<Mutant> {
    let costs = &["limit::costs_no_other_command"];
    vec![
        Mutant::new(
            "a timeout is told as exit code 124",
            &["limit::kills", "limit::silent_or_loud", "limit::ignored_signals", "limit::code_is_137"],
            hooks().result(|r| {
                if r.timed_out {
                    (r.timed_out, r.exit_code) = (false, 124);
                }
            }),
        ),
        Mutant::new(
            "a timeout has the command's own code",
            &["limit::code_is_137"],
            hooks().result(|r| {
                if r.timed_out {
                    r.exit_code = 0;
                }
            }),
        ),
        Mutant::new("after a timeout the sandbox is of no use", &["limit::kills", "limit::silent_or_loud"], {
            let broken = AtomicBool::new(false);
            let broken = std::sync::Arc::new(broken);
            hooks().exec(move |inner, request| {
                let broken = std::sync::Arc::clone(&broken);
                async move {
                    if broken.load(Ordering::Relaxed) {
                        return Err(Error::new(ErrorKind::Lost));
                    }
                    let result = inner.exec(request).await?;
                    broken.store(result.timed_out, Ordering::Relaxed);
                    Ok(result)
                }
            })
        }),
        Mutant::new(
            "an overrun is taken for an ordinary end",
            &[
                "limit::overrun_kills_watchdogs",
                "limit::overrun_kills_its_parent",
                "limit::overrun_exits_0",
                "limit::overrun_closes_its_output",
                "limit::overrun_traps_term",
                "limit::overrun_by_a_hair",
                "limit::overruns_and_others",
                "hostile::writes_to_others_output",
            ],
            hooks().result(|r| {
                if r.timed_out {
                    (r.timed_out, r.exit_code) = (false, 0);
                }
            }),
        ),
        Mutant::new(
            "only the leader is killed",
            &["limit::kills_the_group", "limit::kills_who_left_the_group"],
            hooks().text(|text| {
                if text.contains("mapfile") {
                    text
                } else {
                    format!("(env -i setsid bash -c {} </dev/null >/dev/null 2>&1 &); sleep 100", quoted(&text))
                }
            }),
        ),
        Mutant::new(
            "who has a session of its own is spared",
            &["limit::kills_who_left_the_group"],
            hooks().text(|text| text.replace("setsid sleep", "env -i setsid -f sleep")),
        ),
        Mutant::new(
            "a timeout is told late",
            &["limit::returns_soon"],
            hooks().exec(|inner, request| async move {
                let result = inner.exec(request).await?;
                if result.timed_out {
                    sleep(Duration::from_secs(4)).await;
                }
                Ok(result)
            }),
        ),
        Mutant::new(
            "limits are rounded up to seconds",
            &["limit::below_a_second"],
            hooks().request(|r| {
                r.limit = r.limit.map(|limit| Duration::from_secs(limit.as_secs_f64().ceil() as u64));
            }),
        ),
        Mutant::new(
            "limits are rounded down to seconds",
            &["limit::below_a_second"],
            hooks().request(|r| {
                r.limit = r.limit.map(|limit| Duration::from_secs(limit.as_secs()).max(Duration::from_millis(250)));
            }),
        ),
        Mutant::new(
            "a timeout loses the output",
            &["limit::keeps_what_was_printed"],
            hooks().result(|r| {
                if r.timed_out {
                    r.stdout = Output::default();
                }
            }),
        ),
        Mutant::new(
            "a watchdog stays behind",
            &["limit::leaves_nothing_behind"],
            hooks().text(|text| format!("sleep 61 </dev/null >/dev/null 2>&1 & disown\n{text}")),
        ),
        Mutant::new(
            "a file stays behind",
            &["limit::leaves_nothing_behind"],
            hooks().text(|text| format!(": > /tmp/.pid-$$\n{text}")),
        ),
        Mutant::new(
            "the watchdog is waited for",
            &["limit::costs_nothing_in_time"],
            hooks().exec(|inner, request| async move {
                let limited = request.limit.is_some();
                let result = inner.exec(request).await;
                if limited {
                    sleep(Duration::from_millis(800)).await;
                }
                result
            }),
        ),
        Mutant::new(
            "stragglers are waited for",
            &["limit::stragglers_do_not_delay"],
            hooks().exec(|inner, request| async move {
                let result = inner.exec(request).await;
                sleep(Duration::from_secs(3)).await;
                result
            }),
        ),
        Mutant::new(
            "stragglers are killed",
            &["limit::stragglers_live_on", "hostile::leaves_junk"],
            hooks().exec(|inner, request| async move {
                let result = inner.exec(request).await;
                kill_all(&inner).await;
                result
            }),
        ),
        Mutant::new("late output is in the next result", &["limit::late_output_stays_out"], {
            let late = AtomicBool::new(false);
            let late = std::sync::Arc::new(late);
            hooks().exec(move |inner, request| {
                let late = std::sync::Arc::clone(&late);
                async move {
                    let printer = matches!(&request.command, Command::Shell(text) if text.starts_with(b"(setsid"));
                    let mut result = inner.exec(request).await?;
                    if late.swap(printer, Ordering::Relaxed) && !printer {
                        result.stdout =
                            Output::new([b"LATE\n", &result.stdout.bytes[..]].concat(), result.stdout.total + 5);
                    }
                    Ok(result)
                }
            })
        }),
        Mutant::new("late output is in the result of a command that lasts", &["limit::late_output_stays_out"], {
            let late = std::sync::Arc::new(AtomicBool::new(false));
            hooks().exec(move |inner, request| {
                let late = std::sync::Arc::clone(&late);
                async move {
                    let lasts = matches!(&request.command, Command::Shell(text) if text.starts_with(b"> /tmp/go"));
                    let mut result = inner.exec(request).await?;
                    if late.swap(true, Ordering::Relaxed) && lasts {
                        result.stderr =
                            Output::new([b"LATE\n", &result.stderr.bytes[..]].concat(), result.stderr.total + 5);
                    }
                    Ok(result)
                }
            })
        }),
        Mutant::new(
            "code 137 is taken for a timeout",
            &["limit::self_kill_is_no_timeout", "limit::overruns_and_others"],
            hooks().result(|r| {
                r.timed_out |= r.exit_code == 137;
            }),
        ),
        Mutant::new(
            "code 124 is taken for a timeout",
            &["limit::exit_124_is_no_timeout", "limit::overruns_and_others"],
            hooks().result(|r| {
                r.timed_out |= r.exit_code == 124;
            }),
        ),
        Mutant::new(
            "there is no grace",
            &["limit::grace_is_for_cleaning_up", "limit::grace_ends"],
            hooks().request(|r| {
                r.grace = Duration::ZERO;
            }),
        ),
        Mutant::new(
            "grace never ends",
            &["limit::grace_ends"],
            hooks().request(|r| {
                if !r.grace.is_zero() {
                    r.limit = None;
                }
            }),
        ),
        Mutant::new(
            "there is always some grace",
            &["limit::no_grace_no_term"],
            hooks().request(|r| {
                r.grace = r.grace.max(Duration::from_millis(500));
            }),
        ),
        Mutant::new("a dropped command runs on", &["drop::kills", "drop::at_every_moment"], hooks().exec(detached)),
        Mutant::new("of many dropped commands one runs on", &["drop::many_in_waves"], {
            let count = AtomicUsize::new(0);
            hooks().exec(move |inner, request| {
                let lost = count.fetch_add(1, Ordering::Relaxed) == 250;
                async move { if lost { detached(inner, request).await } else { inner.exec(request).await } }
            })
        }),
        Mutant::new(
            "a dropped future costs the others",
            &["drop::costs_no_other_command"],
            hooks().exec(|inner, request| async move {
                let mut guard = KillAll(Some(inner.clone()));
                let result = inner.exec(request).await;
                guard.0 = None;
                result
            }),
        ),
        Mutant::new(
            "a timeout costs the others",
            costs,
            hooks().exec(|inner, request| async move {
                let result = inner.exec(request).await;
                if matches!(&result, Ok(r) if r.timed_out) {
                    kill_all(&inner).await;
                }
                result
            }),
        ),
        Mutant::new(
            "a failure costs the others",
            &["exec::failure_costs_no_other_command"],
            hooks().exec(|inner, request| async move {
                let result = inner.exec(request).await;
                if matches!(&result, Ok(r) if r.exit_code != 0) {
                    kill_all(&inner).await;
                }
                result
            }),
        ),
    ]
}
