//! The network of a cluster: one namespace for the control plane, one for the node, joined by a bridge.
//!
//! ```text
//! machine: BED 10.99.N.254 ──── h0 ┐
//!                                  br0 10.99.N.1 (control plane)
//!            node: eth0 10.99.N.11 ─ n1 ┘
//! ```
//!
//! Two namespaces, so that the node can be cut off while the API server stays in reach. Nothing is forwarded or
//! masqueraded: the cluster reaches the machine and nothing beyond it.

use std::fs::{self, File};
use std::time::Duration;

use crate::beds::Bed;
use crate::error::{Context as _, Error, Result};
use crate::process::Task;
use crate::process_id::poll;

/// The daemon that holds the control plane's namespace open.
pub(crate) const CONTROL: &str = "control";
/// The daemon that holds the node's namespaces open.
pub(crate) const NODE: &str = "node";

/// Addresses of a cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses(u8);

impl Addresses {
    pub(crate) fn of(bed: &Bed) -> Result<Self> {
        bed.state.net.map(Self).ok_or_else(|| Error::new(format!("{} has no network", bed.name)))
    }

    pub(crate) fn api(self) -> String {
        format!("10.99.{}.1", self.0)
    }

    pub(crate) fn node(self) -> String {
        format!("10.99.{}.11", self.0)
    }

    pub(crate) fn machine(self) -> String {
        format!("10.99.{}.254", self.0)
    }

    pub(crate) fn services(self) -> String {
        format!("10.96.{}.0/24", self.0)
    }

    pub(crate) fn service(self) -> String {
        format!("10.96.{}.1", self.0)
    }

    pub(crate) fn pods(self) -> String {
        format!("10.244.{}.0/24", self.0)
    }
}

/// Gives the bed a network that no other has: the machine's end, and `other_end` where process `pid` lives.
pub(crate) fn claim(bed: &mut Bed, other_end: &str, pid: i32) -> Result<()> {
    let lock = File::open("/var/tmp").doing(|| "open /var/tmp".to_owned())?;
    // Finding a free network and taking it are one step for everybody on this machine.
    lock.lock().doing(|| "lock /var/tmp".to_owned())?;
    let taken = ip(&["-o", "-4", "addr"])?;
    let free = (1..=250).find(|net| !taken.contains(&format!(" 10.99.{net}.")));
    let net = free.ok_or_else(|| Error::new("all networks of 10.99.0.0/16 are taken"))?;
    bed.state.net = Some(net);
    bed.save()?;
    let (name, pid) = (bed.machine_name.as_str(), pid.to_string());
    ip(&["link", "add", name, "type", "veth", "peer", "name", other_end, "netns", &pid])?;
    ip(&["addr", "add", &format!("{}/24", Addresses(net).machine()), "dev", name])?;
    ip(&["link", "set", name, "up"]).map(drop)
}

/// Makes both namespaces and joins them.
pub(crate) fn up(bed: &mut Bed) -> Result<()> {
    hold(bed, CONTROL, &["unshare", "--net"], "")?;
    // The node sees its own /run (runtimes leave sockets and namespaces there) and mounts that nobody else sees.
    let private = ["unshare", "--net", "--mount", "--propagation", "slave"];
    hold(bed, NODE, &private, "mount --make-rshared / && mount -t tmpfs -o mode=755 tmpfs /run && ")?;
    let control = pid(bed, CONTROL)?;
    claim(bed, "h0", control)?;
    let addresses = Addresses::of(bed)?;
    let setup = format!(
        "set -e
        ip link set lo up
        ip link add br0 type bridge
        ip addr add {api}/24 dev br0
        ip link set br0 up
        ip link set h0 master br0 up
        ip link add n1 type veth peer name eth0 netns {node}
        ip link set n1 master br0 up",
        api = addresses.api(),
        node = pid(bed, NODE)?,
    );
    inside(bed, CONTROL, &setup)?;
    let setup = format!(
        "set -e
        ip link set lo up
        ip addr add {node}/24 dev eth0
        ip link set eth0 up
        ip route add default via {machine}
        echo 1 > /proc/sys/net/ipv4/ip_forward",
        node = addresses.node(),
        machine = addresses.machine(),
    );
    inside(bed, NODE, &setup)
}

/// Cuts the node off from everybody, or joins it again.
pub(crate) fn node_link(bed: &Bed, up: bool) -> Result<()> {
    inside(bed, CONTROL, if up { "ip link set n1 up" } else { "ip link set n1 down" })
}

/// The words that run a program in the namespaces of a holder.
pub(crate) fn enter(bed: &Bed, holder: &str) -> Result<Vec<String>> {
    let pid = pid(bed, holder)?;
    let mut words = vec!["nsenter".to_owned(), format!("--net=/proc/{pid}/ns/net")];
    if holder == NODE {
        words.push(format!("--mount=/proc/{pid}/ns/mnt"));
    }
    words.push("--".to_owned());
    Ok(words)
}

fn inside(bed: &Bed, holder: &str, script: &str) -> Result<()> {
    let mut words = enter(bed, holder)?;
    words.extend(["sh".into(), "-c".into(), script.into()]);
    let task = Task::new(&words[0], Duration::from_secs(20)).args(&words[1..]);
    task.named(format!("the network of {holder}")).stdout().map(drop)
}

fn hold(bed: &Bed, name: &str, unshare: &[&str], first: &str) -> Result<()> {
    let title = format!("{}-{name}", bed.machine_name);
    let ready = bed.dir.join(format!("{name}.ready"));
    let script = format!("{first}touch {} && exec -a {title} sleep infinity", ready.display());
    let mut argv: Vec<String> = unshare.iter().map(|word| (*word).to_owned()).collect();
    argv.extend(["bash".into(), "-c".into(), script]);
    bed.start(name, &argv)?;
    poll(Duration::from_secs(10), || Ok(ready.exists() || bed.process(name).is_none()))?;
    if ready.exists() {
        return Ok(());
    }
    let log = fs::read_to_string(bed.log(name)).unwrap_or_default();
    Err(Error::new(format!("could not make the namespaces of {name}: {}", log.trim())))
}

fn pid(bed: &Bed, holder: &str) -> Result<i32> {
    let id = bed.process(holder).ok_or_else(|| Error::new(format!("{holder} of {} does not run", bed.name)))?;
    Ok(id.pid)
}

fn ip(args: &[&str]) -> Result<String> {
    Task::new("ip", Duration::from_secs(20)).args(args).named(format!("ip {}", args.join(" "))).stdout()
}
