//! A small honest provider for the tests of the suite itself: namespaces by command line, files through `/proc/PID/root`.
//!
//! It contains nobody and is no backend: it keeps the contract of whoever is honest, so that a mutant breaks one rule and nothing
//! else does.

#![allow(clippy::unwrap_used)]

mod files;
mod gate;
mod run;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use rustix::process::{Pid, Signal};
use sandbox::{
    ByteStream, Capabilities, Death, Effect, Error, ErrorKind, ExecRequest, ExecResult, ExportStream, FileBatch,
    FileWrite, Networking, Owned, OwnedState, OwnedStream, Process, Provider, ProviderExt, ReadStream, Recreated,
    Sandbox, SandboxPath, SessionId, SpawnRequest, Spec,
};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

#[allow(unused_imports, reason = "not every test has a gate that errs")]
pub(crate) use gate::{Flaw, SECRET};

/// Where sandboxes live: what a machine is to a real backend.
#[derive(Debug)]
pub(crate) struct World {
    base: tempfile::TempDir,
    locks: Mutex<HashMap<SessionId, Arc<tokio::sync::Mutex<()>>>>,
    gate: gate::Gate,
}

impl World {
    pub(crate) fn new() -> Arc<Self> {
        Self::with_gate(Flaw::None)
    }

    /// With a gate that may err.
    pub(crate) fn with_gate(flaw: Flaw) -> Arc<Self> {
        let gate = gate::Gate::start(flaw);
        Arc::new(Self { base: tempfile::tempdir().unwrap(), locks: Mutex::default(), gate })
    }

    /// Its gate, as the suite tries it.
    #[allow(dead_code, reason = "not every test tries it")]
    pub(crate) fn gate(&self) -> conformance::sandbox::GateFixture {
        self.gate.fixture()
    }

    /// A provider as another process would make it.
    pub(crate) fn provider(self: &Arc<Self>) -> Arc<dyn Provider> {
        Arc::new(Plain(Arc::clone(self)).checked())
    }

    /// What there is of a session.
    #[allow(dead_code, reason = "not every test looks for leaks")]
    pub(crate) fn left(&self, session: &SessionId) -> Vec<String> {
        let dir = self.dir(session);
        dir.exists().then(|| format!("{} is there", dir.display())).into_iter().collect()
    }

    /// Kills the first process of a session's sandbox, which stays there, dead.
    #[allow(dead_code, reason = "not every test kills one")]
    pub(crate) fn kill(&self, session: &SessionId) -> Result<(), String> {
        let init = Init::read(&self.dir(session)).filter(Init::lives).and_then(|init| Pid::from_raw(init.pid));
        let init = init.ok_or_else(|| format!("{session} has no process"))?;
        rustix::process::kill_process(init, Signal::KILL).map_err(|e| e.to_string())
    }

    fn dir(&self, session: &SessionId) -> PathBuf {
        self.base.path().join(session.as_str())
    }

    fn lock(&self, session: &SessionId) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.locks.lock().unwrap().entry(session.clone()).or_default())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.base.path()).unwrap().flatten() {
            if let Some(init) = Init::read(&entry.path()).filter(Init::lives) {
                let _ = Pid::from_raw(init.pid).map(|pid| rustix::process::kill_process(pid, Signal::KILL));
            }
        }
    }
}

#[derive(Debug)]
struct Plain(Arc<World>);

const SETUP: &str = r#"
set -e; PATH=$PATH:/usr/sbin:/sbin
R=$1 W=$2
mount -t tmpfs -o mode=755 tmpfs "$R"
mkdir -p "$R"/{usr,etc,dev/shm,proc,tmp,mnt,run,old} "$R$W"
for d in tmp dev/shm; do chmod 1777 "$R/$d"; done
mount --bind /usr "$R/usr"
mount -o remount,bind,ro "$R/usr"
for l in bin sbin lib lib64; do [[ -L /$l ]] && cp -P "/$l" "$R/"; done
cp /etc/{passwd,group,ld.so.cache} "$R/etc/" 2>/dev/null || true
for f in /etc/hosts /dev/null /dev/zero /dev/full /dev/random /dev/urandom; do touch "$R$f"; mount --bind "$f" "$R$f"; done
ln -s /proc/self/fd "$R/dev/fd"
mount -t proc proc "$R/proc"
if [[ $3 == ro ]]; then
    for d in "$W" /tmp /mnt /run; do mount -t tmpfs -o mode=1777 tmpfs "$R$d"; done
fi
cd "$R"; pivot_root . old; umount -l /old; rmdir /old; cd /
[[ $3 == ro ]] && mount -o remount,bind,ro /
trap '' CHLD
echo ready
exec sleep infinity </dev/null >/dev/null 2>&1
"#;

/// The first process of a sandbox, told from any later one with its number.
#[derive(Debug, Clone, PartialEq)]
struct Init {
    pid: i32,
    started: String,
}

impl Init {
    /// The process `pid`, if it lives.
    fn of(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit(") ").next()?.split(' ');
        let alive = !matches!(fields.next()?, "Z" | "X");
        alive.then(|| Self { pid, started: fields.nth(18).unwrap_or_default().to_owned() })
    }

    fn read(dir: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(dir.join("init")).ok()?;
        let (pid, started) = text.split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, started: started.to_owned() })
    }

    fn lives(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    async fn end(&self) -> Result<(), Error> {
        for _ in 0..1000 {
            if !self.lives() {
                return Ok(());
            }
            let _ = Pid::from_raw(self.pid).map(|pid| rustix::process::kill_process(pid, Signal::KILL));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(Error::new(ErrorKind::DeadlineExceeded).with_effect(Effect::Unknown))
    }
}

/// Whether it has a network of its own, with nothing in it. With a gate it has none: this one contains nobody.
fn cut_off(spec: &Spec) -> bool {
    spec.networking != Networking::Unrestricted && spec.gate.is_none()
}

fn fault(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Other).caused_by(error)
}

impl Plain {
    fn handle(&self, spec: Spec, init: Init) -> Arc<dyn Sandbox> {
        let recreated = std::fs::read_to_string(self.0.dir(&spec.session).join("recreated")).ok();
        let recreated = recreated.map(|detail| Recreated::new(Death::Ended, detail));
        Arc::new(Place { world: Arc::clone(&self.0), spec, init, recreated })
    }

    /// The sandbox of `dir`, if it runs.
    fn running(&self, dir: &Path) -> Option<(Spec, Init)> {
        let init = Init::read(dir).filter(Init::lives)?;
        let spec = serde_json::from_slice(&std::fs::read(dir.join("spec")).ok()?).ok()?;
        Some((spec, init))
    }

    async fn make(&self, dir: &Path, spec: &Spec) -> Result<Init, Error> {
        std::fs::create_dir_all(dir.join("root")).map_err(fault)?;
        std::fs::write(dir.join("spec"), serde_json::to_vec(spec).unwrap()).map_err(fault)?;
        let workdir = String::from_utf8_lossy(spec.workdir.as_bytes()).into_owned();
        let mut command = Command::new("/usr/bin/unshare");
        command.args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]);
        if cut_off(spec) {
            command.arg("--net");
        }
        command.args(["bash", "-c", SETUP, "setup"]);
        let mut child = command
            .arg(dir.join("root"))
            .arg(workdir)
            .arg(if spec.hardening.read_only_root { "ro" } else { "rw" })
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(fault)?;
        let mut ready = [0; 6];
        let said = child.stdout.as_mut().unwrap().read_exact(&mut ready).await;
        said.map_err(|e| Error::new(ErrorKind::Unavailable).caused_by(e))?;
        let pid = run::child_of(child.id().unwrap() as i32).and_then(Init::of).unwrap();
        std::fs::write(dir.join("init"), format!("{} {}", pid.pid, pid.started)).map_err(fault)?;
        tokio::spawn(async move { child.wait().await });
        Ok(pid)
    }
}

#[async_trait]
impl Provider for Plain {
    fn capabilities(&self) -> Capabilities {
        let mut claims = Capabilities::default();
        (claims.files, claims.export, claims.spawn) = (true, true, true);
        (claims.cap_drop, claims.read_only_root, claims.gate) = (true, true, true);
        (claims.networking_unrestricted, claims.networking_limited, claims.networking_none) = (true, true, true);
        claims
    }

    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        let (lock, dir) = (self.0.lock(&spec.session), self.0.dir(&spec.session));
        let _held = lock.lock().await;
        if let Some((made, init)) = self.running(&dir) {
            if made.fingerprint() != spec.fingerprint() {
                return Err(Error::new(ErrorKind::SpecMismatch));
            }
            return Ok(self.handle(made, init));
        }
        let died = Init::read(&dir).is_some();
        let _ = std::fs::remove_dir_all(&dir);
        let init = self.make(&dir, spec).await?;
        if died {
            std::fs::write(dir.join("recreated"), "it was found dead").map_err(fault)?;
        }
        Ok(self.handle(spec.clone(), init))
    }

    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        let found = self.running(&self.0.dir(session));
        found.map(|(spec, init)| self.handle(spec, init)).ok_or_else(|| Error::new(ErrorKind::NotFound))
    }

    async fn owned(&self) -> Result<OwnedStream, Error> {
        let names = std::fs::read_dir(self.0.base.path()).map_err(fault)?.flatten();
        let sessions = names.filter_map(|entry| SessionId::new(entry.file_name().into_string().ok()?).ok());
        let entry = |session: SessionId| {
            let dir = self.0.dir(&session);
            let init = Init::read(&dir);
            let state = match init.as_ref().map(Init::lives) {
                Some(true) => OwnedState::Running,
                Some(false) => OwnedState::Ended,
                None => OwnedState::Starting,
            };
            let made = std::fs::metadata(dir.join("init")).and_then(|found| found.modified());
            let owned =
                Owned::new(session, state, init.map_or_else(String::new, |i| format!("{} {}", i.pid, i.started)));
            made.map_or(owned.clone(), |made| owned.created_at(made))
        };
        let owned: Vec<_> = sessions.map(|session| Ok(entry(session))).collect();
        Ok(OwnedStream::new(futures::stream::iter(owned)))
    }

    async fn reap(&self, session: &SessionId) -> Result<(), Error> {
        let (lock, dir) = (self.0.lock(session), self.0.dir(session));
        let _held = lock.lock().await;
        if let Some(init) = Init::read(&dir) {
            init.end().await?;
        }
        // Whoever was making it was killed a moment ago, and may still have been at work.
        for _ in 0..500 {
            match std::fs::remove_dir_all(&dir) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
                Err(e) if e.kind() != std::io::ErrorKind::DirectoryNotEmpty => return Err(fault(e)),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                Ok(()) => return Ok(()),
            }
        }
        Err(Error::new(ErrorKind::DeadlineExceeded).with_effect(Effect::Unknown))
    }

    async fn export(&self, session: &SessionId, root: &SandboxPath) -> Result<ExportStream, Error> {
        let sandbox = self.attach(session).await?;
        let parent = root.parent().map_or(b"/".to_vec(), |p| p.as_bytes().to_vec());
        let there = [&b"/usr/bin/test"[..], b"-e", root.as_bytes(), b"-o", b"-L", root.as_bytes()];
        if sandbox.exec(ExecRequest::args(there)).await?.exit_code != 0 {
            return Err(Error::new(ErrorKind::FileNotFound).at(root.clone()));
        }
        let tar = [&b"/usr/bin/tar"[..], b"-C", &parent, b"-cf", b"-", b"--", root.file_name()];
        let mut tar = sandbox.spawn(SpawnRequest::args(tar)).await?;
        let archive = std::mem::replace(&mut tar.stdout, ByteStream::new(futures::stream::empty()));
        // Whole only if tar says so.
        let verdict = futures::stream::once(async move {
            match tar.wait().await {
                Ok(exit) if exit.code == 0 => Ok(bytes::Bytes::new()),
                Ok(exit) => Err(Error::new(ErrorKind::Other).because(format!("tar ended with {}", exit.code))),
                Err(e) => Err(e),
            }
        });
        Ok(ByteStream::new(archive.chain(verdict)))
    }
}

/// One sandbox.
#[derive(Debug)]
struct Place {
    world: Arc<World>,
    spec: Spec,
    init: Init,
    recreated: Option<Recreated>,
}

impl Place {
    fn check(&self) -> Result<(), Error> {
        if self.init.lives() { Ok(()) } else { Err(Error::new(ErrorKind::NotFound)) }
    }

    /// `result`, unless the sandbox died under it.
    fn unless_gone<T>(&self, result: T) -> Result<T, Error> {
        self.check().map(|()| result).map_err(|e| e.with_effect(Effect::Unknown))
    }

    fn root(&self) -> Result<rustix::fd::OwnedFd, Error> {
        self.check()?;
        files::root(self.init.pid)
    }
}

#[async_trait]
impl Sandbox for Place {
    fn id(&self) -> &SessionId {
        &self.spec.session
    }

    fn recreated(&self) -> Option<&Recreated> {
        self.recreated.as_ref()
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecResult, Error> {
        self.check()?;
        let result = run::exec(&self.spec, self.init.pid, request).await?;
        if result.exit_code == 137 && !result.timed_out {
            // Whoever killed it may be about to kill everything.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.unless_gone(result)
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Process, Error> {
        self.check()?;
        run::spawn(&self.spec, self.init.clone(), request).await
    }

    async fn read(&self, path: &SandboxPath, limit: u64) -> Result<ReadStream, Error> {
        files::read(&self.root()?, path, limit)
    }

    async fn write(&self, file: FileWrite<'_>) -> Result<(), Error> {
        files::write(&self.root()?, file).await
    }

    async fn write_many(&self, files: FileBatch<'_>) -> Result<(), Error> {
        let root = self.root()?;
        let files: Vec<_> = files.collect().await;
        if let Some(index) = files.iter().position(|file| files::blocked(&root, &file.path)) {
            return Err(Error::new(ErrorKind::NotDirectory).of_member(index));
        }
        for (index, file) in files.into_iter().enumerate() {
            let written = async {
                file.validate()?;
                files::write(&root, file).await
            };
            written.await.map_err(|e| {
                let e = e.of_member(index);
                if index > 0 { e.with_effect(Effect::Partial) } else { e }
            })?;
        }
        Ok(())
    }

    async fn destroy(&self) -> Result<(), Error> {
        let lock = self.world.lock(&self.spec.session);
        let _held = lock.lock().await;
        self.init.end().await?;
        let dir = self.world.dir(&self.spec.session);
        if Init::read(&dir).as_ref() == Some(&self.init) {
            std::fs::remove_dir_all(&dir).map_err(fault)?;
        }
        Ok(())
    }
}
