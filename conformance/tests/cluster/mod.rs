//! A cluster that somebody named, as the suite takes it: that of the context in `CONFORMANCE_K8S`, and no other.

#![allow(clippy::print_stderr, reason = "it says what it will make before it does")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use conformance::sandbox::{NoBackend, Setup};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams};
use sandbox::{
    Capabilities, Error, ExportStream, OwnedStream, Provider, Sandbox, SandboxPath, SessionId, Spec, async_trait,
};
use sandbox_k8s::K8sConfig;

const CONTEXT: &str = "CONFORMANCE_K8S";
/// An image that starts as root.
const IMAGE: &str = "debian:stable-slim";

/// The backend there, whose sandboxes are made from an image that starts as root; absent where no cluster is named.
pub(crate) fn setup() -> Setup {
    let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(context) = var(CONTEXT) else {
        let remedy = format!("set {CONTEXT} to a context of your kubeconfig; this makes Pods there");
        return Setup::new("k8s", move || {
            let absent = NoBackend::absent("no cluster is named", &remedy);
            async { Err(absent) }
        });
    };
    let image = var("CONFORMANCE_K8S_IMAGE").unwrap_or_else(|| IMAGE.to_owned());
    // Of this run alone: what it leaves cannot be mistaken for another's.
    let deployment = SessionId::generate().as_str().replace('_', "-");
    let mut config = K8sConfig::default().with_context(&context).with_deployment(&deployment);
    if let Some(namespace) = var("CONFORMANCE_K8S_NAMESPACE") {
        config = config.with_namespace(namespace);
    }
    if let Some(image) = var("CONFORMANCE_K8S_NET_SETUP_IMAGE") {
        config = config.with_net_setup_image(image);
    }
    if !std::env::args().any(|arg| arg == "--list") {
        eprintln!(
            "This makes and removes Pods on the cluster of the context {context:?}, namespace {}, from the images {image} and {}, \
             each with the label sandbox-k8s/deployment={deployment}.",
            config.namespace.as_deref().unwrap_or("of the context"),
            config.net_setup_image,
        );
    }
    let (leaks, place) = (config.clone(), config.clone());
    let starts_as_root = image == IMAGE;
    let setup = Setup::new("k8s", move || {
        let config = config.clone();
        async move {
            let provider = Arc::new(config.connect().await?) as Arc<dyn Provider>;
            Ok(if starts_as_root { Arc::new(RootImage(provider)) } else { provider })
        }
    });
    let setup = setup.with_image(image).with_fact("context", &context).with_facts(move || facts(place.clone()));
    setup.with_leak_check(move |session| {
        let config = leaks.clone();
        async move { left_of(config, &session).await.unwrap_or_else(|e| vec![format!("cannot look: {e}")]) }
    })
}

type Fault = Box<dyn std::error::Error + Send + Sync>;

async fn client(config: &K8sConfig) -> Result<kube::Client, Fault> {
    let options = kube::config::KubeConfigOptions { context: config.context.clone(), ..Default::default() };
    Ok(kube::Client::try_from(kube::Config::from_kubeconfig(&options).await?)?)
}

/// What the cluster says of itself; what it does not tell says why.
async fn facts(config: K8sConfig) -> BTreeMap<String, String> {
    let server = async { Ok::<_, Fault>(client(&config).await?.apiserver_version().await?.git_version) };
    let nodes = async {
        let nodes: Api<Node> = Api::all(client(&config).await?);
        let infos = nodes.list(&ListParams::default()).await?.into_iter().filter_map(|node| node.status?.node_info);
        let told = infos.map(|info| format!("{}, kernel {}", info.container_runtime_version, info.kernel_version));
        Ok::<_, Fault>(told.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("; "))
    };
    let told = |told: Result<String, Fault>| told.unwrap_or_else(|e| format!("not told: {e}"));
    let facts = [("server", told(server.await)), ("nodes", told(nodes.await))];
    facts.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The Pods that carry the session's label.
async fn left_of(config: K8sConfig, session: &SessionId) -> Result<Vec<String>, Fault> {
    let client = client(&config).await?;
    let namespace = config.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let found = pods.list(&ListParams::default().labels(&format!("sandbox-k8s/session={session}"))).await?;
    Ok(found.items.into_iter().map(|pod| format!("pod {}", pod.metadata.name.unwrap_or_default())).collect())
}

/// Adds what is true of the image of this run, and that no backend can promise for every image: its commands run as root.
#[derive(Debug)]
struct RootImage(Arc<dyn Provider>);

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Provider for RootImage {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.root_by_default = true;
        capabilities
    }

    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        self.0.provision(spec).await
    }

    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        self.0.attach(session).await
    }

    async fn owned(&self) -> Result<OwnedStream, Error> {
        self.0.owned().await
    }

    async fn reap(&self, session: &SessionId) -> Result<(), Error> {
        self.0.reap(session).await
    }

    async fn export(&self, session: &SessionId, root: &SandboxPath) -> Result<ExportStream, Error> {
        self.0.export(session, root).await
    }
}
