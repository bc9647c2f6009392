//! What is left of sandboxes that are gone, out of everybody's way until it is removed.
//!
//! Removing what a tenant wrote takes as long as the tenant wrote files. So once nothing of a sandbox runs any more, its box is
//! renamed into the trash, in one step: from then on its session is free and nobody lists it. Whoever renamed it removes it, and if
//! that one is killed or runs out of time, whoever comes next.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use sandbox::{Effect, Error, ErrorKind, SessionId};

use crate::error::io_error;
use crate::store::{self, Store};
use crate::{modes, remove};

impl Store {
    /// Puts away the box of a sandbox of which nothing runs any more. One that is not there is away.
    pub(crate) fn discard(&self, session: &SessionId, path: &Path) -> Result<(), Error> {
        let trash = self.trash();
        let place = trash.join(format!("{session}.{}", store::nonce()?));
        let put_away = || -> io::Result<()> {
            loop {
                match modes::make_dir(&trash, 0o700) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                    _ => {}
                }
                // To be moved, a directory must be its owner's to write.
                match modes::opened(&[(&trash, 0o700), (path, 0o700)], || fs::rename(path, &place)) {
                    // Somebody found the trash empty and removed it, unless it is the box that is gone.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {
                        if !fs::exists(path)? {
                            return Ok(());
                        }
                    }
                    other => return other,
                }
            }
        };
        put_away().map_err(|e| io_error(format!("cannot put away {}", path.display()), e).with_effect(Effect::Unknown))
    }

    /// Removes what was put away of a session.
    pub(crate) fn empty(&self, session: &SessionId, deadline: Instant) -> Result<(), Error> {
        let of_session = |path: &PathBuf| {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            name.split_once('.').is_some_and(|(of, _)| of == session.as_str())
        };
        for path in self.put_away().into_iter().filter(of_session) {
            remove::tree(&path, deadline).map_err(|e| match e.kind() {
                io::ErrorKind::TimedOut => Error::new(ErrorKind::DeadlineExceeded).because(format!(
                    "the sandbox is gone, but its files in {} are not all removed yet: the next reap or provision goes on",
                    path.display()
                )),
                _ => io_error(format!("cannot remove {}", path.display()), e),
            })
            .map_err(|e| e.with_effect(Effect::Unknown))?;
        }
        // Unless there is something of somebody else's.
        let _ = fs::remove_dir(self.trash());
        Ok(())
    }

    /// Removes what others left behind, until `stop` says that it is enough.
    pub(crate) fn sweep(&self, stop: &dyn Fn() -> bool) {
        for path in self.put_away() {
            if stop() {
                return;
            }
            if let Err(error) = remove::tree_unless(&path, stop) {
                tracing::debug!(%error, "what is left of an ended sandbox is still there");
            }
        }
        let _ = fs::remove_dir(self.trash());
    }

    /// Whether there may be something to sweep. Cheap.
    pub(crate) fn has_trash(&self) -> bool {
        fs::symlink_metadata(self.trash()).is_ok()
    }

    fn put_away(&self) -> Vec<PathBuf> {
        let trash = self.trash();
        modes::opened(&[(&trash, 0o700)], || fs::read_dir(&trash))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    fn fill(at: &Path, directories: usize) {
        for i in 0..directories {
            fs::create_dir_all(at.join(format!("{i}/x"))).unwrap();
        }
    }

    #[test]
    fn put_away_in_one_step_and_removed_by_whoever_comes() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state"), rustix::process::getuid().as_raw()).unwrap();
        let (a, b) = (SessionId::new("a").unwrap(), SessionId::new("a_b").unwrap());
        let soon = || Instant::now() + Duration::from_secs(60);
        for session in [&a, &a, &b] {
            let of_box = store.box_of(session, "1");
            fill(&of_box, 20);
            store.discard(session, &of_box).unwrap();
            assert!(!of_box.exists());
            store.discard(session, &of_box).unwrap();
        }
        assert_eq!(store.put_away().len(), 3);
        assert!(store.sessions().unwrap().map(Result::unwrap).all(|s| s == a || s == b), "the trash is no session");
        let error = store.empty(&a, Instant::now()).unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::DeadlineExceeded, Effect::Unknown));
        store.empty(&a, soon()).unwrap();
        assert_eq!(store.put_away().len(), 1, "the other session's is not this one's business");
        // Stopped half-way: the rest is for the next one.
        let asked = Cell::new(0);
        store.sweep(&|| {
            asked.set(asked.get() + 1);
            asked.get() > 5
        });
        assert!(store.has_trash());
        store.sweep(&|| false);
        assert!(!store.has_trash());
        store.empty(&a, soon()).unwrap();
    }

    #[test]
    fn whoever_finds_the_trash_empty_takes_nobodys_place() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state"), rustix::process::getuid().as_raw()).unwrap();
        std::thread::scope(|scope| {
            for t in 0..4 {
                let store = &store;
                scope.spawn(move || {
                    let session = SessionId::new(format!("s{t}")).unwrap();
                    for _ in 0..100 {
                        fs::create_dir_all(store.box_of(&session, "1").join("x")).unwrap();
                        store.discard(&session, &store.box_of(&session, "1")).unwrap();
                        store.empty(&session, Instant::now() + Duration::from_secs(60)).unwrap();
                    }
                });
            }
        });
        assert!(!store.has_trash());
    }
}
