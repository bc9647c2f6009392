//! A deployment of its own for each test.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams};
use kube::config::KubeConfigOptions;
use sandbox::{Error, ExecRequest, Provider, Sandbox, SessionId, Spec};
use sandbox_k8s::{K8sConfig, K8sProvider};
use serde::de::DeserializeOwned;

use crate::{Any, Outcome};

pub(crate) const CONTEXT: &str = "CONFORMANCE_K8S";
/// Where, if not in the context's own namespace.
const NAMESPACE: &str = "CONFORMANCE_K8S_NAMESPACE";
pub(crate) const IMAGE: &str = "debian:stable-slim";

fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

pub(crate) fn context() -> Option<String> {
    var(CONTEXT)
}

/// The way to the cluster, with the namespace of the tests as its own.
pub(crate) async fn kube_config() -> Result<kube::Config, Any> {
    let options = KubeConfigOptions { context: context(), ..KubeConfigOptions::default() };
    let mut config = kube::Config::from_kubeconfig(&options).await?;
    if let Some(namespace) = var(NAMESPACE) {
        config.default_namespace = namespace;
    }
    Ok(config)
}

async fn kube_client() -> Result<Client, Any> {
    Ok(Client::try_from(kube_config().await?)?)
}

/// Where the tests make what they make, in words.
pub(crate) fn place() -> String {
    let namespace = var(NAMESPACE).map_or("its own namespace".to_owned(), |name| format!("the namespace {name:?}"));
    format!("the context {:?}, in {namespace}", context().unwrap_or_default())
}

#[derive(Clone)]
pub(crate) struct Bed {
    pub(crate) client: Client,
    pub(crate) config: K8sConfig,
    pub(crate) pods: Api<Pod>,
    /// Names of ServiceAccounts, and of their Roles and RoleBindings.
    accounts: Arc<Mutex<Vec<String>>>,
}

impl Bed {
    pub(crate) async fn open() -> Result<Self, Any> {
        Self::of(SessionId::generate().as_str().replace('_', "-")).await
    }

    /// The bed of a deployment that may be there already.
    pub(crate) async fn of(deployment: String) -> Result<Self, Any> {
        let client = kube_client().await?;
        let mut config = K8sConfig::default().with_deployment(deployment).with_ready_timeout(Duration::from_secs(40));
        config.context = context();
        if let Some(image) = var("CONFORMANCE_K8S_NET_SETUP_IMAGE") {
            config = config.with_net_setup_image(image);
        }
        let pods = Api::default_namespaced(client.clone());
        Ok(Self { client, config, pods, accounts: Arc::default() })
    }

    /// Notes a ServiceAccount, a Role and a RoleBinding of that name, before they are made: they are removed with the bed.
    pub(crate) fn will_make_account(&self, name: &str) {
        self.accounts.lock().expect("nobody panics with it").push(name.to_owned());
    }

    /// What every Pod of the deployment is found by.
    pub(crate) fn selector(&self) -> String {
        format!("sandbox-k8s/deployment={}", self.config.deployment)
    }

    /// Removes what is left of the test, and names the Pods: there may be none. Accounts go whatever came of the test.
    pub(crate) async fn close(&self) -> Result<Vec<String>, Any> {
        let accounts = std::mem::take(&mut *self.accounts.lock().expect("nobody panics with it"));
        for name in &accounts {
            gone(Api::<RoleBinding>::default_namespaced(self.client.clone()), name).await?;
            gone(Api::<Role>::default_namespaced(self.client.clone()), name).await?;
            gone(Api::<ServiceAccount>::default_namespaced(self.client.clone()), name).await?;
        }
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
        Ok(K8sProvider::new(kube_client().await?, self.config.clone())?)
    }

    pub(crate) fn spec(&self) -> Spec {
        Spec::new(SessionId::generate(), IMAGE)
    }

    pub(crate) async fn uid(&self, session: &SessionId) -> Result<Option<String>, Any> {
        Ok(self.pods.get_opt(&session.object_name("sbx")).await?.and_then(|pod| pod.metadata.uid))
    }
}

/// Removes the object of that name; that there is none is as good.
async fn gone<K>(objects: Api<K>, name: &str) -> Outcome
where
    K: Clone + Debug + DeserializeOwned + kube::Resource,
{
    match objects.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => Ok(other.map(drop)?),
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
