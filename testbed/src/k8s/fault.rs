//! Faults on cue. Each returns when it has happened, not when it was asked for.

use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use rustix::process::Signal;

use super::components::Component;
use super::{Cluster, network};
use crate::error::{Error, Result};
use crate::images;
use crate::place::Place;
use crate::process_id::wait_for;

/// Something that goes wrong, or gets well again.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum Fault {
    /// Cut the node off: the API server stays, the node becomes NotReady after 20 seconds.
    CutNode,
    /// Join a node that was cut off, and wait until it is Ready.
    JoinNode,
    /// End a component: it may say goodbye, which the API server takes ten seconds for.
    Stop { component: Component },
    /// End a component as a crash does.
    Kill { component: Component },
    /// Start a component that was stopped, and wait until it works.
    Start { component: Component },
    /// Freeze a component: it keeps its connections and answers nothing.
    Pause { component: Component },
    /// Let a frozen component go on.
    Resume { component: Component },
    /// Stop and start a component.
    Restart { component: Component },
    /// Let the kubelet evict the one pod it would evict first, for want of memory or disk.
    Evict { want: Want },
}

/// What a node runs short of.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Want {
    Memory,
    Disk,
}

impl Fault {
    /// Makes it happen.
    pub(crate) fn cause(self, place: &Place, cluster: &Cluster) -> Result<()> {
        let bed = &cluster.bed;
        match self {
            Self::CutNode => network::node_link(bed, false),
            Self::JoinNode => {
                network::node_link(bed, true)?;
                cluster.wait_for(Component::Kubelet)
            }
            Self::Stop { component } => bed.end(component.name()),
            Self::Kill { component } => bed.kill(component.name()),
            Self::Start { component } => start(cluster, component),
            Self::Pause { component } => bed.signal(component.name(), Signal::STOP),
            Self::Resume { component } => bed.signal(component.name(), Signal::CONT),
            Self::Restart { component } => {
                bed.end(component.name())?;
                start(cluster, component)
            }
            Self::Evict { want } => {
                let pod = evict(cluster, want)?;
                println!("evicted {pod}");
                if matches!(want, Want::Disk) {
                    // Before it evicts anybody, the kubelet deletes every image that no container uses.
                    cluster.import(&images::ensure(place)?)?;
                }
                Ok(())
            }
        }
    }
}

fn start(cluster: &Cluster, component: Component) -> Result<()> {
    if cluster.bed.process(component.name()).is_some() {
        return Err(Error::new(format!("{} runs already", component.name())));
    }
    cluster.start(component)?;
    cluster.wait_for(component)
}

/// Tells the kubelet that there has to be more free than there can be, until one pod is gone.
fn evict(cluster: &Cluster, want: Want) -> Result<String> {
    let before = evicted(cluster)?;
    let signal = match want {
        Want::Memory => "memory.available",
        Want::Disk => "nodefs.available",
    };
    restart_kubelet(cluster, Some((signal, "99.9%")))?;
    let mut victim = None;
    let waited = wait_for("an eviction", Duration::from_secs(120), || {
        victim = evicted(cluster)?.into_iter().find(|pod| !before.contains(pod));
        Ok(victim.is_some())
    });
    restart_kubelet(cluster, None)?;
    let no_pressure = "jsonpath={.status.conditions[?(@.status=='True')].type}";
    wait_for("the node without pressure", Duration::from_secs(60), || {
        let answer = cluster.kubectl(&["get", "node", cluster.node(), "-o", no_pressure], Duration::from_secs(10));
        Ok(answer.capture()?.stdout.trim() == "Ready")
    })?;
    waited?;
    victim.ok_or_else(|| Error::new("no pod was evicted"))
}

fn restart_kubelet(cluster: &Cluster, eviction: Option<(&str, &str)>) -> Result<()> {
    cluster.configure_kubelet(eviction)?;
    cluster.bed.end(Component::Kubelet.name())?;
    cluster.start(Component::Kubelet)
}

/// `namespace/name` of every evicted pod.
fn evicted(cluster: &Cluster) -> Result<Vec<String>> {
    let format =
        "jsonpath={range .items[?(@.status.reason=='Evicted')]}{.metadata.namespace}/{.metadata.name}{'\\n'}{end}";
    let text = cluster.kubectl(&["get", "pods", "--all-namespaces", "-o", format], Duration::from_secs(10)).stdout()?;
    Ok(text.lines().map(str::to_owned).collect())
}
