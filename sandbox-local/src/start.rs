//! Makes one sandbox: its box, its processes, its root.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown, symlink};
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
use crate::spawn::Spawner;
use crate::{parse, verify};

/// The file that the sandbox's processes hold locked, and in which the first of them says who it is.
pub(crate) const ALIVE: &str = "alive";
const FSTAB: &str = "fstab";
const TICK: &str = "tick";
/// The most that is kept of what the set-up says.
const MAX_MESSAGES: usize = 16 * 1024;

/// Makes the directory of a sandbox and all that its root consists of.
pub(crate) fn make_box(path: &Path, plan: &Plan, kernel: Kernel) -> Result<(), Error> {
    let make = || -> io::Result<()> {
        let own = |path: &Path| if kernel.switch { lchown(path, Some(kernel.uid), Some(kernel.gid)) } else { Ok(()) };
        DirBuilder::new().mode(0o700).create(path)?;
        let root = path.join(ROOT);
        fs::create_dir(&root)?;
        own(&root)?;
        for (name, mode) in &plan.dirs {
            let at = root.join(name);
            fs::create_dir(&at)?;
            fs::set_permissions(&at, fs::Permissions::from_mode(*mode))?;
            own(&at)?;
        }
        for (name, target) in &plan.links {
            let at = root.join(name);
            symlink(target, &at)?;
            own(&at)?;
        }
        for (name, contents) in &plan.files {
            let at = root.join(name);
            fs::write(&at, contents)?;
            fs::set_permissions(&at, fs::Permissions::from_mode(0o644))?;
            own(&at)?;
        }
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755))?;
        fs::write(path.join(FSTAB), plan.fstab())?;
        mknodat(CWD, path.join(TICK), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        for name in [FSTAB, TICK] {
            own(&path.join(name))?;
        }
        own(path)
    };
    make().map_err(|e| io_error(format!("cannot make {}", path.display()), e))
}

/// A sandbox that was just made.
pub(crate) struct Started {
    pub(crate) identity: Identity,
    /// The process that the caller must wait for when it ends.
    pub(crate) parent: Child,
}

/// What it takes to start a sandbox besides its box.
pub(crate) struct Programs<'a> {
    /// Makes it.
    pub(crate) start: Vec<OsString>,
    /// Lets go of its old root, if the first one does not: given the first process and its parent.
    pub(crate) detach: Option<&'a dyn Fn(i32, i32) -> Vec<OsString>>,
    /// They leave for a session of their own by themselves.
    pub(crate) leaves: bool,
}

/// Starts the processes of a box and waits until its root is in place. What a failure leaves ends when the box is removed; the runtime
/// waits for it.
pub(crate) fn start(
    spawner: &Spawner,
    runtime: &Handle,
    path: &Path,
    plan: &Plan,
    kernel: Kernel,
    programs: &Programs<'_>,
    deadline: Instant,
) -> Result<Started, Error> {
    let (report, messages, parent) =
        launch(spawner, runtime, path, programs).map_err(|e| cannot_start(&programs.start, e))?;
    watch(report, messages, deadline, Some(b"ready\n"))?;
    if let (Some(detach), Some((init, parent))) = (programs.detach, reported(path)) {
        let argv = detach(init.pid, parent);
        let (messages, end) = io::pipe().map_err(|e| cannot_start(&argv, e))?;
        let (report, report_end) = io::pipe().map_err(|e| cannot_start(&argv, e))?;
        let ends = [Stdio::null(), report_end.into(), end.into()];
        let mut child =
            spawner.spawn(runtime, &argv, Path::new("/"), ends, programs.leaves).map_err(|e| cannot_start(&argv, e))?;
        // It says nothing if it succeeds; whether it did, the mounts tell.
        watch(report.into(), messages.into(), deadline, None).inspect_err(|_| {
            let _ = child.start_kill();
        })?;
    }
    Ok(Started { identity: inspect(path, plan, kernel)?, parent })
}

fn cannot_start(argv: &[OsString], error: io::Error) -> Error {
    let name = argv.first().map(|a| a.to_string_lossy().into_owned()).unwrap_or_default();
    io_error(format!("cannot start {name}"), error)
}

fn launch(
    spawner: &Spawner,
    runtime: &Handle,
    path: &Path,
    programs: &Programs<'_>,
) -> io::Result<(OwnedFd, OwnedFd, Child)> {
    let alive = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path.join(ALIVE))?;
    flock(&alive, FlockOperation::NonBlockingLockExclusive)?;
    let ((report, report_end), (messages, messages_end)) = (io::pipe()?, io::pipe()?);
    let ends = [Stdio::from(alive), Stdio::from(report_end), Stdio::from(messages_end)];
    let child = spawner.spawn(runtime, &programs.start, path, ends, programs.leaves)?;
    Ok((report.into(), messages.into(), child))
}

/// Waits for the word that everything is in place, or without one for a silent end.
fn watch(report: OwnedFd, messages: OwnedFd, deadline: Instant, awaited: Option<&[u8]>) -> Result<(), Error> {
    let failed = |what: &str, said: &[u8]| {
        let said = String::from_utf8_lossy(said);
        let said = said.trim().replace('\n', "; ");
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        Error::new(ErrorKind::Unavailable).with_effect(Effect::Unknown).because(format!("{what}{said}"))
    };
    let (mut word, mut said) = (Vec::new(), Vec::new());
    let mut open = [true, true];
    while open[0] || open[1] {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failed("it was not in place in time", &said));
        }
        let mut fds = Vec::new();
        for (fd, open) in [(&report, open[0]), (&messages, open[1])] {
            if open {
                fds.push(PollFd::new(fd, PollFlags::IN));
            }
        }
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(io_error("cannot wait for the set-up", e)),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        for (i, (fd, kept)) in [(&report, &mut word), (&messages, &mut said)].into_iter().enumerate() {
            if open[i] && ready.next() == Some(true) {
                open[i] = read_some(fd, kept)?;
            }
        }
        if awaited == Some(&word) {
            return Ok(());
        }
    }
    if awaited.is_none() && said.is_empty() {
        return Ok(());
    }
    Err(failed("the set-up ended early", &said))
}

/// Reads what is there; `false` at the end.
fn read_some(fd: impl AsFd, kept: &mut Vec<u8>) -> Result<bool, Error> {
    let mut bytes = [0u8; 4096];
    let n = rustix::io::read(fd, &mut bytes).map_err(|e| io_error("cannot read from the set-up", e))?;
    let room = MAX_MESSAGES.saturating_sub(kept.len());
    kept.extend_from_slice(&bytes[..n.min(room)]);
    Ok(n > 0)
}

/// Looks at what was made, from outside, and says who it is.
fn inspect(path: &Path, plan: &Plan, kernel: Kernel) -> Result<Identity, Error> {
    let wrong = |what: String| {
        Error::new(ErrorKind::Unavailable)
            .with_effect(Effect::Unknown)
            .because(format!("it is not what it must be: {what}"))
    };
    let (init, parent) = reported(path).ok_or_else(|| wrong("its first process did not say who it is".to_owned()))?;
    let read = |what: &str| {
        let file = format!("/proc/{}/{what}", init.pid);
        fs::read(&file).map_err(|e| io_error(format!("cannot read {file}"), e))
    };
    let mounts = parse::mountinfo(&read("mountinfo")?).ok_or_else(|| wrong("its mounts are not legible".to_owned()))?;
    verify::mounts(plan, &mounts).map_err(wrong)?;
    let status = String::from_utf8_lossy(&read("status")?).into_owned();
    verify::credentials(&status, kernel.uid, kernel.gid).map_err(wrong)?;
    let identity = Identity::complete(init, parent)
        .map_err(|e| io_error("cannot see the processes of the sandbox", e))?
        .ok_or_else(|| wrong("its first process ended".to_owned()))?;
    // Where the old root was: by now an empty directory. From out here it is not the sandbox's business whether it can be written.
    fs::remove_dir(path.join(ROOT).join(OLD)).map_err(|e| io_error("cannot remove what held the old root", e))?;
    Ok(identity)
}

/// What the first process of a box said of itself: who it is, and its parent's pid.
pub(crate) fn reported(path: &Path) -> Option<(Process, i32)> {
    let text = fs::read_to_string(path.join(ALIVE)).ok()?;
    let stat = parse::stat(text.strip_suffix('\n')?)?;
    Some((Process { pid: stat.pid, start: stat.start }, stat.parent))
}

/// Whether a process of the box still holds its lock. What cannot be looked at is an error, never an answer.
pub(crate) fn is_held(path: &Path) -> io::Result<bool> {
    let file = match File::open(path.join(ALIVE)) {
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
            let heard = watch(report.into(), messages.into(), deadline, awaited);
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
