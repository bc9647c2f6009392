//! Finds the sandbox of a session, or makes it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use sandbox::{Death, Effect, Error, ErrorKind, Recreated, Spec};
use tokio::time::{Instant, sleep, timeout_at};

use crate::api::Created;
use crate::error::uncertain;
use crate::gate::is_gated;
use crate::handle::Live;
use crate::names::{Key, Keys, PodId, pod_name};
use crate::pod::{self, Making};
use crate::provider::{K8s, Place};
use crate::reclaim::{Recorded, Unfit, Unrecorded, Which};
use crate::sessions::Turn;
use crate::stamp;
use crate::state::{Dead, State, Stuck, has_run, removal, state};
use crate::wait::{self, Refused, Waited};

/// How often one call begins again with what died, or was removed, under it.
const AGAIN: usize = 3;
/// How long a Pod that is being removed may take beyond its grace.
const ENDING: Duration = Duration::from_secs(15);
/// How soon a container that is ready, and refused a shell, is asked again: the runtime says ready a moment early.
const NEXT_SHELL: Duration = Duration::from_millis(100);

/// Whether an image is looked at before its first sandbox is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Yes,
    /// Somebody else does.
    No,
}

/// One provision.
struct Call<'a> {
    k8s: &'a K8s,
    place: &'a Arc<Place>,
    spec: &'a Spec,
    look: Look,
    name: String,
    deadline: Instant,
    turn: Turn,
    /// How often it may still begin again.
    left: usize,
    /// Whether another call has made the sandbox meanwhile.
    raced: bool,
    /// What this call has removed that had run.
    removed: Option<Recreated>,
}

impl K8s {
    /// As [`Provider::provision`](sandbox::Provider::provision).
    pub(crate) async fn find_or_make(&self, spec: &Spec, look: Look) -> Result<Arc<Live>, Error> {
        let place = &self.place;
        let deadline = Instant::now() + place.config.ready_timeout;
        // What no Pod can hold is refused before anything is asked.
        pod::pod(spec, &place.config, &Making::new()?)?;
        let turn = place.sessions.turn(&spec.session, deadline).await?;
        let name = pod_name(&spec.session);
        let mut call =
            Call { k8s: self, place, spec, look, name, deadline, turn, left: AGAIN, raced: false, removed: None };
        let outcome = call.run().await;
        if outcome.is_ok() {
            place.sessions.told(&spec.session);
        }
        outcome.map_err(|error| call.tell(error))
    }
}

impl Call<'_> {
    async fn run(&mut self) -> Result<Arc<Live>, Error> {
        let (place, spec, deadline) = (self.place, self.spec, self.deadline);
        let (pods, config) = (&place.pods, &place.config);
        loop {
            let (first, mine) = match pods.get(&self.name, deadline).await? {
                Some(pod) => {
                    stamp::check_ours(&pod.metadata, config, &spec.session)?;
                    self.pass_on(&pod).await;
                    (pod, false)
                }
                None => match self.create().await? {
                    Some(pod) => (pod, true),
                    None => {
                        self.raced = true;
                        continue;
                    }
                },
            };
            let id = PodId::of(&first);
            let compared = match state(&first) {
                State::Ending => {
                    self.note_removal(&first);
                    self.shut_gate(&first).await?;
                    let grace = first.metadata.deletion_grace_period_seconds.unwrap_or_default();
                    let patience = Duration::from_secs(u64::try_from(grace).unwrap_or_default()) + ENDING;
                    // Whoever removes it says how long that may take, and can say anything.
                    let until = Instant::now().checked_add(patience).map_or(deadline, |until| until.min(deadline));
                    wait::gone(pods, &id, until).await?;
                    continue;
                }
                // What is dead for good is replaced, whatever it was made to.
                State::Dead(_) | State::Dying => {
                    self.shut_gate(&first).await?;
                    false
                }
                _ if mine => true,
                _ if is_gated(&first) != spec.gate.is_some() => {
                    self.change_gate(&first).await?;
                    continue;
                }
                // So is what will never run.
                State::Stuck(Stuck::Gate, _) => false,
                _ => {
                    stamp::check_spec(&first, config, spec)?;
                    true
                }
            };
            // An error of the API server says nothing about the Pod.
            let unknown = |error| if mine { uncertain(error) } else { error };
            let (waited, pod) = wait::ready(pods, config, first, deadline).await.map_err(unknown)?;
            match waited {
                Waited::Ready => {
                    if !compared {
                        stamp::check_spec(&pod, config, spec)?;
                    }
                    match self.enter(&pod, mine).await? {
                        Some(live) => return Ok(live),
                        None => self.again()?,
                    }
                }
                Waited::Gone => {
                    if !mine {
                        self.note_removal(&pod);
                    }
                    self.again()?;
                }
                Waited::Dead(dead) if !mine && self.left > 0 => {
                    self.again()?;
                    tracing::warn!(session = spec.session.as_str(), reason = ?dead.why.reason, "a dead sandbox is replaced");
                    self.remove(&pod, false, dead.why).await?;
                }
                Waited::Dead(dead) => {
                    let error = unborn(dead);
                    return Err(if mine { self.reclaim(&pod, false, None, error).await } else { error });
                }
                Waited::Refused(Refused { error, wedged }) => {
                    let loss = (!mine).then(|| {
                        let why = error.reason().unwrap_or_default().to_owned();
                        self.loss(&pod, Recreated::new(Death::Deleted, why))
                    });
                    return Err(match mine || wedged {
                        true => self.reclaim(&pod, false, loss.flatten(), error).await,
                        false => error,
                    });
                }
            }
        }
    }

    /// Begins again, for what was there is gone; not for ever.
    fn again(&mut self) -> Result<(), Error> {
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            Error::new(ErrorKind::Busy).because("this session's sandbox is removed, or dies, again and again")
        })?;
        Ok(())
    }

    /// What goes with a Pod: its own files, if it ran, otherwise only its word of an earlier one.
    fn loss(&self, pod: &Pod, why: Recreated) -> Option<Recreated> {
        if has_run(pod) { Some(why) } else { stamp::recreated(pod, &self.place.config) }
    }

    /// Removes what this call has found, because of that.
    async fn remove(&mut self, pod: &Pod, runs: bool, why: Recreated) -> Result<(), Error> {
        let place = self.place;
        let loss = self.loss(pod, why);
        // Before: a call that is dropped says nothing any more.
        if let Some(why) = &loss {
            place.sessions.lose(&self.spec.session, why.clone());
        }
        wait::remove(&place.pods, &place.config, &PodId::of(pod), runs, self.deadline).await?;
        self.removed = loss.or(self.removed.take());
        Ok(())
    }

    /// The cluster is about to remove that Pod, or has, and says why. That somebody wanted it gone is no such reason.
    fn note_removal(&self, pod: &Pod) {
        if let Some(why) = removal(pod).and_then(|why| self.loss(pod, why)) {
            self.place.sessions.lose(&self.spec.session, why);
        }
    }

    /// An error of this call, which may have begun by removing what was there.
    fn tell(&self, error: Error) -> Error {
        let Some(why) = &self.removed else { return error };
        let text = format!(
            "{}; the session's earlier sandbox is no more: {}",
            error.reason().unwrap_or("no reason is known"),
            why.detail
        );
        let error = if error.death().is_none() { error.with_death(why.reason) } else { error };
        let error = if error.effect() == Effect::None { error.with_effect(Effect::Partial) } else { error };
        error.because(text)
    }

    /// Removes a sandbox that has a gate and is to have none, or the other way round.
    async fn change_gate(&mut self, pod: &Pod) -> Result<(), Error> {
        if self.raced || self.left == 0 {
            return Err(Error::new(ErrorKind::Busy)
                .because("another call has just made this session's sandbox with a gate, or without"));
        }
        self.again()?;
        self.shut_gate(pod).await?;
        let why = Recreated::new(Death::Replaced, if is_gated(pod) { "it had a gate" } else { "it had no gate" });
        self.remove(pod, true, why).await
    }

    /// Takes the token of a gate back that has no successor, whose own token would do that. First: a failed removal is repeated, and this
    /// with it; the other way round nobody would know.
    async fn shut_gate(&self, pod: &Pod) -> Result<(), Error> {
        match is_gated(pod) && self.spec.gate.is_none() {
            true => self.place.revoke(&self.spec.session, self.deadline).await,
            false => Ok(()),
        }
    }

    /// Makes the Pod; `None` if another one stands there by now.
    async fn create(&self) -> Result<Option<Pod>, Error> {
        let Self { place, spec, deadline, .. } = *self;
        let gates = place.gates.as_ref().filter(|_| spec.gate.is_some());
        let mut making = Making::new()?;
        making.recreated = place.sessions.lost(&spec.session);
        making.token = gates.map(|gates| gates.minter.generate()).transpose()?;
        let pod = pod::pod(spec, &place.config, &making)?;
        let nonce_key = Keys::of(&place.config).name(Key::Nonce);
        // From here on the call can be dropped with a Pod that nobody can use.
        let mut unrecorded = gates.map(|_| Unrecorded::new(place, &spec.session, &self.turn, &making.nonce));
        let created = place.pods.create(&pod, &nonce_key, deadline).await;
        if !matches!(created, Ok(Created::Mine(_)))
            && let Some(unrecorded) = unrecorded.take()
        {
            unrecorded.over();
        }
        let made = match created {
            Ok(Created::Mine(made)) => *made,
            // The other one is looked at next; unless it is gone again, which a deadline bounds.
            Ok(Created::Taken) if Instant::now() < deadline => return Ok(None),
            Ok(Created::Taken) => {
                return Err(Error::new(ErrorKind::Busy).because("others make and remove this session's sandbox"));
            }
            Err(error) => {
                if error.effect() == Effect::Unknown {
                    // Nobody waits: there may be no server that answers.
                    let which = Which::Nonce(making.nonce);
                    let recorded = Recorded::No;
                    let unfit = Unfit { which, even_ready: gates.is_some(), recorded, loss: None };
                    drop(place.reclaim(&spec.session, unfit, &self.turn));
                }
                return Err(error);
            }
        };
        if let Err(error) = stamp::check_kept(&made, &place.config) {
            if let Some(unrecorded) = unrecorded {
                unrecorded.over();
            }
            return Err(self.reclaim(&made, true, None, error).await);
        }
        if let (Some(gates), Some(token), Some(mut unrecorded)) = (gates, &making.token, unrecorded) {
            unrecorded.asked = true;
            // Only now: before, the token of somebody else's gate would be valid no longer.
            let persisted = timeout_at(deadline, gates.minter.persist(&spec.session, token)).await;
            let late = Error::new(ErrorKind::DeadlineExceeded).because("the gate's token was not recorded in time");
            unrecorded.over();
            if let Err(error) = persisted.unwrap_or(Err(late)) {
                let which = Which::Uid(PodId::of(&made).uid);
                let unfit = Unfit { which, even_ready: true, recorded: Recorded::Failed, loss: None };
                return Err(self.reclaim_as(unfit, error).await);
            }
        }
        Ok(Some(made))
    }

    /// An earlier sandbox is no more, and somebody who did not see that has made the next one first: that one must say why as well, to
    /// everybody who gets a handle of it. It takes time to start, so that its maker reads this too.
    async fn pass_on(&self, pod: &Pod) {
        let (place, config) = (self.place, &self.place.config);
        let Some(why) = place.sessions.lost(&self.spec.session) else { return };
        let known = stamp::read(pod, config).map_or(true, |stamp| stamp.recreated.is_some());
        if known || has_run(pod) || !matches!(state(pod), State::Starting(_)) {
            return;
        }
        let key = Keys::of(config).name(Key::Recreated);
        let Ok(value) = pod::recreated(&why) else { return };
        if let Err(error) = place.pods.annotate(&PodId::of(pod), &key, &value, self.deadline).await {
            tracing::warn!(pod = self.name, kind = ?error.kind(), "that an earlier sandbox died could not be noted");
        }
    }

    /// Opens the first shells of a Pod that is ready; `None` if one that this call has found died meanwhile.
    ///
    /// What this call has made stays if nobody knows whether it can be used: others may be at work in it.
    async fn enter(&self, pod: &Pod, mine: bool) -> Result<Option<Arc<Live>>, Error> {
        let live = match self.k8s.handle(&self.spec.session, pod) {
            Ok(live) => live,
            // Something on the way has made of it what is no sandbox.
            Err(error) if mine => return Err(self.reclaim(pod, true, None, error).await),
            Err(error) => return Err(error),
        };
        let mut last = None;
        loop {
            let entering = async {
                // One that others in this process have entered may have no place left.
                if mine || !live.was_entered() {
                    live.guest.warm_up().await?;
                }
                if mine && self.look == Look::Yes {
                    self.k8s.look_at_image(self.spec, pod, &live).await
                } else {
                    Ok(None)
                }
            };
            // A shell has patience of its own, which is not this call's.
            let entered = timeout_at(self.deadline, entering).await.unwrap_or_else(|_| {
                let limit = self.place.config.ready_timeout;
                let late = || {
                    let text = format!("no shell was ready within ready_timeout ({limit:?})");
                    Error::new(ErrorKind::DeadlineExceeded).because(text)
                };
                Err(last.take().unwrap_or_else(late))
            });
            let (error, unfit) = match entered {
                Ok(None) => return Ok(Some(live)),
                Ok(Some(lacks)) => (lacks, true),
                Err(error) => match error.kind() {
                    ErrorKind::NotFound if !mine => return Ok(None),
                    ErrorKind::NotFound => {
                        let death = error.death().unwrap_or(Death::Ended);
                        let text = "it ended as soon as it was ready";
                        (Error::new(ErrorKind::Unavailable).with_death(death).because(text).caused_by(error), true)
                    }
                    ErrorKind::Unavailable | ErrorKind::Lost if Instant::now() + NEXT_SHELL < self.deadline => {
                        last = Some(error);
                        sleep(NEXT_SHELL).await;
                        continue;
                    }
                    ErrorKind::Forbidden | ErrorKind::Protocol => (error, true),
                    _ => (error, false),
                },
            };
            return Err(match (mine, unfit) {
                (true, true) => self.reclaim(pod, true, None, error).await,
                (true, false) => uncertain(error),
                (false, _) => error,
            });
        }
    }

    /// Removes a Pod that nobody can use. The error is this call's, which had no effect if that succeeds.
    async fn reclaim(&self, pod: &Pod, even_ready: bool, loss: Option<Recreated>, error: Error) -> Error {
        let which = Which::Uid(PodId::of(pod).uid);
        self.reclaim_as(Unfit { which, even_ready, recorded: Recorded::Yes, loss }, error).await
    }

    async fn reclaim_as(&self, unfit: Unfit, error: Error) -> Error {
        let lost = unfit.loss.clone();
        let gone = self.place.reclaim(&self.spec.session, unfit, &self.turn).await;
        match (gone.unwrap_or(false), lost) {
            (true, Some(why)) => error.with_death(why.reason).with_effect(Effect::Partial),
            (true, None) => error.with_effect(Effect::None),
            (false, _) => uncertain(error),
        }
    }
}

/// A sandbox that died before it could be used.
fn unborn(dead: Dead) -> Error {
    let error = Error::new(ErrorKind::Unavailable).because(dead.why.detail);
    if dead.ran { error.with_death(dead.why.reason) } else { error }
}
