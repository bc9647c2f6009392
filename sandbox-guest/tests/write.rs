//! What can be written, and what is said of the rest, over plain pipes to a plain bash.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::files::*;
use common::{Bare, as_nobody, default_acl};
use sandbox::{Body, Effect, ErrorKind, FileWrite};
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn what_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, carrier) = Bare::default().guest(dir.path());
    let d = dir.path();
    std::fs::write(d.join("file"), "blocker").unwrap();
    std::fs::create_dir(d.join("dir")).unwrap();
    std::fs::write(d.join("dir/inner"), "inner").unwrap();
    symlink("dir", d.join("dirlink")).unwrap();
    symlink("nowhere", d.join("dangling")).unwrap();
    let cases = [
        ("file/child", ErrorKind::NotDirectory),
        ("file/deeper/child", ErrorKind::NotDirectory),
        ("dangling/child", ErrorKind::NotDirectory),
        ("dir", ErrorKind::IsDirectory),
        ("dirlink", ErrorKind::IsDirectory),
    ];
    for (name, kind) in cases {
        for size in [0u64, 1, 256 << 10, 100 << 20] {
            let then = if size > 64 << 10 { Then::Forbidden } else { Then::End };
            let give = if then == Then::Forbidden { 0 } else { size as usize };
            let body = Body::reader(Source::new(give, then));
            let error = within(guest.write(FileWrite::new(at(&d.join(name)), size, body))).await.unwrap_err();
            assert_eq!((error.kind(), error.effect()), (kind, Effect::None), "{name} {size}: {error}");
            assert_eq!(error.path(), Some(&at(&d.join(name))));
        }
    }
    for size in [1usize, 256 << 10] {
        let error = write(&guest, Path::new("/dev/null"), &vec![0; size]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotReplaceable, "{error}");
        assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        let error = write(&guest, Path::new("/proc/version"), &vec![0; size]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotWritable, "{error}");
    }
    let long = "n".repeat(256);
    for name in [format!("no/such/{long}"), format!("no/{long}/parent")] {
        for size in [0usize, 1, 256 << 10] {
            let error = write(&guest, &d.join(&name), &vec![0; size]).await.unwrap_err();
            assert_eq!((error.kind(), error.reason()), (ErrorKind::NotWritable, Some("File name too long")), "{error}");
            assert!(!d.join("no").exists(), "{name} {size}");
        }
    }
    assert_eq!(std::fs::read(d.join("file")).unwrap(), b"blocker");
    assert_eq!(std::fs::read(d.join("dir/inner")).unwrap(), b"inner");
    assert_eq!(residue(d), Vec::<PathBuf>::new());
    assert_eq!(residue(Path::new("/dev")), Vec::<PathBuf>::new());
    assert_eq!(carrier.opened.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_body_of_another_length_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, carrier) = Bare::default().guest(dir.path());
    let d = dir.path();
    std::fs::write(d.join("seed"), "seed").unwrap();
    for size in [0usize, 100, 65_536, 300_000, 20 << 20] {
        for give in [0, size.saturating_sub(1), size / 2, size + 1, size + 100_000] {
            for then in [Then::End, Then::Fail, Then::Forbidden] {
                // A source that has too much is read one byte too far, and no further.
                if give == size && then == Then::End || (then == Then::Forbidden) != (give == size + 1) {
                    continue;
                }
                for name in ["seed", "new", "no/such/parent"] {
                    let body = Body::reader(Source::new(give, then));
                    let file = FileWrite::new(at(&d.join(name)), size as u64, body);
                    let error = within(guest.write(file)).await.unwrap_err();
                    assert_eq!(
                        (error.kind(), error.effect()),
                        (ErrorKind::ShortTransfer, Effect::None),
                        "{size} {give}"
                    );
                }
            }
        }
    }
    assert_eq!(std::fs::read(d.join("seed")).unwrap(), b"seed");
    assert_eq!(std::fs::read_dir(d).unwrap().count(), 1, "nothing beside it");
    write(&guest, &d.join("seed"), b"in step").await.unwrap();
    assert_eq!(std::fs::read(d.join("seed")).unwrap(), b"in step");
    assert_eq!(carrier.opened.load(std::sync::atomic::Ordering::Relaxed), 1, "the stream stays in step");
}

#[tokio::test]
async fn links_and_special_files_at_the_target_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let d = dir.path();
    std::fs::write(d.join("pointee"), "kept").unwrap();
    std::fs::set_permissions(d.join("pointee"), PermissionsExt::from_mode(0o600)).unwrap();
    symlink("pointee", d.join("link")).unwrap();
    symlink("nowhere", d.join("dangling")).unwrap();
    assert!(Command::new("mkfifo").arg(d.join("fifo")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(d.join("socket")).unwrap();
    for name in ["link", "dangling", "fifo", "socket"] {
        write(&guest, &d.join(name), b"new").await.unwrap();
        assert!(std::fs::symlink_metadata(d.join(name)).unwrap().is_file(), "{name}");
        assert_eq!(mode(&d.join(name)), 0o644, "{name}");
    }
    assert_eq!(std::fs::read(d.join("pointee")).unwrap(), b"kept");
    assert_eq!(mode(&d.join("pointee")), 0o600);
    assert!(!d.join("nowhere").exists());
}

#[tokio::test]
async fn modes() {
    let dir = tempfile::tempdir().unwrap();
    for umask in ["umask 077\n", "umask 000\n"] {
        let (guest, _) = Bare { noise: umask, ..Bare::default() }.guest(dir.path());
        let path = dir.path().join(&umask[6..9]).join("file");
        for size in [3usize, 200_000] {
            write(&guest, &path, &vec![b'x'; size]).await.unwrap();
            assert_eq!(mode(&path), 0o644, "{umask}");
            for kept in [0o755, 0o600, 0o444, 0o000, 0o4755, 0o2755, 0o1644] {
                std::fs::set_permissions(&path, PermissionsExt::from_mode(kept)).unwrap();
                write(&guest, &path, &vec![b'x'; size]).await.unwrap();
                assert_eq!(mode(&path), kept, "{umask}");
            }
            for asked in [0o755, 0o400, 0o000, 0o4711, 0o666] {
                within(guest.write(FileWrite::bytes(at(&path), vec![b'x'; size]).with_mode(asked))).await.unwrap();
                assert_eq!(mode(&path), asked, "{umask}");
            }
            std::fs::remove_file(&path).unwrap();
        }
        let parent = if umask.contains("077") { 0o700 } else { 0o777 };
        assert_eq!(mode(path.parent().unwrap()), parent, "a parent has the image's umask");
    }
    let script = dir.path().join("script");
    let (guest, _) = Bare::default().guest(dir.path());
    write(&guest, &script, b"#!/bin/sh\necho one").await.unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    write(&guest, &script, b"#!/bin/sh\necho two").await.unwrap();
    let run = guest.exec(sandbox::ExecRequest::args([script.to_str().unwrap()])).await.unwrap();
    assert_eq!(run.stdout.bytes, "two\n");
    let acl = dir.path().join("acl");
    std::fs::create_dir(&acl).unwrap();
    if default_acl(&acl, "u::rw,g::-,o::-") {
        std::fs::write(acl.join("control"), "").unwrap();
        assert_eq!(mode(&acl.join("control")) & 0o077, 0, "the default ACL is in force");
        write(&guest, &acl.join("file"), b"x").await.unwrap();
        assert_eq!(mode(&acl.join("file")), 0o644);
    }
}

#[tokio::test]
async fn a_new_file_is_new() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let d = dir.path();
    std::fs::write(d.join("file"), "kept").unwrap();
    std::fs::create_dir(d.join("dir")).unwrap();
    symlink("nowhere", d.join("dangling")).unwrap();
    for name in ["file", "dir", "dangling"] {
        for size in [1usize, 300_000] {
            let error = within(guest.write(FileWrite::bytes(at(&d.join(name)), vec![0; size]).create_new())).await;
            assert_eq!(error.unwrap_err().kind(), ErrorKind::AlreadyExists, "{name}");
        }
    }
    let error = within(guest.write(FileWrite::bytes(at(Path::new("/dev/null")), "x").create_new())).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(d.join("file")).unwrap(), b"kept");
    // Of many at once exactly one makes it.
    let all = (0..16).map(|i| {
        let file = FileWrite::bytes(at(&d.join("race")), format!("{i:06}").repeat(1 + 20_000 * (i % 2))).create_new();
        guest.write(file)
    });
    let results = within(futures::future::join_all(all)).await;
    let won: Vec<_> = results.iter().enumerate().filter(|(_, r)| r.is_ok()).map(|(i, _)| i).collect();
    assert_eq!(won.len(), 1);
    assert!(results.iter().filter_map(|r| r.as_ref().err()).all(|e| e.kind() == ErrorKind::AlreadyExists));
    assert!(std::fs::read(d.join("race")).unwrap().starts_with(format!("{:06}", won[0]).as_bytes()));
    assert_eq!(std::fs::metadata(d.join("race")).unwrap().nlink(), 1);
    assert_eq!((mode(&d.join("race")), residue(d)), (0o644, vec![]));
}

#[tokio::test]
async fn a_full_disk_is_a_failure_that_leaves_nothing() {
    let (dir, guest) = as_user();
    let limited = Bare { noise: "ulimit -f 64\n", through: as_nobody(), ..Bare::default() };
    let (small, _) = limited.guest(dir.path());
    let path = dir.path().join("file");
    write(&guest, &path, b"kept").await.unwrap();
    for size in [300_000usize, 64 << 20] {
        let error = write(&small, &path, &vec![b'x'; size]).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Other, Effect::None), "{error}");
        assert_eq!(residue(dir.path()), Vec::<PathBuf>::new());
    }
    assert_eq!(read(&small, &path).await.unwrap(), b"kept");
    write(&small, &path, b"fits").await.unwrap();
}

/// The tests that came before the content are asked again after it: it may have taken its time.
#[tokio::test]
async fn what_changes_while_content_travels_is_seen_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let d = dir.path();
    type Change = fn(&Path);
    // A device that nobody needs a privilege to make.
    let device: Change = |at| {
        assert!(Command::new("mknod").arg(at).args(["c", "0", "0"]).status().unwrap().success());
    };
    let cases: [(&str, bool, Change, ErrorKind); 3] = [
        ("device", false, device, ErrorKind::NotReplaceable),
        ("dir", false, |at| std::fs::create_dir(at).unwrap(), ErrorKind::IsDirectory),
        ("file", true, |at| std::fs::write(at, "theirs").unwrap(), ErrorKind::AlreadyExists),
    ];
    for (name, new, change, kind) in cases {
        let target = d.join(name);
        let (mut sender, body) = tokio::io::duplex(1 << 20);
        let mut file = FileWrite::new(at(&target), 200_000, Body::reader(body));
        if new {
            file = file.create_new();
        }
        let meanwhile = async {
            sender.write_all(&vec![b'x'; 100_000]).await.unwrap();
            while residue(d).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            change(&target);
            sender.write_all(&vec![b'x'; 100_000]).await.unwrap();
            drop(sender);
        };
        let (outcome, ()) = within(async { tokio::join!(guest.write(file), meanwhile) }).await;
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (kind, Effect::None), "{name}: {error}");
        assert_eq!(residue(d), Vec::<PathBuf>::new(), "{name}");
    }
    assert!(std::fs::metadata(d.join("device")).unwrap().file_type().is_char_device());
    assert!(d.join("dir").is_dir());
    assert_eq!(std::fs::read(d.join("file")).unwrap(), b"theirs");
}

/// Until it has its mode, nobody else can open what arrives, whatever the umask.
#[tokio::test]
async fn what_arrives_is_nobody_elses_until_it_has_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare { noise: "umask 000\n", ..Bare::default() }.guest(dir.path());
    let body = Body::reader(Source::new(100_000, Then::Hang));
    let writing = guest.write(FileWrite::new(at(&dir.path().join("file")), 200_000, body));
    let look = async {
        loop {
            if let [temp] = residue(dir.path()).as_slice()
                && std::fs::metadata(temp).unwrap().len() > 0
            {
                return mode(temp);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let bits = within(async {
        tokio::select! {
            outcome = writing => panic!("{outcome:?}"),
            bits = look => bits,
        }
    });
    assert_eq!(bits.await, 0o600);
}
