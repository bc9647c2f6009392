//! What can be read, and what is said of the rest, over plain pipes to a plain bash.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::Bare;
use common::files::*;
use sandbox::{Effect, ErrorKind};

#[tokio::test]
async fn what_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, carrier) = Bare::default().guest(dir.path());
    let d = dir.path();
    std::fs::write(d.join("file"), "12345").unwrap();
    std::fs::write(d.join("sib"), "x").unwrap();
    std::fs::create_dir(d.join("dir")).unwrap();
    symlink("file", d.join("link")).unwrap();
    symlink("dir", d.join("dirlink")).unwrap();
    symlink("nowhere", d.join("dangling")).unwrap();
    symlink("loop", d.join("loop")).unwrap();
    assert!(Command::new("mkfifo").arg(d.join("fifo")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(d.join("socket")).unwrap();
    let cases = [
        ("missing", ErrorKind::FileNotFound),
        ("missing/deep/er", ErrorKind::FileNotFound),
        ("dir/missing", ErrorKind::FileNotFound),
        ("dirlink/missing", ErrorKind::FileNotFound),
        ("sib\n", ErrorKind::FileNotFound),
        ("dir", ErrorKind::IsDirectory),
        ("file/child", ErrorKind::NotDirectory),
        ("file/deeper/child", ErrorKind::NotDirectory),
        ("link/child", ErrorKind::NotDirectory),
        ("dangling/child", ErrorKind::NotDirectory),
        ("loop/child", ErrorKind::NotDirectory),
        ("fifo/child", ErrorKind::NotDirectory),
        ("link", ErrorKind::NotRegularFile),
        ("dirlink", ErrorKind::NotRegularFile),
        ("dangling", ErrorKind::NotRegularFile),
        ("fifo", ErrorKind::NotRegularFile),
        ("socket", ErrorKind::NotRegularFile),
    ];
    let begun = Instant::now();
    for (name, kind) in cases {
        let error = read(&guest, &d.join(name)).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (kind, Effect::None), "{name}: {error}");
        assert_eq!(error.path(), Some(&at(&d.join(name))), "{name}");
    }
    for device in ["/dev/zero", "/dev/null"] {
        assert_eq!(read(&guest, Path::new(device)).await.unwrap_err().kind(), ErrorKind::NotRegularFile);
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    // Earlier components may be links.
    std::fs::write(d.join("dir/inner"), "in").unwrap();
    assert_eq!(read(&guest, &d.join("dirlink/inner")).await.unwrap(), b"in");
    // The limit, without a byte of content.
    assert_eq!(read_limited(&guest, &d.join("file"), 5).await.unwrap(), b"12345");
    for limit in [0, 4] {
        let refused = guest.read(&at(&d.join("file")), limit).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
    std::fs::write(d.join("empty"), "").unwrap();
    assert_eq!(read_limited(&guest, &d.join("empty"), 0).await.unwrap(), b"");
    assert_eq!(read_limited(&guest, &d.join("file"), u64::MAX).await.unwrap(), b"12345");
    assert_eq!(carrier.opened.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[tokio::test]
async fn files_that_are_not_what_their_size_says() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let seen = read(&guest, Path::new("/proc/cpuinfo")).await.unwrap();
    assert!(seen.starts_with(b"processor") && seen.len() > 100);
    let error = read_limited(&guest, Path::new("/proc/cpuinfo"), 10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    // What fails to be read is not an empty file.
    let error = read(&guest, Path::new("/proc/self/mem")).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Other, Some("Input/output error")));
    // And the stream still serves.
    assert!(read(&guest, Path::new("/proc/version")).await.unwrap().starts_with(b"Linux"));
}

/// A carrier that promises too much: what it lost in the middle is missed at the end.
#[tokio::test]
async fn what_is_lost_on_the_way_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    for (size, place) in [(1000, 400), (200_000, 90_000)] {
        std::fs::write(&file, filler(size)).unwrap();
        let (guest, _) = Bare { lose: Some(place), ..Bare::default() }.guest(dir.path());
        let error = read(&guest, &file).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::ShortTransfer, Effect::None), "{error}");
        assert_eq!(error.reason(), Some(format!("{} bytes arrived of {size} that were sent", size - 1).as_str()));
        let (guest, _) = Bare { lose: Some(place), ..Bare::default() }.guest(dir.path());
        let archive = within(async { guest.export(&at(&file)).await?.finish().await }).await;
        assert_eq!(archive.unwrap_err().kind(), ErrorKind::ShortTransfer);
    }
}
