//! A folder goes into a real sandbox, is worked on there, and comes out again the same.
//!
//! `cfg`: it runs on the embedded backend, which exists on Linux alone.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use sandbox::{ErrorKind, Provider, Sandbox, SandboxExt, SandboxPath, SessionId, Spec};
use sandbox_local::{LocalConfig, LocalProvider};
use sandbox_transfer::{
    DownloadOptions, OnRefusal, ProviderTransferExt, Refused, Rule, SandboxTransferExt, UploadOptions,
};

const ODD: &[&[u8]] = &[
    b" a",
    b"a ",
    b"-rf",
    b"--",
    b"a b",
    b"a\nb",
    b"a\tb",
    b"*",
    b"[0]",
    b"a:b",
    b"\\x20",
    b"$(id)",
    b"`id`",
    b"'\"",
    b"%2e%2e",
    "\u{e9}".as_bytes(),
    "e\u{301}".as_bytes(),
    b"\xff\xfe",
    &[b'n'; 255],
];

struct Place {
    dir: tempfile::TempDir,
    provider: LocalProvider,
    session: SessionId,
    sandbox: Arc<dyn Sandbox>,
}

impl Place {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = LocalConfig::default().with_state_dir(dir.path().join("state"));
        let provider = LocalProvider::new(config).unwrap();
        let session = SessionId::generate();
        let sandbox = provider.provision(&Spec::new(session.clone(), "host")).await.unwrap();
        std::fs::create_dir(dir.path().join("from")).unwrap();
        Self { dir, provider, session, sandbox }
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    async fn end(self) {
        self.provider.reap(&self.session).await.unwrap();
    }
}

/// Kind, permission bits and content of everything below `top`, links not followed.
fn tree(top: &Path) -> BTreeMap<Vec<u8>, (char, u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut open = vec![top.to_owned()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let node = if meta.is_symlink() {
                ('l', 0, std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
            } else if meta.is_dir() {
                open.push(path.clone());
                ('d', meta.mode() & 0o7777, Vec::new())
            } else {
                ('f', meta.mode() & 0o7777, std::fs::read(&path).unwrap())
            };
            all.insert(path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec(), node);
        }
    }
    all
}

fn file(at: &Path, mode: u32, content: &[u8]) {
    std::fs::create_dir_all(at.parent().unwrap()).unwrap();
    std::fs::write(at, content).unwrap();
    std::fs::set_permissions(at, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_goes_in_and_comes_out_the_same() {
    let place = Place::new().await;
    let from = place.at("from");
    for name in ODD {
        let name = Path::new(OsStr::from_bytes(name));
        file(&from.join("files").join(name), 0o644, name.as_os_str().as_bytes());
        std::fs::create_dir_all(from.join("empty").join(name)).unwrap();
        std::fs::create_dir_all(from.join("links")).unwrap();
        symlink(Path::new("../files").join(name), from.join("links").join(name)).unwrap();
    }
    file(&from.join("nothing"), 0o644, b"");
    file(&from.join("run"), 0o755, b"#!/bin/sh\necho ran\n");
    file(&from.join("secret"), 0o600, b"secret");
    file(&from.join("big"), 0o644, &b"0123456789abcdef".repeat(1 << 18));
    file(&from.join("deep/er/".repeat(12)).join("file"), 0o644, b"deep");
    symlink("not/there", from.join("dangling")).unwrap();
    let into = SandboxPath::new("/workspace/in").unwrap();
    let report = place.sandbox.upload_dir(&from, &into, UploadOptions::default()).await.unwrap();
    assert_eq!(report.left_out, []);
    let ran = place.sandbox.exec_str("in/run && readlink in/dangling && cat 'in/links/$(id)'").await.unwrap();
    assert_eq!(ran.stdout.bytes, "ran\nnot/there\n$(id)", "{ran:?}");
    let options = DownloadOptions::default().with_links();
    let back = place.provider.download(&place.session, &into, place.at("out"), options).await.unwrap();
    assert_eq!(tree(&place.at("out")), tree(&from));
    assert_eq!(
        (back.files, back.links, back.directories, back.bytes),
        (report.files, report.links, report.directories, report.bytes)
    );
    // Again onto what is there: the same.
    place.sandbox.upload_dir(&from, &into, UploadOptions::default()).await.unwrap();
    let run = SandboxPath::new("/workspace/in/run").unwrap();
    place.provider.download(&place.session, &run, place.at("one"), DownloadOptions::default()).await.unwrap();
    assert_eq!(std::fs::read(place.at("one")).unwrap(), b"#!/bin/sh\necho ran\n");
    assert_eq!(place.at("one").metadata().unwrap().mode() & 0o777, 0o755);
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tenant_plants_does_not_land() {
    let place = Place::new().await;
    let planted = "mkdir out && cd out && echo fine > fine && ln -s /etc/passwd absolute && ln -s ../../../../etc up \
        && ln fine hard && mkfifo fifo && mkdir d && ln -s d/../../.. unclear && chmod 4755 fine";
    assert!(place.sandbox.exec_str(planted).await.unwrap().success());
    let root = SandboxPath::new("/workspace/out").unwrap();
    let target = place.at("target");
    let download = |options| place.provider.download(&place.session, &root, &target, options);
    let error = download(DownloadOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ArchiveRefused, "{error}");
    assert!(Refused::of(&error).is_some() && !target.exists());
    let report = download(DownloadOptions::default().with_links().on_refusal(OnRefusal::LeaveOut)).await.unwrap();
    let mut rules: Vec<_> = report.left_out.iter().map(|r| format!("{:?}", r.rule)).collect();
    rules.sort();
    assert_eq!(rules, ["Fifo", "HardLink", "LinkAbsolute", "LinkLeaves", "LinkUnclear"].map(str::to_owned));
    assert!(report.left_out.iter().any(|r| r.rule == Rule::Fifo && r.name == b"out/fifo"));
    assert_eq!(tree(&target).len(), 2, "{:?}", tree(&target));
    assert!(tree(&target).values().all(|node| node.1 & 0o7000 == 0));
    let missing = SandboxPath::new("/workspace/missing").unwrap();
    let error = place.provider.download(&place.session, &missing, place.at("m"), DownloadOptions::default()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::FileNotFound);
    place.end().await;
}
