//! The server as a test holds it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::fate::Fate;
use crate::kubelet::{self, NODE, Step};
use crate::log::Logged;
use crate::on::On;
use crate::options::Options;
use crate::rest;
use crate::rule::{Rule, RuleHandle};
use crate::server;
use crate::shared::Shared;
use crate::store::{Key, new_uid};
use crate::wire::Cut;

/// How long the `until…` methods wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// A Kubernetes API server inside the test process.
///
/// Dropping it ends every connection, task and process that it started. The processes are gone when the drop returns;
/// the tasks end as soon as the runtime gets to them ([`shutdown`](Self::shutdown) waits for that).
#[derive(Debug)]
pub struct FakeApi {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl FakeApi {
    /// Starts a server with the default [`Options`] on a free port of the loopback interface.
    ///
    /// # Panics
    ///
    /// If the operating system gives no port, or outside of a runtime.
    pub async fn start() -> Self {
        Self::start_with(Options::new()).await
    }

    /// Starts a server.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn start_with(options: Options) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port on the loopback");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared::new(options));
        shared.store(|store| {
            rest::ensure_namespace(store, "default");
            // Nothing is there yet that it could clash with.
            let _ = store.create(Key::new("nodes", "", NODE), node(true));
        });
        shared.tasks.spawn(server::accept(listener, Arc::clone(&shared)));
        shared.tasks.spawn(kubelet::run(Arc::clone(&shared)));
        Self { shared, address }
    }

    /// Ends the server and waits until all its tasks have ended.
    pub async fn shutdown(self) {
        let mut tasks = self.shared.tasks.close();
        while tasks.join_next().await.is_some() {}
        // Dropping does the rest.
    }

    /// Where it listens: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The address behind [`url`](Self::url).
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A client configuration that points here, with retries off.
    ///
    /// # Panics
    ///
    /// Never: the URL is a legal one.
    #[must_use]
    pub fn config(&self) -> kube::Config {
        let mut config = kube::Config::new(self.url().parse().expect("a legal URL"));
        config.default_retry = false;
        config
    }

    /// A client that sends each request once.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        kube::Client::try_from(self.config()).expect("a client without TLS or credentials")
    }

    /// A client as applications have it: it retries 429, 503 and 504, creates too.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    #[must_use]
    pub fn retrying_client(&self) -> kube::Client {
        let mut config = self.config();
        config.default_retry = true;
        kube::Client::try_from(config).expect("a client without TLS or credentials")
    }

    /// Adds a rule.
    pub fn rule(&self, rule: Rule) -> RuleHandle {
        self.shared.rules.add(rule)
    }

    /// Ends all rules.
    pub fn clear_rules(&self) {
        self.shared.rules.clear();
    }

    /// What was asked so far, oldest first.
    #[must_use]
    pub fn requests(&self) -> Vec<Logged> {
        self.shared.log.all()
    }

    /// How many requests of this kind came so far.
    #[must_use]
    pub fn count(&self, on: &On) -> usize {
        self.requests().iter().filter(|request| request.is(on)).count()
    }

    /// Waits until so many requests of this kind have come.
    ///
    /// # Panics
    ///
    /// After twenty seconds.
    pub async fn until_requests(&self, on: &On, count: usize) {
        let mut changed = self.shared.log.changed.subscribe();
        let wait = changed.wait_for(|_| self.count(on) >= count);
        let outcome = tokio::time::timeout(PATIENCE, wait).await.is_ok();
        assert!(outcome, "{count} requests of {on:?}: only {} came", self.count(on));
    }

    /// A pod as it is now.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        self.shared.store(|store| store.get(&Key::new("pods", namespace, name)).map(|pod| (**pod).clone()))
    }

    /// Waits until a pod is as wanted; `None` stands for a pod that is not there.
    ///
    /// # Panics
    ///
    /// After twenty seconds, with the pod's last state.
    pub async fn until_pod(&self, namespace: &str, name: &str, wanted: impl Fn(Option<&Value>) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        let wait = changed.wait_for(|_| wanted(self.pod(namespace, name).as_ref()));
        let outcome = tokio::time::timeout(PATIENCE, wait).await.is_ok();
        assert!(outcome, "pod {namespace}/{name} did not become as wanted: {:?}", self.pod(namespace, name));
    }

    /// Waits until a pod is ready.
    ///
    /// # Panics
    ///
    /// After twenty seconds.
    pub async fn until_ready(&self, namespace: &str, name: &str) {
        let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        self.until_pod(namespace, name, |pod| {
            pod.and_then(|pod| pod["status"]["conditions"].as_array()).is_some_and(|list| list.iter().any(ready))
        })
        .await;
    }

    /// Adds a pod as if a client had created it.
    ///
    /// # Errors
    ///
    /// The `Status` that a client would have read.
    pub fn add_pod(&self, namespace: &str, pod: &Value) -> Result<Value, Value> {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let call = crate::call::Call::parse(&http::Method::POST, &path, "");
        let created = rest::create(&self.shared, &call, "Pod", &pod.to_string().into());
        created.map(|(_, pod)| (*pod).clone()).map_err(|refusal| refusal.status())
    }

    /// The names of the pods of a namespace, in order.
    #[must_use]
    pub fn pod_names(&self, namespace: &str) -> Vec<String> {
        let keys = self.shared.store(|store| store.keys("pods"));
        keys.into_iter().filter(|key| key.namespace == namespace).map(|key| key.name).collect()
    }

    /// Gives a pod a [`Fate`].
    ///
    /// # Panics
    ///
    /// If the pod is not there.
    pub async fn set_fate(&self, namespace: &str, name: &str, fate: Fate) {
        // Before the change: the kubelet must not see a lost pod that it believes to hear from.
        let uid = self.uid(namespace, name);
        self.shared.kubelet.lose(&uid, fate.loses_node());
        self.edit_pod(namespace, name, |pod| fate.apply(pod));
        if fate.ends_processes() {
            kubelet::end_processes(&self.shared, &uid).await;
        }
    }

    /// Changes a pod by hand. The kubelet leads it no further from now on; asked to go, it still goes.
    ///
    /// # Panics
    ///
    /// If the pod is not there.
    pub fn edit_pod(&self, namespace: &str, name: &str, edit: impl FnOnce(&mut Value)) {
        self.shared.kubelet.leave(&self.uid(namespace, name));
        self.shared.store(|store| store.edit(&Key::new("pods", namespace, name), edit));
    }

    fn uid(&self, namespace: &str, name: &str) -> String {
        let pod = self.pod(namespace, name).unwrap_or_else(|| panic!("there is no pod {namespace}/{name}"));
        pod["metadata"]["uid"].as_str().unwrap_or("").to_owned()
    }

    /// The processes that run in a pod now, in no order.
    ///
    /// # Panics
    ///
    /// If the pod is not there.
    #[must_use]
    pub fn processes(&self, namespace: &str, name: &str) -> Vec<i32> {
        self.shared.places.processes(&self.uid(namespace, name))
    }

    /// Gives a pod back to the kubelet, which leads it on from the state in which it is.
    pub fn give_back(&self, namespace: &str, name: &str) {
        if let Some(uid) = self.pod(namespace, name).and_then(|pod| pod["metadata"]["uid"].as_str().map(str::to_owned))
        {
            self.shared.kubelet.take_back(&uid);
            self.shared.wake();
        }
    }

    /// Removes a pod at once, with all that runs in it, as if somebody else had deleted it.
    pub async fn remove_pod(&self, namespace: &str, name: &str) {
        let gone = self.shared.store(|store| store.remove(&Key::new("pods", namespace, name)));
        if let Some(pod) = gone {
            kubelet::end(&self.shared, pod["metadata"]["uid"].as_str().unwrap_or("")).await;
        }
    }

    /// The directory in which the processes of a pod start.
    ///
    /// # Panics
    ///
    /// If the pod is not there, or the directory can't be made.
    #[must_use]
    pub fn pod_dir(&self, namespace: &str, name: &str) -> PathBuf {
        self.shared.places.dir(&self.uid(namespace, name)).expect("a temporary directory")
    }

    /// Holds every pod before a step.
    pub fn hold(&self, step: Step) {
        self.shared.kubelet.hold(step, None);
    }

    /// Holds one pod before a step; it need not be there yet.
    pub fn hold_pod(&self, namespace: &str, name: &str, step: Step) {
        self.shared.kubelet.hold(step, Some((namespace.to_owned(), name.to_owned())));
    }

    /// Lets all pods take a step again.
    pub fn release(&self, step: Step) {
        self.shared.kubelet.release(step, None);
        self.shared.wake();
    }

    /// Lets one pod take a step again.
    pub fn release_pod(&self, namespace: &str, name: &str, step: Step) {
        self.shared.kubelet.release(step, Some((namespace.to_owned(), name.to_owned())));
        self.shared.wake();
    }

    /// Makes a namespace, or changes the labels of one.
    pub fn set_namespace(&self, name: &str, labels: &[(&str, &str)]) {
        self.shared.store(|store| {
            rest::ensure_namespace(store, name);
            store.edit(&Key::new("namespaces", "", name), |namespace| {
                for (key, value) in labels {
                    namespace["metadata"]["labels"][*key] = (*value).into();
                }
            });
        });
    }

    /// Whether the one node, `fake-node`, is ready.
    pub fn set_node_ready(&self, ready: bool) {
        let conditions = node(ready)["status"]["conditions"].clone();
        self.shared
            .store(|store| store.edit(&Key::new("nodes", "", NODE), |node| node["status"]["conditions"] = conditions));
    }

    /// Forbids the client something: the request is answered 403, and a `SelfSubjectAccessReview` says so. `resource`
    /// may name a subresource (`pods/exec`); the verb `*` is every verb.
    pub fn forbid(&self, verb: &str, resource: &str) {
        self.shared.access.forbid(verb, resource);
    }

    /// Takes a [`forbid`](Self::forbid) back.
    pub fn allow(&self, verb: &str, resource: &str) {
        self.shared.access.allow(verb, resource);
    }

    /// Forgets what happened: watches from earlier versions and later pages of earlier lists are answered 410.
    pub fn compact(&self) {
        self.shared.store(crate::store::Store::compact);
    }

    /// Ends every connection that is open now, streams and watches too, as a server that restarts does. Processes in
    /// pods go on, and so does the server.
    pub fn cut_connections(&self, cut: Cut) {
        self.shared.cuts.cut(cut);
    }

    /// Stops the server, or starts it again: every connection is reset, and new ones are as soon as they are made.
    /// Processes in pods and the kubelet go on.
    pub fn set_down(&self, down: bool) {
        self.shared.cuts.set_down(down);
        if down {
            self.shared.cuts.cut(Cut::Rst);
        }
    }

    /// Records an event about a pod, as a kubelet or a scheduler does.
    ///
    /// # Panics
    ///
    /// If the pod is not there.
    pub fn add_event(&self, namespace: &str, name: &str, reason: &str, message: &str) {
        let uid = self.uid(namespace, name);
        let about = json!({"kind": "Pod", "namespace": namespace, "name": name, "uid": uid});
        let event = json!({
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {},
            "involvedObject": about,
            "type": "Warning",
            "reason": reason,
            "message": message,
        });
        let key = Key::new("events", namespace, &format!("{name}.{}", new_uid()));
        // A random name is not taken.
        let _ = self.shared.store(|store| store.create(key, event));
    }

    /// Sends a bookmark to every watch that wants them.
    pub fn send_bookmarks(&self) {
        self.shared.store(|store| store.bookmarks += 1);
    }
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        drop(self.shared.tasks.close());
        drop(self.shared.places.close());
    }
}

fn node(ready: bool) -> Value {
    let status = if ready { "True" } else { "Unknown" };
    json!({
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"}},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": status}],
            "nodeInfo": {"containerRuntimeVersion": "fake://0", "kubeletVersion": "v0", "operatingSystem": "linux"},
        },
    })
}
