//! Programs of this host as node stacks: what starts, what is told of it, and that nothing is left.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use isolation::{
    Cancel, ErrorKind, ExecSpec, ExecStatus, HostCommand, HostRoot, LogFormat, LogOptions, OpCtx, SlotName, SlotPair,
    SlotState, Supervisor, SystemRunner,
};

fn bed() -> (tempfile::TempDir, Supervisor, SlotName, SlotName) {
    let (dir, pair) = (tempfile::tempdir().unwrap(), SlotPair::default());
    let name = dir.path().to_str().unwrap().to_owned();
    let nodes = Supervisor::new(name, pair.clone(), Arc::new(SystemRunner::default()));
    (dir, nodes, pair.a().clone(), pair.b().clone())
}

fn ctx() -> OpCtx {
    OpCtx::new(Duration::from_secs(20))
}

fn sh(script: &str) -> HostCommand {
    HostCommand::new("sh", ["-c", script])
}

/// Makes a process that leaves its group and session; it is found by how long it sleeps.
fn escape(seconds: &str) -> String {
    format!("setsid sleep {seconds} >/dev/null 2>&1 & sleep 0.3")
}

async fn gone(seconds: &str) {
    let begun = Instant::now();
    let wanted = format!("sleep\0{seconds}\0").into_bytes();
    let alive = || {
        let list = std::fs::read_dir("/proc").unwrap().flatten();
        list.filter(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == wanted)).count()
    };
    while alive() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "sleep {seconds} runs on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn one_of_a_pair_runs_and_its_output_is_its_journal() {
    let (_dir, nodes, a, b) = bed();
    assert_eq!(nodes.status(&a).state, SlotState::Prepared);
    assert_eq!(nodes.exec(&ctx(), &a, sh("true")).await.unwrap_err().kind(), ErrorKind::NotRunning);
    assert_eq!(nodes.exec_stream(&a, sh("true")).unwrap_err().kind(), ErrorKind::NotRunning);
    nodes.stop(&a).await.unwrap();
    let missing = HostCommand::new("no-such-program", [""; 0]);
    assert_eq!(nodes.start(&a, missing).unwrap_err().kind(), ErrorKind::CommandNotFound);
    let main = || sh("echo up; echo badly >&2; exec sleep infinity");
    assert!(nodes.start(&a, main()).unwrap());
    let first = nodes.status(&a);
    assert_eq!((first.state, nodes.start(&a, main()).unwrap()), (SlotState::Running, false));
    assert_eq!(nodes.status(&a).instance, first.instance);
    assert_eq!(nodes.start(&b, main()).unwrap_err().kind(), ErrorKind::Conflict);
    let mut log = nodes.journal().open(&a, &LogOptions::default().with_format(LogFormat::Cat).with_follow(true));
    let mut seen = [0; 9];
    let read = tokio::io::AsyncReadExt::read_exact(&mut log, &mut seen);
    tokio::time::timeout(Duration::from_secs(10), read).await.unwrap().unwrap();
    assert!(matches!(&seen, b"up\nbadly\n" | b"badly\nup\n"), "{seen:?}");
    log.close().await.unwrap();
    nodes.stop(&a).await.unwrap();
    assert_eq!(nodes.status(&a).state, SlotState::Stopped);
    assert!(nodes.start(&b, main()).unwrap());
    assert_ne!(nodes.status(&b).instance, first.instance);
    nodes.forget(&a);
    assert_eq!(nodes.status(&a).state, SlotState::Prepared);
    assert_eq!(nodes.journal().open(&a, &LogOptions::default()).read_all(100).await.unwrap(), b"");
}

#[tokio::test]
async fn whoever_left_the_group_ends_too() {
    let (dir, nodes, a, _) = bed();
    let root = HostRoot::new(a.clone(), dir.path()).unwrap();
    let main = || HostCommand::new("sleep", ["infinity"]);
    // With the slot.
    nodes.start(&a, main()).unwrap();
    let command = HostCommand::of(&ExecSpec::new(["sh", "-c", &escape("811.1")]), &root).unwrap();
    assert!(nodes.exec(&ctx(), &a, command).await.unwrap().status.success());
    nodes.stop(&a).await.unwrap();
    gone("811.1").await;
    // When its command runs past its time, and when that is cancelled.
    nodes.start(&a, main()).unwrap();
    let late = sh(&(escape("811.2") + "; sleep 20")).with_timeout(Duration::from_millis(1500));
    assert_eq!(nodes.exec(&ctx(), &a, late).await.unwrap().status, ExecStatus::TimedOut);
    gone("811.2").await;
    let cancel = Cancel::new();
    let cancelled = ctx().with_cancel(cancel.clone());
    let call = nodes.exec(&cancelled, &a, sh(&(escape("811.3") + "; sleep 20")));
    let fire = async {
        tokio::time::sleep(Duration::from_millis(1000)).await;
        cancel.cancel();
    };
    let (ended, ()) = tokio::join!(call, fire);
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Cancelled);
    gone("811.3").await;
    // With a main program that ended by itself, as soon as somebody looks.
    nodes.stop(&a).await.unwrap();
    nodes.start(&a, sh(&escape("811.4"))).unwrap();
    let begun = Instant::now();
    while nodes.status(&a).state != SlotState::Failed {
        assert!(begun.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gone("811.4").await;
    // And with the supervisor.
    nodes.start(&a, main()).unwrap();
    nodes.exec(&ctx(), &a, sh(&escape("811.5"))).await.unwrap();
    drop(nodes);
    gone("811.5").await;
}

#[tokio::test]
async fn a_stop_meets_a_command() {
    let (_dir, nodes, a, _) = bed();
    nodes.start(&a, HostCommand::new("sleep", ["infinity"])).unwrap();
    let mut stream = nodes.exec_stream(&a, HostCommand::new("cat", [""; 0])).unwrap();
    let ctx = ctx();
    let call = nodes.exec(&ctx, &a, sh("sleep 20"));
    let stop = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        nodes.stop(&a).await
    };
    let (ended, stopped) = tokio::join!(call, stop);
    stopped.unwrap();
    let error = ended.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::NotRunning, isolation::Effect::Unknown));
    let waited = tokio::time::timeout(Duration::from_secs(5), stream.wait()).await.unwrap();
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Cancelled);
}
