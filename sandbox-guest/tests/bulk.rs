//! Writing many files, over plain pipes to a plain bash.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::files::*;
use common::{Bare, as_nobody, busybox, default_acl};
use sandbox::{Body, Effect, Error, ErrorKind, FileBatch, FileWrite};
use sandbox_guest::Guest;

async fn write_all(guest: &Guest, files: Vec<FileWrite<'_>>) -> Result<(), Error> {
    within(guest.write_many(FileBatch::new(files))).await
}

fn file(path: &Path, content: impl Into<bytes::Bytes>) -> FileWrite<'static> {
    FileWrite::bytes(at(path), content.into())
}

/// The same with every kind of sandbox: GNU tools, BusyBox's, and without tar.
fn guests(dir: &Path) -> Vec<(&'static str, Guest)> {
    let with = |tools: String, sockets| {
        let carrier = Bare { sockets, env: vec![("LC_ALL", "C.UTF-8"), ("TAR_OPTIONS", "--bad")], ..Bare::default() };
        carrier.guest_with(dir, |mut c| {
            c.tools = tools;
            c
        })
    };
    let usual = "/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
    let mut all = vec![("usual", with(usual, true).0)];
    if let Some(bin) = busybox(dir) {
        let bare = dir.join("no-tar");
        assert!(std::process::Command::new("cp").arg("-a").arg(&bin).arg(&bare).status().unwrap().success());
        std::fs::remove_file(bare.join("tar")).unwrap();
        all.push(("busybox", with(bin, false).0));
        all.push(("without tar", with(bare.to_str().unwrap().to_owned(), false).0));
    }
    all
}

fn tree(dir: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
        } else {
            found.insert(path.clone(), (mode(&path), std::fs::read(&path).unwrap_or_default()));
        }
    }
    found
}

#[tokio::test]
async fn every_member_lands_as_a_single_write_would() {
    let dir = tempfile::tempdir().unwrap();
    for (what, guest) in guests(dir.path()) {
        let d = dir.path().join(format!("{what} $(x)"));
        write_all(&guest, vec![]).await.unwrap();
        assert!(!d.exists());
        let mut files: Vec<(PathBuf, Vec<u8>)> = (0..if what == "usual" { 1500 } else { 80 })
            .map(|i| (d.join(format!("{}/{i}", i % 7)), filler(i)))
            .collect();
        files.push((d.join("big"), filler(1 << 20)));
        files.push((d.join("empty"), vec![]));
        files.push((d.join("a/b/c/d/e/f"), filler(100)));
        let names: [&[u8]; 18] = [
            b" a",
            b"a ",
            b"-rf",
            b"--",
            b"a b",
            b"a\nb",
            b"a\n",
            b"a\tb",
            b"*",
            b"[0]",
            b"?",
            b"a:b",
            b"\\x20",
            b"$(id)",
            b"'\"",
            b"\xff\xfe",
            b"~",
            &[b'n'; 255],
        ];
        for name in names {
            let name = std::ffi::OsString::from_vec(name.to_vec());
            files.push((d.join("names").join(&name), filler(10)));
            files.push((d.join("names deep").join(&name).join(&name), filler(20)));
        }
        let batch = files.iter().map(|(path, content)| file(path, content.clone())).collect();
        write_all(&guest, batch).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        let want: BTreeMap<_, _> = files.iter().map(|(p, c)| (p.clone(), (0o644, c.clone()))).collect();
        assert!(tree(&d) == want, "{what}");
        assert_eq!((mode(&d), mode(&d.join("a/b")), mode(&d.join("names deep"))), (0o755, 0o755, 0o755));
        // What was there already keeps its mode.
        let there = d.join("there");
        std::fs::create_dir(&there).unwrap();
        std::fs::set_permissions(&there, PermissionsExt::from_mode(0o1711)).unwrap();
        write_all(&guest, (0..6).map(|i| file(&there.join(format!("{i}")), "x")).collect()).await.unwrap();
        assert_eq!((mode(&there), mode(&there.join("5"))), (0o1711, 0o644), "{what}");
        std::fs::remove_dir_all(&there).unwrap();
        // Once more over them: modes stay, also unusual ones; a link is replaced; an explicit mode counts; last wins.
        let kept =
            [(d.join("0/0"), 0o755), (d.join("1/1"), 0o600), (d.join("2/2"), 0o4755), (d.join("names/a\nb"), 0o400)];
        for (path, bits) in &kept {
            std::fs::set_permissions(path, PermissionsExt::from_mode(*bits)).unwrap();
        }
        std::fs::remove_file(d.join("3/3")).unwrap();
        std::fs::write(d.join("pointee"), "pointee").unwrap();
        symlink("../pointee", d.join("3/3")).unwrap();
        let mut batch: Vec<_> = files.iter().map(|(path, _)| file(path, "second")).collect();
        batch.push(file(&d.join("4/4"), "last").with_mode(0o4711));
        batch.push(file(&d.join("5/5"), "last").with_mode(0o000));
        batch.push(file(&d.join("new"), "last").with_mode(0o1666));
        write_all(&guest, batch).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut want: BTreeMap<_, _> = files.iter().map(|(p, _)| (p.clone(), (0o644, b"second".to_vec()))).collect();
        for (path, bits) in &kept {
            want.get_mut(path).unwrap().0 = *bits;
        }
        want.insert(d.join("4/4"), (0o4711, b"last".to_vec()));
        want.insert(d.join("5/5"), (0o000, std::fs::read(d.join("5/5")).unwrap_or_default()));
        want.insert(d.join("new"), (0o1666, b"last".to_vec()));
        want.insert(d.join("pointee"), (0o644, b"pointee".to_vec()));
        let got = tree(&d);
        let wrong: Vec<_> =
            got.iter().filter(|(p, v)| want.get(*p) != Some(v)).take(5).map(|(p, v)| (p, v.0)).collect();
        assert!(got == want, "{what}: {wrong:?}");
        assert_eq!(residue(&d), Vec::<PathBuf>::new(), "{what}");
    }
}

/// A device in `dir` where one can be made; else the machine's own, which only those can replace who can make one.
fn device(dir: &Path) -> PathBuf {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let own = dir.join("device");
    let made = mknodat(CWD, &own, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, makedev(1, 3));
    if matches!(made, Ok(()) | Err(rustix::io::Errno::EXIST)) { own } else { "/dev/null".into() }
}

#[tokio::test]
async fn it_ends_at_the_first_failure_and_names_it() {
    let dir = tempfile::tempdir().unwrap();
    for (what, guest) in guests(dir.path()) {
        let d = dir.path().join(what);
        std::fs::create_dir_all(d.join("dir/inner")).unwrap();
        std::fs::write(d.join("blocker"), "blocker").unwrap();
        std::fs::create_dir(d.join("sub")).unwrap();
        symlink("dir", d.join("dirlink")).unwrap();
        type Bad = fn(&Path) -> FileWrite<'static>;
        let cases: [(ErrorKind, Bad); 10] = [
            (ErrorKind::IsDirectory, |d| file(&d.join("dir"), "x")),
            (ErrorKind::IsDirectory, |d| file(&d.join("dirlink"), "x")),
            (ErrorKind::NotReplaceable, |d| file(&device(d), "x")),
            (ErrorKind::NotWritable, |_| file(Path::new("/proc/new"), "x")),
            (ErrorKind::NotWritable, |d| file(&d.join("n".repeat(256)), "x")),
            (ErrorKind::AlreadyExists, |d| file(&d.join("blocker"), "x").create_new()),
            (ErrorKind::InvalidRequest, |d| file(&d.join("x"), "x").with_mode(0o10000)),
            (ErrorKind::ShortTransfer, |d| FileWrite::new(at(&d.join("short")), 9, Body::bytes("x"))),
            (ErrorKind::ShortTransfer, |d| FileWrite::new(at(&d.join("short/p")), 1 << 20, Body::bytes("x"))),
            (ErrorKind::ShortTransfer, |d| {
                FileWrite::new(at(&d.join("short")), 9, Body::reader(Source::new(3, Then::Fail)))
            }),
        ];
        for (kind, bad) in cases {
            for before in [0, 1, 9, 40] {
                if before > 9 && (what == "without tar" || kind != ErrorKind::IsDirectory) {
                    continue;
                }
                let name = |side, i| d.join(format!("{side}/{}/{i}", i % 3));
                let mut batch: Vec<_> = (0..before).map(|i| file(&name("before", i), "x")).collect();
                batch.push(bad(&d));
                batch.extend((0..6).map(|i| file(&name("after", i), "x")));
                let error = write_all(&guest, batch).await.unwrap_err();
                let effect = if before == 0 { Effect::None } else { Effect::Partial };
                assert_eq!(
                    (error.kind(), error.member(), error.effect()),
                    (kind, Some(before), effect),
                    "{what}: {error}"
                );
                assert_eq!(error.path(), Some(&bad(&d).path));
                assert!((0..before).all(|i| name("before", i).exists()), "{what} {kind:?}");
                assert!(!d.join("after").exists(), "{what} {kind:?}");
                assert!(!d.join("short").exists(), "{what} {kind:?}");
                assert_eq!(residue(&d), Vec::<PathBuf>::new(), "{what} {kind:?}");
                let _ = std::fs::remove_dir_all(d.join("before"));
            }
        }
        assert_eq!(std::fs::read(d.join("blocker")).unwrap(), b"blocker");
        assert!(d.join("dir/inner").is_dir());
    }
}

/// What is above the members is looked at before any of them is written, however they travel.
#[tokio::test]
async fn nothing_is_written_if_one_is_below_a_file() {
    let dir = tempfile::tempdir().unwrap();
    for (what, guest) in guests(dir.path()) {
        let d = dir.path().join(what);
        std::fs::create_dir_all(d.join("there")).unwrap();
        std::fs::write(d.join("blocker"), "blocker").unwrap();
        symlink("blocker", d.join("link")).unwrap();
        symlink("nowhere", d.join("dangling")).unwrap();
        for blocked in ["blocker/child", "blocker/deep/er", "link/child", "dangling/child", "dangling/deep/er"] {
            for (before, after) in [(0, 1), (1, 0), (2, 2), (7, 3), (900, 100)] {
                let mut batch: Vec<_> =
                    (0..before).map(|i| file(&d.join(format!("there/{}/{i}", i % 3)), "x")).collect();
                if before == 7 {
                    batch[2] = file(&d.join("there/large"), filler(1 << 20));
                    batch[4] = file(&d.join("there/new"), "x").create_new();
                }
                // One of any size is looked at together with those that it follows.
                let bad = if before == 2 { filler(5 << 20) } else { b"x".to_vec() };
                batch.push(file(&d.join(blocked), bad));
                batch.extend((0..after).map(|i| file(&d.join(format!("after/{i}")), "x")));
                let error = write_all(&guest, batch).await.unwrap_err();
                let want = (ErrorKind::NotDirectory, Some(before), Effect::None);
                assert_eq!((error.kind(), error.member(), error.effect()), want, "{what}: {error}");
                assert_eq!(error.path(), Some(&at(&d.join(blocked))));
                assert_eq!(std::fs::read_dir(d.join("there")).unwrap().count(), 0, "{what} {blocked} {before}");
                assert_eq!(std::fs::read_dir(&d).unwrap().count(), 4, "{what} {blocked} {before}");
            }
        }
        assert_eq!(std::fs::read(d.join("blocker")).unwrap(), b"blocker");
    }
}

/// Members are counted from the first of the batch, not of the delivery.
#[tokio::test]
async fn a_failure_in_a_later_delivery_names_its_member() {
    let dir = tempfile::tempdir().unwrap();
    for (what, guest) in guests(dir.path()) {
        let d = dir.path().join(what);
        std::fs::create_dir_all(d.join("dir")).unwrap();
        std::fs::write(d.join("blocker"), "blocker").unwrap();
        // What is above the members is looked at for one delivery at a time.
        for (bad, kind, there) in [("blocker/f", ErrorKind::NotDirectory, 1024), ("dir", ErrorKind::IsDirectory, 1050)]
        {
            let name = |i| if i == 1050 { d.join(bad) } else { d.join(format!("there/{i}")) };
            let error = write_all(&guest, (0..1100).map(|i| file(&name(i), "x")).collect()).await.unwrap_err();
            let told = (error.kind(), error.member(), error.effect());
            assert_eq!(told, (kind, Some(1050), Effect::Partial), "{what}: {error}");
            assert_eq!(error.path(), Some(&at(&d.join(bad))));
            assert_eq!(std::fs::read_dir(d.join("there")).unwrap().count(), there, "{what} {bad}");
            std::fs::remove_dir_all(d.join("there")).unwrap();
        }
    }
}

/// Directories of a batch are for all, whatever the shell's umask and however the members travel.
#[tokio::test]
async fn directories_are_made_with_mode_0755() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare { noise: "umask 077\n", ..Bare::default() }.guest(dir.path());
    let d = dir.path();
    for (name, files) in [("few", 2), ("many", 40)] {
        write_all(&guest, (0..files).map(|i| file(&d.join(format!("{name}/a/{}/{i}", i % 2)), "x")).collect())
            .await
            .unwrap();
    }
    write_all(&guest, vec![file(&d.join("large/a/f"), filler(5 << 20))]).await.unwrap();
    write_all(&guest, vec![file(&d.join("new/a/f"), "x").create_new()]).await.unwrap();
    for made in ["few", "few/a", "few/a/1", "many", "many/a", "many/a/0", "large", "large/a", "new", "new/a"] {
        assert_eq!(mode(&d.join(made)), 0o755, "{made}");
    }
    // A single write leaves that to the umask, as it was before.
    write(&guest, &d.join("single/a/f"), b"x").await.unwrap();
    assert_eq!((mode(&d.join("single")), mode(&d.join("single/a"))), (0o700, 0o700));
}

/// No more is held than one delivery takes, in number or size: what comes after it is asked for once it has landed.
#[tokio::test]
async fn members_are_asked_for_as_those_before_them_land() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    for (name, count, size, most) in [("number", 3000, 10, 1025), ("size", 200, 60_000, 70)] {
        let d = dir.path().join(name);
        let first = d.join("0");
        let files = (0..count).map(|i| {
            assert!(i <= most || first.exists(), "{name}: {i} are held");
            file(&d.join(format!("{i}")), filler(size))
        });
        within(guest.write_many(FileBatch::new(files))).await.unwrap();
        assert_eq!(std::fs::read_dir(&d).unwrap().count(), count);
    }
}

#[tokio::test]
async fn members_that_depend_on_each_other_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let d = dir.path();
    let others = |n: usize| (0..n).map(|i| file(&d.join(format!("other/{i}")), "x")).collect::<Vec<_>>();
    let mut batch = others(10);
    batch.push(file(&d.join("a"), "a file"));
    batch.push(file(&d.join("a/b"), "below it"));
    let error = write_all(&guest, batch).await.unwrap_err();
    assert_eq!((error.kind(), error.member()), (ErrorKind::NotDirectory, Some(11)));
    let mut batch = others(10);
    batch.push(file(&d.join("c/d/e"), "below"));
    batch.push(file(&d.join("c"), "above it"));
    let error = write_all(&guest, batch).await.unwrap_err();
    assert_eq!((error.kind(), error.member()), (ErrorKind::IsDirectory, Some(11)));
    let mut batch = others(10);
    batch.push(file(&d.join("twice"), "1").with_mode(0o755));
    batch.extend(others(10));
    batch.push(file(&d.join("twice"), "2"));
    write_all(&guest, batch).await.unwrap();
    assert_eq!((std::fs::read(d.join("twice")).unwrap(), mode(&d.join("twice"))), (b"2".to_vec(), 0o755));
}

#[tokio::test]
async fn without_permission() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    std::fs::set_permissions(d, PermissionsExt::from_mode(0o777)).unwrap();
    for name in ["closed", "locked", "sticky"] {
        std::fs::create_dir(d.join(name)).unwrap();
        std::fs::write(d.join(name).join("file"), "kept").unwrap();
    }
    let set = |name: &str, mode| std::fs::set_permissions(d.join(name), PermissionsExt::from_mode(mode)).unwrap();
    set("closed", 0o555);
    set("locked", 0o000);
    set("sticky", 0o1777);
    let (guest, _) = Bare { through: as_nobody(), noise: "umask 077\n", ..Bare::default() }.guest(d);
    let foreign = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(d).unwrap()) == 0;
    for path in ["closed/new", "closed/deep/new", "locked/new", "sticky/file"] {
        if path == "sticky/file" && !foreign {
            continue;
        }
        let mut batch: Vec<_> = (0..8).map(|i| file(&d.join(format!("ok/{path}/{i}")), "x")).collect();
        batch.push(file(&d.join(path), "x"));
        batch.extend((0..8).map(|i| file(&d.join(format!("after/{i}")), "x")));
        let error = write_all(&guest, batch).await.unwrap_err();
        assert_eq!((error.kind(), error.member()), (ErrorKind::NotWritable, Some(8)), "{path}: {error}");
        assert!(error.reason().is_some_and(|r| r.contains("ermi")), "{error}");
        assert!(!d.join("after").exists());
    }
    write_all(&guest, (0..8).map(|i| file(&d.join(format!("sticky/{i}")), "x")).collect()).await.unwrap();
    assert_eq!((mode(&d.join("sticky/3")), mode(&d.join("ok"))), (0o644, 0o755));
    set("locked", 0o755);
    assert_eq!(std::fs::read(d.join("locked/file")).unwrap(), b"kept");
    assert_eq!(residue(&d.join("sticky")), Vec::<PathBuf>::new());
    assert_eq!(residue(&d.join("closed")), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn default_acls_do_not_decide() {
    let dir = tempfile::tempdir().unwrap();
    if !default_acl(dir.path(), "u::rwx,g::-,o::-") {
        return;
    }
    for (what, guest) in guests(dir.path()) {
        let d = dir.path().join(what);
        let batch = (0..10).map(|i| file(&d.join(format!("{i}")), "x")).collect();
        write_all(&guest, batch).await.unwrap();
        assert_eq!((0..10).map(|i| mode(&d.join(format!("{i}")))).collect::<Vec<_>>(), [0o644; 10], "{what}");
    }
}

#[tokio::test]
async fn dropped_at_any_moment_it_leaves_nothing_beside_the_targets() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let (guest, carrier) = Bare::default().guest(d);
    guest.warm_up().await.unwrap();
    for millis in [1, 3, 5, 8, 12, 17, 25, 35, 50, 70, 100, 140] {
        let files = (0..400).map(|i| file(&d.join(format!("{millis}/{}/{i}", i % 3)), filler(9000)));
        let work = guest.write_many(FileBatch::new(files));
        let _ = tokio::time::timeout(std::time::Duration::from_millis(millis), work).await;
    }
    // Also while something waits beside the targets for sure, however slow the machine is.
    for millis in [0, 0, 1, 2, 4, 8] {
        let files = (0..400).map(|i| file(&d.join(format!("seen {millis}/{}/{i}", i % 3)), filler(9000)));
        let seen = async {
            while residue(d).is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            tokio::time::sleep(std::time::Duration::from_millis(millis)).await;
        };
        tokio::select! {
            outcome = guest.write_many(FileBatch::new(files)) => outcome.unwrap(),
            () = within(seen) => {}
        }
        within(async {
            while !residue(d).is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        })
        .await;
    }
    // A shell that was let go of may be about to begin; once all of them have gone, nobody does.
    drop(guest);
    within(async {
        let gone = |pid: &u32| !Path::new(&format!("/proc/{pid}")).exists();
        while !carrier.pids.lock().unwrap().iter().all(gone) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(residue(d), Vec::<PathBuf>::new());
    for (path, (mode, content)) in tree(d) {
        assert!(mode == 0o644 && content == filler(9000), "{path:?}");
    }
}
