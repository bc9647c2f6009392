//! Waits for what becomes of a Pod: by a watch, and by asking where a watch is not to be had.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::Error as KubeError;
use kube::api::WatchEvent;
use sandbox::{Death, Error, ErrorKind, Recreated};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::api::Pods;
use crate::config::K8sConfig;
use crate::error::has_code;
use crate::state::{State, Stuck, state};

/// How often to ask where there is no watch.
const ASK: Duration = Duration::from_millis(200);
/// How long a watch may be silent before somebody asks whether it is right.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a container that cannot be made may stay so.
const CONTAINER_GRACE: Duration = Duration::from_secs(5);

/// Tells the Pod of one name, again each time that it may have changed.
pub(crate) struct Observer<'a> {
    pods: &'a Pods,
    name: &'a str,
    events: Option<BoxStream<'static, Result<WatchEvent<Pod>, KubeError>>>,
    asked: bool,
    forbidden: bool,
}

impl<'a> Observer<'a> {
    pub(crate) fn new(pods: &'a Pods, name: &'a str) -> Self {
        Self { pods, name, events: None, asked: false, forbidden: false }
    }

    /// Goes on from a Pod that was just read.
    async fn follow(&mut self, pod: &Pod) {
        let version = pod.metadata.resource_version.clone().unwrap_or_default();
        if version.is_empty() || self.forbidden {
            return;
        }
        // Without the right to watch, or without a watch at the moment, it asks.
        match self.pods.watch(self.name, &version).await {
            Ok(events) => self.events = Some(events),
            Err(error) => {
                tracing::debug!(error = %error, "no watch; asking instead");
                self.forbidden = has_code(&error, 403);
            }
        }
    }

    /// What is there now, and on later calls what is there after a change; `None` is no Pod. Errors are those that no patience helps
    /// against within `deadline`.
    pub(crate) async fn next(&mut self, deadline: Instant) -> Result<Option<Pod>, Error> {
        loop {
            if let Some(events) = &mut self.events {
                match timeout(SILENCE, events.next()).await {
                    Ok(Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)))) => return Ok(Some(pod)),
                    Ok(Some(Ok(WatchEvent::Deleted(_)))) => return Ok(None),
                    Ok(Some(Ok(WatchEvent::Bookmark(_)))) => continue,
                    // Its version is too old, or it broke or ended: begin anew.
                    Ok(Some(Ok(WatchEvent::Error(_)) | Err(_)) | None) => {
                        self.events = None;
                        sleep(ASK).await;
                    }
                    // It can be dead without a word.
                    Err(_) => return self.pods.get(self.name, deadline).await,
                }
            } else if self.asked {
                sleep(ASK).await;
            }
            let pod = self.pods.get(self.name, deadline).await?;
            self.asked = true;
            if let Some(pod) = &pod {
                self.follow(pod).await;
            }
            return Ok(pod);
        }
    }
}

/// How waiting for a sandbox ended.
#[derive(Debug)]
pub(crate) enum Waited {
    /// It runs commands.
    Ready(Box<Pod>),
    /// It is dead, and its remains are there.
    Dead(Recreated, bool),
    /// It is gone, or going, or another one stands there.
    Gone,
    /// It does not start. The flag: whether it never will, so that it may be removed whoever has made it.
    Refused(Error, bool),
}

/// Waits until the Pod with that uid runs commands, or never will.
///
/// What it is refused with is `ImagePull`, `Unschedulable`, `Unavailable` or `DeadlineExceeded`, with what the cluster last said.
pub(crate) async fn ready(
    pods: &Pods,
    config: &K8sConfig,
    name: &str,
    first: Pod,
    deadline: Instant,
) -> Result<Waited, Error> {
    let uid = first.metadata.uid.clone();
    let mut observer = Observer::new(pods, name);
    let mut since: HashMap<Stuck, Instant> = HashMap::new();
    let mut seen = first;
    let mut fresh = true;
    loop {
        if seen.metadata.uid != uid {
            return Ok(Waited::Gone);
        }
        let mut patience = deadline;
        let last = match state(&seen) {
            State::Ready => return Ok(Waited::Ready(Box::new(seen))),
            State::Dead(why, ran) => return Ok(Waited::Dead(why, ran)),
            State::Ending => return Ok(Waited::Gone),
            State::Starting(text) => (None, text),
            // Why, it says in a moment.
            State::Dying => (None, "its first process ended".to_owned()),
            State::Stuck(stuck, text) => {
                let grace = match stuck {
                    Stuck::Image => Duration::ZERO,
                    Stuck::Pull => config.image_pull_grace,
                    Stuck::Unschedulable => config.unschedulable_grace,
                    Stuck::Container | Stuck::Gate => CONTAINER_GRACE,
                    Stuck::Gated => deadline.saturating_duration_since(Instant::now()),
                };
                // A pull is tried again and again in between: what counts is when it first failed.
                patience = patience.min(*since.entry(stuck).or_insert_with(Instant::now) + grace);
                (Some(stuck), text)
            }
        };
        if std::mem::take(&mut fresh) {
            observer.follow(&seen).await;
        }
        match timeout_at(patience, observer.next(deadline)).await {
            Ok(next) => match next? {
                Some(pod) => seen = pod,
                None => return Ok(Waited::Gone),
            },
            Err(_) => {
                let wedged = last.0 == Some(Stuck::Gate);
                return Ok(Waited::Refused(gave_up(last), wedged));
            }
        }
    }
}

fn gave_up((stuck, text): (Option<Stuck>, String)) -> Error {
    let kind = match stuck {
        Some(Stuck::Image | Stuck::Pull) => ErrorKind::ImagePull,
        Some(Stuck::Unschedulable | Stuck::Gated) => ErrorKind::Unschedulable,
        Some(Stuck::Container | Stuck::Gate) => ErrorKind::Unavailable,
        None => ErrorKind::DeadlineExceeded,
    };
    Error::new(kind).because(if text.is_empty() { "the Pod says nothing".to_owned() } else { text })
}

/// Waits until the Pod with that uid is gone: no Pod of that name, or another one.
pub(crate) async fn gone(pods: &Pods, name: &str, uid: &str, deadline: Instant) -> Result<(), Error> {
    let mut observer = Observer::new(pods, name);
    loop {
        match timeout_at(deadline, observer.next(deadline)).await {
            Ok(Ok(Some(pod))) if pod.metadata.uid.as_deref() == Some(uid) => {}
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                return Err(Error::new(ErrorKind::DeadlineExceeded)
                    .because("the Pod is still there; a finalizer holds it, or its node does not answer"));
            }
        }
    }
}

/// Removes that very Pod and waits until it is gone; by force when the deadline is near.
pub(crate) async fn remove(
    pods: &Pods,
    config: &K8sConfig,
    name: &str,
    uid: &str,
    runs: bool,
    deadline: Instant,
) -> Result<(), Error> {
    let grace = if runs { u32::try_from(config.stop_grace.as_secs()).unwrap_or(2) } else { 0 };
    pods.delete(name, uid, grace, deadline).await?;
    // A node that does not answer never says that its containers have ended.
    let patience =
        (Instant::now() + config.stop_grace + Duration::from_secs(10)).min(deadline - Duration::from_secs(3));
    if grace > 0 {
        match gone(pods, name, uid, patience).await {
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {
                pods.delete(name, uid, 0, deadline).await?;
            }
            other => return other,
        }
    }
    gone(pods, name, uid, deadline).await
}

/// A sandbox that went away while somebody waited for it.
pub(crate) fn went_away() -> Error {
    Error::new(ErrorKind::NotFound).with_death(Death::Deleted).because("it was removed while it was starting")
}
