//! Which kernel users sandboxes of root run as: none is anybody else's.
//!
//! What runs says by itself who it runs as, and goes on saying so until it ends, whoever made it and wherever it is on record. Until there
//! is such a process its user is taken by a lock, which the kernel takes back from who is killed.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FlockOperation, access, flock};
use sandbox::{Error, ErrorKind};

use crate::config::USERS;
use crate::error::io_error;
use crate::store::is_still;

/// The first user of the range is for trials.
const OTHERS: u32 = USERS - 1;

/// Where the locks of all deployments are, on a machine that has such a place for root.
const PLACE: &str = "/run/sandbox-local-users";
/// Where they are for one deployment alone, elsewhere. No session is called so.
const OWN_PLACE: &str = ".users";

/// The right to run a sandbox as a user, which nobody else has as long as this is held, or a process runs as that user.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) uid: u32,
    path: PathBuf,
    _lock: File,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // While it is locked: who waits for it sees that it is not the one that it opened.
        let _ = fs::remove_file(&self.path);
    }
}

/// Claims a user of those behind `first` that is nobody's: the one at `offset`, or the next that is free.
pub(crate) fn claim(state: &Path, first: u32, offset: u32) -> Result<Claim, Error> {
    let place = place(state).map_err(|e| io_error("cannot make a place to claim kernel users in", e))?;
    claim_in(&place, first, offset)
}

fn claim_in(place: &Path, first: u32, offset: u32) -> Result<Claim, Error> {
    let mut taken = HashSet::new();
    for step in 0..OTHERS {
        let uid = first + 1 + (offset % OTHERS + step) % OTHERS;
        if taken.contains(&uid) {
            continue;
        }
        let path = place.join(uid.to_string());
        let locked = lock(&path).map_err(|e| io_error(format!("cannot lock {}", path.display()), e))?;
        let Some(lock) = locked else { continue };
        let claim = Claim { uid, path, _lock: lock };
        // Only now: who had the lock a moment ago may have a process meanwhile.
        taken = running().map_err(|e| io_error("cannot see which users have processes", e))?;
        if !taken.contains(&uid) {
            return Ok(claim);
        }
    }
    Err(Error::new(ErrorKind::Unavailable)
        .because(format!("each of the {OTHERS} kernel users behind {first} has processes: choose another first_uid")))
}

/// Where users are claimed.
fn place(state: &Path) -> io::Result<PathBuf> {
    let shared = Path::new(PLACE);
    if make(shared).is_ok() && access(shared, Access::WRITE_OK | Access::EXEC_OK).is_ok() {
        return Ok(shared.to_owned());
    }
    let own = state.join(OWN_PLACE);
    make(&own)?;
    Ok(own)
}

/// Makes a directory of root's alone, or finds it.
fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let meta = fs::symlink_metadata(path)?;
    if meta.is_dir() && meta.uid() == 0 && meta.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::other(format!("{} must be a directory of root's with mode 0700", path.display())))
}

/// Locks a user; `None` if somebody has it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) if is_still(&file, path) => Ok(Some(file)),
        // Whoever had it has just given it back, after the file was opened: as good as taken.
        Ok(()) | Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The users that have processes. One that hides from debuggers, as only tenants' own do, is shown as root's here; but never the first ones
/// of a sandbox, without which it has no others.
fn running() -> io::Result<HashSet<u32>> {
    let mut users = HashSet::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
            // One that ended meanwhile is nobody's.
            users.extend(entry.metadata().map(|meta| meta.uid()));
        }
    }
    Ok(users)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::sync::Mutex;

    use super::*;

    const FIRST: u32 = 0x6800_0000;

    struct Running(Child);

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_claim_is_nobody_elses() {
        let place = tempfile::tempdir().unwrap();
        let claim = |offset| claim_in(place.path(), FIRST, offset).unwrap();
        let one = claim(7);
        let two = claim(7);
        assert_eq!((one.uid, two.uid), (FIRST + 8, FIRST + 9));
        assert_eq!(claim(OTHERS - 1 + OTHERS).uid, FIRST + OTHERS);
        let last = claim(OTHERS - 1);
        assert_eq!(claim(OTHERS - 1).uid, FIRST + 1, "the first is next to the last");
        drop((one, two, last));
        assert_eq!(claim(7).uid, FIRST + 8);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "what is given back leaves nothing");
    }

    #[test]
    fn who_runs_has_its_user_without_any_claim() {
        let me = rustix::process::getuid().as_raw();
        let mut child = None;
        let first = if me == 0 {
            let sleep = ["--reuid=1744830472", "--regid=1744830472", "--clear-groups", "sleep", "60"];
            child = Some(Running(Command::new("setpriv").args(sleep).spawn().unwrap()));
            let begun = std::time::Instant::now();
            while !running().unwrap().contains(&(FIRST + 8)) {
                assert!(begun.elapsed().as_secs() < 20);
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            FIRST
        } else {
            me - 8
        };
        let place = tempfile::tempdir().unwrap();
        assert_ne!(claim_in(place.path(), first, 7).unwrap().uid, first + 8);
        drop(child);
    }

    #[test]
    fn many_at_once_have_one_each() {
        let place = tempfile::tempdir().unwrap();
        let held = Mutex::new(HashSet::new());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..40 {
                        let claim = claim_in(place.path(), FIRST, 100).unwrap();
                        assert!(held.lock().unwrap().insert(claim.uid), "{} twice", claim.uid);
                        std::thread::yield_now();
                        assert!(held.lock().unwrap().remove(&claim.uid));
                    }
                });
            }
        });
    }
}
