//! Shows what stands in the way of a node on this machine, before anything is changed: a line for each finding, and the grants
//! a node here would get. Exits with 1 if an installation could not go on.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::process::ExitCode;
use std::time::Duration;

use isolation::discover::Discovery;
use isolation::preflight::{HostView, Input, Preflight};
use isolation::{KernelReq, Mode, OpCtx, Requirements};

#[tokio::main]
async fn main() -> ExitCode {
    let mut kernel = KernelReq::default();
    kernel.cgroup_v2 = true;
    kernel.controllers = ["cpu", "cpuset", "io", "memory", "pids"].map(str::to_owned).to_vec();
    kernel.modules = ["overlay", "br_netfilter"].map(str::to_owned).to_vec();
    let needs = ["systemctl", "machinectl", "systemd-nspawn", "systemd-run", "journalctl"]
        .into_iter()
        .fold(Requirements::default(), Requirements::with_command)
        .with_package("systemd-container")
        .with_writable_path("/var/lib/machines")
        .with_writable_path("/etc/systemd/nspawn")
        .with_systemd_min(249)
        .with_kernel(kernel);
    let grants = Discovery::new("/").grants();
    println!("a node here would get {} grants", grants.len());
    for grant in &grants {
        println!(
            "  {} for {}: {}",
            grant.kind(),
            grant.purpose(),
            grant.source().map_or("-", |source| source.as_str())
        );
    }
    let input = Input::new(Mode::Nspawn, needs).with_grants(grants).with_roots("/var/lib/machines", 8 << 30);
    let ctx = OpCtx::new(Duration::from_secs(60));
    let report = Preflight::new(input).ignore("swap-active").run(&ctx, &HostView::this()).await;
    println!("{report}");
    if report.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
