//! A provider of one's own: sandboxes are cells, each a tree in memory and processes in namespaces made by `unshare`.
//!
//! How a cell is made, entered and ended is all there is to write. What happens inside is done by `sandbox-guest` over the shells that
//! [`Carrier::open`] starts there, and its `DirProvider` keeps the books. It is no containment against anybody who means harm.

use std::ffi::OsStr;
use std::fs::{File, read_to_string};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandbox::{Capabilities, Death, Effect, Error, ErrorKind, Provider, ProviderExt, Spec, async_trait};
use sandbox_guest::{Carrier, CarrierStream, Closed, DirProvider, FarEnds, Guest, GuestConfig, Maker};
use tokio::{io::AsyncReadExt, process::Command};

/// Makes the tree `$1/root` with the working directory `$2`, and becomes a first process that reaps orphans. Its input is `$1/init`.
const SETUP: &str = r#"
set -e; PATH=$PATH:/usr/sbin:/sbin; R=$1/root
read -r pid _ </proc/self/stat; echo "$pid" >&0
mount -t tmpfs -o mode=755 tmpfs "$R"
mkdir -p "$R"/{usr,etc,dev/shm,proc,tmp,mnt,run,old} "$R$2"
mount --bind /usr "$R/usr" && mount -o remount,bind,ro "$R/usr"
for l in bin sbin lib lib64; do [[ -L /$l ]] && cp -P "/$l" "$R/"; done
cp /etc/{passwd,group} "$R/etc/"
for f in /etc/hosts /dev/null /dev/zero /dev/urandom; do touch "$R$f"; mount --bind "$f" "$R$f"; done
ln -s /proc/self/fd "$R/dev/fd"
mount -t proc -o ro proc "$R/proc"
cd "$R"; pivot_root . old; umount -l /old; rmdir /old; cd /
trap '' CHLD
echo ready && exec sleep infinity </dev/null >/dev/null
"#;

/// The provider of cells whose books are in `dir`, behind the checks that are the same for every backend.
pub fn cells(dir: impl Into<PathBuf>) -> Arc<dyn Provider> {
    Arc::new(DirProvider::new(dir, Cells::default()).checked())
}

/// Makes cells. In the directory of each, `init` has the number of its first process, and is locked for as long as the cell lives.
#[derive(Debug, Default)]
pub struct Cells {
    /// A program that starts the first process, and ends with it. Its arguments are the cell's directory, and what to start.
    pub agent: Option<PathBuf>,
}

/// Whether the cell of this `init` lives.
pub fn is_locked(init: &File) -> bool {
    init.try_lock_shared().is_err()
}

#[async_trait]
impl Maker for Cells {
    fn capabilities(&self) -> Capabilities {
        let mut claims = Capabilities::default();
        (claims.files, claims.export, claims.spawn, claims.networking_unrestricted) = (true, true, true, true);
        claims
    }

    async fn make(&self, dir: &Path, spec: &Spec) -> Result<(), Error> {
        let work = async {
            std::fs::create_dir(dir.join("root"))?;
            let init = File::create(dir.join("init"))?;
            init.lock()?;
            let mut unshare = Command::new("/usr/bin/unshare");
            unshare.args(["--user", "--map-root-user", "--mount", "--ipc", "--pid", "--fork", "--kill-child"]);
            unshare.args(self.agent.iter().flat_map(|agent| [agent.as_os_str(), dir.as_os_str()]));
            unshare.args(["bash", "-c", SETUP, "setup"]).arg(dir).arg(OsStr::from_bytes(spec.workdir.as_bytes()));
            // The lock is `unshare`'s from now on. It ends when the last process in the cell has ended.
            unshare.env_clear().env("PATH", "/usr/bin:/bin").process_group(0);
            unshare.stdin(init).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut stdout = unshare.spawn()?.stdout.ok_or(std::io::ErrorKind::BrokenPipe)?;
            stdout.read_exact(&mut [0; "ready".len()]).await
        };
        work.await.map(drop).map_err(|e| Error::new(ErrorKind::Unavailable).because("no namespaces").caused_by(e))
    }

    fn enter(&self, dir: &Path, spec: &Spec) -> Option<Guest> {
        let init = File::open(dir.join("init")).ok().filter(is_locked)?;
        let pid = std::io::read_to_string(&init).ok()?.trim().to_owned();
        let config = GuestConfig::new(spec.workdir.clone()).with_env(spec.env.clone());
        Some(Guest::new(Arc::new(Cell { init, pid }), config))
    }

    async fn end(&self, dir: &Path) -> Result<(), Error> {
        let init = dir.join("init");
        for _ in 0..1000 {
            if !File::open(&init).is_ok_and(|init| is_locked(&init)) {
                return Ok(());
            }
            // With its first process everything in the namespace dies.
            let pid = read_to_string(&init).ok().and_then(|pid| Pid::from_raw(pid.trim().parse().ok()?));
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(Error::new(ErrorKind::DeadlineExceeded).with_effect(Effect::Unknown))
    }
}

/// Opens shells in one cell, and never in a later one: `init` is the very file that its `unshare` has locked.
#[derive(Debug)]
struct Cell {
    init: File,
    pid: String,
}

#[async_trait]
impl Carrier for Cell {
    async fn open(&self) -> Result<CarrierStream, Error> {
        if !is_locked(&self.init) {
            return Err(Error::new(ErrorKind::NotFound).with_death(Death::Deleted));
        }
        // Whatever this program ignores, the tenant does not.
        let mut enter = Command::new("/usr/bin/env");
        enter.args(["--default-signal", "/usr/bin/nsenter"]);
        enter.args(["--target", &self.pid, "--user", "--preserve-credentials", "--mount", "--pid", "--no-fork", "--"]);
        // `setsid` waits for the shell from outside: a tenant who could stop it would keep the namespace from ending.
        enter.args(["/usr/bin/setsid", "--fork", "--wait", "/bin/bash", "--norc", "--noprofile", "-p"]);
        enter.current_dir("/").env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", "/workspace");
        enter.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = enter.spawn().map_err(|e| Error::new(ErrorKind::Unavailable).caused_by(e))?;
        let missing = || Error::new(ErrorKind::Other).because("a pipe to the shell is missing");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = child.stderr.take().ok_or_else(missing)?;
        let closed = async move { Closed::new(format!("{:?}", child.wait().await)) };
        Ok(CarrierStream::new(stdin, stdout, stderr, closed))
    }

    fn far_ends(&self) -> FarEnds {
        FarEnds::Pipes
    }

    async fn cause_of_death(&self) -> Option<Death> {
        (!is_locked(&self.init)).then_some(Death::Deleted)
    }
}
