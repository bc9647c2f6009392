//! What a provider with its books in a directory keeps to, whoever makes its sandboxes.
//!
//! Nothing is contained here: a sandbox is a plain `sleep` of this machine and the shells beside it, so only harmless commands are run.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use sandbox::{
    Capabilities, Death, Env, Error, ErrorKind, ExecRequest, Owned, OwnedState, Provider, Sandbox, SandboxPath,
    SessionId, Spec,
};
use sandbox_guest::{Carrier, CarrierStream, Closed, DirProvider, FarEnds, Guest, GuestConfig, Maker};
use tokio::process::Command;

/// Makes a file `alive`, which is the sandbox, and is asked to fail or to hang.
#[derive(Debug, Clone, Default)]
struct Plain {
    fails: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Shells(PathBuf);

#[sandbox::async_trait]
impl Carrier for Shells {
    async fn open(&self) -> Result<CarrierStream, Error> {
        if !self.0.exists() {
            return Err(Error::new(ErrorKind::NotFound));
        }
        let mut bash = Command::new("/bin/bash");
        bash.args(["--norc", "--noprofile", "-p"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = bash.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let stderr = child.stderr.take().unwrap();
        let closed = async move { Closed::new(format!("{:?}", child.wait().await)) };
        Ok(CarrierStream::new(stdin, stdout, stderr, closed))
    }

    fn far_ends(&self) -> FarEnds {
        FarEnds::Pipes
    }

    async fn cause_of_death(&self) -> Option<Death> {
        None
    }
}

#[sandbox::async_trait]
impl Maker for Plain {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    async fn make(&self, dir: &Path, _: &Spec) -> Result<(), Error> {
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "the directory is empty");
        std::fs::write(dir.join("alive"), "").unwrap();
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.fails.load(Ordering::Relaxed) { Err(Error::new(ErrorKind::ImagePull)) } else { Ok(()) }
    }

    fn enter(&self, dir: &Path, spec: &Spec) -> Option<Guest> {
        let alive = Some(dir.join("alive")).filter(|alive| alive.exists())?;
        let config = GuestConfig::new(SandboxPath::new("/tmp").unwrap()).with_env(spec.env.clone());
        Some(Guest::new(Arc::new(Shells(alive)), config))
    }

    async fn end(&self, dir: &Path) -> Result<(), Error> {
        let _ = std::fs::remove_file(dir.join("alive"));
        Ok(())
    }
}

/// A provider, and another as another process would make it.
fn bed() -> (tempfile::TempDir, Plain, DirProvider<Plain>, DirProvider<Plain>) {
    let (dir, plain) = (tempfile::tempdir().unwrap(), Plain::default());
    // It makes the directory itself.
    let books = dir.path().join("books");
    let (one, two) = (DirProvider::new(&books, plain.clone()), DirProvider::new(&books, plain.clone()));
    (dir, plain, one, two)
}

fn spec(whose: &str) -> Spec {
    let env = Env::new().with("WHOSE", whose.to_owned()).unwrap();
    Spec::new(SessionId::new("s").unwrap(), "host").with_env(env)
}

async fn owned(provider: &DirProvider<Plain>) -> Vec<OwnedState> {
    let all: Vec<Owned> = provider.owned().await.unwrap().map(Result::unwrap).collect().await;
    all.into_iter().map(|owned| owned.state).collect()
}

async fn whose(sandbox: &Arc<dyn Sandbox>) -> String {
    let result = sandbox.exec(ExecRequest::shell("echo -n $WHOSE").with_limit(Duration::from_secs(20))).await.unwrap();
    result.stdout.to_string_lossy().into_owned()
}

fn kind<T>(result: Result<T, Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[tokio::test]
async fn a_session_is_made_once_and_found_from_everywhere() {
    let (dir, _, one, two) = bed();
    let session = spec("").session;
    assert_eq!(owned(&one).await, []);
    one.reap(&session).await.unwrap();
    assert_eq!(kind(one.attach(&session).await), Some(ErrorKind::NotFound));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "what only looks makes nothing");
    let wanted = spec("first");
    let (first, second) = tokio::join!(one.provision(&wanted), two.provision(&wanted));
    first.unwrap();
    for sandbox in [second.unwrap(), two.provision(&spec("later")).await.unwrap(), two.attach(&session).await.unwrap()]
    {
        assert_eq!((whose(&sandbox).await.as_str(), sandbox.recreated()), ("first", None));
    }
    let other = spec("first").with_workdir(SandboxPath::new("/elsewhere").unwrap());
    let error = one.provision(&other).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SpecMismatch);
    assert!(error.reason().unwrap().contains("/elsewhere"));
    assert_eq!(owned(&two).await, [OwnedState::Running]);
    // Variables can be secrets.
    for (path, mode) in [("books", 0o700), ("books/s", 0o700), ("books/s/record.json", 0o600)] {
        let found = std::fs::metadata(dir.path().join(path)).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{path}");
    }
    two.reap(&session).await.unwrap();
    assert_eq!(std::fs::read_dir(dir.path().join("books")).unwrap().count(), 0, "locks included");
}

#[tokio::test]
async fn a_dead_one_is_replaced_and_every_handle_says_so() {
    let (dir, plain, one, two) = bed();
    let old = one.provision(&spec("old")).await.unwrap();
    std::fs::remove_file(dir.path().join("books/s/place/alive")).unwrap();
    assert_eq!(owned(&one).await, [OwnedState::Ended]);
    let error = one.attach(old.id()).await.unwrap_err();
    assert_eq!((error.kind(), error.death()), (ErrorKind::NotFound, Some(Death::Ended)));
    // Nothing that fails or is dropped on the way makes that forgotten.
    plain.fails.store(true, Ordering::Relaxed);
    assert_eq!(kind(one.provision(&spec("new")).await), Some(ErrorKind::ImagePull));
    plain.hangs.store(true, Ordering::Relaxed);
    assert!(tokio::time::timeout(Duration::from_millis(50), one.provision(&spec("new"))).await.is_err());
    plain.fails.store(false, Ordering::Relaxed);
    plain.hangs.store(false, Ordering::Relaxed);
    let new = one.provision(&spec("new")).await.unwrap();
    assert_eq!(whose(&new).await, "new");
    for sandbox in [new, two.attach(old.id()).await.unwrap()] {
        assert_eq!(sandbox.recreated().map(|recreated| recreated.reason), Some(Death::Ended));
    }
    // The old handle is not the new one's.
    old.destroy().await.unwrap();
    let new = two.attach(old.id()).await.unwrap();
    assert_eq!(whose(&new).await, "new");
    new.destroy().await.unwrap();
    new.destroy().await.unwrap();
    assert_eq!(owned(&one).await, []);
    assert_eq!(one.provision(&spec("third")).await.unwrap().recreated(), None);
}

#[tokio::test]
async fn what_is_half_made_is_no_sandbox() {
    let (dir, plain, one, two) = bed();
    let session = spec("").session;
    plain.hangs.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        assert!(tokio::time::timeout(Duration::from_millis(50), one.provision(&spec("half"))).await.is_err());
        assert_eq!(owned(&two).await, [OwnedState::Starting]);
        assert_eq!(kind(two.attach(&session).await), Some(ErrorKind::NotFound));
    }
    two.reap(&session).await.unwrap();
    assert_eq!(owned(&one).await, []);
    plain.hangs.store(false, Ordering::Relaxed);
    plain.fails.store(true, Ordering::Relaxed);
    assert_eq!(kind(one.provision(&spec("none")).await), Some(ErrorKind::ImagePull));
    assert_eq!(std::fs::read_dir(dir.path().join("books")).unwrap().count(), 0, "what was begun is removed");
    // A record of another version of the program is left alone, and reaped on request.
    plain.fails.store(false, Ordering::Relaxed);
    let first = one.provision(&spec("first")).await.unwrap();
    std::fs::write(dir.path().join("books/s/record.json"), r#"{"version":7}"#).unwrap();
    assert_eq!(owned(&one).await, [OwnedState::Unknown]);
    assert_eq!(kind(one.provision(&spec("second")).await), Some(ErrorKind::Unavailable));
    assert_eq!(kind(two.attach(&session).await), Some(ErrorKind::Unavailable));
    assert_eq!(kind(first.destroy().await), Some(ErrorKind::Unavailable));
    assert_eq!(whose(&first).await, "first");
    two.reap(&session).await.unwrap();
    assert_eq!(whose(&one.provision(&spec("second")).await.unwrap()).await, "second");
}

#[tokio::test]
async fn a_change_waits_for_another_and_only_so_long() {
    let (_dir, plain, one, two) = bed();
    let two = two.with_patience(Duration::from_millis(100));
    plain.hangs.store(true, Ordering::Relaxed);
    let long = spec("long");
    let making = one.provision(&long);
    let session = long.session.clone();
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(kind(two.provision(&spec("other")).await), Some(ErrorKind::Busy));
        assert_eq!(kind(two.reap(&session).await), Some(ErrorKind::Busy));
        plain.hangs.store(false, Ordering::Relaxed);
    };
    tokio::select! { _ = making => unreachable!("it hangs"), () = meanwhile => {} }
    assert_eq!(whose(&two.provision(&spec("other")).await.unwrap()).await, "other");
}
