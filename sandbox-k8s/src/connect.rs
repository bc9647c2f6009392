//! From a configuration to a client.

use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use sandbox::{Error, ErrorKind};

use crate::config::K8sConfig;
use crate::provider::K8sProvider;

/// How long connecting to the API server may take.
const CONNECT: Duration = Duration::from_secs(10);
/// What every process in a cluster has.
const INSIDE: &str = "KUBERNETES_SERVICE_HOST";

impl K8sConfig {
    /// A provider for the cluster that this configuration names. Contacts nothing.
    ///
    /// - With neither `kubeconfig` nor `context`: the cluster that this process itself runs in, if `KUBERNETES_SERVICE_HOST` says that it
    ///   runs in one; else the usual kubeconfig files (`KUBECONFIG`, then `~/.kube/config`).
    /// - With either: that file, or the usual ones, and that context, or the current one. The cluster that this process runs in is
    ///   never taken.
    /// - Without `namespace`: the namespace of this process's own Pod in a cluster, else the context's, else `default`.
    ///
    /// The client connects within 10 seconds and repeats nothing on its own: the provider repeats what can be repeated.
    ///
    /// # Errors
    ///
    /// `InvalidSpec` for a field that breaks its rule, before any file is read; `Unavailable` for a configuration that is absent or
    /// unusable, naming the file or what it lacks where that is no secret, with the reason as its source.
    pub async fn connect(self) -> Result<K8sProvider, Error> {
        self.validate()?;
        let mut config = self.client_config().await?;
        config.connect_timeout = Some(CONNECT);
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|e| unusable("the client").caused_by(e))?;
        K8sProvider::new(client, self)
    }

    async fn client_config(&self) -> Result<Config, Error> {
        // Who runs in a cluster and cannot use it must not end up in another one.
        if self.kubeconfig.is_none() && self.context.is_none() && std::env::var_os(INSIDE).is_some() {
            return Config::incluster().map_err(|e| unusable("the cluster that this process runs in").caused_by(e));
        }
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        match &self.kubeconfig {
            Some(path) => {
                let name = path.display().to_string();
                let file = Kubeconfig::read_from(path).map_err(|e| unfit(&name, e))?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(|e| unfit(&name, e))
            }
            None => Config::from_kubeconfig(&options).await.map_err(|e| unfit("the kubeconfig", e)),
        }
    }
}

/// Says what is wrong, and what to do. What a file holds is only ever in the source: it may be a secret.
fn unfit(what: &str, error: KubeconfigError) -> Error {
    let why = match &error {
        KubeconfigError::CurrentContextNotSet => "it names no current context: choose one".to_owned(),
        KubeconfigError::LoadContext(name) => format!("it has no context {name:?}"),
        KubeconfigError::LoadClusterOfContext(name) => format!("it has no cluster {name:?}"),
        KubeconfigError::MissingClusterUrl => "its cluster has no address".to_owned(),
        KubeconfigError::FindPath => "there is no home directory to look in: set KUBECONFIG".to_owned(),
        KubeconfigError::ReadConfig(e, path) => {
            format!("{}: {e}: set KUBECONFIG to another file, or name one in the configuration", path.display())
        }
        KubeconfigError::Parse(_) => "it is no kubeconfig".to_owned(),
        _ => "its source says why".to_owned(),
    };
    Error::new(ErrorKind::Unavailable).because(format!("{what} cannot be used: {why}")).caused_by(error)
}

fn unusable(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable).because(format!("{what} cannot be used"))
}
