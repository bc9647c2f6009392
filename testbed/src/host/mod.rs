//! A systemd host in namespaces: systemd as PID 1, dbus, machined, journald; up in a second.

pub(crate) mod rootfs;
pub(crate) mod smoke;
pub(crate) mod vm;

use std::ffi::OsString;
use std::fs;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;

use self::rootfs::RootFs;
use crate::beds::{Bed, Kind, State};
use crate::error::{Error, Result};
use crate::k8s::network::{self, Addresses};
use crate::place::Place;
use crate::process::Task;
use crate::process_id::wait_for;
use crate::{diagnosis, packages};

const BOOT_SCRIPT: &str = include_str!("../../scripts/host-boot.sh");
/// The daemon that is the host's container manager.
const BOOT: &str = "boot";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A release of Debian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Debian {
    #[value(name = "12")]
    Bookworm,
    #[value(name = "13")]
    Trixie,
}

impl Debian {
    pub(crate) fn suite(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }
}

/// A host that was started, at least in part.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(crate) bed: Bed,
}

/// Makes what is slow: packages and root file systems.
pub(crate) fn prepare(place: &Place, debian: Debian) -> Result<RootFs> {
    packages::ensure(packages::FOR_HOST)?;
    rootfs::ensure(place, debian.suite())
}

impl Host {
    /// Boots a host and waits until systemd is done. `binds` are SOURCE:TARGET, read-only.
    pub(crate) fn up(place: &Place, name: &str, debian: Debian, binds: &[String]) -> Result<Self> {
        let rootfs = prepare(place, debian)?;
        let state = State { kind: Kind::Host, version: debian.suite().to_owned(), net: None, port: None };
        let mut host = Self { bed: Bed::create(place, name, state)? };
        let bed = &host.bed;
        let mut argv: Vec<_> =
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", BOOT_SCRIPT, "host-boot.sh"]
                .map(str::to_owned)
                .into();
        argv.push(bed.machine_name.clone());
        argv.extend([&rootfs.host, &bed.dir, &rootfs.dir].map(|path| path.display().to_string()));
        argv.extend(binds.iter().cloned());
        bed.start(BOOT, &argv)?;
        let booted = wait_for("systemd", Duration::from_secs(90), || {
            if bed.process(BOOT).is_none() {
                return Err(Error::new("the host died"));
            }
            let Ok(task) = host.direct(&["/bin/systemctl", "is-system-running"], Duration::from_secs(5)) else {
                return Ok(false);
            };
            Ok(matches!(task.capture()?.stdout.trim(), "running" | "degraded"))
        });
        booted.map_err(|error| Error::new(format!("{error}\n{}", diagnosis::of(&bed.log(BOOT)))))?;
        host.join_network()?;
        Ok(host)
    }

    /// A host that was made before.
    pub(crate) fn open(place: &Place, name: &str) -> Result<Self> {
        let bed = Bed::open(place, name)?;
        if bed.state.kind != Kind::Host {
            return Err(Error::new(format!("{name} is not a host in namespaces")));
        }
        Ok(Self { bed })
    }

    /// The words that run a program inside, as a transient unit: output and exit status come through.
    fn argv<S: Into<OsString>>(&self, io: &str, words: impl IntoIterator<Item = S>) -> Result<Vec<OsString>> {
        // Not by nsenter alone, which would leave the program in a cgroup outside.
        let mut argv: Vec<OsString> = self.enter()?;
        argv.extend(["/usr/bin/env", "-i"].map(OsString::from));
        argv.push(format!("PATH={PATH}").into());
        argv.extend(["systemd-run", "--quiet", io, "--wait", "--collect", "--service-type=exec"].map(OsString::from));
        for pair in [format!("PATH={PATH}"), "HOME=/root".to_owned(), "LANG=C.UTF-8".to_owned()] {
            argv.push(format!("--setenv={pair}").into());
        }
        argv.push("--".into());
        argv.extend(words.into_iter().map(Into::into));
        Ok(argv)
    }

    /// A program inside, for a person: stdin and the terminal are passed on.
    pub(crate) fn command(&self, words: &[OsString]) -> Result<Command> {
        let io = if std::io::stdin().is_terminal() { "--pty" } else { "--pipe" };
        let argv = self.argv(io, words)?;
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]);
        Ok(command)
    }

    /// A program inside, for us.
    pub(crate) fn task(&self, words: &[&str], limit: Duration) -> Result<Task> {
        let argv = self.argv("--pipe", words.iter().copied())?;
        Ok(Task::new(&argv[0], limit).args(&argv[1..]).named(format!("{} in {}", words[0], self.bed.name)))
    }

    /// A program that enters the namespaces and nothing more; works before systemd takes units.
    fn direct(&self, words: &[&str], limit: Duration) -> Result<Task> {
        let argv = self.enter()?;
        Ok(Task::new(&argv[0], limit).args(&argv[1..]).args(words).named(format!("{} in {}", words[0], self.bed.name)))
    }

    fn enter(&self) -> Result<Vec<OsString>> {
        let leader = self.leader()?;
        let root = format!("/proc/{leader}/root");
        let words = ["nsenter", "-t", &leader.to_string(), "-m", "-u", "-i", "-n", "-p", "-C"].map(OsString::from);
        let mut words = Vec::from(words);
        words.extend([format!("--root={root}"), format!("--wd={root}"), "--".to_owned()].map(OsString::from));
        Ok(words)
    }

    /// The host's PID 1 as we see it: the only child of its container manager.
    fn leader(&self) -> Result<i32> {
        let manager = self.bed.process(BOOT).ok_or_else(|| Error::new(format!("{} does not run", self.bed.name)))?.pid;
        let children = fs::read_to_string(Path::new("/proc").join(format!("{manager}/task/{manager}/children")));
        let first = children.unwrap_or_default().split(' ').next().and_then(|pid| pid.parse().ok());
        first.ok_or_else(|| Error::new(format!("{} has no PID 1 yet", self.bed.name)))
    }

    fn join_network(&mut self) -> Result<()> {
        let leader = self.leader()?;
        network::claim(&mut self.bed, "host0", leader)?;
        let addresses = Addresses::of(&self.bed)?;
        let (own, machine) = (format!("{}/24", addresses.node()), addresses.machine());
        for args in [
            vec!["ip", "addr", "add", own.as_str(), "dev", "host0"],
            vec!["ip", "link", "set", "host0", "up"],
            vec!["ip", "route", "add", "default", "via", machine.as_str()],
        ] {
            self.direct(&args, Duration::from_secs(10))?.stdout()?;
        }
        Ok(())
    }
}
