//! The API server's Pods of one namespace. Every request has a deadline of ours; what can be repeated is.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    Api, DeleteParams, GetParams, ListParams, ObjectList, PartialObjectMeta, Patch, PatchParams, PostParams,
    Preconditions, VersionMatch, WatchEvent, WatchParams,
};
use kube::core::{Request, Resource as _};
use kube::{Client, Error as KubeError};
use sandbox::{Error, ErrorKind};
use serde::de::IgnoredAny;
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{api_error, has_code, is_transient, no_answer, retry_after, uncertain};
use crate::names::PodId;
use crate::request::{self, is_absent, no_such_pod};

/// How many entries a page of a list has.
const PAGE: u32 = 500;
/// How long the API server keeps one watch open.
const WATCH_SECONDS: u32 = 240;
/// What etcd takes in one request unless it is told otherwise.
const MAX_POD: usize = 1_572_864;

/// The Pods of a namespace.
#[derive(Clone)]
pub(crate) struct Pods {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// For watches.
    api: Api<Pod>,
    requests: Arc<Request>,
    request_timeout: Duration,
}

/// What came of asking for a Pod to be made.
#[derive(Debug)]
pub(crate) enum Created {
    /// It was made, by this call or an earlier try of it.
    Mine(Box<Pod>),
    /// Somebody else's stands there.
    Taken,
}

/// What was asked for, unless the API server says that it is not there.
fn there<T>(doing: &str, answer: Result<T, KubeError>) -> Result<Option<T>, Error> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if no_such_pod(&error) => Ok(None),
        Err(error) => Err(api_error(doing, error)),
    }
}

/// Grows from try to try, with some chance in it so that many clients spread.
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Self {
        Self(Duration::from_millis(50))
    }

    /// Waits, and not less than the server asked for.
    pub(crate) async fn pause(&mut self, asked: Duration) {
        let mut chance = [0u8; 1];
        // Without chance it is only less spread.
        let _ = getrandom::fill(&mut chance);
        sleep(asked + self.0.mul_f32(0.75 + f32::from(chance[0]) / 512.0)).await;
        self.0 = (self.0 * 2).min(Duration::from_secs(2));
    }
}

impl Pods {
    pub(crate) fn new(client: Client, namespace: String, request_timeout: Duration) -> Self {
        let api = Api::namespaced(client.clone(), &namespace);
        let requests = Arc::new(Request::new(Pod::url_path(&(), Some(&namespace))));
        Self { client, namespace, api, requests, request_timeout }
    }

    /// One request, repeated until `deadline` where that can help.
    pub(crate) async fn ask<T, F: Future<Output = Result<T, KubeError>>>(
        &self,
        doing: &str,
        deadline: Instant,
        request: impl Fn() -> F,
    ) -> Result<Result<T, KubeError>, Error> {
        self.ask_noting(doing, deadline, &AtomicBool::new(false), request).await
    }

    /// As [`ask`](Self::ask); notes whether a try may have been carried out although its answer was none, or an error.
    async fn ask_noting<T, F: Future<Output = Result<T, KubeError>>>(
        &self,
        doing: &str,
        deadline: Instant,
        unsure: &AtomicBool,
        request: impl Fn() -> F,
    ) -> Result<Result<T, KubeError>, Error> {
        let mut backoff = Backoff::new();
        loop {
            let until = deadline.min(Instant::now() + self.request_timeout);
            let (asked, last) = match timeout_at(until, request()).await {
                Ok(Err(error)) if is_transient(&error) => {
                    // Who has too much to do has not begun.
                    unsure.fetch_or(!has_code(&error, 429), Ordering::Relaxed);
                    (retry_after(&error), api_error(doing, error))
                }
                Ok(answer) => return Ok(answer),
                Err(_) => {
                    unsure.store(true, Ordering::Relaxed);
                    (Duration::ZERO, no_answer(doing, self.request_timeout))
                }
            };
            // A deadline that passes in a pause would hide what was wrong.
            if timeout_at(deadline, backoff.pause(asked)).await.is_err() || Instant::now() >= deadline {
                return Err(last);
            }
        }
    }

    /// When one request's time is over.
    pub(crate) fn soon(&self) -> Instant {
        Instant::now() + self.request_timeout
    }

    /// The Pod of that name; `None` if there is none.
    pub(crate) async fn get(&self, name: &str, deadline: Instant) -> Result<Option<Pod>, Error> {
        let get = || request::send(&self.client, self.requests.get(name, &GetParams::default()));
        there("get pods", self.ask("get pods", deadline, get).await?)
    }

    /// As [`get`](Self::get), within one request's time.
    pub(crate) async fn get_soon(&self, name: &str) -> Result<Option<Pod>, Error> {
        self.get(name, self.soon()).await
    }

    /// The metadata of the Pod of that name.
    pub(crate) async fn look(&self, name: &str) -> Result<Option<PartialObjectMeta<Pod>>, Error> {
        let get = || request::send(&self.client, self.requests.get_metadata(name, &GetParams::default()));
        there("get pods", self.ask("get pods", self.soon(), get).await?)
    }

    /// Makes `pod`. An answer that is lost is made up for: the request is repeated, and whoever finds its own nonce in what is there
    /// has made it. After such a try every error has [`Effect::Unknown`](sandbox::Effect::Unknown): the Pod may be there.
    pub(crate) async fn create(&self, pod: &Pod, nonce_key: &str, deadline: Instant) -> Result<Created, Error> {
        let size = serde_json::to_vec(pod).map_or(0, |text| text.len());
        if size > MAX_POD {
            // A server takes its time over it, and says so in as many ways as there are versions.
            return Err(Error::new(ErrorKind::InvalidSpec).because(format!(
                "the Pod has {size} bytes, and a cluster stores at most {MAX_POD}: make `env` smaller"
            )));
        }
        let unsure = AtomicBool::new(false);
        let created = self.create_noting(pod, nonce_key, deadline, &unsure).await;
        created.map_err(|error| if unsure.load(Ordering::Relaxed) { uncertain(error) } else { error })
    }

    async fn create_noting(
        &self,
        pod: &Pod,
        nonce_key: &str,
        deadline: Instant,
        unsure: &AtomicBool,
    ) -> Result<Created, Error> {
        let doing = "create pods";
        let params = PostParams::default();
        let create = || self.post(pod, &params);
        match self.ask_noting(doing, deadline, unsure, create).await? {
            Ok(made) => Ok(Created::Mine(Box::new(made))),
            Err(error) if has_code(&error, 409) => {
                let name = pod.metadata.name.clone().unwrap_or_default();
                // The client can have repeated the request by itself.
                let there = self.get(&name, deadline).await.map_err(uncertain)?;
                let nonce = |pod: &Pod| pod.metadata.annotations.as_ref()?.get(nonce_key).cloned();
                match there {
                    Some(there) if nonce(&there).is_some() && nonce(&there) == nonce(pod) => {
                        Ok(Created::Mine(Box::new(there)))
                    }
                    _ => Ok(Created::Taken),
                }
            }
            Err(error) if is_absent(&error) => Err(Error::new(ErrorKind::Unavailable)
                .because(format!("the namespace {:?} does not exist", self.namespace))
                .caused_by(error)),
            Err(error) => Err(api_error(doing, error)),
        }
    }

    /// Adds an annotation to that very Pod.
    pub(crate) async fn annotate(&self, id: &PodId, key: &str, value: &str, deadline: Instant) -> Result<(), Error> {
        let doing = "patch pods";
        let patch = Patch::Merge(serde_json::json!({"metadata": {"uid": id.uid, "annotations": {key: value}}}));
        let params = PatchParams::default();
        let patch = || request::send(&self.client, self.requests.patch_metadata(&id.name, &params, &patch));
        self.ask(doing, deadline, patch).await?.map(|IgnoredAny| ()).map_err(|e| api_error(doing, e))
    }

    /// Sends `pod` without having it made; answers with what would be.
    pub(crate) async fn rehearse(&self, pod: &Pod, deadline: Instant) -> Result<Result<Pod, KubeError>, Error> {
        let params = PostParams { dry_run: true, ..PostParams::default() };
        self.ask("create pods (as a dry run)", deadline, || self.post(pod, &params)).await
    }

    async fn post(&self, pod: &Pod, params: &PostParams) -> Result<Pod, KubeError> {
        let text = serde_json::to_vec(pod).map_err(KubeError::SerdeError)?;
        request::send(&self.client, self.requests.create(params, text)).await
    }

    /// Asks for that very Pod to be removed, in that `version` of it if there is one; answers whether there was no conflict: else it is
    /// another Pod by now, or another version. That it is gone is success.
    pub(crate) async fn delete(
        &self,
        id: &PodId,
        version: Option<&str>,
        grace: u32,
        deadline: Instant,
    ) -> Result<bool, Error> {
        let doing = "delete pods";
        let preconditions = Preconditions { uid: Some(id.uid.clone()), resource_version: version.map(str::to_owned) };
        let params = DeleteParams {
            grace_period_seconds: Some(grace),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        let delete = || request::send(&self.client, self.requests.delete(&id.name, &params));
        match self.ask(doing, deadline, delete).await.map_err(uncertain)? {
            Ok(IgnoredAny) => Ok(true),
            Err(error) if no_such_pod(&error) => Ok(true),
            Err(error) if has_code(&error, 409) => Ok(false),
            Err(error) => Err(uncertain(api_error(doing, error))),
        }
    }

    /// One page of metadata, at most 250 entries: the first, or the one after `from`. `at` pins the state of the cluster that
    /// the first page of another list had. `None` is a state that the API server no longer has.
    pub(crate) async fn page(
        &self,
        selector: &str,
        fields: Option<&str>,
        at: Option<&str>,
        from: Option<&str>,
        deadline: Instant,
    ) -> Result<Option<ObjectList<PartialObjectMeta<Pod>>>, Error> {
        let doing = "list pods";
        let mut params = ListParams::default().labels(selector).limit(PAGE);
        params.field_selector = fields.map(str::to_owned);
        match (from, at) {
            (Some(from), _) => params = params.continue_token(from),
            (None, Some(at)) => params = params.at(at).matching(VersionMatch::Exact),
            (None, None) => {}
        }
        let list = || request::send(&self.client, self.requests.list_metadata(&params));
        match self.ask(doing, deadline, list).await? {
            Ok(page) => Ok(Some(page)),
            Err(error) if has_code(&error, 410) => Ok(None),
            Err(error) => Err(api_error(doing, error)),
        }
    }

    /// What becomes of the Pod of that name from `version` on; the answer comes by `deadline` and within one request's time.
    pub(crate) async fn watch(
        &self,
        name: &str,
        version: &str,
        deadline: Instant,
    ) -> Result<BoxStream<'static, Result<WatchEvent<Pod>, KubeError>>, KubeError> {
        let params = WatchParams {
            field_selector: Some(format!("metadata.name={name}")),
            timeout: Some(WATCH_SECONDS),
            bookmarks: false,
            ..WatchParams::default()
        };
        match timeout_at(deadline.min(self.soon()), self.api.watch(&params, version)).await {
            Ok(Ok(events)) => Ok(events.into_stream().boxed()),
            Ok(Err(error)) => Err(error),
            Err(late) => Err(KubeError::Service(late.into())),
        }
    }
}

impl std::fmt::Debug for Pods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pods").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
