//! Commands, by `nsenter`.

use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use sandbox::{
    ByteStream, Command, Effect, Env, Error, ErrorKind, ExecRequest, ExecResult, Exit, Output, Process, ProcessControl,
    SandboxPath, SpawnRequest, Spec,
};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;
use tokio::sync::watch;

use super::Init;

/// The children of `parent`.
fn children(parent: i32) -> Vec<i32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let of_parent = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let ppid = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        ppid == Some(parent)
    };
    pids.filter(of_parent).collect()
}

/// Stops a process, waits until it stands still or is gone, and answers its children.
fn stilled(pid: Pid) -> Vec<i32> {
    let _ = kill_process(pid, Signal::STOP);
    let raw = pid.as_raw_nonzero().get();
    for _ in 0..500 {
        let stat = std::fs::read_to_string(format!("/proc/{raw}/stat")).unwrap_or_default();
        if stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with(['T', 't', 'Z', 'X'])) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    children(raw)
}

/// Who has `mark` in its environment, wherever its parent is.
fn marked(mark: &str) -> Vec<i32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has = |pid: &i32| {
        let vars = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        vars.split(|b| *b == 0).any(|var| var == mark.as_bytes())
    };
    pids.filter(has).collect()
}

/// The first child of `parent`.
pub(super) fn child_of(parent: i32) -> Option<i32> {
    children(parent).first().copied()
}

/// Refuses a working directory that is none, as seen from outside.
fn check_workdir(init: i32, workdir: &SandboxPath) -> Result<(), Error> {
    let outside = [format!("/proc/{init}/root").as_bytes(), workdir.as_bytes()].concat();
    let kind = match std::fs::metadata(std::ffi::OsStr::from_bytes(&outside)) {
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

fn start(
    spec: &Spec,
    init: i32,
    command: &Command,
    env: &Env,
    workdir: Option<&SandboxPath>,
    stdin: Stdio,
) -> Result<(Child, Group), Error> {
    let workdir = workdir.unwrap_or(&spec.workdir);
    check_workdir(init, workdir)?;
    let mut wdns = std::ffi::OsString::from("--wdns=");
    wdns.push(std::ffi::OsStr::from_bytes(workdir.as_bytes()));
    // A shell that runs tests in the background ignores SIGINT, and so would they and all that they start.
    let mut nsenter = tokio::process::Command::new("/usr/bin/env");
    nsenter.args(["--default-signal", "/usr/bin/nsenter"]);
    nsenter.args(["--target", &init.to_string(), "--user", "--preserve-credentials", "--mount", "--pid"]).arg(wdns);
    if super::cut_off(spec) {
        nsenter.arg("--net");
    }
    nsenter.args(["--", "/usr/bin/setsid"]);
    let dropped = &spec.hardening.cap_drop;
    if !dropped.is_empty() {
        let names: Vec<_> = dropped.names().iter().map(|name| format!("-{}", name.to_lowercase())).collect();
        let names = names.join(",");
        nsenter.args(["/usr/bin/setpriv", "--no-new-privs", "--bounding-set", &names, "--inh-caps", &names, "--"]);
    }
    let mut script = None;
    match command {
        Command::Shell(text) if text.len() > ExecRequest::MAX_ARG => {
            static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
            let name = format!("run/text-{}", COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
            let outside = format!("/proc/{init}/root/{name}");
            std::fs::write(&outside, text).map_err(super::fault)?;
            nsenter.args(["/usr/bin/bash", &format!("/{name}")]);
            script = Some(outside);
        }
        Command::Shell(text) => {
            nsenter.args(["/usr/bin/bash", "-c"]).arg(std::ffi::OsStr::from_bytes(text));
        }
        Command::Args(args) => {
            nsenter.args(args.iter().map(|arg| std::ffi::OsStr::from_bytes(arg)));
        }
        other => return Err(Error::new(ErrorKind::Unsupported).because(format!("{other:?}"))),
    }
    nsenter.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", "/workspace");
    for (name, value) in spec.env.iter().chain(env.iter()) {
        nsenter.env(name, std::ffi::OsStr::from_bytes(value));
    }
    if let Some(gate) = &spec.gate {
        for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"] {
            nsenter.env(name, &gate.control_plane);
        }
    }
    static COMMANDS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let count = COMMANDS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mark = format!("PLAIN_COMMAND={}.{count}.", std::process::id());
    nsenter.env("PLAIN_COMMAND", &mark["PLAIN_COMMAND=".len()..]);
    nsenter.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = nsenter.spawn().map_err(super::fault)?;
    let pid = child.id().and_then(|id| Pid::from_raw(id as i32)).unwrap();
    Ok((child, Group { nsenter: pid, armed: true, script, mark }))
}

/// The processes of one command, killed when it is dropped armed.
#[derive(Debug)]
struct Group {
    nsenter: Pid,
    armed: bool,
    script: Option<String>,
    /// What stands in the environment of all that it started.
    mark: String,
}

impl Group {
    fn signal(&self, signal: Signal) {
        let Some(inner) = child_of(self.nsenter.as_raw_nonzero().get()).and_then(Pid::from_raw) else { return };
        let _ = kill_process_group(inner, signal);
    }

    fn kill(&self) {
        // Who stands still starts nobody behind the look at its children.
        let mut all = stilled(self.nsenter);
        all.extend(marked(&self.mark));
        let mut at = 0;
        while let Some(parent) = all.get(at).copied() {
            all.extend(Pid::from_raw(parent).map(stilled).unwrap_or_default());
            at += 1;
        }
        for pid in all.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = kill_process_group(self.nsenter, Signal::KILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.armed {
            self.kill();
        }
        if let Some(script) = &self.script {
            let _ = std::fs::remove_file(script);
        }
    }
}

/// Keeps the head of a stream; goes on draining after its command ended.
async fn capture(
    mut from: impl AsyncRead + Unpin + Send + 'static,
    cap: usize,
    mut ended: watch::Receiver<bool>,
) -> Output {
    let kept = Arc::new(Mutex::new((Vec::new(), 0u64)));
    let shared = Arc::clone(&kept);
    let (closed, mut eof) = watch::channel(false);
    tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(n @ 1..) = from.read(&mut buffer).await {
            let mut kept = shared.lock().unwrap();
            let room = cap.saturating_sub(kept.0.len()).min(n);
            kept.0.extend_from_slice(&buffer[..room]);
            kept.1 += n as u64;
        }
        let _ = closed.send(true);
    });
    let early = tokio::select! {
        _ = eof.wait_for(|closed| *closed) => true,
        _ = ended.wait_for(|ended| *ended) => false,
    };
    if !early {
        // What the command wrote is in the pipe by now, and read in no time; others may go on printing for ever.
        let _ = tokio::time::timeout(Duration::from_millis(250), eof.wait_for(|closed| *closed)).await;
    }
    let kept = kept.lock().unwrap();
    Output::new(kept.0.clone(), kept.1)
}

fn code(status: std::io::Result<std::process::ExitStatus>) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.ok().and_then(|s| s.code().or_else(|| s.signal().map(|n| 128 + n))).unwrap_or(137)
}

pub(super) async fn exec(spec: &Spec, init: i32, request: ExecRequest) -> Result<ExecResult, Error> {
    let ExecRequest { command, env, workdir, limit, grace, stdout_cap, stderr_cap, .. } = request;
    let (mut child, mut group) = start(spec, init, &command, &env, workdir.as_ref(), Stdio::null())?;
    let begun = Instant::now();
    let (end, ended) = watch::channel(false);
    let stdout = capture(child.stdout.take().unwrap(), stdout_cap, ended.clone());
    let stderr = capture(child.stderr.take().unwrap(), stderr_cap, ended);
    let run = async {
        let far = Duration::from_secs(1 << 30);
        let status = match tokio::time::timeout(limit.unwrap_or(far), child.wait()).await {
            Ok(status) => (code(status), false),
            Err(_) => {
                if !grace.is_zero() {
                    group.signal(Signal::TERM);
                    let _ = tokio::time::timeout(grace, child.wait()).await;
                }
                group.kill();
                let _ = child.wait().await;
                (137, true)
            }
        };
        group.armed = false;
        let elapsed = begun.elapsed();
        let _ = end.send(true);
        (status.0, status.1, elapsed)
    };
    let ((code, timed_out, elapsed), stdout, stderr) = tokio::join!(run, stdout, stderr);
    Ok(ExecResult::new(code, timed_out, stdout, stderr, elapsed))
}

/// How long the streams of a command that has ended may be silent before they end, whoever still holds them.
const SILENCE: Duration = Duration::from_millis(250);

/// What is read to its end also when nobody wants it any more.
struct Drained<R: AsyncRead + Unpin + Send + 'static>(Option<R>);

impl<R: AsyncRead + Unpin + Send + 'static> Drop for Drained<R> {
    fn drop(&mut self) {
        if let (Some(mut from), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { tokio::io::copy(&mut from, &mut tokio::io::sink()).await });
        }
    }
}

/// Comes some time after the end with its code, or never where nobody will tell of one.
async fn silence(mut ended: watch::Receiver<Option<i32>>) -> i32 {
    let code = ended.wait_for(Option::is_some).await.ok().and_then(|code| *code);
    match code {
        Some(code) => {
            tokio::time::sleep(SILENCE).await;
            code
        }
        None => std::future::pending().await,
    }
}

fn stream(from: impl AsyncRead + Unpin + Send + 'static, ended: watch::Receiver<Option<i32>>) -> ByteStream {
    ByteStream::new(futures::stream::unfold((Drained(Some(from)), ended), |(mut from, ended)| async move {
        let mut buffer = vec![0; 1 << 16];
        let read = tokio::select! {
            biased;
            read = from.0.as_mut()?.read(&mut buffer) => read,
            // Whoever killed it may have killed what would have printed more.
            code = silence(ended.clone()) => {
                let lost = Err(Error::new(ErrorKind::Lost).with_effect(Effect::Unknown));
                return (code == 137).then(|| (lost, (Drained(None), ended)));
            }
        };
        match read {
            Ok(0) => None,
            Ok(n) => Some((Ok(Bytes::copy_from_slice(&buffer[..n])), (from, ended))),
            Err(e) => Some((Err(super::fault(e)), (from, ended))),
        }
    }))
}

/// An input that breaks once its command has ended, whoever still holds the pipe.
fn input(mut to: tokio::process::ChildStdin, mut ended: watch::Receiver<Option<i32>>) -> tokio::io::DuplexStream {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        tokio::select! {
            _ = tokio::io::copy(&mut far, &mut to) => {}
            Ok(_) = ended.wait_for(Option::is_some) => {}
        }
    });
    near
}

#[derive(Debug)]
struct Control {
    child: Child,
    group: Group,
    kill_at: Option<tokio::time::Instant>,
    exit: Option<Exit>,
    ended: watch::Sender<Option<i32>>,
    init: Init,
}

#[async_trait]
impl ProcessControl for Control {
    async fn signal(&self, signal: sandbox::Signal) -> Result<(), Error> {
        let named = [
            (sandbox::Signal::Hangup, Signal::HUP),
            (sandbox::Signal::Interrupt, Signal::INT),
            (sandbox::Signal::Quit, Signal::QUIT),
            (sandbox::Signal::User1, Signal::USR1),
            (sandbox::Signal::User2, Signal::USR2),
            (sandbox::Signal::Terminate, Signal::TERM),
            (sandbox::Signal::Continue, Signal::CONT),
            (sandbox::Signal::Stop, Signal::STOP),
        ];
        match named.iter().find(|(theirs, _)| *theirs == signal) {
            Some((_, ours)) => {
                self.group.signal(*ours);
                if signal == sandbox::Signal::Continue {
                    let _ = kill_process(self.group.nsenter, Signal::CONT);
                }
            }
            None => self.group.kill(),
        }
        Ok(())
    }

    async fn wait(&mut self) -> Result<Exit, Error> {
        if let Some(exit) = self.exit {
            return Ok(exit);
        }
        let far = tokio::time::Instant::now() + Duration::from_secs(1 << 30);
        let exit = match tokio::time::timeout_at(self.kill_at.unwrap_or(far), self.child.wait()).await {
            Ok(status) => Exit::new(code(status), false),
            Err(_) => {
                self.group.kill();
                let _ = self.child.wait().await;
                Exit::new(137, true)
            }
        };
        self.group.armed = false;
        let _ = self.ended.send(Some(exit.code));
        if exit.code == 137 && !exit.timed_out {
            // Whoever killed it may be about to kill everything.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if !self.init.lives() {
            return Err(Error::new(ErrorKind::NotFound).with_effect(Effect::Unknown));
        }
        self.exit = Some(exit);
        Ok(exit)
    }
}

pub(super) async fn spawn(spec: &Spec, init: Init, request: SpawnRequest) -> Result<Process, Error> {
    let stdin = if request.stdin { Stdio::piped() } else { Stdio::null() };
    let (mut child, group) = start(spec, init.pid, &request.command, &request.env, request.workdir.as_ref(), stdin)?;
    let (ended, end) = watch::channel(None);
    let stdin = child.stdin.take().map(|stdin| Box::pin(input(stdin, end.clone())) as _);
    let stdout = stream(child.stdout.take().unwrap(), end.clone());
    let stderr = stream(child.stderr.take().unwrap(), end);
    let kill_at = request.limit.map(|limit| tokio::time::Instant::now() + limit);
    let control = Box::new(Control { child, group, kill_at, exit: None, ended, init });
    Ok(Process::new(stdin, stdout, stderr, control))
}
