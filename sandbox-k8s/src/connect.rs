//! From a configuration to a client.

use std::path::Path;
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
        let config = self.client_config(std::env::var_os(INSIDE).is_some()).await?;
        let client = Client::try_from(settled(config)).map_err(|e| unusable("the client").caused_by(e))?;
        K8sProvider::new(client, self)
    }

    async fn client_config(&self, inside: bool) -> Result<Config, Error> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        match self.source(inside) {
            Source::Inside => {
                Config::incluster().map_err(|e| unusable("the cluster that this process runs in").caused_by(e))
            }
            Source::File(path) => {
                let name = path.display().to_string();
                let file = Kubeconfig::read_from(path).map_err(|e| unfit(&name, e))?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(|e| unfit(&name, e))
            }
            Source::Usual => Config::from_kubeconfig(&options).await.map_err(|e| unfit("the kubeconfig", e)),
        }
    }

    /// Who runs in a cluster and cannot use it must not end up in another one: the environment decides, not what can be read.
    fn source(&self, inside: bool) -> Source<'_> {
        match &self.kubeconfig {
            Some(path) => Source::File(path),
            None if self.context.is_none() && inside => Source::Inside,
            None => Source::Usual,
        }
    }
}

/// Where the way to the cluster is read.
#[derive(Debug, PartialEq, Eq)]
enum Source<'a> {
    /// From what every Pod has.
    Inside,
    /// From that kubeconfig.
    File(&'a Path),
    /// From the usual ones.
    Usual,
}

/// With limits of its own: the client's are longer, or none.
fn settled(mut config: Config) -> Config {
    config.connect_timeout = Some(CONNECT);
    config.default_retry = false;
    config
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_around_comes_before_the_usual_files_and_after_what_is_named() {
        let plain = K8sConfig::default();
        let (file, context) = (plain.clone().with_kubeconfig("/x"), plain.clone().with_context("c"));
        let both = file.clone().with_context("c");
        let x = || Source::File(Path::new("/x"));
        for (config, inside, outside) in [
            (&plain, Source::Inside, Source::Usual),
            (&context, Source::Usual, Source::Usual),
            (&file, x(), x()),
            (&both, x(), x()),
        ] {
            assert_eq!((config.source(true), config.source(false)), (inside, outside), "{config:?}");
        }
    }

    #[test]
    fn the_client_has_limits() {
        let config = settled(Config::new(http::Uri::from_static("http://127.0.0.1:9")));
        assert_eq!((config.connect_timeout, config.default_retry), (Some(CONNECT), false));
    }
}
