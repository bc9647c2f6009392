//! Helpers for testing commands.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sandbox::{ExecRequest, ExecResult};
use sandbox_guest::Guest;

pub async fn run(guest: &Guest, text: &str) -> ExecResult {
    run_request(guest, ExecRequest::shell(text.to_owned())).await
}

pub async fn run_request(guest: &Guest, request: ExecRequest) -> ExecResult {
    tokio::time::timeout(Duration::from_secs(30), guest.exec(request)).await.expect("exec answers").expect("exec works")
}

pub fn secs(n: f64) -> Duration {
    Duration::from_secs_f64(n)
}

pub async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < secs(30.0), "{what}: it does not");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A number of seconds that no other sleep of this machine has.
pub fn mark() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("9{:07}{:02}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The processes that have `mark` as their last argument.
pub fn marked(mark: &str) -> Vec<String> {
    let names = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let line = |pid: &String| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is = |line: Vec<u8>| line.split(|b| *b == 0).rfind(|word| !word.is_empty()) == Some(mark.as_bytes());
    names.filter(|pid| is(line(pid))).collect()
}
