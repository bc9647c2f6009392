//! The control stream's script alone, with orders written by hand.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A shell that runs a command in a group of its own, and says what its pid is.
struct Shell {
    child: Child,
    command: String,
}

impl Shell {
    fn start() -> Self {
        let text = "set -m; sleep 977.1 & echo $!; wait";
        let mut command = Command::new("bash");
        command.args(["--norc", "--noprofile", "-pc", text]).process_group(0);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        Self { child, command: said.trim().to_owned() }
    }

    fn start_time(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap()
    }

    /// Waits until its command has died.
    fn died(&self) {
        let begun = std::time::Instant::now();
        while self.runs() {
            assert!(begun.elapsed().as_secs() < 20, "it lives");
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
    }

    /// Whether its command runs.
    fn runs(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.command)).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = Command::new("kill").args(["-KILL", &self.command]).stderr(Stdio::null()).status();
        self.child.wait().unwrap();
    }
}

/// What the script answers to orders, each a line.
fn answers(orders: &[String]) -> String {
    let script = concat!(include_str!("../src/scripts/control.bash"), "\n__sbx_control NONCE 0123456789abcdef\n");
    let mut control = Command::new("bash")
        .args(["--norc", "--noprofile", "-pc", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let batch = format!("{}\n{}\n", orders.len(), orders.join("\n"));
    control.stdin.take().unwrap().write_all(batch.as_bytes()).unwrap();
    let output = control.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A pid can be another process's by the time an order comes: then it is nobody's order.
#[test]
fn an_order_for_an_earlier_process_of_that_pid_strikes_nobody() {
    for who in ["group", "all", "shell", "write"] {
        let shell = Shell::start();
        let order = |start: u64| format!("7 KILL {} {start} 0123456789abcdef.0.0 {who}", shell.child.id());
        assert_eq!(answers(&[order(shell.start_time() - 1)]), "NONCEA00037 0", "{who}");
        assert!(shell.runs(), "{who}");
        assert!(std::fs::metadata(format!("/proc/{}", shell.child.id())).is_ok(), "{who}");
        if who != "write" {
            assert_eq!(answers(&[order(shell.start_time())]), "NONCEA00037 1", "{who}");
            shell.died();
        }
    }
}

/// Each order is answered for itself: what one finds nobody for, another in the same batch carries out.
#[test]
fn orders_of_a_batch_do_not_get_in_each_others_way() {
    let (one, other) = (Shell::start(), Shell::start());
    let order = |serial, shell: &Shell, start| {
        format!("{serial} KILL {} {start} 0123456789abcdef.{serial}.0 group", shell.child.id())
    };
    let said = answers(&[order(1, &one, one.start_time() - 1), order(2, &other, other.start_time())]);
    assert_eq!(said, "NONCEA00031 0NONCEA00032 1");
    other.died();
    assert!(one.runs());
}
