//! Bounds on memory and processor time, where there are control groups to impose them.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandbox::{Error, ErrorKind};

use crate::argv;
use crate::config::Cgroup;
use crate::modes;
use crate::tools::Tools;

/// Where the groups of the sandboxes are made, and what they can bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Groups {
    /// Parents for a group that bounds memory.
    memory: Option<Parent>,
    /// And for one that bounds processor time: the same one in version 2.
    cpu: Option<Parent>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Parent {
    path: PathBuf,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// What a sandbox is bounded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Bounds {
    pub(crate) memory: Option<u64>,
    pub(crate) cpu_millis: Option<u64>,
}

/// How long the trial may take.
const PATIENCE: Duration = Duration::from_secs(5);

impl Groups {
    /// Looks for control groups and tries them. What does not work is not there, unless the configuration named it.
    pub(crate) fn find(choice: &Cgroup, is_root: bool, tools: &Tools) -> Result<Option<Self>, Error> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let found = match choice {
            Cgroup::Off => return Ok(None),
            Cgroup::At(path) => {
                let refuse = |what: String| {
                    Error::new(ErrorKind::InvalidSpec).because(format!("cgroup {}: {what}", path.display()))
                };
                check_place(path).map_err(refuse)?;
                let groups = version_two(path);
                let works = groups.try_out(tools);
                works.map_err(|e| refuse(e.to_string()))?;
                if groups.memory.is_none() && groups.cpu.is_none() {
                    return Err(refuse(
                        "it has neither the memory nor the cpu controller for groups below it".to_owned(),
                    ));
                }
                return Ok(Some(groups));
            }
            Cgroup::Auto => match delegated(&mounts, &own) {
                Some(path) => version_two(&path),
                None if is_root => version_one(&mounts, &own),
                None => return Ok(None),
            },
        };
        let any = found.memory.is_some() || found.cpu.is_some();
        Ok((any && found.try_out(tools).is_ok()).then_some(found))
    }

    pub(crate) fn bounds_memory(&self) -> bool {
        self.memory.is_some()
    }

    pub(crate) fn bounds_cpu(&self) -> bool {
        self.cpu.is_some()
    }

    /// The groups that a sandbox of that name needs for its bounds.
    pub(crate) fn paths(&self, name: &str, bounds: Bounds) -> Vec<PathBuf> {
        let memory = self.memory.as_ref().filter(|_| bounds.memory.is_some());
        let cpu = self.cpu.as_ref().filter(|_| bounds.cpu_millis.is_some());
        let mut paths: Vec<PathBuf> = memory.into_iter().chain(cpu).map(|p| p.path.join(name)).collect();
        paths.dedup();
        paths
    }

    /// All groups that a sandbox of that name can have.
    pub(crate) fn all(&self, name: &str) -> Vec<PathBuf> {
        self.paths(name, Bounds { memory: Some(u64::MAX), cpu_millis: Some(u64::MAX) })
    }

    /// Makes them.
    pub(crate) fn make(&self, name: &str, bounds: Bounds) -> io::Result<()> {
        for path in self.paths(name, bounds) {
            match modes::make_dir(&path, 0o755) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        if let (Some(parent), Some(bytes)) = (&self.memory, bounds.memory) {
            let group = parent.path.join(name);
            match parent.version {
                Version::Two => {
                    set(&group.join("memory.max"), &bytes.to_string())?;
                    // Where the kernel counts swap: what does not fit in memory must not go there instead.
                    unless_absent(set(&group.join("memory.swap.max"), "0"))?;
                }
                Version::One => {
                    set(&group.join("memory.limit_in_bytes"), &bytes.to_string())?;
                    unless_absent(set(&group.join("memory.memsw.limit_in_bytes"), &bytes.to_string()))?;
                }
            }
        }
        if let (Some(parent), Some(millis)) = (&self.cpu, bounds.cpu_millis) {
            let group = parent.path.join(name);
            let (quota, period) = quota(millis);
            match parent.version {
                Version::Two => set(&group.join("cpu.max"), &format!("{quota} {period}"))?,
                Version::One => {
                    set(&group.join("cpu.cfs_period_us"), &period.to_string())?;
                    set(&group.join("cpu.cfs_quota_us"), &quota.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Makes a group, has a process join it the way those of a sandbox do, and removes it.
    fn try_out(&self, tools: &Tools) -> io::Result<()> {
        let bounds =
            Bounds { memory: self.memory.as_ref().map(|_| 1 << 30), cpu_millis: self.cpu.as_ref().map(|_| 1000) };
        // Two containers can have processes of one number.
        let nonce = crate::store::nonce().map_err(|e| io::Error::other(e.to_string()))?;
        let name = format!("{TRIAL}{}", &nonce[..16]);
        let paths = self.paths(&name, bounds);
        paths.iter().filter_map(|path| path.parent()).for_each(remove_forgotten_trials);
        let tried = self.make(&name, bounds).and_then(|()| join_once(tools, &join_files(&paths)));
        let removed = remove(&paths, Instant::now() + PATIENCE);
        tried.and(removed)
    }
}

/// What the groups of trials are called.
const TRIAL: &str = "sandbox-trial-";

/// Removes what a caller that was killed in the middle of its trial has left: groups without a process that are older than any trial.
fn remove_forgotten_trials(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_trial = entry.file_name().to_str().is_some_and(|name| name.starts_with(TRIAL));
        let age = entry.metadata().ok().and_then(|meta| meta.modified().ok()?.elapsed().ok());
        if is_trial && age.is_some_and(|age| age > PATIENCE * 4) {
            // One with a process in it does not go.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The files that a process joins groups by.
pub(crate) fn join_files(groups: &[PathBuf]) -> Vec<PathBuf> {
    groups.iter().map(|g| g.join("cgroup.procs")).collect()
}

/// Removes groups that no process is in any more; those that are not there are removed.
pub(crate) fn remove(groups: &[PathBuf], deadline: Instant) -> io::Result<()> {
    for group in groups {
        loop {
            match fs::remove_dir(group) {
                Ok(()) => break,
                Err(e) if e.kind() == io::ErrorKind::NotFound => break,
                // A process that has just ended is still counted for a moment.
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

/// Whether a process of these groups was killed for its memory.
pub(crate) fn was_out_of_memory(groups: &[PathBuf]) -> bool {
    groups.iter().any(|group| {
        ["memory.events", "memory.oom_control"].iter().any(|file| {
            let text = fs::read_to_string(group.join(file)).unwrap_or_default();
            text.lines().filter_map(|l| l.strip_prefix("oom_kill ")).any(|n| n.trim() != "0")
        })
    })
}

/// Whether the machine itself has no more processor time than that: then nothing has to bound it.
pub(crate) fn machine_bounds_cpu(millis: u64) -> bool {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let processors = stat.lines().filter(|l| l.strip_prefix("cpu").is_some_and(|l| !l.starts_with(' '))).count();
    processors > 0 && millis >= u64::try_from(processors).unwrap_or(u64::MAX).saturating_mul(1000)
}

/// Processor time as microseconds in a period of that many microseconds. The kernel takes no quota below a millisecond.
fn quota(millis: u64) -> (u64, u64) {
    let period = if millis < 10 { 1_000_000 } else { 100_000 };
    (millis.saturating_mul(period / 1000), period)
}

/// Writes to a file of a group. Never makes one.
fn set(file: &Path, text: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
}

fn unless_absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn join_once(tools: &Tools, files: &[PathBuf]) -> io::Result<()> {
    let argv = argv::join_and_end(tools, files);
    let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(_) => return Err(io::Error::other("no process can be moved to a group below it")),
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            None => {
                child.kill()?;
                child.wait()?;
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

/// Whether groups can be made below a directory at all.
fn check_place(path: &Path) -> Result<(), String> {
    /// What the kernel calls the version 2 hierarchy.
    const CGROUP2: u64 = 0x6367_7270;
    if !path.is_absolute() {
        return Err("it must be an absolute path".to_owned());
    }
    match fs::metadata(path) {
        Ok(meta) if !meta.is_dir() => return Err("it must be a directory".to_owned()),
        Ok(_) => {}
        Err(e) => return Err(format!("{e}: it must be a directory that is there and may be written to")),
    }
    let kind = rustix::fs::statfs(path).map_err(|e| e.to_string())?.f_type;
    if u64::try_from(kind).ok() != Some(CGROUP2) {
        return Err("it must be in a control group hierarchy of version 2, and is in another file system".to_owned());
    }
    Ok(())
}

/// What a directory of the version 2 hierarchy has for groups below it.
fn version_two(path: &Path) -> Groups {
    for controller in ["memory", "cpu"] {
        // Refused where it is not to be had, or processes are in the way.
        let _ = set(&path.join("cgroup.subtree_control"), &format!("+{controller}"));
    }
    let has = fs::read_to_string(path.join("cgroup.subtree_control")).unwrap_or_default();
    let parent = |controller: &str| {
        let there = has.split_ascii_whitespace().any(|c| c == controller);
        there.then(|| Parent { path: path.to_owned(), version: Version::Two })
    };
    Groups { memory: parent("memory"), cpu: parent("cpu") }
}

/// The version 1 hierarchies, below the caller's own groups.
fn version_one(mounts: &str, own: &str) -> Groups {
    let parent = |controller: &str| {
        let path = own_group(mounts, own, Some(controller))?;
        Some(Parent { path, version: Version::One })
    };
    Groups { memory: parent("memory"), cpu: parent("cpu") }
}

/// The nearest directory of the version 2 hierarchy that was handed over to the caller and that no process may be in: the one above the
/// caller's own, if whoever manages the hierarchy marked it so. Nothing else is anybody's to divide.
fn delegated(mounts: &str, own: &str) -> Option<PathBuf> {
    let group = own_group(mounts, own, None)?;
    let above = group.parent()?;
    let marked = ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0u8; 8];
        rustix::fs::getxattr(above, *name, &mut value).is_ok_and(|n| value.get(..n) == Some(b"1"))
    });
    marked.then(|| above.to_owned())
}

/// Where the caller's own group is: of a version 1 controller, or in the version 2 hierarchy. Pure.
fn own_group(mounts: &str, own: &str, controller: Option<&str>) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let right = match controller {
            Some(name) => controllers.split(',').any(|c| c == name),
            None => id == "0" && controllers.is_empty(),
        };
        right.then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let (root, point) = (front.next()?, front.next()?);
        let mut back = back.split(' ');
        let (kind, _, options) = (back.next()?, back.next()?, back.next()?);
        let right = match controller {
            Some(name) => kind == "cgroup" && options.split(',').any(|o| o == name),
            None => kind == "cgroup2",
        };
        let below = Path::new(path).strip_prefix(root).ok()?;
        right.then(|| if below.as_os_str().is_empty() { PathBuf::from(point) } else { Path::new(point).join(below) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
35 30 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
36 35 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
39 35 0:32 /outer /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
45 35 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
    const OWN: &str = "4:memory:/outer/x/y\n3:cpuset:/\n1:cpu,cpuacct:/\n0::/a.slice/b.service/main\n";

    #[test]
    fn where_the_own_group_is() {
        let at = |controller| own_group(MOUNTS, OWN, controller);
        assert_eq!(at(Some("memory")), Some("/sys/fs/cgroup/memory/x/y".into()));
        assert_eq!(at(Some("cpu")), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(at(None), Some("/sys/fs/cgroup/unified/a.slice/b.service/main".into()));
        assert_eq!(at(Some("cpuset")), None);
        assert_eq!(own_group(MOUNTS, "4:memory:/elsewhere\n", Some("memory")), None);
        assert_eq!(own_group("", OWN, None), None);
    }

    #[test]
    fn the_machine_bounds_what_is_beyond_it() {
        assert!(!machine_bounds_cpu(1) && !machine_bounds_cpu(999));
        assert!(machine_bounds_cpu(u64::MAX));
    }

    #[test]
    fn quotas() {
        assert_eq!(quota(500), (50_000, 100_000));
        assert_eq!(quota(2000), (200_000, 100_000));
        assert_eq!(quota(10), (1000, 100_000));
        assert_eq!(quota(1), (1000, 1_000_000));
    }

    #[test]
    fn what_is_no_control_group_is_refused_by_name_and_rule() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "").unwrap();
        let tools = Tools::find().unwrap();
        for (path, rule) in [
            (directory.path().to_owned(), "it must be in a control group hierarchy of version 2"),
            (at("absent"), "No such file or directory"),
            (at("file"), "it must be a directory"),
            ("relative".into(), "it must be an absolute path"),
        ] {
            let error = Groups::find(&Cgroup::At(path.clone()), false, &tools).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSpec);
            assert!(error.to_string().contains(&format!("cgroup {}: {rule}", path.display())), "{error}");
        }
        assert_eq!(Groups::find(&Cgroup::Off, true, &tools).unwrap(), None);
    }

    #[test]
    fn one_group_serves_both_bounds_in_version_two() {
        let parent = Some(Parent { path: "/g".into(), version: Version::Two });
        let groups = Groups { memory: parent.clone(), cpu: parent };
        let both = Bounds { memory: Some(1), cpu_millis: Some(1) };
        assert_eq!(groups.paths("n", both), [PathBuf::from("/g/n")]);
        assert_eq!(groups.paths("n", Bounds::default()), Vec::<PathBuf>::new());
        let apart = Groups { cpu: None, ..groups };
        assert_eq!(apart.paths("n", Bounds { memory: None, ..both }), Vec::<PathBuf>::new());
    }
}
