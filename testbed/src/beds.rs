//! What every kind of bed has in common: a folder with a state file, processes in cgroups of its own, mounts, one
//! interface. Taking a bed down needs nothing but this, so it also works after the tool was killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::cgroup;
use crate::error::{Context as _, Error, Result};
use crate::place::{Place, make_dir, write};
use crate::process::Task;
use crate::process_id::{ProcessId, poll};
use crate::stop;

/// What a bed is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    K8s,
    Host,
    Vm,
}

/// The file that says what a bed is; written before anything else is made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) kind: Kind,
    /// The Kubernetes version, or the Debian suite.
    pub(crate) version: String,
    /// The bed's network is 10.99.NET.0/24.
    #[serde(default)]
    pub(crate) net: Option<u8>,
    /// For a virtual machine, the port of its ssh on loopback.
    #[serde(default)]
    pub(crate) port: Option<u16>,
}

/// One bed, up or half up.
#[derive(Debug, Clone)]
pub(crate) struct Bed {
    pub(crate) name: String,
    /// Its name where the whole machine can see it.
    pub(crate) machine_name: String,
    pub(crate) dir: PathBuf,
    pub(crate) state: State,
}

const STATE: &str = "state.json";
/// Joins the cgroups first, so that no child of the program is ever outside.
const LAUNCH: &str =
    r#"until [ "$1" = -- ]; do echo $$ > "$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@""#;

impl Bed {
    /// Starts a bed: its folder and its state file.
    pub(crate) fn create(place: &Place, name: &str, state: State) -> Result<Self> {
        crate::place::check_name(name)?;
        if !rustix::process::geteuid().is_root() {
            return Err(Error::new("a bed needs root"));
        }
        let bed = Self { name: name.to_owned(), machine_name: place.machine_name(name), dir: place.bed(name), state };
        if bed.dir.join(STATE).exists() {
            return Err(Error::new(format!("{name} is there already; `down {name}` removes it")));
        }
        make_dir(bed.dir.join("logs"))?;
        make_dir(bed.dir.join("pids"))?;
        bed.save()?;
        Ok(bed)
    }

    /// A bed that was made before.
    pub(crate) fn open(place: &Place, name: &str) -> Result<Self> {
        crate::place::check_name(name)?;
        let dir = place.bed(name);
        let text = fs::read_to_string(dir.join(STATE))
            .map_err(|_| Error::new(format!("there is no bed {name}; `status` lists them")))?;
        let state = serde_json::from_str(&text).doing(|| format!("read the state of {name}"))?;
        Ok(Self { name: name.to_owned(), machine_name: place.machine_name(name), dir, state })
    }

    /// A bed that was made before, also one whose maker was killed before it wrote the state file.
    pub(crate) fn open_any(place: &Place, name: &str) -> Result<Self> {
        let (machine_name, dir) = (place.machine_name(name), place.bed(name));
        if !dir.join(STATE).exists() && dir.is_dir() {
            crate::place::check_name(name)?;
            let state = State { kind: Kind::K8s, version: "unknown".to_owned(), net: None, port: None };
            return Ok(Self { name: name.to_owned(), machine_name, dir, state });
        }
        Self::open(place, name)
    }

    pub(crate) fn save(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.state).doing(|| "write a state".to_owned())?;
        write(self.dir.join(STATE), text)
    }

    /// Starts a daemon that outlives us, in the bed's cgroup, with its output in `logs/NAME.log`.
    pub(crate) fn start(&self, name: &str, argv: &[String]) -> Result<()> {
        if stop::requested() {
            return Err(Error::new("stopped"));
        }
        let log_path = self.log(name);
        let log = File::options().create(true).append(true).open(&log_path);
        let log = log.doing(|| format!("open {}", log_path.display()))?;
        let err = log.try_clone().doing(|| "share a log".to_owned())?;
        let mut child = Command::new("setsid")
            .args(["bash", "-c", LAUNCH, name])
            .args(cgroup::grouping(&self.machine_name)?)
            .arg("--")
            .args(argv)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(err)
            .spawn()
            .doing(|| format!("start {name}"))?;
        let id = ProcessId::of(child.id());
        // Somebody has to collect it if it dies while we live.
        std::thread::spawn(move || child.wait());
        write(self.dir.join("pids").join(name), id?.to_string())
    }

    /// Where a daemon's output goes.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{name}.log"))
    }

    /// The running process of that name, if it runs.
    pub(crate) fn process(&self, name: &str) -> Option<ProcessId> {
        let id: ProcessId = fs::read_to_string(self.dir.join("pids").join(name)).ok()?.parse().ok()?;
        id.alive().then_some(id)
    }

    /// Names of all daemons ever started.
    pub(crate) fn daemons(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.join("pids")).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Sends a signal to a daemon; an error if it does not run.
    pub(crate) fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        let id = self.process(name).ok_or_else(|| Error::new(format!("{name} does not run")))?;
        id.signal(signal).doing(|| format!("signal {name}"))
    }

    /// Ends a daemon: politely, then not.
    pub(crate) fn end(&self, name: &str) -> Result<()> {
        let Some(id) = self.process(name) else { return Ok(()) };
        for signal in [Signal::TERM, Signal::KILL] {
            // Either may come too late, which is fine. A paused process takes TERM only when it goes on.
            let _ = id.signal(signal);
            let _ = id.signal(Signal::CONT);
            if poll(Duration::from_secs(10), || Ok(!id.alive()))? {
                return Ok(());
            }
        }
        Err(Error::new(format!("{name} does not end")))
    }

    /// Ends a daemon as a crash does; an error if it does not run.
    pub(crate) fn kill(&self, name: &str) -> Result<()> {
        let id = self.process(name).ok_or_else(|| Error::new(format!("{name} does not run")))?;
        id.signal(Signal::KILL).doing(|| format!("kill {name}"))?;
        if poll(Duration::from_secs(10), || Ok(!id.alive()))? {
            return Ok(());
        }
        Err(Error::new(format!("{name} does not end")))
    }

    /// Removes everything that this bed made, whatever state it is in.
    pub(crate) fn remove(&self) -> Result<()> {
        for name in self.daemons() {
            if let Some(id) = self.process(&name) {
                let _ = id.signal(Signal::KILL);
            }
        }
        cgroup::kill(&self.machine_name)?;
        self.unmount()?;
        let interface = Path::new("/sys/class/net").join(&self.machine_name);
        // It goes with the namespace at its other end, which takes its time.
        if interface.exists() {
            let task = Task::new("ip", Duration::from_secs(20)).args(["link", "del", &self.machine_name]);
            let ended = task.tear_down().capture()?;
            if interface.exists() {
                return Err(Error::new(format!("{} stays: {}", self.machine_name, ended.stderr.trim())));
            }
        }
        cgroup::remove(&self.machine_name)?;
        let task = Task::new("rm", Duration::from_secs(300)).args(["-rf", "--one-file-system", "--"]);
        task.args([&self.dir]).tear_down().stdout()?;
        // The last bed takes the common folder with it.
        if let Some(parent) = self.dir.parent() {
            let _ = fs::remove_dir(parent);
        }
        Ok(())
    }

    /// Unmounts what is mounted below the bed's folder where we see it.
    fn unmount(&self) -> Result<()> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").doing(|| "read the mounts".to_owned())?;
        let targets = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        let mut targets: Vec<_> = targets.filter(|target| Path::new(target).starts_with(&self.dir)).collect();
        targets.sort_unstable();
        for target in targets.iter().rev() {
            Task::new("umount", Duration::from_secs(20)).args(["-l", target]).tear_down().stdout()?;
        }
        Ok(())
    }
}
