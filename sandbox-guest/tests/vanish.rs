//! A client that is killed: what has a limit still ends, and the shells go away.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::Bare;
use sandbox::ExecRequest;

const DIR: &str = "VANISHING_CLIENT_DIR";
/// What the client does.
const JOB: &str = "VANISHING_CLIENT_JOB";

#[tokio::test]
#[ignore = "is the client that the other test starts and kills"]
async fn client() {
    let dir = PathBuf::from(std::env::var(DIR).unwrap());
    let (guest, carrier) = Bare::default().guest(&dir);
    // A first command, so that the control stream has had time to open.
    guest.exec(ExecRequest::shell("sleep 0.2")).await.unwrap();
    let limited = |text: &str, limit| ExecRequest::shell(text.to_owned()).with_limit(Duration::from_secs_f64(limit));
    match &*std::env::var(JOB).unwrap() {
        "two" => {
            let text = "echo $$ > limited; setsid sleep 985.1 & sleep 985.2";
            let endless = ExecRequest::shell("echo $$ > endless; exec sleep 985.3");
            let _ = tokio::join!(guest.exec(limited(text, 3.0)), guest.exec(endless));
        }
        "sent" => {
            std::fs::write(dir.join("sending"), "").unwrap();
            let text = format!("exec sleep 985.4; {}", ":".repeat(60_000));
            let _ = guest.exec(limited(&text, 1.0)).await;
        }
        "background" => {
            let quiet = "sleep 985.5 >/dev/null 2>&1 & sleep 985.6 & echo $! > left";
            guest.exec(limited(quiet, 1.0)).await.unwrap();
            let shells: Vec<_> = carrier.pids.lock().unwrap().iter().map(u32::to_string).collect();
            std::fs::write(dir.join("shells"), shells.join(" ")).unwrap();
            std::fs::write(dir.join("done"), "").unwrap();
            std::future::pending::<()>().await;
        }
        "chain" => {
            std::fs::write(dir.join("link"), "sleep 0.3; setsid -f bash link 985.7\n").unwrap();
            let text = "setsid -f bash link 985.7; echo $$ > limited; sleep 985.8";
            let _ = guest.exec(limited(text, 1.0)).await;
        }
        other => panic!("no job {other}"),
    }
}

/// Starts a client and kills it once `ready` says so.
fn killed_client(job: &str, dir: &Path, ready: impl FnMut() -> bool) {
    let mut client = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["client", "--exact", "--include-ignored"])
        .env(DIR, dir)
        .env(JOB, job)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the client is at work", Duration::from_secs(20), ready);
    client.kill().unwrap();
    client.wait().unwrap();
}

fn wait_for(what: &str, most: Duration, mut ready: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !ready() {
        assert!(begun.elapsed() < most, "{what}: not within {most:?}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    begun.elapsed()
}

/// The pids of processes that have `marker` in their command line.
fn running(marker: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let pid = entry.file_name().to_string_lossy().parse().ok();
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if let Some(pid) = pid.filter(|_| String::from_utf8_lossy(&line).contains(marker)) {
            found.push(pid);
        }
    }
    found
}

fn pid_in(file: &Path) -> Option<i32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[test]
fn a_killed_clients_command_still_ends_at_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (limited, endless) = (dir.path().join("limited"), dir.path().join("endless"));
    killed_client("two", dir.path(), || pid_in(&limited).is_some() && pid_in(&endless).is_some());
    assert!(!running("sleep\x00985.1").is_empty(), "it lives on for now");
    let took = wait_for("the limited command ends", Duration::from_secs(15), || {
        running("sleep\x00985.1").is_empty() && running("sleep\x00985.2").is_empty()
    });
    assert!(took < Duration::from_secs(10), "{took:?}");
    // What has no limit is nobody's business but the sandbox's end.
    let left = running("sleep\x00985.3");
    assert_eq!(left.len(), 1, "the endless command lives");
    let pid = pid_in(&endless).unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
}

/// Whenever the client goes: a request that has arrived may begin after it.
#[test]
fn a_request_that_was_just_sent_does_not_escape_its_limit() {
    for micros in [0, 100, 300, 1000, 2000, 3000, 5000, 8000, 12_000, 20_000, 30_000, 50_000] {
        let dir = tempfile::tempdir().unwrap();
        killed_client("sent", dir.path(), || {
            let sending = dir.path().join("sending").exists();
            sending.then(|| std::thread::park_timeout(Duration::from_micros(micros))).is_some()
        });
    }
    wait_for("all commands end", Duration::from_secs(20), || running("sleep\x00985.4").is_empty());
    // Nor does one begin later.
    std::thread::park_timeout(Duration::from_secs(2));
    assert_eq!(running("sleep\x00985.4"), Vec::<u32>::new());
}

#[test]
fn what_a_command_left_in_the_background_outlives_its_limit_and_the_client() {
    let dir = tempfile::tempdir().unwrap();
    killed_client("background", dir.path(), || dir.path().join("done").exists());
    let shells = std::fs::read_to_string(dir.path().join("shells")).unwrap();
    let alive =
        || running("--norc").iter().filter(|pid| shells.split(' ').any(|shell| shell == pid.to_string())).count();
    // But for the one that drains what is in the background: the watchdog has had its last look.
    wait_for("the shells go", Duration::from_secs(30), || alive() <= 1);
    for sleeper in ["sleep\x00985.5", "sleep\x00985.6"] {
        let left = running(sleeper);
        assert_eq!(left.len(), 1, "{sleeper} lives on");
        assert!(std::process::Command::new("kill").args(["-KILL", &left[0].to_string()]).status().unwrap().success());
    }
}

/// The limit is the command's, not each process's.
#[test]
fn a_chain_of_young_processes_ends_at_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let limited = dir.path().join("limited");
    killed_client("chain", dir.path(), || pid_in(&limited).is_some());
    let links = || running("link\x00985.7").len() + running("sleep\x00985.8").len();
    wait_for("the chain ends", Duration::from_secs(15), || links() == 0);
    std::thread::park_timeout(Duration::from_secs(1));
    assert_eq!(links(), 0, "it goes on");
}
