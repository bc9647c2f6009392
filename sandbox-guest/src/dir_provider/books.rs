//! What is written down of each session, and who may change it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox::{Effect, Error, ErrorKind, Recreated, SessionId, Spec};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

/// How often a lock that somebody else holds is tried again.
const RETRY: Duration = Duration::from_millis(5);

/// What is known of one session.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// Tells it from an earlier sandbox of the session.
    pub(super) nonce: String,
    pub(super) spec: Spec,
    /// Whether it was made to the end.
    pub(super) finished: bool,
    pub(super) recreated: Option<Recreated>,
}

/// The records below one directory.
#[derive(Debug, Clone)]
pub(super) struct Books {
    dir: PathBuf,
    pub(super) patience: Duration,
}

/// Who may change a session. Dropping it gives the session back and removes the file.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
    path: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is still locked: whoever has opened it meanwhile sees that its name is gone.
        let _ = fs::remove_file(&self.path);
    }
}

fn fault(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |error| {
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::Forbidden,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind).because(path).caused_by(error)
    }
}

fn make_dir(path: &Path) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(fault(path))
}

impl Books {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, patience: Duration::from_secs(30) }
    }

    fn session(&self, session: &SessionId) -> PathBuf {
        self.dir.join(session.as_str())
    }

    /// The maker's directory.
    pub(super) fn place(&self, session: &SessionId) -> PathBuf {
        self.session(session).join("place")
    }

    fn record(&self, session: &SessionId) -> PathBuf {
        self.session(session).join("record.json")
    }

    fn lock_file(&self, session: &SessionId) -> PathBuf {
        // No session id has a dot.
        self.dir.join(format!("{session}.lock"))
    }

    /// Whether there is anything of a session.
    pub(super) fn has(&self, session: &SessionId) -> bool {
        fs::symlink_metadata(self.session(session)).is_ok()
    }

    /// Whether somebody may be changing it.
    pub(super) fn is_locked(&self, session: &SessionId) -> bool {
        self.lock_file(session).exists()
    }

    pub(super) async fn lock(&self, session: &SessionId) -> Result<Lock, Error> {
        let (path, begun) = (self.lock_file(session), Instant::now());
        make_dir(&self.dir)?;
        loop {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
            let file = file.map_err(fault(&path))?;
            match file.try_lock() {
                Ok(()) => {
                    // The last holder may have removed the file between the two steps.
                    let (ours, named) = (file.metadata().map_err(fault(&path))?, fs::metadata(&path));
                    if named.is_ok_and(|named| (named.dev(), named.ino()) == (ours.dev(), ours.ino())) {
                        return Ok(Lock { _file: file, path });
                    }
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(fault(&path)(error)),
            }
            if begun.elapsed() >= self.patience {
                return Err(Error::new(ErrorKind::Busy).because("another call changes this session"));
            }
            sleep(RETRY).await;
        }
    }

    /// What is known of a session. One that is not legible was written by another version of the program: it is left alone.
    pub(super) fn read(&self, session: &SessionId) -> Result<Option<Record>, Error> {
        let path = self.record(session);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| fault(&path)(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(fault(&path)(error)),
        }
    }

    /// Writes a record in one step.
    pub(super) fn write(&self, record: &Record) -> Result<(), Error> {
        let path = self.record(&record.spec.session);
        let new = path.with_extension("new");
        let write = || {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&serde_json::to_vec(record)?)?;
            // What is renamed is whole, also after a power cut.
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().map_err(fault(&path))
    }

    /// Writes down that a sandbox is begun, and makes the empty directory for it.
    pub(super) fn begin(&self, record: &Record) -> Result<(), Error> {
        make_dir(&self.session(&record.spec.session))?;
        self.write(record)?;
        make_dir(&self.place(&record.spec.session))
    }

    /// Removes all files of a session, first the record.
    pub(super) fn remove(&self, session: &SessionId) -> Result<(), Error> {
        let gone = |result: io::Result<()>| match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let dir = self.session(session);
        let removed = gone(fs::remove_file(self.record(session))).and_then(|()| gone(fs::remove_dir_all(&dir)));
        removed.map_err(fault(&dir)).map_err(|error| error.with_effect(Effect::Unknown))
    }

    /// The sessions of which there is anything, one by one. Ends after an error.
    pub(super) fn sessions(&self) -> Result<impl Iterator<Item = Result<SessionId, Error>> + Send + use<>, Error> {
        let dir = self.dir.clone();
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => Some(entries),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(fault(&dir)(error)),
        };
        let mut failed = false;
        let names =
            entries.into_iter().flatten().take_while(move |entry| !std::mem::replace(&mut failed, entry.is_err()));
        Ok(names.filter_map(move |entry| match entry {
            Ok(entry) => SessionId::new(entry.file_name().into_string().ok()?).ok().map(Ok),
            Err(error) => Some(Err(fault(&dir)(error))),
        }))
    }
}
