//! The examples say what they promise, and leave no sandbox behind, also when they fail half-way: nobody takes what they print.
#![allow(clippy::unwrap_used, reason = "a failure in a test is the point")]
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longer than any of them takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where cargo puts the examples of this package, which `cargo test` builds before it runs this.
fn built(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let at = this.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(at.exists(), "{} is not there: `cargo test -p examples` builds it", at.display());
    at
}

fn run(program: &Path, user: Option<u32>, stdout: Stdio) -> ExitStatus {
    let mut command = Command::new(program);
    command.current_dir("/").stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let (mut child, begun) = (command.spawn().unwrap(), Instant::now());
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{} did not end within {PATIENCE:?}", program.display());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a reader of the example sees: the work done, and its deadline kept where it has one.
fn says(name: &str) -> &'static [&'static str] {
    match name {
        "attach" => &["hello from the first process\n", "and back\n"],
        "folder" => {
            &["in: 1 file\n", "over its deadline, and killed\n", "failed with code 1\n", "passed\n", "out: 5050\n"]
        }
        "live_output" => &["compiling part 1 of 8\n", "compiling part 8 of 8\n", "ended with code 0\n"],
        _ => &["timed out: true", "held reach the network", "Reaped in "],
    }
}

/// The sessions of a state directory.
fn sessions(state: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(state) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn whatever_comes_of_it_the_sandbox_is_reaped() {
    // As root, a user whom nobody else is, so that the state directory is this test's own.
    let me = fs::metadata("/proc/self").unwrap().uid();
    let user = (me == 0).then(|| 55_000 + std::process::id() % 5_000);
    let state = PathBuf::from(format!("/var/tmp/sandbox-local-{}", user.unwrap_or(me)));
    let place = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir_in("/var/tmp").unwrap();
    let before = sessions(&state);
    for name in ["attach", "folder", "live_output", "quickstart"] {
        let program = place.path().join(name);
        fs::copy(built(name), &program).unwrap();
        let (mut output, input) = std::io::pipe().unwrap();
        // What they say fits into a pipe.
        assert!(run(&program, user, input.into()).success(), "{name}");
        let mut said = String::new();
        output.read_to_string(&mut said).unwrap();
        for wanted in says(name) {
            assert!(said.contains(wanted), "{name} does not say {wanted:?}: {said}");
        }
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert!(!run(&program, user, full.into()).success(), "{name} did not notice that its output was lost");
        assert_eq!(sessions(&state), before, "what {name} left");
    }
    if user.is_some() {
        fs::remove_dir(&state).unwrap();
    }
}
