//! Reading and writing files, over plain pipes to a plain bash.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::files::*;
use common::{Bare, as_nobody};
use sandbox::{Body, Effect, ErrorKind, FileWrite};

#[tokio::test]
async fn round_trips_of_every_size() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, carrier) = Bare::default().guest(dir.path());
    let path = dir.path().join("a/b/c/file");
    for size in [0, 1, 2, 511, 4096, 65_535, 65_536, 65_537, 1 << 20, (16 << 20) + 1, 40 << 20] {
        let content = filler(size);
        write(&guest, &path, &content).await.unwrap_or_else(|e| panic!("{size}: {e}"));
        assert!(std::fs::read(&path).unwrap() == content, "{size}");
        assert!(read(&guest, &path).await.unwrap() == content, "{size}");
        assert_eq!(mode(&path), 0o644);
    }
    write(&guest, &path, b"\0\xff\n").await.unwrap();
    assert_eq!(read(&guest, &path).await.unwrap(), b"\0\xff\n");
    assert_eq!(residue(dir.path()), Vec::<PathBuf>::new());
    assert_eq!(carrier.opened.load(std::sync::atomic::Ordering::Relaxed), 1, "one stream serves them all");
}

#[tokio::test]
async fn small_contents_of_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare { env: vec![("LC_ALL", "C.UTF-8")], ..Bare::default() }.guest(dir.path());
    let path = dir.path().join("file");
    let all: Vec<u8> = (0..=255).collect();
    let mut contents: Vec<Vec<u8>> = all.iter().map(|b| vec![*b]).collect();
    contents.extend([31, 32, 33, 4096].map(|n| vec![0; n]));
    contents.extend([vec![b'\n'; 5], b"\\\r\n'\"%s\\x41\0".to_vec(), all[1..].to_vec(), all.repeat(3), b"-n".to_vec()]);
    for size in [4094, 4095, 4096, 4097, 4098] {
        contents.push(all[1..].iter().copied().cycle().take(size).collect());
        contents.push([vec![b'x'; size - 1], vec![0]].concat());
        contents.push([vec![0], vec![b'x'; size - 1]].concat());
    }
    for content in contents {
        write(&guest, &path, &content).await.unwrap();
        assert!(std::fs::read(&path).unwrap() == content, "{content:?}");
        for limit in [content.len() as u64, BIG] {
            assert!(read_limited(&guest, &path, limit).await.unwrap() == content, "{content:?}");
        }
        if let Some(less) = (content.len() as u64).checked_sub(1) {
            let error = guest.read(&at(&path), less).await.unwrap_err();
            let rule = format!("it has {} bytes, and the limit of the call is {less}", content.len());
            assert_eq!((error.kind(), error.reason()), (ErrorKind::FileTooLarge, Some(rule.as_str())));
        }
    }
}

#[tokio::test]
async fn over_sockets_and_to_the_longest_path() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare { sockets: true, ..Bare::default() }.guest(dir.path());
    let mut path = dir.path().to_owned();
    while path.as_os_str().len() + 256 < 4095 {
        path.push("d".repeat(255));
    }
    path.push("f".repeat(4095 - path.as_os_str().len() - 1));
    for size in [10, 5000, 1 << 20] {
        write(&guest, &path, &filler(size)).await.unwrap();
        assert!(read(&guest, &path).await.unwrap() == filler(size));
    }
    let files = (0..5).map(|i| FileWrite::bytes(at(&path.with_file_name(format!("{i}"))), "x"));
    within(guest.write_many(sandbox::FileBatch::new(files))).await.unwrap();
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 6);
}

#[tokio::test]
async fn directly_below_the_root() {
    let dir = tempfile::tempdir().unwrap();
    // A root of its own, with this machine's tools.
    let script = "mount -t tmpfs t \"$1\" && cd \"$1\" && shift && for d in bin sbin usr lib lib64 proc dev; do
        if [[ -L /$d ]]; then cp -P /$d .; elif [[ -d /$d ]]; then mkdir $d && mount --rbind /$d $d; fi || exit; done; PATH=$PATH:/usr/sbin:/sbin exec chroot . \"$@\"";
    let words = ["unshare", "-Urm", "bash", "-c", script, "bash", dir.path().to_str().unwrap()];
    let (guest, _) = Bare { through: words.map(str::to_owned).to_vec(), ..Bare::default() }.guest(Path::new("/usr"));
    for size in [10usize, 100_000] {
        write(&guest, Path::new("/file"), &filler(size)).await.unwrap();
        assert!(read(&guest, Path::new("/file")).await.unwrap() == filler(size));
    }
    assert_eq!(write(&guest, Path::new("/proc"), b"x").await.unwrap_err().kind(), ErrorKind::IsDirectory);
    assert_eq!(read(&guest, Path::new("/none")).await.unwrap_err().kind(), ErrorKind::FileNotFound);
    let files = (0..5).map(|i| FileWrite::bytes(at(Path::new(&format!("/{i}"))), "x"));
    within(guest.write_many(sandbox::FileBatch::new(files))).await.unwrap();
    assert_eq!(read(&guest, Path::new("/4")).await.unwrap(), b"x");
    let archive = within(async { guest.export(&at(Path::new("/file"))).await.unwrap().finish().await }).await;
    assert!(archive.unwrap() > 100_000);
    let list = guest.exec(sandbox::ExecRequest::shell("ls -A /")).await.unwrap().stdout;
    assert!(!String::from_utf8_lossy(&list.bytes).contains(".sbx-write"), "{list:?}");
}

#[tokio::test]
async fn a_command_inherits_nothing_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let list = || guest.exec(sandbox::ExecRequest::args(["ls", "/proc/self/fd"]));
    let before = list().await.unwrap().stdout;
    write(&guest, &dir.path().join("file"), b"x").await.unwrap();
    read(&guest, &dir.path().join("file")).await.unwrap();
    assert_eq!(list().await.unwrap().stdout, before);
}

#[tokio::test]
async fn names_are_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let long = [b'n'; 255];
    let names: [&[u8]; 28] = [
        b" a",
        b"a ",
        b"-rf",
        b"--",
        b"-",
        b"a b",
        b"a\nb",
        b"a\n",
        b"\n",
        b"a\tb",
        b"*",
        b"[0]",
        b"?",
        b"a:b",
        b"\\x20",
        b"\\",
        b"$(id)",
        b"`id`",
        b"'\"",
        b"%2e%2e",
        b"%s",
        "\u{e9}".as_bytes(),
        "e\u{301}".as_bytes(),
        b"\xff\xfe",
        b"~",
        b"!",
        b"a=b",
        &long,
    ];
    for (i, name) in names.iter().enumerate() {
        for path in [name.to_vec(), [name, b"/" as &[u8], name].concat()] {
            let base = if path.contains(&b'/') { "deep" } else { "flat" };
            let path = dir.path().join(base).join(std::ffi::OsString::from_vec(path));
            let content = format!("content {i}");
            write(&guest, &path, content.as_bytes()).await.unwrap_or_else(|e| panic!("{path:?}: {e}"));
            assert_eq!(std::fs::read(&path).unwrap(), content.as_bytes(), "{path:?}");
            write(&guest, &path, b"again").await.unwrap_or_else(|e| panic!("{path:?}: {e}"));
            assert_eq!(read(&guest, &path).await.unwrap_or_else(|e| panic!("{path:?}: {e}")), b"again", "{path:?}");
            let create = FileWrite::bytes(at(&path), "x").create_new();
            assert_eq!(guest.write(create).await.unwrap_err().kind(), ErrorKind::AlreadyExists, "{path:?}");
        }
    }
    let count = std::fs::read_dir(dir.path().join("flat")).unwrap().count();
    assert_eq!(count, names.len());
    assert_eq!(residue(dir.path()), Vec::<PathBuf>::new());
    let too_long = dir.path().join(std::ffi::OsString::from_vec(vec![b'n'; 256]));
    let error = write(&guest, &too_long, b"x").await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::NotWritable, Some("File name too long")));
    assert_eq!(read(&guest, &too_long).await.unwrap_err().kind(), ErrorKind::FileNotFound);
}

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

#[tokio::test]
async fn without_permission() {
    let (dir, guest) = as_user();
    let d = dir.path();
    std::fs::write(d.join("secret"), "x").unwrap();
    std::fs::set_permissions(d.join("secret"), PermissionsExt::from_mode(0o000)).unwrap();
    std::fs::create_dir(d.join("closed")).unwrap();
    std::fs::write(d.join("closed/file"), "kept").unwrap();
    let close = |mode| std::fs::set_permissions(d.join("closed"), PermissionsExt::from_mode(mode)).unwrap();
    close(0o000);
    for name in ["secret", "closed/file", "closed/no", "closed/no/no"] {
        let error = read(&guest, &d.join(name)).await.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Forbidden, Some("Permission denied")), "{name}");
    }
    for name in ["closed/file", "closed/new", "closed/no/new"] {
        for size in [1usize, 300_000] {
            let error = write(&guest, &d.join(name), &vec![b'x'; size]).await.unwrap_err();
            let want = (ErrorKind::NotWritable, Some("Permission denied"), Effect::None);
            assert_eq!((error.kind(), error.reason(), error.effect()), want, "{name}");
        }
    }
    close(0o555);
    for name in ["closed/file", "closed/new", "closed/no/new"] {
        let error = write(&guest, &d.join(name), b"x").await.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::NotWritable, Some("Permission denied")), "{name}");
    }
    close(0o755);
    assert_eq!(std::fs::read(d.join("closed/file")).unwrap(), b"kept");
    // A file that may be replaced, though it may not be read or written, is.
    std::fs::set_permissions(d, PermissionsExt::from_mode(0o777)).unwrap();
    write(&guest, &d.join("secret"), b"new").await.unwrap();
    assert_eq!((mode(&d.join("secret")), std::fs::metadata(d.join("secret")).unwrap().len()), (0, 3));
    assert_eq!(residue(d), Vec::<PathBuf>::new());
}

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
            for then in [Then::End, Then::Fail] {
                if give == size && then == Then::End {
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
    let set = Command::new("setfacl").args(["-d", "-m", "u::rw,g::-,o::-"]).arg(&acl).status();
    if set.is_ok_and(|s| s.success()) {
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

#[tokio::test]
async fn dropped_half_way() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let d = dir.path();
    std::fs::write(d.join("file"), "kept").unwrap();
    for give in [0, 1000, 300_000, 17 << 20] {
        let file = FileWrite::new(at(&d.join("file")), 20 << 20, Body::reader(Source::new(give, Then::Hang)));
        assert!(tokio::time::timeout(Duration::from_millis(500), guest.write(file)).await.is_err());
    }
    let big = d.join("big");
    std::fs::File::create(&big).unwrap().set_len(1 << 30).unwrap();
    for take in [0, 1, 5] {
        let mut stream = guest.read(&at(&big), BIG).await.unwrap();
        for _ in 0..take {
            stream.next().await.unwrap().unwrap();
        }
        assert!(holders(&big) > 0, "it is being read");
        drop(stream);
    }
    let mut left = residue(d);
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        left = residue(d);
        if left.is_empty() && holders(&big) == 0 {
            break;
        }
    }
    assert_eq!((left, holders(&big)), (vec![], 0));
    assert_eq!(std::fs::read(d.join("file")).unwrap(), b"kept");
}

#[tokio::test]
async fn nothing_waits_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let quick = |mut c: sandbox_guest::GuestConfig| {
        c.inactivity = Duration::from_millis(700);
        c
    };
    let (guest, _) = Bare::default().guest_with(dir.path(), quick);
    let d = dir.path();
    std::fs::write(d.join("file"), "kept").unwrap();
    for size in [1000u64, 1 << 20] {
        let body = Body::reader(Source::new(10, Then::Hang));
        let error = within(guest.write(FileWrite::new(at(&d.join("file")), size, body))).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::DeadlineExceeded, Effect::None), "{error}");
    }
    assert_eq!(std::fs::read(d.join("file")).unwrap(), b"kept");
    assert_eq!(residue(d), Vec::<PathBuf>::new());
    // A regular file that blocks.
    if std::fs::File::open("/proc/kmsg").is_ok() {
        let begun = Instant::now();
        let outcome = within(async { guest.read(&at(Path::new("/proc/kmsg")), BIG).await?.finish().await }).await;
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    write(&guest, &d.join("file"), b"works on").await.unwrap();
}
