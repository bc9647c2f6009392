//! What can be wrong about running commands.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sandbox::{Command, Env, Error, ErrorKind, ExecRequest, Output};

use super::{Hooks, Mutant};

/// `output` with other bytes kept.
fn kept(output: &Output, bytes: Vec<u8>) -> Output {
    let lost = output.bytes.len() - bytes.len().min(output.bytes.len());
    Output::new(bytes, output.total - lost as u64)
}

fn hooks() -> Hooks {
    Hooks::default()
}

/// `env` with every value changed.
fn changed(env: &Env, change: impl Fn(&[u8]) -> Vec<u8>) -> Env {
    let mut out = Env::new();
    for (name, value) in env.iter() {
        let _ = out.set(name, change(value));
    }
    out
}

/// `env` without the variable `lost`.
fn without(env: &Env, lost: &str) -> Env {
    let mut out = Env::new();
    for (name, value) in env.iter().filter(|(name, _)| *name != lost) {
        let _ = out.set(name, value.to_vec());
    }
    out
}

fn join(args: &[Bytes]) -> Bytes {
    args.iter().map(|arg| &arg[..]).collect::<Vec<_>>().join(&b" "[..]).into()
}

#[allow(clippy::too_many_lines)]
pub(super) fn mutants() -> Vec<Mutant> {
    vec![
        Mutant::new(
            "standard error lands in standard output",
            &["exec::streams_are_apart"],
            hooks().result(|r| {
                let both = [&r.stdout.bytes[..], &r.stderr.bytes[..]].concat();
                r.stdout = Output::new(both, r.stdout.total + r.stderr.total);
            }),
        ),
        Mutant::new(
            "output is made UTF-8",
            &["exec::output_is_bytes"],
            hooks().result(|r| {
                r.stdout = Output::new(r.stdout.to_string_lossy().into_owned(), r.stdout.total);
            }),
        ),
        Mutant::new(
            "the tail of long output is lost",
            &["exec::long_output_is_whole"],
            hooks().result(|r| {
                if r.stdout.bytes.len() > 1 << 20 {
                    r.stdout = kept(&r.stdout, r.stdout.bytes[..r.stdout.bytes.len() - 4096].to_vec());
                }
            }),
        ),
        Mutant::new(
            "of slow output only the first burst arrives",
            &["exec::slow_output_is_whole"],
            hooks().result(|r| {
                if r.elapsed > Duration::from_secs(4) {
                    r.stdout = kept(&r.stdout, r.stdout.bytes[..2.min(r.stdout.bytes.len())].to_vec());
                }
            }),
        ),
        Mutant::new(
            "a failed command is an error",
            &["exec::failure_is_a_result"],
            hooks().exec(|inner, request| async move {
                let result = inner.exec(request).await?;
                if result.exit_code == 0 { Ok(result) } else { Err(Error::new(ErrorKind::Other)) }
            }),
        ),
        Mutant::new(
            "exit codes above 127 become 127",
            &["exec::codes_pass_through"],
            hooks().result(|r| {
                r.exit_code = r.exit_code.min(127);
            }),
        ),
        Mutant::new(
            "a signal becomes a negative code",
            &["exec::signal_is_128_and_its_number"],
            hooks().result(|r| {
                if r.exit_code > 128 {
                    r.exit_code = 128 - r.exit_code;
                }
            }),
        ),
        Mutant::new(
            "commands start in /",
            &["exec::starts_in_the_workdir"],
            hooks().text(|text| format!("cd /\n{text}")),
        ),
        Mutant::new(
            "the working directory of the spec is ignored",
            &["exec::workdir_of_the_spec"],
            hooks().spec(|spec| {
                *spec = sandbox::Spec::new(spec.session.clone(), spec.image.clone())
                    .with_env(spec.env.clone())
                    .with_hardening(spec.hardening.clone())
                    .with_networking(spec.networking.clone());
            }),
        ),
        Mutant::new(
            "values of variables are trimmed",
            &["exec::env_is_exact"],
            hooks().spec(|spec| {
                spec.env = changed(&spec.env, |value| value.trim_ascii().to_vec());
            }),
        ),
        Mutant::new(
            "values of variables are expanded",
            &["exec::env_is_exact"],
            hooks().spec(|spec| {
                spec.env = changed(&spec.env, |value| String::from_utf8_lossy(value).replace("$$", "$").into());
            }),
        ),
        Mutant::new(
            "long values of variables are cut",
            &["exec::env_of_every_size"],
            hooks().spec(|spec| {
                spec.env = changed(&spec.env, |value| value[..value.len().min(65_536)].to_vec());
            }),
        ),
        {
            let last = Mutex::new(Env::new());
            Mutant::new(
                "variables of a request stay",
                &["exec::request_env_is_for_one_command"],
                hooks().request(move |r| {
                    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                    if r.env.is_empty() {
                        r.env = last.clone();
                    }
                    *last = r.env.clone();
                }),
            )
        },
        Mutant::new(
            "variables that a script has too are lost",
            &["exec::env_is_exact"],
            hooks().spec(|spec| spec.env = without(&spec.env, "line")),
        ),
        Mutant::new(
            "variables of a request that a script has too are lost",
            &["exec::request_env_is_for_one_command"],
            hooks().request(|r| r.env = without(&r.env, "kind")),
        ),
        {
            let last = Mutex::new(None);
            Mutant::new(
                "the language of a request stays",
                &["exec::request_env_is_for_one_command"],
                hooks().request(move |r| {
                    let given = r.env.iter().find(|(name, _)| *name == "LANG").map(|(_, value)| value.to_vec());
                    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                    match given {
                        Some(value) => *last = Some(value),
                        None => drop(last.clone().map(|value| r.env.set("LANG", value))),
                    }
                }),
            )
        },
        Mutant::new(
            "a program that looks like a variable is taken for one",
            &["exec::arguments_are_not_options"],
            hooks().request(|r| match &mut r.command {
                Command::Args(args) if !r.env.is_empty() && args.len() > 1 && args[0].contains(&b'=') => {
                    args.remove(0);
                }
                _ => {}
            }),
        ),
        {
            let last = Mutex::new(None);
            Mutant::new(
                "the working directory of a request stays",
                &["exec::request_workdir_is_for_one_command"],
                hooks().request(move |r| {
                    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                    r.workdir = r.workdir.take().or_else(|| last.clone());
                    (*last).clone_from(&r.workdir);
                }),
            )
        },
        Mutant::new(
            "without its working directory a command starts elsewhere",
            &["exec::workdir_that_is_none"],
            hooks().exec(|inner, mut request| async move {
                match inner.exec(request.clone()).await {
                    Err(e) if matches!(e.kind(), ErrorKind::FileNotFound | ErrorKind::NotDirectory) => {
                        request.workdir = None;
                        inner.exec(request).await
                    }
                    other => other,
                }
            }),
        ),
        Mutant::new(
            "a working directory that is no directory is not found",
            &["exec::workdir_that_is_none"],
            hooks().exec(|inner, request| async move {
                let workdir = request.workdir.clone();
                inner.exec(request).await.map_err(|e| match (e.kind(), workdir) {
                    (ErrorKind::NotDirectory, Some(at)) => Error::new(ErrorKind::FileNotFound).at(at),
                    _ => e,
                })
            }),
        ),
        Mutant::new(
            "shell variables carry over",
            &["exec::nothing_carries_over"],
            hooks().text(|text| format!(". /tmp/.state 2>/dev/null\n{text}\ndeclare -p LEFT >/tmp/.state 2>/dev/null")),
        ),
        Mutant::new(
            "a shell reads the arguments",
            &["exec::arguments_are_exact", "exec::arguments_are_not_options"],
            hooks().request(|r| {
                if let Command::Args(args) = &r.command {
                    r.command = Command::Shell(join(args));
                }
            }),
        ),
        Mutant::new(
            "a long text is cut",
            &["exec::long_texts"],
            hooks().request(|r| {
                if let Command::Shell(text) = &mut r.command {
                    text.truncate(131_071);
                }
            }),
        ),
        Mutant::new(
            "standard input has something",
            &["exec::stdin_is_empty"],
            hooks().text(|text| format!("exec 0< <(echo typed)\n{text}")),
        ),
        Mutant::new(
            "the cap cuts a byte early",
            &["exec::cap_drains"],
            hooks().result(|r| {
                if r.stdout.truncated() {
                    r.stdout = Output::new(r.stdout.bytes.slice(..r.stdout.bytes.len() - 1), r.stdout.total);
                }
            }),
        ),
        Mutant::new(
            "the cap keeps the last bytes",
            &["exec::cap_of_the_request"],
            hooks().exec(|inner, request| async move {
                let cap = request.stdout_cap;
                let mut result = inner.exec(request.with_caps(ExecRequest::MAX_CAP)).await?;
                let bytes = &result.stdout.bytes;
                result.stdout = Output::new(bytes.slice(bytes.len().saturating_sub(cap)..), result.stdout.total);
                Ok(result)
            }),
        ),
        Mutant::new(
            "a command that prints much is stopped",
            &["exec::prints_100_mib"],
            hooks().result(|r| {
                r.stdout.total = r.stdout.total.min(10 << 20);
            }),
        ),
        Mutant::new(
            "a failed command is run again",
            &["exec::runs_once"],
            hooks().exec(|inner, request| async move {
                let result = inner.exec(request.clone()).await?;
                if result.exit_code == 0 { Ok(result) } else { inner.exec(request).await }
            }),
        ),
        Mutant::new(
            "the elapsed time is not measured",
            &["exec::elapsed"],
            hooks().result(|r| r.elapsed = Duration::ZERO),
        ),
        {
            let one = Arc::new(tokio::sync::Mutex::new(()));
            Mutant::new(
                "commands queue behind each other",
                &["exec::many_at_once"],
                hooks().exec(move |inner, request| {
                    let one = Arc::clone(&one);
                    async move {
                        let _turn = one.lock().await;
                        inner.exec(request).await
                    }
                }),
            )
        },
        Mutant::new(
            "an invalid request is mended",
            &["exec::invalid_request_starts_nothing"],
            hooks().request(|r| {
                if r.validate().is_err() {
                    *r = ExecRequest::shell("touch /tmp/started");
                }
            }),
        ),
        Mutant::new(
            "an invalid request is refused after it ran",
            &["exec::invalid_request_starts_nothing"],
            hooks().exec(|inner, r| async move {
                if r.validate().is_err() {
                    inner.exec(ExecRequest::shell("touch /tmp/started")).await?;
                }
                inner.exec(r).await
            }),
        ),
    ]
}
