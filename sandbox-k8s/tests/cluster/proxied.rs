//! A way to the cluster that misbehaves on cue.

use std::time::Duration;

use sandbox_k8s::{K8sConfig, K8sProvider};
use testbed::{Misbehaviour, Proxy};

use crate::Any;
use crate::bed::{Bed, kube_config};

/// Providers whose every byte goes through a proxy.
pub(crate) struct Proxied {
    pub(crate) proxy: Proxy,
    config: kube::Config,
    own: K8sConfig,
}

impl Proxied {
    pub(crate) async fn open(bed: &Bed, misbehaviour: Misbehaviour) -> Result<Self, Any> {
        let mut config = kube_config().await?;
        let host = config.cluster_url.host().unwrap_or_default().to_owned();
        let proxy = Proxy::start((host.as_str(), config.cluster_url.port_u16().unwrap_or(443)), misbehaviour)?;
        config.cluster_url = format!("https://{}", proxy.address()).parse()?;
        config.tls_server_name.get_or_insert(host);
        config.connect_timeout = Some(Duration::from_secs(3));
        let mut own = bed.config.clone();
        own.request_timeout = Duration::from_secs(5);
        Ok(Self { proxy, config, own })
    }

    /// One with connections of its own.
    pub(crate) fn provider(&self) -> Result<K8sProvider, Any> {
        Ok(K8sProvider::new(kube::Client::try_from(self.config.clone())?, self.own.clone())?)
    }
}
