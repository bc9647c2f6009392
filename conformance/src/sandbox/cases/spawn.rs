//! Commands that one can talk to while they run.

use std::time::{Duration, Instant};

use bytes::Bytes;
use sandbox::{ByteStream, Effect, ErrorKind, Exit, Process, Signal, SpawnRequest};
use tokio::io::AsyncWriteExt;

use super::super::bed::{path, refused, unexpected};
use super::{B, Case, cksum, filler, mark, millis, secs, two_million};
use crate::{Failure, Outcome, ensure, equal, same, within};

const READS: &str = "A spawned command reads what is written to it, and an end of input when that is closed.";
const ARRIVES: &str = "A spawned command's output arrives while it runs.";
const SIGNAL: &str = "A signal reaches a spawned command's process group.";
const WAITS: &str = "Output is not capped: it waits for its reader.";
const ENV: &str = "Variables of the spec reach every command byte for byte.";
const NO_WORKDIR: &str =
    "As [`exec`](Self::exec); what is wrong with the working directory may be told by [`Process::wait`] instead.";
const INVALID: &str = "A request that breaks a rule fails as `InvalidRequest` before anything is started.";
const DRAINED: &str = "Its output waits for the reader: what nobody reads stalls it, so read or drop both streams (a dropped one is drained).";
const DROPPED: &str = "A spawned command is killed when its handle is dropped.";
const ENDS: &str = "Soon after the end of a spawned command is known, or that it is lost, its output ends, or fails where some may be missing, \
     and writing to it fails, whoever holds its streams.";

pub(super) fn cases() -> Vec<Case> {
    let all = vec![
        Case::new("spawn::echo", READS, echo),
        Case::new("spawn::checksums", READS, |bed| checksums_of(bed, &[0, 1, 4095, 4096, 1 << 20, 40 << 20])),
        Case::new("spawn::checksums_of_much", READS, |bed| checksums_of(bed, &[48 << 20, 64 << 20, 100 << 20]))
            .slow()
            .deadline(secs(300)),
        Case::new("spawn::no_input", "A command that nobody can write to has an empty standard input.", no_input),
        Case::new("spawn::output_arrives", ARRIVES, output_arrives),
        Case::new("spawn::conversation", ARRIVES, conversation),
        Case::new("spawn::output_waits", WAITS, output_waits),
        Case::new("spawn::dropped_output", DRAINED, dropped_output),
        Case::new("spawn::long_output_is_whole", WAITS, long_output_is_whole).slow().deadline(secs(300)),
        Case::new(
            "spawn::codes",
            "A spawned command ends with its own exit code, or 128 and the number of the signal that ended it.",
            codes,
        ),
        Case::new("spawn::wait_again", "Waits for the end; may be called again and then answers the same.", wait_again),
        Case::new(
            "spawn::env_and_workdir",
            "Starts a command and answers at once, so that one can write to it, read from it and signal it.",
            env_and_workdir,
        ),
        Case::new("spawn::env_of_the_spec", ENV, env_of_the_spec),
        Case::new("spawn::workdir_that_is_none", NO_WORKDIR, workdir_that_is_none),
        Case::new("spawn::invalid_request_starts_nothing", INVALID, invalid_request),
        Case::new("spawn::signal", SIGNAL, signal),
        Case::new("spawn::signal_after_the_end", "A command that ended already is no error.", signal_after_the_end),
        Case::new("spawn::kill", "Kills the command and what it started, also what left its process group.", kill)
            .races(),
        Case::new("spawn::dropped", DROPPED, dropped).races().profile("faults"),
        Case::new("spawn::streams_end", ENDS, streams_end),
        Case::new("spawn::limit", "A spawned command that ran into its limit was killed and says so.", limit),
        Case::new(
            "spawn::many_at_once",
            "All operations can run at once, through one handle or several.",
            many_at_once,
        )
        .races(),
    ];
    let spawn = |case: Case| if case.profile == "core" { case.profile("spawn") } else { case };
    all.into_iter().map(|case| spawn(case).needs("spawn", |c| c.spawn)).collect()
}

async fn all(stream: ByteStream, what: &str) -> Outcome<Bytes> {
    let bytes = within(what, secs(90), stream.collect(256 << 20)).await?;
    bytes.map_err(|e| unexpected(what, "bytes to the end", &e))
}

async fn end(process: &mut Process) -> Outcome<Exit> {
    within("the end of the command", secs(60), process.wait()).await?.map_err(|e| unexpected("wait", "an end", &e))
}

/// Takes a stream out of a process, leaving an empty one.
fn take(stream: &mut ByteStream) -> ByteStream {
    std::mem::replace(stream, ByteStream::new(futures::stream::empty()))
}

/// Writes `input` and closes, while both outputs are read.
async fn feed(process: &mut Process, input: Bytes) -> Outcome<(Bytes, Bytes, Exit)> {
    let (stdout, stderr) = (take(&mut process.stdout), take(&mut process.stderr));
    let stdin = process.stdin.take().ok_or_else(|| Failure::new("spawn", "a standard input", "none"))?;
    let write = async move {
        let mut stdin = stdin;
        // A command may end without reading everything.
        let _ = stdin.write_all(&input).await;
        let _ = stdin.shutdown().await;
    };
    let (_, stdout, stderr) =
        tokio::join!(within("writing", secs(90), write), all(stdout, "stdout"), all(stderr, "stderr"));
    Ok((stdout?, stderr?, end(process).await?))
}

async fn echo(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for size in [0, 1, 4096, 1 << 20, 9 << 20] {
        let input = filler(size);
        let mut process = sandbox.spawn(SpawnRequest::args(["cat"]).with_stdin()).await?;
        let (stdout, stderr, exit) = feed(&mut process, input.clone()).await?;
        same(&format!("cat of {size} bytes"), &stdout, &input)?;
        equal("its errors and its end", (stderr.len(), exit), (0, Exit::new(0, false)))?;
    }
    Ok(())
}

async fn checksums_of(bed: B, sizes: &'static [usize]) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for &size in sizes {
        let mut process = sandbox.spawn(SpawnRequest::shell("cksum; echo done >&2; exit 3").with_stdin()).await?;
        let input = filler(size);
        let (stdout, stderr, exit) = feed(&mut process, input.clone()).await?;
        let wanted = format!("{} {size}", cksum(&input));
        equal("checksum and length of what arrived", String::from_utf8_lossy(&stdout).trim(), wanted.as_str())?;
        equal("its errors and its end", (&stderr[..], exit.code), (&b"done\n"[..], 3))?;
    }
    Ok(())
}

async fn no_input(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let mut process = sandbox.spawn(SpawnRequest::shell("cat; echo end")).await?;
    ensure(process.stdin.is_none(), "a request without input", "no standard input", || "one".to_owned())?;
    let stdout = take(&mut process.stdout);
    same("its output", &all(stdout, "stdout").await?, "end\n")?;
    equal("its end", end(&mut process).await?, Exit::new(0, false))
}

/// The next pieces of a stream, until they hold `want`.
async fn until(stream: &mut ByteStream, want: &str) -> Outcome {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(want) {
        let piece = within(&format!("the output {want:?}"), secs(10), stream.next()).await?;
        match piece {
            Some(Ok(piece)) => seen.extend_from_slice(&piece),
            other => return Err(Failure::new("output while it runs", want, format!("{seen:?}, then {other:?}"))),
        }
    }
    Ok(())
}

async fn output_arrives(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let begun = Instant::now();
    let mut process = sandbox.spawn(SpawnRequest::shell("echo one; sleep 1; echo two >&2; sleep 60")).await?;
    until(&mut process.stdout, "one\n").await?;
    until(&mut process.stderr, "two\n").await?;
    ensure(begun.elapsed() < secs(20), "output", "as it is printed", || format!("{:?}", begun.elapsed()))?;
    process.kill().await.map_err(|e| unexpected("kill", "success", &e))
}

async fn conversation(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let text = "while read -r a b; do echo $((a * b)); done; echo bye";
    let mut process = sandbox.spawn(SpawnRequest::shell(text).with_stdin()).await?;
    let mut stdin = process.stdin.take().ok_or_else(|| Failure::new("spawn", "a standard input", "none"))?;
    for n in 1..=50 {
        let line = format!("{n} 7\n");
        let written = within("writing a line", secs(10), async {
            stdin.write_all(line.as_bytes()).await?;
            stdin.flush().await
        });
        written.await?.map_err(|e| Failure::new("writing a line", "success", e.to_string()))?;
        until(&mut process.stdout, &format!("{}\n", n * 7)).await?;
    }
    drop(stdin);
    until(&mut process.stdout, "bye\n").await?;
    equal("its end", end(&mut process).await?, Exit::new(0, false))
}

async fn output_waits(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    // More than a network on the way may hold.
    let text = "for i in {1..200}; do seq 1 100000; echo $i > /tmp/so_far; done; > /tmp/ended";
    let mut process = sandbox.spawn(SpawnRequest::shell(text)).await?;
    // Until it stands still, or has come to its end.
    let still = "a=; for i in {1..60}; do sleep 0.5; b=$(cat /tmp/so_far 2>/dev/null); [[ $a != \"$b\" ]] && n=0 || ((n++)); a=$b; \
                 ((n >= 6)) && break; done; ls /tmp/ended 2>/dev/null; true";
    equal("a command that nobody reads, when it stands still", sandbox.ok(still).await?, "")?;
    let mut stdout = take(&mut process.stdout);
    let (mut total, mut last) = (0, Bytes::new());
    while let Some(piece) = within("a piece", secs(30), stdout.next()).await? {
        last = piece.map_err(|e| unexpected("reading", "a piece", &e))?;
        total += last.len();
        if total % 7 == 0 {
            tokio::time::sleep(millis(2)).await;
        }
    }
    equal("bytes of 200 times seq 1 100000", total, 200 * 588_895)?;
    ensure(last.ends_with(b"100000\n"), "its last line", "100000", || {
        crate::short(&last.slice(last.len().saturating_sub(20)..))
    })?;
    equal("its end", end(&mut process).await?, Exit::new(0, false))
}

async fn dropped_output(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let text = "echo up >&2; seq 1 500000; echo after >&2; seq 1 500000 >&2; exit 5";
    let mut process = sandbox.spawn(SpawnRequest::shell(text).with_limit(secs(30))).await?;
    until(&mut process.stderr, "up\n").await?;
    drop(take(&mut process.stdout));
    until(&mut process.stderr, "after\n").await?;
    drop(take(&mut process.stderr));
    equal("the end of a command whose output was dropped", end(&mut process).await?, Exit::new(5, false))
}

/// Ten readers as fast as they can, one after the other, and ten at once that take 2 MB a second.
async fn long_output_is_whole(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let read = |pause: Duration| {
        let sandbox = sandbox.clone();
        async move {
            let mut process = sandbox.spawn(SpawnRequest::shell("seq 1 2000000")).await?;
            let (mut stdout, mut all, begun) = (take(&mut process.stdout), Vec::new(), tokio::time::Instant::now());
            while let Some(piece) = within("a piece of seq 1 2000000", secs(60), stdout.next()).await? {
                all.extend_from_slice(&piece.map_err(|e| unexpected("reading", "a piece", &e))?);
                let megabytes = u32::try_from(all.len() / 1_000_000).unwrap_or(u32::MAX);
                tokio::time::sleep_until(begun + pause * megabytes).await;
            }
            same("seq 1 2000000", &all, two_million())?;
            equal("its end", end(&mut process).await?, Exit::new(0, false))
        }
    };
    for _ in 0..10 {
        read(Duration::ZERO).await?;
    }
    futures::future::join_all((0..10).map(|_| read(millis(500)))).await.into_iter().collect()
}

async fn codes(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for code in [0, 1, 7, 126, 127, 255] {
        let text = format!("exit {code}");
        let program = SpawnRequest::args(["sh".to_owned(), "-c".to_owned(), text.clone()]);
        for request in [SpawnRequest::shell(text.clone()), program] {
            equal(&text, end(&mut sandbox.spawn(request).await?).await?, Exit::new(code, false))?;
        }
    }
    let mut process = sandbox.spawn(SpawnRequest::shell("kill -TERM $$; sleep 5")).await?;
    equal("a signal", end(&mut process).await?, Exit::new(143, false))
}

async fn wait_again(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let mut process = sandbox.spawn(SpawnRequest::shell("echo out; sleep 0.3; exit 5")).await?;
    for _ in 0..3 {
        equal("its end", end(&mut process).await?, Exit::new(5, false))?;
    }
    let stdout = take(&mut process.stdout);
    same("what it printed before", &all(stdout, "stdout").await?, "out\n")
}

async fn env_and_workdir(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let env = sandbox::Env::new().with("MINE", "$(id) '\n").map_err(|e| unexpected("env", "legal", &e))?;
    let begun = Instant::now();
    let request = SpawnRequest::shell("pwd; printf '%s|' \"$MINE\"; echo err >&2; sleep 2");
    let workdir = path("/tmp")?;
    let mut process = sandbox.spawn(request.with_env(env).with_workdir(workdir)).await?;
    ensure(begun.elapsed() < millis(1800), "spawn", "an answer at once", || format!("{:?}", begun.elapsed()))?;
    let (stdout, stderr) = (take(&mut process.stdout), take(&mut process.stderr));
    let (stdout, stderr) = tokio::join!(all(stdout, "stdout"), all(stderr, "stderr"));
    same("stdout", &stdout?, "/tmp\n$(id) '\n|")?;
    same("stderr", &stderr?, "err\n")
}

async fn env_of_the_spec(bed: B) -> Outcome {
    let value = "two  words \n$(id) '\"";
    let legal = |env: Result<sandbox::Env, sandbox::Error>| env.map_err(|e| unexpected("env", "legal", &e));
    let sandbox = bed.provision(&bed.spec().with_env(legal(sandbox::Env::new().with("OF_THE_SPEC", value))?)).await?;
    let text = "printf %s \"$OF_THE_SPEC\"";
    for request in [SpawnRequest::shell(text), SpawnRequest::args(["sh", "-c", text]).with_stdin()] {
        let (stdout, _, exit) = feed(&mut sandbox.spawn(request.with_stdin()).await?, Bytes::new()).await?;
        same("the variable", &stdout, value)?;
        equal("its end", exit, Exit::new(0, false))?;
    }
    let mine = legal(sandbox::Env::new().with("OF_THE_SPEC", "mine"))?;
    let (stdout, ..) =
        feed(&mut sandbox.spawn(SpawnRequest::shell(text).with_env(mine).with_stdin()).await?, Bytes::new()).await?;
    same("the variable where the request has another value", &stdout, "mine")
}

async fn workdir_that_is_none(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("touch /tmp/file").await?;
    let (missing, file) = (ErrorKind::FileNotFound, ErrorKind::NotDirectory);
    for (name, kind) in [("/tmp/no", missing), ("/tmp/no/no", missing), ("/tmp/file", file), ("/tmp/file/no", file)] {
        let request = SpawnRequest::shell("touch /tmp/started").with_workdir(path(name)?).with_limit(secs(20));
        let ended = match within("spawn", secs(60), sandbox.inner.spawn(request)).await? {
            Ok(mut process) => within("the end of the command", secs(60), process.wait()).await?,
            Err(error) => Err(error),
        };
        let error = refused(&format!("a command in {name}"), ended, kind)?;
        let told = (error.path().map(ToString::to_string), error.effect());
        equal("its path and effect", told, (Some(name.to_owned()), Effect::None))?;
    }
    equal("traces of a start", sandbox.ok("ls /tmp/started 2>/dev/null; true").await?, "")
}

async fn invalid_request(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let touch = || SpawnRequest::shell("touch /tmp/started");
    for (what, request) in [
        ("a limit of 0", touch().with_limit(secs(0))),
        ("a limit of years", touch().with_limit(sandbox::ExecRequest::MAX_LIMIT * 2)),
        ("a text with NUL", SpawnRequest::shell("touch /tmp/started\0")),
        ("no arguments", SpawnRequest::args(Vec::<Vec<u8>>::new())),
        ("an argument with NUL", SpawnRequest::args(["touch", "/tmp/started\0"])),
    ] {
        let spawned = within("spawn", secs(60), sandbox.inner.spawn(request)).await?;
        refused(what, spawned.map(drop), ErrorKind::InvalidRequest)?;
    }
    equal("traces of a start", sandbox.ok("ls /tmp/started 2>/dev/null; true").await?, "")
}

async fn signal(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    // The parent ends after its child: what is said after the end is nobody's.
    let text = "trap 'wait; echo parent; exit 9' USR1; (trap 'echo child; exit' USR1; echo up; while :; do sleep 0.05; done) & \
                while :; do sleep 0.05; done";
    let mut process = sandbox.spawn(SpawnRequest::shell(text)).await?;
    until(&mut process.stdout, "up\n").await?;
    process.signal(Signal::User1).await.map_err(|e| unexpected("signal", "success", &e))?;
    let stdout = take(&mut process.stdout);
    let said = String::from_utf8_lossy(&all(stdout, "stdout").await?).into_owned();
    ensure(said.contains("parent") && said.contains("child"), "SIGUSR1", "parent and child", || said.clone())?;
    equal("its end", end(&mut process).await?, Exit::new(9, false))?;
    for (signal, code) in [(Signal::Terminate, 143), (Signal::Interrupt, 130), (Signal::Hangup, 129)] {
        let mut process = sandbox.spawn(SpawnRequest::shell("exec bash -c 'echo up; exec sleep 60'")).await?;
        until(&mut process.stdout, "up\n").await?;
        process.signal(signal).await.map_err(|e| unexpected("signal", "success", &e))?;
        equal(signal.name(), end(&mut process).await?, Exit::new(code, false))?;
    }
    Ok(())
}

async fn signal_after_the_end(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let mut process = sandbox.spawn(SpawnRequest::shell("exit 4")).await?;
    end(&mut process).await?;
    for signal in [Signal::Terminate, Signal::Kill, Signal::User1] {
        let sent = within("signal", secs(20), process.signal(signal)).await?;
        sent.map_err(|e| unexpected("a signal after the end", "success", &e))?;
    }
    equal("its end", end(&mut process).await?, Exit::new(4, false))
}

async fn kill(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    let text = format!("trap '' TERM; sleep {mark} & setsid sleep {mark} & echo up; sleep {mark}");
    let mut process = sandbox.spawn(SpawnRequest::shell(text)).await?;
    until(&mut process.stdout, "up\n").await?;
    sandbox.all_marked(&mark, 3, secs(10)).await?;
    // Twice, before anybody has heard of the end.
    for _ in 0..2 {
        within("kill", secs(20), process.kill()).await?.map_err(|e| unexpected("kill", "success", &e))?;
    }
    equal("its end", end(&mut process).await?, Exit::new(137, false))?;
    within("kill", secs(20), process.kill()).await?.map_err(|e| unexpected("a kill after the end", "success", &e))?;
    equal("its end, again", end(&mut process).await?, Exit::new(137, false))?;
    sandbox.unmarked(&mark, secs(5)).await
}

async fn dropped(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    let text = format!("sleep {mark} & echo up; sleep {mark}");
    let mut process = sandbox.spawn(SpawnRequest::shell(text.clone())).await?;
    until(&mut process.stdout, "up\n").await?;
    drop(process);
    sandbox.unmarked(&mark, secs(5)).await?;
    for moment in [0, 1, 3, 10, 30, 100] {
        let spawned =
            tokio::time::timeout(millis(moment), sandbox.inner.spawn(SpawnRequest::shell(text.clone()))).await;
        drop(spawned);
    }
    sandbox.unmarked(&mark, secs(10)).await
}

async fn streams_end(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    // A friend holds all three, out of the killer's sight.
    let held = format!("exec 3<&0; env -i setsid sleep {mark} <&3 & sleep 0.3");
    for (what, text) in [
        ("the end of a command", format!("{held}; exit 3")),
        ("the end of whatever started it", format!("{held}; kill -9 $PPID; sleep {mark}")),
        ("the limit of a command that stops everything", format!("{held}; kill -STOP -1; exec sleep {mark}")),
    ] {
        let request = SpawnRequest::shell(text).with_limit(secs(3)).with_stdin();
        let mut process = sandbox.spawn(request).await?;
        let (stdout, stderr) = (take(&mut process.stdout), take(&mut process.stderr));
        let stdin = process.stdin.take().ok_or_else(|| Failure::new("spawn", "a standard input", "none"))?;
        let write = async move {
            let (mut stdin, piece) = (stdin, filler(1 << 20));
            while stdin.write_all(&piece).await.is_ok() {}
        };
        // However it comes out: only that it does.
        drop(within(what, secs(20), process.wait()).await?);
        let all = async { tokio::join!(write, stdout.finish(), stderr.finish()) };
        let ends = within(&format!("the ends of the streams, after {what}"), secs(20), all).await?;
        // Here too: that they end, not how.
        drop(ends);
    }
    Ok(())
}

async fn limit(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    let text = format!("echo before; sleep {mark} & setsid sleep {mark} & sleep {mark}");
    let mut process = sandbox.spawn(SpawnRequest::shell(text).with_limit(secs(1))).await?;
    let begun = Instant::now();
    equal("its end", end(&mut process).await?, Exit::new(137, true))?;
    ensure(begun.elapsed() < secs(4), "a limit of 1 s", "an end soon after", || format!("{:?}", begun.elapsed()))?;
    let stdout = take(&mut process.stdout);
    same("what it printed", &all(stdout, "stdout").await?, "before\n")?;
    sandbox.unmarked(&mark, secs(5)).await
}

async fn many_at_once(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let runs = (0..16).map(|n| {
        let sandbox = sandbox.clone();
        async move {
            let mut process = sandbox.spawn(SpawnRequest::shell("sleep 1; cat; exit 6").with_stdin()).await?;
            let (stdout, _, exit) = feed(&mut process, Bytes::from(format!("{n}\n"))).await?;
            same("its own output", &stdout, format!("{n}\n"))?;
            equal("its own end", exit, Exit::new(6, false))
        }
    });
    let begun = Instant::now();
    for outcome in within("16 commands at once", secs(100), futures::future::join_all(runs)).await? {
        outcome?;
    }
    ensure(begun.elapsed() < secs(14), "16 commands of one second each", "side by side", || {
        format!("{:?}", begun.elapsed())
    })
}
