//! Programs of this host as node stacks: what starts, what is told of it, and that nothing is left.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncBufReadExt;

use isolation::{
    Cancel, ErrorKind, ExecSpec, ExecStatus, HostCommand, HostRoot, LogFormat, LogOptions, OpCtx, SlotName, SlotPair,
    SlotState, Supervisor, SystemRunner,
};

fn bed() -> (tempfile::TempDir, Supervisor, SlotName, SlotName) {
    let (dir, pair) = (tempfile::tempdir().unwrap(), SlotPair::default());
    let nodes = supervisor(&dir);
    (dir, nodes, pair.a().clone(), pair.b().clone())
}

fn supervisor(dir: &tempfile::TempDir) -> Supervisor {
    Supervisor::new(dir.path(), SlotPair::default(), Arc::new(SystemRunner::default()))
}

/// Reads a slot's journal until `line` is in it.
async fn logged(nodes: &Supervisor, slot: &SlotName, line: &str) {
    let log = nodes.journal().open(slot, &LogOptions::default().with_format(LogFormat::Cat).with_follow(true));
    let mut lines = tokio::io::BufReader::new(log).lines();
    let seen = async { while lines.next_line().await.unwrap().unwrap() != line {} };
    tokio::time::timeout(Duration::from_secs(20), seen).await.unwrap_or_else(|_| panic!("no line {line:?}"));
}

fn ctx() -> OpCtx {
    OpCtx::new(Duration::from_secs(20))
}

fn sh(script: &str) -> HostCommand {
    HostCommand::new("sh", ["-c", script])
}

/// A time to sleep by which the processes of this run are found, and none of another.
fn time(seconds: &str) -> String {
    format!("{seconds}{:08}", std::process::id())
}

/// Makes a process that leaves its group and session; it is found by how long it sleeps.
fn escape(seconds: &str) -> String {
    let seconds = time(seconds);
    format!("setsid sleep {seconds} >/dev/null 2>&1 & sleep 0.3")
}

fn alive(seconds: &str) -> usize {
    let wanted = format!("sleep\0{}\0", time(seconds)).into_bytes();
    let list = std::fs::read_dir("/proc").unwrap().flatten();
    list.filter(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == wanted)).count()
}

async fn running(seconds: &str, wanted: usize) {
    let begun = Instant::now();
    while alive(seconds) < wanted {
        assert!(begun.elapsed() < Duration::from_secs(20), "no sleep {seconds} runs");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn gone(seconds: &str) {
    let begun = Instant::now();
    while alive(seconds) > 0 {
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
    assert_eq!(nodes.start(&a, missing).await.unwrap_err().kind(), ErrorKind::CommandNotFound);
    let main = || sh("echo up; echo badly >&2; exec sleep infinity");
    assert!(nodes.start(&a, main()).await.unwrap());
    let first = nodes.status(&a);
    assert_eq!((first.state, nodes.start(&a, main()).await.unwrap()), (SlotState::Running, false));
    assert_eq!(nodes.status(&a).instance, first.instance);
    assert_eq!(nodes.start(&b, main()).await.unwrap_err().kind(), ErrorKind::Conflict);
    let stranger = SlotName::new("elsewhere").unwrap();
    assert_eq!(nodes.start(&stranger, main()).await.unwrap_err().kind(), ErrorKind::InvalidSlot);
    let mut log = nodes.journal().open(&a, &LogOptions::default().with_format(LogFormat::Cat).with_follow(true));
    let mut seen = [0; 9];
    let read = tokio::io::AsyncReadExt::read_exact(&mut log, &mut seen);
    tokio::time::timeout(Duration::from_secs(10), read).await.unwrap().unwrap();
    assert!(matches!(&seen, b"up\nbadly\n" | b"badly\nup\n"), "{seen:?}");
    log.close().await.unwrap();
    nodes.stop(&a).await.unwrap();
    assert_eq!(nodes.status(&a).state, SlotState::Stopped);
    assert!(nodes.start(&b, main()).await.unwrap());
    assert_ne!(nodes.status(&b).instance, first.instance);
    nodes.forget(&a).await;
    assert_eq!(nodes.status(&a).state, SlotState::Prepared);
    assert_eq!(nodes.journal().open(&a, &LogOptions::default()).read_all(100).await.unwrap(), b"");
}

#[tokio::test]
async fn whoever_left_the_group_ends_too() {
    let (dir, nodes, a, _) = bed();
    let root = HostRoot::new(a.clone(), dir.path()).unwrap();
    let main = || HostCommand::new("sleep", ["infinity"]);
    // With the slot.
    nodes.start(&a, main()).await.unwrap();
    let command = HostCommand::of(&ExecSpec::new(["sh", "-c", &escape("811.1")]), &root).unwrap();
    assert!(nodes.exec(&ctx(), &a, command).await.unwrap().status.success());
    nodes.stop(&a).await.unwrap();
    gone("811.1").await;
    // When its command runs past its time, and when that is cancelled.
    nodes.start(&a, main()).await.unwrap();
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
    nodes.start(&a, sh(&escape("811.4"))).await.unwrap();
    let begun = Instant::now();
    while nodes.status(&a).state != SlotState::Failed {
        assert!(begun.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gone("811.4").await;
    // And with the supervisor.
    nodes.start(&a, main()).await.unwrap();
    nodes.exec(&ctx(), &a, sh(&escape("811.5"))).await.unwrap();
    drop(nodes);
    gone("811.5").await;
}

#[tokio::test]
async fn a_stop_meets_a_command() {
    let (_dir, nodes, a, _) = bed();
    nodes.start(&a, HostCommand::new("sleep", ["infinity"])).await.unwrap();
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

#[tokio::test]
async fn the_end_of_one_command_is_not_that_of_others() {
    let (dir, nodes, a, _) = bed();
    nodes.start(&a, HostCommand::new("sleep", ["infinity"])).await.unwrap();
    nodes.exec(&ctx(), &a, sh("true")).await.unwrap();
    let (go, ctx) = (dir.path().join("go"), ctx());
    // The second of the slot, beside the third to the twenty-second.
    let late = async {
        let late = nodes.exec(&ctx, &a, sh("sleep 20").with_timeout(Duration::from_millis(1000))).await.unwrap();
        std::fs::write(&go, "").unwrap();
        late.status
    };
    let wait = format!("while ! [ -e '{}' ]; do sleep 0.1; done", go.display());
    let others = futures::future::join_all((0..20).map(|_| nodes.exec(&ctx, &a, sh(&wait))));
    let (late, others) = tokio::join!(late, others);
    assert_eq!(late, ExecStatus::TimedOut);
    for other in others {
        assert_eq!(other.unwrap().status, ExecStatus::Exited(0));
    }
}

#[tokio::test]
async fn a_main_program_has_no_input_and_its_last_lines_are_kept() {
    let (_dir, nodes, a, _) = bed();
    nodes.start(&a, sh("cat; echo end of input; exec sleep infinity")).await.unwrap();
    // Without a look at its status, which changes nothing.
    logged(&nodes, &a, "end of input").await;
    nodes.stop(&a).await.unwrap();
    for round in 0..3 {
        let last = format!("last of {round}");
        nodes.start(&a, sh(&format!("seq 1 3000; echo {last} >&2; exit 1"))).await.unwrap();
        let begun = Instant::now();
        while nodes.status(&a).state != SlotState::Failed {
            assert!(begun.elapsed() < Duration::from_secs(10));
            tokio::task::yield_now().await;
        }
        // Who starts it at once loses nothing either.
        nodes.start(&a, HostCommand::new("sleep", ["infinity"])).await.unwrap();
        logged(&nodes, &a, "3000").await;
        logged(&nodes, &a, &last).await;
        nodes.stop(&a).await.unwrap();
        nodes.forget(&a).await;
    }
}

#[tokio::test]
async fn who_only_looks_like_ours_is_left_alone() {
    let (dir, nodes, a, _) = bed();
    nodes.start(&a, HostCommand::new("sleep", ["infinity"])).await.unwrap();
    let mark = dir.path().join(Supervisor::MARK);
    assert_eq!(mark.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut strangers = Vec::new();
    for guess in [format!("{}:{a}:", dir.path().display()), format!(":{a}:"), format!("{a}:main:")] {
        let command = std::process::Command::new("sleep").arg("60").env("ISOLATION_SLOT", guess).spawn();
        strangers.push(command.unwrap());
    }
    nodes.stop(&a).await.unwrap();
    drop(nodes);
    for mut stranger in strangers {
        assert_eq!(stranger.try_wait().unwrap(), None);
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}

#[tokio::test]
async fn what_an_earlier_process_left_ends_first() {
    let (dir, nodes, a, b) = bed();
    let left = |seconds: &str| sh(&format!("setsid sleep {0} & exec sleep {0}", time(seconds)));
    nodes.start(&a, left("812.1")).await.unwrap();
    running("812.1", 2).await;
    // As after a crash: nobody was told.
    std::mem::forget(nodes);
    let nodes = supervisor(&dir);
    assert_eq!(nodes.status(&a).state, SlotState::Prepared);
    assert!(nodes.start(&b, left("812.2")).await.unwrap());
    assert_eq!(alive("812.1"), 0);
    running("812.2", 2).await;
    std::mem::forget(nodes);
    let nodes = supervisor(&dir);
    nodes.stop(&a).await.unwrap();
    assert_eq!(alive("812.2"), 2, "the stop of a slot is none of the other");
    nodes.forget(&a).await;
    assert!(dir.path().join(Supervisor::MARK).exists(), "the other slot's processes need it");
    nodes.stop(&b).await.unwrap();
    assert_eq!(alive("812.2"), 0);
    nodes.forget(&b).await;
    assert!(!dir.path().join(Supervisor::MARK).exists());
}
