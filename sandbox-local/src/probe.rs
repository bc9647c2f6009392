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
use crate::parse::status_field;
use crate::spawn::Spawner;
use crate::tools::Tools;

/// What keeps this machine from making sandboxes: the source of the error that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forbidden {
    /// A sysctl of the user namespaces, `user.max_*_namespaces`, is 0 here.
    NamespaceLimit {
        /// The name of the sysctl.
        sysctl: String,
    },
    /// The kernel has no room for another namespace, though no limit of this one is 0: user namespaces are nested too deep, or a limit
    /// further up is used up.
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
            Self::NamespaceLimit { sysctl } => write!(f, "the sysctl {sysctl} is 0: set it higher"),
            Self::NamespacesUsedUp => f.write_str(
                "the kernel has no room for another namespace: they are nested too deep, or an outer limit is used up",
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
                write!(f, "user {uid} does not exist in this user namespace: choose another first_uid")
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

/// Tries what making a sandbox takes, piece by piece, and says which piece is forbidden by what.
pub(crate) async fn probe(spawner: &Spawner, runtime: &Handle, tools: &Tools, kernel: Kernel) -> Result<(), Error> {
    for step in STEPS {
        if let Some(said) = attempt(spawner, runtime, tools, kernel, step).await? {
            let cause = explain(step, &said, &facts(kernel));
            return Err(Error::new(ErrorKind::Unavailable).because(cause.to_string()).caused_by(cause));
        }
    }
    Ok(())
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
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let mut limits = BTreeMap::new();
    for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let name = format!("max_{kind}_namespaces");
        if let Some(limit) = number(&format!("/proc/sys/user/{name}")) {
            limits.insert(format!("user.{name}"), limit);
        }
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    Facts {
        limits,
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
        let zero = facts.limits.iter().find(|(_, limit)| **limit == 0);
        // A limit of 1 is used up by the outer of the two.
        let one =
            facts.limits.get_key_value("user.max_user_namespaces").filter(|(_, n)| step == Step::Nested && **n == 1);
        return match zero.or(one) {
            Some((sysctl, _)) => Forbidden::NamespaceLimit { sysctl: sysctl.clone() },
            None => Forbidden::NamespacesUsedUp,
        };
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
        let zero = |name: &str| Forbidden::NamespaceLimit { sysctl: name.to_owned() };
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
            (Step::User, enospc, &user_off, zero("user.max_user_namespaces")),
            (Step::Everything, enospc, &pid_off, zero("user.max_pid_namespaces")),
            (Step::Nested, enospc, &user_one, zero("user.max_user_namespaces")),
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
