//! The state directory of one deployment.
//!
//! ```text
//! STATE/              0700, the caller's own
//!   SESSION/          0700; its name is the session
//!     lock            held by whoever changes the session
//!     record          what is known of it; replaced as a whole
//!     box.NONCE/      one sandbox
//!   .trash/           boxes of sandboxes that are gone, until they are removed
//!     SESSION.NONCE/
//!   .users/           as root, where the machine has no better place: kernel users of sandboxes that are being made
//! ```
//!
//! A session is there as soon as its directory is, and gone only when that is: whatever a crash leaves is found by name, without reading
//! anything. Directories are made outside in, and removed inside out.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use sandbox::{Error, ErrorKind, SessionId};

use crate::error::io_error;
use crate::record::Record;
use crate::{modes, state_dir};

const LOCK: &str = "lock";
const RECORD: &str = "record";
const RECORD_BEING_WRITTEN: &str = "record.new";
const BOX: &str = "box.";
/// No session is called so.
const TRASH: &str = ".trash";

/// A state directory.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: PathBuf,
}

/// The right to change one session, until it is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    directory: PathBuf,
    _lock: File,
}

/// What is known of a session.
#[derive(Debug)]
pub(crate) enum Known {
    /// There is no record, or a torn one.
    Nothing,
    Record(Box<Record>),
    /// A record that this program does not understand, and why not.
    Strange(Error),
}

impl Store {
    /// Opens a state directory, and makes it if need be.
    pub(crate) fn open(root: &Path, uid: u32) -> Result<Self, Error> {
        Ok(Self { root: state_dir::open(root, uid)? })
    }

    /// Waits for the right to change a session; `None` if there is no such session and none is to be made.
    pub(crate) fn lock(&self, session: &SessionId, make: bool, patience: Duration) -> Result<Option<Guard>, Error> {
        self.lock_if(session, make, patience, &is_still)
    }

    /// As [`lock`](Self::lock), but `is_still` says whether a path still leads to what was opened there.
    fn lock_if(
        &self,
        session: &SessionId,
        make: bool,
        patience: Duration,
        is_still: &dyn Fn(&File, &Path) -> bool,
    ) -> Result<Option<Guard>, Error> {
        let directory = self.directory(session);
        let path = directory.join(LOCK);
        let failed = |e| io_error(format!("cannot lock {}", path.display()), e);
        let deadline = Instant::now() + patience;
        let mut pause = Duration::from_micros(500);
        loop {
            if make {
                match modes::make_dir(&directory, 0o700) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(e)),
                    _ => {}
                }
            }
            let open = || {
                let file =
                    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
                modes::set(&file, 0o600).map(|()| file)
            };
            match modes::opened(&[(&directory, 0o700), (&path, 0o600)], open) {
                Ok(file) => match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) if is_still(&file, &path) => {
                        // What is to be done with it takes more than the lock did.
                        modes::open_up(&directory, 0o700);
                        return Ok(Some(Guard { directory, _lock: file }));
                    }
                    // Whoever had it removed the session, or has it.
                    Ok(()) | Err(rustix::io::Errno::WOULDBLOCK) => {}
                    Err(e) => return Err(failed(e.into())),
                },
                // The directory is gone: nothing to change, or one to be made anew.
                Err(e) if e.kind() == io::ErrorKind::NotFound && !make => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(failed(e)),
            }
            if Instant::now() >= deadline {
                return Err(Error::new(ErrorKind::Busy).because(format!("its lock was not free within {patience:?}")));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Whether a session has nothing but its directory and lock, and has not had more for less than `age`: somebody is about to make it or
    /// to remove it, or was killed at just that. Also `true` once it is gone.
    pub(crate) fn is_bare(&self, session: &SessionId, age: Duration) -> Result<bool, Error> {
        let directory = self.directory(session);
        let look = || -> io::Result<bool> {
            let changed = fs::symlink_metadata(&directory)?.modified()?;
            for entry in fs::read_dir(&directory)? {
                if entry?.file_name() != LOCK {
                    return Ok(false);
                }
            }
            Ok(changed.elapsed().is_ok_and(|elapsed| elapsed < age))
        };
        match modes::opened(&[(&directory, 0o700)], look) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
            other => other.map_err(|e| io_error(format!("cannot look at {}", directory.display()), e)),
        }
    }

    /// What is known of a session; `None` if there is no such session, or if its record is torn.
    ///
    /// # Errors
    ///
    /// `Unavailable` also for a record that is whole and that this program does not understand: what it does not understand it
    /// cannot replace.
    pub(crate) fn read(&self, session: &SessionId) -> Result<Option<Record>, Error> {
        match self.look(session)? {
            Known::Nothing => Ok(None),
            Known::Record(record) => Ok(Some(*record)),
            Known::Strange(why) => Err(why),
        }
    }

    /// As [`read`](Self::read), but what is not understood is an answer.
    pub(crate) fn look(&self, session: &SessionId) -> Result<Known, Error> {
        let directory = self.directory(session);
        let path = directory.join(RECORD);
        let bytes = match modes::opened(&[(&directory, 0o700), (&path, 0o600)], || fs::read(&path)) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Known::Nothing),
            Err(e) => return Err(io_error(format!("cannot read {}", path.display()), e)),
        };
        // A machine that lost its power can leave a torn record, and then nothing of that sandbox runs any more. What is legible was
        // written by somebody, perhaps by a newer program than this one, and its sandbox may run.
        let Ok(json) = serde_json::from_slice(&bytes) else { return Ok(Known::Nothing) };
        let record = Record::from_json(json).and_then(|record| match record.spec.session == *session {
            true => Ok(record),
            false => Err(format!("spec: its session is {}", record.spec.session)),
        });
        Ok(match record {
            Ok(record) => Known::Record(Box::new(record)),
            Err(what) => Known::Strange(Error::new(ErrorKind::Unavailable).because(format!(
                "{} is not of this program's making: {what}; a reap removes its sandbox",
                path.display()
            ))),
        })
    }

    /// The sessions that are there, in no order.
    pub(crate) fn sessions(&self) -> Result<impl Iterator<Item = Result<SessionId, Error>> + Send + use<>, Error> {
        let root = self.root.clone();
        let failed = move |e| io_error(format!("cannot list {}", root.display()), e);
        let entries = fs::read_dir(&self.root).map_err(&failed)?;
        Ok(entries.filter_map(move |entry| match entry {
            Ok(entry) => SessionId::new(entry.file_name().into_string().ok()?).ok().map(Ok),
            Err(e) => Some(Err(failed(e))),
        }))
    }

    /// The directory of one sandbox.
    pub(crate) fn box_of(&self, session: &SessionId, nonce: &str) -> PathBuf {
        self.directory(session).join(format!("{BOX}{nonce}"))
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where boxes wait for their removal.
    pub(crate) fn trash(&self) -> PathBuf {
        self.root.join(TRASH)
    }

    fn directory(&self, session: &SessionId) -> PathBuf {
        self.root.join(session.as_str())
    }
}

impl Guard {
    /// Replaces what is known of the session.
    pub(crate) fn write(&self, record: &Record) -> Result<(), Error> {
        let (new, path) = (self.directory.join(RECORD_BEING_WRITTEN), self.directory.join(RECORD));
        let write = || {
            // One that somebody did not finish may be closed.
            match fs::remove_file(&new) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            modes::set(&file, 0o600)?;
            file.write_all(&serde_json::to_vec(record)?)?;
            fs::rename(&new, &path)
        };
        write().map_err(|e| io_error(format!("cannot write {}", path.display()), e))
    }

    /// The boxes of the session: at most one, unless something went wrong.
    pub(crate) fn boxes(&self) -> Result<Vec<PathBuf>, Error> {
        let failed = |e| io_error(format!("cannot list {}", self.directory.display()), e);
        let mut boxes = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if name.to_str().is_some_and(|n| n.starts_with(BOX)) {
                boxes.push(self.directory.join(name));
            }
        }
        Ok(boxes)
    }

    /// Removes what is left of a session that has no box any more.
    pub(crate) fn remove(self) -> Result<(), Error> {
        let failed = |e| io_error(format!("cannot remove {}", self.directory.display()), e);
        for name in [RECORD_BEING_WRITTEN, RECORD, LOCK] {
            match fs::remove_file(self.directory.join(name)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
                _ => {}
            }
        }
        match fs::remove_dir(&self.directory) {
            // Somebody who waits for the lock has just made a new one: it is theirs now.
            Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => Err(failed(e)),
            _ => Ok(()),
        }
    }
}

/// Whether `path` still leads to the open `file`.
pub(crate) fn is_still(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// The nonce of the sandbox that a box is of.
pub(crate) fn nonce_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.strip_prefix(BOX)
}

/// A fresh nonce.
pub(crate) fn nonce() -> Result<String, Error> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new(ErrorKind::Unavailable).because(format!("no source of randomness: {e}")))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use sandbox::Spec;

    use super::*;
    use crate::record::Phase;

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let uid = rustix::process::getuid().as_raw();
        let store = Store::open(&directory.path().join("state"), uid).unwrap();
        (directory, store)
    }

    fn id(text: &str) -> SessionId {
        SessionId::new(text).unwrap()
    }

    fn record(session: &SessionId) -> Record {
        let spec = Spec::new(session.clone(), "host");
        Record {
            version: Record::VERSION,
            nonce: nonce().unwrap(),
            created: 5,
            phase: Phase::Starting,
            fingerprint: spec.fingerprint(),
            spec,
            uid: 1,
            gid: 2,
            recreated: None,
            boot: "b".into(),
            cgroups: Vec::new(),
            identity: None,
        }
    }

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn a_record_is_replaced_as_a_whole_and_foreign_ones_do_not_count() {
        let (_directory, store) = store();
        let (a, b) = (id("a"), id("b_1"));
        assert_eq!(store.read(&a).unwrap(), None);
        let guard = store.lock(&a, true, SOON).unwrap().unwrap();
        let mut one = record(&a);
        guard.write(&one).unwrap();
        one.phase = Phase::Running;
        guard.write(&one).unwrap();
        assert_eq!(store.read(&a).unwrap().unwrap(), one);
        let other = store.lock(&b, true, SOON).unwrap().unwrap();
        other.write(&one).unwrap();
        let file = store.directory(&b).join(RECORD);
        let whole = fs::read_to_string(&file).unwrap();
        for torn in ["", "{", "\0\0\0\0", &whole[..whole.len() - 1], &whole[..whole.len() / 2]] {
            fs::write(&file, torn).unwrap();
            assert_eq!(store.read(&b).unwrap(), None, "a torn record");
        }
        for (strange, says) in [
            (whole.as_str(), "spec: its session is a;"),
            (r#"{"version":2,"more":1}"#, "version is 2,"),
            (r#"{"version":1}"#, "nonce: "),
            ("5", "it is no record"),
        ] {
            fs::write(&file, strange).unwrap();
            let error = store.read(&b).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{text}");
            assert!(text.contains(&file.display().to_string()) && text.contains(says), "{text}");
        }
        fs::write(store.root.join("Not-a-session"), "").unwrap();
        let mut all: Vec<_> = store.sessions().unwrap().map(Result::unwrap).collect();
        all.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        assert_eq!(all, [a.clone(), b]);
        guard.remove().unwrap();
        assert!(!store.directory(&a).exists());
    }

    #[test]
    fn one_at_a_time_and_a_removed_session_is_locked_anew() {
        let (_directory, store) = store();
        let a = id("a");
        assert!(store.lock(&a, false, SOON).unwrap().is_none());
        assert!(!store.directory(&a).exists(), "looking makes nothing");
        let guard = store.lock(&a, true, SOON).unwrap().unwrap();
        assert!(store.is_bare(&a, SOON).unwrap() && !store.is_bare(&a, Duration::ZERO).unwrap());
        assert!(store.is_bare(&id("b"), Duration::ZERO).unwrap(), "one that is not there");
        let busy = store.lock(&a, true, Duration::from_millis(20)).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        // Somebody removes the session over and over, each time just before the lock is had.
        let (asked, begun) = (std::cell::Cell::new(0), Instant::now());
        let removed = |_: &File, _: &Path| {
            asked.set(asked.get() + 1);
            false
        };
        let busy = store.lock_if(&id("b"), true, Duration::from_millis(50), &removed).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        assert!(begun.elapsed() < SOON && (1..100).contains(&asked.get()), "{} times", asked.get());
        store.lock(&id("b"), false, SOON).unwrap().unwrap().remove().unwrap();
        let waiting = {
            let (store, a) = (store.clone(), a.clone());
            std::thread::spawn(move || store.lock(&a, true, SOON).unwrap().unwrap())
        };
        std::thread::sleep(Duration::from_millis(50));
        guard.remove().unwrap();
        let guard = waiting.join().unwrap();
        guard.write(&record(&a)).unwrap();
        assert!(store.read(&a).unwrap().is_some() && !store.is_bare(&a, SOON).unwrap());
        guard.remove().unwrap();
        assert!(store.lock(&a, false, SOON).unwrap().is_none());
    }

    #[test]
    fn many_at_once_never_meet() {
        let (_directory, store) = store();
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for round in 0..30 {
                        let guard = store.lock(&id("a"), true, SOON).unwrap().unwrap();
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        guard.write(&record(&id("a"))).unwrap();
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        if round % 3 == 0 {
                            guard.remove().unwrap();
                        }
                    }
                });
            }
        });
    }
}
