//! The command lines of the host's programs. Pure.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::inherited::Inherited;
use crate::share::Share;
use crate::tools::Tools;

const LAUNCH: &str = include_str!("scripts/launch.bash");
const SETUP: &str = include_str!("scripts/setup.bash");
const SHELL: [&str; 3] = ["--norc", "--noprofile", "-p"];

/// Who the host's programs run as: never kernel user 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kernel {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Whether the caller is somebody else and has to become this user first.
    pub(crate) switch: bool,
}

/// What comes before everything else.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Prelude<'a> {
    pub(crate) inherited: Inherited,
    /// Control group files to join.
    pub(crate) join: &'a [PathBuf],
}

/// What makes a sandbox.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) kernel: Kernel,
    /// The user and group that the tenant sees.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// A network of its own.
    pub(crate) own_network: bool,
    /// The most processes and threads.
    pub(crate) processes: Option<u64>,
    /// The new root is somebody else's: no program of it may run before the old one is gone.
    pub(crate) foreign: bool,
    pub(crate) share: &'a Share,
    pub(crate) prelude: Prelude<'a>,
}

/// What enters a sandbox.
#[derive(Debug)]
pub(crate) struct Enter<'a> {
    pub(crate) kernel: Kernel,
    /// Lives in the outer user namespace.
    pub(crate) parent: i32,
    /// Lives in the inner one and in all others.
    pub(crate) init: i32,
    pub(crate) own_network: bool,
    pub(crate) prelude: Prelude<'a>,
}

/// Makes a sandbox: descriptors and working directory as the script says.
pub(crate) fn start(tools: &Tools, start: &Start<'_>) -> Vec<OsString> {
    let mut argv = launch(tools, start.prelude);
    become_user(&mut argv, tools, start.kernel);
    argv.push(tools.unshare.clone().into());
    extend(&mut argv, &["--user", "--map-root-user", "--mount", "--pid", "--ipc", "--uts", "--cgroup"]);
    if start.own_network {
        argv.push("--net".into());
    }
    extend(&mut argv, &["--fork", "--kill-child=SIGKILL", "--"]);
    argv.push(tools.bash.clone().into());
    extend(&mut argv, &SHELL);
    extend(&mut argv, &["-c", SETUP, "sandbox"]);
    for path in [&tools.mount, &tools.pivot_root, &tools.unshare, &tools.env, &tools.sleep] {
        argv.push(path.clone().into());
    }
    let ip = tools.ip.as_ref().filter(|_| start.own_network);
    argv.push(ip.map(OsString::from).unwrap_or_default());
    argv.push(tools.hostname.as_ref().map(OsString::from).unwrap_or_default());
    argv.push(start.uid.to_string().into());
    argv.push(start.gid.to_string().into());
    argv.push(start.processes.map(|n| n.to_string()).unwrap_or_default().into());
    argv.push(if start.foreign { OsString::new() } else { tools.umount.clone().into() });
    argv.push(start.share.counts.clone().into());
    argv.push(start.share.rlimits.clone().into());
    argv
}

/// Lets go of the old root of a sandbox whose new one is foreign. It runs from the old root, which it takes for its own: from there
/// come program, loader and libraries, and from there the old root is `/`.
pub(crate) fn detach(tools: &Tools, enter: &Enter<'_>) -> Vec<OsString> {
    let mut argv = enter_outer(tools, enter);
    argv.push(tools.nsenter.clone().into());
    argv.push("--preserve-credentials".into());
    for (option, file) in [("mount", "ns/mnt"), ("root", "root/.old")] {
        argv.push(format!("--{option}=/proc/{}/{file}", enter.init).into());
    }
    argv.push("--".into());
    argv.push(tools.umount.clone().into());
    extend(&mut argv, &["-n", "-l", "/"]);
    argv
}

/// Enters a sandbox and becomes a shell there. Two steps: a plain user may join the inner user namespace and what belongs to the outer
/// one only from within the outer one.
pub(crate) fn enter(tools: &Tools, enter: &Enter<'_>) -> Vec<OsString> {
    let mut argv = enter_outer(tools, enter);
    argv.push(tools.nsenter.clone().into());
    extend(&mut argv, &["--preserve-credentials", "--target"]);
    argv.push(enter.init.to_string().into());
    extend(&mut argv, &["--mount", "--pid", "--ipc", "--uts", "--cgroup", "--user"]);
    if enter.own_network {
        argv.push("--net".into());
    }
    extend(&mut argv, &["--", "/bin/bash"]);
    extend(&mut argv, &SHELL);
    argv
}

/// The first step: into the outer user namespace.
fn enter_outer(tools: &Tools, enter: &Enter<'_>) -> Vec<OsString> {
    let mut argv = launch(tools, enter.prelude);
    become_user(&mut argv, tools, enter.kernel);
    argv.push(tools.nsenter.clone().into());
    argv.push("--preserve-credentials".into());
    argv.push(format!("--user=/proc/{}/ns/user", enter.parent).into());
    argv.push("--".into());
    argv
}

/// Runs `command` as whoever makes sandboxes, for a trial.
pub(crate) fn trial(tools: &Tools, kernel: Kernel, command: &[&str]) -> Vec<OsString> {
    let mut argv = launch(tools, Prelude::default());
    become_user(&mut argv, tools, kernel);
    argv.push(tools.unshare.clone().into());
    extend(&mut argv, command);
    argv
}

/// Joins control groups and ends, for a trial.
pub(crate) fn join_and_end(tools: &Tools, join: &[PathBuf]) -> Vec<OsString> {
    let mut argv = launch(tools, Prelude { inherited: Inherited { unclean: true, ..Inherited::default() }, join });
    argv.push(tools.sleep.clone().into());
    argv.push("0".into());
    argv
}

/// Leaves the caller behind, in as few programs as it takes. Who has no terminal needs no session of its own, only the process group
/// that [`spawn`](crate::spawn::Spawner::spawn) gives it.
fn launch(tools: &Tools, prelude: Prelude<'_>) -> Vec<OsString> {
    let Prelude { inherited, join } = prelude;
    let mut argv = Vec::new();
    if inherited.unclean || !join.is_empty() {
        argv.push(tools.bash.clone().into());
        extend(&mut argv, &SHELL);
        extend(&mut argv, &["-c", LAUNCH, "launch"]);
        argv.extend(join.iter().map(OsString::from));
        argv.push("--".into());
    }
    if inherited.signals {
        argv.push(tools.env.clone().into());
        extend(&mut argv, &["-i", "--default-signal"]);
    }
    if inherited.terminal {
        argv.push(tools.setsid.clone().into());
        argv.push("--wait".into());
    }
    argv
}

fn become_user(argv: &mut Vec<OsString>, tools: &Tools, kernel: Kernel) {
    if kernel.switch {
        argv.push(tools.setpriv.clone().into());
        argv.push(format!("--reuid={}", kernel.uid).into());
        argv.push(format!("--regid={}", kernel.gid).into());
        extend(argv, &["--clear-groups", "--"]);
    }
}

fn extend(argv: &mut Vec<OsString>, words: &[&str]) {
    argv.extend(words.iter().map(OsString::from));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Tools {
        let bin = |name: &str| PathBuf::from("/usr/bin").join(name);
        Tools {
            bash: bin("bash"),
            setsid: bin("setsid"),
            setpriv: bin("setpriv"),
            unshare: bin("unshare"),
            nsenter: bin("nsenter"),
            mount: bin("mount"),
            umount: bin("umount"),
            pivot_root: "/usr/sbin/pivot_root".into(),
            env: bin("env"),
            sleep: bin("sleep"),
            ip: Some(bin("ip")),
            hostname: None,
        }
    }

    /// One line, the scripts by their names.
    fn line(argv: &[OsString]) -> String {
        let word = |w: &OsString| match w.to_str() {
            Some(LAUNCH) => "<launch.bash>".to_owned(),
            Some(SETUP) => "<setup.bash>".to_owned(),
            Some("") => "''".to_owned(),
            Some(w) => w.to_owned(),
            None => panic!("{w:?}"),
        };
        argv.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    const USER: Kernel = Kernel { uid: 1001, gid: 1001, switch: false };
    const ROOT: Kernel = Kernel { uid: 1_879_048_200, gid: 1_879_048_200, switch: true };

    #[test]
    fn start_as_a_user() {
        let how = Start {
            kernel: USER,
            uid: 1000,
            gid: 1000,
            own_network: true,
            processes: None,
            foreign: false,
            share: &Share { counts: "max_x=1".to_owned(), rlimits: "-i 2".to_owned() },
            prelude: Prelude::default(),
        };
        assert_eq!(
            line(&start(&tools(), &how)),
            "/usr/bin/unshare --user --map-root-user --mount --pid --ipc --uts --cgroup --net --fork --kill-child=SIGKILL -- \
             /usr/bin/bash --norc --noprofile -p -c <setup.bash> sandbox /usr/bin/mount /usr/sbin/pivot_root /usr/bin/unshare \
             /usr/bin/env /usr/bin/sleep /usr/bin/ip '' 1000 1000 '' /usr/bin/umount max_x=1 -i 2"
        );
    }

    #[test]
    fn start_as_root_with_limits_on_the_hosts_network() {
        let join = [PathBuf::from("/sys/fs/cgroup/x/cgroup.procs")];
        let inherited = Inherited { unclean: true, signals: true, terminal: true };
        let prelude = Prelude { inherited, join: &join };
        let share = &Share::default();
        let processes = Some(64);
        let how = Start { kernel: ROOT, uid: 7, gid: 8, own_network: false, processes, foreign: true, share, prelude };
        assert_eq!(
            line(&start(&tools(), &how)),
            "/usr/bin/bash --norc --noprofile -p -c <launch.bash> launch /sys/fs/cgroup/x/cgroup.procs -- \
             /usr/bin/env -i --default-signal /usr/bin/setsid --wait \
             /usr/bin/setpriv --reuid=1879048200 --regid=1879048200 --clear-groups -- \
             /usr/bin/unshare --user --map-root-user --mount --pid --ipc --uts --cgroup --fork --kill-child=SIGKILL -- \
             /usr/bin/bash --norc --noprofile -p -c <setup.bash> sandbox /usr/bin/mount /usr/sbin/pivot_root /usr/bin/unshare \
             /usr/bin/env /usr/bin/sleep '' '' 7 8 64 '' '' ''"
        );
    }

    #[test]
    fn enter_in_two_steps() {
        let mut how = Enter { kernel: USER, parent: 41, init: 42, own_network: true, prelude: Prelude::default() };
        assert_eq!(
            line(&enter(&tools(), &how)),
            "/usr/bin/nsenter --preserve-credentials --user=/proc/41/ns/user -- \
             /usr/bin/nsenter --preserve-credentials --target 42 --mount --pid --ipc --uts --cgroup --user --net -- \
             /bin/bash --norc --noprofile -p"
        );
        how.prelude.inherited.terminal = true;
        how.own_network = false;
        assert_eq!(
            line(&enter(&tools(), &how)),
            "/usr/bin/setsid --wait /usr/bin/nsenter --preserve-credentials --user=/proc/41/ns/user -- \
             /usr/bin/nsenter --preserve-credentials --target 42 --mount --pid --ipc --uts --cgroup --user -- \
             /bin/bash --norc --noprofile -p"
        );
        how.kernel = ROOT;
        how.prelude.inherited = Inherited { unclean: true, ..Inherited::default() };
        assert_eq!(
            line(&enter(&tools(), &how)),
            "/usr/bin/bash --norc --noprofile -p -c <launch.bash> launch -- \
             /usr/bin/setpriv --reuid=1879048200 --regid=1879048200 --clear-groups -- \
             /usr/bin/nsenter --preserve-credentials --user=/proc/41/ns/user -- \
             /usr/bin/nsenter --preserve-credentials --target 42 --mount --pid --ipc --uts --cgroup --user -- \
             /bin/bash --norc --noprofile -p"
        );
    }

    #[test]
    fn detach_from_the_old_root() {
        let how = Enter { kernel: USER, parent: 41, init: 42, own_network: true, prelude: Prelude::default() };
        assert_eq!(
            line(&detach(&tools(), &how)),
            "/usr/bin/nsenter --preserve-credentials --user=/proc/41/ns/user -- \
             /usr/bin/nsenter --preserve-credentials --mount=/proc/42/ns/mnt --root=/proc/42/root/.old -- /usr/bin/umount -n -l /"
        );
    }

    #[test]
    fn no_script_is_too_long_for_an_argument() {
        assert!(LAUNCH.len() < 8192 && SETUP.len() < 8192);
    }
}
