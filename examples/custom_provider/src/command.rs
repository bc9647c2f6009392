//! One command, from start to end.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use sandbox::{Command, Error, ErrorKind, ExecRequest, ExecResult, Output, SandboxPath, Spec};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;
use tokio::sync::watch;

use crate::fault;

pub(crate) fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// The children of `parent`.
pub(crate) fn children(parent: i32) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok()) == Some(parent)
    })
    .collect()
}

/// The processes outside whose children are inside a pid namespace.
pub(crate) fn entered(inside: Option<&Path>) -> Vec<i32> {
    let Some(inside) = inside else { return Vec::new() };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let link = |pid: i32, name: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
    pids.filter(|pid| link(*pid, "pid_for_children").is_some_and(|ns| ns == inside))
        .filter(|pid| link(*pid, "pid").is_some_and(|ns| ns != inside))
        .collect()
}

/// The processes of one command: `nsenter` outside, and inside a session of the command's own. Killed when dropped armed.
struct Group {
    nsenter: Pid,
    armed: bool,
}

impl Group {
    fn inside(&self) -> impl Iterator<Item = Pid> {
        children(self.nsenter.as_raw_nonzero().get()).into_iter().filter_map(Pid::from_raw)
    }

    fn kill(&self) {
        // Stopped, it can't have another child by the time we looked.
        let _ = kill_process(self.nsenter, Signal::STOP);
        self.inside().for_each(|pid| {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = kill_process(pid, Signal::KILL);
        });
        let _ = kill_process_group(self.nsenter, Signal::KILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.armed {
            self.kill();
        }
    }
}

/// Refuses a working directory that is none, as seen from outside.
fn check_workdir(init: i32, workdir: &SandboxPath) -> Result<(), Error> {
    let outside = [format!("/proc/{init}/root").as_bytes(), workdir.as_bytes()].concat();
    let kind = match std::fs::metadata(os(&outside)) {
        Ok(found) if !found.is_dir() => ErrorKind::NotDirectory,
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => ErrorKind::NotDirectory,
        // Not without the sandbox itself: that it is gone is said elsewhere.
        Err(e)
            if e.kind() == std::io::ErrorKind::NotFound && std::fs::metadata(format!("/proc/{init}/root")).is_ok() =>
        {
            ErrorKind::FileNotFound
        }
        _ => return Ok(()),
    };
    Err(Error::new(kind).at(workdir.clone()).because("the working directory"))
}

fn start(spec: &Spec, init: i32, request: &ExecRequest) -> Result<Child, Error> {
    let workdir = request.workdir.as_ref().unwrap_or(&spec.workdir);
    check_workdir(init, workdir)?;
    let mut nsenter = tokio::process::Command::new("/usr/bin/nsenter");
    nsenter.args(["--target", &init.to_string(), "--user", "--preserve-credentials", "--mount", "--pid"]);
    nsenter.arg(os(&[b"--wdns=", workdir.as_bytes()].concat())).args(["--", "/usr/bin/setsid"]);
    match &request.command {
        Command::Shell(text) if text.len() > ExecRequest::MAX_ARG => {
            // Too long for an argument: bash reads it from a descriptor that nobody else has.
            nsenter.args(["/usr/bin/bash", "-c", "mapfile -d '' -t text; exec </dev/null; eval \"${text[0]}\""]);
        }
        Command::Shell(text) => _ = nsenter.args(["/usr/bin/bash", "-c"]).arg(os(text)),
        Command::Args(args) => _ = nsenter.args(args.iter().map(|arg| os(arg))),
        _ => return Err(Error::new(ErrorKind::Unsupported)),
    }
    nsenter.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", "/workspace");
    nsenter.envs(spec.env.iter().chain(request.env.iter()).map(|(name, value)| (name, os(value))));
    nsenter.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().map_err(fault)
}

/// Keeps the head of a stream, and drains it for as long as somebody holds it, also after the command.
async fn capture(
    from: Option<impl AsyncRead + Unpin + Send + 'static>,
    cap: usize,
    mut ended: watch::Receiver<bool>,
) -> Output {
    let (send, mut seen) = watch::channel((Vec::new(), 0u64));
    tokio::spawn(async move {
        let (Some(mut from), mut buffer) = (from, vec![0; 1 << 16]) else { return };
        while let Ok(n @ 1..) = from.read(&mut buffer).await {
            send.send_modify(|(kept, total)| {
                let room = cap.saturating_sub(kept.len()).min(n);
                kept.extend_from_slice(&buffer[..room]);
                *total += n as u64;
            });
        }
    });
    let closed = async { while seen.changed().await.is_ok() {} };
    let quiet = async {
        let _ = ended.wait_for(|ended| *ended).await;
        // What the command wrote is in the pipe by now, and read in no time.
        tokio::time::sleep(Duration::from_millis(250)).await;
    };
    tokio::select! { () = closed => {} () = quiet => {} }
    let (kept, total) = seen.borrow().clone();
    Output::new(kept, total)
}

pub(crate) async fn exec(spec: &Spec, init: i32, request: ExecRequest) -> Result<ExecResult, Error> {
    use std::os::unix::process::ExitStatusExt;
    use tokio::io::AsyncWriteExt;

    let mut child = start(spec, init, &request)?;
    let pid =
        child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).ok_or_else(|| Error::new(ErrorKind::Other))?;
    let mut group = Group { nsenter: pid, armed: true };
    let begun = Instant::now();
    let (end, ended) = watch::channel(false);
    let stdout = capture(child.stdout.take(), request.stdout_cap, ended.clone());
    let stderr = capture(child.stderr.take(), request.stderr_cap, ended);
    let stdin = child.stdin.take();
    let text = match &request.command {
        Command::Shell(text) if text.len() > ExecRequest::MAX_ARG => text.clone(),
        _ => Default::default(),
    };
    let feed = async move {
        if let Some(mut stdin) = stdin {
            let _ = stdin.write_all(&text).await;
        }
    };
    let run = async {
        let limit = request.limit.unwrap_or(Duration::from_secs(1 << 30));
        let status = tokio::time::timeout(limit, child.wait()).await;
        if status.is_err() {
            if !request.grace.is_zero() {
                group.inside().for_each(|pid| _ = kill_process_group(pid, Signal::TERM));
                let _ = tokio::time::timeout(request.grace, child.wait()).await;
            }
            group.kill();
            let _ = child.wait().await;
        }
        group.armed = false;
        let elapsed = begun.elapsed();
        let _ = end.send(true);
        (status, elapsed)
    };
    let ((status, elapsed), stdout, stderr, ()) = tokio::join!(run, stdout, stderr, feed);
    let code = match &status {
        Ok(Ok(status)) => status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(137),
        _ => 137,
    };
    Ok(ExecResult::new(code, status.is_err(), stdout, stderr, elapsed))
}
