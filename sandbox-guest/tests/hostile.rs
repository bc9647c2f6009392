//! File operations beside somebody who interferes: never a hang, a panic, or a false success for who is left alone.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::io::Read;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::Bare;
use common::files::*;
use rustix::process::{Pid, Signal};
use sandbox::{ErrorKind, FileBatch, FileWrite};
use sandbox_guest::Guest;

/// A process that interferes until it is dropped.
struct Attacker(Child);

impl Attacker {
    fn start(dir: &Path, script: &str) -> Self {
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(dir).process_group(0);
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        rustix::process::kill_process_group(Pid::from_child(&self.0), Signal::KILL).unwrap();
        self.0.wait().unwrap();
        // The tool that it was waiting for has ended too when nobody has this open.
        self.0.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
    }
}

/// A guest that soon gives up on whoever is in its way.
fn hasty(dir: &Path, env: Vec<(&'static str, &'static str)>) -> Guest {
    waiting(dir, env, Duration::from_millis(1500))
}

/// One whose operations are to succeed, however busy the machine is.
fn patient(dir: &Path, env: Vec<(&'static str, &'static str)>) -> Guest {
    waiting(dir, env, Duration::from_secs(20))
}

fn waiting(dir: &Path, env: Vec<(&'static str, &'static str)>, patience: Duration) -> Guest {
    Bare { env, ..Bare::default() }
        .guest_with(dir, |mut c| {
            c.inactivity = patience;
            c.begin_timeout = patience * 2;
            c
        })
        .0
}

async fn promptly<T>(what: &str, work: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let done = tokio::time::timeout(Duration::from_secs(60), work).await;
    done.unwrap_or_else(|_| panic!("{what} hangs, after {:?}", begun.elapsed()))
}

#[tokio::test]
async fn a_file_that_becomes_something_else_all_the_time() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let guest = hasty(d, vec![]);
    for size in [10, 50_000] {
        std::fs::write(d.join("secret"), vec![b's'; size]).unwrap();
        std::fs::write(d.join("good"), vec![b'g'; size]).unwrap();
        for other in ["ln -s secret other", "mkfifo other"] {
            // What a killed attacker left half-way would be in the way of the next: a copy into a FIFO waits for ever.
            for left in ["path", "other"] {
                let _ = std::fs::remove_file(d.join(left));
            }
            let swap = format!("while :; do cp good other; mv -fT other path; {other}; mv -fT other path; done");
            let attacker = Attacker::start(d, &swap);
            let until = Instant::now() + Duration::from_secs(2);
            let mut whole = 0;
            while Instant::now() < until || whole == 0 && until.elapsed() < Duration::from_secs(30) {
                match promptly("a read", read(&guest, &d.join("path"))).await {
                    Ok(content) => {
                        // The copy that is put there may be seen half-made by nobody: it is renamed when it is whole.
                        assert!(content == vec![b'g'; size], "what a link points to");
                        whole += 1;
                    }
                    Err(e) => assert!(
                        matches!(
                            e.kind(),
                            ErrorKind::FileNotFound
                                | ErrorKind::NotRegularFile
                                | ErrorKind::Other
                                | ErrorKind::DeadlineExceeded
                        ),
                        "{e}"
                    ),
                }
            }
            drop(attacker);
            assert!(whole > 0, "some reads find the file");
        }
    }
}

#[tokio::test]
async fn a_file_that_grows_and_shrinks_while_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let guest = patient(d, vec![]);
    std::fs::write(d.join("file"), vec![b'x'; 300_000]).unwrap();
    let grow = Attacker::start(d, "while :; do printf x >> file; done");
    for _ in 0..30 {
        let content = promptly("a read", read(&guest, &d.join("file"))).await.unwrap();
        assert!(content.len() >= 300_000);
        let limit = std::fs::metadata(d.join("file")).unwrap().len();
        match promptly("a read", read_limited(&guest, &d.join("file"), limit)).await {
            Ok(content) => assert!(content.len() as u64 <= limit),
            Err(e) => assert_eq!(e.kind(), ErrorKind::FileTooLarge),
        }
    }
    drop(grow);
    let _jump = Attacker::start(d, "while :; do truncate -s 10 file; truncate -s 400000 file; done");
    for _ in 0..50 {
        match promptly("a read", read(&guest, &d.join("file"))).await {
            Ok(content) => assert!(content.len() <= 400_000),
            Err(e) => assert_eq!(e.kind(), ErrorKind::ShortTransfer, "{e}"),
        }
    }
}

#[tokio::test]
async fn links_planted_in_the_middle_of_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let guest = patient(d, vec![]);
    std::fs::write(d.join("outside"), "untouched").unwrap();
    std::fs::create_dir(d.join("dir")).unwrap();
    std::fs::create_dir(d.join("elsewhere")).unwrap();
    symlink("elsewhere", d.join("way")).unwrap();
    // Whatever has a temporary file's name becomes a link.
    let plant = "shopt -s nullglob; while :; do for f in dir/.sbx-write-*; do ln -sfT ../outside \"$f\"; done; done";
    let attacker = Attacker::start(d, plant);
    for i in 0..20 {
        let size = if i % 2 == 0 { 100 } else { 500_000 };
        let outcome = promptly("a write", guest.write(FileWrite::bytes(at(&d.join("dir/file")), filler(size)))).await;
        if outcome.is_ok() {
            let seen = std::fs::symlink_metadata(d.join("dir/file")).unwrap();
            assert!(!seen.is_file() || std::fs::read(d.join("dir/file")).unwrap() == filler(size));
        }
        let files = (0..8).map(|i| FileWrite::bytes(at(&d.join(format!("dir/{i}"))), "x"));
        let _ = promptly("a batch", guest.write_many(FileBatch::new(files))).await;
        assert_eq!(std::fs::read(d.join("outside")).unwrap(), b"untouched");
    }
    drop(attacker);
    // A parent that changes places: what is written lands in one of them, whole, and nowhere else.
    let attacker = Attacker::start(d, "while :; do ln -sfT elsewhere way; ln -sfT dir way; done");
    for _ in 0..10 {
        promptly("a write", guest.write(FileWrite::bytes(at(&d.join("way/new")), filler(200_000)))).await.unwrap();
        for place in ["dir/new", "elsewhere/new"] {
            assert!(std::fs::read(d.join(place)).is_ok_and(|got| got == filler(200_000)) || !d.join(place).exists());
        }
    }
    drop(attacker);
    assert_eq!(std::fs::read(d.join("outside")).unwrap(), b"untouched");
}

#[tokio::test]
async fn whoever_holds_the_shells_pipes() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    std::fs::write(d.join("big"), filler(2 << 20)).unwrap();
    // Only shells of this test, on a machine where others may be at work.
    let tag: &'static str = Box::leak(format!("prey {}", std::process::id()).into_boxed_str());
    // Each looks for them with builtins alone, so that it meets some also where the machine is busy, and says when it has.
    let hits = d.join("hits");
    let prelude = format!(
        "met() {{ echo >> {}; }}; tagged() {{ local v; while IFS= read -r -d '' v; do [[ $v == 'SBX_TEST={tag}' ]] && return; done < $1/environ; return 1; }} 2>/dev/null; while :; do for p in /proc/[0-9]*; do ",
        hits.display()
    );
    let attacks = [
        ("noise", "tagged $p && met && printf garbage > $p/fd/1"),
        ("a flood", "tagged $p && met && timeout 0.2 cat /dev/zero > $p/fd/1"),
        ("requests stolen", "tagged $p && met && timeout 0.2 head -c 1000 $p/fd/0"),
        ("shells stopped", "tagged $p && met && kill -STOP ${p#/proc/}"),
        ("shells killed", "tagged $p && met && kill -KILL ${p#/proc/} && sleep 0.1"),
        (
            "copies killed",
            "read -r name < $p/comm && [[ $name == dd ]] && read -r _ _ _ up _ < $p/stat && tagged /proc/$up && met && kill ${p#/proc/}",
        ),
    ];
    for (what, script) in attacks {
        let guest = hasty(d, vec![("SBX_TEST", tag)]);
        let _ = guest.warm_up().await;
        let _ = std::fs::remove_file(&hits);
        let attacker = Attacker::start(d, &format!("{prelude}{script}; done; done"));
        let until = Instant::now() + Duration::from_secs(2);
        let mut round = 0;
        while Instant::now() < until || !hits.exists() && until.elapsed() < Duration::from_secs(30) {
            round += 1;
            if let Ok(content) = promptly(what, read(&guest, &d.join("big"))).await {
                assert!(content.len() <= 4 << 20, "{what}");
            }
            let _ = promptly(what, read(&guest, &d.join("none"))).await;
            let path = d.join(format!("w{}", round % 3));
            let _ = promptly(what, guest.write(FileWrite::bytes(at(&path), filler(300_000)))).await;
            let _ = promptly(what, guest.write(FileWrite::bytes(at(&path), "small"))).await;
            let files = (0..10).map(|i| FileWrite::bytes(at(&d.join(format!("m{i}"))), filler(5000)));
            let _ = promptly(what, guest.write_many(FileBatch::new(files))).await;
            let _ = promptly(what, async { guest.export(&at(&d.join("big"))).await?.finish().await }).await;
        }
        drop(attacker);
        assert!(hits.exists(), "{what}: it met nobody");
        // Left alone again, a new guest does as it says.
        let calm = patient(d, vec![("SBX_TEST", "calm")]);
        promptly(what, guest.write(FileWrite::bytes(at(&d.join("after")), "x"))).await.ok();
        write(&calm, &d.join("after"), b"calm").await.unwrap();
        assert_eq!(read(&calm, &d.join("after")).await.unwrap(), b"calm");
        for i in 0..3 {
            // Even so every target is whole.
            if let Ok(content) = std::fs::read(d.join(format!("w{i}"))) {
                assert!(content == b"small" || content == filler(300_000), "{what}: {} bytes", content.len());
            }
        }
    }
}
