//! A kubeconfig that goes through the misbehaving proxy.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use testbed::{Misbehaviour, Proxy};

use super::Cluster;
use crate::error::{Context as _, Result};
use crate::place::write;
use crate::stop;

/// How the proxy between client and API server misbehaves.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Options {
    /// Milliseconds by which every chunk is late.
    #[arg(long, default_value_t = 0)]
    delay: u64,
    /// Bytes per second and direction.
    #[arg(long)]
    rate: Option<u64>,
    /// Cut each connection after so many bytes.
    #[arg(long)]
    cut_after: Option<u64>,
    /// Take everything, deliver nothing.
    #[arg(long)]
    black_hole: bool,
    /// Cut connections on which nothing moved for so many milliseconds.
    #[arg(long)]
    idle_cut: Option<u64>,
}

impl Options {
    fn misbehaviour(self) -> Misbehaviour {
        Misbehaviour {
            delay: Duration::from_millis(self.delay),
            bytes_per_second: self.rate,
            cut_after: self.cut_after,
            black_hole: self.black_hole,
            idle_cut: self.idle_cut.map(Duration::from_millis),
        }
    }
}

/// Starts a proxy in front of the API server; the kubeconfig lives as long as the folder of the bed.
pub(crate) fn start(cluster: &Cluster, misbehaviour: Misbehaviour) -> Result<(Proxy, PathBuf)> {
    let proxy = Proxy::start(cluster.api_address(), misbehaviour).doing(|| "start the proxy".to_owned())?;
    let direct = fs::read_to_string(cluster.kubeconfig()).doing(|| "read the kubeconfig".to_owned())?;
    let port = proxy.address().port();
    let path = cluster.bed.dir.join(format!("proxied-{port}.kubeconfig"));
    write(&path, direct.replace(&cluster.api_address(), &format!("127.0.0.1:{port}")))?;
    Ok((proxy, path))
}

/// Runs a proxy until Ctrl-C.
pub(crate) fn serve(cluster: &Cluster, options: Options) -> Result<()> {
    let (proxy, kubeconfig) = start(cluster, options.misbehaviour())?;
    println!("export KUBECONFIG={}", kubeconfig.display());
    println!("# until Ctrl-C");
    stop::wait();
    drop(proxy);
    fs::remove_file(&kubeconfig).doing(|| format!("remove {}", kubeconfig.display()))
}
