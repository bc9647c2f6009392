//! The checks that fit every backend.

mod deployment;
mod devices;
mod kernel;
mod system;

use async_trait::async_trait;

use super::{Check, Finding, HostView, Input};
use crate::OpCtx;

/// A check that is a name and a function that only reads files.
struct Plain(&'static str, fn(&HostView, &Input) -> Vec<Finding>);

impl std::fmt::Debug for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

#[async_trait]
impl Check for Plain {
    fn name(&self) -> &str {
        self.0
    }

    async fn run(&self, _: &OpCtx, host: &HostView, input: &Input) -> Vec<Finding> {
        // Reading /proc and /sys may take a while on a big machine.
        let (look, host, input) = (self.1, host.clone(), input.clone());
        let looked = tokio::task::spawn_blocking(move || look(&host, &input)).await;
        looked.unwrap_or_else(|_| vec![Finding::error("check", "the check itself failed")])
    }
}

/// All of them, in the order of a report.
pub(super) fn all() -> Vec<Box<dyn Check>> {
    vec![
        Box::new(Plain("is-privileged-user", system::privileged)),
        Box::new(system::Packages),
        Box::new(Plain("host-commands", system::commands)),
        Box::new(system::Systemd),
        Box::new(Plain("writable-paths", system::writable)),
        Box::new(Plain("disk-space", system::disk_space)),
        Box::new(Plain("cgroups", kernel::cgroups)),
        Box::new(Plain("existing-deployment", deployment::existing)),
        Box::new(Plain("machine-provisioning", deployment::provisioning)),
        Box::new(Plain("swap-active", kernel::swap)),
        Box::new(Plain("docker-active", deployment::docker)),
        Box::new(Plain("sysctls", kernel::sysctls)),
        Box::new(Plain("kernel-modules", kernel::modules)),
        Box::new(Plain("selinux-apparmor", kernel::security_modules)),
        Box::new(Plain("port-conflicts", deployment::ports)),
        Box::new(Plain("foreign-kubelet", deployment::foreign_kubelet)),
        Box::new(devices::Nvidia),
        Box::new(Plain("grants", devices::grants)),
        Box::new(Plain("pair-consistency", deployment::pair)),
        Box::new(Plain("mode-opt-in", deployment::opt_in)),
    ]
}
