//! Privilege, packages, programs, systemd, places to write.

use async_trait::async_trait;
use rustix::fs::{Access, AtFlags, CWD, FsWord, PROC_SUPER_MAGIC, StatVfsMountFlags};

use crate::OpCtx;
use crate::preflight::{Check, Finding, HostView, Input};

pub(super) fn privileged(host: &HostView, _: &Input) -> Vec<Finding> {
    vec![if host.is_privileged() {
        Finding::ok("effective user")
    } else {
        Finding::error("effective user", "is not root")
    }]
}

#[derive(Debug)]
pub(super) struct Packages;

#[async_trait]
impl Check for Packages {
    fn name(&self) -> &str {
        "host-packages"
    }

    async fn run(&self, ctx: &OpCtx, host: &HostView, input: &Input) -> Vec<Finding> {
        let packages = &input.requirements.host_packages;
        if packages.is_empty() {
            return Vec::new();
        }
        let (view, wanted) = (host.clone(), packages.clone());
        let looked = tokio::task::spawn_blocking(move || {
            let managed = ["apt-get", "tdnf", "dnf"].iter().any(|manager| view.has_program(manager));
            let debian = view.exists("/var/lib/dpkg/info");
            (managed, debian.then(|| wanted.iter().map(|package| debian_has(&view, package)).collect::<Vec<_>>()))
        });
        let Ok((managed, debian)) = looked.await else {
            return vec![Finding::error("check", "the check itself failed")];
        };
        if !managed {
            return vec![Finding::error("package manager", "is none of apt-get, tdnf and dnf")];
        }
        let mut found = Vec::new();
        for (n, package) in packages.iter().enumerate() {
            let installed = match &debian {
                Some(installed) => installed[n],
                None => host.ask(ctx, "rpm", ["-q", "--", package]).await.is_some(),
            };
            found.push(match (installed, input.offline) {
                (true, _) => Finding::ok(package),
                (false, false) => Finding::warning(package, "is not installed, and can be"),
                (false, true) => Finding::error(package, "is not installed, and the host is offline"),
            });
        }
        found
    }
}

/// A package of one architecture has that in the name of its list.
fn debian_has(host: &HostView, package: &str) -> bool {
    host.exists(format!("/var/lib/dpkg/info/{package}.list"))
        || host.list("/var/lib/dpkg/info").iter().any(|name| {
            name.strip_suffix(".list").and_then(|name| name.split_once(':')).is_some_and(|(name, _)| name == package)
        })
}

pub(super) fn commands(host: &HostView, input: &Input) -> Vec<Finding> {
    let missing = |target: String| match input.offline {
        false if !input.requirements.host_packages.is_empty() => {
            Finding::warning(target, "is missing, and a missing package may bring it")
        }
        _ => Finding::error(target, "is missing"),
    };
    let needs = input.requirements.host_commands.iter();
    needs
        .map(|need| match need.names().iter().any(|name| host.has_program(name)) {
            true => Finding::ok(need.to_string()),
            false => missing(need.to_string()),
        })
        .collect()
}

#[derive(Debug)]
pub(super) struct Systemd;

#[async_trait]
impl Check for Systemd {
    fn name(&self) -> &str {
        "systemd-runtime"
    }

    async fn run(&self, ctx: &OpCtx, host: &HostView, input: &Input) -> Vec<Finding> {
        let view = host.clone();
        let looked =
            tokio::task::spawn_blocking(move || (view.exists("/run/systemd/system"), view.read("/proc/1/comm")));
        match looked.await {
            Err(_) => return vec![Finding::error("check", "the check itself failed")],
            Ok((false, _)) => return vec![Finding::error("systemd", "does not run this host")],
            Ok((_, Some(name))) if name.trim() != "systemd" => {
                return vec![Finding::error("process 1", "is not systemd")];
            }
            Ok(_) => {}
        }
        let Some(min) = input.requirements.systemd_min else { return vec![Finding::ok("systemd")] };
        let text = host.ask(ctx, "systemctl", ["--version"]).await.unwrap_or_default();
        let version = text.split_whitespace().nth(1).and_then(|word| word.split(['.', '~', '-']).next()?.parse().ok());
        vec![match version {
            Some(version) if min <= version => Finding::ok("systemd"),
            Some(version) => Finding::error("systemd", format!("is {version}, and {min} is needed")),
            None => Finding::error("systemd", "does not tell its version"),
        }]
    }
}

/// What `/sys` is, from `linux/magic.h`.
const SYSFS_MAGIC: FsWord = 0x6265_6572;

/// Asks the kernel rather than trying: a check leaves no file, not even for a moment.
pub(super) fn writable(host: &HostView, input: &Input) -> Vec<Finding> {
    let paths = input.requirements.writable_paths.iter();
    paths
        .map(|path| {
            let (shown, near) = (path.display().to_string(), host.nearest(path));
            let read_only = rustix::fs::statvfs(&near).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY));
            let allowed = rustix::fs::accessat(CWD, &near, Access::WRITE_OK, AtFlags::EACCESS);
            // The kernel's own trees take no new files, whatever their modes say.
            let kernels =
                rustix::fs::statfs(&near).is_ok_and(|fs| [PROC_SUPER_MAGIC, SYSFS_MAGIC].contains(&fs.f_type));
            if !path.is_absolute() {
                Finding::error(shown, "is not an absolute path")
            } else if near != host.path(path) && !near.is_dir() {
                Finding::error(shown, format!("can't be made: {} is no directory", near.display()))
            } else if kernels && near != host.path(path) {
                Finding::error(shown, "can't be made: nothing can in what the kernel shows of itself")
            } else if read_only {
                Finding::error(shown, "is on a read-only file system")
            } else if allowed.is_err() {
                Finding::error(shown, "can't be written to")
            } else {
                Finding::ok(shown)
            }
        })
        .collect()
}

pub(super) fn disk_space(host: &HostView, input: &Input) -> Vec<Finding> {
    let shown = input.roots.display().to_string();
    let Ok(fs) = rustix::fs::statvfs(host.nearest(&input.roots)) else {
        return vec![Finding::error(shown, "does not tell its free space")];
    };
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    vec![if free >= input.free_bytes {
        Finding::ok(shown)
    } else {
        Finding::error(shown, format!("has {:.1} GiB free of {:.1} needed", gib(free), gib(input.free_bytes)))
    }]
}
