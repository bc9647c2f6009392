//! Waits for what becomes of a Pod: by a watch, and by asking where a watch is not to be had.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::Error as KubeError;
use kube::api::WatchEvent;
use sandbox::{Error, ErrorKind};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::api::Pods;
use crate::config::K8sConfig;
use crate::error::{has_code, uncertain};
use crate::names::PodId;
use crate::state::{Dead, State, Stuck, state};

/// How often to ask where there is no watch.
const ASK: Duration = Duration::from_millis(200);
/// How long a watch may be silent before somebody asks whether it is right.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a container that cannot be made may stay so.
const CONTAINER_GRACE: Duration = Duration::from_secs(5);

/// How long a Pod may take to go beyond its grace.
const OVERTIME: Duration = Duration::from_secs(10);
/// How long a removal by force is given.
const LAST_MOMENT: Duration = Duration::from_secs(3);

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

    /// Goes on from a Pod that was just read. Without a watch by `deadline` it asks.
    async fn follow(&mut self, pod: &Pod, deadline: Instant) {
        let version = pod.metadata.resource_version.clone().unwrap_or_default();
        if version.is_empty() || self.forbidden {
            return;
        }
        // Without the right to watch, or without a watch at the moment, it asks.
        match self.pods.watch(self.name, &version, deadline).await {
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
                self.follow(pod, deadline).await;
            }
            return Ok(pod);
        }
    }
}

/// How waiting for a sandbox ended.
#[derive(Debug)]
pub(crate) enum Waited {
    /// It runs commands.
    Ready,
    /// It is dead, and its remains are there.
    Dead(Dead),
    /// It is gone, or going, or another one stands there.
    Gone,
    /// It does not start.
    Refused(Refused),
}

/// Why a sandbox does not start.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    /// Whether it never will, so that it may be removed whoever has made it.
    pub(crate) wedged: bool,
}

/// Waits until that very Pod runs commands, or never will; answers how it was last seen, too.
///
/// What it is refused with is `ImagePull`, `Unschedulable`, `Unavailable` or `DeadlineExceeded`, with what the cluster last said. An error
/// is the API server's, and says nothing about the Pod.
pub(crate) async fn ready(
    pods: &Pods,
    config: &K8sConfig,
    first: Pod,
    deadline: Instant,
) -> Result<(Waited, Pod), Error> {
    let id = PodId::of(&first);
    let mut observer = Observer::new(pods, &id.name);
    let mut since: HashMap<Stuck, Instant> = HashMap::new();
    let mut seen = first;
    let mut fresh = true;
    loop {
        let mut patience = deadline;
        let last = match state(&seen) {
            State::Ready => return Ok((Waited::Ready, seen)),
            State::Dead(dead) => return Ok((Waited::Dead(dead), seen)),
            State::Ending => return Ok((Waited::Gone, seen)),
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
            observer.follow(&seen, patience).await;
        }
        match timeout_at(patience, observer.next(deadline)).await {
            Ok(next) => match next?.filter(|pod| id.is(pod)) {
                Some(pod) => seen = pod,
                None => return Ok((Waited::Gone, seen)),
            },
            Err(_) => {
                let wedged = last.0 == Some(Stuck::Gate);
                let error = gave_up(last, config, patience < deadline, &id);
                return Ok((Waited::Refused(Refused { error, wedged }), seen));
            }
        }
    }
}

/// Says what was waited for and for how long, by the field that sets it, and what the cluster last said. `early` is before the time of
/// the whole was over.
fn gave_up((stuck, text): (Option<Stuck>, String), config: &K8sConfig, early: bool, id: &PodId) -> Error {
    let kind = match stuck {
        Some(Stuck::Image | Stuck::Pull) => ErrorKind::ImagePull,
        Some(Stuck::Unschedulable | Stuck::Gated) => ErrorKind::Unschedulable,
        Some(Stuck::Container | Stuck::Gate) => ErrorKind::Unavailable,
        None => ErrorKind::DeadlineExceeded,
    };
    let text = if text.is_empty() { "the Pod says nothing".to_owned() } else { text };
    let whole = format!("not ready within ready_timeout ({:?})", config.ready_timeout);
    Error::new(kind).because(match stuck {
        Some(Stuck::Pull) if early => {
            format!("not pulled within image_pull_grace ({:?}): {text}", config.image_pull_grace)
        }
        Some(Stuck::Unschedulable) if early => {
            format!("no node within unschedulable_grace ({:?}): {text}", config.unschedulable_grace)
        }
        Some(Stuck::Image | Stuck::Container | Stuck::Gate) => text,
        Some(_) => format!("{whole}: {text}"),
        None => format!("{whole}: {text}; the events of the Pod {} say more", id.name),
    })
}

/// Waits until that Pod is gone: no Pod of that name, or another one.
pub(crate) async fn gone(pods: &Pods, id: &PodId, deadline: Instant) -> Result<(), Error> {
    let mut observer = Observer::new(pods, &id.name);
    loop {
        match timeout_at(deadline, observer.next(deadline)).await {
            Ok(Ok(Some(pod))) if id.is(&pod) => {}
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                return Err(Error::new(ErrorKind::DeadlineExceeded).because(format!(
                    "the Pod {} is still there: a finalizer holds it, or its node does not answer",
                    id.name
                )));
            }
        }
    }
}

/// Removes that very Pod and waits until it is gone; by force when it takes too long.
pub(crate) async fn remove(
    pods: &Pods,
    config: &K8sConfig,
    id: &PodId,
    runs: bool,
    deadline: Instant,
) -> Result<(), Error> {
    // That another one has the name means that this one is gone.
    pods.delete(id, None, config.grace(runs), deadline).await?;
    removed(pods, config, id, runs, deadline).await
}

/// Waits until a Pod that was asked to go is gone; by force ten seconds after its grace, or shortly before the deadline.
pub(crate) async fn removed(
    pods: &Pods,
    config: &K8sConfig,
    id: &PodId,
    runs: bool,
    deadline: Instant,
) -> Result<(), Error> {
    if config.grace(runs) > 0 {
        // A node that does not answer never says that its containers have ended.
        let late = deadline.checked_sub(LAST_MOMENT).unwrap_or(deadline);
        let patience = late.min(Instant::now() + config.stop_grace + OVERTIME);
        match gone(pods, id, patience).await {
            // It is still there, or no API server has answered for as long: that one may yet.
            Err(_) if Instant::now() >= patience => {
                pods.delete(id, None, 0, deadline).await?;
            }
            // Somebody has asked, and it may be gone.
            other => return other.map_err(uncertain),
        }
    }
    gone(pods, id, deadline).await.map_err(uncertain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_over_is_told_by_the_field_that_sets_it() {
        let id = PodId { name: "sbx-a".to_owned(), uid: "u".to_owned() };
        let config = K8sConfig::default();
        let said = |stuck, early| {
            let error = gave_up((stuck, "the cluster's words".to_owned()), &config, early, &id);
            (error.kind(), error.reason().unwrap_or_default().to_owned())
        };
        let whole = "not ready within ready_timeout (120s): the cluster's words";
        let pull = "not pulled within image_pull_grace (15s): the cluster's words";
        let node = "no node within unschedulable_grace (30s): the cluster's words";
        for (stuck, early, kind, text) in [
            (None, false, ErrorKind::DeadlineExceeded, &*format!("{whole}; the events of the Pod sbx-a say more")),
            (Some(Stuck::Pull), true, ErrorKind::ImagePull, pull),
            (Some(Stuck::Pull), false, ErrorKind::ImagePull, whole),
            (Some(Stuck::Image), true, ErrorKind::ImagePull, "the cluster's words"),
            (Some(Stuck::Unschedulable), true, ErrorKind::Unschedulable, node),
            (Some(Stuck::Gated), false, ErrorKind::Unschedulable, whole),
            (Some(Stuck::Container), true, ErrorKind::Unavailable, "the cluster's words"),
        ] {
            assert_eq!(said(stuck, early), (kind, text.to_owned()), "{stuck:?}, early: {early}");
        }
        let nothing = gave_up((Some(Stuck::Image), String::new()), &config, true, &id);
        assert_eq!(nothing.reason(), Some("the Pod says nothing"));
    }
}
