//! Running commands: streams, codes, variables, arguments.

use std::time::Instant;

use sandbox::{Effect, ErrorKind, ExecRequest};

use super::super::bed::{path, refused};
use super::super::subject::told;
use super::{B, Case, mark, millis, secs, two_million};
use crate::{Outcome, ensure, equal, same};

const APART: &str = "Standard output and standard error are captured apart, byte for byte.";
const CODE: &str =
    "The exit code of the command is the exit code of the result; a command that fails is a result, not an error.";
const WORKDIR: &str = "A command starts in the working directory.";
const ENV: &str = "Variables of the spec reach every command byte for byte.";
const ONE_REQUEST: &str = "Variables and the working directory of one request apply to that command alone.";
const NO_WORKDIR: &str = "A working directory that does not exist fails as `FileNotFound` and one that is no directory as `NotDirectory`, with its path and before anything is started.";
const ARGS: &str = "Arguments reach the program byte for byte; no shell reads them.";
const CAP: &str = "Of each stream the first bytes up to the cap are kept and the rest is drained, so that the command runs to its end.";
const ELAPSED: &str = "How long it ran: a command is timed from its start to its end, on the caller's clock.";
const INVALID: &str = "A request that breaks a rule fails as `InvalidRequest` before anything is started.";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("exec::streams_are_apart", APART, streams_are_apart),
        Case::new("exec::output_is_bytes", APART, output_is_bytes),
        Case::new("exec::long_output_is_whole", APART, long_output_is_whole).races().repeat(5),
        Case::new("exec::slow_output_is_whole", APART, slow_output_is_whole),
        Case::new("exec::failure_is_a_result", CODE, failure_is_a_result),
        Case::new("exec::codes_pass_through", CODE, codes_pass_through),
        Case::new(
            "exec::signal_is_128_and_its_number",
            "The exit code: 0 to 255, or 128 and the signal's number if a signal ended it.",
            signal_is_128_and_its_number,
        ),
        Case::new("exec::starts_in_the_workdir", WORKDIR, starts_in_the_workdir),
        Case::new("exec::workdir_of_the_spec", WORKDIR, workdir_of_the_spec),
        Case::new("exec::env_is_exact", ENV, super::inputs::env_is_exact),
        Case::new("exec::env_of_every_size", ENV, super::inputs::env_of_every_size),
        Case::new("exec::request_env_is_for_one_command", ONE_REQUEST, super::inputs::request_env_is_for_one_command),
        Case::new("exec::request_workdir_is_for_one_command", ONE_REQUEST, request_workdir_is_for_one_command),
        Case::new("exec::workdir_that_is_none", NO_WORKDIR, workdir_that_is_none),
        Case::new("exec::nothing_carries_over", ONE_REQUEST, nothing_carries_over),
        Case::new("exec::arguments_are_exact", ARGS, super::inputs::arguments_are_exact),
        Case::new("exec::arguments_are_not_options", ARGS, super::inputs::arguments_are_not_options),
        Case::new("exec::long_texts", "A shell text of any length up to the bound runs whole.", long_texts),
        Case::new("exec::stdin_is_empty", "The standard input of a command is empty.", stdin_is_empty),
        Case::new("exec::cap_drains", CAP, cap_drains),
        Case::new("exec::cap_of_the_request", CAP, cap_of_the_request),
        Case::new("exec::prints_100_mib", CAP, prints_100_mib),
        Case::new("exec::runs_once", "A command is never run twice.", runs_once).races(),
        Case::new("exec::elapsed", ELAPSED, elapsed),
        Case::new("exec::invalid_request_starts_nothing", INVALID, invalid_request_starts_nothing),
    ]
}

async fn streams_are_apart(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let result = sandbox.sh("echo out; echo err >&2; echo out2").await?;
    same("stdout", &result.stdout.bytes, b"out\nout2\n")?;
    same("stderr", &result.stderr.bytes, b"err\n")?;
    equal("stdout in all", result.stdout.total, 9)?;
    ensure(result.success() && !result.truncated(), "the result", "exit code 0, whole", || told(&result))
}

async fn output_is_bytes(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let result = sandbox.sh(r"printf '\377\376\000\r\n\303'; printf '\200\000\n' >&2").await?;
    same("stdout", &result.stdout.bytes, b"\xff\xfe\0\r\n\xc3")?;
    same("stderr", &result.stderr.bytes, b"\x80\0\n")?;
    // A character in two pieces: the pause is what parts them.
    let result = sandbox.sh(r"printf 'a\342\202'; sleep 0.3; printf '\254b'").await?;
    same("a character that comes in two pieces", &result.stdout.bytes, "a\u{20ac}b")
}

async fn long_output_is_whole(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let request = ExecRequest::shell("seq 1 2000000").with_caps(16 << 20);
    let result = sandbox.exec(request).await?;
    equal("bytes of seq 1 2000000", result.stdout.total, 14_888_896)?;
    same("seq 1 2000000", &result.stdout.bytes, two_million())
}

/// Slow by design: what comes a second apart.
async fn slow_output_is_whole(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let text = "for i in 1 2 3 4 5; do echo $i; echo e$i >&2; sleep 1; done";
    let program = ExecRequest::args(["bash", "-c", text]);
    let (shell, program) = tokio::join!(sandbox.sh(text), sandbox.exec(program));
    for result in [shell?, program?] {
        same("five lines, a second apart", &result.stdout.bytes, "1\n2\n3\n4\n5\n")?;
        same("their errors", &result.stderr.bytes, "e1\ne2\ne3\ne4\ne5\n")?;
    }
    Ok(())
}

async fn failure_is_a_result(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let result = sandbox.sh("echo before; exit 7").await?;
    equal("exit code of exit 7", result.exit_code, 7)?;
    same("stdout", &result.stdout.bytes, b"before\n")?;
    ensure(!result.timed_out, "exit 7", "not timed out", || told(&result))
}

async fn codes_pass_through(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for code in [0, 1, 2, 7, 10, 14, 20, 125, 126, 127, 128, 130, 137, 200, 255] {
        let result = sandbox.sh(format!("exit {code}")).await?;
        equal(&format!("exit code of exit {code}"), result.exit_code, code)?;
        ensure(!result.timed_out, "a quick exit", "not timed out", || told(&result))?;
        let program =
            sandbox.exec(ExecRequest::args(["sh".to_owned(), "-c".to_owned(), format!("exit {code}")])).await?;
        equal(&format!("exit code of the program sh -c 'exit {code}'"), program.exit_code, code)?;
    }
    let missing = sandbox.exec(ExecRequest::args(["no-such-program-here"])).await?;
    equal("exit code of a program that is not there", missing.exit_code, 127)?;
    let missing = sandbox.sh("no-such-program-here").await?;
    equal("exit code of a command that is not there", missing.exit_code, 127)
}

async fn signal_is_128_and_its_number(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for (signal, code) in [("TERM", 143), ("SEGV", 139), ("HUP", 129), ("KILL", 137)] {
        let result = sandbox.sh(format!("ulimit -c 0; kill -{signal} $$; sleep 5")).await?;
        equal(&format!("exit code after SIG{signal}"), result.exit_code, code)?;
        ensure(!result.timed_out, "a signal of its own", "not timed out", || told(&result))?;
    }
    Ok(())
}

async fn starts_in_the_workdir(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    equal("pwd", sandbox.ok("pwd -P").await?, "/workspace\n")?;
    let result = sandbox.exec(ExecRequest::args(["pwd"])).await?;
    same("the program pwd", &result.stdout.bytes, b"/workspace\n")
}

async fn workdir_of_the_spec(bed: B) -> Outcome {
    for workdir in ["/home/some one", "/srv/-d/$(id)", "/w/'\"x"] {
        let spec = bed.spec_of(&bed.fresh_session()).with_workdir(path(workdir)?);
        let sandbox = bed.provision(&spec).await?;
        equal("pwd", sandbox.ok("pwd -P; touch here").await?, format!("{workdir}\n"))?;
    }
    Ok(())
}

async fn request_workdir_is_for_one_command(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("mkdir -p '/tmp/a b/$(id)'").await?;
    let request = ExecRequest::shell("pwd -P").with_workdir(path("/tmp/a b/$(id)")?);
    same("pwd", &sandbox.exec(request).await?.stdout.bytes, b"/tmp/a b/$(id)\n")?;
    let request = ExecRequest::args(["pwd"]).with_workdir(path("/tmp")?);
    same("the program pwd", &sandbox.exec(request).await?.stdout.bytes, b"/tmp\n")?;
    equal("pwd of the next command", sandbox.ok("pwd -P").await?, "/workspace\n")
}

async fn workdir_that_is_none(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("touch /tmp/file").await?;
    let (missing, file) = (ErrorKind::FileNotFound, ErrorKind::NotDirectory);
    for (name, kind) in [("/tmp/no", missing), ("/tmp/no/no", missing), ("/tmp/file", file), ("/tmp/file/no", file)] {
        let request = ExecRequest::shell("touch /tmp/started").with_workdir(path(name)?).with_limit(secs(20));
        let error = refused(&format!("a command in {name}"), sandbox.try_exec(request).await?, kind)?;
        let told = (error.path().map(ToString::to_string), error.effect());
        equal("its path and effect", told, (Some(name.to_owned()), Effect::None))?;
    }
    equal("traces of a start", sandbox.ok("ls /tmp/started 2>/dev/null; true").await?, "")
}

async fn nothing_carries_over(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let first = "cd /; export LEFT=1; left() { :; }; alias l=ls; set -e -u -f; umask 077; trap 'echo trap' EXIT; \
                 exec 7>/dev/null; ulimit -n 64; shopt -s nullglob";
    sandbox.sh(first).await?;
    let look = "pwd; echo ${LEFT-none}; type -t left; echo $-; umask; trap -p; shopt nullglob; [[ -e /proc/$$/fd/7 ]] && echo 7; \
                ulimit -n";
    let after = sandbox.sh(look).await?;
    let fresh = bed.provision(&bed.spec_of(&bed.fresh_session())).await?.sh(look).await?;
    equal("what the next command finds", after.stdout.to_string_lossy(), fresh.stdout.to_string_lossy())
}

async fn long_texts(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for length in [4 << 10, 16 << 10, 130_000, 131_071, 131_072, 200 << 10, 1 << 20, ExecRequest::MAX_SHELL] {
        let (head, tail) = ("echo head; : '", "'; echo tail");
        let text = format!("{head}{}{tail}", "x".repeat(length - head.len() - tail.len()));
        let result = sandbox.sh(text).await?;
        ensure(
            result.success() && result.stdout.bytes == "head\ntail\n",
            &format!("a text of {length} bytes"),
            "both ends run",
            || told(&result),
        )?;
    }
    Ok(())
}

async fn stdin_is_empty(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let begun = Instant::now();
    equal("cat", sandbox.ok("cat; echo $?; read -r x; echo $?").await?, "0\n1\n")?;
    let result = sandbox.exec(ExecRequest::args(["cat"])).await?;
    equal("the program cat", (result.exit_code, result.stdout.total), (0, 0))?;
    ensure(begun.elapsed() < secs(20), "reading standard input", "an end at once", || format!("{:?}", begun.elapsed()))
}

async fn cap_drains(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let result = sandbox.sh("head -c 1400000 /dev/zero | tr '\\0' a; printf b; echo done >&2").await?;
    equal("bytes kept", result.stdout.bytes.len(), ExecRequest::DEFAULT_CAP)?;
    ensure(result.stdout.bytes.iter().all(|b| *b == b'a'), "what is kept", "the first bytes", || "others".to_owned())?;
    equal("bytes in all", result.stdout.total, 1_400_001)?;
    ensure(result.stdout.truncated() && !result.stderr.truncated(), "which stream is cut", "stdout alone", || {
        told(&result)
    })?;
    same("stderr", &result.stderr.bytes, b"done\n")?;
    equal("exit code", result.exit_code, 0)
}

async fn cap_of_the_request(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for (cap, kept) in [(0, ""), (1, "a"), (3, "abc"), (7, "abcdefg"), (8, "abcdefg")] {
        let mut request = ExecRequest::shell("printf abcdefg; printf 1234567 >&2; exit 3").with_caps(cap);
        request.stderr_cap = 2;
        let result = sandbox.exec(request).await?;
        same(&format!("kept of 7 bytes with a cap of {cap}"), &result.stdout.bytes, kept.as_bytes())?;
        same("stderr with a cap of 2", &result.stderr.bytes, b"12")?;
        equal("in all", (result.stdout.total, result.stderr.total, result.exit_code), (7, 7, 3))?;
        equal("cut", result.stdout.truncated(), cap < 7)?;
    }
    Ok(())
}

async fn prints_100_mib(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let text = "head -c 104857600 /dev/zero; head -c 104857600 /dev/zero >&2; echo end > /tmp/end";
    let result = sandbox.exec(ExecRequest::shell(text).with_caps(1000)).await?;
    equal("in all", (result.stdout.total, result.stderr.total), (100 << 20, 100 << 20))?;
    equal("kept", (result.stdout.bytes.len(), result.stderr.bytes.len()), (1000, 1000))?;
    equal("the command ran to its end", sandbox.ok("cat /tmp/end").await?, "end\n")
}

async fn runs_once(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for n in 1..=20 {
        sandbox.sh("echo x >> /tmp/count; exit 3").await?;
        equal("runs so far", sandbox.ok("wc -l < /tmp/count").await?.trim(), n.to_string().as_str())?;
    }
    let killed = sandbox.try_exec(ExecRequest::shell("echo y >> /tmp/killed; kill -9 $PPID $$")).await?;
    // Who runs it again may take a moment for it.
    let seen = sandbox.ok("sleep 0.5; cat /tmp/killed").await?;
    ensure(seen == "y\n", "a command that kills what started it", "one run", || format!("{seen:?}, {killed:?}"))
}

async fn elapsed(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let begun = Instant::now();
    let result = sandbox.sh("sleep 1").await?;
    let most = begun.elapsed();
    // What says that it begins may be on its way for a moment.
    ensure(
        result.elapsed >= millis(700) && result.elapsed <= most,
        "the elapsed time of sleep 1",
        &format!("0.7 s to {most:?}"),
        || format!("{:?}", result.elapsed),
    )
}

async fn invalid_request_starts_nothing(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let touch = || ExecRequest::shell("touch /tmp/started");
    let mut caps = touch();
    caps.stdout_cap = ExecRequest::MAX_CAP + 1;
    let long = mark() + &"x".repeat(ExecRequest::MAX_SHELL);
    for (what, request) in [
        ("a limit of 0", touch().with_limit(secs(0))),
        ("a limit of years", touch().with_limit(ExecRequest::MAX_LIMIT * 2)),
        ("a grace of 61 s", touch().with_grace(secs(61))),
        ("a cap above the bound", caps),
        ("a text with NUL", ExecRequest::shell("touch /tmp/started\0")),
        ("a text above the bound", ExecRequest::shell(format!("touch /tmp/started; : {long}"))),
        ("no arguments", ExecRequest::args(Vec::<Vec<u8>>::new())),
        ("an argument with NUL", ExecRequest::args(["touch", "/tmp/started\0"])),
    ] {
        refused(what, sandbox.try_exec(request).await?, ErrorKind::InvalidRequest)?;
    }
    equal("traces of a start", sandbox.ok("ls /tmp/started 2>/dev/null; true").await?, "")
}
