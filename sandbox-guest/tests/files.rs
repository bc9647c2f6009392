//! Reading and writing files, over plain pipes to a plain bash.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::Bare;
use common::files::*;
use sandbox::{Body, Effect, ErrorKind, ExecRequest, FileWrite};

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

/// Whoever sets no bound by setting the longest time has none, and no panic.
#[tokio::test]
async fn no_time_is_too_long() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest_with(dir.path(), |mut c| {
        (c.begin_timeout, c.inactivity, c.idle_close) = (Duration::MAX, Duration::MAX, Duration::MAX);
        c
    });
    let path = dir.path().join("file");
    let content = filler(1 << 20);
    within(write(&guest, &path, &content)).await.unwrap();
    assert!(within(read(&guest, &path)).await.unwrap() == content);
    let said = within(guest.exec(ExecRequest::shell("echo said").with_limit(Duration::from_secs(60)))).await.unwrap();
    assert_eq!(said.stdout.bytes, "said\n");
}

#[tokio::test]
async fn nothing_waits_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let quick = |mut c: sandbox_guest::GuestConfig| {
        c.inactivity = Duration::from_millis(700);
        c.begin_timeout = Duration::from_secs(5);
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
    // A regular file that blocks: at once, or after what it has.
    if std::fs::File::open("/proc/kmsg").is_ok() {
        let (begun, before) = (Instant::now(), holders(Path::new("/proc/kmsg")));
        let outcome = within(async { guest.read(&at(Path::new("/proc/kmsg")), BIG).await?.finish().await }).await;
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        // Nobody inside goes on waiting for it.
        within(async {
            while holders(Path::new("/proc/kmsg")) > before {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
    write(&guest, &d.join("file"), b"works on").await.unwrap();
}
