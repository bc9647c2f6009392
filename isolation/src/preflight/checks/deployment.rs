//! What is on the host already.

use crate::preflight::{Finding, HostView, Input};
use crate::{Mode, SlotName};

pub(super) fn existing(host: &HostView, input: &Input) -> Vec<Finding> {
    if input.resume {
        return vec![Finding::ok("resumed installation")];
    }
    let mut found = Vec::new();
    for path in &input.foreign {
        let shown = path.display().to_string();
        match host.path(path).symlink_metadata() {
            Ok(_) => found.push(Finding::error(shown, "is there already")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(_) => found.push(Finding::error(shown, "can't be looked at")),
        }
    }
    if found.is_empty() {
        found.push(Finding::ok("earlier deployment"));
    }
    found
}

pub(super) fn provisioning(host: &HostView, input: &Input) -> Vec<Finding> {
    if input.mode == Mode::None {
        return Vec::new();
    }
    let shown = input.roots.display().to_string();
    let near = host.nearest(&input.roots);
    if !near.is_dir() {
        return vec![Finding::error(shown, "is no directory and can't become one")];
    }
    // Magic numbers of overlayfs and tmpfs.
    let kind = rustix::fs::statfs(&near).map(|fs| fs.f_type as u64 & 0xffff_ffff);
    vec![match kind {
        Ok(0x794c_7630) => Finding::warning(shown, "is on an overlay, on which containers can't have another"),
        Ok(0x0102_1994) => Finding::warning(shown, "is in memory"),
        _ => Finding::ok(shown),
    }]
}

pub(super) fn docker(host: &HostView, input: &Input) -> Vec<Finding> {
    let active = ["/run/docker.sock", "/var/run/docker.sock"].iter().any(|path| host.exists(path));
    // Of several runtimes the first that is there is the one.
    let runtimes =
        input.requirements.host_commands.iter().filter(|need| need.names().iter().any(|name| name == "docker"));
    let mut chosen = runtimes.filter_map(|need| need.names().iter().find(|name| host.has_program(name)));
    vec![match (active, input.mode) {
        (false, Mode::Container) if chosen.any(|name| name == "docker") => {
            Finding::warning("docker", "is not active, and is what the container would run in")
        }
        (true, Mode::Nspawn | Mode::None) => Finding::warning("docker", "is active, and changes the host's firewall"),
        _ => Finding::ok("docker"),
    }]
}

/// Ports somebody listens on, on any address.
fn listening(host: &HostView) -> Vec<u16> {
    let mut ports = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in host.read(table).unwrap_or_default().lines().skip(1) {
            let mut words = line.split_whitespace();
            let (local, state) = (words.nth(1), words.nth(1));
            let port = local.and_then(|local| u16::from_str_radix(local.rsplit(':').next()?, 16).ok());
            if let (Some(port), Some("0A")) = (port, state) {
                ports.push(port);
            }
        }
    }
    ports
}

pub(super) fn ports(host: &HostView, input: &Input) -> Vec<Finding> {
    // A slot of ours that runs is who listens.
    if !input.active.is_empty() {
        return vec![Finding::ok("ports")];
    }
    let taken = listening(host);
    let wanted = input.ports.iter();
    wanted
        .map(|port| match taken.contains(port) {
            true => Finding::error(format!("port {port}"), "is taken by another process"),
            false => Finding::ok(format!("port {port}")),
        })
        .collect()
}

pub(super) fn foreign_kubelet(host: &HostView, input: &Input) -> Vec<Finding> {
    if input.mode == Mode::Nspawn || !input.active.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let names: Vec<_> = host
        .list("/proc")
        .into_iter()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|pid| host.read(format!("/proc/{pid}/comm")))
        .collect();
    for program in ["kubelet", "containerd"] {
        if names.iter().any(|name| name.trim() == program) {
            found.push(Finding::error(program, "runs already, and is not ours"));
        }
    }
    if found.is_empty() {
        found.push(Finding::ok("kubelet and containerd"));
    }
    found
}

pub(super) fn pair(_: &HostView, input: &Input) -> Vec<Finding> {
    let names = |slots: &[SlotName]| slots.iter().map(SlotName::as_str).collect::<Vec<_>>().join(", ");
    let strangers: Vec<_> = input.active.iter().filter(|slot| !input.pair.contains(slot)).cloned().collect();
    let mut found = vec![if !strangers.is_empty() {
        Finding::error("slots", format!("{} runs and is in neither half of the pair", names(&strangers)))
    } else if input.active.len() > 1 {
        Finding::error("slots", format!("{} run at once", names(&input.active)))
    } else {
        Finding::ok("slots")
    }];
    let recorded = input.recorded_mode.as_ref().map(|text| match text.parse::<Mode>() {
        Err(_) => Finding::error("recorded mode", "is none that this program knows"),
        Ok(mode) if !input.operated.contains(&mode) => {
            Finding::error("recorded mode", format!("is {mode}, which this program does not operate"))
        }
        Ok(_) => Finding::ok("recorded mode"),
    });
    found.extend(recorded);
    found
}

pub(super) fn opt_in(_: &HostView, input: &Input) -> Vec<Finding> {
    match input.mode {
        Mode::Container if !input.opted_in.contains(&Mode::Container) => {
            vec![Finding::error("mode container", "is experimental and must be opted into")]
        }
        Mode::Container => vec![Finding::ok("mode container")],
        _ => Vec::new(),
    }
}
