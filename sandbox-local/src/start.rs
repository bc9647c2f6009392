//! Makes one sandbox: its box, its processes, its root.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, lchown, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, flock, mknodat};
use sandbox::{Effect, Error, ErrorKind};
use tokio::process::Child;
use tokio::runtime::Handle;

use crate::argv::Kernel;
use crate::error::io_error;
use crate::fstab::{Plan, ROOT};
use crate::ident::{Identity, Process};
use crate::plan::OLD;
use crate::spawn::{Ends, Spawner};
use crate::{modes, parse, verify};

/// The file that the sandbox's processes hold locked, and in which the first of them says who it is.
pub(crate) const ALIVE: &str = "alive";
const FSTAB: &str = "fstab";
const TICK: &str = "tick";
const GO: &str = "go";
/// What the set-up reports when it gives up.
const FAILED: &[u8] = b"failed\n";
/// The most that is kept of what the set-up says.
const MAX_MESSAGES: usize = 16 * 1024;

/// Makes the directory of a sandbox, with what its processes wait for.
pub(crate) fn make_box(path: &Path, kernel: Kernel) -> Result<(), Error> {
    let make = || -> io::Result<()> {
        modes::make_dir(path, 0o700)?;
        for name in [TICK, GO] {
            mknodat(CWD, path.join(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            fs::set_permissions(path.join(name), fs::Permissions::from_mode(0o600))?;
            kernel.own(&path.join(name))?;
        }
        kernel.own(path)
    };
    make().map_err(|e| io_error(format!("cannot make {}", path.display()), e))
}

/// Makes all that the root of a sandbox consists of.
fn fill_box(path: &Path, plan: &Plan, kernel: Kernel) -> io::Result<()> {
    let root = path.join(ROOT);
    modes::make_dir(&root, 0o755)?;
    kernel.own(&root)?;
    for (name, mode) in &plan.dirs {
        let at = root.join(name);
        modes::make_dir(&at, *mode)?;
        kernel.own(&at)?;
    }
    for (name, target) in &plan.links {
        let at = root.join(name);
        symlink(target, &at)?;
        kernel.own(&at)?;
    }
    for (name, contents) in &plan.files {
        let at = root.join(name);
        fs::write(&at, contents)?;
        fs::set_permissions(&at, fs::Permissions::from_mode(0o644))?;
        kernel.own(&at)?;
    }
    fs::write(path.join(FSTAB), plan.fstab())?;
    fs::set_permissions(path.join(FSTAB), fs::Permissions::from_mode(0o600))?;
    kernel.own(&path.join(FSTAB))
}

impl Kernel {
    /// Gives something to this user, unless the caller is this user.
    fn own(self, path: &Path) -> io::Result<()> {
        if self.switch { lchown(path, Some(self.uid), Some(self.gid)) } else { Ok(()) }
    }
}

/// A sandbox whose root is in place, with the old one perhaps still below it: nothing of a tenant may run yet.
pub(crate) struct Started {
    pub(crate) identity: Identity,
    /// The process that the caller must wait for when it ends.
    pub(crate) parent: Child,
    pub(crate) rest: Rest,
}

/// What is still to come of a start: the report, and messages for people.
pub(crate) struct Rest {
    ends: [OwnedFd; 2],
    open: [bool; 2],
    heard: [Vec<u8>; 2],
    deadline: Instant,
}

/// A box, what is to be in it, and who it is for.
pub(crate) struct Place<'a> {
    pub(crate) path: &'a Path,
    pub(crate) plan: &'a Plan,
    pub(crate) kernel: Kernel,
}

/// Starts the processes of a box, fills it meanwhile, and waits until its root is in place. What a failure leaves ends when the box is
/// removed; the runtime waits for it.
pub(crate) fn start(
    spawner: &Spawner,
    runtime: &Handle,
    place: &Place<'_>,
    program: &Program,
    deadline: Instant,
) -> Result<Started, Error> {
    let Place { path, plan, kernel } = *place;
    let (report, messages, parent) =
        launch(spawner, runtime, path, program, deadline).map_err(|e| program.failed(e))?;
    let mut rest = Rest::new(report, messages, deadline);
    let fill = || -> io::Result<File> {
        fill_box(path, plan, kernel)?;
        // For reading too: whoever waits for it may not have opened it yet, or never will.
        let mut go = OpenOptions::new().read(true).write(true).open(path.join(GO))?;
        go.write_all(b"go\n")?;
        Ok(go)
    };
    let go = fill().map_err(|e| io_error(format!("cannot fill {}", path.display()), e))?;
    rest.watch(Some(b"pivoted\n"))?;
    drop(go);
    let gone = || wrong("its first process ended".to_owned());
    let (init, parent_pid) =
        reported(path).ok_or_else(|| wrong("its first process did not say who it is".to_owned()))?;
    let identity = Identity::complete(init, parent_pid)
        .map_err(|e| io_error("cannot see the processes of the sandbox", e))?
        .ok_or_else(gone)?;
    Ok(Started { identity, parent, rest })
}

/// Waits until the old root is gone, sees to that with `detach` if it does not go by itself, and looks whether everything is as planned.
pub(crate) fn finish(
    spawner: &Spawner,
    runtime: &Handle,
    place: &Place<'_>,
    identity: &Identity,
    detach: Option<&Program>,
    mut rest: Rest,
) -> Result<(), Error> {
    rest.watch(Some(b"ready\n"))?;
    if let Some(program) = detach {
        let (report, report_end) = io::pipe().map_err(|e| program.failed(e))?;
        let (messages, messages_end) = io::pipe().map_err(|e| program.failed(e))?;
        let ends = [Stdio::null(), report_end.into(), messages_end.into()];
        let started = program.start(spawner, runtime, Path::new("/"), ends, rest.deadline);
        let mut child = started.map_err(|e| program.failed(e))?;
        let mut rest = Rest::new(report, messages, rest.deadline);
        // It says nothing if it succeeds; whether it did, the mounts tell.
        rest.watch(None).inspect_err(|_| {
            let _ = child.start_kill();
        })?;
    }
    inspect(place, identity)
}

/// A program of the host's to start.
pub(crate) struct Program {
    pub(crate) argv: Vec<OsString>,
    /// It leaves for a session of its own by itself.
    pub(crate) leaves: bool,
}

impl Program {
    fn start(
        &self,
        spawner: &Spawner,
        runtime: &Handle,
        directory: &Path,
        ends: Ends,
        deadline: Instant,
    ) -> io::Result<Child> {
        spawner.spawn(runtime, &self.argv, directory, ends, self.leaves, deadline)
    }

    fn failed(&self, error: io::Error) -> Error {
        let name = self.argv.first().map(|a| a.to_string_lossy().into_owned()).unwrap_or_default();
        io_error(format!("cannot start {name}"), error)
    }
}

fn launch(
    spawner: &Spawner,
    runtime: &Handle,
    path: &Path,
    program: &Program,
    deadline: Instant,
) -> io::Result<(OwnedFd, OwnedFd, Child)> {
    let alive = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path.join(ALIVE))?;
    modes::set(&alive, 0o600)?;
    flock(&alive, FlockOperation::NonBlockingLockExclusive)?;
    let ((report, report_end), (messages, messages_end)) = (io::pipe()?, io::pipe()?);
    let ends = [Stdio::from(alive), Stdio::from(report_end), Stdio::from(messages_end)];
    let child = program.start(spawner, runtime, path, ends, deadline)?;
    Ok((report.into(), messages.into(), child))
}

impl Rest {
    fn new(report: impl Into<OwnedFd>, messages: impl Into<OwnedFd>, deadline: Instant) -> Self {
        Self { ends: [report.into(), messages.into()], open: [true; 2], heard: [Vec::new(), Vec::new()], deadline }
    }

    /// Waits for the word that something is in place, or without one for a silent end.
    fn watch(&mut self, awaited: Option<&[u8]>) -> Result<(), Error> {
        loop {
            if let Some(word) = awaited
                && self.heard[0].starts_with(word)
            {
                self.heard[0].drain(..word.len());
                return Ok(());
            }
            if self.heard[0].starts_with(FAILED) {
                // Its messages came before that word; whoever else holds their pipe goes on holding it.
                self.hear_out()?;
                return Err(self.failed("the set-up failed"));
            }
            if self.open == [false; 2] {
                break;
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.failed("it was not in place in time"));
            }
            let mut fds: Vec<_> = self.ends.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            if let Some(closed) = self.open.iter().position(|open| !open) {
                fds.remove(closed);
            }
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(io_error("cannot wait for the set-up", e)),
            }
            let mut ready = fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
            for i in 0..2 {
                if self.open[i] && ready.next() == Some(true) {
                    self.open[i] = read_some(&self.ends[i], &mut self.heard[i])?;
                }
            }
        }
        if awaited.is_none() && self.heard[1].is_empty() {
            return Ok(());
        }
        Err(self.failed("the set-up ended early"))
    }

    /// Takes the messages that are there.
    fn hear_out(&mut self) -> Result<(), Error> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while self.open[1] && self.heard[1].len() < MAX_MESSAGES {
            let mut fd = [PollFd::new(&self.ends[1], PollFlags::IN)];
            match poll(&mut fd, Some(&now)) {
                Ok(0) => break,
                Ok(_) => self.open[1] = read_some(&self.ends[1], &mut self.heard[1])?,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(io_error("cannot wait for the set-up", e)),
            }
        }
        Ok(())
    }

    fn failed(&self, what: &str) -> Error {
        let said = parse::messages(&String::from_utf8_lossy(&self.heard[1]));
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        Error::new(ErrorKind::Unavailable).with_effect(Effect::Unknown).because(format!("{what}{said}"))
    }
}

/// Reads what is there; `false` at the end.
fn read_some(fd: impl AsFd, kept: &mut Vec<u8>) -> Result<bool, Error> {
    let mut bytes = [0u8; 4096];
    let n = rustix::io::read(fd, &mut bytes).map_err(|e| io_error("cannot read from the set-up", e))?;
    let room = MAX_MESSAGES.saturating_sub(kept.len());
    kept.extend_from_slice(&bytes[..n.min(room)]);
    Ok(n > 0)
}

fn wrong(what: String) -> Error {
    let what = format!("it is not what it must be: {what}");
    Error::new(ErrorKind::Unavailable).with_effect(Effect::Unknown).because(what)
}

/// Looks at what was made, from outside.
fn inspect(place: &Place<'_>, identity: &Identity) -> Result<(), Error> {
    let Place { path, plan, kernel } = *place;
    let read = |what: &str| {
        let file = format!("/proc/{}/{what}", identity.init.pid);
        fs::read(&file).map_err(|e| io_error(format!("cannot read {file}"), e))
    };
    let mounts = parse::mountinfo(&read("mountinfo")?).ok_or_else(|| wrong("its mounts are not legible".to_owned()))?;
    verify::mounts(plan, &mounts).map_err(wrong)?;
    let status = String::from_utf8_lossy(&read("status")?).into_owned();
    verify::credentials(&status, kernel.uid, kernel.gid).map_err(wrong)?;
    // Where the old root was: by now an empty directory. From out here it is not the sandbox's business whether it can be written.
    fs::remove_dir(path.join(ROOT).join(OLD)).map_err(|e| io_error("cannot remove what held the old root", e))?;
    match identity.lives() {
        Ok(true) => Ok(()),
        Ok(false) => Err(wrong("its first process ended".to_owned())),
        Err(e) => Err(io_error("cannot see the processes of the sandbox", e)),
    }
}

/// What the first process of a box said of itself: who it is, and its parent's pid.
pub(crate) fn reported(path: &Path) -> Option<(Process, i32)> {
    let text = fs::read_to_string(path.join(ALIVE)).ok()?;
    let stat = parse::stat(text.strip_suffix('\n')?)?;
    Some((Process { pid: stat.pid, start: stat.start }, stat.parent))
}

/// Whether a process of the box still holds its lock. What cannot be looked at is an error, never an answer.
pub(crate) fn is_held(path: &Path) -> io::Result<bool> {
    let alive = path.join(ALIVE);
    let file = match modes::opened(&[(path, 0o700), (&alive, 0o600)], || File::open(&alive)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    // Shared, so that two who look at once do not take each other for the sandbox.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_by_somebody_by_nobody_or_out_of_sight() {
        let place = tempfile::tempdir().unwrap();
        assert!(!is_held(place.path()).unwrap(), "there is no file");
        fs::write(place.path().join(ALIVE), "").unwrap();
        assert!(!is_held(place.path()).unwrap() && !is_held(place.path()).unwrap());
        let holder = OpenOptions::new().write(true).open(place.path().join(ALIVE)).unwrap();
        flock(&holder, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(is_held(place.path()).unwrap());
        drop(holder);
        assert!(!is_held(place.path()).unwrap());
        is_held(&place.path().join(ALIVE)).expect_err("what cannot be looked at is not free");
    }

    #[test]
    fn who_a_first_process_says_it_is() {
        let place = tempfile::tempdir().unwrap();
        let says = |text: &str| {
            fs::write(place.path().join(ALIVE), text).unwrap();
            reported(place.path())
        };
        let line = "42 (bash) R 7 42 42 0 -1 4194560 151 0 0 0 0 0 0 0 20 0 1 0 449415 4034560 753";
        assert_eq!(says(&format!("{line}\n")), Some((Process { pid: 42, start: 449_415 }, 7)));
        // Cut off in the middle of being written.
        assert_eq!(says(line), None);
        assert_eq!(says(""), None);
    }

    #[test]
    fn what_the_set_up_says_is_heard_to_its_end_and_no_further_than_that() {
        let soon = || Instant::now() + std::time::Duration::from_secs(20);
        let run = |text: &str, deadline: Instant, awaited: Option<&[u8]>| {
            let ((report, report_end), (messages, messages_end)) = (io::pipe().unwrap(), io::pipe().unwrap());
            let mut child = std::process::Command::new("/bin/sh")
                .args(["-c", text])
                .stdin(Stdio::null())
                .stdout(report_end)
                .stderr(messages_end)
                .spawn()
                .unwrap();
            let heard = Rest::new(report, messages, deadline).watch(awaited);
            child.kill().unwrap();
            child.wait().unwrap();
            heard.map_err(|e| e.to_string())
        };
        let ready = Some(&b"ready\n"[..]);
        run("echo ready; exec sleep 60", soon(), ready).unwrap();
        run("echo odd >&2; echo ready", soon(), ready).unwrap();
        run("true", soon(), None).unwrap();
        let error = run("echo 'mount: no' >&2; echo re", soon(), ready).unwrap_err();
        assert!(error.ends_with("the set-up ended early: mount: no"), "{error}");
        let error = run("echo no >&2", soon(), None).unwrap_err();
        assert!(error.ends_with("the set-up ended early: no"), "{error}");
        let error = run("head -c 9999999 /dev/zero | tr '\\0' x >&2", soon(), ready).unwrap_err();
        assert!(error.len() < MAX_MESSAGES + 200, "{}", error.len());
        let begun = Instant::now();
        let error =
            run("echo slow >&2; exec sleep 60", begun + std::time::Duration::from_millis(200), ready).unwrap_err();
        assert!(error.ends_with("it was not in place in time: slow") && begun.elapsed().as_secs() < 10, "{error}");
    }
}
