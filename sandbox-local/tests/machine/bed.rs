//! Runs trials in processes of their own.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial as Listed};
use sandbox::{ExecRequest, ExecResult, Networking, Owned, Provider, Sandbox, SandboxPath, SessionId, Spec};
use sandbox_local::{LocalConfig, LocalProvider};

/// What a trial is called, what it needs, and what it does.
pub(crate) type Trial = (&'static str, Needs, fn(&Bed));

/// What another process does in a trial.
pub(crate) type Part = (&'static str, fn(&Bed));

/// What a trial needs of whoever runs the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// The tests run as root, though the trial may not.
    Root,
}

/// A user who has nothing and may do nothing.
const NOBODY: u32 = 54_321;
/// Tells a process which trial it is, and which part of it.
const ROLE: &str = "SANDBOX_LOCAL_ROLE";
/// Where a process that plays a part finds the state directory.
const STATE: &str = "SANDBOX_LOCAL_STATE";
/// No trial takes longer.
const PATIENCE: Duration = Duration::from_secs(240);

/// Lists and runs the trials, or plays a part in one.
pub(crate) fn main(trials: &[&'static [Trial]], parts: &[&'static [Part]]) -> ExitCode {
    let all: Vec<Trial> = trials.iter().flat_map(|area| area.iter().copied()).collect();
    if let Ok(role) = std::env::var(ROLE) {
        let parts = parts.iter().flat_map(|area| area.iter().copied());
        let mut known = all.iter().map(|(name, _, body)| (*name, *body)).chain(parts);
        let (_, body) = known.find(|(name, _)| *name == role).expect("a trial or part of that name");
        body(&Bed { state: std::env::var_os(STATE).expect("a state directory").into() });
        return ExitCode::SUCCESS;
    }
    let root = rustix::process::geteuid().is_root();
    // Where users without privileges can read it.
    let place = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in("/var/tmp")
        .expect("a directory");
    let program = place.path().join("machine");
    fs::copy(std::env::current_exe().expect("this program"), &program).expect("a copy of this program");
    let mut listed = Vec::new();
    for (name, needs, _) in all {
        for user in if root { &["root", "user"][..] } else { &["user"][..] } {
            let program = program.clone();
            let switch = root && *user == "user";
            let trial = Listed::test(format!("{user}::{name}"), move || run(&program, name, switch));
            listed.push(trial.with_ignored_flag(needs == Needs::Root && !root));
        }
    }
    let arguments = Arguments::from_args();
    let conclusion = libtest_mimic::run(&arguments, listed);
    let code = conclusion.exit_code();
    drop(place);
    code
}

/// Runs one trial to its end and looks for what it left.
fn run(program: &Path, name: &str, switch: bool) -> Result<(), Failed> {
    let place = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o777)).tempdir_in("/var/tmp")?;
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777))?;
    let state = place.path().join("state");
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
        .env(ROLE, name)
        .env(STATE, &state)
        .env("RUST_BACKTRACE", "0");
    command.env("HOST_SECRET", "visible");
    if switch {
        command.uid(NOBODY).gid(NOBODY);
    }
    let mut child =
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut stderr = child.stderr.take().ok_or("no standard error")?;
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        let _ = stderr.read_to_string(&mut said);
        said
    });
    let begun = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if begun.elapsed() > PATIENCE => {
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let left = left_of(place.path());
    // Whatever the outcome: nothing of it stays on this machine.
    for pid in processes_of(place.path()) {
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    let said = reader.join().unwrap_or_default();
    match status {
        None => Err(format!("it did not end within {PATIENCE:?}\n{said}").into()),
        Some(status) if !status.success() => Err(format!("{status}\n{said}{left:?}").into()),
        _ if !left.is_empty() => Err(format!("it left {left:#?}").into()),
        _ => Ok(()),
    }
}

/// Processes that have to do with a directory: by their root, working directory, streams or mounts.
pub(crate) fn processes_of(place: &Path) -> Vec<i32> {
    let name = place.to_string_lossy().into_owned();
    let pids =
        fs::read_dir("/proc").expect("/proc").flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let of = |what: &str| fs::read_link(format!("/proc/{pid}/{what}")).unwrap_or_default();
        let links = ["cwd", "root", "exe", "fd/0", "fd/1", "fd/2"].map(of);
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        links.iter().any(|l| l.starts_with(place)) || mounts.contains(&name)
    })
    .collect()
}

/// What is left of the sandboxes that had their state below `place`.
pub(crate) fn left_of(place: &Path) -> Vec<String> {
    let mut left = Vec::new();
    for pid in processes_of(place) {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        left.push(format!("process {pid}: {}", command.replace('\0', " ")));
    }
    if let Ok(sessions) = fs::read_dir(place.join("state")) {
        left.extend(sessions.flatten().map(|e| e.path().display().to_string()));
    }
    left
}

/// One trial's place.
pub(crate) struct Bed {
    pub(crate) state: PathBuf,
}

impl Bed {
    pub(crate) fn config(&self) -> LocalConfig {
        LocalConfig::default().with_state_dir(&self.state)
    }

    pub(crate) fn provider(&self) -> LocalProvider {
        LocalProvider::new(self.config()).unwrap()
    }

    /// Runs a future on a runtime of its own.
    pub(crate) fn block<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
    }

    /// Makes a sandbox, runs `work` in it, and reaps it.
    pub(crate) fn with<T, F>(&self, spec: &Spec, work: impl FnOnce(Arc<dyn Sandbox>) -> F) -> T
    where
        F: Future<Output = T>,
    {
        self.block(async {
            let provider = self.provider();
            let sandbox = provider.provision(spec).await.unwrap();
            let result = work(sandbox).await;
            provider.reap(&spec.session).await.unwrap();
            result
        })
    }

    /// This program again, as another process that plays the trial `name` on the same state directory, with `wrap` before it.
    pub(crate) fn again(&self, name: &str, wrap: &[&str]) -> Command {
        let program = std::env::current_exe().unwrap();
        let mut command = match wrap.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.env(ROLE, name).env(STATE, &self.state).stdin(Stdio::null());
        command
    }
}

/// The sandbox most trials want: nothing to reach.
pub(crate) fn spec(session: &str) -> Spec {
    Spec::new(SessionId::new(session).unwrap(), "host").with_networking(Networking::None)
}

/// Runs a shell text that must succeed, and answers what it printed.
pub(crate) async fn ok(sandbox: &Arc<dyn Sandbox>, text: &str) -> String {
    let result = sh(sandbox, text).await;
    let (out, err) = (result.stdout.to_string_lossy().into_owned(), result.stderr.to_string_lossy().into_owned());
    assert_eq!(result.exit_code, 0, "{text}\n{out}{err}");
    out
}

/// Runs a shell text.
pub(crate) async fn sh(sandbox: &Arc<dyn Sandbox>, text: &str) -> ExecResult {
    let request = ExecRequest::shell(text.to_owned()).with_limit(Duration::from_secs(60));
    let result = sandbox.exec(request).await.unwrap();
    assert!(!result.timed_out, "{text}");
    result
}

pub(crate) fn path(text: &str) -> SandboxPath {
    SandboxPath::new(text).unwrap()
}

/// All that a provider lists.
pub(crate) async fn owned(provider: &LocalProvider) -> Vec<Owned> {
    let mut all = Vec::new();
    let mut owned = provider.owned().await.unwrap();
    while let Some(one) = owned.next().await {
        all.push(one.unwrap());
    }
    all
}
