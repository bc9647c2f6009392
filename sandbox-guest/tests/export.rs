//! Exports, over plain pipes to a plain bash.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::files::*;
use common::{Bare, as_nobody, busybox};
use sandbox::{Error, ErrorKind};
use sandbox_guest::Guest;

async fn export(guest: &Guest, root: &Path) -> Result<Vec<u8>, Error> {
    within(async { Ok(guest.export(&at(root)).await?.collect(1 << 30).await?.to_vec()) }).await
}

/// The names in an archive.
fn list(archive: &[u8]) -> Vec<String> {
    let mut child = Command::new("tar").arg("-t").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let archive = archive.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&archive).unwrap());
    let out = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect()
}

fn guest(dir: &Path, tools: Option<String>) -> Guest {
    let carrier = Bare { env: vec![("TAR_OPTIONS", "--bad"), ("LC_ALL", "C.UTF-8")], ..Bare::default() };
    let config = |mut c: sandbox_guest::GuestConfig| {
        c.tools = tools.unwrap_or(c.tools);
        c
    };
    carrier.guest_with(dir, config).0
}

#[tokio::test]
async fn one_entry_at_the_top_with_everything_below() {
    let dir = tempfile::tempdir().unwrap();
    let tools = [None, busybox(dir.path())];
    for (i, tools) in tools.into_iter().enumerate() {
        if i == 1 && tools.is_none() {
            continue;
        }
        let guest = guest(dir.path(), tools);
        let d = dir.path().join(format!("{i}"));
        let root = d.join("-ro ot");
        std::fs::create_dir_all(root.join("sub/empty")).unwrap();
        std::fs::write(root.join("file"), filler(100_000)).unwrap();
        std::fs::set_permissions(root.join("file"), PermissionsExt::from_mode(0o751)).unwrap();
        symlink("/no/where", root.join("sub/link")).unwrap();
        symlink("-ro ot", d.join("rootlink")).unwrap();
        symlink("gone", d.join("dangling")).unwrap();
        let archive = export(&guest, &root).await.unwrap();
        let mut names = list(&archive);
        names.sort();
        assert_eq!(names, ["-ro ot/", "-ro ot/file", "-ro ot/sub/", "-ro ot/sub/empty/", "-ro ot/sub/link"]);
        let out = d.join("out");
        std::fs::create_dir(&out).unwrap();
        let mut child = Command::new("tar").arg("-xpC").arg(&out).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&archive).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(std::fs::read(out.join("-ro ot/file")).unwrap() == filler(100_000));
        assert_eq!(mode(&out.join("-ro ot/file")), 0o751);
        assert_eq!(std::fs::read_link(out.join("-ro ot/sub/link")).unwrap(), Path::new("/no/where"));
        // Links are links, also at the root.
        for name in ["rootlink", "dangling"] {
            assert_eq!(list(&export(&guest, &d.join(name)).await.unwrap()), [name]);
        }
        assert_eq!(list(&export(&guest, &root.join("file")).await.unwrap()), ["file"]);
    }
}

#[tokio::test]
async fn what_cannot_be_exported() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    std::fs::set_permissions(d, PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(d.join("file"), "x").unwrap();
    std::fs::create_dir_all(d.join("closed/in")).unwrap();
    std::fs::create_dir_all(d.join("half/in")).unwrap();
    std::fs::write(d.join("half/file"), filler(300_000)).unwrap();
    for name in ["closed", "half/in"] {
        std::fs::set_permissions(d.join(name), PermissionsExt::from_mode(0o000)).unwrap();
    }
    let (user, carrier) = Bare { through: as_nobody(), ..Bare::default() }.guest(d);
    let cases = [
        ("missing", ErrorKind::FileNotFound),
        ("missing/deep", ErrorKind::FileNotFound),
        ("file/below", ErrorKind::NotDirectory),
        ("closed/in", ErrorKind::Forbidden),
        ("closed/missing", ErrorKind::Forbidden),
    ];
    for (name, kind) in cases {
        let error = export(&user, &d.join(name)).await.unwrap_err();
        assert_eq!((error.kind(), error.path()), (kind, Some(&at(&d.join(name)))), "{name}: {error}");
    }
    // What fails inside is an error at the end, though the archive has its end mark.
    let mut stream = user.export(&at(&d.join("half"))).await.unwrap();
    let mut last = None;
    while let Some(item) = within(stream.next()).await {
        last = Some(item);
    }
    let error = last.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Other);
    assert!(error.reason().unwrap().contains("Permission denied"), "{error}");
    assert!(stream.delivered() > 300_000);
    assert_eq!(carrier.opened.load(std::sync::atomic::Ordering::Relaxed), 1);
    for name in ["closed", "half/in"] {
        std::fs::set_permissions(d.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    std::fs::create_dir(d.join("no-tools")).unwrap();
    let without = guest(d, Some(d.join("no-tools").to_str().unwrap().to_owned()));
    let error = export(&without, d).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Unsupported, Some("the sandbox has no tar")));
}

/// A tar that fails, or that says nothing of having stopped early, shows at the end of the stream and nowhere before.
#[tokio::test]
async fn an_archive_that_is_cut_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    std::fs::write(d.join("big"), filler(300_000)).unwrap();
    let cases = [
        ("tar \"$@\" | head -c 102400", ErrorKind::ShortTransfer, "102400 bytes that do not end as an archive does"),
        ("tar \"$@\" | head -c 100", ErrorKind::ShortTransfer, "100 bytes that do not end as an archive does"),
        ("head -c 100 /dev/zero; tar \"$@\"", ErrorKind::ShortTransfer, "do not end as an archive does"),
        ("tar \"$@\"; exit 3", ErrorKind::Other, "tar ended with 3"),
        ("tar \"$@\"; echo 'tar: big: it was changed' >&2; exit 1", ErrorKind::Other, "it was changed"),
        ("true", ErrorKind::ShortTransfer, "0 bytes that do not end as an archive does"),
    ];
    for (script, kind, reason) in cases {
        let guest = guest(d, Some(plant(d, "tar", script)));
        let mut stream = guest.export(&at(&d.join("big"))).await.unwrap();
        let mut items = Vec::new();
        while let Some(item) = within(stream.next()).await {
            items.push(item);
        }
        let error = items.pop().unwrap().unwrap_err();
        assert_eq!(error.kind(), kind, "{script}: {error}");
        assert!(error.reason().unwrap().contains(reason), "{script}: {error}");
        assert!(items.iter().all(Result::is_ok), "{script}");
    }
}

#[tokio::test]
async fn dropped_half_way_nothing_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let big = dir.path().join("big");
    std::fs::File::create(&big).unwrap().set_len(4 << 30).unwrap();
    let mut stream = guest.export(&at(&big)).await.unwrap();
    within(stream.next()).await.unwrap().unwrap();
    assert!(holders(&big) > 0);
    drop(stream);
    for _ in 0..200 {
        if holders(&big) == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("somebody still packs");
}
