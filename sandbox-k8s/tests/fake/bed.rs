//! A server, a folder to work in, and providers.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fake_apiserver::{FakeApi, Fate, On, Options, Verb};
use futures::{StreamExt, stream};
use sandbox::{
    Error, ErrorKind, ExecRequest, ExecResult, GateMinter, GateRevoker, GateSpec, GateToken, Hardening, Sandbox,
    SandboxPath, SessionId, Spec,
};
use sandbox_k8s::{K8sConfig, K8sProvider};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const NAMESPACE: &str = "default";
/// A call that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Bed {
    pub(crate) api: FakeApi,
    dir: TempDir,
}

impl Bed {
    pub(crate) async fn new() -> Self {
        Self::with(Options::new()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        Self { api: FakeApi::start_with(options).await, dir: tempfile::tempdir_in("/var/tmp").unwrap() }
    }

    pub(crate) fn config(&self) -> K8sConfig {
        let mut config = K8sConfig::default().with_ready_timeout(Duration::from_secs(50));
        config.image_pull_grace = Duration::from_millis(100);
        config.unschedulable_grace = Duration::from_millis(100);
        config
    }

    pub(crate) fn provider(&self) -> K8sProvider {
        self.provider_with(|_| {})
    }

    pub(crate) fn provider_with(&self, change: impl FnOnce(&mut K8sConfig)) -> K8sProvider {
        let mut config = self.config();
        change(&mut config);
        K8sProvider::new(self.api.client(), config).unwrap()
    }

    pub(crate) fn spec(&self) -> Spec {
        Spec::new(SessionId::generate(), "some/image").with_workdir(self.path(""))
    }

    /// Something in the working directory, as the sandbox calls it.
    pub(crate) fn path(&self, name: &str) -> SandboxPath {
        SandboxPath::new(self.file(name).to_str().unwrap()).unwrap()
    }

    /// The same on this machine.
    pub(crate) fn file(&self, name: &str) -> std::path::PathBuf {
        let dir = self.dir.path().canonicalize().unwrap();
        if name.is_empty() { dir } else { dir.join(name) }
    }

    pub(crate) fn pod(&self, session: &SessionId) -> Option<Value> {
        self.api.pod(NAMESPACE, &name(session))
    }

    pub(crate) fn uid(&self, session: &SessionId) -> Option<String> {
        Some(self.pod(session)?["metadata"]["uid"].as_str().unwrap().to_owned())
    }

    /// A spec with a gate.
    pub(crate) fn gated_spec(&self) -> Spec {
        gated(self.spec())
    }

    /// Waits until the session has a Pod, another than that one.
    pub(crate) async fn until_other(&self, session: &SessionId, uid: Option<&str>) {
        let is_other = |pod: Option<&Value>| pod.is_some_and(|pod| pod["metadata"]["uid"].as_str() != uid);
        self.api.until_pod(NAMESPACE, &name(session), is_other).await;
    }

    pub(crate) async fn set_fate(&self, session: &SessionId, fate: Fate) {
        self.api.set_fate(NAMESPACE, &name(session), fate).await;
    }

    pub(crate) fn deletes(&self) -> usize {
        self.api.count(&On::pods(Verb::Delete))
    }

    pub(crate) fn creates(&self) -> usize {
        self.api.count(&On::pods(Verb::Create))
    }

    /// Each removal names the very Pod that it is for.
    pub(crate) fn every_delete_names_its_pod(&self) -> BTreeSet<String> {
        let requests = self.api.requests().into_iter().filter(|request| request.is(&On::pods(Verb::Delete)));
        requests
            .map(|request| {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                body["preconditions"]["uid"].as_str().unwrap_or_else(|| panic!("no uid: {body}")).to_owned()
            })
            .collect()
    }
}

/// The same with a gate, and a user, which it must name then.
pub(crate) fn gated(spec: Spec) -> Spec {
    let mut hardening = Hardening::default();
    hardening.run_as_user = Some(1000);
    spec.with_hardening(hardening).with_gate(GateSpec::new("some/gate", "http://control.plane:1"))
}

/// A provider whose sandboxes may have a gate.
pub(crate) fn with_gates(provider: K8sProvider) -> K8sProvider {
    provider.with_gates(Arc::new(Tokens), Arc::new(Tokens))
}

/// A gate that ends again and again.
pub(crate) fn wedged() -> Fate {
    Fate::CrashLoop { container: "gate".to_owned(), exit_code: 1 }
}

pub(crate) fn name(session: &SessionId) -> String {
    session.object_name("sbx")
}

/// A Pod that is somebody else's.
pub(crate) fn foreign(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "theirs"}], "restartPolicy": "Never"},
    })
}

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("it hangs: {what}"),
    }
}

/// Waits for all of them, some at once: they wait more than they work.
pub(crate) async fn side_by_side(each: impl IntoIterator<Item = impl Future<Output = ()>>) {
    stream::iter(each).buffer_unordered(6).collect::<()>().await;
}

/// The error of what must fail.
pub(crate) fn fails<T: Debug>(outcome: Result<T, Error>, kind: ErrorKind) -> Error {
    match outcome {
        Err(error) if error.kind() == kind => error,
        other => panic!("{kind:?} expected: {other:?}"),
    }
}

pub(crate) fn text(text: &str) -> ExecRequest {
    ExecRequest::shell(text.to_owned()).with_limit(Duration::from_secs(20))
}

pub(crate) async fn exec(sandbox: &Arc<dyn Sandbox>, command: &str) -> Result<ExecResult, Error> {
    within("exec", sandbox.exec(text(command))).await
}

/// It runs commands.
pub(crate) async fn works(sandbox: &Arc<dyn Sandbox>) {
    let result = exec(sandbox, "echo $((6 * 7)); echo no >&2; exit 3").await.unwrap();
    let (out, err) = (result.stdout.to_string_lossy(), result.stderr.to_string_lossy());
    assert_eq!((result.exit_code, &*out, &*err), (3, "42\n", "no\n"));
}

/// Whoever knows the tokens of gates, in a test that does not ask.
#[derive(Debug)]
pub(crate) struct Tokens;

#[async_trait::async_trait]
impl GateMinter for Tokens {
    fn generate(&self) -> Result<GateToken, Error> {
        GateToken::generate()
    }

    async fn persist(&self, _: &SessionId, _: &GateToken) -> Result<(), Error> {
        Ok(())
    }
}

#[async_trait::async_trait]
impl GateRevoker for Tokens {
    async fn revoke(&self, _: &SessionId) -> Result<(), Error> {
        Ok(())
    }
}
