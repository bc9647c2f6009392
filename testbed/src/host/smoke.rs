//! Smoke tests of a systemd host.

use std::time::{Duration, Instant};

use super::vm::Vm;
use super::{Host, RootFs};
use crate::error::{Context as _, Error, Result};
use crate::process::{Stream, Task};
use crate::tally::{Checks, Counts, Tally};

const SCRIPT: &str = include_str!("../../scripts/host-smoke.sh");

/// What a host shows of the folder that this program lies in.
pub(crate) fn bind() -> Result<String> {
    let me = std::env::current_exe().doing(|| "find this program".to_owned())?;
    let dir = me.parent().ok_or_else(|| Error::new("this program lies nowhere"))?;
    Ok(format!("{}:/mnt/bin", dir.display()))
}

/// Runs the script inside and counts what it prints.
pub(crate) fn run(host: &Host, rootfs: &RootFs, tally: &mut Tally) -> Result<()> {
    let subject = format!("host {}", host.bed.state.version);
    let inside = |path: &std::path::Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        format!("/var/cache/testbed/{name}")
    };
    let words = ["bash", "-c", SCRIPT, "host-smoke.sh", &inside(&rootfs.node), &inside(&rootfs.image)];
    script(&subject, host.task(&words, Duration::from_secs(600))?, tally)?;
    let mut checks = Checks::of(subject, tally);
    checks.run("a program built outside runs inside, its output and exit code come through", || {
        let quick = Duration::from_secs(30);
        let help = host.task(&["/mnt/bin/testbed", "--help"], quick)?.stdout()?;
        if !help.contains("cargo testbed") {
            return Err(Error::new(format!("unexpected output: {help}")));
        }
        let wrong = host.task(&["/mnt/bin/testbed", "no-such-command"], quick)?.capture()?.ended.to_string();
        if wrong.ends_with("exit status: 2") { Ok(()) } else { Err(Error::new(wrong)) }
    })
}

/// What only a virtual machine can show; with `slow` also everything that a host in namespaces shows.
pub(crate) fn run_vm(vm: &Vm, slow: bool, tally: &mut Tally) -> Result<()> {
    let subject = format!("vm {}", vm.bed.state.version);
    let mut checks = Checks::of(subject.as_str(), tally);
    let limit = Duration::from_secs(120);
    checks.run("cgroup v2 has the controllers", || {
        let got = vm.task(&["cat", "/sys/fs/cgroup/cgroup.controllers"], limit)?.stdout()?;
        let missing: Vec<_> =
            ["cpu", "memory", "pids"].iter().filter(|name| !got.split_whitespace().any(|has| has == **name)).collect();
        if missing.is_empty() { Ok(()) } else { Err(Error::new(format!("missing {missing:?} in {got}"))) }
    })?;
    checks.run("a unit over its memory limit is killed, and systemd knows why", || {
        let eat = "systemd-run --quiet --unit=eater -p MemoryMax=20M -p MemorySwapMax=0 --wait tail /dev/zero; \
                   journalctl -u eater --no-pager -o cat | grep -c oom-kill";
        let got = vm.task(&["sh", "-c", eat], limit)?.stdout()?;
        if got.trim() == "0" { Err(Error::new("no word of an out-of-memory kill")) } else { Ok(()) }
    })?;
    checks.run("a program built outside runs inside, its output and exit code come through", || {
        let me = std::env::current_exe().doing(|| "find this program".to_owned())?;
        vm.put(&me, "/root/testbed")?;
        let help = vm.task(&["/root/testbed", "--help"], limit)?.stdout()?;
        if !help.contains("cargo testbed") {
            return Err(Error::new(format!("unexpected output: {help}")));
        }
        let wrong = vm.task(&["/root/testbed", "no-such-command"], limit)?.capture()?.ended.to_string();
        if wrong.ends_with("exit status: 2") { Ok(()) } else { Err(Error::new(wrong)) }
    })?;
    if slow {
        let words =
            ["bash", "-c", SCRIPT, "host-smoke.sh", "/var/cache/testbed/node.tar", "/var/cache/testbed/busybox.tar"];
        script(&subject, vm.task(&words, Duration::from_secs(1200))?, tally)?;
    }
    Ok(())
}

/// Counts the `pass` and `fail` lines of a script; one that ends before its time counts as a failure.
pub(crate) fn script(subject: &str, task: Task, tally: &mut Tally) -> Result<()> {
    let mut started = Instant::now();
    let mut seen = 0;
    let ended = task.lines(|stream, line| {
        let verdict =
            line.split_once(' ').filter(|(verdict, _)| stream == Stream::Out && ["pass", "fail"].contains(verdict));
        let Some((verdict, name)) = verdict else {
            println!("{subject}: {line}");
            return;
        };
        let passed = u64::from(verdict == "pass");
        println!("{subject}: {name} ... {}", if passed == 1 { "ok" } else { "FAILED" });
        tally.push(format!("{subject}: {name}"), Counts { passed, failed: 1 - passed, ignored: 0 }, started);
        started = Instant::now();
        seen += 1;
    })?;
    if seen == 0 || !ended.success() {
        println!("{subject}: the script broke off: {ended}");
        tally.push(
            format!("{subject}: the script runs to its end"),
            Counts { failed: 1, ..Counts::default() },
            started,
        );
    }
    Ok(())
}
