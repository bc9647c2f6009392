//! A deployment of its own for each test.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams};
use kube::config::KubeConfigOptions;
use sandbox::{Error, ExecRequest, Provider, Sandbox, SessionId, Spec};
use sandbox_k8s::{K8sConfig, K8sProvider};

use crate::{Any, Outcome};

pub(crate) const CONTEXT: &str = "CONFORMANCE_K8S";
pub(crate) const IMAGE: &str = "debian:stable-slim";

pub(crate) fn context() -> Option<String> {
    std::env::var(CONTEXT).ok().filter(|context| !context.is_empty())
}

async fn client() -> Result<Client, Any> {
    let options = KubeConfigOptions { context: context(), ..KubeConfigOptions::default() };
    Ok(Client::try_from(kube::Config::from_kubeconfig(&options).await?)?)
}

#[derive(Clone)]
pub(crate) struct Bed {
    pub(crate) client: Client,
    pub(crate) config: K8sConfig,
    pub(crate) pods: Api<Pod>,
}

impl Bed {
    pub(crate) async fn open() -> Result<Self, Any> {
        Self::of(SessionId::generate().as_str().replace('_', "-")).await
    }

    /// The bed of a deployment that may be there already.
    pub(crate) async fn of(deployment: String) -> Result<Self, Any> {
        let client = client().await?;
        let mut config = K8sConfig::default().with_deployment(deployment).with_ready_timeout(Duration::from_secs(40));
        config.context = context();
        if let Ok(image) = std::env::var("CONFORMANCE_K8S_NET_SETUP_IMAGE") {
            config = config.with_net_setup_image(image);
        }
        let pods = Api::default_namespaced(client.clone());
        Ok(Self { client, config, pods })
    }

    /// What every Pod of the deployment is found by.
    pub(crate) fn selector(&self) -> String {
        format!("sandbox-k8s/deployment={}", self.config.deployment)
    }

    /// Removes what is left of the test, and names it: nothing may be.
    pub(crate) async fn close(&self) -> Result<Vec<String>, Any> {
        let found = self.pods.list(&ListParams::default().labels(&self.selector())).await?;
        let names: Vec<_> = found.items.into_iter().filter_map(|pod| pod.metadata.name).collect();
        for name in &names {
            let _ = self.pods.delete(name, &DeleteParams::default().grace_period(0)).await;
        }
        Ok(names)
    }

    /// Another provider of the same deployment, as another process would have.
    pub(crate) fn provider(&self) -> Result<K8sProvider, Error> {
        self.provider_with(|_| {})
    }

    pub(crate) fn provider_with(&self, change: impl FnOnce(&mut K8sConfig)) -> Result<K8sProvider, Error> {
        let mut config = self.config.clone();
        change(&mut config);
        K8sProvider::new(self.client.clone(), config)
    }

    /// A provider that shares no connection with the others, as in another process.
    pub(crate) async fn apart(&self) -> Result<K8sProvider, Any> {
        Ok(K8sProvider::new(client().await?, self.config.clone())?)
    }

    pub(crate) fn spec(&self) -> Spec {
        Spec::new(SessionId::generate(), IMAGE)
    }

    pub(crate) async fn uid(&self, session: &SessionId) -> Result<Option<String>, Any> {
        Ok(self.pods.get_opt(&session.object_name("sbx")).await?.and_then(|pod| pod.metadata.uid))
    }
}

/// What a shell text prints.
pub(crate) async fn says(sandbox: &Arc<dyn Sandbox>, text: &str) -> Result<String, Error> {
    let result = sandbox.exec(ExecRequest::shell(text.to_owned()).with_limit(Duration::from_secs(30))).await?;
    Ok(format!("{}{}", result.stdout.to_string_lossy(), result.stderr.to_string_lossy()).trim_end().to_owned())
}

pub(crate) fn equal<T: PartialEq + Debug>(what: &str, got: T, want: T) -> Outcome {
    if got == want { Ok(()) } else { Err(format!("{what}: got {got:?}, want {want:?}").into()) }
}

pub(crate) fn holds(what: &str, yes: bool, got: impl Debug) -> Outcome {
    if yes { Ok(()) } else { Err(format!("{what}: got {got:?}").into()) }
}

/// The error of what must fail.
pub(crate) fn fails<T: Debug>(what: &str, outcome: Result<T, Error>) -> Result<Error, Any> {
    match outcome {
        Err(error) => Ok(error),
        Ok(value) => Err(format!("{what} succeeded: {value:?}").into()),
    }
}

pub(crate) async fn reap(provider: &K8sProvider, session: &SessionId) -> Outcome {
    Ok(provider.reap(session).await?)
}
