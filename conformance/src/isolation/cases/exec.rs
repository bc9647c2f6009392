//! Running commands inside.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Instant;

use futures::future::join_all;
use isolation::{Cancel, ErrorKind, ExecSpec, ExecStatus, NodePath, OpCtx, node_path};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::bed::{mark, none, ok, refused, sh};
use super::{B, Case, millis, secs};
use crate::{Failure, Outcome, ensure, equal, within};

const CODES: &str = "Every exit code comes back as data, exactly.";
const MISSING: &str = "A program that does not exist, or is none, is reported as that and never as a broken transport.";
const ARGS: &str = "Arguments arrive verbatim, whatever they contain.";
const GIVEN: &str = "Input, environment and working directory arrive exactly.";
const BARE: &str = "Without more said, a command has a clean environment, no input, and `/` as its directory.";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "exec::output_is_untouched",
            "Output is untouched, and its text form loses only the newlines at its end.",
            output_is_untouched,
        ),
        Case::new("exec::streams_are_apart", "Standard output and standard error are kept apart.", streams_are_apart),
        Case::new("exec::codes_are_data", CODES, codes_are_data),
        Case::new(
            "exec::signals_are_told",
            "Death by a signal is reported as that signal and never as success.",
            signals_are_told,
        ),
        Case::new("exec::missing_program", MISSING, missing_program),
        Case::new("exec::no_program", MISSING, no_program),
        Case::new("exec::arguments_are_verbatim", ARGS, arguments_are_verbatim),
        Case::new("exec::long_arguments", ARGS, long_arguments),
        Case::new(
            "exec::invalid_is_refused",
            "A command without a program, or with a NUL, is refused before anything is spawned.",
            invalid_is_refused,
        ),
        Case::new(
            "exec::long_output_is_dropped",
            "Output beyond the limit is dropped and reported, and never blocks the command.",
            long_output_is_dropped,
        ),
        Case::new(
            "exec::timeout_kills",
            "A command that runs past its time is killed, reported as `TimedOut`, and leaves no process inside.",
            timeout_kills,
        ),
        Case::new("exec::cancel_ends_it", "When the call is cancelled, its command ends inside too.", cancel_ends_it),
        Case::new(
            "exec::outputs_do_not_mix",
            "Commands that run at the same time never mix their outputs.",
            outputs_do_not_mix,
        ),
        Case::new("exec::input_arrives", GIVEN, input_arrives),
        Case::new("exec::environment_arrives", GIVEN, environment_arrives),
        Case::new("exec::directory_arrives", GIVEN, directory_arrives),
        Case::new("exec::environment_is_clean", BARE, environment_is_clean),
        Case::new("exec::directory_is_the_root", BARE, directory_is_the_root),
        Case::new("exec::input_is_empty", BARE, input_is_empty),
        Case::new("exec::user", "A command runs as the user that was asked for.", user)
            .needs("exec user", |c| c.exec_user),
        Case::new(
            "exec::unknown_slot",
            "A command in a slot that was never prepared fails as `UnknownSlot`.",
            unknown_slot,
        ),
        Case::new("exec::stopped_slot", "A command in a slot that does not run fails as `NotRunning`.", stopped_slot),
        Case::new(
            "exec::met_by_a_stop",
            "A command met by a start, a stop or a destroy ends with a result or an error, and never hangs.",
            met_by_a_stop,
        ),
        Case::new(
            "exec::stream_is_talked_to",
            "A command that is talked to reads and answers while it runs, and its status comes at the end.",
            stream_is_talked_to,
        )
        .needs("stream exec", |c| c.stream_exec),
        Case::new(
            "exec::dropped_stream_ends",
            "Dropping the handle of a running command ends the command.",
            dropped_stream_ends,
        )
        .needs("stream exec", |c| c.stream_exec),
    ]
}

async fn output_is_untouched(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    for (script, raw, text) in [
        (r"printf 'a\n\n'", &b"a\n\n"[..], "a"),
        (r"printf '\n\n'", b"\n\n", ""),
        (r"printf 'a \n'", b"a \n", "a "),
        (r"printf 'a\r\n'", b"a\r\n", "a\r"),
        (r"printf '\na\t'", b"\na\t", "\na\t"),
        (r"printf 'a\000\377b'", b"a\0\xffb", "a\0\u{fffd}b"),
    ] {
        let output = ok(script, bed.exec(&slot, &sh(script)).await)?;
        equal(script, &output.stdout[..], raw)?;
        equal(&format!("the text of {script}"), output.stdout_text().as_str(), text)?;
    }
    Ok(())
}

async fn streams_are_apart(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let output = ok("a command", bed.exec(&slot, &sh("echo out; echo err >&2; echo out2")).await)?;
    equal("its standard output", &output.stdout[..], &b"out\nout2\n"[..])?;
    equal("its standard error", &output.stderr[..], &b"err\n"[..])
}

async fn codes_are_data(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    for code in [0, 1, 2, 42, 125, 126, 127, 137, 143, 255] {
        let script = format!("exit {code}");
        let output = ok(&script, bed.exec(&slot, &sh(&script)).await)?;
        equal(&script, output.status, ExecStatus::Exited(code))?;
    }
    Ok(())
}

async fn signals_are_told(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    for (name, number) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("HUP", 1)] {
        let script = format!("ulimit -c 0; kill -{name} $$; sleep 5");
        let status = ok(&script, bed.exec(&slot, &sh(&script)).await)?.status;
        if bed.harness().caps().signal_status {
            equal(&script, status, ExecStatus::Signaled(number))?;
        } else {
            equal(&format!("the shell code of {script}"), status.shell_code(), 128 + number)?;
        }
    }
    Ok(())
}

fn not_found(step: &str, result: isolation::Result<isolation::ExecOutput>) -> Outcome {
    match result {
        Err(error) if error.kind() == ErrorKind::CommandNotFound => Ok(()),
        Ok(output) if matches!(output.status, ExecStatus::Exited(126 | 127)) => Ok(()),
        other => Err(Failure::new(step, "`CommandNotFound`, or exit code 126 or 127", crate::short(&other))),
    }
}

async fn missing_program(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    for program in ["no-such-program-anywhere", "/no/such/program"] {
        not_found(program, bed.exec(&slot, &ExecSpec::new([program])).await)?;
    }
    Ok(())
}

async fn no_program(bed: B) -> Outcome {
    let (slot, root) = bed.up().await?;
    let file = node_path!("/etc/no-program");
    ok("writing a file", root.fs().and_then(|fs| fs.write_atomic(&file, 0o644, b"x")))?;
    for path in [file, node_path!("/etc")] {
        not_found(&path.to_string(), bed.exec(&slot, &ExecSpec::new([root.inside(&path)])).await)?;
    }
    Ok(())
}

async fn arguments_are_verbatim(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let odd: Vec<OsString> = [
        &b"two words"[..],
        b"'single' \"double\"",
        b"$HOME ${HOME} $(id) `id`",
        b"%n %% %i",
        b"*",
        b"line\nfeed\n",
        b"-x",
        b"--help",
        b"--",
        b"",
        b"\\n\\",
        b"\xff\xfe",
        b"a;b|c&d>e",
        b"{1..3}",
        b"~",
        b"#",
    ]
    .into_iter()
    .map(|text| OsString::from_vec(text.to_vec()))
    .collect();
    let mut argv: Vec<OsString> =
        ["sh", "-c", r#"for a in "$@"; do printf '%s\0' "$a"; done"#, "sh"].map(Into::into).to_vec();
    argv.extend(odd.iter().cloned());
    let output = ok("a command with odd arguments", bed.exec(&slot, &ExecSpec::new(argv)).await)?;
    let want: Vec<u8> = odd.iter().flat_map(|arg| [arg.clone().into_vec(), vec![0]].concat()).collect();
    equal("its arguments, as it saw them", &output.stdout[..], &want[..])
}

async fn long_arguments(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let long = "x".repeat(100 * 1024);
    let output = ok("a command", bed.exec(&slot, &ExecSpec::new(["sh", "-c", "printf %s \"$1\"", "sh", &long])).await)?;
    equal("the length of an argument of 100 KiB", output.stdout.len(), long.len())
}

async fn invalid_is_refused(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let before = bed.footprint().await;
    for argv in [vec![], vec![""], vec!["", "x"], vec!["a\0b"], vec!["touch", "/tmp/\0"]] {
        let step = format!("the command {argv:?}");
        refused(&step, bed.exec(&slot, &ExecSpec::new(argv)).await, ErrorKind::InvalidInput)?;
    }
    none("after the refused commands", "no change", &before.changes(&bed.footprint().await))
}

async fn long_output_is_dropped(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let script = "head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2; exit 7";
    let spec = sh(script).with_max_output(1_000_000);
    let output = within(script, secs(40), bed.exec(&slot, &spec)).await?;
    let output = ok(script, output)?;
    let kept = (output.stdout.len(), output.stderr.len());
    equal("what is kept, and whether it says so", (kept, output.truncated), ((1_000_000, 1_000_000), true))?;
    equal("its end", output.status, ExecStatus::Exited(7))?;
    let output = ok("a short output", bed.exec(&slot, &sh("echo short").with_max_output(6)).await)?;
    equal("whether a short output is truncated", output.truncated, false)
}

async fn timeout_kills(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let (mark, begun) = (mark(), Instant::now());
    let script = format!("trap '' TERM; echo before; sleep {mark} & sleep {mark}");
    let output = ok("a command", bed.exec(&slot, &sh(&script).with_timeout(millis(500))).await)?;
    equal("its end", output.status, ExecStatus::TimedOut)?;
    equal("what it said before", output.stdout_text().as_str(), "before")?;
    let took = begun.elapsed();
    ensure(took < secs(3), "waiting for a command of 500 ms", "at most 2.5 s more", || format!("{took:?}"))?;
    bed.gone("after the timeout", &mark).await
}

async fn cancel_ends_it(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    for by_drop in [true, false] {
        let (mark, cancel) = (mark(), Cancel::new());
        let ctx = bed.ctx().with_cancel(cancel.clone());
        let spec = ExecSpec::new(["sleep", mark.as_str()]);
        {
            let call = bed.backend().exec(&ctx, &slot, &spec);
            tokio::pin!(call);
            tokio::select! {
                ended = &mut call => {
                    return Err(Failure::new("a command of half a minute", "that it runs", crate::short(&ended)));
                }
                seen = bed.seen(&mark) => seen?,
            }
            if !by_drop {
                cancel.cancel();
                let ended = within("a cancelled call", secs(5), &mut call).await?;
                refused("a cancelled call", ended, ErrorKind::Cancelled)?;
            }
        }
        bed.gone(if by_drop { "after the call was dropped" } else { "after the call was cancelled" }, &mark).await?;
    }
    Ok(())
}

async fn outputs_do_not_mix(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let before = bed.footprint().await;
    let calls = (0..32).map(|n| {
        let (bed, slot) = (Arc::clone(&bed), slot.clone());
        async move {
            let script = format!("i=0; while [ $i -lt 20 ]; do echo {n}; echo e{n} >&2; i=$((i+1)); done; exit {n}");
            let output = ok("one of 32 commands at once", bed.exec(&slot, &sh(&script)).await)?;
            let want = (format!("{n}\n").repeat(20), format!("e{n}\n").repeat(20), ExecStatus::Exited(n));
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            equal(&format!("command {n} of 32"), (text(&output.stdout), text(&output.stderr), output.status), want)
        }
    });
    join_all(calls).await.into_iter().collect::<Outcome<Vec<()>>>()?;
    none("after 32 commands", "nothing left of them", &before.changes(&bed.footprint().await))
}

async fn input_arrives(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let input: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    let output = ok("cat", bed.exec(&slot, &ExecSpec::new(["cat"]).with_stdin(input.clone())).await)?;
    ensure(output.stdout == input, "the input of `cat`, as it came back", "the same bytes", || {
        format!("{} bytes of {}", output.stdout.len(), input.len())
    })
}

async fn environment_arrives(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let odd = "a b\n$HOME %n \"q\" 'r' \\";
    let spec = sh("printf '%s|%s' \"$ODD\" \"$EMPTY\"").with_env("ODD", odd).with_env("EMPTY", "");
    let output = ok("a command", bed.exec(&slot, &spec).await)?;
    equal("its variables", output.stdout_text(), format!("{odd}|"))
}

async fn directory_arrives(bed: B) -> Outcome {
    let (slot, root) = bed.up().await?;
    let dir = node_path!("/etc/a dir");
    ok("making a directory", root.fs().and_then(|fs| fs.create_dir_all(&dir, 0o755)))?;
    let output = ok("pwd", bed.exec(&slot, &ExecSpec::new(["pwd"]).with_cwd(dir.clone())).await)?;
    equal("its directory", output.stdout_text(), root.inside(&dir).display().to_string())
}

async fn environment_is_clean(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let output = ok("env", bed.exec(&slot, &ExecSpec::new(["env", "-0"])).await)?;
    let text = output.stdout_text();
    let has = |entry: &str| text.split('\0').any(|other| other == entry);
    ensure(has("HOME=/root") && has("LANG=C.UTF-8"), "the environment", "HOME=/root, LANG=C.UTF-8", || text.clone())?;
    let ours = |name: &str| name.starts_with("CARGO") || name.starts_with("RUST");
    let leaked =
        text.split('\0').filter_map(|entry| entry.split_once('=')).map(|(name, _)| name).find(|name| ours(name));
    ensure(leaked.is_none(), "the environment", "nothing of the caller's", || leaked.unwrap_or_default().to_owned())
}

async fn directory_is_the_root(bed: B) -> Outcome {
    let (slot, root) = bed.up().await?;
    equal("pwd", bed.sh(&slot, "pwd").await?, root.inside(&NodePath::root()).display().to_string())
}

async fn input_is_empty(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let output = within("cat without input", secs(10), bed.exec(&slot, &ExecSpec::new(["cat"]))).await?;
    equal("cat without input", ok("cat", output)?.stdout.len(), 0)
}

async fn user(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let output = ok("id", bed.exec(&slot, &ExecSpec::new(["id", "-un"]).with_user("nobody")).await)?;
    equal("id", output.stdout_text().as_str(), "nobody")
}

async fn unknown_slot(bed: B) -> Outcome {
    refused("a command", bed.exec(&bed.a(), &ExecSpec::new(["true"])).await, ErrorKind::UnknownSlot).map(drop)
}

async fn stopped_slot(bed: B) -> Outcome {
    let slot = bed.a();
    bed.prepare(&slot).await?;
    refused("a command before the start", bed.exec(&slot, &ExecSpec::new(["true"])).await, ErrorKind::NotRunning)?;
    bed.start(&slot).await?;
    bed.stop(&slot).await?;
    refused("a command after the stop", bed.exec(&slot, &ExecSpec::new(["true"])).await, ErrorKind::NotRunning)
        .map(drop)
}

async fn met_by_a_stop(bed: B) -> Outcome {
    let slot = bed.a();
    bed.prepare(&slot).await?;
    for destroy in [false, true] {
        let quick = ExecSpec::new(["true"]);
        let early = bed.exec(&slot, &quick);
        let ctx = bed.ctx();
        let (early, started) = within("a command met by a start", secs(30), async {
            tokio::join!(early, bed.backend().start(&ctx, &slot))
        })
        .await?;
        drop(early);
        ok("starting beside a command", started)?;
        let command = sh("sleep 20");
        let long = bed.exec(&slot, &command);
        let end = async {
            tokio::time::sleep(millis(200)).await;
            if destroy { bed.destroy(&slot).await } else { bed.stop(&slot).await }
        };
        let (_, ended) = within("a command met by a stop", secs(15), async { tokio::join!(long, end) }).await?;
        ended?;
        let late = within("a command after it", secs(15), bed.exec(&slot, &ExecSpec::new(["true"]))).await?;
        ensure(late.is_err(), "a command in a slot that does not run", "an error", || crate::short(&late))?;
    }
    Ok(())
}

async fn stream_is_talked_to(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let script = sh("while read -r line; do echo \"got $line\"; done; exit 5");
    let mut stream = ok("a stream", bed.backend().exec_stream(&bed.ctx(), &slot, &script).await)?;
    let (Some(mut input), Some(mut output)) = (stream.stdin.take(), stream.stdout.take()) else {
        return Err(Failure::new("a stream", "an input and an output", crate::short(&stream)));
    };
    let io = |step: &str, error: std::io::Error| Failure::new(step, "success", error.to_string());
    for word in ["one", "two"] {
        let line = format!("{word}\n");
        input.write_all(line.as_bytes()).await.map_err(|error| io("writing to it", error))?;
        input.flush().await.map_err(|error| io("writing to it", error))?;
        let mut answer = vec![0; line.len() + 4];
        let read = within("its answer", secs(10), output.read_exact(&mut answer)).await?;
        read.map_err(|error| io("reading from it", error))?;
        equal("its answer", String::from_utf8_lossy(&answer).into_owned(), format!("got {line}"))?;
    }
    drop(input);
    let status = within("its end", secs(10), stream.wait()).await?;
    equal("its end", ok("waiting for it", status)?, ExecStatus::Exited(5))
}

async fn dropped_stream_ends(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let mark = mark();
    let command = ExecSpec::new(["sleep", mark.as_str()]);
    let stream = ok("a stream", bed.backend().exec_stream(&OpCtx::new(secs(20)), &slot, &command).await)?;
    bed.seen(&mark).await?;
    drop(stream);
    bed.gone("after the handle was dropped", &mark).await
}
