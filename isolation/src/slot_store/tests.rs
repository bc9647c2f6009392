//! The store, on a directory of a test.

use std::time::Duration;

use super::*;
use crate::{HostPath, Purpose, node_path};

fn spec(grants: &[Grant]) -> NodeSpec {
    NodeSpec::new(SlotName::new("kube1").unwrap()).with_grants(grants.to_vec())
}

/// Prepares on this thread.
fn prepare(
    store: &SlotStore,
    spec: &NodeSpec,
    write: impl FnOnce(&NodeFs, Option<&NodeSpec>) -> Result<()>,
) -> Result<bool> {
    store.bring(spec, &Stop::default(), |root, before, _| write(root, before))
}

/// Removes on this thread.
fn remove(store: &SlotStore, slot: &SlotName) -> Result<()> {
    store.clear_all(slot, &Stop::default())
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
    let broken = prepare(&store, &spec(&[]), |_, _| Err(Error::new(ErrorKind::Artifact, "fill a root")));
    let broken = broken.unwrap_err();
    assert_eq!((broken.kind(), broken.effect()), (ErrorKind::Artifact, Effect::Partial));
    assert!(!is_there(&store.mark(&slot)).unwrap());
    assert!(prepare(&store, &spec(&[]), fill).unwrap());
    assert_eq!(names(&store.root_dir(&slot)), ["file"]);
    assert!(!prepare(&store, &spec(&[]), |_, _| unreachable!()).unwrap());
    // Another spec for the same root sees the first.
    let device = |node| Grant::device(Purpose::HostDevice, HostPath::new(node).unwrap());
    let (a, b) = (device("/dev/kvm"), device("/dev/null"));
    let changed = prepare(&store, &spec(&[b.clone(), a.clone()]), |root, before| {
        assert_eq!(before, Some(&spec(&[])));
        assert!(root.metadata(&node_path!("/file")).unwrap().is_some());
        Ok(())
    });
    assert!(changed.unwrap());
    assert!(!prepare(&store, &spec(&[a, b]), |_, _| unreachable!()).unwrap());
    remove(&store, &slot).unwrap();
    remove(&store, &slot).unwrap();
    assert_eq!(names(dir.path()), [""; 0]);
    std::fs::write(store.mark(&slot), "no spec").unwrap();
    assert_eq!(prepare(&store, &spec(&[]), fill).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_spec_that_could_not_be_read_back_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, slot) = (SlotStore::new(dir.path()), SlotName::new("kube1").unwrap());
    let long = |bytes| spec(&[]).with_version("1".repeat(bytes));
    let error = prepare(&store, &long(LIMIT), |_, _| unreachable!()).unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidInput, Some(Reason::TooLong)));
    assert_eq!((error.effect(), names(dir.path())), (Effect::None, Vec::new()));
    // The longest that is kept is read back.
    for changed in [true, false] {
        assert_eq!(prepare(&store, &long(LIMIT - 100), |_, _| Ok(())).unwrap(), changed);
    }
    remove(&store, &slot).unwrap();
}

#[tokio::test]
async fn what_was_never_prepared_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let (store, slot) = (SlotStore::new(dir.path().join("slots")), SlotName::new("kube1").unwrap());
    let ctx = OpCtx::new(Duration::from_secs(5));
    let run = |operation| store.lifecycle(&ctx, operation, &slot, |_| async { panic!("there is no such slot") });
    for operation in [Operation::Start, Operation::Restart] {
        assert_eq!(run(operation).await.unwrap_err().kind(), ErrorKind::UnknownSlot);
    }
    run(Operation::Stop).await.unwrap();
    run(Operation::Destroy).await.unwrap();
    assert_eq!(names(dir.path()), [""; 0]);
    std::fs::create_dir_all(store.root_dir(&slot)).unwrap();
    store.lifecycle(&ctx, Operation::Destroy, &slot, |_| async { remove(&store, &slot) }).await.unwrap();
    assert_eq!(names(store.dir()), [""; 0]);
}

#[tokio::test]
async fn a_change_that_was_cut_short_is_no_finished_root() {
    let dir = tempfile::tempdir().unwrap();
    let (store, slot) = (SlotStore::new(dir.path()), SlotName::new("kube1").unwrap());
    let [x, y, z] = ["/dev/kvm", "/dev/null", "/dev/zero"]
        .map(|node| Grant::device(Purpose::HostDevice, HostPath::new(node).unwrap()));
    let one = |grant: &Grant| spec(std::slice::from_ref(grant));
    let fails = |_: &NodeFs, _: Option<&NodeSpec>| Err(Error::new(ErrorKind::Artifact, "write a root"));
    assert!(prepare(&store, &one(&x), |_, _| Ok(())).unwrap());
    store.startable(&slot, "start").await.unwrap();
    for grant in [&y, &z] {
        let error = prepare(&store, &one(grant), fails).unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Artifact, Effect::Partial));
        assert_eq!(store.startable(&slot, "start").await.unwrap_err().kind(), ErrorKind::NotPrepared);
        assert!(is_there(&store.mark(&slot)).unwrap());
    }
    // Back to the first: the root may hold grants of all three.
    let back = prepare(&store, &one(&x), |_, before| {
        assert_eq!(before, Some(&spec(&[x.clone(), z.clone(), y.clone()])));
        Ok(())
    });
    assert!(back.unwrap());
    store.startable(&slot, "start").await.unwrap();
    assert!(!prepare(&store, &one(&x), |_, _| unreachable!()).unwrap());
    // A link in place of the root is not followed.
    let aside = dir.path().join("aside");
    std::fs::rename(store.root_dir(&slot), &aside).unwrap();
    std::os::unix::fs::symlink(&aside, store.root_dir(&slot)).unwrap();
    let linked = prepare(&store, &one(&y), |_, _| unreachable!());
    assert_eq!(linked.unwrap_err().kind(), ErrorKind::Io);
    std::fs::remove_dir(aside).unwrap();
    // Whatever was cut short, nothing of it is left.
    assert!(store.changing(&slot).exists());
    remove(&store, &slot).unwrap();
    assert_eq!(names(dir.path()), [""; 0]);
}

#[tokio::test]
async fn what_can_not_be_found_out_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let (store, slot) = (SlotStore::new(dir.path().join("file/slots")), SlotName::new("kube1").unwrap());
    assert_eq!(store.is_prepared(&slot).await.unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(store.comes_up(&slot).await.unwrap_err().kind(), ErrorKind::Io);
    let ctx = OpCtx::new(Duration::from_secs(60));
    for operation in [Operation::Start, Operation::Stop, Operation::Restart, Operation::Destroy] {
        let done = store.lifecycle(&ctx, operation, &slot, |_| async { panic!("nobody knows whether there is one") });
        assert_eq!(done.await.unwrap_err().kind(), ErrorKind::Io, "{operation}");
    }
}

#[tokio::test]
async fn a_call_that_waited_for_a_destroy_finds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, slot) = (SlotStore::new(dir.path()), SlotName::new("kube1").unwrap());
    let ctx = OpCtx::new(Duration::from_secs(60));
    for operation in [Operation::Start, Operation::Restart, Operation::Stop, Operation::Destroy] {
        prepare(&store, &spec(&[]), |_, _| Ok(())).unwrap();
        let held = store.lock(&ctx, &slot).await.unwrap();
        let call = store.lifecycle(&ctx, operation, &slot, |_| async { panic!("the slot is gone") });
        let destroy = async {
            // The call waits for the slot.
            while store.locks.in_line(&slot) < 2 {
                tokio::task::yield_now().await;
            }
            remove(&store, &slot).unwrap();
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

#[tokio::test]
async fn what_was_started_and_not_stopped_comes_up_with_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let (store, slot) = (SlotStore::new(dir.path()), SlotName::new("kube1").unwrap());
    let ctx = OpCtx::new(Duration::from_secs(60));
    prepare(&store, &spec(&[]), |_, _| Ok(())).unwrap();
    let run = |operation, done: Result<()>| store.lifecycle(&ctx, operation, &slot, |_| async { done });
    let failed = || Err(Error::new(ErrorKind::Command, "do it"));
    for (operation, succeeds, up) in [
        (Operation::Start, false, false),
        (Operation::Start, true, true),
        (Operation::Start, true, true),
        (Operation::Restart, false, true),
        // What is to be stopped does not come up again, and be it that it runs on until then.
        (Operation::Stop, false, false),
        (Operation::Restart, true, true),
        (Operation::Stop, true, false),
        (Operation::Stop, true, false),
        (Operation::Start, true, true),
        (Operation::Destroy, false, false),
    ] {
        let done = run(operation, if succeeds { Ok(()) } else { failed() }).await;
        assert_eq!((done.is_ok(), store.comes_up(&slot).await.unwrap()), (succeeds, up), "{operation} {succeeds}");
    }
    run(Operation::Start, Ok(())).await.unwrap();
    let written = std::fs::metadata(store.up(&slot)).unwrap().modified().unwrap();
    run(Operation::Start, Ok(())).await.unwrap();
    assert_eq!(std::fs::metadata(store.up(&slot)).unwrap().modified().unwrap(), written);
    remove(&store, &slot).unwrap();
    assert_eq!(names(dir.path()), [""; 0]);
}

#[tokio::test]
async fn what_nobody_waits_for_keeps_the_slot_until_it_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (store, slot) = (SlotStore::new(dir.path()), SlotName::new("kube1").unwrap());
    let (ctx, spec) = (OpCtx::new(Duration::from_secs(60)), spec(&[]));
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let held = store.lock(&ctx, &slot).await.unwrap();
    let write = move |_: &NodeFs, _: Option<&NodeSpec>, _: &Stop| {
        begun.send(()).unwrap();
        may_go_on.recv_timeout(Duration::from_secs(60)).unwrap();
        Ok(())
    };
    let mut call = Box::pin(store.prepare(&ctx, held, &spec, write));
    tokio::select! {
        biased;
        done = call.as_mut() => panic!("{done:?}"),
        begun = has_begun => begun.unwrap(),
    }
    drop(call);
    let busy = store.lock(&OpCtx::new(Duration::from_millis(50)), &slot).await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    go_on.send(()).unwrap();
    let held = store.lock(&ctx, &slot).await.unwrap();
    assert!(!is_there(&store.mark(&slot)).unwrap(), "it was cut short");
    assert!(store.prepare(&ctx, held, &spec, |_, _, _| Ok(())).await.unwrap());
    // The guard says which slot is meant.
    let held = store.lock(&ctx, &SlotName::new("kube2").unwrap()).await.unwrap();
    let other = store.prepare(&ctx, held, &spec, |_, _, _| Ok(())).await.unwrap_err();
    assert_eq!((other.kind(), other.effect()), (ErrorKind::InvalidSlot, Effect::None));
    let held = store.lock(&ctx, &slot).await.unwrap();
    store.remove(&ctx, held).await.unwrap();
    assert_eq!(names(dir.path()), [""; 0]);
}
