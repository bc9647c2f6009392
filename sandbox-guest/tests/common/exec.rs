//! Helpers for testing commands.

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
