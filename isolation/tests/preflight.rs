//! Preflight over made-up machines: what each check says, and that none changes anything.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use isolation::preflight::{Check, Finding, HostView, Input, Preflight, Report, Severity};
use isolation::*;

/// A machine with some programs, which print what they are told to.
#[derive(Debug, Default)]
struct Programs(BTreeMap<&'static str, &'static str>);

#[async_trait]
impl HostRunner for Programs {
    fn resolve(&self, program: &str) -> Option<PathBuf> {
        self.0.contains_key(program).then(|| PathBuf::from("/bin").join(program))
    }

    async fn run(&self, _: &OpCtx, command: HostCommand) -> Result<ExecOutput> {
        match self.0.get(command.program.as_str()) {
            Some(text) => Ok(ExecOutput::new(ExecStatus::Exited(0)).with_stdout(*text)),
            None => Err(Error::new(ErrorKind::CommandNotFound, "run")),
        }
    }

    fn log(&self, _: HostCommand) -> Result<LogStream> {
        Err(Error::new(ErrorKind::Unsupported, "log"))
    }

    fn stream(&self, _: HostCommand) -> Result<ExecStream> {
        Err(Error::new(ErrorKind::Unsupported, "stream"))
    }
}

struct Machine {
    dir: tempfile::TempDir,
    programs: Vec<(&'static str, &'static str)>,
    privileged: bool,
}

impl Machine {
    /// One on which all is well.
    fn good() -> Self {
        let machine = Self {
            dir: tempfile::tempdir().unwrap(),
            programs: vec![("apt-get", ""), ("systemctl", "systemd 252 (252.30)\n+PAM"), ("podman", "")],
            privileged: true,
        };
        for (file, text) in [
            ("run/systemd/system/.keep", ""),
            ("proc/1/comm", "systemd\n"),
            ("proc/swaps", "Filename Type\n"),
            ("proc/modules", "overlay 1 0 - Live 0x0\n"),
            ("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n"),
            ("proc/sys/vm/overcommit_memory", "1\n"),
            ("proc/net/tcp", "  sl local\n   0: 00000000:0016 00000000:0000 0A 0\n"),
            ("proc/devices", "Character devices:\n 13 input\n\nBlock devices:\n  8 sd\n"),
            ("lib/modules/6.1.0-18-amd64/modules.dep", "kernel/net/bridge/br_netfilter.ko.xz: x\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n"),
            ("sys/fs/cgroup/cgroup.subtree_control", "cpu memory pids\n"),
            ("var/lib/dpkg/info/curl.list", ""),
            ("var/lib/dpkg/info/libc6:amd64.list", ""),
            ("dev/kvm", ""),
        ] {
            machine.put(file, text);
        }
        machine
    }

    fn put(&self, file: &str, text: &str) {
        let path = self.dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.dir.path().join(path);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    }

    fn view(&self) -> HostView {
        let programs = Programs(self.programs.iter().copied().collect());
        HostView::at(self.dir.path(), Arc::new(programs), self.privileged)
    }

    /// Runs every check, and sees that none has changed anything.
    async fn check(&self, input: Input) -> Report {
        let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
        snapshot(self.dir.path(), &mut before);
        let report = Preflight::new(input).run(&OpCtx::new(Duration::from_secs(30)), &self.view()).await;
        snapshot(self.dir.path(), &mut after);
        assert_eq!(before, after, "{report}");
        report
    }
}

fn input() -> Input {
    let mut kernel = KernelReq::default();
    kernel.cgroup_v2 = true;
    kernel.min_version = Some([5, 10]);
    kernel.controllers = vec!["cpu".to_owned(), "memory".to_owned()];
    kernel.modules = vec!["overlay".to_owned(), "br-netfilter".to_owned()];
    let needs = Requirements::default()
        .with_package("curl")
        .with_package("libc6")
        .with_command("systemctl")
        .with_any_command(["docker", "podman"])
        .with_writable_path("/etc/systemd/nspawn")
        .with_systemd_min(249)
        .with_kernel(kernel);
    let kvm = HostPath::new("/dev/kvm").unwrap();
    let mut input = Input::new(Mode::Nspawn, needs).with_roots("/var/lib/machines", 1);
    input.grants = vec![
        Grant::device(Purpose::HostDevice, kvm),
        Grant::device_class(Purpose::HostDevice, DeviceClass::new("char-input").unwrap()),
    ];
    input.sysctls = vec![("vm.overcommit_memory".to_owned(), "1".to_owned())];
    input.foreign = vec![PathBuf::from("/etc/systemd/nspawn/kube1.nspawn")];
    input
}

/// Every path below a directory, with its mode, when it changed and its content; a link's is where it points.
fn snapshot(dir: &Path, into: &mut BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let (path, found) = (entry.path(), entry.metadata().unwrap());
        let content = if found.is_dir() {
            snapshot(&path, into);
            Vec::new()
        } else if found.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else {
            fs::read(&path).unwrap()
        };
        into.insert(path, (found.mode(), found.ctime(), found.ctime_nsec(), content));
    }
}

#[tokio::test]
async fn all_is_well_and_nothing_changes() {
    let report = Machine::good().check(input()).await;
    assert!(report.success(), "{report}");
    assert_eq!(report.counts.error, 0);
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    assert!(json.starts_with(r#"{"status":"ok","counts":{"ok":"#), "{json}");
}

#[tokio::test]
async fn each_check_finds_its_fault() {
    type Change = fn(&mut Machine, &mut Input);
    let table: &[(&str, &str, Severity, Change)] = &[
        ("is-privileged-user", "effective user", Severity::Error, |m, _| m.privileged = false),
        ("host-packages", "package manager", Severity::Error, |m, _| m.programs.retain(|p| p.0 != "apt-get")),
        ("host-packages", "curl", Severity::Warning, |m, _| m.remove("var/lib/dpkg/info/curl.list")),
        ("host-packages", "curl", Severity::Error, |m, i| {
            m.remove("var/lib/dpkg/info/curl.list");
            i.offline = true;
        }),
        ("host-commands", "docker or podman", Severity::Warning, |m, _| m.programs.retain(|p| p.0 != "podman")),
        ("host-commands", "docker or podman", Severity::Error, |m, i| {
            m.programs.retain(|p| p.0 != "podman");
            i.offline = true;
        }),
        ("systemd-runtime", "systemd", Severity::Error, |m, _| m.remove("run/systemd/system")),
        ("systemd-runtime", "process 1", Severity::Error, |m, _| m.put("proc/1/comm", "init\n")),
        ("systemd-runtime", "systemd", Severity::Error, |_, i| i.requirements.systemd_min = Some(253)),
        ("writable-paths", "/srv/x", Severity::Error, |m, i| {
            m.put("srv", "a file");
            i.requirements.writable_paths = vec!["/srv/x".into()];
        }),
        ("writable-paths", "somewhere", Severity::Error, |_, i| {
            i.requirements.writable_paths = vec!["somewhere".into()]
        }),
        ("disk-space", "/var/lib/machines", Severity::Error, |_, i| i.free_bytes = u64::MAX),
        ("cgroups", "control groups", Severity::Error, |m, _| m.remove("sys/fs/cgroup/cgroup.controllers")),
        ("cgroups", "memory", Severity::Error, |m, _| m.put("sys/fs/cgroup/cgroup.controllers", "cpu")),
        ("cgroups", "memory", Severity::Warning, |m, _| m.put("sys/fs/cgroup/cgroup.subtree_control", "cpu")),
        ("existing-deployment", "/etc/systemd/nspawn/kube1.nspawn", Severity::Error, |m, _| {
            m.put("etc/systemd/nspawn/kube1.nspawn", "");
        }),
        ("machine-provisioning", "/var/lib/machines", Severity::Error, |m, _| m.put("var/lib/machines", "")),
        ("swap-active", "swap", Severity::Warning, |m, _| m.put("proc/swaps", "Filename\n/dev/sda2\n")),
        ("docker-active", "docker", Severity::Warning, |m, _| m.put("run/docker.sock", "")),
        ("docker-active", "docker", Severity::Warning, |m, i| {
            m.programs.push(("docker", ""));
            (i.mode, i.opted_in) = (Mode::Container, vec![Mode::Container]);
        }),
        ("docker-active", "docker", Severity::Ok, |m, i| {
            m.programs.push(("docker", ""));
            m.put("run/docker.sock", "");
            (i.mode, i.opted_in) = (Mode::Container, vec![Mode::Container]);
        }),
        ("docker-active", "docker", Severity::Ok, |_, i| {
            (i.mode, i.opted_in) = (Mode::Container, vec![Mode::Container]);
        }),
        ("sysctls", "vm.overcommit_memory", Severity::Error, |m, _| m.put("proc/sys/vm/overcommit_memory", "0")),
        ("kernel-modules", "br-netfilter", Severity::Error, |m, _| m.remove("lib")),
        ("kernel-modules", "kernel", Severity::Error, |m, _| m.put("proc/sys/kernel/osrelease", "4.19.0")),
        ("selinux-apparmor", "SELinux", Severity::Warning, |m, _| m.put("sys/fs/selinux/enforce", "1")),
        ("port-conflicts", "port 10250", Severity::Error, |m, _| {
            m.put("proc/net/tcp6", "sl\n 0: 00000000000000000000000000000000:280A 0:0 0A\n");
        }),
        ("foreign-kubelet", "kubelet", Severity::Error, |m, i| {
            m.put("proc/77/comm", "kubelet\n");
            i.mode = Mode::None;
        }),
        ("nvidia-driver", "0000:01:00.0", Severity::Error, |m, _| {
            m.put("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
            m.put("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
        }),
        ("grants", "grant 0 (device for host-device)", Severity::Error, |m, _| m.remove("dev/kvm")),
        ("grants", "grant 0 (device for host-device)", Severity::Warning, |m, i| {
            m.remove("dev/kvm");
            i.optional_grants.push(0);
        }),
        ("grants", "grant 1 (device for host-device)", Severity::Warning, |m, _| m.remove("proc/devices")),
        ("pair-consistency", "slots", Severity::Error, |_, i| i.active = i.pair.both().map(Clone::clone).to_vec()),
        ("pair-consistency", "slots", Severity::Error, |_, i| i.active = vec![SlotName::new("other").unwrap()]),
        ("pair-consistency", "recorded mode", Severity::Ok, |_, i| i.recorded_mode = Some(String::new())),
        ("pair-consistency", "recorded mode", Severity::Error, |_, i| i.recorded_mode = Some("vm".to_owned())),
        ("pair-consistency", "recorded mode", Severity::Error, |_, i| {
            i.recorded_mode = Some("none".to_owned());
            i.operated = vec![Mode::Nspawn];
        }),
        ("mode-opt-in", "mode container", Severity::Error, |_, i| i.mode = Mode::Container),
    ];
    for (name, target, severity, change) in table {
        let (mut machine, mut input) = (Machine::good(), input());
        change(&mut machine, &mut input);
        let report = machine.check(input).await;
        let found = report.results.iter().find(|r| r.name == *name && r.target == *target && r.severity == *severity);
        assert!(found.is_some(), "{name} {target}\n{report}");
        let others = report.results.iter().filter(|r| r.severity == Severity::Error && r.name != *name).count();
        assert_eq!(others, 0, "{name}\n{report}");
    }
}

/// What `nvidia-smi` prints for one GPU, whatever it is asked.
const SMI: &str = "GPU 0: H100 (UUID: GPU-1)\nEnabled";

/// A machine with a GPU whose driver is wholly there.
fn gpu_machine() -> Machine {
    let mut machine = Machine::good();
    machine.put("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    machine.put("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
    symlink("/drivers/nvidia", machine.dir.path().join("sys/bus/pci/devices/0000:01:00.0/driver")).unwrap();
    for module in ["nvidia", "nvidia_modeset", "nvidia_uvm", "nvidia_drm"] {
        machine.put(&format!("sys/module/{module}/x"), "");
    }
    for file in ["dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia0", "usr/lib64/libcuda.so.1"] {
        machine.put(file, "");
    }
    machine.programs.push(("nvidia-smi", SMI));
    machine.programs.push(("ldconfig", "\tlibnvidia-ml.so.1 (libc6,x86-64) => /opt/lib/libnvidia-ml.so.1\n"));
    machine
}

#[tokio::test]
async fn a_good_gpu_passes() {
    let report = gpu_machine().check(input()).await;
    assert!(report.success(), "{report}");
    let of_gpu: Vec<_> = report.results.iter().filter(|r| r.name == "nvidia-driver").collect();
    assert!(of_gpu.len() == 2 && of_gpu.iter().all(|r| r.severity == Severity::Ok), "{report}");
}

#[tokio::test]
async fn each_part_of_a_gpu_driver_is_missed() {
    type Change = fn(&mut Machine);
    fn smi(machine: &mut Machine, text: Option<&'static str>) {
        machine.programs.retain(|program| program.0 != "nvidia-smi");
        machine.programs.extend(text.map(|text| ("nvidia-smi", text)));
    }
    let table: &[(&str, Severity, Change)] = &[
        ("0000:01:00.0", Severity::Error, |m| m.remove("sys/bus/pci/devices/0000:01:00.0/driver")),
        ("nvidia_uvm", Severity::Error, |m| m.remove("sys/module/nvidia_uvm")),
        ("nvidiactl", Severity::Error, |m| m.remove("dev/nvidiactl")),
        ("GPU", Severity::Error, |m| m.remove("dev/nvidia0")),
        ("libcuda.so.1", Severity::Error, |m| m.remove("usr/lib64/libcuda.so.1")),
        ("libnvidia-ml.so.1", Severity::Error, |m| m.programs.retain(|program| program.0 != "ldconfig")),
        ("nvidia-smi", Severity::Warning, |m| smi(m, None)),
        ("nvidia-smi", Severity::Error, |m| smi(m, Some("No devices were found"))),
        ("nvidia-smi", Severity::Warning, |m| {
            m.put("sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n");
            m.put("sys/bus/pci/devices/0000:02:00.0/class", "0x030000\n");
            symlink("/drivers/nvidia", m.dir.path().join("sys/bus/pci/devices/0000:02:00.0/driver")).unwrap();
        }),
        ("persistence mode", Severity::Warning, |m| smi(m, Some("GPU 0: H100\nDisabled"))),
    ];
    for (target, severity, change) in table {
        let mut machine = gpu_machine();
        change(&mut machine);
        let report = machine.check(input()).await;
        let bad: Vec<_> =
            report.results.iter().filter(|r| r.name == "nvidia-driver" && r.severity != Severity::Ok).collect();
        let found: Vec<_> = bad.iter().map(|r| (r.target.as_str(), r.severity)).collect();
        assert_eq!(found, [(*target, *severity)], "{report}");
    }
}

#[tokio::test]
async fn no_message_holds_what_a_file_says() {
    const SECRET: &str = "hunter2";
    let mut machine = gpu_machine();
    for file in [
        "proc/1/comm",
        "proc/77/comm",
        "proc/swaps",
        "proc/modules",
        "proc/sys/kernel/osrelease",
        "proc/sys/vm/overcommit_memory",
        "proc/net/tcp",
        "proc/net/tcp6",
        "proc/devices",
        "sys/fs/cgroup/cgroup.controllers",
        "sys/fs/cgroup/cgroup.subtree_control",
        "sys/fs/selinux/enforce",
        "etc/systemd/nspawn/kube1.nspawn",
    ] {
        machine.put(file, SECRET);
    }
    machine.programs =
        [("apt-get", SECRET), ("systemctl", SECRET), ("ldconfig", SECRET), ("nvidia-smi", SECRET)].into();
    for mode in Mode::ALL {
        let mut input = input();
        (input.mode, input.recorded_mode) = (mode, Some(SECRET.to_owned()));
        let report = machine.check(input).await;
        assert!(!report.success());
        let told = format!("{report}\n{}", serde_json::to_string(&report).unwrap());
        assert!(!told.contains(SECRET), "{told}");
    }
}

#[derive(Debug)]
struct Remote;

#[async_trait]
impl Check for Remote {
    fn name(&self) -> &str {
        "api-server"
    }

    async fn run(&self, _: &OpCtx, _: &HostView, _: &Input) -> Vec<Finding> {
        vec![Finding::error("api server\nforged line", "is not ready")]
    }
}

#[tokio::test]
async fn strictness_and_checks_of_ones_own() {
    let (machine, ctx) = (Machine::good(), OpCtx::new(Duration::from_secs(30)));
    let preflight = || Preflight::new(input()).with_check(Remote);
    assert!(preflight().names().any(|name| name == "api-server"));
    let report = preflight().run(&ctx, &machine.view()).await;
    assert!(!report.success());
    assert_eq!(report.to_string().lines().count(), report.results.len() + 1, "one line for each finding");
    for name in ["api-server", "all"] {
        let report = preflight().ignore(name).run(&ctx, &machine.view()).await;
        assert!(report.success());
        let last = report.results.last().unwrap();
        assert_eq!((last.severity, last.ignored), (Severity::Warning, true));
        assert!(!preflight().ignore(name).fail_on_warnings(true).run(&ctx, &machine.view()).await.success());
    }
}
