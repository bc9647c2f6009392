//! Finds the sandbox of a session, or makes it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use sandbox::{Death, Error, ErrorKind, Recreated, Spec};
use tokio::time::{Instant, sleep, timeout_at};

use crate::api::Created;
use crate::gate::is_gated;
use crate::handle::Live;
use crate::names::{Key, Keys, nonce, pod_name};
use crate::pod::{self, Making};
use crate::provider::K8s;
use crate::stamp;
use crate::state::{State, state};
use crate::wait::{self, Waited, went_away};

/// How often one call replaces what died under it.
const REPLACEMENTS: usize = 3;
/// How long a container that is ready may refuse its first shell: the runtime says ready a moment early.
const FIRST_SHELL: Duration = Duration::from_secs(10);

impl K8s {
    /// As [`Provider::provision`](sandbox::Provider::provision).
    pub(crate) async fn find_or_make(&self, spec: &Spec) -> Result<Arc<Live>, Error> {
        let place = &self.place;
        let config = &place.config;
        let deadline = Instant::now() + config.ready_timeout;
        let mut making = Making::new()?;
        // What no Pod can hold is refused before anything is asked.
        pod::pod(spec, config, &making)?;
        let _turn = self.turn(&spec.session, deadline).await?;
        let name = pod_name(&spec.session);
        let (mut replaced, mut raced) = (0, false);
        loop {
            let there = place.pods.get(&name, deadline).await?;
            let (first, mine) = match there {
                Some(pod) => {
                    stamp::check_ours(&pod, config, &spec.session)?;
                    if let Some(why) = &making.recreated {
                        self.pass_on(&name, &pod, why, deadline).await;
                    }
                    (pod, false)
                }
                None => match self.create(spec, &mut making, deadline).await? {
                    Some(pod) => (pod, true),
                    None => {
                        raced = true;
                        continue;
                    }
                },
            };
            let uid = first.metadata.uid.clone().unwrap_or_default();
            match state(&first) {
                State::Ending => {
                    wait::gone(&place.pods, &name, &uid, deadline).await?;
                    continue;
                }
                // What is dead for good is replaced, whatever it was made to.
                State::Dead(..) | State::Dying => {}
                _ if mine => {}
                _ if is_gated(&first) != spec.gate.is_some() => {
                    if raced || replaced == REPLACEMENTS {
                        return Err(Error::new(ErrorKind::Busy)
                            .because("another call has just made this session's sandbox with a gate, or without"));
                    }
                    replaced += 1;
                    making.recreated = Some(self.change_gate(spec, &first, &uid, deadline).await?);
                    making.nonce = nonce()?;
                    continue;
                }
                _ => stamp::check_spec(&first, config, spec)?,
            }
            match wait::ready(&place.pods, config, &name, first, deadline).await {
                Ok(Waited::Ready(pod)) => return self.enter(spec, &pod, mine, deadline).await,
                Ok(Waited::Gone) => return Err(went_away()),
                Ok(Waited::Dead(why, ran)) if !mine && replaced < REPLACEMENTS => {
                    replaced += 1;
                    tracing::warn!(session = spec.session.as_str(), reason = ?why.reason, "a dead sandbox is replaced");
                    wait::remove(&place.pods, config, &name, &uid, false, deadline).await?;
                    making.nonce = nonce()?;
                    if ran {
                        making.recreated = Some(why);
                    }
                }
                failed => {
                    let (error, wedged) = match failed {
                        Ok(Waited::Refused(error, wedged)) => (error, wedged),
                        Ok(Waited::Dead(why, ran)) => (unborn(&why, ran), false),
                        Ok(Waited::Ready(_) | Waited::Gone) => (went_away(), false),
                        Err(error) => (error, false),
                    };
                    if mine || wedged {
                        self.reclaim(&name, &uid).await;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Removes a sandbox that has a gate and is to have none, or the other way round.
    async fn change_gate(&self, spec: &Spec, pod: &Pod, uid: &str, deadline: Instant) -> Result<Recreated, Error> {
        let gated = is_gated(pod);
        if gated {
            // First: a failed removal is repeated, and this with it; the other way round nobody would know.
            self.revoke(&spec.session, deadline).await?;
        }
        let (pods, config) = (&self.place.pods, &self.place.config);
        wait::remove(pods, config, &pod_name(&spec.session), uid, true, deadline).await?;
        Ok(Recreated::new(Death::Replaced, if gated { "it had a gate" } else { "it had no gate" }))
    }

    /// Makes the Pod; `None` if another one stands there by now.
    async fn create(&self, spec: &Spec, making: &mut Making, deadline: Instant) -> Result<Option<Pod>, Error> {
        let gates = self.place.gates.as_ref().filter(|_| spec.gate.is_some());
        making.token = gates.map(|gates| gates.minter.generate()).transpose()?;
        let pod = pod::pod(spec, &self.place.config, making)?;
        let nonce_key = Keys::of(&self.place.config).name(Key::Nonce);
        match self.place.pods.create(&pod, &nonce_key, deadline).await? {
            Created::Mine(made) => {
                if let (Some(gates), Some(token)) = (gates, &making.token) {
                    // Only now: before, the token of somebody else's gate would be valid no longer.
                    let persisted = timeout_at(deadline, gates.minter.persist(&spec.session, token)).await;
                    let late =
                        Error::new(ErrorKind::DeadlineExceeded).because("the gate's token was not recorded in time");
                    if let Err(error) = persisted.unwrap_or(Err(late)) {
                        let uid = made.metadata.uid.clone().unwrap_or_default();
                        self.reclaim(&pod_name(&spec.session), &uid).await;
                        return Err(error);
                    }
                }
                Ok(Some(*made))
            }
            Created::Taken => {
                // The other one is looked at next; unless it is gone again, which a deadline bounds.
                if Instant::now() >= deadline {
                    return Err(Error::new(ErrorKind::Busy));
                }
                Ok(None)
            }
        }
    }

    /// This call has removed a dead sandbox, and somebody who did not see it has made the next one first: that one must say why as
    /// well, to everybody who gets a handle of it. It takes time to start, so that its maker reads this too.
    async fn pass_on(&self, name: &str, pod: &Pod, why: &Recreated, deadline: Instant) {
        let config = &self.place.config;
        let known = stamp::read(pod, config).map_or(true, |stamp| stamp.recreated.is_some());
        let (Some(uid), false) = (&pod.metadata.uid, known || !matches!(state(pod), State::Starting(_))) else {
            return;
        };
        let key = Keys::of(config).name(Key::Recreated);
        let Ok(value) = pod::recreated(why) else { return };
        if let Err(error) = self.place.pods.annotate(name, uid, &key, &value, deadline).await {
            tracing::warn!(pod = name, kind = ?error.kind(), "that an earlier sandbox died could not be noted");
        }
    }

    /// Opens the first shells of a Pod that is ready.
    async fn enter(&self, spec: &Spec, pod: &Pod, mine: bool, deadline: Instant) -> Result<Arc<Live>, Error> {
        let live = self.handle(&spec.session, pod)?;
        let patience = deadline.min(Instant::now() + FIRST_SHELL);
        loop {
            let entering = async {
                live.guest.warm_up().await?;
                if mine { self.look_at_image(spec, &live).await } else { Ok(()) }
            };
            // A shell has patience of its own, which is not this call's.
            let late = |_| Err(Error::new(ErrorKind::DeadlineExceeded).because("no shell was ready in time"));
            let Err(error) = timeout_at(deadline, entering).await.unwrap_or_else(late) else { return Ok(live) };
            let may_pass = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost);
            if may_pass && Instant::now() < patience {
                sleep(Duration::from_millis(50)).await;
                continue;
            }
            if mine {
                self.reclaim(&pod_name(&spec.session), &live.uid).await;
            }
            return Err(error);
        }
    }

    /// Removes a Pod that this call has made and nobody can use. Goes on when the call is dropped; what it cannot do, a reap does.
    async fn reclaim(&self, name: &str, uid: &str) {
        let (place, name, uid) = (Arc::clone(&self.place), name.to_owned(), uid.to_owned());
        let removal = tokio::spawn(async move {
            let deadline = Instant::now() + place.config.stop_timeout;
            if let Err(error) = wait::remove(&place.pods, &place.config, &name, &uid, true, deadline).await {
                tracing::warn!(pod = name, kind = ?error.kind(), "a sandbox that never worked could not be removed");
            }
        });
        let _ = removal.await;
    }
}

/// A sandbox that died before it could be used.
fn unborn(why: &Recreated, ran: bool) -> Error {
    let error = Error::new(ErrorKind::Unavailable).because(why.detail.clone());
    if ran { error.with_death(why.reason) } else { error }
}
