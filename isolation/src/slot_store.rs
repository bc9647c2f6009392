//! What a backend keeps of its slots on disk, and the shape of a lifecycle call.

use std::future::Future;
use std::path::{Path, PathBuf};

use crate::blocking::on_thread;
use crate::{
    Effect, Error, ErrorKind, Grant, GrantKind, NodeFs, NodePath, NodeSpec, OpCtx, Operation, Reason, Result,
    SlotGuard, SlotLocks, SlotName, SlotRef, Stop, mounts_below, run_blocking,
};

const PREPARE: &str = "prepare the slot";

/// The longest spec that is kept.
const LIMIT: usize = 16 << 20;

/// The longest that is read back: one with the grants of all that were cut short.
const LIMIT_OF_ALL: usize = 4 * LIMIT;

/// The slots of a backend below one directory: their roots, their specs, their locks.
///
/// Of each slot `<slot>/` is the root and `<slot>.json` the spec it was prepared with. That one is the mark of a finished root: it is
/// written last and removed first, so that what a crash leaves is never taken for a root. While a finished root is brought to another
/// spec there is also `<slot>.changing`; if that was cut short, the file stays, and the slot is not started until a `prepare` has succeeded.
/// `<slot>.up` says that it comes up with the host. `slot-<slot>.lock` is its lock, as of [`SlotLocks`]. What else a backend writes there is
/// its own.
///
/// What looks at files, writes or removes them does so on a thread that may block, never on one of the runtime's own.
#[derive(Debug, Clone)]
pub struct SlotStore {
    dir: PathBuf,
    locks: SlotLocks,
}

impl SlotStore {
    /// Slots below `dir`, which is made when the first is locked and never removed.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        Self { locks: SlotLocks::new(&dir), dir }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the root of a slot is.
    pub fn root_dir(&self, slot: &SlotName) -> PathBuf {
        self.dir.join(slot.as_str())
    }

    /// Where the spec of a slot is, once it was prepared to the end.
    pub fn mark(&self, slot: &SlotName) -> PathBuf {
        self.dir.join(format!("{slot}.json"))
    }

    /// Whether a slot was prepared to the end, be it with another spec than the last.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if it can't be found out.
    pub async fn is_prepared(&self, slot: &SlotName) -> Result<bool> {
        look_for(self.mark(slot)).await
    }

    /// Whether a slot was started and not stopped since, so that it is to run again after a reboot: whatever starts with the host asks this,
    /// and starts it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if it can't be found out.
    pub async fn comes_up(&self, slot: &SlotName) -> Result<bool> {
        look_for(self.up(slot)).await
    }

    fn up(&self, slot: &SlotName) -> PathBuf {
        self.dir.join(format!("{slot}.up"))
    }

    /// Says whether a slot comes up with the host.
    async fn set_up(&self, held: SlotGuard, up: bool) -> Result<()> {
        let store = self.clone();
        on_thread("say what comes up with the host", move || {
            if is_there(&store.up(held.slot()))? == up {
                return Ok(());
            }
            let (own, file) = (NodeFs::open(&store.dir)?, NodePath::new(format!("/{}.up", held.slot()))?);
            let said = if up { own.write_atomic(&file, 0o644, b"") } else { own.remove(&file) };
            said.map_err(|error| error.with_effect(Effect::Partial))
        })
        .await
    }

    /// Refuses a slot that was never prepared. `operation` is what the error says could not be done.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownSlot`]; [`ErrorKind::Io`] if it can't be found out.
    pub async fn known(&self, slot: &SlotName, operation: &str) -> Result<()> {
        if self.is_prepared(slot).await? { Ok(()) } else { Err(Error::new(ErrorKind::UnknownSlot, operation)) }
    }

    /// Refuses a slot that can't be started: as [`known`](Self::known), and one whose last `prepare` was cut short.
    ///
    /// # Errors
    ///
    /// As there; [`ErrorKind::NotPrepared`].
    pub async fn startable(&self, slot: &SlotName, operation: &str) -> Result<()> {
        self.known(slot, operation).await?;
        if !look_for(self.changing(slot)).await? {
            return Ok(());
        }
        let unfinished = Error::new(ErrorKind::NotPrepared, operation).with_path(self.changing(slot));
        Err(unfinished.with_detail("its last preparation was cut short: prepare it again"))
    }

    /// What a finished root is being brought to: its spec, with the grants of all that were cut short before.
    fn changing(&self, slot: &SlotName) -> PathBuf {
        self.dir.join(format!("{slot}.changing"))
    }

    /// Takes a slot for one lifecycle call, as [`SlotLocks::acquire`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn lock(&self, ctx: &OpCtx, slot: &SlotName) -> Result<SlotGuard> {
        self.locks.acquire(ctx, slot).await
    }

    /// A lifecycle call other than `prepare`, in the shape that the contract gives it: bounded and told as by [`OpCtx::lifecycle`],
    /// and alone with its slot while `work` runs. What was started [comes up](Self::comes_up) with the host from then on, and what is to be
    /// stopped or destroyed does not any more.
    ///
    /// Before anything is touched, locks included, a slot that was never prepared is refused, or has nothing to be stopped; of a slot without any
    /// files there is nothing to be destroyed: then `work` does not run, and the call succeeds. The same is asked again once the slot
    /// is held, since whoever held it may have destroyed it. Dropping the future drops what `work` gave; what that has begun on a thread of
    /// its own keeps the slot with a clone of the guard.
    ///
    /// # Errors
    ///
    /// As [`startable`](Self::startable) for a start or a restart; as [`OpCtx::lifecycle`], [`lock`](Self::lock) and `work`.
    pub async fn lifecycle<F>(
        &self,
        ctx: &OpCtx,
        operation: Operation,
        slot: &SlotName,
        work: impl FnOnce(SlotGuard) -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        ctx.lifecycle(operation, slot, async {
            if !self.has_work(operation, slot).await? {
                return Ok(());
            }
            let held = self.lock(ctx, slot).await?;
            if !self.has_work(operation, slot).await? {
                return Ok(());
            }
            if matches!(operation, Operation::Stop | Operation::Destroy) {
                self.set_up(held.clone(), false).await?;
            }
            work(held.clone()).await?;
            if matches!(operation, Operation::Start | Operation::Restart) {
                self.set_up(held, true).await?;
            }
            Ok(())
        })
        .await
    }

    /// Whether there is anything to stop or to destroy; refuses to start what can't be.
    async fn has_work(&self, operation: Operation, slot: &SlotName) -> Result<bool> {
        match operation {
            Operation::Stop => self.is_prepared(slot).await,
            Operation::Destroy => Ok(self.is_prepared(slot).await? || look_for(self.root_dir(slot)).await?),
            _ => self.startable(slot, &format!("{operation} the slot")).await.map(|()| true),
        }
    }

    /// Brings a slot to `spec`, and says whether that changed anything. The spec was validated before; `held` is its slot, which is given back
    /// with the last clone.
    ///
    /// `write` gets the root and the spec that it was prepared with before; without one the root is empty, whatever a crash has left. It
    /// is not called when the specs are equal and the root is finished. After preparations that were cut short that spec has their grants,
    /// too: any of them may be in the root. The spec that is kept is in order: first the mounts as they were configured, then what is
    /// discovered, sorted.
    ///
    /// A [`RootfsSource`](crate::RootfsSource) is unpacked by it with `tokio::runtime::Handle::current().block_on(source.unpack(&ctx, root))`
    /// where there was no spec before; its identity is not in the spec, so a backend whose source may change keeps that itself.
    ///
    /// All of this happens on a thread of its own, as by [`run_blocking`]: a call that is cut short leaves an unfinished preparation, and the
    /// slot stays held until the thread has left it. Ask the [`Stop`] where `write` takes long.
    ///
    /// # Errors
    ///
    /// As `write`; [`ErrorKind::InvalidInput`] for a spec of more than 16 MiB, [`ErrorKind::InvalidSlot`] if another slot is held, [`ErrorKind::Conflict`] if something is mounted into an unfinished
    /// root, [`ErrorKind::Corrupt`] for an earlier spec that is none, [`ErrorKind::Io`]. With [`Effect::Partial`] once something may be changed;
    /// the same call may be repeated.
    pub async fn prepare(
        &self,
        ctx: &OpCtx,
        held: SlotGuard,
        spec: &NodeSpec,
        write: impl FnOnce(&NodeFs, Option<&NodeSpec>, &Stop) -> Result<()> + Send + 'static,
    ) -> Result<bool> {
        if *held.slot() != spec.slot {
            let other = format!("{} is held", held.slot());
            return Err(Error::new(ErrorKind::InvalidSlot, PREPARE).with_detail(other));
        }
        let (store, spec) = (self.clone(), spec.clone());
        run_blocking(ctx, PREPARE, move |stop| {
            let _held = held;
            store.bring(&spec, stop, write)
        })
        .await
    }

    fn bring(
        &self,
        spec: &NodeSpec,
        stop: &Stop,
        write: impl FnOnce(&NodeFs, Option<&NodeSpec>, &Stop) -> Result<()>,
    ) -> Result<bool> {
        let (slot, own) = (&spec.slot, NodeFs::open(&self.dir)?);
        let spec = in_order(spec);
        let text = |spec: &NodeSpec, limit| {
            let text = serde_json::to_vec_pretty(spec).map_err(|cause| self.corrupt(slot, cause))?;
            if text.len() > limit {
                return Err(Error::rejected(ErrorKind::InvalidInput, "spec", b"", Reason::TooLong));
            }
            Ok(text)
        };
        let finished = text(&spec, LIMIT)?;
        let (mark, changing) = (NodePath::new(format!("/{slot}.json"))?, NodePath::new(format!("/{slot}.changing"))?);
        let (before, unfinished) = (self.kept(&own, slot, &mark)?, self.kept(&own, slot, &changing)?);
        if unfinished.is_none() && before.as_ref() == Some(&spec) {
            return Ok(false);
        }
        let change = || {
            let before = match (before, unfinished) {
                (None, _) => {
                    own.remove(&changing)?;
                    self.clear(&own, slot, stop)?;
                    own.create_dir_all(&NodePath::new(format!("/{slot}"))?, 0o755)?;
                    None
                }
                (Some(before), unfinished) => {
                    let left = unfinished.map(|left| left.grants).unwrap_or_default();
                    own.write_atomic(&changing, 0o644, &text(&with_more(&spec, &left), LIMIT_OF_ALL)?)?;
                    Some(with_more(&before, &left))
                }
            };
            write(&NodeFs::open_itself(&self.root_dir(slot))?, before.as_ref(), stop)?;
            // What nobody waited for to the end is not called finished.
            stop.check()?;
            own.write_atomic(&mark, 0o644, &finished)?;
            own.remove(&changing)
        };
        change().map_err(|error| error.with_effect(Effect::Partial))?;
        Ok(true)
    }

    /// The spec that a file of the store holds, if it is there.
    fn kept(&self, own: &NodeFs, slot: &SlotName, file: &NodePath) -> Result<Option<NodeSpec>> {
        if own.metadata(file)?.is_none() {
            return Ok(None);
        }
        serde_json::from_slice(&own.read(file, LIMIT_OF_ALL as u64)?)
            .map(Some)
            .map_err(|cause| self.corrupt(slot, cause))
    }

    fn corrupt(&self, slot: &SlotName, cause: serde_json::Error) -> Error {
        Error::new(ErrorKind::Corrupt, PREPARE).with_path(self.mark(slot)).because(cause)
    }

    /// Removes the files of a slot, first the mark. Nothing runs in the slot, which is given back with the last clone of `held`.
    ///
    /// It happens on a thread of its own, as by [`run_blocking`]: a call that is cut short leaves what was not removed yet, and the slot
    /// stays held until the thread has left it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] with the mount point if something is mounted into the root: then nothing is removed.
    /// [`ErrorKind::Io`]. With [`Effect::Partial`]; the same call may be repeated.
    pub async fn remove(&self, ctx: &OpCtx, held: SlotGuard) -> Result<()> {
        let store = self.clone();
        run_blocking(ctx, "remove the slot", move |stop| store.clear_all(held.slot(), stop)).await
    }

    fn clear_all(&self, slot: &SlotName, stop: &Stop) -> Result<()> {
        let remove = || {
            self.unmounted(slot)?;
            let own = NodeFs::open(&self.dir)?;
            for suffix in ["up", "json", "changing"] {
                own.remove(&NodePath::new(format!("/{slot}.{suffix}"))?)?;
            }
            self.clear(&own, slot, stop)?;
            sweep(&own)
        };
        remove().map_err(|error| error.with_effect(Effect::Partial))
    }

    fn unmounted(&self, slot: &SlotName) -> Result<()> {
        match mounts_below(&self.root_dir(slot))?.pop() {
            None => Ok(()),
            Some(mount) => {
                let conflict = Error::new(ErrorKind::Conflict, "remove the root").with_path(mount);
                Err(conflict.with_detail("something is mounted into the root"))
            }
        }
    }

    fn clear(&self, own: &NodeFs, slot: &SlotName, stop: &Stop) -> Result<()> {
        self.unmounted(slot)?;
        own.remove_tree_until(&NodePath::new(format!("/{slot}"))?, stop)
    }
}

/// Removes the files that a process was killed over while it wrote them: those of a process that is no more.
fn sweep(own: &NodeFs) -> Result<()> {
    for name in own.read_dir(&NodePath::root(), 100_000)? {
        let writer =
            name.to_str().and_then(|name| name.strip_prefix(".#isolation.")?.split('.').next()?.parse::<u32>().ok());
        if writer.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            own.remove(&NodePath::root().join(&name)?)?;
        }
    }
    Ok(())
}

async fn look_for(path: PathBuf) -> Result<bool> {
    on_thread("look at the slot", move || is_there(&path)).await
}

/// Whether something has this name, a dangling link included; not to be able to look is an error.
pub(crate) fn is_there(path: &Path) -> Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(Error::io("look at the slot", path, cause)),
    }
}

/// `spec`, and what of `grants` it has not.
fn with_more(spec: &NodeSpec, grants: &[Grant]) -> NodeSpec {
    let mut all = spec.grants.clone();
    all.extend(grants.iter().filter(|grant| !spec.grants.contains(grant)).cloned());
    spec.clone().with_grants(all)
}

/// Mounts keep their order; everything else is sorted, so that discovery in any order gives the same.
fn in_order(spec: &NodeSpec) -> NodeSpec {
    let (mut grants, mut rest): (Vec<_>, Vec<_>) =
        spec.grants.iter().cloned().partition(|grant| grant.kind() == GrantKind::Mount);
    rest.sort();
    grants.append(&mut rest);
    spec.clone().with_grants(grants)
}

#[cfg(test)]
mod tests;
