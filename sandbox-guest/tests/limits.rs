//! When a command ends: by itself, at its limit, with whoever asked for it, or with its sandbox.
#![cfg(target_os = "linux")]

mod common;

use std::time::Instant;

use common::Bare;
use common::exec::*;
use sandbox::{Death, Effect, ErrorKind, ExecRequest};

#[tokio::test]
async fn limits() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let begun = Instant::now();
    let text = "echo head; sleep 987.1 & setsid sleep 987.2 & (sleep 987.3 &); sleep 987.4";
    let result = run_request(&guest, ExecRequest::shell(text).with_limit(secs(0.3))).await;
    assert!(begun.elapsed() < secs(3.0), "{:?}", begun.elapsed());
    assert_eq!((result.exit_code, result.timed_out), (137, true));
    assert_eq!(result.stdout.bytes, "head\n");
    assert_eq!(result.stderr.bytes, "");
    let left = run(
        &guest,
        "for i in $(seq 50); do pgrep -f 'sleep 987[.]' >/dev/null || break; sleep 0.1; done; pgrep -fa 'sleep 987[.]'",
    )
    .await;
    assert_eq!(left.stdout.bytes, "", "left over");
    for (text, code) in [("kill -9 $$", 137), ("exit 124", 124), ("exit 137", 137), ("sleep 0.1", 0)] {
        let result = run_request(&guest, ExecRequest::shell(text).with_limit(secs(20.0))).await;
        assert_eq!((result.exit_code, result.timed_out), (code, false), "{text}");
    }
    for (text, grace, said) in
        [("trap '' TERM; sleep 60", 1.0, ""), ("trap 'echo cleaned; exit 0' TERM; sleep 60 & wait", 10.0, "cleaned\n")]
    {
        let request = ExecRequest::shell(text).with_limit(secs(0.5)).with_grace(secs(grace));
        let result = run_request(&guest, request).await;
        assert!(result.timed_out && result.elapsed < secs(8.0), "{text}: {result:?}");
        assert_eq!(result.stdout.bytes, said, "{text}");
    }
}

#[tokio::test]
async fn overruns_cannot_be_hidden() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    for text in ["exec >&- 2>&-; sleep 60", "trap '' TERM INT HUP; sleep 60", "kill -STOP $$; sleep 60"] {
        let result = run_request(&guest, ExecRequest::shell(text).with_limit(secs(0.5))).await;
        assert!(result.timed_out, "{text}: {result:?}");
    }
    let begun = Instant::now();
    let killed = guest.exec(ExecRequest::shell("kill -9 $PPID; sleep 988.1").with_limit(secs(5.0))).await;
    let error = killed.expect_err("the shell was killed");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Lost, Effect::Unknown));
    assert!(begun.elapsed() < secs(5.0));
    let left = run(&guest, "for i in $(seq 50); do pgrep -f 'sleep 988[.]1' >/dev/null || break; sleep 0.1; done; pgrep -f 'sleep 988[.]1'").await;
    assert_eq!(left.stdout.bytes, "", "left over");
}

#[tokio::test]
async fn a_straggler_neither_delays_nor_dies() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let size = |name: &str| std::fs::metadata(dir.path().join(name)).map_or(0, |m| m.len());
    // It prints until it is told to end, and that it is only once the result is here.
    let text = "(until [ -e go ]; do echo tick; head -c 100000 /dev/zero; echo >> ticks; sleep 0.05; done; echo done > flag) & echo started";
    let begun = Instant::now();
    let result = run_request(&guest, ExecRequest::shell(text).with_limit(secs(20.0))).await;
    assert!(begun.elapsed() < secs(5.0), "{:?}", begun.elapsed());
    assert!(result.stdout.bytes.starts_with(b"started\n") || result.stdout.bytes.starts_with(b"tick\n"), "{result:?}");
    assert_eq!((result.exit_code, result.timed_out), (0, false));
    let before = size("ticks");
    until("it prints on", || size("ticks") > before + 3).await;
    std::fs::write(dir.path().join("go"), "").unwrap();
    until("it comes to its own end", || size("flag") > 0).await;
}

#[tokio::test]
async fn a_dropped_future_kills_its_command() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    tokio::select! {
        result = guest.exec(ExecRequest::shell("setsid sh -c 'echo > begun; exec sleep 989.1' & sleep 989.2")) => panic!("{result:?}"),
        () = until("it begins", || dir.path().join("begun").exists()) => {}
    }
    let left = run(&guest, "for i in $(seq 100); do pgrep -f 'sleep 989[.]' >/dev/null || break; sleep 0.1; done; pgrep -fa 'sleep 989[.]'").await;
    assert_eq!(left.stdout.bytes, "", "left over");
}

#[tokio::test]
async fn a_sandbox_that_dies_under_a_command_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, carrier) = Bare::default().guest(dir.path());
    let dying = async {
        let pid = || std::fs::read_to_string(dir.path().join("pid")).unwrap_or_default();
        until("it runs", || pid().ends_with('\n')).await;
        carrier.death.set(Death::OomKilled).unwrap();
        let shells = carrier.pids.lock().unwrap().clone();
        let pids = shells.iter().map(u32::to_string).chain([pid().trim().to_owned()]);
        assert!(std::process::Command::new("kill").arg("-KILL").args(pids).status().unwrap().success());
    };
    let (outcome, ()) = tokio::join!(guest.exec(ExecRequest::shell("echo $$ > pid; exec sleep 978.1")), dying);
    let error = outcome.unwrap_err();
    let told = (error.kind(), error.death(), error.effect());
    assert_eq!(told, (ErrorKind::NotFound, Some(Death::OomKilled), Effect::Unknown), "{error}");
}
