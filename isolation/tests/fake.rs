//! What the fake records and injects; how it behaves is the conformance suite's business.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use isolation::fake::FakeBackend;
use isolation::{
    Backend, BackendExt, Effect, ErrorKind, ExecOutput, ExecSpec, ExecStatus, Grant, HostPath, LogOptions, Mode,
    NodePath, NodeRoot, NodeSpec, OpCtx, Operation, Purpose, Ready, SlotName, SlotPair, SlotState, Status, node_path,
};

fn slot() -> SlotName {
    SlotName::new("kube1").unwrap()
}

fn ctx() -> OpCtx {
    OpCtx::new(Duration::from_secs(10))
}

#[tokio::test]
async fn every_call_is_recorded_before_it_fails() {
    let fake = FakeBackend::new().with_dir("/m").with_mode(Mode::None).with_error(Operation::Start, ErrorKind::Busy);
    let (ctx, slot) = (ctx(), slot());
    assert_eq!((fake.mode(), fake.requirements()), (Mode::None, Default::default()));
    let (root, report) = fake.prepare(&ctx, &NodeSpec::new(slot.clone())).await.unwrap();
    assert_eq!(root.path(&node_path!("/x")), Path::new("/m/kube1/x"));
    assert!(report.changed);
    assert_eq!(fake.start(&ctx, &root).await.unwrap_err().kind(), ErrorKind::Busy);
    fake.stop(&ctx, &slot).await.unwrap();
    fake.restart(&ctx, &slot).await.unwrap();
    fake.destroy(&ctx, &slot).await.unwrap();
    assert_eq!(fake.status(&ctx, &slot).await.unwrap().state, SlotState::Running);
    fake.exec(&ctx, &slot, &ExecSpec::new(["true"])).await.unwrap();
    fake.logs(&ctx, &slot, &LogOptions::default()).await.unwrap().close().await.unwrap();
    let verbs = ["prepare", "start", "stop", "restart", "destroy", "status", "exec", "logs"];
    assert_eq!(fake.calls(), verbs.map(|verb| format!("{verb} kube1")));
    assert_eq!(fake.execs(), [ExecSpec::new(["true"])]);
}

#[tokio::test]
async fn results_are_configured_and_errors_win() {
    let fake =
        FakeBackend::new().with_status(Status::new(SlotState::Degraded)).with_log("a\nb\n").with_exec(|slot, spec| {
            Ok(ExecOutput::new(ExecStatus::Exited(3)).with_stdout(format!("{slot} {:?}", spec.argv[0])))
        });
    let (ctx, slot) = (ctx(), slot());
    assert_eq!(fake.status(&ctx, &slot).await.unwrap().state, SlotState::Degraded);
    assert_eq!(fake.logs_to_string(&ctx, &slot, &LogOptions::default(), 100).await.unwrap(), "a\nb\n");
    let output = fake.exec(&ctx, &slot, &ExecSpec::new(["x"])).await.unwrap();
    assert_eq!((output.status, output.stdout_text().as_str()), (ExecStatus::Exited(3), "kube1 \"x\""));
    assert_eq!(fake.exec_ok(&ctx, &slot, &ExecSpec::new(["x"])).await.unwrap_err().kind(), ErrorKind::Command);
    fake.fail_next(Operation::Exec, ErrorKind::Transport);
    fake.fail_next(Operation::Exec, ErrorKind::NotRunning);
    for kind in [Some(ErrorKind::Transport), Some(ErrorKind::NotRunning), None] {
        assert_eq!(fake.exec(&ctx, &slot, &ExecSpec::new(["x"])).await.err().map(|e| e.kind()), kind);
    }
}

#[tokio::test]
async fn an_unusable_directory_is_an_error_and_no_panic() {
    for dir in ["", "/", "//", "/.", "relative", "/a/.."] {
        let error = FakeBackend::new().with_dir(dir).prepare(&ctx(), &NodeSpec::new(slot())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidPath, "{dir}");
    }
    assert!(FakeBackend::new().prepare(&ctx(), &NodeSpec::new(slot())).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn delays_meet_deadlines() {
    let fake = FakeBackend::new().with_delay(Operation::Start, Duration::from_secs(60));
    let error = fake.start(&ctx(), &slot()).await.unwrap_err();
    assert_eq!((error.kind(), fake.calls().len()), (ErrorKind::Timeout, 1));
}

#[tokio::test]
async fn it_can_be_used_at_once_from_many_tasks() {
    let fake = FakeBackend::new();
    let calls = (0..64).map(|_| {
        let fake = fake.clone();
        tokio::spawn(async move { fake.start(&ctx(), &slot()).await.unwrap() })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    assert_eq!(fake.calls().len(), 64);
}

#[tokio::test]
async fn the_stateful_one_lives_a_life() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeBackend::stateful(dir.path(), SlotPair::default());
    let (ctx, slot) = (ctx(), slot());
    let grant = isolation::Grant::mount(Purpose::HostMount, HostPath::new("/usr").unwrap());
    let spec = NodeSpec::new(slot.clone()).with_grants(vec![grant]);
    assert_eq!(fake.wait_ready(&ctx, &slot, &Ready::Booted).await.unwrap_err().kind(), ErrorKind::UnknownSlot);
    let (root, report) = fake.prepare(&ctx, &spec).await.unwrap();
    assert!(report.changed);
    assert!(!fake.prepare(&ctx, &spec).await.unwrap().1.changed);
    fake.start(&ctx, &slot).await.unwrap();
    fake.wait_ready(&ctx, &slot, &Ready::Booted).await.unwrap();
    root.fs().unwrap().write_atomic(&node_path!("/etc/x"), 0o644, b"hello").unwrap();
    let output = fake.exec_ok(&ctx, &root, &ExecSpec::new(["cat", "etc/x"])).await.unwrap();
    assert_eq!(output.stdout_text(), "hello");
    fake.destroy(&ctx, &root).await.unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert_eq!(fake.status(&ctx, &slot).await.unwrap(), Status::default());
    assert!(root.dir().starts_with(dir.path()));
}

#[tokio::test]
async fn a_preparation_that_failed_half_way_leaves_nothing_behind_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeBackend::stateful(dir.path(), SlotPair::default());
    let (ctx, slot) = (OpCtx::new(Duration::from_secs(60)), slot());
    let mount = |target: &str| {
        Grant::mount(Purpose::HostMount, HostPath::new("/usr").unwrap()).with_target(NodePath::new(target).unwrap())
    };
    let spec = |targets: &[&str]| {
        NodeSpec::new(slot.clone()).with_grants(targets.iter().map(|target| mount(target)).collect())
    };
    let (root, _) = fake.prepare(&ctx, &spec(&["/x"])).await.unwrap();
    // The second target is a directory with something in it.
    root.fs().unwrap().create_dir_all(&node_path!("/full/of"), 0o755).unwrap();
    let error = fake.prepare(&ctx, &spec(&["/y", "/full"])).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Partial, "{error}");
    assert_eq!(fake.start(&ctx, &slot).await.unwrap_err().kind(), ErrorKind::NotPrepared);
    let there = |name: &str| std::fs::symlink_metadata(root.dir().join(name)).is_ok();
    let (_, report) = fake.prepare(&ctx, &spec(&["/x"])).await.unwrap();
    assert!(report.changed);
    assert_eq!([there("x"), there("y"), there("full/of")], [true, false, true]);
    fake.start(&ctx, &slot).await.unwrap();
    fake.destroy(&ctx, &slot).await.unwrap();
    let left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.starts_with("kube1")).count(), 0);
}

#[tokio::test]
async fn files_that_can_not_be_looked_at_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let fake = FakeBackend::stateful(dir.path().join("file/slots"), SlotPair::default());
    let (ctx, slot) = (ctx(), slot());
    assert_eq!(fake.destroy(&ctx, &slot).await.unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(fake.stop(&ctx, &slot).await.unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(fake.status(&ctx, &slot).await.unwrap_err().kind(), ErrorKind::Io);
}
