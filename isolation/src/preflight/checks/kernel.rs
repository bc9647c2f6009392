//! What the kernel offers and how it is set.

use crate::Mode;
use crate::preflight::{Finding, HostView, Input};

pub(super) fn cgroups(host: &HostView, input: &Input) -> Vec<Finding> {
    let kernel = &input.requirements.kernel;
    if !kernel.cgroup_v2 && kernel.controllers.is_empty() {
        return vec![if host.exists("/sys/fs/cgroup") {
            Finding::ok("control groups")
        } else {
            Finding::error("control groups", "are not mounted")
        }];
    }
    let Some(available) = host.read("/sys/fs/cgroup/cgroup.controllers") else {
        return vec![Finding::error("control groups", "are not the unified hierarchy")];
    };
    let mut found = vec![Finding::ok("control groups")];
    let delegated = host.read("/sys/fs/cgroup/cgroup.subtree_control").unwrap_or_default();
    for controller in &kernel.controllers {
        let is_in = |text: &str| text.split_whitespace().any(|word| word == controller);
        found.push(match (is_in(&available), is_in(&delegated)) {
            (true, true) => Finding::ok(controller),
            (true, false) => Finding::warning(controller, "is available and not delegated yet"),
            (false, _) => Finding::error(controller, "is not available"),
        });
    }
    found
}

pub(super) fn swap(host: &HostView, _: &Input) -> Vec<Finding> {
    let areas = host.read("/proc/swaps").map_or(0, |text| text.lines().skip(1).filter(|l| !l.is_empty()).count());
    vec![match areas {
        0 => Finding::ok("swap"),
        count => Finding::warning("swap", format!("is active, in {count} areas")),
    }]
}

/// Only where the node can't set them itself: inside an nspawn machine `/proc/sys` is read-only.
pub(super) fn sysctls(host: &HostView, input: &Input) -> Vec<Finding> {
    if input.mode != Mode::Nspawn {
        return Vec::new();
    }
    let settings = input.sysctls.iter();
    settings
        .map(|(name, wanted)| match host.read(format!("/proc/sys/{}", name.replace('.', "/"))) {
            Some(value) if value.split_whitespace().eq(wanted.split_whitespace()) => Finding::ok(name),
            Some(_) => Finding::error(name, format!("is not {wanted}, as it has to be")),
            None => Finding::error(name, "does not exist"),
        })
        .collect()
}

pub(super) fn modules(host: &HostView, input: &Input) -> Vec<Finding> {
    let kernel = &input.requirements.kernel;
    let release = host.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut found = Vec::new();
    if let Some(min) = kernel.min_version {
        let mut numbers = release.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
        let version = [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)];
        found.push(if version >= min {
            Finding::ok("kernel")
        } else {
            Finding::error("kernel", format!("is {}.{}, and {}.{} is needed", version[0], version[1], min[0], min[1]))
        });
    }
    if kernel.modules.is_empty() {
        return found;
    }
    let loaded = host.read("/proc/modules").unwrap_or_default();
    let dir = |file: &str| host.read(format!("/lib/modules/{release}/{file}")).unwrap_or_default();
    let (built_in, loadable) = (dir("modules.builtin"), dir("modules.dep"));
    for module in &kernel.modules {
        // A module is the same with a dash and with an underscore; a file may be compressed.
        let same = |name: &str| name.replace('-', "_") == module.replace('-', "_");
        let file = |line: &str| {
            let path = line.split(':').next().unwrap_or("");
            same(path.rsplit('/').next().unwrap_or("").split(".ko").next().unwrap_or(""))
        };
        let there = loaded.lines().any(|line| same(line.split(' ').next().unwrap_or("")))
            || host.exists(format!("/sys/module/{}", module.replace('-', "_")))
            || built_in.lines().any(file)
            || loadable.lines().any(file);
        found.push(if there {
            Finding::ok(module)
        } else {
            Finding::error(module, "is neither loaded nor built in nor loadable")
        });
    }
    found
}

pub(super) fn security_modules(host: &HostView, input: &Input) -> Vec<Finding> {
    if input.mode == Mode::None {
        return Vec::new();
    }
    let is_one = |path: &str| host.read(path).is_some_and(|value| value.trim() == "1");
    let mut found = Vec::new();
    if is_one("/sys/fs/selinux/enforce") {
        found.push(Finding::warning("SELinux", "enforces, which is known to break image locks"));
    }
    if is_one("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") {
        found.push(Finding::warning("AppArmor", "limits user namespaces"));
    }
    if found.is_empty() {
        found.push(Finding::ok("security modules"));
    }
    found
}
