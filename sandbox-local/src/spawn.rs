//! Starts the host's programs, with nothing of the caller's process left to them.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use keyutils::{Keyring, Permission};
use sandbox::{Error, ErrorKind};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

use crate::error::io_error;

/// Standard input, output and error of a program.
pub(crate) type Ends = [Stdio; 3];

/// How many programs may wait for their start.
const WAITING: usize = 64;
/// How long the thread may take to get ready.
const READY: Duration = Duration::from_secs(10);

/// A thread that starts programs. What it starts can never gain privileges and has no key of the caller's: the kernel keeps both per
/// thread, so that the caller's own threads stay as they are. It ends with the last of its handles.
#[derive(Clone)]
pub(crate) struct Spawner {
    jobs: SyncSender<Job>,
}

struct Job {
    command: Command,
    runtime: Handle,
    deadline: Instant,
    done: SyncSender<io::Result<Child>>,
}

impl Spawner {
    /// Starts the thread.
    pub(crate) fn new() -> Result<Self, Error> {
        let (jobs, waiting) = sync_channel::<Job>(WAITING);
        let (ready, outcome) = sync_channel(1);
        let work = move || {
            let prepared = leave_the_caller();
            let usable = prepared.is_ok();
            if ready.send(prepared).is_ok() && usable {
                serve(&waiting);
            }
        };
        std::thread::Builder::new()
            .name("sandbox-spawn".to_owned())
            .spawn(work)
            .map_err(|e| io_error("cannot start a thread", e))?;
        outcome.recv_timeout(READY).unwrap_or_else(|e| Err(io_error("cannot start programs", unanswered(e))))?;
        Ok(Self { jobs })
    }

    /// Starts `argv` in `directory`, with an empty environment, and in a process group of its own unless it `leaves` for a session of its
    /// own by itself. Nothing kills it when the answer is dropped; the runtime waits for it either way. What has not begun by the
    /// deadline never begins.
    pub(crate) fn spawn(
        &self,
        runtime: &Handle,
        argv: &[OsString],
        directory: &Path,
        ends: Ends,
        leaves: bool,
        deadline: Instant,
    ) -> io::Result<Child> {
        let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let [stdin, stdout, stderr] = ends;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().current_dir(directory);
        if !leaves {
            command.process_group(0);
        }
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        let (done, answer) = sync_channel(1);
        let mut job = Job { command, runtime: runtime.clone(), deadline, done };
        let mut pause = Duration::from_micros(200);
        while let Err(refused) = self.jobs.try_send(job) {
            job = match refused {
                TrySendError::Full(job) if Instant::now() < deadline => job,
                TrySendError::Full(_) => return Err(unanswered(RecvTimeoutError::Timeout)),
                TrySendError::Disconnected(_) => return Err(unanswered(RecvTimeoutError::Disconnected)),
            };
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        answer.recv_timeout(left).unwrap_or_else(|e| Err(unanswered(e)))
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spawner")
    }
}

fn unanswered(why: RecvTimeoutError) -> io::Error {
    match why {
        RecvTimeoutError::Timeout => io::Error::new(io::ErrorKind::TimedOut, "it was not started in time"),
        RecvTimeoutError::Disconnected => io::Error::other("the thread that starts programs ended"),
    }
}

fn serve(waiting: &Receiver<Job>) {
    // It ends with the last handle, which closes the channel.
    while let Ok(Job { mut command, runtime, deadline, done }) = waiting.recv() {
        let _in_runtime = runtime.enter();
        let started = match Instant::now() < deadline {
            true => command.spawn(),
            false => Err(unanswered(RecvTimeoutError::Timeout)),
        };
        // Whoever asked may have stopped waiting at this very moment: then the ends of its streams are gone too, and it reads their end.
        let _ = done.send(started);
    }
}

/// Makes this thread one that has nothing to pass on.
fn leave_the_caller() -> Result<(), Error> {
    rustix::thread::set_no_new_privs(true).map_err(|e| io_error("cannot do without new privileges", e))?;
    match Keyring::join_anonymous_session() {
        // One for all sandboxes of this provider, and nobody can read it or put anything into it.
        Ok(mut keyring) => keyring.set_permissions(Permission::empty()),
        // This kernel has no keys, or a filter refuses them to this process and so to all that it starts.
        Err(e) if matches!(e.0, ENOSYS | EPERM) => Ok(()),
        Err(e) => Err(e),
    }
    .map_err(|e| {
        let error = io::Error::from_raw_os_error(e.0);
        Error::new(ErrorKind::Unavailable)
            .because(format!("cannot make a keyring ({error}): the sysctl kernel.keys.maxkeys bounds them per user"))
    })
}

const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
const ENOSYS: i32 = rustix::io::Errno::NOSYS.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_program_starts_bare() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let argv = ["/bin/sh", "-c", "grep NoNewPrivs /proc/self/status; pwd; env"].map(OsString::from);
        let ends = [Stdio::null(), writer.into(), Stdio::null()];
        let spawner = Spawner::new().unwrap();
        let mut child = spawner.spawn(runtime.handle(), &argv, Path::new("/usr"), ends, false, soon()).unwrap();
        let mut out = String::new();
        io::Read::read_to_string(&mut reader, &mut out).unwrap();
        assert!(runtime.block_on(child.wait()).unwrap().success());
        assert_eq!(out, "NoNewPrivs:\t1\n/usr\nPWD=/usr\n");
        assert!(!rustix::thread::no_new_privs().unwrap());
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error_and_the_next_one_starts() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let spawner = Spawner::new().unwrap();
        let start = |program: &str| {
            let ends = [Stdio::null(), Stdio::null(), Stdio::null()];
            spawner.spawn(runtime.handle(), &[program.into()], Path::new("/"), ends, false, soon())
        };
        assert_eq!(start("/absent").unwrap_err().kind(), io::ErrorKind::NotFound);
        let mut child = start("/bin/true").unwrap();
        assert!(runtime.block_on(child.wait()).unwrap().success());
    }

    #[test]
    fn what_has_not_begun_in_time_never_begins() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let place = tempfile::tempdir().unwrap();
        let argv = |name: &str| ["/usr/bin/touch".into(), place.path().join(name).into_os_string()];
        let start = |spawner: &Spawner, name: &str, deadline| {
            let ends = [Stdio::null(), Stdio::null(), Stdio::null()];
            spawner.spawn(runtime.handle(), &argv(name), Path::new("/"), ends, false, deadline)
        };
        // Nobody takes the jobs: the first waits in the channel, the second for its turn.
        let (jobs, waiting) = sync_channel(1);
        let stuck = Spawner { jobs };
        for name in ["first", "second"] {
            let begun = Instant::now();
            let error = start(&stuck, name, begun + Duration::from_millis(50)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{name}: {error}");
            assert!(begun.elapsed() < Duration::from_secs(20), "{name}");
        }
        // And whoever takes them later starts none of them.
        drop(stuck);
        serve(&waiting);
        let spawner = Spawner::new().unwrap();
        assert_eq!(start(&spawner, "late", Instant::now()).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let mut child = start(&spawner, "in_time", soon()).unwrap();
        assert!(runtime.block_on(child.wait()).unwrap().success());
        let made: Vec<_> = std::fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(made, ["in_time"]);
    }
}
