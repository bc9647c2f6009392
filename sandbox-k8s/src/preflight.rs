//! What a cluster lets a provider do, asked before it matters.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::{Api, PostParams};
use sandbox::{Error, Spec};
use tokio::time::Instant;

use crate::error::{api_error, has_code};
use crate::pod::{self, Making};
use crate::provider::K8sProvider;

/// The oldest server that the family is made for: 1.29.
const OLDEST: (u32, u32) = (1, 29);

/// What a provider may do in its namespace.
const VERBS: [(FindingKind, &str, Option<&str>, &str); 8] = [
    (FindingKind::MayNotGetPods, "get", None, "finds and enters sandboxes"),
    (FindingKind::MayNotListPods, "list", None, "lists and reaps sandboxes"),
    (FindingKind::MayNotCreatePods, "create", None, "makes sandboxes"),
    (FindingKind::MayNotDeletePods, "delete", None, "removes sandboxes"),
    (
        FindingKind::MayNotWatchPods,
        "watch",
        None,
        "notices changes at once; without it the provider asks again and again",
    ),
    (
        FindingKind::MayNotPatchPods,
        "patch",
        None,
        "notes on a sandbox why an earlier one died, where two processes replace that one at once",
    ),
    // Opening a WebSocket is a GET; newer servers check for create as well.
    (FindingKind::MayNotGetExec, "get", Some("exec"), "runs commands"),
    (FindingKind::MayNotCreateExec, "create", Some("exec"), "runs commands"),
];

/// What [`K8sProvider::preflight`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preflight {
    /// The server's version, as in `v1.33.2`.
    pub server: String,
    /// What is not as it must or might be; empty if all is well.
    pub findings: Vec<Finding>,
}

/// One thing that is not as it must or might be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What kind of thing: match on it.
    pub kind: FindingKind,
    /// Whether provisions fail because of it; otherwise something works less well.
    pub fatal: bool,
    /// What it is, as in `create pods/exec is not allowed in the namespace sandboxes`. Its wording is not part of the contract.
    pub what: String,
    /// What it is for, or what would help. As `what`.
    pub why: String,
}

/// What kind of thing a [`Finding`] is. All are [fatal](Finding::fatal) but [`MayNotWatchPods`](Self::MayNotWatchPods) and
/// [`MayNotPatchPods`](Self::MayNotPatchPods).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// The server is older than the oldest that is supported: 1.29.
    ServerTooOld,
    /// No right to `get` `pods`: no sandbox is found or entered.
    MayNotGetPods,
    /// No right to `list` `pods`: none is listed or reaped.
    MayNotListPods,
    /// No right to `create` `pods`: none is made.
    MayNotCreatePods,
    /// No right to `delete` `pods`: none is removed.
    MayNotDeletePods,
    /// No right to `watch` `pods`: changes are asked for again and again.
    MayNotWatchPods,
    /// No right to `patch` `pods`: where two processes replace a dead sandbox at once, the next one may not tell why.
    MayNotPatchPods,
    /// No right to `get` `pods/exec`: no command runs.
    MayNotGetExec,
    /// No right to `create` `pods/exec`: no command runs, on servers from 1.35 on.
    MayNotCreateExec,
    /// The server refuses the Pod of the spec, as a dry run: Pod Security, a quota, a RuntimeClass or namespace that is not there, a webhook, or
    /// a value that it finds invalid. [`Finding::why`] has its words.
    PodRefused,
}

impl FindingKind {
    /// Whether provisions fail because of it.
    fn is_fatal(self) -> bool {
        !matches!(self, Self::MayNotWatchPods | Self::MayNotPatchPods)
    }
}

impl Finding {
    fn new(kind: FindingKind, what: String, why: impl Into<String>) -> Self {
        Self { kind, fatal: kind.is_fatal(), what, why: why.into() }
    }
}

impl Preflight {
    /// Whether nothing was found that makes provisions fail.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.findings.iter().any(|finding| finding.fatal)
    }
}

impl K8sProvider {
    /// Asks whether a sandbox for `spec` can be made and used. Makes nothing: each permission is asked for by a
    /// SelfSubjectAccessReview, and the Pod is sent as a dry run, so that admission (Pod Security, quotas, webhooks) has its say.
    ///
    /// A spec with `limited` or `none` networking needs a namespace whose Pod Security level is `privileged`, since the init container
    /// that cuts the network off needs `NET_ADMIN`; in others the dry run is refused, and the finding has the server's words.
    ///
    /// # Errors
    ///
    /// `InvalidSpec` and `Unsupported` as a provision; `Unavailable` or `DeadlineExceeded` if the server does not answer; `Forbidden` if it does
    /// not even answer who may do what, as without valid credentials; `Other` for any other answer.
    pub async fn preflight(&self, spec: &Spec) -> Result<Preflight, Error> {
        let place = self.place();
        let (pods, config) = (&place.pods, &place.config);
        self.checked.check(spec)?;
        let deadline = Instant::now() + config.request_timeout * 2;
        let doing = "get the server's version";
        let version = pods.ask(doing, deadline, || pods.client.apiserver_version()).await?;
        let version = version.map_err(|e| api_error(doing, e))?;
        let mut report = Preflight { server: version.git_version, findings: Vec::new() };
        if !is_new_enough(&version.major, &version.minor) {
            let what = format!("the server is {}", report.server);
            let why = format!("{}.{} is the oldest one that is supported", OLDEST.0, OLDEST.1);
            report.findings.push(Finding::new(FindingKind::ServerTooOld, what, why));
        }
        for (kind, verb, subresource, why) in VERBS {
            if !self.may(verb, subresource, deadline).await? {
                let resource = subresource.map_or_else(|| "pods".to_owned(), |sub| format!("pods/{sub}"));
                let what = format!("{verb} {resource} is not allowed in the namespace {}", pods.namespace);
                report.findings.push(Finding::new(kind, what, why));
            }
        }
        report.findings.extend(self.rehearse(spec, deadline).await?);
        Ok(report)
    }

    async fn may(&self, verb: &str, subresource: Option<&str>, deadline: Instant) -> Result<bool, Error> {
        let pods = &self.place().pods;
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(pods.namespace.clone()),
                    verb: Some(verb.to_owned()),
                    resource: Some("pods".to_owned()),
                    subresource: subresource.map(str::to_owned),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(pods.client.clone());
        let params = PostParams::default();
        let doing = "create selfsubjectaccessreviews";
        let answer = pods.ask(doing, deadline, || reviews.create(&params, &review)).await?;
        Ok(answer.map_err(|e| api_error(doing, e))?.status.is_some_and(|status| status.allowed))
    }

    /// Sends the Pod without having it made.
    async fn rehearse(&self, spec: &Spec, deadline: Instant) -> Result<Option<Finding>, Error> {
        let place = self.place();
        let pod = pod::pod(spec, &place.config, &Making::new()?)?;
        let doing = "create pods (as a dry run)";
        let fatal = |error| {
            let why = api_error(doing, error).reason().unwrap_or_default().to_owned();
            Some(Finding::new(FindingKind::PodRefused, "the server refuses the Pod of this spec".to_owned(), why))
        };
        Ok(match place.pods.rehearse(&pod, deadline).await? {
            Ok(()) => None,
            // The session is there already, so that the server took its Pod before.
            Err(error) if has_code(&error, 409) => None,
            Err(error) => fatal(error),
        })
    }
}

/// Some servers have a `+` after the minor version.
fn is_new_enough(major: &str, minor: &str) -> bool {
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().unwrap_or(0);
    (number(major), number(minor)) >= OLDEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (major, minor, enough) in
            [("1", "28", false), ("1", "29", true), ("1", "33+", true), ("2", "0", true), ("", "", false)]
        {
            assert_eq!(is_new_enough(major, minor), enough, "{major}.{minor}");
        }
    }
}
