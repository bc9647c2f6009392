//! Devices, drivers and what the grants ask for.

use async_trait::async_trait;

use crate::preflight::{Check, Finding, HostView, Input, Severity};
use crate::{DeviceRule, Grant, OpCtx};

/// Whether a PCI device is a display controller of NVIDIA.
fn is_nvidia(host: &HostView, device: &str) -> bool {
    let read = |file: &str| host.read(format!("/sys/bus/pci/devices/{device}/{file}")).unwrap_or_default();
    read("vendor").trim() == "0x10de" && read("class").trim().starts_with("0x03")
}

/// The driver of NVIDIA's GPUs, if the host has any: bound, loaded, with its nodes and libraries, answering.
#[derive(Debug)]
pub(super) struct Nvidia;

#[async_trait]
impl Check for Nvidia {
    fn name(&self) -> &str {
        "nvidia-driver"
    }

    async fn run(&self, ctx: &OpCtx, host: &HostView, _: &Input) -> Vec<Finding> {
        let view = host.clone();
        let looked = tokio::task::spawn_blocking(move || (gpus(&view), driver_files(&view))).await;
        let Ok((gpus, mut found)) = looked else { return vec![Finding::error("check", "the check itself failed")] };
        if gpus == 0 {
            return Vec::new();
        }
        let (view, cache) = (host.clone(), host.ask(ctx, "ldconfig", ["-p"]).await.unwrap_or_default());
        let looked =
            tokio::task::spawn_blocking(move || (libraries(&view, &cache), view.has_program("nvidia-smi"))).await;
        let Ok((missing, has_smi)) = looked else { return vec![Finding::error("check", "the check itself failed")] };
        found.extend(missing);
        // Asking a driver that is not wholly there would have its tools load modules and make nodes: that is a change.
        if found.iter().any(|finding| finding.severity == Severity::Error) {
            return found;
        }
        if !has_smi {
            found.push(Finding::warning("nvidia-smi", "is missing"));
            return found;
        }
        let list = host.ask(ctx, "nvidia-smi", ["-L"]).await;
        let listed = list.iter().flat_map(|list| list.lines()).filter(|line| line.starts_with("GPU ")).count();
        match list {
            None => found.push(Finding::error("nvidia-smi", "fails")),
            Some(_) if listed == 0 => found.push(Finding::error("nvidia-smi", "lists no GPU")),
            Some(_) if listed < gpus => {
                found.push(Finding::warning("nvidia-smi", format!("lists {listed} GPUs, and the host has {gpus}")));
            }
            Some(_) => found.push(Finding::ok("nvidia-smi")),
        }
        let query = ["--query-gpu=persistence_mode", "--format=csv,noheader"];
        let modes = host.ask(ctx, "nvidia-smi", query).await.unwrap_or_default();
        if modes.lines().any(|mode| mode.trim() == "Disabled") {
            found.push(Finding::warning("persistence mode", "is off: the driver unloads its state between jobs"));
        }
        found
    }
}

fn gpus(host: &HostView) -> usize {
    host.list("/sys/bus/pci/devices").iter().filter(|device| is_nvidia(host, device)).count()
}

fn driver_files(host: &HostView) -> Vec<Finding> {
    let mut found = Vec::new();
    for gpu in host.list("/sys/bus/pci/devices").into_iter().filter(|device| is_nvidia(host, device)) {
        let driver = host.path(format!("/sys/bus/pci/devices/{gpu}/driver")).read_link().ok();
        let bound = driver.is_some_and(|driver| driver.file_name().is_some_and(|name| name == "nvidia"));
        found.push(if bound { Finding::ok(gpu) } else { Finding::error(gpu, "is not bound to the nvidia driver") });
    }
    for module in ["nvidia", "nvidia_modeset", "nvidia_uvm", "nvidia_drm"] {
        if !host.exists(format!("/sys/module/{module}")) {
            found.push(Finding::error(module, "is not loaded"));
        }
    }
    for node in ["nvidiactl", "nvidia-uvm"] {
        if !host.exists(format!("/dev/{node}")) {
            found.push(Finding::error(node, "has no device node"));
        }
    }
    let numbered = |name: &String| {
        name.strip_prefix("nvidia").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    if !host.list("/dev").iter().any(numbered) {
        found.push(Finding::error("GPU", "has no device node"));
    }
    found
}

/// The two libraries that every GPU container needs, as the linker's cache or the usual directories have them.
fn libraries(host: &HostView, ldconfig: &str) -> Vec<Finding> {
    let dirs = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let cached = |name: &str| ldconfig.lines().any(|line| line.split_whitespace().next() == Some(name));
    let there = |name: &str| cached(name) || dirs.iter().any(|dir| host.exists(format!("{dir}/{name}")));
    let missing = ["libcuda.so.1", "libnvidia-ml.so.1"].into_iter().filter(|name| !there(name));
    missing.map(|name| Finding::error(name, "is not among the host's libraries")).collect()
}

pub(super) fn grants(host: &HostView, input: &Input) -> Vec<Finding> {
    let devices = host.read("/proc/devices").unwrap_or_default();
    let mut found = Vec::new();
    for (index, grant) in input.grants.iter().enumerate() {
        let target = format!("grant {index} ({} for {})", grant.kind(), grant.purpose());
        let before = found.len();
        if let Err(error) = grant.validate() {
            found.push(Finding::error(&target, error.to_string()));
            continue;
        }
        if grant.source().is_some_and(|source| !host.exists(source.as_path())) {
            let optional = input.optional_grants.contains(&index);
            let finding = if optional { Finding::warning } else { Finding::error };
            found.push(finding(&target, "its source does not exist"));
        }
        let classes: Vec<_> = match grant {
            Grant::DeviceClass(class) => vec![class.class.as_str()],
            Grant::Mount(mount) => mount
                .device_allow
                .iter()
                .filter_map(|rule| match rule {
                    DeviceRule::Class(class) => Some(class.as_str()),
                    DeviceRule::Node(_) => None,
                })
                .collect(),
            _ => Vec::new(),
        };
        for class in classes {
            if !class_exists(&devices, class) {
                found.push(Finding::warning(&target, format!("the host knows no devices of {class}")));
            }
        }
        if found.len() == before {
            found.push(Finding::ok(target));
        }
    }
    found
}

/// `/proc/devices` has a list of character devices, an empty line, and a list of block devices.
fn class_exists(devices: &str, class: &str) -> bool {
    let Some((kind, pattern)) = class.split_once('-') else { return false };
    let heading = if kind == "char" { "Character devices:" } else { "Block devices:" };
    let list = devices.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.is_empty());
    list.filter_map(|line| line.split_whitespace().nth(1)).any(|name| matches(pattern.as_bytes(), name.as_bytes()))
}

/// A glob with `*` and `?`. Linear in time but for the last `*`: no pattern makes it slow.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == b'?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    n = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_looked_up_with_globs() {
        let devices = "Character devices:\n  1 mem\n 13 input\n231 infiniband_verbs\n\nBlock devices:\n  8 sd\n253 device-mapper\n";
        for (class, there) in [
            ("char-input", true),
            ("char-infiniband_*", true),
            ("char-in?ut", true),
            ("char-sd", false),
            ("block-*", true),
            ("block-device-mapper", true),
            ("block-input", false),
            ("char-inp", false),
        ] {
            assert_eq!(class_exists(devices, class), there, "{class}");
        }
        assert!(!class_exists("", "block-*"));
    }
}
