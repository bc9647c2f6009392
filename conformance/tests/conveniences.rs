//! The conveniences over every provider and sandbox, on a real one.
//!
//! `cfg`: it runs on the embedded backend, which exists on Linux alone.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use sandbox::{ErrorKind, Provider, ProviderExt, SandboxExt, SandboxPath, SessionId, Spec};
use sandbox_local::{LocalConfig, LocalProvider};

#[tokio::test(flavor = "multi_thread")]
async fn each_is_the_call_that_it_stands_for() {
    let dir = tempfile::tempdir().unwrap();
    let config = LocalConfig::default().with_state_dir(dir.path().join("state"));
    let provider = LocalProvider::new(config).unwrap().checked();
    let session = SessionId::generate();
    let sandbox = provider.provision(&Spec::new(session.clone(), "host")).await.unwrap();
    let path = |name: &str| SandboxPath::new(format!("/workspace/{name}")).unwrap();

    let said = sandbox.exec_str("echo \"$0 $((6 * 7))\"; echo err >&2; exit 3").await.unwrap();
    assert_eq!((said.stdout.bytes.as_ref(), said.stderr.bytes.as_ref()), (&b"/bin/bash 42\n"[..], &b"err\n"[..]));
    assert_eq!((said.exit_code, said.timed_out), (3, false));

    sandbox.write_bytes(&path("deep/file"), "t\u{e9}xt").await.unwrap();
    sandbox.write_bytes(&path("none"), "").await.unwrap();
    sandbox.write_bytes(&path("binary"), &b"\xff\0"[..]).await.unwrap();
    assert_eq!(
        sandbox.exec_str("cat deep/file; stat -c %s none binary").await.unwrap().stdout.bytes,
        "t\u{e9}xt0\n2\n"
    );

    assert_eq!(sandbox.read_bytes(&path("deep/file"), 5).await.unwrap(), "t\u{e9}xt");
    assert_eq!(sandbox.read_bytes(&path("binary"), 2).await.unwrap(), &b"\xff\0"[..]);
    assert_eq!(sandbox.read_bytes(&path("none"), 0).await.unwrap(), "");
    assert_eq!(sandbox.read_to_string(&path("deep/file"), 5).await.unwrap(), "t\u{e9}xt");
    for (name, limit, kind) in [
        ("deep/file", 4, ErrorKind::FileTooLarge),
        ("binary", 1, ErrorKind::FileTooLarge),
        ("missing", 9, ErrorKind::FileNotFound),
        ("deep", 9, ErrorKind::IsDirectory),
    ] {
        let errors = [
            sandbox.read_bytes(&path(name), limit).await.unwrap_err(),
            sandbox.read_to_string(&path(name), limit).await.unwrap_err(),
        ];
        assert!(errors.iter().all(|e| e.kind() == kind && e.path() == Some(&path(name))), "{name}: {errors:?}");
    }
    let error = sandbox.read_to_string(&path("binary"), 2).await.unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::NotText, Some(&path("binary"))));
    provider.reap(&session).await.unwrap();
}
