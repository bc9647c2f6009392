//! The wrapper that every backend is built on: what it refuses and what it adds.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::atomic::Ordering;

use common::{Bare, everything, path, spec};
use sandbox::*;

#[tokio::test]
async fn what_is_not_claimed_never_reaches_the_backend() {
    type Change = fn(&mut Spec);
    let specs: [(&str, Change); 14] = [
        ("unrestricted", |_| ()),
        ("limited", |s| s.networking = Networking::limited([])),
        ("none", |s| s.networking = Networking::None),
        ("pids", |s| s.hardening.pids = Limit::Required(7)),
        ("cpu_millis", |s| s.hardening.cpu_millis = Limit::Required(7)),
        ("memory_bytes", |s| s.hardening.memory_bytes = Limit::Required(7)),
        ("disk_bytes", |s| s.hardening.disk_bytes = Limit::Required(7)),
        ("cap_drop", |s| s.hardening.cap_drop = CapDrop::all()),
        ("read_only_root", |s| s.hardening.read_only_root = true),
        ("gate", |s| s.gate = Some(GateSpec::new("gate:1", "https://control.invalid"))),
        ("run_as_user", |s| s.hardening.run_as_user = Some(7)),
        ("run_as_group", |s| s.hardening.run_as_group = Some(7)),
        ("run_as_non_root", |s| s.hardening.run_as_non_root = true),
        ("fs_group", |s| s.hardening.fs_group = Some(7)),
    ];
    for (name, change) in specs {
        let mut claims = Capabilities::default();
        claims.networking_unrestricted = name != "unrestricted";
        let bare = Bare { claims, ..Bare::default() };
        let error = bare.clone().checked().provision(&spec(change)).await.map(|_| ()).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(bare.asked.load(Ordering::Relaxed), 0, "{name}");
        Bare { claims: everything(), ..Bare::default() }.checked().provision(&spec(change)).await.unwrap();
    }
    let mut claims = Capabilities::default();
    claims.networking_unrestricted = true;
    let bare = Bare { claims, ..Bare::default() };
    let preferred = spec(|s| s.hardening.pids = Limit::Preferred(7));
    let sandbox = bare.clone().checked().provision(&preferred).await.unwrap();
    let asked = bare.asked.load(Ordering::Relaxed);
    let refused = [
        sandbox.spawn(SpawnRequest::shell("true")).await.map(drop).unwrap_err(),
        sandbox.read(&path(), 1).await.map(drop).unwrap_err(),
        sandbox.write(FileWrite::bytes(path(), "")).await.unwrap_err(),
        sandbox.write_many(FileBatch::new([])).await.unwrap_err(),
        bare.clone().checked().export(sandbox.id(), &path()).await.map(drop).unwrap_err(),
    ];
    assert!(refused.iter().all(|e| e.kind() == ErrorKind::Unsupported), "{refused:?}");
    assert_eq!(bare.asked.load(Ordering::Relaxed), asked);
}

#[tokio::test]
async fn what_is_illegal_never_reaches_the_backend() {
    let bare = Bare { claims: everything(), ..Bare::default() };
    let provider = bare.clone().checked();
    let error = provider.provision(&spec(|s| s.image.clear())).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::InvalidSpec, Some("provision")));
    let sandbox = provider.provision(&spec(|_| ())).await.unwrap();
    let asked = bare.asked.load(Ordering::Relaxed);
    let zero = std::time::Duration::ZERO;
    let refused = [
        sandbox.exec(ExecRequest::shell("true").with_limit(zero)).await.map(drop).unwrap_err(),
        sandbox.spawn(SpawnRequest::shell("true").with_limit(zero)).await.map(drop).unwrap_err(),
        sandbox.write(FileWrite::bytes(path(), "").with_mode(0o10000)).await.unwrap_err(),
    ];
    assert!(refused.iter().all(|e| e.kind() == ErrorKind::InvalidRequest), "{refused:?}");
    assert_eq!(bare.asked.load(Ordering::Relaxed), asked);
}

#[tokio::test]
async fn every_error_names_its_operation_and_session() {
    let provider = Bare { claims: everything(), ..Bare::default() }.checked();
    let sandbox = provider.provision(&spec(|_| ())).await.unwrap();
    let id = sandbox.id().clone();
    for (operation, error) in [
        ("attach", provider.attach(&id).await.map(drop).unwrap_err()),
        ("reap", provider.reap(&id).await.unwrap_err()),
        ("export", provider.export(&id, &path()).await.map(drop).unwrap_err()),
        ("exec", sandbox.exec(ExecRequest::shell("true")).await.map(drop).unwrap_err()),
        ("spawn", sandbox.spawn(SpawnRequest::shell("true")).await.map(drop).unwrap_err()),
        ("read", sandbox.read(&path(), 1).await.map(drop).unwrap_err()),
        ("write", sandbox.write(FileWrite::bytes(path(), "")).await.unwrap_err()),
        ("write_many", sandbox.write_many(FileBatch::new([])).await.unwrap_err()),
        ("destroy", sandbox.destroy().await.unwrap_err()),
    ] {
        assert_eq!((error.operation(), error.session()), (Some(operation), Some(&id)));
    }
}

#[tokio::test]
async fn errors_that_come_later_name_them_too() {
    let provider = Bare { claims: everything(), late: true, ..Bare::default() }.checked();
    let sandbox = provider.provision(&spec(|_| ())).await.unwrap();
    let id = sandbox.id().clone();
    let mut process = sandbox.spawn(SpawnRequest::shell("true")).await.unwrap();
    assert_eq!(process.stdout.next().await.unwrap().unwrap(), "x");
    assert_eq!(process.stdout.delivered(), 1);
    for (operation, kind, error) in [
        ("wait", ErrorKind::Lost, process.wait().await.unwrap_err()),
        ("signal", ErrorKind::Lost, process.signal(Signal::Kill).await.unwrap_err()),
        ("signal", ErrorKind::Lost, process.kill().await.unwrap_err()),
        ("spawn", ErrorKind::ShortTransfer, process.stdout.next().await.unwrap().unwrap_err()),
        ("spawn", ErrorKind::ShortTransfer, process.stderr.finish().await.unwrap_err()),
        ("read", ErrorKind::ShortTransfer, sandbox.read(&path(), 1).await.unwrap().finish().await.unwrap_err()),
        ("export", ErrorKind::ShortTransfer, provider.export(&id, &path()).await.unwrap().finish().await.unwrap_err()),
    ] {
        assert_eq!((error.operation(), error.session(), error.kind()), (Some(operation), Some(&id), kind));
    }
    let error = provider.owned().await.unwrap().next().await.unwrap().unwrap_err();
    assert_eq!((error.operation(), error.kind()), (Some("list the sandboxes"), ErrorKind::Forbidden));
}

/// What is in a file is the tenant's choice, and no bug of the caller's.
#[tokio::test]
async fn a_file_that_is_no_text_is_told_as_that() {
    let provider = Bare { claims: everything(), late: true, ..Bare::default() }.checked();
    let sandbox = provider.provision(&spec(|_| ())).await.unwrap();
    for (name, kind) in [("/binary", Some(ErrorKind::NotText)), ("/text", None)] {
        let at = SandboxPath::new(name).unwrap();
        let read = sandbox.read_to_string(&at, 100).await;
        assert_eq!(read.as_ref().err().map(Error::kind), kind);
        match read {
            Ok(text) => assert_eq!(text, "t\u{e9}xt"),
            Err(error) => {
                let told = (error.operation(), error.session(), error.path());
                assert_eq!(told, (Some("read"), Some(sandbox.id()), Some(&at)));
            }
        }
    }
}
