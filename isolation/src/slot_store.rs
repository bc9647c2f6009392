//! What a backend keeps of its slots on disk, and the shape of a lifecycle call.

use std::future::Future;
use std::path::{Path, PathBuf};

use crate::{
    Effect, Error, ErrorKind, Grant, GrantKind, NodeFs, NodePath, NodeSpec, OpCtx, Operation, Result, SlotGuard,
    SlotLocks, SlotName, mounts_below,
};

/// The longest spec that is read back.
const LIMIT: u64 = 16 << 20;

/// The slots of a backend below one directory: their roots, their specs, their locks.
///
/// Of each slot `<slot>/` is the root and `<slot>.json` the spec it was prepared with. That one is the mark of a finished root: it is
/// written last and removed first, so that what a crash leaves is never taken for a root. While a finished root is brought to another
/// spec there is also `<slot>.changing`; if that was cut short, the file stays, and the slot is not started until a `prepare` has succeeded.
/// `slot-<slot>.lock` is its lock, as of [`SlotLocks`]. What else a backend writes there is its own.
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

    /// Whether a slot was prepared to the end, be it with another spec than the last.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if it can't be found out.
    pub fn is_prepared(&self, slot: &SlotName) -> Result<bool> {
        is_there(&self.mark(slot))
    }

    /// Refuses a slot that was never prepared. `operation` is what the error says could not be done.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownSlot`]; [`ErrorKind::Io`] if it can't be found out.
    pub fn known(&self, slot: &SlotName, operation: &str) -> Result<()> {
        if self.is_prepared(slot)? { Ok(()) } else { Err(Error::new(ErrorKind::UnknownSlot, operation)) }
    }

    /// Refuses a slot that can't be started: as [`known`](Self::known), and one whose last `prepare` was cut short.
    ///
    /// # Errors
    ///
    /// As there; [`ErrorKind::NotPrepared`].
    pub fn startable(&self, slot: &SlotName, operation: &str) -> Result<()> {
        self.known(slot, operation)?;
        if !is_there(&self.changing(slot))? {
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
    /// and alone with its slot while `work` runs.
    ///
    /// Before anything is touched, locks included, a slot that was never prepared is refused, or has nothing to be stopped; of a slot without any
    /// files there is nothing to be destroyed: then `work` does not run, and the call succeeds. The same is asked again once the slot
    /// is held, since whoever held it may have destroyed it. Dropping the future drops `work`.
    ///
    /// # Errors
    ///
    /// As [`startable`](Self::startable) for a start or a restart; as [`OpCtx::lifecycle`], [`lock`](Self::lock) and `work`.
    pub async fn lifecycle(
        &self,
        ctx: &OpCtx,
        operation: Operation,
        slot: &SlotName,
        work: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        ctx.lifecycle(operation, slot, async {
            if !self.has_work(operation, slot)? {
                return Ok(());
            }
            let _held = self.lock(ctx, slot).await?;
            if self.has_work(operation, slot)? { work.await } else { Ok(()) }
        })
        .await
    }

    /// Whether there is anything to stop or to destroy; refuses to start what can't be.
    fn has_work(&self, operation: Operation, slot: &SlotName) -> Result<bool> {
        match operation {
            Operation::Stop => self.is_prepared(slot),
            Operation::Destroy => Ok(self.is_prepared(slot)? || is_there(&self.root_dir(slot))?),
            _ => self.startable(slot, &format!("{operation} the slot")).map(|()| true),
        }
    }

    /// Brings a slot to `spec`, and says whether that changed anything. The caller holds the lock and has validated the spec.
    ///
    /// `write` gets the root and the spec that it was prepared with before; without one the root is empty, whatever a crash has left. It
    /// is not called when the specs are equal and the root is finished. After preparations that were cut short that spec has their grants,
    /// too: any of them may be in the root. The spec that is kept is in order: first the mounts as they were configured, then what is
    /// discovered, sorted.
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
        let spec = in_order(spec);
        let text = |spec: &NodeSpec| serde_json::to_vec_pretty(spec).map_err(|cause| self.corrupt(slot, cause));
        let (mark, changing) = (NodePath::new(format!("/{slot}.json"))?, NodePath::new(format!("/{slot}.changing"))?);
        let (before, unfinished) = (self.kept(&own, slot, &mark)?, self.kept(&own, slot, &changing)?);
        if unfinished.is_none() && before.as_ref() == Some(&spec) {
            return Ok(false);
        }
        let change = || {
            let before = match (before, unfinished) {
                (None, _) => {
                    own.remove(&changing)?;
                    self.clear(&own, slot)?;
                    own.create_dir_all(&NodePath::new(format!("/{slot}"))?, 0o755)?;
                    None
                }
                (Some(before), unfinished) => {
                    let left = unfinished.map(|left| left.grants).unwrap_or_default();
                    own.write_atomic(&changing, 0o644, &text(&with_more(&spec, &left))?)?;
                    Some(with_more(&before, &left))
                }
            };
            write(&NodeFs::open_itself(&self.root_dir(slot))?, before.as_ref())?;
            own.write_atomic(&mark, 0o644, &text(&spec)?)?;
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
        serde_json::from_slice(&own.read(file, LIMIT)?).map(Some).map_err(|cause| self.corrupt(slot, cause))
    }

    fn corrupt(&self, slot: &SlotName, cause: serde_json::Error) -> Error {
        Error::new(ErrorKind::Corrupt, "prepare the slot").with_path(self.mark(slot)).because(cause)
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
            for suffix in ["json", "changing"] {
                own.remove(&NodePath::new(format!("/{slot}.{suffix}"))?)?;
            }
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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{HostPath, Purpose, node_path};

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
        assert!(!store.is_prepared(&slot).unwrap());
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

    #[test]
    fn a_change_that_was_cut_short_is_no_finished_root() {
        let dir = tempfile::tempdir().unwrap();
        let (store, slot) = (SlotStore::new(dir.path()), SlotName::new("kube1").unwrap());
        let [x, y, z] = ["/dev/kvm", "/dev/null", "/dev/zero"]
            .map(|node| Grant::device(Purpose::HostDevice, HostPath::new(node).unwrap()));
        let one = |grant: &Grant| spec(std::slice::from_ref(grant));
        let fails = |_: &NodeFs, _: Option<&NodeSpec>| Err(Error::new(ErrorKind::Artifact, "write a root"));
        assert!(store.prepare(&one(&x), |_, _| Ok(())).unwrap());
        store.startable(&slot, "start").unwrap();
        for grant in [&y, &z] {
            let error = store.prepare(&one(grant), fails).unwrap_err();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Artifact, Effect::Partial));
            assert_eq!(store.startable(&slot, "start").unwrap_err().kind(), ErrorKind::NotPrepared);
            assert!(store.is_prepared(&slot).unwrap());
        }
        // Back to the first: the root may hold grants of all three.
        let back = store.prepare(&one(&x), |_, before| {
            assert_eq!(before, Some(&spec(&[x.clone(), z.clone(), y.clone()])));
            Ok(())
        });
        assert!(back.unwrap());
        store.startable(&slot, "start").unwrap();
        assert!(!store.prepare(&one(&x), |_, _| unreachable!()).unwrap());
        // A link in place of the root is not followed.
        let aside = dir.path().join("aside");
        std::fs::rename(store.root_dir(&slot), &aside).unwrap();
        std::os::unix::fs::symlink(&aside, store.root_dir(&slot)).unwrap();
        let linked = store.prepare(&one(&y), |_, _| unreachable!());
        assert_eq!(linked.unwrap_err().kind(), ErrorKind::Io);
        std::fs::remove_dir(aside).unwrap();
        // Whatever was cut short, nothing of it is left.
        assert!(store.changing(&slot).exists());
        store.remove(&slot).unwrap();
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[tokio::test]
    async fn what_can_not_be_found_out_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let (store, slot) = (SlotStore::new(dir.path().join("file/slots")), SlotName::new("kube1").unwrap());
        assert_eq!(store.is_prepared(&slot).unwrap_err().kind(), ErrorKind::Io);
        let ctx = OpCtx::new(Duration::from_secs(60));
        for operation in [Operation::Start, Operation::Stop, Operation::Restart, Operation::Destroy] {
            let done = store.lifecycle(&ctx, operation, &slot, async { panic!("nobody knows whether there is one") });
            assert_eq!(done.await.unwrap_err().kind(), ErrorKind::Io, "{operation}");
        }
    }

    #[tokio::test]
    async fn a_call_that_waited_for_a_destroy_finds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (store, slot) = (SlotStore::new(dir.path()), SlotName::new("kube1").unwrap());
        let ctx = OpCtx::new(Duration::from_secs(60));
        for operation in [Operation::Start, Operation::Restart, Operation::Stop, Operation::Destroy] {
            store.prepare(&spec(&[]), |_, _| Ok(())).unwrap();
            let held = store.lock(&ctx, &slot).await.unwrap();
            let call = store.lifecycle(&ctx, operation, &slot, async { panic!("the slot is gone") });
            let destroy = async {
                // The call has been polled, and waits.
                tokio::task::yield_now().await;
                store.remove(&slot).unwrap();
                drop(held);
            };
            let (done, ()) = tokio::join!(biased; call, destroy);
            match operation {
                Operation::Start | Operation::Restart => {
                    assert_eq!(done.unwrap_err().kind(), ErrorKind::UnknownSlot, "{operation}");
                }
                _ => done.unwrap(),
            }
            assert_eq!(names(dir.path()), [""; 0]);
        }
    }
}
