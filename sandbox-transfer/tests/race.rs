//! Somebody swaps directories of the target for links while an archive is unpacked there.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{HostSandbox, Tar, tree};
use rustix::fs::{Mode, OFlags, RenameFlags, renameat_with};
use sandbox::SandboxPath;
use sandbox_transfer::{DownloadOptions, OnRefusal, Rule, SandboxTransferExt, UploadOptions, unpack};

/// Swaps `a` and `b` in `place` in one step, again and again, until it is told to end.
fn swap(place: &OwnedFd, a: &CStr, b: &CStr, end: &AtomicBool, swaps: &AtomicU64) {
    while !end.load(Ordering::Relaxed) {
        if renameat_with(place, a, place, b, RenameFlags::EXCHANGE).is_ok() {
            swaps.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::yield_now();
    }
}

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap()
}

#[test]
fn a_directory_that_turns_into_a_link_leads_nowhere() {
    const ENTRIES: usize = 10_000;
    let place = tempfile::tempdir().unwrap();
    let (out, outside) = (place.path().join("out"), place.path().join("outside"));
    std::fs::create_dir_all(out.join("d/e")).unwrap();
    std::fs::create_dir_all(outside.join("e")).unwrap();
    std::os::unix::fs::symlink("../outside", out.join("other")).unwrap();
    let mut tar = Tar::default().dir("top").dir("top/d").dir("top/d/e");
    for n in 0..ENTRIES {
        // The directory that is swapped is the last step on the way, or one before it.
        let at = if n % 2 == 0 { "top/d" } else { "top/d/e" };
        tar = match n % 3 {
            0 => tar.file(format!("{at}/file{n}"), "planted"),
            1 => tar.dir(format!("{at}/dir{n}")),
            _ => tar.symlink(format!("{at}/link{n}"), "x"),
        };
    }
    let archive = tar.end();
    let root = SandboxPath::new("/top").unwrap();
    let (end, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let fd = open(&out);
    let (landed, refused) = std::thread::scope(|scope| {
        scope.spawn(|| swap(&fd, c"d", c"other", &end, &swaps));
        let (mut landed, mut refused) = (0, 0);
        let begun = Instant::now();
        // Until both outcomes were seen often, and the time that a race may need has not run out.
        while landed + refused < ENTRIES as u64 || (refused < 100 && begun.elapsed() < Duration::from_secs(20)) {
            let options = DownloadOptions::default().in_place().with_links().on_refusal(OnRefusal::LeaveOut);
            let report = unpack(&archive[..], &root, &out, options).unwrap();
            landed += report.files + report.directories + report.links;
            refused += report.left_out.iter().filter(|r| r.rule == Rule::ThroughLink).count() as u64;
        }
        end.store(true, Ordering::Relaxed);
        (landed, refused)
    });
    assert_eq!(tree(&outside).len(), 1, "something landed outside");
    assert!(landed > 0 && refused > 0 && swaps.load(Ordering::Relaxed) > 0, "{landed} {refused} {swaps:?}: no race");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_replaces_a_directory_or_a_file_is_never_sent() {
    let place = tempfile::tempdir().unwrap();
    let (from, outside) = (place.path().join("from"), place.path().join("outside"));
    std::fs::create_dir_all(from.join("d")).unwrap();
    std::fs::create_dir(&outside).unwrap();
    for n in 0..20 {
        std::fs::write(from.join(format!("d/{n}")), "mine").unwrap();
        std::fs::write(outside.join(n.to_string()), "secret").unwrap();
    }
    std::fs::write(from.join("f"), "mine").unwrap();
    std::os::unix::fs::symlink("../outside/1", from.join("link")).unwrap();
    std::os::unix::fs::symlink("../outside", from.join("other")).unwrap();
    let end = std::sync::Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = [(c"d", c"other"), (c"f", c"link")]
        .into_iter()
        .map(|(a, b)| {
            let (fd, end) = (open(&from), std::sync::Arc::clone(&end));
            std::thread::spawn(move || swap(&fd, a, b, &end, &AtomicU64::new(0)))
        })
        .collect();
    let sandbox = HostSandbox::new();
    let mut files = 0;
    for n in 0..100 {
        let into = place.path().join(format!("into{n}"));
        let path = SandboxPath::new(into.to_str().unwrap()).unwrap();
        files += sandbox.upload_dir(&from, &path, UploadOptions::default()).await.unwrap().files;
        for (name, (kind, _, content)) in tree(&into) {
            assert_ne!(kind, 'l', "{}", name.escape_ascii());
            assert_ne!(content, b"secret", "{}", name.escape_ascii());
        }
    }
    end.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(files > 0);
}

/// The same without luck: whatever is looked at has become a link by the time it is opened.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_replaces_what_was_looked_at_is_never_sent() {
    let place = tempfile::tempdir().unwrap();
    let (from, outside) = (place.path().join("from"), place.path().join("outside"));
    for dir in [from.join("d"), outside.clone()] {
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("x"), if dir == outside { "secret" } else { "mine" }).unwrap();
    }
    std::fs::write(from.join("f"), "mine").unwrap();
    std::fs::write(from.join("kept"), "mine").unwrap();
    let fd = open(&from);
    let options = UploadOptions::default().with_filter(move |item| {
        let to = match item.path.to_str() {
            Some("d") => "../outside",
            Some("f") => "../outside/x",
            _ => return true,
        };
        rustix::fs::symlinkat(to, &fd, "link").unwrap();
        renameat_with(&fd, "link", &fd, item.path, RenameFlags::EXCHANGE).unwrap();
        renameat_with(&fd, "link", &fd, item.path.with_extension("was"), RenameFlags::NOREPLACE).unwrap();
        true
    });
    let into = place.path().join("into");
    let path = SandboxPath::new(into.to_str().unwrap()).unwrap();
    let report = HostSandbox::new().upload_dir(&from, &path, options).await.unwrap();
    let arrived = tree(&into);
    assert!(arrived.iter().all(|(_, (kind, _, content))| *kind != 'l' && content != b"secret"), "{arrived:?}");
    let changed = report.left_out.iter().filter(|refused| refused.rule == Rule::Changed);
    assert_eq!(changed.count(), 2, "{:?}", report.left_out);
    assert!(into.join("kept").exists());
}
