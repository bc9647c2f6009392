//! Folders of every kind into a sandbox, and back.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{FakeProvider, HostSandbox, host, session, stream, tree};
use sandbox::{Effect, Error, ErrorKind, SandboxPath};
use sandbox_transfer::{
    Bound, CandidateKind, DownloadOptions, Exceeded, Limits, ProviderTransferExt, Report, Rule, SandboxTransferExt,
    UploadOptions,
};

const ODD: &[&[u8]] = &[
    b" a",
    b"a ",
    b"-rf",
    b"--",
    b"-",
    b"a b",
    b"a\nb",
    b"\n",
    b"a\tb",
    b"*",
    b"[0]",
    b"a:b",
    b"\\x20",
    b"\\",
    b"$(id)",
    b"`id`",
    b"'\"",
    b"%2e%2e",
    b"...",
    "\u{e9}".as_bytes(),
    "e\u{301}".as_bytes(),
    b"\xff\xfe",
    b"\x01\x7f",
    &[b'n'; 255],
];

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

struct Place {
    dir: tempfile::TempDir,
    from: PathBuf,
    into: SandboxPath,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    std::fs::create_dir(&from).unwrap();
    let into = SandboxPath::new(dir.path().join("into").as_os_str().as_bytes()).unwrap();
    Place { dir, from, into }
}

impl Place {
    fn file(&self, name: &[u8], mode: u32, content: &[u8]) {
        let at = self.from.join(path(name));
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(&at, content).unwrap();
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    async fn send(&self, sandbox: &HostSandbox, options: UploadOptions) -> Result<Report, Error> {
        sandbox.upload_dir(&self.from, &self.into, options).await
    }
}

#[tokio::test]
async fn every_odd_name_arrives_as_file_directory_and_link() {
    let place = place();
    for name in ODD {
        let join = |parts: &[&[u8]]| parts.join(&b'/');
        place.file(&join(&[b"files", name]), 0o644, name);
        place.file(&join(&[b"in", name, b"file"]), 0o755, name);
        std::fs::create_dir_all(place.from.join("empty").join(path(name))).unwrap();
        std::fs::create_dir_all(place.from.join("links")).unwrap();
        symlink(path(name), place.from.join("links").join(path(name))).unwrap();
        symlink(Path::new("../files").join(path(name)), place.from.join("in").join(path(name)).join("up")).unwrap();
    }
    let sandbox = HostSandbox::new();
    let report = place.send(&sandbox, UploadOptions::default()).await.unwrap();
    assert_eq!((report.files, report.links, report.left_out_total), (48, 48, 0));
    let sent = tree(host(&place.into));
    assert_eq!(sent, tree(&place.from));
    assert_eq!(sent.len(), 24 * 6 + 4);
}

#[tokio::test]
async fn empty_directories_modes_and_sizes_arrive() {
    let place = place();
    std::fs::create_dir_all(place.from.join("a/b/c")).unwrap();
    std::fs::create_dir_all(place.from.join("only/links")).unwrap();
    symlink("nowhere", place.from.join("only/links/dangling")).unwrap();
    for (name, mode, size) in [
        ("plain", 0o644, 0),
        ("run", 0o755, 10),
        ("secret", 0o600, 65_536),
        ("suid", 0o4755, 65_537),
        ("big", 0o444, 3 << 20),
    ] {
        place.file(name.as_bytes(), mode, &vec![b'x'; size]);
    }
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let options = UploadOptions::default().with_progress(move |p| tell.lock().unwrap().push(p));
    let report = place.send(&HostSandbox::new(), options).await.unwrap();
    let mut want = tree(&place.from);
    want.get_mut(&b"suid"[..]).unwrap().1 = 0o755;
    assert_eq!(tree(host(&place.into)), want);
    assert_eq!((report.files, report.directories, report.links), (5, 6, 1));
    assert_eq!(report.bytes, 10 + 65_536 + 65_537 + (3 << 20));
    let told = std::mem::take(&mut *told.lock().unwrap());
    let last = told.last().unwrap();
    assert_eq!((last.files, last.bytes), (report.files, report.bytes));
    assert!(told.windows(2).all(|w| w[0].bytes <= w[1].bytes && w[0].files <= w[1].files) && told.len() > 8);
    // Nothing at all is still a directory.
    let empty = self::place();
    empty.send(&HostSandbox::new(), UploadOptions::default()).await.unwrap();
    assert!(host(&empty.into).is_dir());
}

#[tokio::test]
async fn what_cannot_be_sent_is_left_out_and_named() {
    let place = place();
    place.file(b"d/kept", 0o644, b"kept");
    symlink("/etc/passwd", place.from.join("absolute")).unwrap();
    symlink("../../etc", place.from.join("d/leaves")).unwrap();
    symlink("d/../..", place.from.join("unclear")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(place.from.join("fifo")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(place.from.join("socket")).unwrap();
    let report = place.send(&HostSandbox::new(), UploadOptions::default()).await.unwrap();
    let mut named: Vec<_> =
        report.left_out.iter().map(|r| (String::from_utf8_lossy(&r.name).into_owned(), r.rule)).collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    let want = [
        ("absolute", Rule::LinkAbsolute),
        ("d/leaves", Rule::LinkLeaves),
        ("fifo", Rule::Fifo),
        ("socket", Rule::Socket),
        ("unclear", Rule::LinkUnclear),
    ];
    assert_eq!(named, want.map(|(name, rule)| (name.to_owned(), rule)));
    assert_eq!(report.left_out_total, 5);
    assert_eq!(tree(host(&place.into)).len(), 2);
}

#[tokio::test]
async fn the_filter_decides_and_is_asked_before_a_directory_is_read() {
    let place = place();
    place.file(b"target/debug/huge", 0o644, b"x");
    place.file(b"src/main.rs", 0o644, b"x");
    place.file(b"src/main.o", 0o644, b"object");
    symlink("src", place.from.join("link")).unwrap();
    let options = UploadOptions::default().with_filter(|item| {
        assert!(!item.path.starts_with("target/debug"));
        match item.kind {
            CandidateKind::Directory => item.path != Path::new("target"),
            CandidateKind::File => item.size == 1,
            _ => false,
        }
    });
    let report = place.send(&HostSandbox::new(), options).await.unwrap();
    assert_eq!((report.files, report.filtered), (1, 3));
    assert_eq!(tree(host(&place.into)).into_keys().collect::<Vec<_>>(), [b"src".to_vec(), b"src/main.rs".to_vec()]);
}

#[tokio::test]
async fn many_things_go_in_batches_that_fit() {
    let place = place();
    for n in 0..2500 {
        place.file(format!("files/{n}").as_bytes(), 0o644, b"x");
    }
    for n in 0..600 {
        std::fs::create_dir_all(place.from.join(format!("empty/{}{n}", "d".repeat(200)))).unwrap();
    }
    std::fs::create_dir(place.from.join("links")).unwrap();
    for n in 0..200 {
        symlink(format!("{}/{n}", "t/".repeat(600)), place.from.join(format!("links/{n}"))).unwrap();
    }
    let sandbox = HostSandbox::new();
    let report = place.send(&sandbox, UploadOptions::default()).await.unwrap();
    assert_eq!((report.files, report.directories, report.links), (2500, 604, 200));
    assert_eq!(tree(host(&place.into)), tree(&place.from));
    assert!(sandbox.batches.lock().unwrap().iter().all(|n| *n <= 2048));
    let commands = sandbox.commands.lock().unwrap();
    assert!(commands.len() < 40 && commands.iter().all(|bytes| *bytes < 80 << 10), "{commands:?}");
}

#[tokio::test]
async fn the_first_failure_ends_it_and_names_the_path() {
    let place = place();
    for n in 0..50 {
        place.file(format!("{n}").as_bytes(), 0o644, b"x");
    }
    for (at, effect) in [(0, Effect::None), (17, Effect::Partial)] {
        let mut sandbox = HostSandbox::new();
        sandbox.fail_at = Some(at);
        let error = place.send(&sandbox, UploadOptions::default()).await.unwrap_err();
        assert_eq!((error.kind(), error.effect(), error.member()), (ErrorKind::NotWritable, effect, Some(at)));
        assert!(error.path().unwrap().starts_with(&place.into));
        assert!(!host(error.path().unwrap()).exists());
        assert_eq!(sandbox.batches.lock().unwrap()[..], [at]);
    }
    // A command's word on which path failed is believed only as far as there is such a path.
    for links in [1, 2] {
        let place = self::place();
        place.file(b"f", 0o644, b"x");
        for n in 0..links {
            symlink("f", place.from.join(format!("l{n}"))).unwrap();
        }
        let mut sandbox = HostSandbox::new();
        sandbox.deny_links = true;
        let error = place.send(&sandbox, UploadOptions::default()).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::NotWritable, Effect::Partial));
        assert_eq!(error.path().is_some(), links == 2);
        assert!(error.reason().unwrap().ends_with("Read-only \\u{1b}[1m file system"), "{error}");
    }
    // A directory where a link must go.
    let place = self::place();
    symlink("x", place.from.join("a")).unwrap();
    symlink("x", place.from.join("b")).unwrap();
    std::fs::create_dir_all(host(&place.into).join("b")).unwrap();
    let error = place.send(&HostSandbox::new(), UploadOptions::default()).await.unwrap_err();
    assert_eq!(error.path().unwrap(), &place.into.join("b").unwrap(), "{error}");
    // A file where a directory must go.
    let place = self::place();
    std::fs::create_dir(place.from.join("d")).unwrap();
    std::fs::create_dir(host(&place.into)).unwrap();
    std::fs::write(host(&place.into).join("d"), "file").unwrap();
    let error = place.send(&HostSandbox::new(), UploadOptions::default()).await.unwrap_err();
    assert_eq!(error.path().unwrap(), &place.into.join("d").unwrap(), "{error}");
}

#[tokio::test]
async fn bounds_and_a_missing_folder_end_it() {
    let place = place();
    place.file(b"d/e/f", 0o644, &[7; 600]);
    place.file(b"g", 0o644, &[7; 400]);
    let exact =
        Limits::default().with_entries(4).with_bytes(1000).with_file_bytes(600).with_name_bytes(5).with_depth(2);
    place.send(&HostSandbox::new(), UploadOptions::default().with_limits(exact)).await.unwrap();
    for (limits, bound) in [
        (exact.with_entries(3), Bound::Entries),
        (exact.with_bytes(999), Bound::Bytes),
        (exact.with_file_bytes(599), Bound::FileBytes),
        (exact.with_name_bytes(4), Bound::NameBytes),
        (exact.with_depth(1), Bound::Depth),
    ] {
        let error = place.send(&HostSandbox::new(), UploadOptions::default().with_limits(limits)).await.unwrap_err();
        assert_eq!(Exceeded::of(&error).unwrap().bound, bound, "{error}");
    }
    let missing = place.dir.path().join("missing");
    let error = HostSandbox::new().upload_dir(&missing, &place.into, UploadOptions::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::HostFile, Effect::None));
    assert!(error.to_string().contains("missing"), "{error}");
}

#[tokio::test]
async fn a_limit_that_no_command_takes_is_refused_before_anything_is_sent() {
    let place = place();
    place.file(b"d/f", 0o644, b"x");
    std::fs::create_dir(place.from.join("empty")).unwrap();
    let most = sandbox::ExecRequest::MAX_LIMIT;
    for limit in [Duration::ZERO, most + Duration::from_nanos(1), Duration::MAX] {
        let options = UploadOptions::default().with_command_limit(limit);
        let error = place.send(&HostSandbox::new(), options).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::InvalidRequest, Effect::None), "{error}");
        let rule = format!("command_limit {limit:?}: more than 0 and at most {most:?}");
        assert!(error.to_string().contains(&rule), "{error}");
        assert!(!host(&place.into).exists(), "{limit:?}");
    }
    place.send(&HostSandbox::new(), UploadOptions::default().with_command_limit(most)).await.unwrap();
}

/// What the system's own archiver makes of a folder comes back as it was.
#[tokio::test]
async fn a_folder_goes_in_and_comes_out_the_same() {
    let place = place();
    for name in ODD {
        place.file(&[b"files/".as_slice(), name].concat(), 0o644, name);
        std::fs::create_dir_all(place.from.join("empty").join(path(name))).unwrap();
    }
    for depth in [1, 20] {
        place.file(format!("{}deep", "long-directory-name/".repeat(depth)).as_bytes(), 0o755, &[7; 100_000]);
    }
    symlink("files", place.from.join("link")).unwrap();
    symlink(format!("../{}deep", "long-directory-name/".repeat(15)), place.from.join("files/far")).unwrap();
    place.send(&HostSandbox::new(), UploadOptions::default()).await.unwrap();
    let archive = std::process::Command::new("tar")
        .args(["-C", place.dir.path().to_str().unwrap(), "-cf", "-", "into"])
        .output()
        .unwrap();
    assert!(archive.status.success());
    let provider = FakeProvider(move || stream(&archive.stdout, 8192, None));
    let session = session();
    let out = place.dir.path().join("out");
    let told = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&told);
    let options = DownloadOptions::default().with_links().with_progress(move |p| *tell.lock().unwrap() = Some(p));
    let report = provider.download(&session, &place.into, &out, options).await.unwrap();
    assert_eq!(tree(&out), tree(&place.from));
    let told = told.lock().unwrap().unwrap();
    assert_eq!((told.files, told.bytes), (report.files, report.bytes));
}
