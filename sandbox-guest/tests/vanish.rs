//! A client that is killed: what has a limit still ends, and the shells go away.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::Bare;
use sandbox::ExecRequest;

const DIR: &str = "VANISHING_CLIENT_DIR";

#[tokio::test]
#[ignore = "is the client that the other test starts and kills"]
async fn client() {
    let dir = PathBuf::from(std::env::var(DIR).unwrap());
    let (guest, _) = Bare::default().guest(&dir);
    // A first command, so that the control stream has had time to open.
    guest.exec(ExecRequest::shell("sleep 0.2")).await.unwrap();
    let text = "echo $$ > limited; setsid sleep 985.1 & sleep 985.2";
    let limited = ExecRequest::shell(text).with_limit(Duration::from_secs(3));
    let endless = ExecRequest::shell("echo $$ > endless; exec sleep 985.3");
    let _ = tokio::join!(guest.exec(limited), guest.exec(endless));
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
    let mut client = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["client", "--exact", "--include-ignored"])
        .env(DIR, dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let (limited, endless) = (dir.path().join("limited"), dir.path().join("endless"));
    wait_for("both commands run", Duration::from_secs(20), || pid_in(&limited).is_some() && pid_in(&endless).is_some());
    client.kill().unwrap();
    client.wait().unwrap();
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
