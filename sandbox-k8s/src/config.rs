//! How a provider is set up.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use sandbox::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::grammar;
use crate::toleration::Toleration;

/// How a [`K8sProvider`](crate::K8sProvider) is set up: plain data, which can be stored and sent.
///
/// What is set often has a `with_…`; any other field is set by itself:
///
/// ```
/// use sandbox_k8s::K8sConfig;
///
/// let mut config = K8sConfig::default().with_context("staging").with_namespace("sandboxes").with_deployment("team-a");
/// config.priority_class = Some("sandboxes".to_owned());
/// config.validate()?;
/// # Ok::<(), sandbox::Error>(())
/// ```
///
/// As JSON, or in another format of serde, fields that are left out have their defaults, and others than these are refused. Durations are
/// objects of whole seconds and nanoseconds:
///
/// ```
/// # use sandbox_k8s::K8sConfig;
/// let text = r#"{"namespace": "sandboxes", "ready_timeout": {"secs": 300, "nanos": 0}}"#;
/// assert_eq!(serde_json::from_str::<K8sConfig>(text).unwrap().ready_timeout.as_secs(), 300);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct K8sConfig {
    /// The kubeconfig file; `None`, the default, takes the usual ones. Only for [`connect`](Self::connect).
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; `None`, the default, takes the current one. Only for [`connect`](Self::connect).
    pub context: Option<String>,
    /// Where the Pods are made; `None`, the default, takes the client's. Set it in a cluster: otherwise sandboxes are made beside the service
    /// itself. Best one that holds nothing but sandboxes: who may label Pods there may have them deleted.
    pub namespace: Option<String>,
    /// Which deployment of the service this is: providers with the same name share their sandboxes, others in the same
    /// namespace never touch them. A label value that is not empty; `default` unless it is set.
    pub deployment: String,
    /// What the labels and annotations of the Pods begin with, before the slash: a DNS name, `sandbox-k8s` unless it is set. Policies select by
    /// it: those of `deploy/networkpolicy.yaml` have no effect on the Pods of another domain until their keys are changed as well.
    pub domain: String,
    /// The image of the init container that cuts the network off. It needs `sh`, `ip` and `grep`; it runs as root with
    /// `NET_ADMIN` and nothing else, before anything of the tenant. Best pinned by digest, as the default is:
    /// [`NET_SETUP_IMAGE`](Self::NET_SETUP_IMAGE).
    pub net_setup_image: String,
    /// When images are pulled; [`IfNotPresent`](ImagePullPolicy::IfNotPresent) unless it is set.
    pub image_pull_policy: ImagePullPolicy,
    /// Names of the Secrets to pull images with; none by default. Whether they exist is not checked.
    pub image_pull_secrets: Vec<String>,
    /// The RuntimeClass, such as one of gVisor or Kata; `None`, the default, is the cluster's. A session whose Pod has another one fails as
    /// `SpecMismatch`, so that nobody takes a weaker wall for the one that was asked for: set it before there are sessions, or reap those
    /// that there are. Where it is `None` again, any Pod is taken.
    pub runtime_class: Option<String>,
    /// Labels that a node must have; none by default.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the Pods stand; none by default.
    pub tolerations: Vec<Toleration>,
    /// The ServiceAccount of the Pods; `None`, the default, is the namespace's. Its token is mounted in no case.
    pub service_account: Option<String>,
    /// The PriorityClass of the Pods; `None`, the default, is the cluster's.
    pub priority_class: Option<String>,
    /// Whether the Pods get a user namespace of their own: the API's `hostUsers`, turned round. `None`, the default, leaves it to the
    /// cluster.
    pub user_namespaces: Option<bool>,
    /// The bound of each writable volume, in bytes, where the spec has no bound on disk; 8 GiB unless it is set. Beyond it the Pod is
    /// evicted. There are such volumes where the root is read-only, or `run_as_user` is another than 0.
    pub volume_bytes: u64,
    /// How long a sandbox may live, in whole seconds; then it is dead. `None`, the default, is for ever.
    pub max_lifetime: Option<Duration>,
    /// How long making a sandbox may take, from the call to the first shell; 120 seconds unless it is set. A provision that fails can take as long as `stop_timeout`
    /// more, to remove what it has begun.
    pub ready_timeout: Duration,
    /// How long an image may fail to be pulled before a provision gives up; 15 seconds unless it is set.
    pub image_pull_grace: Duration,
    /// How long a Pod may find no node before a provision gives up; 30 seconds unless it is set. Set it to more than a cluster takes to add a
    /// node, where one does.
    pub unschedulable_grace: Duration,
    /// How long a sandbox that is removed may take to end by itself, in whole seconds; 2 unless it is set. 0 is a removal by force: the Pod is
    /// gone from the API at once, and its processes some moments later, or, on a node that does not answer, nobody knows when.
    pub stop_grace: Duration,
    /// How long removing a sandbox may take, `stop_grace` included; 30 seconds unless it is set. A Pod that is there ten seconds after its `stop_grace`, or three
    /// seconds before this is over, is removed by force, as where a node does not answer: its processes can live on for a while.
    pub stop_timeout: Duration,
    /// How long one request to the API server may take, retries not included; 15 seconds unless it is set.
    pub request_timeout: Duration,
    /// How many shells may be starting at once, over all sandboxes of the provider; 8 unless it is set. Nodes take long for many at once. A shell starts
    /// until its first word, or for two seconds: one that never speaks holds up no other sandbox for longer.
    pub max_opening: usize,
}

/// When images are pulled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ImagePullPolicy {
    /// Where the node does not have them.
    #[default]
    IfNotPresent,
    /// Every time.
    Always,
    /// Never: the node has them, or the provision fails.
    Never,
}

impl ImagePullPolicy {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::IfNotPresent => "IfNotPresent",
            Self::Always => "Always",
            Self::Never => "Never",
        }
    }
}

impl Default for K8sConfig {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            namespace: None,
            deployment: "default".to_owned(),
            domain: "sandbox-k8s".to_owned(),
            net_setup_image: Self::NET_SETUP_IMAGE.to_owned(),
            image_pull_policy: ImagePullPolicy::default(),
            image_pull_secrets: Vec::new(),
            runtime_class: None,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            service_account: None,
            priority_class: None,
            user_namespaces: None,
            volume_bytes: 8 << 30,
            max_lifetime: None,
            ready_timeout: Duration::from_secs(120),
            image_pull_grace: Duration::from_secs(15),
            unschedulable_grace: Duration::from_secs(30),
            stop_grace: Duration::from_secs(2),
            stop_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(15),
            max_opening: 8,
        }
    }
}

/// Namespaces of Kubernetes itself.
const TAKEN: &[&str] = &["kube-system", "kube-public", "kube-node-lease"];
/// No wait is longer than this.
const MOST: Duration = Duration::from_secs(24 * 3600);

impl K8sConfig {
    /// The default of [`net_setup_image`](Self::net_setup_image).
    pub const NET_SETUP_IMAGE: &'static str =
        "docker.io/library/busybox:1.36.1@sha256:73aaf090f3d85aa34ee199857f03fa3a95c8ede2ffd4cc2cdb5b94e566b11662";

    /// Sets the kubeconfig file.
    #[must_use]
    pub fn with_kubeconfig(mut self, path: impl Into<PathBuf>) -> Self {
        self.kubeconfig = Some(path.into());
        self
    }

    /// Sets the context of the kubeconfig.
    #[must_use]
    pub fn with_context(mut self, context: impl Into<String>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// Sets where the Pods are made.
    #[must_use]
    pub fn with_namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Sets which deployment of the service this is.
    #[must_use]
    pub fn with_deployment(mut self, deployment: impl Into<String>) -> Self {
        self.deployment = deployment.into();
        self
    }

    /// Sets the image of the init container that cuts the network off.
    #[must_use]
    pub fn with_net_setup_image(mut self, image: impl Into<String>) -> Self {
        self.net_setup_image = image.into();
        self
    }

    /// Sets the RuntimeClass.
    #[must_use]
    pub fn with_runtime_class(mut self, class: impl Into<String>) -> Self {
        self.runtime_class = Some(class.into());
        self
    }

    /// Sets how long making a sandbox may take.
    #[must_use]
    pub fn with_ready_timeout(mut self, timeout: Duration) -> Self {
        self.ready_timeout = timeout;
        self
    }

    /// Checks every field. The constructors do it first, before anything is contacted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSpec`], naming the field, the value and the rule.
    pub fn validate(&self) -> Result<(), Error> {
        // A field that is added is looked at here, or says why not.
        let Self {
            kubeconfig,
            context,
            namespace,
            deployment,
            domain,
            net_setup_image,
            image_pull_policy: _,
            image_pull_secrets,
            runtime_class,
            node_selector,
            tolerations,
            service_account,
            priority_class,
            user_namespaces: _,
            volume_bytes,
            // See `validate_times`.
            max_lifetime: _,
            ready_timeout: _,
            image_pull_grace: _,
            unschedulable_grace: _,
            stop_grace: _,
            stop_timeout: _,
            request_timeout: _,
            max_opening,
        } = self;
        if kubeconfig.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            return refuse("kubeconfig", "", "it must not be empty");
        }
        if context.as_deref() == Some("") {
            return refuse("context", "", "it must not be empty");
        }
        if let Some(namespace) = namespace {
            check_namespace(namespace)?;
        }
        if deployment.is_empty() || !grammar::is_label_value(deployment) {
            return refuse("deployment", deployment, grammar::LABEL_VALUE);
        }
        if !grammar::is_subdomain(domain) {
            return refuse("domain", domain, grammar::SUBDOMAIN);
        }
        let printable = |text: &str| !text.is_empty() && !text.chars().any(|c| c.is_control() || c.is_whitespace());
        if !printable(net_setup_image) || net_setup_image.len() > sandbox::Spec::MAX_IMAGE {
            return refuse("net_setup_image", net_setup_image, "an image without spaces and control characters");
        }
        for (at, name) in image_pull_secrets.iter().enumerate() {
            if !grammar::is_subdomain(name) {
                return refuse("image_pull_secrets", name, grammar::SUBDOMAIN);
            }
            if image_pull_secrets[..at].contains(name) {
                return refuse("image_pull_secrets", name, "it must stand there once");
            }
        }
        let named = [
            ("runtime_class", runtime_class),
            ("service_account", service_account),
            ("priority_class", priority_class),
        ];
        for (field, name) in named {
            if let Some(name) = name.as_ref().filter(|name| !grammar::is_subdomain(name)) {
                return refuse(field, name, grammar::SUBDOMAIN);
            }
        }
        for (key, value) in node_selector {
            grammar::check_label(key, value)
                .or_else(|rule| refuse("node_selector", &format!("{key}={value}"), rule))?;
        }
        for toleration in tolerations {
            toleration.check().or_else(|rule| refuse("tolerations", &toleration.text(), rule))?;
        }
        if *volume_bytes == 0 || *volume_bytes > i64::MAX as u64 {
            return refuse("volume_bytes", &volume_bytes.to_string(), "from 1 to 9223372036854775807");
        }
        self.validate_times()?;
        if !(1..=1024).contains(max_opening) {
            return refuse("max_opening", &max_opening.to_string(), "from 1 to 1024");
        }
        Ok(())
    }

    /// The grace of a removal, in seconds: what has ended needs none.
    pub(crate) fn grace(&self, runs: bool) -> u32 {
        // At most 60.
        if runs { u32::try_from(self.stop_grace.as_secs()).unwrap_or(60) } else { 0 }
    }

    fn validate_times(&self) -> Result<(), Error> {
        let text = |time: Duration| format!("{time:?}");
        let whole = |time: Duration| time.subsec_nanos() == 0;
        if let Some(time) = self.max_lifetime
            && (time.is_zero() || !whole(time) || time.as_secs() > i32::MAX as u64)
        {
            return refuse("max_lifetime", &text(time), "whole seconds, from 1 to 2147483647");
        }
        if !whole(self.stop_grace) || self.stop_grace > Duration::from_secs(60) {
            return refuse("stop_grace", &text(self.stop_grace), "whole seconds, at most 60");
        }
        for (field, time) in [
            ("ready_timeout", self.ready_timeout),
            ("stop_timeout", self.stop_timeout),
            ("request_timeout", self.request_timeout),
        ] {
            if time.is_zero() || time > MOST {
                return refuse(field, &text(time), "more than 0 and at most a day");
            }
        }
        for (field, time) in
            [("image_pull_grace", self.image_pull_grace), ("unschedulable_grace", self.unschedulable_grace)]
        {
            if time > MOST {
                return refuse(field, &text(time), "at most a day");
            }
        }
        if self.stop_timeout < self.stop_grace + Duration::from_secs(5) {
            return refuse("stop_timeout", &text(self.stop_timeout), "at least five seconds more than stop_grace");
        }
        Ok(())
    }
}

/// Checks a namespace by its name alone.
pub(crate) fn check_namespace(namespace: &str) -> Result<(), Error> {
    if !grammar::is_dns_label(namespace) {
        return refuse("namespace", namespace, grammar::DNS_LABEL);
    }
    if TAKEN.contains(&namespace) {
        return refuse("namespace", namespace, "it belongs to Kubernetes itself");
    }
    Ok(())
}

pub(crate) fn refuse<T>(field: &str, value: &str, rule: impl AsRef<str>) -> Result<T, Error> {
    let mut shown: String = value.chars().take(200).collect();
    if shown.len() < value.len() {
        shown.push('…');
    }
    Err(Error::new(ErrorKind::InvalidSpec).because(format!("{field} {shown:?}: {}", rule.as_ref())))
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
