//! Commands that one talks to while they run.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::{Duration, Instant};

use common::Bare;
use sandbox::{Death, Effect, Error, ErrorKind, ExecRequest, Process, SandboxPath, Signal, SpawnRequest};
use sandbox_guest::Guest;
use tokio::io::AsyncWriteExt;

async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work).await.unwrap_or_else(|_| panic!("{what}: too late"))
}

async fn spawn(guest: &Guest, request: SpawnRequest) -> Process {
    within("spawn", guest.spawn(request)).await.unwrap()
}

async fn gone(guest: &Guest, pattern: &str) {
    let text = format!(
        "for i in $(seq 80); do pgrep -f '{pattern}' >/dev/null || exit 0; sleep 0.1; done; pgrep -fa '{pattern}'; ps -ef; exit 1"
    );
    let result = within("gone", guest.exec(ExecRequest::shell(text))).await.unwrap();
    assert_eq!(result.exit_code, 0, "{pattern} is left: {}", result.stdout.to_string_lossy());
}

#[tokio::test]
async fn input_arrives_and_its_end_too() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let mut process = spawn(&guest, SpawnRequest::shell("cat; echo end >&2; exit 3").with_stdin()).await;
    let mut stdin = process.stdin.take().unwrap();
    let payload: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
    let writing = async {
        stdin.write_all(&payload).await.unwrap();
        stdin.shutdown().await.unwrap();
    };
    let Process { stdout, stderr, .. } = &mut process;
    let (stdout, stderr) = (take(stdout), take(stderr));
    let ((), out, err) =
        within("cat", async { tokio::join!(writing, stdout.collect(8 << 20), stderr.collect(100)) }).await;
    assert!(out.unwrap() == payload);
    assert_eq!(err.unwrap(), "end\n");
    let exit = within("wait", process.wait()).await.unwrap();
    assert_eq!((exit.code, exit.timed_out), (3, false));
    assert_eq!(within("wait again", process.wait()).await.unwrap(), exit);
}

fn take(stream: &mut sandbox::ByteStream) -> sandbox::ByteStream {
    std::mem::replace(stream, sandbox::ByteStream::new(futures::stream::empty()))
}

#[tokio::test]
async fn output_arrives_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let mut process =
        spawn(&guest, SpawnRequest::shell("read a; echo $((a*2)); read b; echo $((b*2))").with_stdin()).await;
    let mut stdin = process.stdin.take().unwrap();
    for (n, answer) in [("21\n", "42\n"), ("4\n", "8\n")] {
        stdin.write_all(n.as_bytes()).await.unwrap();
        stdin.flush().await.unwrap();
        assert_eq!(within("answer", process.stdout.next()).await.unwrap().unwrap(), answer);
    }
    assert!(within("end", process.stdout.next()).await.is_none());
    assert!(within("wait", process.wait()).await.unwrap().success());
}

#[tokio::test]
async fn a_dropped_writer_is_the_end_of_input_and_none_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let mut process = spawn(&guest, SpawnRequest::shell("wc -c").with_stdin()).await;
    drop(process.stdin.take());
    assert!(within("wait", process.wait()).await.unwrap().success());
    let mut process = spawn(&guest, SpawnRequest::shell("wc -c")).await;
    assert!(process.stdin.is_none());
    assert_eq!(within("read", process.stdout.next()).await.unwrap().unwrap(), "0\n");
    assert!(within("wait", process.wait()).await.unwrap().success());
}

#[tokio::test]
async fn signals_limits_and_drops() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let text = "trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.05; done";
    let mut process = spawn(&guest, SpawnRequest::shell(text)).await;
    assert_eq!(within("ready", process.stdout.next()).await.unwrap().unwrap(), "ready\n");
    within("signal", process.signal(Signal::User1)).await.unwrap();
    assert_eq!(within("got", process.stdout.next()).await.unwrap().unwrap(), "got\n");
    assert_eq!(within("wait", process.wait()).await.unwrap().code, 5);
    within("late signal", process.signal(Signal::Terminate)).await.unwrap();

    // Ready is one that has left the group.
    let text = |mark: &str| format!("setsid sh -c 'echo ready; exec sleep {mark}.1' & exec sleep {mark}.2");
    let mut process = spawn(&guest, SpawnRequest::shell(text("981"))).await;
    assert_eq!(within("ready", process.stdout.next()).await.unwrap().unwrap(), "ready\n");
    within("kill", process.kill()).await.unwrap();
    assert_eq!(within("wait", process.wait()).await.unwrap().code, 137);
    gone(&guest, "sleep 981[.]").await;

    let begun = Instant::now();
    let mut process = spawn(&guest, SpawnRequest::shell("yes").with_limit(Duration::from_millis(300))).await;
    let exit = within("limit", process.wait()).await.unwrap();
    assert!(exit.timed_out && begun.elapsed() < Duration::from_secs(3), "{exit:?} {:?}", begun.elapsed());

    let mut process = spawn(&guest, SpawnRequest::shell(text("982"))).await;
    assert_eq!(within("ready", process.stdout.next()).await.unwrap().unwrap(), "ready\n");
    drop(process);
    gone(&guest, "sleep 982[.]").await;
}

#[tokio::test]
async fn unread_output_stalls_and_dropped_output_is_drained() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let mut process = spawn(&guest, SpawnRequest::shell("head -c 20000000 /dev/zero")).await;
    assert!(tokio::time::timeout(Duration::from_millis(400), process.wait()).await.is_err(), "nobody read it");
    drop(take(&mut process.stdout));
    assert!(within("drained", process.wait()).await.unwrap().success());
}

#[tokio::test]
async fn a_straggler_does_not_hold_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    // It ends only once the end of the command is known.
    let text = "(until [ -e go ]; do sleep 0.05; done; echo > end) & echo started";
    let mut process = spawn(&guest, SpawnRequest::shell(text)).await;
    assert!(within("wait", process.wait()).await.unwrap().success());
    std::fs::write(dir.path().join("go"), "").unwrap();
    within("the straggler's end", async {
        while !dir.path().join("end").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_kill_strikes_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    // Holds what a retired shell holds: /dev/null.
    let mut bystander = spawn(&guest, SpawnRequest::shell("exec >/dev/null 2>&1; sleep 983")).await;
    for _ in 0..5 {
        let process = spawn(&guest, SpawnRequest::shell("sleep 984.1 & echo started")).await;
        within("kill", process.kill()).await.unwrap();
        drop(process);
        let mut process = spawn(&guest, SpawnRequest::shell("sleep 984.2 & echo started")).await;
        within("wait", process.wait()).await.unwrap();
        within("kill", process.kill()).await.unwrap();
    }
    assert!(tokio::time::timeout(Duration::from_millis(200), bystander.wait()).await.is_err(), "the bystander died");
    within("kill", bystander.kill()).await.unwrap();
    // Stragglers of commands that ended are nobody's to kill.
    within("pkill", guest.exec(ExecRequest::shell("pkill -KILL -f 'sleep 98[34]'"))).await.unwrap();
    gone(&guest, "sleep 98[34]").await;
}

#[tokio::test]
async fn a_workdir_that_is_none_is_told_as_exec_tells_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    for (name, kind) in [("missing", ErrorKind::FileNotFound), ("file", ErrorKind::NotDirectory)] {
        let at = SandboxPath::new(dir.path().join(name).to_str().unwrap()).unwrap();
        let exec = within("exec", guest.exec(ExecRequest::shell("true").with_workdir(at.clone()))).await.unwrap_err();
        let mut process = spawn(&guest, SpawnRequest::shell("true").with_workdir(at.clone())).await;
        for error in [exec, wait_in_vain(&mut process).await, wait_in_vain(&mut process).await] {
            assert_eq!((error.kind(), error.effect(), error.path()), (kind, Effect::None, Some(&at)), "{error}");
        }
    }
}

async fn wait_in_vain(process: &mut Process) -> Error {
    within("wait", process.wait()).await.unwrap_err()
}

#[tokio::test]
async fn a_sandbox_that_dies_under_a_process_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, carrier) = Bare::default().guest(dir.path());
    let mut process = spawn(&guest, SpawnRequest::shell("echo started; sleep 979.1")).await;
    assert_eq!(within("started", process.stdout.next()).await.unwrap().unwrap(), "started\n");
    carrier.death.set(Death::OomKilled).unwrap();
    within("the death", guest.exec(ExecRequest::shell("true"))).await.unwrap();
    let pids: Vec<_> = carrier.pids.lock().unwrap().iter().map(u32::to_string).collect();
    assert!(std::process::Command::new("kill").arg("-KILL").args(pids).status().unwrap().success());
    assert!(std::process::Command::new("pkill").args(["-KILL", "-f", "sleep 979[.]1"]).status().unwrap().success());
    let item = within("its output", process.stdout.next()).await.unwrap().unwrap_err();
    for error in [wait_in_vain(&mut process).await, wait_in_vain(&mut process).await, item] {
        let told = (error.kind(), error.death(), error.effect());
        assert_eq!(told, (ErrorKind::NotFound, Some(Death::OomKilled), Effect::Unknown), "{error}");
        assert!(std::error::Error::source(&error).is_some());
    }
}

/// Whoever holds them or stops the shell: after the end of a command its reader and its writer are not held up.
#[tokio::test]
async fn its_streams_end_with_it_whoever_holds_them() {
    let dir = tempfile::tempdir().unwrap();
    let held = "exec 3<&0; env -i setsid sleep 987.1 <&3 & sleep 0.3";
    let ways = [
        ("its shell is killed", format!("{held}; kill -9 $PPID; sleep 987.2")),
        ("its shell is stopped", format!("{held}; kill -STOP $PPID; exec sleep 987.3")),
        ("it is over, and a friend lives on", format!("{held}; echo said; exit 3")),
        (
            "a friend prints for ever",
            "env -i setsid -f cat /dev/zero; sleep 0.3; kill -STOP $PPID; exec sleep 987.4".into(),
        ),
        (
            "a friend trickles",
            format!("env -i setsid bash -c 'while sleep 0.5; do echo .; done' & {held}; kill -9 $PPID"),
        ),
    ];
    let run = |what: &'static str, text: String| {
        let (guest, _) = Bare::default().guest(dir.path());
        async move {
            let request = SpawnRequest::shell(text).with_limit(Duration::from_secs(2)).with_stdin();
            let mut process = spawn(&guest, request).await;
            let mut stdin = process.stdin.take().unwrap();
            let Process { stdout, stderr, .. } = &mut process;
            let (stdout, stderr) = (take(stdout), take(stderr));
            // More than the way in holds.
            let writing = async { while stdin.write_all(&[b'x'; 1 << 20]).await.is_ok() {} };
            let reading = async { tokio::join!(stdout.finish(), stderr.finish()) };
            let ended = async { (process.wait().await, Instant::now()) };
            let all = async { tokio::join!(writing, reading, ended) };
            let begun = Instant::now();
            let all = tokio::time::timeout(Duration::from_secs(60), all).await;
            let ((), (out, _), (end, _)) = all.unwrap_or_else(|_| panic!("{what}: held up"));
            (what, out, end, begun.elapsed())
        }
    };
    for (what, out, end, took) in futures::future::join_all(ways.map(|(what, text)| run(what, text))).await {
        match what {
            "it is over, and a friend lives on" => {
                assert_eq!((out.unwrap(), end.unwrap().code), (5, 3), "{what}");
            }
            "its shell is killed" | "a friend trickles" => {
                assert_eq!(end.unwrap_err().kind(), ErrorKind::Lost, "{what}");
                assert_eq!(out.unwrap_err().kind(), ErrorKind::Lost, "{what}");
            }
            _ => {
                assert!(end.unwrap().timed_out, "{what}");
                assert_eq!(out.unwrap_err().kind(), ErrorKind::Lost, "{what}");
            }
        }
        let most = if what == "a friend trickles" { 45 } else { 15 };
        assert!(took < Duration::from_secs(most), "{what}: {took:?}");
    }
    let _ = std::process::Command::new("pkill").args(["-KILL", "-f", "^sleep 987[.]1"]).status();
}

/// An end that is told is a proven one.
#[tokio::test]
async fn the_output_of_a_dropped_process_is_not_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let mut process = spawn(&guest, SpawnRequest::shell("echo one; exec sleep 986.1")).await;
    let mut stdout = take(&mut process.stdout);
    assert_eq!(within("output", stdout.next()).await.unwrap().unwrap(), "one\n");
    drop(process);
    assert_eq!(within("the end", stdout.next()).await.unwrap().unwrap_err().kind(), ErrorKind::Lost);
}
