//! What goes wrong with commands.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use bytes::Bytes;
use isolation::{Error, ErrorKind, ExecOutput, ExecSpec, ExecStatus, ExecStream, OpCtx, Result, SlotName, node_path};

use super::Mutant;
use super::hooks::{Hooks, Inner};
use super::lifecycle::astray;

/// A mutant that changes what a command is.
fn changed(name: &'static str, cases: &'static [&'static str], change: fn(&mut ExecSpec)) -> Mutant {
    let exec = move |i: Inner, ctx: OpCtx, (slot, mut spec): (SlotName, ExecSpec)| async move {
        change(&mut spec);
        i.backend().exec(&ctx, &slot, &spec).await
    };
    Mutant::new(name, cases, Hooks::new().exec(exec))
}

/// A mutant that changes what came of a command.
fn told(
    name: &'static str,
    cases: &'static [&'static str],
    change: fn(Result<ExecOutput>) -> Result<ExecOutput>,
) -> Mutant {
    let exec = move |i: Inner, ctx: OpCtx, (slot, spec): (SlotName, ExecSpec)| async move {
        change(i.backend().exec(&ctx, &slot, &spec).await)
    };
    Mutant::new(name, cases, Hooks::new().exec(exec))
}

/// A mutant that changes an output.
fn output(name: &'static str, cases: &'static [&'static str], change: fn(ExecOutput) -> ExecOutput) -> Mutant {
    let exec = move |i: Inner, ctx: OpCtx, (slot, spec): (SlotName, ExecSpec)| async move {
        i.backend().exec(&ctx, &slot, &spec).await.map(change)
    };
    Mutant::new(name, cases, Hooks::new().exec(exec))
}

pub(super) fn mutants() -> Vec<Mutant> {
    let mut all = outputs();
    all.extend(inputs());
    all.extend(ends());
    all
}

fn outputs() -> Vec<Mutant> {
    vec![
        output("the raw output is trimmed", &["exec::output_is_untouched"], |mut output| {
            let text = output.stdout_text();
            output.stdout = Bytes::from(text);
            output
        }),
        output("the streams are one", &["exec::streams_are_apart"], |mut output| {
            output.stdout = [&output.stdout[..], &output.stderr[..]].concat().into();
            output.stderr = Bytes::new();
            output
        }),
        output("codes from 125 on are 1", &["exec::codes_are_data"], |mut output| {
            if matches!(output.status, ExecStatus::Exited(125..)) {
                output.status = ExecStatus::Exited(1);
            }
            output
        }),
        told("a failed command is an error", &["exec::codes_are_data"], |done| done.and_then(ExecOutput::success)),
        output("death by SIGTERM is a success", &["exec::signals_are_told"], |mut output| {
            if output.status == ExecStatus::Signaled(15) {
                output.status = ExecStatus::Exited(0);
            }
            output
        }),
        told("a missing program is a broken transport", &["exec::missing_program", "exec::no_program"], |done| {
            done.map_err(|error| match error.kind() {
                ErrorKind::CommandNotFound => Error::new(ErrorKind::Transport, "run a command"),
                _ => error,
            })
        }),
        output("dropped output is not told", &["exec::long_output_is_dropped"], |mut output| {
            output.truncated = false;
            output
        }),
        changed("the limit of the output is ignored", &["exec::long_output_is_dropped"], |spec| {
            spec.max_output = usize::MAX;
        }),
        Mutant::new(
            "outputs mix",
            &["exec::outputs_do_not_mix"],
            Hooks::new().exec(|i, ctx, (slot, spec)| async move {
                let mut output = i.backend().exec(&ctx, &slot, &spec).await?;
                if let Some(before) = i.remember("output", output.stdout.clone()) {
                    output.stdout = before;
                }
                Ok(output)
            }),
        ),
    ]
}

fn inputs() -> Vec<Mutant> {
    vec![
        changed("a shell reads the arguments", &["exec::arguments_are_verbatim"], |spec| {
            let line: Vec<u8> = spec.argv.iter().flat_map(|arg| [arg.as_bytes(), b" "].concat()).collect();
            let line = OsString::from(std::ffi::OsStr::from_bytes(&line));
            spec.argv = vec!["sh".into(), "-c".into(), line];
        }),
        changed("long arguments are cut", &["exec::long_arguments"], |spec| {
            for arg in &mut spec.argv {
                if arg.len() > 65_536 {
                    *arg = OsString::from(std::ffi::OsStr::from_bytes(&arg.as_bytes()[..65_536]));
                }
            }
        }),
        changed("a command without a program does nothing", &["exec::invalid_is_refused"], |spec| {
            if spec.validate().is_err() {
                spec.argv = vec!["true".into()];
            }
        }),
        changed("input is lost", &["exec::input_arrives"], |spec| spec.stdin = Bytes::new()),
        changed("the user is ignored", &["exec::user"], |spec| spec.user = None),
        changed("variables are lost", &["exec::environment_arrives"], |spec| spec.env.clear()),
        changed("the directory is lost", &["exec::directory_arrives"], |spec| spec.cwd = None),
        changed("the caller's variables leak", &["exec::environment_is_clean"], |spec| {
            spec.env.extend(std::env::vars_os());
        }),
        changed("commands start in /tmp", &["exec::directory_is_the_root"], |spec| {
            spec.cwd.get_or_insert_with(|| node_path!("/tmp"));
        }),
        changed("commands get some input", &["exec::input_is_empty"], |spec| {
            if spec.stdin.is_empty() {
                spec.stdin = Bytes::from_static(b"y\n");
            }
        }),
    ]
}

/// Runs a command on a task of its own, which nobody ends.
async fn detached(i: Inner, slot: SlotName, mut spec: ExecSpec) -> Result<ExecOutput> {
    spec.timeout = None;
    let task = tokio::spawn(async move { i.backend().exec(&OpCtx::new(Duration::from_secs(30)), &slot, &spec).await });
    task.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Transport, "run a command")))
}

fn ends() -> Vec<Mutant> {
    vec![
        Mutant::new(
            "a command past its time lives on",
            &["exec::timeout_kills"],
            Hooks::new().exec(|i, _, (slot, spec)| async move {
                let limit = spec.timeout.unwrap_or(Duration::from_secs(30));
                match tokio::time::timeout(limit, detached(i, slot, spec)).await {
                    Ok(done) => done,
                    Err(_) => Ok(ExecOutput::new(ExecStatus::TimedOut).with_stdout("before\n")),
                }
            }),
        ),
        Mutant::new(
            "a cancelled command lives on",
            &["exec::cancel_ends_it"],
            Hooks::new()
                .exec(|i, ctx, (slot, spec)| async move { ctx.bound("run a command", detached(i, slot, spec)).await }),
        ),
        told("a command in an unknown slot finds nothing running", &["exec::unknown_slot"], |done| {
            done.map_err(|error| match error.kind() {
                ErrorKind::UnknownSlot => Error::new(ErrorKind::NotRunning, "run a command"),
                _ => error,
            })
        }),
        told("a command in a stopped slot succeeds", &["exec::stopped_slot"], |done| match done {
            Err(error) if error.kind() == ErrorKind::NotRunning => Ok(ExecOutput::new(ExecStatus::Exited(0))),
            done => done,
        }),
        Mutant::new(
            "a command in a stopped slot hangs",
            &["exec::met_by_a_stop"],
            Hooks::new().exec(|i, ctx, (slot, spec)| async move {
                match i.backend().exec(&ctx, &slot, &spec).await {
                    Err(error) if error.kind() == ErrorKind::NotRunning => std::future::pending().await,
                    done => done,
                }
            }),
        ),
        Mutant::new(
            "a stream in a stopped slot is a broken transport",
            &["exec::stream_is_refused_alike"],
            Hooks::new().exec_stream(|i, ctx, (slot, spec)| async move {
                i.backend().exec_stream(&ctx, &slot, &spec).await.map_err(|error| match error.kind() {
                    ErrorKind::NotRunning => Error::new(ErrorKind::Transport, "run a command"),
                    _ => error,
                })
            }),
        ),
        Mutant::new(
            "a stream without a program does nothing",
            &["exec::stream_is_refused_alike"],
            Hooks::new().exec_stream(|i, ctx, (slot, mut spec)| async move {
                if spec.validate().is_err() {
                    spec.argv = vec!["true".into()];
                }
                i.backend().exec_stream(&ctx, &slot, &spec).await
            }),
        ),
        Mutant::new(
            "a stream says nothing",
            &["exec::stream_is_talked_to"],
            Hooks::new().exec_stream(|i, ctx, (slot, spec)| async move {
                let mut stream = i.backend().exec_stream(&ctx, &slot, &spec).await?;
                stream.stdout = Some(Box::pin(tokio::io::empty()));
                Ok(stream)
            }),
        ),
        Mutant::new(
            "what is dropped of the standard error is not told",
            &["exec::long_output_is_dropped"],
            Hooks::new().exec(|i, ctx, (slot, spec)| async move {
                let output = i.backend().exec(&ctx, &slot, &spec).await?;
                let told = output.truncated && !output.stdout.is_empty();
                Ok(output.with_truncated(told))
            }),
        ),
        Mutant::new(
            "a stream is not cancelled any more",
            &["exec::cancelled_stream_ends"],
            Hooks::new().exec_stream(|i, ctx, (slot, spec)| async move {
                i.backend().exec_stream(&ctx.with_cancel(isolation::Cancel::new()), &slot, &spec).await
            }),
        ),
        Mutant::new(
            "a dropped stream lives on",
            &["exec::dropped_stream_ends"],
            Hooks::new().exec_stream(|i, ctx, (slot, spec)| async move {
                let mut stream = i.backend().exec_stream(&ctx, &slot, &astray(spec)).await?;
                let out = stream.stdout.take();
                let kept = tokio::spawn(async move { stream.wait().await });
                drop(out);
                Ok(ExecStream::new(tokio::io::sink(), tokio::io::empty(), tokio::io::empty(), async move {
                    kept.await.unwrap_or(Ok(ExecStatus::Exited(0)))
                }))
            }),
        ),
    ]
}
