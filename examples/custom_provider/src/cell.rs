//! One cell: a first process in namespaces of its own, on a tree of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandbox::{
    Effect, Error, ErrorKind, ExecRequest, ExecResult, FileBatch, FileWrite, Process, ReadStream, Recreated, Sandbox,
    SandboxPath, SessionId, SpawnRequest, Spec, async_trait,
};
use tokio::io::AsyncReadExt;

use crate::{command, fault};

/// A tree in memory with the machine's programs, and a first process that reaps orphans.
const SETUP: &str = r#"
set -e; PATH=$PATH:/usr/sbin:/sbin
R=$1 W=$2
mount -t tmpfs -o mode=755 tmpfs "$R"
mkdir -p "$R"/{usr,etc,dev/shm,proc,tmp,mnt,run,old} "$R$W"
mount --bind /usr "$R/usr" && mount -o remount,bind,ro "$R/usr"
for l in bin sbin lib lib64; do [[ -L /$l ]] && cp -P "/$l" "$R/"; done
cp /etc/{passwd,group} "$R/etc/"
for f in /dev/null /dev/zero /dev/urandom; do touch "$R$f"; mount --bind "$f" "$R$f"; done
ln -s /proc/self/fd "$R/dev/fd"
mount -t proc proc "$R/proc"
cd "$R"; pivot_root . old; umount -l /old; rmdir /old; cd /
trap '' CHLD
echo ready
exec sleep infinity </dev/null >/dev/null 2>&1
"#;

/// A first process, told from any later one with its number by when it started.
#[derive(Debug, Clone, PartialEq)]
pub struct Init {
    /// Its number outside.
    pub pid: i32,
    started: String,
}

impl Init {
    fn of(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit(") ").next()?.split(' ');
        let alive = !matches!(fields.next()?, "Z" | "X");
        alive.then(|| Self { pid, started: fields.nth(18).unwrap_or_default().to_owned() })
    }

    pub(crate) fn read(dir: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(dir.join("init")).ok()?;
        let (pid, started) = text.split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, started: started.to_owned() })
    }

    /// Whether it is still that process.
    pub fn lives(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// Kills it, and with it everything in its namespace. Whoever has entered it must wait for its child inside first, so it is woken:
    /// a tenant can have stopped it.
    pub(crate) async fn end(&self) -> Result<(), Error> {
        let inside = std::fs::read_link(format!("/proc/{}/ns/pid", self.pid)).ok();
        for _ in 0..1000 {
            if !self.lives() {
                return Ok(());
            }
            let _ = Pid::from_raw(self.pid).map(|pid| kill_process(pid, Signal::KILL));
            for pid in command::entered(inside.as_deref()) {
                let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::CONT));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(Error::new(ErrorKind::DeadlineExceeded).with_effect(Effect::Unknown))
    }
}

/// One session's cell.
#[derive(Debug)]
pub struct Cell {
    /// What was asked for.
    pub spec: Spec,
    /// Its first process, which lives as long as the cell.
    pub init: Init,
    pub(crate) dir: PathBuf,
}

impl Cell {
    /// Makes one. A dropped future leaves a directory without a first process, which `owned` shows and `reap` removes.
    pub(crate) async fn make(dir: PathBuf, spec: &Spec) -> Result<Self, Error> {
        std::fs::create_dir_all(dir.join("root")).map_err(fault)?;
        std::fs::write(dir.join("spec"), serde_json::to_vec(spec).map_err(|e| fault(e.into()))?).map_err(fault)?;
        let mut unshare = tokio::process::Command::new("/usr/bin/unshare");
        unshare.args([
            "--user",
            "--map-root-user",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "bash",
            "-c",
            SETUP,
            "setup",
        ]);
        unshare.arg(dir.join("root")).arg(command::os(spec.workdir.as_bytes()));
        unshare.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0).kill_on_drop(true);
        let mut child = unshare.spawn().map_err(fault)?;
        let unavailable = || Error::new(ErrorKind::Unavailable).because("unshare did not make the namespaces");
        let mut ready = [0; 6];
        child.stdout.as_mut().ok_or_else(unavailable)?.read_exact(&mut ready).await.map_err(|_| unavailable())?;
        let parent = child.id().and_then(|id| i32::try_from(id).ok()).ok_or_else(unavailable)?;
        let init = command::children(parent).first().and_then(|pid| Init::of(*pid)).ok_or_else(unavailable)?;
        std::fs::write(dir.join("init"), format!("{} {}", init.pid, init.started)).map_err(fault)?;
        tokio::spawn(async move { child.wait().await });
        Ok(Self { spec: spec.clone(), init, dir })
    }

    fn check(&self) -> Result<(), Error> {
        if self.init.lives() { Ok(()) } else { Err(Error::new(ErrorKind::NotFound)) }
    }
}

#[async_trait]
impl Sandbox for Cell {
    fn id(&self) -> &SessionId {
        &self.spec.session
    }

    fn recreated(&self) -> Option<&Recreated> {
        None
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecResult, Error> {
        self.check()?;
        let result = command::exec(&self.spec, self.init.pid, request).await?;
        if result.exit_code == 137 && !result.timed_out {
            // Whoever killed it may be about to kill everything.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.check().map_err(|e| e.with_effect(Effect::Unknown))?;
        Ok(result)
    }

    async fn spawn(&self, _: SpawnRequest) -> Result<Process, Error> {
        Err(Error::new(ErrorKind::Unsupported))
    }

    async fn read(&self, _: &SandboxPath, _: u64) -> Result<ReadStream, Error> {
        Err(Error::new(ErrorKind::Unsupported))
    }

    async fn write(&self, _: FileWrite<'_>) -> Result<(), Error> {
        Err(Error::new(ErrorKind::Unsupported))
    }

    async fn write_many(&self, _: FileBatch<'_>) -> Result<(), Error> {
        Err(Error::new(ErrorKind::Unsupported))
    }

    async fn destroy(&self) -> Result<(), Error> {
        self.init.end().await?;
        if Init::read(&self.dir).as_ref() == Some(&self.init) {
            std::fs::remove_dir_all(&self.dir).map_err(fault)?;
        }
        Ok(())
    }
}
