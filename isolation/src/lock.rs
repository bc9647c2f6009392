//! One lifecycle call at a time per slot, across tasks and processes.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::FlockOperation;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{sleep, sleep_until, timeout_at};

use crate::blocking::on_thread;
use crate::{Error, ErrorKind, OpCtx, Result, SlotName, SlotRef};

/// How often a lock that another process holds is tried again.
const RETRY: Duration = Duration::from_millis(50);

/// A link is not followed.
const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// The locks of a backend's slots: a file for each, `slot-<name>.lock`, in one directory.
///
/// Every backend takes one for each lifecycle call, so that they exclude each other across tasks and
/// processes. The kernel lets go of it when the process ends, however it ends.
#[derive(Debug, Clone)]
pub struct SlotLocks {
    dir: Arc<Path>,
    tasks: Arc<Mutex<HashMap<SlotName, Arc<tokio::sync::Mutex<()>>>>>,
}

impl SlotLocks {
    /// Locks in `dir`, which is made when the first is taken.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into().into(), tasks: Arc::default() }
    }

    /// Where the lock of `slot` is.
    pub fn path(&self, slot: &SlotName) -> PathBuf {
        self.dir.join(format!("slot-{slot}.lock"))
    }

    /// Waits for the lock of `slot`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Busy`] at the context's deadline, with [`Error::holder_pid`] if another process holds
    /// it; [`ErrorKind::Cancelled`]; [`ErrorKind::Io`], also if a link stands where the lock goes.
    pub async fn acquire(&self, ctx: &OpCtx, slot: &SlotName) -> Result<SlotGuard> {
        let task = {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(tasks.entry(slot.clone()).or_default())
        };
        let busy = |pid| Error::new(ErrorKind::Busy, "take the slot").with_holder_pid(pid);
        // Who was seen to hold it: a deadline that passes during a try is not told as if nobody knew why.
        let mut holder = None;
        let mut task = match Arc::clone(&task).try_lock_owned() {
            Ok(free) => free,
            Err(_) => {
                holder = Some(Some(std::process::id()));
                tokio::select! {
                    biased;
                    () = ctx.cancel().cancelled() => return Err(Error::new(ErrorKind::Cancelled, "take the slot")),
                    free = timeout_at(ctx.deadline(), task.lock_owned()) => free.map_err(|_| busy(holder.flatten()))?,
                }
            }
        };
        if ctx.cancel().is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "take the slot"));
        }
        loop {
            let (locks, of) = (self.clone(), slot.clone());
            // What was locked though nobody waits any more is given back there.
            let tried = on_thread("take the slot", move || locks.hold(of, task));
            let late = async {
                match holder {
                    Some(_) => sleep_until(ctx.deadline()).await,
                    None => std::future::pending().await,
                }
            };
            let tried = tokio::select! {
                biased;
                tried = tried => tried?,
                () = late => return Err(busy(holder.flatten())),
            };
            match tried {
                Ok(held) => return Ok(SlotGuard(Arc::new(held))),
                Err((waiting, pid)) => (task, holder) = (waiting, Some(pid)),
            }
            tokio::select! {
                () = ctx.cancel().cancelled() => return Err(Error::new(ErrorKind::Cancelled, "take the slot")),
                () = sleep(RETRY.min(ctx.remaining())) => {}
            }
            if ctx.remaining().is_zero() {
                return Err(busy(holder.flatten()));
            }
        }
    }

    /// How many of this process hold the slot or wait for those who do.
    #[cfg(test)]
    pub(crate) fn in_line(&self, slot: &SlotName) -> usize {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.get(slot).map_or(0, |line| Arc::strong_count(line) - 1)
    }

    /// The slot, or the place in this process's own line and who holds the slot.
    fn hold(&self, slot: SlotName, task: OwnedMutexGuard<()>) -> Result<std::result::Result<Held, Waiting>> {
        Ok(match self.try_lock(&slot)? {
            Ok(file) => Ok(Held { path: self.path(&slot), slot, _file: file, _task: task }),
            Err(pid) => Err((task, pid)),
        })
    }

    /// The locked file, or who holds it.
    fn try_lock(&self, slot: &SlotName) -> Result<std::result::Result<File, Option<u32>>> {
        let path = self.path(slot);
        let io = |cause: std::io::Error| Error::io("take the slot's lock", &path, cause);
        let made = std::fs::create_dir_all(&self.dir);
        made.map_err(|cause| Error::io("make the directory of the locks", &*self.dir, cause))?;
        for _ in 0..16 {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            // A link that somebody has put there would have its target overwritten.
            options.custom_flags(NO_LINK);
            let mut file = options.open(&path).map_err(io)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let mut text = String::new();
                    let _ = (&mut file).take(16).read_to_string(&mut text);
                    return Ok(Err(text.trim().parse().ok()));
                }
                Err(errno) => return Err(io(errno.into())),
            }
            // The last holder may have removed the file between our open and our lock.
            let ours = file.metadata().map_err(io)?;
            let named = std::fs::symlink_metadata(&path);
            if named.is_ok_and(|named| (named.dev(), named.ino()) == (ours.dev(), ours.ino())) {
                let note = file
                    .set_len(0)
                    .and_then(|()| file.rewind())
                    .and_then(|()| file.write_all(std::process::id().to_string().as_bytes()));
                note.map_err(io)?;
                return Ok(Ok(file));
            }
        }
        Ok(Err(None))
    }
}

/// The place in this process's own line, and who holds the slot, if that is known.
type Waiting = (OwnedMutexGuard<()>, Option<u32>);

/// A slot taken for one lifecycle call. Clones hold it together: dropping the last gives the slot back and removes the lock's file. Work
/// that may outlive the call, on a thread of its own, keeps one.
#[derive(Debug, Clone)]
pub struct SlotGuard(Arc<Held>);

#[derive(Debug)]
struct Held {
    slot: SlotName,
    path: PathBuf,
    _file: File,
    _task: OwnedMutexGuard<()>,
}

impl SlotRef for SlotGuard {
    fn slot(&self) -> &SlotName {
        &self.0.slot
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A drop can't wait for a thread. While it is still locked: whoever has opened it meanwhile sees that its name is gone and opens it anew.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ctx(millis: u64) -> OpCtx {
        OpCtx::new(Duration::from_millis(millis))
    }

    #[tokio::test]
    async fn one_at_a_time_and_busy_at_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let slot = SlotName::new("kube1").unwrap();
        let (ours, theirs) = (SlotLocks::new(dir.path()), SlotLocks::new(dir.path()));
        let guard = ours.acquire(&ctx(1000), &slot).await.unwrap();
        assert_eq!(guard.slot(), &slot);
        drop(guard.clone());
        for locks in [&ours, &theirs] {
            let error = locks.acquire(&ctx(120), &slot).await.unwrap_err();
            assert_eq!((error.kind(), error.holder_pid()), (ErrorKind::Busy, Some(std::process::id())));
        }
        let other = SlotName::new("kube2").unwrap();
        theirs.acquire(&ctx(100), &other).await.unwrap();
        let waiting = tokio::spawn({
            let (theirs, slot) = (theirs.clone(), slot.clone());
            async move { theirs.acquire(&ctx(5000), &slot).await.map(drop) }
        });
        tokio::time::sleep(Duration::from_millis(80)).await;
        drop(guard);
        waiting.await.unwrap().unwrap();
        assert!(!ours.path(&slot).exists());
        let cancelled = ctx(1000);
        cancelled.cancel().cancel();
        assert_eq!(ours.acquire(&cancelled, &slot).await.unwrap_err().kind(), ErrorKind::Cancelled);
    }

    #[tokio::test]
    async fn a_link_in_its_place_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (locks, slot) = (SlotLocks::new(dir.path()), SlotName::new("kube1").unwrap());
        let target = dir.path().join("target");
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, locks.path(&slot)).unwrap();
        assert_eq!(locks.acquire(&ctx(60_000), &slot).await.unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    }
}
