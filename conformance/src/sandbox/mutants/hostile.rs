//! What can be wrong about containment, and about tenants that fight back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandbox::{
    ByteStream, CapDrop, Command, Env, Error, ErrorKind, ExecRequest, ExecResult, Hardening, Limit, Networking, Output,
    SandboxPath,
};

use super::{Hooks, Mutant};

fn hooks() -> Hooks {
    Hooks::default()
}

/// Leaves something of the hardening out.
fn without(change: fn(&mut Hardening)) -> Hooks {
    hooks().spec(move |spec| change(&mut spec.hardening))
}

/// Once a result is as `breaks` says, every later command fails.
fn broken_by(breaks: fn(&ExecResult) -> bool) -> Hooks {
    let broken = Arc::new(AtomicBool::new(false));
    hooks().exec(move |inner, request| {
        let broken = Arc::clone(&broken);
        async move {
            if broken.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Lost));
            }
            let result = inner.exec(request).await;
            let breaks = result.as_ref().map_or(true, breaks);
            broken.store(breaks, Ordering::Relaxed);
            result
        }
    })
}

fn networks() -> Vec<Mutant> {
    let closed: &[&str] = &[
        "networking::limited_has_no_route",
        "networking::limited_reaches_nothing",
        "networking::none_has_no_route",
        "networking::none_reaches_nothing",
    ];
    vec![
        Mutant::new("every network is open", closed, hooks().spec(|spec| spec.networking = Networking::Unrestricted)),
        Mutant::new(
            "every network is closed",
            &["networking::unrestricted_has_a_route"],
            hooks().spec(|spec| {
                spec.networking = Networking::None;
            }),
        ),
    ]
}

fn hardening() -> Vec<Mutant> {
    vec![
        Mutant::new("processes are not bounded", &["hardening::pids"], without(|h| h.pids = Limit::Off)),
        Mutant::new("processor time is not bounded", &["hardening::cpu"], without(|h| h.cpu_millis = Limit::Off)),
        Mutant::new("memory is not bounded", &["hardening::memory"], without(|h| h.memory_bytes = Limit::Off)),
        Mutant::new("disk is not bounded", &["hardening::disk"], without(|h| h.disk_bytes = Limit::Off)),
        Mutant::new(
            "a preferred bound is a required one",
            &["hardening::preferred_bounds"],
            hooks().provision(|p, spec| async move {
                let bounds = [spec.hardening.memory_bytes, spec.hardening.disk_bytes];
                if bounds.iter().any(|bound| matches!(bound, Limit::Preferred(_))) {
                    return Err(Error::new(ErrorKind::Unsupported));
                }
                p.provision(&spec).await
            }),
        ),
        Mutant::new(
            "no capability is dropped",
            &["hardening::dropped_capabilities", "hardening::dropped_chown", "hardening::no_new_privileges"],
            without(|h| h.cap_drop = CapDrop::none()),
        ),
        Mutant::new(
            "the root can be written",
            &["hardening::read_only_root", "hardening::read_only_root_and_files"],
            without(|h| h.read_only_root = false),
        ),
        Mutant::new(
            "commands run as the image's user",
            &["hardening::user_and_group", "hardening::user_and_files", "hardening::user_and_read_only_root"],
            without(|h| {
                (h.run_as_user, h.run_as_group) = (None, None);
            }),
        ),
        Mutant::new(
            "the latest hardening is in force",
            &["hardening::kept_as_created"],
            hooks().provision(|p, spec| async move {
                p.reap(&spec.session).await?;
                p.provision(&spec).await
            }),
        ),
    ]
}

pub(super) fn mutants() -> Vec<Mutant> {
    [networks(), hardening(), tenants()].into_iter().flatten().collect()
}

#[allow(clippy::too_many_lines)]
fn tenants() -> Vec<Mutant> {
    vec![
        Mutant::new("reserved variables are left out", &["hostile::variables"], hooks().spec(|spec| {
            let vars = spec.env.iter().map(|(name, value)| (name.to_owned(), value.clone()));
            spec.env = Env::from_untrusted(vars.collect::<Vec<_>>()).0;
        })),
        Mutant::new("a killed command breaks the sandbox", &["hostile::kills_everything"], broken_by(|r| r.exit_code == 137)),
        Mutant::new("a stopped command breaks the sandbox", &["hostile::stops_everything"], broken_by(|r| r.timed_out || r.exit_code > 128)),
        Mutant::new("closed output is a fault", &["hostile::exhausts_descriptors"], hooks().exec(|inner, request| async move {
            let result = inner.exec(request).await?;
            let silent = result.stdout.total + result.stderr.total == 0;
            if silent && result.exit_code != 0 { Err(Error::new(ErrorKind::Lost)) } else { Ok(result) }
        })),
        Mutant::new("nobody reaps orphans", &["hostile::orphans"], hooks().text(|text| {
            format!("setsid bash -c 'for i in {{1..10}}; do (sleep 0.2) & done; exec sleep 20' </dev/null >/dev/null 2>&1 &\n{text}")
        })),
        Mutant::new("a forged record ends the output", &["hostile::forges_records"], hooks().result(|r| {
            let text = r.stdout.bytes.clone();
            if let Some(at) = text.windows(6).position(|w| w == b"END 0\n") {
                r.stdout = Output::new(text.slice(..at), at as u64);
            }
        })),
        Mutant::new("a hidden working directory is waited for", &["hostile::hides_the_workdir"], hooks().exec(|inner, request| async move {
            let look = ExecRequest::shell("[[ -d /workspace && -x /workspace ]] && ! [[ $(stat -c %a /workspace) == 0 ]]");
            let seen = inner.exec(look.with_workdir(SandboxPath::new("/tmp")?)).await?;
            if !seen.success() && request.workdir.is_none() {
                tokio::time::sleep(Duration::from_secs(7)).await;
            }
            inner.exec(request).await
        })),
        Mutant::new("the cap is off by one", &["hostile::never_ending_output"], hooks().result(|r| {
            if r.stdout.truncated() {
                r.stdout = Output::new([&r.stdout.bytes[..], b"x"].concat(), r.stdout.total);
            }
        })),
        Mutant::new("files are read by the tenant's tools", &["hostile::shadowed_tools"], hooks().read(|inner, (path, _)| async move {
            let script = "PATH=/tmp/evil:$PATH; cat -- \"$1\"";
            let args = [b"bash".to_vec(), b"-c".to_vec(), script.into(), b"mutant".to_vec(), path.as_bytes().to_vec()];
            let result = inner.exec(ExecRequest::args(args)).await?;
            Ok(ByteStream::new(futures::stream::once(async move { Ok(result.stdout.bytes) })))
        })),
        Mutant::new("the platform's own shell reads rc files", &["hostile::shadowed_tools"], hooks().read(|inner, (path, limit)| async move {
            inner.exec(ExecRequest::args(["/usr/bin/bash", "-c", ":"])).await?;
            inner.read(&path, limit).await
        })),
        Mutant::new("exports are packed by the tenant's tar", &["hostile::shadowed_tools"], hooks().export(|p, (session, root)| async move {
            let sandbox = p.attach(&session).await?;
            sandbox.exec(ExecRequest::args(["/usr/bin/bash", "-p", "-c", "tar -c /tmp/d"])).await?;
            p.export(&session, &root).await
        })),
        {
            let set = Arc::new(AtomicBool::new(false));
            Mutant::new("time is told by a clock that can be set", &["hostile::changes_clocks"], hooks().exec(move |inner, request| {
                let set = Arc::clone(&set);
                async move {
                    if matches!(&request.command, Command::Shell(text) if text.windows(7).any(|w| w == b"date -s")) {
                        set.store(true, Ordering::Relaxed);
                    }
                    let mut result = inner.exec(request).await?;
                    if set.load(Ordering::Relaxed) {
                        result.elapsed += Duration::from_secs(86_400);
                    }
                    Ok(result)
                }
            }))
        },
        Mutant::new("who sets clocks escapes the limit", &["hostile::changes_clocks"], hooks().exec(|inner, mut request| async move {
            if matches!(&request.command, Command::Shell(text) if text.windows(7).any(|w| w == b"date -s")) {
                request.limit = Some(Duration::from_secs(20));
            }
            inner.exec(request).await
        })),
        Mutant::new("a name that is taken stops a write", &["hostile::planted_names"], hooks().write(|inner, file| {
            Box::pin(async move {
                let taken = inner.exec(ExecRequest::shell("[[ -e /tmp/d/.write ]]")).await?;
                if taken.success() { Err(Error::new(ErrorKind::NotWritable)) } else { inner.write(file).await }
            })
        })),
        Mutant::new("a file is opened without a look at it", &["hostile::file_that_becomes_a_fifo"], hooks().read(|inner, (path, _)| async move {
            let script = "timeout 1 head -c 100 -- \"$1\"";
            let args = [b"bash".to_vec(), b"-c".to_vec(), script.into(), b"mutant".to_vec(), path.as_bytes().to_vec()];
            let result = inner.exec(ExecRequest::args(args)).await?;
            Ok(ByteStream::new(futures::stream::once(async move { Ok(result.stdout.bytes) })))
        })),
    ]
}
