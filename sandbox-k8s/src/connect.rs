//! From a configuration to a client.

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use sandbox::{Error, ErrorKind};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::config::K8sConfig;
use crate::provider::K8sProvider;

/// How long connecting to the API server may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a credential plugin may take.
const PLUGIN: Duration = Duration::from_secs(60);
/// What every process in a cluster has.
const INSIDE: &str = "KUBERNETES_SERVICE_HOST";

impl K8sConfig {
    /// A provider for the cluster that this configuration names. Contacts no server; a credential plugin that the kubeconfig names is run,
    /// apart from the runtime's threads, and may contact what it likes, also somebody at the terminal. It has 60 seconds.
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
    /// unusable, naming where it comes from and what it lacks, or what cannot be used of it, where that is no secret, with the reason as its
    /// source; `DeadlineExceeded` if a credential plugin has not ended in its time: it is left to itself.
    pub async fn connect(self) -> Result<K8sProvider, Error> {
        self.validate()?;
        let inside = std::env::var_os(INSIDE).is_some();
        let config = settled(self.client_config(inside).await?);
        let client = client(config, self.origin(inside)).await?;
        K8sProvider::new(client, self)
    }

    /// Where the way to the cluster is read, in words.
    fn origin(&self, inside: bool) -> String {
        let file = match self.source(inside) {
            Source::Inside => return "the cluster that this process runs in".to_owned(),
            Source::File(path) => path.display().to_string(),
            Source::Usual => match std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) {
                Some(list) => format!("the kubeconfig ({})", Path::new(&list).display()),
                None => "the kubeconfig (~/.kube/config)".to_owned(),
            },
        };
        match &self.context {
            Some(context) => format!("{file}, context {context:?},"),
            None => file,
        }
    }

    async fn client_config(&self, inside: bool) -> Result<Config, Error> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let origin = self.origin(inside);
        match self.source(inside) {
            Source::Inside => Config::incluster().map_err(|e| {
                unusable(&origin, "its service account's files, or its address, cannot be read").caused_by(e)
            }),
            Source::File(path) => {
                let file = Kubeconfig::read_from(path).map_err(|e| unfit(&origin, e))?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(|e| unfit(&origin, e))
            }
            Source::Usual => Config::from_kubeconfig(&options).await.map_err(|e| unfit(&origin, e)),
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

/// The client of a configuration. A credential plugin runs meanwhile, and blocks: on a thread that nobody waits for, so that one which never
/// ends holds up neither the runtime nor its end.
async fn client(config: Config, origin: String) -> Result<Client, Error> {
    let (done, outcome) = oneshot::channel();
    let runtime = Handle::current();
    let make = move || {
        let _entered = runtime.enter();
        let _ = done.send(Client::try_from(config));
    };
    let started = std::thread::Builder::new().name("sandbox-k8s-connect".to_owned()).spawn(make);
    started.map_err(|e| Error::new(ErrorKind::Unavailable).because(format!("no thread can be started: {e}")))?;
    let error = match timeout(PLUGIN, outcome).await {
        Ok(Ok(Ok(client))) => return Ok(client),
        Ok(Ok(Err(error))) => error,
        Ok(Err(_)) => return Err(Error::new(ErrorKind::Other).because("the client's constructor panicked")),
        Err(_) => {
            return Err(Error::new(ErrorKind::DeadlineExceeded)
                .because(format!("{origin} cannot be used: its credential plugin has not ended after {PLUGIN:?}")));
        }
    };
    let stage = match &error {
        kube::Error::Auth(_) => "its credentials cannot be had: the source says why",
        #[cfg(any(feature = "rustls-ring", feature = "rustls-aws-lc-rs"))]
        kube::Error::RustlsTls(_) => "its certificates or keys cannot be used: the source says why",
        kube::Error::TlsRequired => "it wants TLS, and this program is built without",
        kube::Error::ProxyProtocolUnsupported { .. } | kube::Error::ProxyProtocolDisabled { .. } => {
            "its proxy is of a kind that this program cannot speak to"
        }
        _ => "no client can be made of it: the source says why",
    };
    Err(unusable(&origin, stage).caused_by(error))
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
        KubeconfigError::ParseClusterUrl(_) => "its cluster's address is none".to_owned(),
        KubeconfigError::ParseProxyUrl(_) => "its proxy's address is none".to_owned(),
        KubeconfigError::LoadCertificateAuthority(_) | KubeconfigError::ParseCertificates(_) => {
            "its certificate authority cannot be read: the source says why".to_owned()
        }
        KubeconfigError::LoadClientCertificate(_) | KubeconfigError::LoadClientKey(_) => {
            "its client certificate or key cannot be read: the source says why".to_owned()
        }
        _ => "the source says why".to_owned(),
    };
    unusable(what, &why).caused_by(error)
}

fn unusable(what: &str, why: &str) -> Error {
    Error::new(ErrorKind::Unavailable).because(format!("{what} cannot be used: {why}"))
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
    fn what_is_read_is_named() {
        let file = K8sConfig::default().with_kubeconfig("/x").with_context("c");
        assert_eq!(file.origin(true), "/x, context \"c\",");
        assert_eq!(K8sConfig::default().origin(true), "the cluster that this process runs in");
        assert!(K8sConfig::default().origin(false).starts_with("the kubeconfig ("));
    }

    #[test]
    fn the_client_has_limits() {
        let config = settled(Config::new(http::Uri::from_static("http://127.0.0.1:9")));
        assert_eq!((config.connect_timeout, config.default_retry), (Some(CONNECT), false));
    }
}
