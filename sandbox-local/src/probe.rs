//! Whether this machine lets sandboxes be made, and what forbids it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use sandbox::{Error, ErrorKind};
use tokio::io::AsyncReadExt as _;
use tokio::runtime::Handle;

use crate::argv::{self, Kernel};
use crate::error::io_error;
use crate::ident;
use crate::parse::status_field;
use crate::spawn::Spawner;
use crate::tools::Tools;

/// What keeps this machine from making sandboxes: the source of the error that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forbidden {
    /// A sysctl of the user namespaces, `user.max_*_namespaces`, is too low here for any sandbox: each takes one of every kind, and two of
    /// `user`.
    NamespaceLimit {
        /// The name of the sysctl.
        sysctl: String,
        /// What it is.
        limit: u64,
    },
    /// The kernel has no room for another namespace, though no limit here is too low for one sandbox: user namespaces are nested too deep,
    /// or a limit here or further up is used up.
    NamespacesUsedUp,
    /// `kernel.unprivileged_userns_clone` is 0.
    UnprivilegedCloneOff,
    /// AppArmor restricts user namespaces of plain users (`kernel.apparmor_restrict_unprivileged_userns` is 1).
    AppArmor,
    /// A seccomp filter, such as a container runtime's, refuses the system call.
    Seccomp,
    /// This process lives in a chroot, where the kernel makes no user namespaces.
    Chroot,
    /// The user is not mapped in this user namespace.
    UnmappedUser {
        /// The user.
        uid: u32,
    },
    /// The caller's group is not mapped in this user namespace.
    UnmappedGroup {
        /// The group, by the number that all such are shown by.
        gid: u32,
    },
    /// Something is mounted over parts of /proc, as in a container: the kernel then mounts no fresh one.
    ProcCovered,
    /// The kernel or its modules lack a kind of namespace.
    NotBuiltIn,
    /// The program is too old and lacks an option.
    OldProgram,
    /// Something else, in the words of the program that was refused.
    Other {
        /// Those words.
        said: String,
    },
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NamespaceLimit { sysctl, limit } => write!(f, "the sysctl {sysctl} is {limit}: set it higher"),
            Self::NamespacesUsedUp => f.write_str(
                "the kernel has no room for another namespace: they are nested too deep, or one of the sysctls user.max_*_namespaces is \
                 used up, here or in a namespace further out",
            ),
            Self::UnprivilegedCloneOff => {
                f.write_str("the sysctl kernel.unprivileged_userns_clone is 0: set it to 1, or run as root")
            }
            Self::AppArmor => f.write_str(
                "AppArmor restricts user namespaces: set the sysctl kernel.apparmor_restrict_unprivileged_userns to 0, \
                 or give this program a profile that allows userns",
            ),
            Self::Seccomp => f.write_str(
                "a seccomp filter refuses new namespaces: run outside of this container, or with a filter that allows them",
            ),
            Self::Chroot => f.write_str("this process lives in a chroot, where the kernel makes no user namespaces"),
            Self::UnmappedUser { uid } => {
                write!(f, "user {uid} does not exist in this user namespace: map it, or as root choose another first_uid")
            }
            Self::UnmappedGroup { gid } => {
                write!(f, "the caller's group (shown as {gid}) does not exist in this user namespace: map it")
            }
            Self::ProcCovered => f.write_str(
                "something is mounted over parts of /proc, as in a container, and the kernel then mounts no fresh one: \
                 run outside of this container, or with an unmasked /proc",
            ),
            Self::NotBuiltIn => f.write_str("this kernel lacks a kind of namespace"),
            Self::OldProgram => f.write_str("util-linux is too old: 2.38 or later is needed"),
            Self::Other { said } => f.write_str(said),
        }
    }
}

impl std::error::Error for Forbidden {}

impl Forbidden {
    pub(crate) fn into_error(self) -> Error {
        Error::new(ErrorKind::Unavailable).because(self.to_string()).caused_by(self)
    }
}

/// What is known of this process's place.
#[derive(Debug, Default)]
struct Facts {
    /// Namespace limits by sysctl name.
    limits: BTreeMap<String, u64>,
    unprivileged_clone: Option<u64>,
    apparmor: Option<u64>,
    seccomp: bool,
    chroot: bool,
    root: bool,
    uid: u32,
}

/// What is tried, from simple to whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    User,
    Everything,
    Nested,
    Proc,
}

const STEPS: [Step; 4] = [Step::User, Step::Everything, Step::Nested, Step::Proc];
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a step is tried where the kernel has no room, and how long after one another.
const TRIES: u32 = 20;
const AGAIN: Duration = Duration::from_millis(50);

/// Tries what making a sandbox takes, piece by piece, and says which piece is forbidden by what.
pub(crate) async fn probe(spawner: &Spawner, runtime: &Handle, tools: &Tools, kernel: Kernel) -> Result<(), Error> {
    if let Some(cause) = certain((!kernel.switch).then_some((kernel.uid, kernel.gid))) {
        return Err(cause.into_error());
    }
    for step in STEPS {
        let mut tries = 0;
        while let Some(said) = attempt(spawner, runtime, tools, kernel, step).await? {
            let cause = explain(step, &said, &facts(kernel));
            tries += 1;
            if cause != Forbidden::NamespacesUsedUp || tries == TRIES {
                return Err(cause.into_error());
            }
            // A namespace of the step before counts for a moment after its end, and nothing tells when it is gone.
            tokio::time::sleep(AGAIN).await;
        }
    }
    Ok(())
}

/// What forbids it for certain, without a trial. `user` is the user and group that make the sandboxes, where that is the caller.
pub(crate) fn certain(user: Option<(u32, u32)>) -> Option<Forbidden> {
    let has =
        |map: &str, id| ident::is_mapped(&fs::read_to_string(format!("/proc/self/{map}")).unwrap_or_default(), id, 1);
    match user {
        Some((uid, _)) if !has("uid_map", uid) => Some(Forbidden::UnmappedUser { uid }),
        Some((_, gid)) if !has("gid_map", gid) => Some(Forbidden::UnmappedGroup { gid }),
        _ => too_low(&limits()),
    }
}

/// A limit that no sandbox fits into.
fn too_low(limits: &BTreeMap<String, u64>) -> Option<Forbidden> {
    // One user namespace lies in another.
    let takes = |sysctl: &str| if sysctl == "user.max_user_namespaces" { 2 } else { 1 };
    let (sysctl, limit) = limits.iter().find(|(sysctl, limit)| **limit < takes(sysctl))?;
    Some(Forbidden::NamespaceLimit { sysctl: sysctl.clone(), limit: *limit })
}

fn limits() -> BTreeMap<String, u64> {
    let mut limits = BTreeMap::new();
    for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let name = format!("max_{kind}_namespaces");
        if let Some(limit) = number(&format!("/proc/sys/user/{name}")) {
            limits.insert(format!("user.{name}"), limit);
        }
    }
    limits
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// What the programs of a step say when they are refused; `None` if they are not.
async fn attempt(
    spawner: &Spawner,
    runtime: &Handle,
    tools: &Tools,
    kernel: Kernel,
    step: Step,
) -> Result<Option<String>, Error> {
    let sleep = tools.sleep.to_string_lossy();
    let unshare = tools.unshare.to_string_lossy();
    let mut command = vec!["--user", "--map-root-user"];
    match step {
        Step::User => {}
        Step::Everything => {
            command.extend(["--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--fork"]);
        }
        Step::Nested => command.extend(["--", &unshare, "--user", "--map-user=1000", "--map-group=1000"]),
        Step::Proc => command.extend(["--mount", "--pid", "--fork", "--mount-proc"]),
    }
    command.extend(["--", &sleep, "0"]);
    let argv = argv::trial(tools, kernel, &command);
    let failed = |e: io::Error| io_error("cannot try whether sandboxes can be made here", e);
    let ends = [Stdio::null(), Stdio::null(), Stdio::piped()];
    let mut child =
        spawner.spawn(runtime, &argv, Path::new("/"), ends, false, Instant::now() + PATIENCE).map_err(failed)?;
    let mut said = Vec::new();
    let run = async {
        if let Some(stderr) = child.stderr.take() {
            stderr.take(4096).read_to_end(&mut said).await?;
        }
        child.wait().await
    };
    let status = match tokio::time::timeout(PATIENCE, run).await {
        Ok(status) => status.map_err(failed)?,
        Err(_) => {
            let _ = child.start_kill();
            return Err(failed(io::ErrorKind::TimedOut.into()));
        }
    };
    let said = String::from_utf8_lossy(&said).trim().replace('\n', "; ");
    Ok((!status.success()).then(|| if said.is_empty() { status.to_string() } else { said }))
}

fn facts(kernel: Kernel) -> Facts {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    Facts {
        limits: limits(),
        unprivileged_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
        apparmor: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        seccomp: status_field(&status, "Seccomp").is_some_and(|mode| mode != "0"),
        chroot: !mounts.lines().any(|line| line.split(' ').nth(4) == Some("/")),
        root: kernel.switch,
        uid: kernel.uid,
    }
}

/// What a refusal means. Pure.
fn explain(step: Step, said: &str, facts: &Facts) -> Forbidden {
    let has = |text: &str| said.contains(text);
    if has("unrecognized option") || has("invalid option") || has("unknown option") {
        return Forbidden::OldProgram;
    }
    if has("setresuid") || has("setresgid") || has("setuid failed") || (has("setpriv") && has("Invalid argument")) {
        return Forbidden::UnmappedUser { uid: facts.uid };
    }
    if has("No space left on device") {
        return too_low(&facts.limits).unwrap_or(Forbidden::NamespacesUsedUp);
    }
    if has("Invalid argument") && has("unshare failed") {
        return Forbidden::NotBuiltIn;
    }
    if !has("Operation not permitted") && !has("Permission denied") {
        return Forbidden::Other { said: said.to_owned() };
    }
    if step == Step::Proc && has("proc") {
        return Forbidden::ProcCovered;
    }
    if facts.apparmor == Some(1) && (has("uid_map") || has("gid_map") || step != Step::User) {
        return Forbidden::AppArmor;
    }
    if facts.unprivileged_clone == Some(0) && !facts.root {
        return Forbidden::UnprivilegedCloneOff;
    }
    if facts.chroot {
        return Forbidden::Chroot;
    }
    if facts.apparmor == Some(1) {
        return Forbidden::AppArmor;
    }
    if facts.seccomp {
        return Forbidden::Seccomp;
    }
    Forbidden::Other { said: said.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts_with(change: impl FnOnce(&mut Facts)) -> Facts {
        let limits = ["user.max_user_namespaces", "user.max_pid_namespaces"].map(|n| (n.to_owned(), 9));
        let mut facts = Facts { limits: limits.into(), uid: 7, ..Facts::default() };
        change(&mut facts);
        facts
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let low = |name: &str, limit| Forbidden::NamespaceLimit { sysctl: name.to_owned(), limit };
        let eperm = "unshare: unshare failed: Operation not permitted";
        let enospc = "unshare: unshare failed: No space left on device";
        let map = "unshare: write failed /proc/self/uid_map: Operation not permitted";
        let proc = "unshare: mount /proc failed: Operation not permitted";
        let plain = facts_with(|_| {});
        let user_off = facts_with(|f| *f.limits.get_mut("user.max_user_namespaces").unwrap() = 0);
        let pid_off = facts_with(|f| *f.limits.get_mut("user.max_pid_namespaces").unwrap() = 0);
        let user_one = facts_with(|f| *f.limits.get_mut("user.max_user_namespaces").unwrap() = 1);
        let debian = facts_with(|f| f.unprivileged_clone = Some(0));
        let debian_root = facts_with(|f| (f.unprivileged_clone, f.root) = (Some(0), true));
        let ubuntu = facts_with(|f| f.apparmor = Some(1));
        let docker = facts_with(|f| f.seccomp = true);
        let chroot = facts_with(|f| f.chroot = true);
        for (step, said, facts, want) in [
            (Step::User, enospc, &user_off, low("user.max_user_namespaces", 0)),
            (Step::Everything, enospc, &pid_off, low("user.max_pid_namespaces", 0)),
            (Step::Everything, enospc, &user_one, low("user.max_user_namespaces", 1)),
            (Step::Nested, enospc, &user_one, low("user.max_user_namespaces", 1)),
            (Step::User, enospc, &plain, Forbidden::NamespacesUsedUp),
            (Step::User, eperm, &debian, Forbidden::UnprivilegedCloneOff),
            (Step::User, eperm, &docker, Forbidden::Seccomp),
            (Step::User, eperm, &chroot, Forbidden::Chroot),
            (Step::User, map, &ubuntu, Forbidden::AppArmor),
            (Step::Everything, eperm, &ubuntu, Forbidden::AppArmor),
            (Step::Proc, proc, &plain, Forbidden::ProcCovered),
            (Step::Everything, "unshare: unshare failed: Invalid argument", &plain, Forbidden::NotBuiltIn),
            (Step::User, "unshare: unrecognized option '--map-user=1'", &plain, Forbidden::OldProgram),
            (Step::User, "setpriv: setresuid failed: Invalid argument", &plain, Forbidden::UnmappedUser { uid: 7 }),
            (Step::User, eperm, &debian_root, Forbidden::Other { said: eperm.to_owned() }),
            (Step::User, "odd", &docker, Forbidden::Other { said: "odd".to_owned() }),
        ] {
            assert_eq!(explain(step, said, facts), want, "{step:?} {said}");
        }
    }

    #[tokio::test]
    async fn this_machine_can() {
        let tools = Tools::find().unwrap();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let kernel = match uid {
            0 => Kernel { uid: 0x7000_0001, gid: 0x7000_0001, switch: true },
            _ => Kernel { uid, gid, switch: false },
        };
        probe(&Spawner::new().unwrap(), &Handle::current(), &tools, kernel).await.unwrap();
    }
}
