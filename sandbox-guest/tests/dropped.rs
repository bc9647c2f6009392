//! Commands that nobody waits for any more: each of them dies, however many there are and whatever becomes of the way to them.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use common::Bare;
use common::files::{Source, Then, at, residue};
use sandbox::{ExecRequest, FileWrite, Process, SandboxPath, SpawnRequest};
use sandbox_guest::Guest;
use tokio::time::{sleep, timeout};

/// How many processes of this machine have `mark` as their first argument.
fn marked(mark: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.split(|b| *b == 0).nth(1) == Some(mark.as_bytes())).count()
}

async fn until(what: &str, most: Duration, mut done: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < most, "{what}: not within {most:?}");
        sleep(Duration::from_millis(20)).await;
    }
    begun.elapsed()
}

fn signal(name: &str, pids: impl IntoIterator<Item = u32>) {
    let pids = pids.into_iter().map(|pid| pid.to_string());
    assert!(Command::new("kill").arg(format!("-{name}")).args(pids).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waves_of_them_die() {
    const MARK: &str = "986000001";
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    for _ in 0..8 {
        let mut wave = tokio::task::JoinSet::new();
        for _ in 0..60 {
            let guest = guest.clone();
            let limit = Duration::from_secs(5);
            wave.spawn(async move { guest.exec(ExecRequest::shell(format!("sleep {MARK}")).with_limit(limit)).await });
        }
        sleep(Duration::from_millis(1200)).await;
    }
    let most = Duration::from_secs(15);
    let took = until("the last one's death", most, || marked(MARK) == 0).await;
    // The places are free again, too.
    let again = timeout(most, guest.exec(ExecRequest::shell("echo alive"))).await.unwrap().unwrap();
    assert_eq!(again.stdout.bytes, "alive\n", "after {took:?}");
}

/// An operation's place is its own until its command is dead: what waits for a kill is bounded by the number of places.
#[tokio::test]
async fn a_place_is_free_once_the_command_is_dead() {
    const MARK: &str = "986000002";
    let dir = tempfile::tempdir().unwrap();
    let one = |mut config: sandbox_guest::GuestConfig| {
        config.max_streams = 1;
        config
    };
    let (guest, _) = Bare::default().guest_with(dir.path(), one);
    for _ in 0..5 {
        let run = guest.exec(ExecRequest::shell(format!("sleep {MARK} & sleep {MARK}")));
        assert!(timeout(Duration::from_millis(300), run).await.is_err());
        timeout(Duration::from_secs(10), guest.exec(ExecRequest::shell("true"))).await.unwrap().unwrap();
        assert_eq!(marked(MARK), 0, "a command has begun before the one before it was dead");
    }
}

/// Starts `count` commands; answers them and their shells.
async fn started(guest: &Guest, mark: &str, count: usize) -> (Vec<Process>, BTreeSet<u32>) {
    let (mut processes, mut shells) = (Vec::new(), BTreeSet::new());
    for _ in 0..count {
        let text = format!("echo $PPID; setsid sleep {mark} & sleep {mark}");
        let mut process = guest.spawn(SpawnRequest::shell(text)).await.unwrap();
        let said = timeout(Duration::from_secs(10), process.stdout.next()).await.unwrap().unwrap().unwrap();
        shells.insert(String::from_utf8_lossy(&said).trim().parse().unwrap());
        processes.push(process);
    }
    (processes, shells)
}

#[tokio::test]
async fn orders_outlive_the_control_stream() {
    const MARK: &str = "986000003";
    let dir = tempfile::tempdir().unwrap();
    let (guest, carrier) = Bare::default().guest(dir.path());
    let (processes, shells) = started(&guest, MARK, 40).await;
    until("all of them", Duration::from_secs(30), || marked(MARK) == 80).await;
    // What runs no command has the control stream.
    let others =
        || carrier.pids.lock().unwrap().iter().copied().filter(|pid| !shells.contains(pid)).collect::<Vec<_>>();
    let control = others();
    signal("STOP", control.iter().copied());
    drop(processes);
    sleep(Duration::from_millis(300)).await;
    assert_eq!(marked(MARK), 80, "somebody else has killed them");
    signal("KILL", control);
    until("their death", Duration::from_secs(30), || marked(MARK) == 0).await;
}

/// A connection that is cut says nothing inside: the shell that waits for content is told to give up.
#[tokio::test]
async fn a_dropped_write_is_given_up_also_where_nobody_inside_hears_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare { deaf: true, ..Bare::default() }.guest(dir.path());
    std::fs::write(dir.path().join("target"), "kept").unwrap();
    let there = || residue(dir.path()).iter().any(|temp| temp.metadata().is_ok_and(|m| m.len() > 0));
    let body = sandbox::Body::reader(Source::new(100_000, Then::Hang));
    tokio::select! {
        outcome = guest.write(FileWrite::new(at(&dir.path().join("target")), 200_000, body)) => panic!("{outcome:?}"),
        _ = until("some content", Duration::from_secs(20), there) => {}
    }
    until("its removal", Duration::from_secs(20), || residue(dir.path()).is_empty()).await;
    assert_eq!(std::fs::read(dir.path().join("target")).unwrap(), b"kept");
}

#[tokio::test]
async fn dropped_writes_are_given_up_together() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let mut writes = tokio::task::JoinSet::new();
    for i in 0..40 {
        let path = SandboxPath::new(dir.path().join(format!("f{i}")).to_str().unwrap()).unwrap();
        let guest = guest.clone();
        writes.spawn(async move {
            let body = sandbox::Body::reader(tokio::io::repeat(7));
            guest.write(FileWrite::new(path, 1 << 40, body)).await
        });
    }
    let there = || std::fs::read_dir(dir.path()).unwrap().count();
    until("forty temporary files", Duration::from_secs(20), || there() == 40).await;
    writes.shutdown().await;
    until("their removal", Duration::from_secs(15), || there() == 0).await;
    timeout(Duration::from_secs(10), guest.exec(ExecRequest::shell("true"))).await.unwrap().unwrap();
}
