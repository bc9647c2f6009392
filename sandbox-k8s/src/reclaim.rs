//! Removes what came of a provision that failed, and nothing else: it looks again first.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use sandbox::{Error, Recreated, SessionId};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::gate::is_gated;
use crate::names::{Key, Keys, PodId, pod_name};
use crate::provider::Place;
use crate::sessions::Turn;
use crate::stamp;
use crate::state::{State, is_unheard_of, state};
use crate::wait;

/// How soon to look again at a Pod that changed between the look and the removal.
const AGAIN: Duration = Duration::from_millis(50);

/// A Pod to be removed.
#[derive(Debug)]
pub(crate) struct Unfit {
    pub(crate) which: Which,
    /// Whether it goes also if it runs commands by now, since nobody can use it for long: it lacks a tool, its shells are refused, or
    /// its gate has a token that nobody knows. Otherwise somebody else may be at work in it.
    pub(crate) even_ready: bool,
    /// What is known of its gate's token, if it has one.
    pub(crate) recorded: Recorded,
    /// What is lost with it.
    pub(crate) loss: Option<Recreated>,
}

/// Whether the token of a gate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// It can be. It is taken back first, and where that fails the Pod stays, so that whoever removes it later does that again.
    Yes,
    /// It is not.
    No,
    /// To record it has failed. It is taken back where that can be done, and the Pod goes in any case: nobody else would ever use it.
    Failed,
}

#[derive(Debug)]
pub(crate) enum Which {
    /// That one.
    Uid(String),
    /// The one that a create with this nonce made, if it made one.
    Nonce(String),
}

impl Unfit {
    fn is(&self, pod: &Pod, place: &Place) -> bool {
        match &self.which {
            Which::Uid(uid) => pod.metadata.uid.as_ref() == Some(uid),
            Which::Nonce(nonce) => stamp::annotation(pod, &Keys::of(&place.config), Key::Nonce) == Some(nonce.as_str()),
        }
    }
}

/// A Pod with a gate whose token is not recorded yet: of no use to anybody. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct Unrecorded<'a> {
    place: &'a Arc<Place>,
    session: &'a SessionId,
    turn: &'a Turn,
    /// By which the Pod is known; `None` once it is not this one's to remove.
    nonce: Option<String>,
    /// Whether somebody was asked to record it.
    pub(crate) asked: bool,
}

impl<'a> Unrecorded<'a> {
    pub(crate) fn new(place: &'a Arc<Place>, session: &'a SessionId, turn: &'a Turn, nonce: &str) -> Self {
        Self { place, session, turn, nonce: Some(nonce.to_owned()), asked: false }
    }

    /// It is recorded, or somebody else sees to it.
    pub(crate) fn over(mut self) {
        self.nonce = None;
    }
}

impl Drop for Unrecorded<'_> {
    fn drop(&mut self) {
        // Without a runtime nobody can; then the provision that finds it does.
        let Some(nonce) = self.nonce.take().filter(|_| Handle::try_current().is_ok()) else { return };
        let recorded = if self.asked { Recorded::Failed } else { Recorded::No };
        let unfit = Unfit { which: Which::Nonce(nonce), even_ready: true, recorded, loss: None };
        drop(self.place.reclaim(self.session, unfit, self.turn));
    }
}

impl Place {
    /// Removes that Pod, if it still is what it was taken for; answers whether it is gone, and its gate's token with it. Goes on when the
    /// caller does not, and has the session's turn until it is over, which a deadline bounds. What it cannot do, a reap does.
    pub(crate) fn reclaim(self: &Arc<Self>, session: &SessionId, unfit: Unfit, turn: &Turn) -> JoinHandle<bool> {
        let (place, session, turn) = (Arc::clone(self), session.clone(), Turn::clone(turn));
        tokio::spawn(async move {
            let _turn = turn;
            match look_and_remove(&place, &session, unfit).await {
                Ok(gone) => gone,
                Err(error) => {
                    let kind = error.kind();
                    tracing::warn!(session = session.as_str(), ?kind, "a sandbox that does not work is not removed");
                    false
                }
            }
        })
    }
}

async fn look_and_remove(place: &Place, session: &SessionId, mut unfit: Unfit) -> Result<bool, Error> {
    let (pods, config) = (&place.pods, &place.config);
    let deadline = Instant::now() + config.stop_timeout;
    let name = pod_name(session);
    // Whether no token is left that is valid.
    let mut clean = true;
    loop {
        let Some(pod) = pods.get(&name, deadline).await?.filter(|pod| unfit.is(pod, place)) else { return Ok(clean) };
        let id = PodId::of(&pod);
        let runs = match state(&pod) {
            State::Ending => None,
            State::Ready if !unfit.even_ready => return Ok(false),
            _ if is_unheard_of(&pod) => return Ok(false),
            State::Dead(_) => Some(false),
            _ => Some(true),
        };
        if unfit.recorded != Recorded::No && is_gated(&pod) {
            // What goes in any case needs time for that.
            let half = deadline - config.stop_timeout / 2;
            match place.revoke(session, if unfit.recorded == Recorded::Failed { half } else { deadline }).await {
                Err(error) if unfit.recorded == Recorded::Yes => return Err(error),
                revoked => clean = revoked.is_ok(),
            }
            // It goes: its gate lets nobody through any more.
            (unfit.recorded, unfit.even_ready) = (Recorded::No, true);
        }
        let Some(runs) = runs else { return wait::gone(pods, &id, deadline).await.map(|()| clean) };
        let version = pod.metadata.resource_version.as_deref();
        if pods.delete(&id, version, config.grace(runs), deadline).await? {
            if let Some(why) = unfit.loss.take() {
                place.sessions.lose(session, why);
            }
            return wait::removed(pods, config, &id, runs, deadline).await.map(|()| clean);
        }
        // It has changed meanwhile, perhaps for the better.
        sleep(AGAIN).await;
    }
}
