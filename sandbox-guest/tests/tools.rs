//! File operations with other tools than the usual: BusyBox's, broken ones, missing ones, planted ones.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::files::*;
use common::{Bare, busybox};
use sandbox::{Body, Effect, ErrorKind, FileBatch, FileWrite};
use sandbox_guest::Guest;

fn guest(dir: &Path, tools: &str) -> Guest {
    Bare::default()
        .guest_with(dir, |mut c| {
            c.tools = tools.to_owned();
            c
        })
        .0
}

#[tokio::test]
async fn busybox_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let Some(tools) = busybox(d) else { return };
    let guest = guest(d, &tools);
    for size in [0, 1, 4096, 65_536, 1_000_000] {
        let content = filler(size);
        for name in ["file", "-x y\n/de ep"] {
            let path = d.join(name);
            write(&guest, &path, &content).await.unwrap();
            assert!(read(&guest, &path).await.unwrap() == content, "{size}");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4750)).unwrap();
            write(&guest, &path, b"more").await.unwrap();
            assert_eq!((std::fs::read(&path).unwrap(), mode(&path)), (b"more".to_vec(), 0o4750));
            std::fs::remove_file(&path).unwrap();
        }
    }
    std::fs::create_dir(d.join("dir")).unwrap();
    std::fs::write(d.join("blocker"), "").unwrap();
    for (name, kind) in [("dir", ErrorKind::IsDirectory), ("blocker/x", ErrorKind::NotDirectory)] {
        assert_eq!(write(&guest, &d.join(name), b"x").await.unwrap_err().kind(), kind);
    }
    let error = write(&guest, Path::new("/proc/no/no"), b"x").await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::NotWritable, Some("No such file or directory")));
    let new = || FileWrite::bytes(at(&d.join("new")), "x").create_new();
    guest.write(new()).await.unwrap();
    assert_eq!(guest.write(new()).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(residue(d), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_missing_tool_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let Some(tools) = busybox(d) else { return };
    let guest = guest(d, &tools);
    let big = d.join("big");
    std::fs::write(&big, filler(100_000)).unwrap();
    for (tool, size) in [("dd", 100_000), ("mv", 1), ("mkdir", 1)] {
        std::fs::rename(d.join("bin").join(tool), d.join(tool)).unwrap();
        let error = write(&guest, &d.join("x/y"), &vec![0; size]).await.unwrap_err();
        let reason = format!("the sandbox has no {tool}");
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Unsupported, Some(reason.as_str())));
        assert!(!d.join("x").exists(), "{tool}");
        if tool == "dd" {
            assert_eq!(read(&guest, &big).await.unwrap_err().kind(), ErrorKind::Unsupported);
        }
        std::fs::rename(d.join(tool), d.join("bin").join(tool)).unwrap();
    }
    // Where there are no links, a new file is still new.
    std::fs::remove_file(d.join("bin/ln")).unwrap();
    let new = || FileWrite::bytes(at(&d.join("new")), "content").create_new();
    guest.write(new()).await.unwrap();
    assert_eq!(std::fs::read(d.join("new")).unwrap(), b"content");
    assert_eq!(guest.write(new()).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!((mode(&d.join("new")), residue(d)), (0o644, vec![]));
}

#[tokio::test]
async fn an_old_mv_and_a_directory_that_appears() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let old = "[[ $1 == -fT ]] && { echo \"mv: invalid option -- 'T'\" >&2; exit 1; }";
    let tools = plant(d, "mv", &format!("{old}; exec mv \"$@\""));
    let guest = guest(d, &tools);
    for content in ["one", "two"] {
        write(&guest, &d.join("file"), content.as_bytes()).await.unwrap();
        assert_eq!(std::fs::read(d.join("file")).unwrap(), content.as_bytes());
    }
    plant(d, "mv", &format!("{old}; rm -f \"${{@: -1}}\"; mkdir \"${{@: -1}}\"; exec mv \"$@\""));
    for size in [1, 300_000] {
        let error = write(&guest, &d.join("file"), &vec![0; size]).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::IsDirectory, Effect::None));
        assert_eq!(residue(d), Vec::<PathBuf>::new());
    }
}

/// The last test comes before the last tool: what appears between them is not replaced by what must be new.
#[tokio::test]
async fn what_appears_at_the_last_moment_is_not_replaced_by_a_new_file() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let target = d.join("file");
    let tools = plant(d, "chmod", &format!("echo theirs > {}; exec chmod \"$@\"", target.display()));
    let new = FileWrite::bytes(at(&target), vec![b'x'; 100_000]).create_new();
    let error = within(guest(d, &tools).write(new)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::AlreadyExists, Effect::None), "{error}");
    assert_eq!((std::fs::read(&target).unwrap(), residue(d)), (b"theirs\n".to_vec(), vec![]));
}

#[tokio::test]
async fn a_temporary_file_that_somebody_replaced_is_not_what_lands() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    std::fs::write(d.join("secret"), "secret").unwrap();
    std::fs::write(d.join("file"), "kept").unwrap();
    for other in [
        "ln -sfT secret \"$f\"",
        "cp secret other && mv -f other \"$f\"",
        "rm \"$f\"",
        "ln -f \"$f\" other; ln -sfT other \"$f\"",
    ] {
        let replace = format!("for f in .sbx-write-*; do {other}; done; exec chmod \"$@\"");
        let tools = plant(d, "chmod", &replace);
        let error = write(&guest(d, &tools), &d.join("file"), &filler(100_000)).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Other, Effect::None), "{other}: {error}");
        assert_eq!(error.reason(), Some("the temporary file was replaced"), "{other}");
        assert_eq!((std::fs::read(d.join("file")).unwrap(), residue(d)), (b"kept".to_vec(), vec![]), "{other}");
        assert_eq!((std::fs::read(d.join("secret")).unwrap(), mode(&d.join("secret"))), (b"secret".to_vec(), 0o644));
    }
}

#[tokio::test]
async fn a_tool_that_lies_or_fails() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let path = d.join("file");
    std::fs::write(&path, "kept").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    // A mode is octal digits or it is not used.
    let tools = plant(d, "stat", "echo a+rwx");
    plant(d, "chmod", "[[ $1 == --reference* ]] && exit 1; exec chmod \"$@\"");
    write(&guest(d, &tools), &path, b"kept").await.unwrap();
    assert_eq!(mode(&path), 0o644);
    assert_eq!(read(&guest(d, &tools), &d.join("planted/stat")).await.unwrap()[..2], *b"#!");
    let big = d.join("big");
    std::fs::write(&big, filler(100_000)).unwrap();
    let refused = read(&guest(d, &tools), &big).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Other);
    std::fs::remove_dir_all(d.join("planted")).unwrap();
    // A copy that ends early, says another number, dies, or claims to be one of this crate's own answers.
    let copies = [
        "exec dd bs=1 count=100",
        "dd \"$@\" | head -c 50000",
        "echo '1 bytes copied' >&2; exec dd \"$@\"",
        "kill -9 $$",
        "echo 'dd: some: reason' >&2; exit 12",
        "exit 10",
    ];
    for script in copies {
        let tools = plant(d, "dd", script);
        let guest = guest(d, &tools);
        let outcome = read(&guest, &big).await;
        assert!(outcome.is_err() || outcome.is_ok_and(|got| got == filler(100_000)), "{script}");
        for size in [60_000, 300_000] {
            let outcome = write(&guest, &path, &vec![b'x'; size]).await;
            let error = outcome.expect_err(script);
            assert!(matches!(error.kind(), ErrorKind::ShortTransfer | ErrorKind::Other), "{script}: {error}");
            assert_eq!(error.effect(), Effect::None, "{script}");
            assert_eq!(std::fs::read(&path).unwrap(), b"kept", "{script}");
        }
        for _ in 0..100 {
            if residue(d).is_empty() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert_eq!(residue(d), Vec::<PathBuf>::new(), "{script}");
    }
    std::fs::remove_dir_all(d.join("planted")).unwrap();
    // A delivery whose tar does nothing, little or too much lands one by one.
    for script in
        ["cat >/dev/null", "exit 3", "cat >/dev/null; exit 2", "tar \"$@\"; exit 1", "head -c 2000 >/dev/null"]
    {
        let tools = plant(d, "tar", script);
        let files = (0..20).map(|i| FileWrite::bytes(at(&d.join(format!("many/{i}"))), filler(3000)));
        within(guest(d, &tools).write_many(FileBatch::new(files))).await.unwrap();
        assert!((0..20).all(|i| std::fs::read(d.join(format!("many/{i}"))).unwrap() == filler(3000)), "{script}");
        assert_eq!(residue(d), Vec::<PathBuf>::new(), "{script}");
        std::fs::remove_dir_all(d.join("many")).unwrap();
    }
}

/// A delivery is one, whatever it holds: not a tool for each member.
#[tokio::test]
async fn a_delivery_takes_as_few_tools_for_many_members_as_for_few() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    std::fs::set_permissions(d, PermissionsExt::from_mode(0o755)).unwrap();
    let log = d.join("log");
    for tool in ["cat", "chmod", "dd", "ln", "mkdir", "mv", "rm", "rmdir", "stat"] {
        plant(d, tool, &format!("echo {tool} >> {}; exec {tool} \"$@\"", log.display()));
    }
    // By the time it gets its name, each has its mode.
    let named =
        format!("for f; do [[ $f == */.sbx-write-*/* ]] && stat -c %a \"$f\"; done >> {}", d.join("named").display());
    plant(d, "mv", &format!("echo mv >> {}; {named}; exec mv \"$@\"", log.display()));
    // What waits beside the targets is nobody else's, whatever the umask.
    let look = format!("stat -c %a {}/many/*/.sbx-write-* >> {}", d.display(), d.join("modes").display());
    let tools = plant(d, "tar", &format!("echo tar >> {}; {look}; exec tar \"$@\"", log.display()));
    let (guest, _) = Bare { noise: "umask 000\n", ..Bare::default() }.guest_with(d, |mut c| {
        c.tools = tools;
        c
    });
    let mut taken = Vec::new();
    for count in [40, 800] {
        for round in ["new", "over them"] {
            let name = |i| d.join(format!("many/{}/{i}", i % 4));
            let files = (0..count).map(|i| FileWrite::bytes(at(&name(i)), format!("{round} {i}")));
            within(guest.write_many(FileBatch::new(files))).await.unwrap();
            assert!((0..count).all(|i| std::fs::read(name(i)).unwrap() == format!("{round} {i}").as_bytes()));
            // Those of a pipe come in any order.
            let mut tools: Vec<_> = std::fs::read_to_string(&log).unwrap().lines().map(str::to_owned).collect();
            tools.sort();
            taken.push(tools.join(" "));
            std::fs::remove_file(&log).unwrap();
        }
        std::fs::remove_dir_all(d.join("many")).unwrap();
    }
    assert!(taken[0].contains("tar") && taken[0].split(' ').count() < 12, "{taken:?}");
    assert_eq!((&taken[0], &taken[1]), (&taken[2], &taken[3]));
    let modes = std::fs::read_to_string(d.join("modes")).unwrap();
    assert!(modes.lines().count() == 16 && modes.lines().all(|bits| bits == "700"), "{modes}");
    let named = std::fs::read_to_string(d.join("named")).unwrap();
    assert!(named.lines().count() == 2 * (40 + 800) && named.lines().all(|bits| bits == "644"), "{named}");
}

#[tokio::test]
async fn the_environment_decides_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let own = ["dd", "mv", "stat", "chmod", "mkdir", "tar", "rm", "cat"];
    for tool in own.into_iter().chain(["basename", "dirname", "find", "ls", "readlink", "realpath", "test"]) {
        plant(d, tool, "echo planted; exit 0");
    }
    let leak = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    let planted = leak(format!("{}:/usr/bin:/bin", d.join("planted").display()));
    for locale in ["C", "C.UTF-8", "de_DE.UTF-8"] {
        let env = vec![
            ("PATH", planted),
            ("LC_ALL", locale),
            ("LANGUAGE", "de"),
            ("LD_PRELOAD", "/no/such.so"),
            ("POSIXLY_CORRECT", "1"),
            ("TAR_OPTIONS", "--bad"),
            ("TMPDIR", "/no/such"),
            ("SHELLOPTS", "noclobber:xtrace:noglob:errexit"),
            ("BASH_FUNC_printf%%", "() { echo shadow; }"),
            ("BASH_FUNC_exec%%", "() { echo shadow; }"),
            ("GLOBIGNORE", "*"),
            ("CDPATH", "/tmp"),
            ("IFS", "0123456789"),
            ("TMOUT", "1"),
        ];
        let noise = "umask 027; echo banner; echo banner >&2\n";
        let (guest, _) = Bare { env, noise, ..Bare::default() }.guest(d);
        let path = d.join(format!("at {locale}/é/file"));
        for size in [5, 5000, 100_000] {
            write(&guest, &path, &filler(size)).await.unwrap_or_else(|e| panic!("{locale}: {e}"));
            assert!(read(&guest, &path).await.unwrap() == filler(size));
        }
        let files = (0..10).map(|i| FileWrite::bytes(at(&d.join(format!("at {locale}/é{i}"))), "many"));
        within(guest.write_many(FileBatch::new(files))).await.unwrap();
        assert_eq!(std::fs::read(d.join(format!("at {locale}/é9"))).unwrap(), b"many");
        within(async { guest.export(&at(&d.join(format!("at {locale}")))).await.unwrap().finish().await })
            .await
            .unwrap();
        let error = write(&guest, Path::new("/proc/no"), b"x").await.unwrap_err();
        assert_eq!(error.reason(), Some("No such file or directory"), "{locale}");
        for (below, kind) in [(path.clone(), ErrorKind::NotDirectory), (d.join("none"), ErrorKind::FileNotFound)] {
            assert_eq!(read(&guest, &below.join("deep/er")).await.unwrap_err().kind(), kind, "{locale}");
        }
        assert_eq!(residue(d), Vec::<PathBuf>::new());
    }
}

#[tokio::test]
async fn what_is_mounted_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let mounted = ["plain", "a b", "new\nline", "back\\slash"];
    std::fs::write(d.join("source"), "kept").unwrap();
    for name in mounted {
        std::fs::write(d.join(name), "under").unwrap();
    }
    symlink(d, d.join("way")).unwrap();
    let script = "d=$1; shift; for n in plain 'a b' $'new\\nline' 'back\\slash'; do mount --bind \"$d/source\" \"$d/$n\" || exit; done; exec \"$@\"";
    let words = ["unshare", "-Urm", "bash", "-c", script, "bash", d.to_str().unwrap()];
    let (guest, _) = Bare { through: words.map(str::to_owned).to_vec(), ..Bare::default() }.guest(d);
    for name in mounted {
        for path in [d.join(name), d.join("way").join(name)] {
            for (size, then) in [(1, Then::End), (100_000, Then::Forbidden)] {
                // Before a long content is asked for.
                let give = if then == Then::End { size } else { 0 };
                let body = Body::reader(Source::new(give, then));
                let error = within(guest.write(FileWrite::new(at(&path), size as u64, body))).await.unwrap_err();
                assert_eq!((error.kind(), error.effect()), (ErrorKind::NotReplaceable, Effect::None), "{error}");
            }
            let mut files: Vec<_> = (0..6).map(|i| FileWrite::bytes(at(&d.join(format!("m{i}"))), "x")).collect();
            files.push(FileWrite::bytes(at(&path), "x"));
            let error = within(guest.write_many(FileBatch::new(files))).await.unwrap_err();
            assert_eq!((error.kind(), error.member()), (ErrorKind::NotReplaceable, Some(6)), "{error}");
        }
    }
    assert_eq!(std::fs::read(d.join("source")).unwrap(), b"kept");
    assert_eq!(residue(d), Vec::<PathBuf>::new());
}
