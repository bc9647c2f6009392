//! What a backend keeps of its slots on disk, and the shape of a lifecycle call.

use std::future::Future;
use std::path::{Path, PathBuf};

use crate::{
    Effect, Error, ErrorKind, GrantKind, NodeFs, NodePath, NodeSpec, OpCtx, Operation, Result, SlotGuard, SlotLocks,
    SlotName, mounts_below,
};

/// The longest spec that is read back.
const LIMIT: u64 = 16 << 20;

/// The slots of a backend below one directory: their roots, their specs, their locks.
///
/// Of each slot `<slot>/` is the root and `<slot>.json` the spec it was prepared with. That one is the mark of a finished root: it is
/// written last and removed first, so that what a crash leaves is never taken for a root. `slot-<slot>.lock` is its lock, as of
/// [`SlotLocks`]. What else a backend writes there is its own.
///
/// What looks at files blocks for that long.
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

    /// Whether a slot was prepared to the end.
    pub fn is_prepared(&self, slot: &SlotName) -> bool {
        self.mark(slot).exists()
    }

    /// Refuses a slot that was never prepared. `operation` is what the error says could not be done.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownSlot`].
    pub fn known(&self, slot: &SlotName, operation: &str) -> Result<()> {
        if self.is_prepared(slot) { Ok(()) } else { Err(Error::new(ErrorKind::UnknownSlot, operation)) }
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
    /// and alone with its slot while `work` runs.
    ///
    /// Before anything is touched, locks included, a slot that was never prepared is refused, or has nothing to be stopped; of a slot without any
    /// files there is nothing to be destroyed: then `work` does not run, and the call succeeds. Dropping the future drops `work`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownSlot`] for a start or a restart of what was never prepared; as [`OpCtx::lifecycle`], [`lock`](Self::lock) and
    /// `work`.
    pub async fn lifecycle(
        &self,
        ctx: &OpCtx,
        operation: Operation,
        slot: &SlotName,
        work: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        ctx.lifecycle(operation, slot, async {
            match operation {
                Operation::Stop if !self.is_prepared(slot) => return Ok(()),
                Operation::Destroy if !self.is_prepared(slot) && !self.root_dir(slot).exists() => return Ok(()),
                Operation::Stop | Operation::Destroy => {}
                _ => self.known(slot, &format!("{operation} the slot"))?,
            }
            let _held = self.lock(ctx, slot).await?;
            work.await
        })
        .await
    }

    /// Brings a slot to `spec`, and says whether that changed anything. The caller holds the lock and has validated the spec.
    ///
    /// `write` gets the root and the spec that it was prepared with before; without one the root is empty, whatever a crash has left. It
    /// is not called when the specs are equal. The spec that is kept is in order: first the mounts as they were configured, then what
    /// is discovered, sorted.
    ///
    /// # Errors
    ///
    /// As `write`; [`ErrorKind::Conflict`] if something is mounted into an unfinished root, [`ErrorKind::Corrupt`] for an earlier
    /// spec that is none, [`ErrorKind::Io`]. With [`Effect::Partial`] once something may be changed; the same call may be repeated.
    pub fn prepare(
        &self,
        spec: &NodeSpec,
        write: impl FnOnce(&NodeFs, Option<&NodeSpec>) -> Result<()>,
    ) -> Result<bool> {
        let (slot, own) = (&spec.slot, NodeFs::open(&self.dir)?);
        let corrupt =
            |cause| Error::new(ErrorKind::Corrupt, "prepare the slot").with_path(self.mark(slot)).because(cause);
        let wanted = serde_json::to_vec_pretty(&in_order(spec)).map_err(corrupt)?;
        let mark = NodePath::new(format!("/{slot}.json"))?;
        let before = own.metadata(&mark)?.map(|_| own.read(&mark, LIMIT)).transpose()?;
        if before.as_ref() == Some(&wanted) {
            return Ok(false);
        }
        let before: Option<NodeSpec> = before.map(|text| serde_json::from_slice(&text)).transpose().map_err(corrupt)?;
        let change = || {
            if before.is_none() {
                self.clear(&own, slot)?;
                own.create_dir_all(&NodePath::new(format!("/{slot}"))?, 0o755)?;
            }
            write(&NodeFs::open(self.root_dir(slot))?, before.as_ref())?;
            own.write_atomic(&mark, 0o644, &wanted)
        };
        change().map_err(|error| error.with_effect(Effect::Partial))?;
        Ok(true)
    }

    /// Removes the files of a slot, first the mark. The caller holds the lock, and nothing runs in the slot.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] with the mount point if something is mounted into the root: then nothing is removed.
    /// [`ErrorKind::Io`]. With [`Effect::Partial`]; the same call may be repeated.
    pub fn remove(&self, slot: &SlotName) -> Result<()> {
        let remove = || {
            self.unmounted(slot)?;
            let own = NodeFs::open(&self.dir)?;
            own.remove(&NodePath::new(format!("/{slot}.json"))?)?;
            self.clear(&own, slot)
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

    fn clear(&self, own: &NodeFs, slot: &SlotName) -> Result<()> {
        self.unmounted(slot)?;
        own.remove_tree(&NodePath::new(format!("/{slot}"))?)
    }
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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Grant, HostPath, Purpose, node_path};

    fn spec(grants: &[Grant]) -> NodeSpec {
        NodeSpec::new(SlotName::new("kube1").unwrap()).with_grants(grants.to_vec())
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_mark_comes_last_and_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let (store, slot) = (SlotStore::new(dir.path()), SlotName::new("kube1").unwrap());
        let fill = |root: &NodeFs, before: Option<&NodeSpec>| {
            assert_eq!(before, None);
            root.write_atomic(&node_path!("/file"), 0o644, b"")
        };
        // A root that nobody finished is made anew.
        std::fs::create_dir_all(store.root_dir(&slot).join("stray")).unwrap();
        let broken = store.prepare(&spec(&[]), |_, _| Err(Error::new(ErrorKind::Artifact, "fill a root")));
        let broken = broken.unwrap_err();
        assert_eq!((broken.kind(), broken.effect()), (ErrorKind::Artifact, Effect::Partial));
        assert!(!store.is_prepared(&slot));
        assert!(store.prepare(&spec(&[]), fill).unwrap());
        assert_eq!(names(&store.root_dir(&slot)), ["file"]);
        assert!(!store.prepare(&spec(&[]), |_, _| unreachable!()).unwrap());
        // Another spec for the same root sees the first.
        let device = |node| Grant::device(Purpose::HostDevice, HostPath::new(node).unwrap());
        let (a, b) = (device("/dev/kvm"), device("/dev/null"));
        let changed = store.prepare(&spec(&[b.clone(), a.clone()]), |root, before| {
            assert_eq!(before, Some(&spec(&[])));
            assert!(root.metadata(&node_path!("/file")).unwrap().is_some());
            Ok(())
        });
        assert!(changed.unwrap());
        assert!(!store.prepare(&spec(&[a, b]), |_, _| unreachable!()).unwrap());
        store.remove(&slot).unwrap();
        store.remove(&slot).unwrap();
        assert_eq!(names(dir.path()), [""; 0]);
        std::fs::write(store.mark(&slot), "no spec").unwrap();
        assert_eq!(store.prepare(&spec(&[]), fill).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[tokio::test]
    async fn what_was_never_prepared_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let (store, slot) = (SlotStore::new(dir.path().join("slots")), SlotName::new("kube1").unwrap());
        let ctx = OpCtx::new(Duration::from_secs(5));
        let run = |operation| store.lifecycle(&ctx, operation, &slot, async { panic!("there is no such slot") });
        for operation in [Operation::Start, Operation::Restart] {
            assert_eq!(run(operation).await.unwrap_err().kind(), ErrorKind::UnknownSlot);
        }
        run(Operation::Stop).await.unwrap();
        run(Operation::Destroy).await.unwrap();
        assert_eq!(names(dir.path()), [""; 0]);
        std::fs::create_dir_all(store.root_dir(&slot)).unwrap();
        store.lifecycle(&ctx, Operation::Destroy, &slot, async { store.remove(&slot) }).await.unwrap();
        assert_eq!(names(store.dir()), [""; 0]);
    }
}
