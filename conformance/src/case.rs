//! One case: an id, a rule, and a body that finds out whether the rule holds.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::{Factory, Outcome};

/// One rule of the contract, and what finds out whether a backend keeps it.
#[non_exhaustive]
pub struct Case<F: Factory> {
    /// `area::rule`. Stable: lists of exceptions and reports refer to it.
    pub id: &'static str,
    /// The rule, word for word as it stands in the documentation of the contract.
    pub rule: &'static str,
    /// The group it is counted in.
    pub profile: &'static str,
    /// The claim without which it does not apply.
    pub needs: Option<Need<F::Claims>>,
    /// How often it runs, each time on a context of its own.
    pub repeat: u32,
    /// Something races in it, so that it runs [`Case::ROUNDS`] times where slow cases run too.
    pub races: bool,
    /// It must wait long; run only when asked to.
    pub slow: bool,
    /// It applies to no backend of this family so far, so that nobody has seen the rule hold on a real one. Lists and reports say so,
    /// wherever it runs.
    pub unproved: bool,
    /// How long one run may take in all.
    pub deadline: Duration,
    pub(crate) body: Body<F>,
}

type Body<F> = Arc<dyn Fn(Arc<<F as Factory>::Context>) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// A claim that a case stands on.
pub struct Need<C> {
    /// Its name, as it is shown where the case does not apply.
    pub claim: &'static str,
    /// Whether a backend makes it.
    pub holds: fn(&C) -> bool,
}

impl<F: Factory> Case<F> {
    /// How often a case that races runs where slow cases run too.
    pub const ROUNDS: u32 = 20;

    /// A case of the profile `core` that every backend must pass.
    pub fn new<Fut>(
        id: &'static str,
        rule: &'static str,
        body: impl Fn(Arc<F::Context>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        Self {
            id,
            rule,
            profile: "core",
            needs: None,
            repeat: 1,
            races: false,
            slow: false,
            unproved: false,
            deadline: Duration::from_secs(120),
            body: Arc::new(move |context| Box::pin(body(context))),
        }
    }

    /// Counts it in `profile`.
    #[must_use]
    pub fn profile(mut self, profile: &'static str) -> Self {
        self.profile = profile;
        self
    }

    /// Makes it apply only to backends that make a claim.
    #[must_use]
    pub fn needs(mut self, claim: &'static str, holds: fn(&F::Claims) -> bool) -> Self {
        self.needs = Some(Need { claim, holds });
        self
    }

    /// Runs it `times` times.
    #[must_use]
    pub fn repeat(mut self, times: u32) -> Self {
        self.repeat = times;
        self
    }

    /// Marks it as one in which something races.
    #[must_use]
    pub fn races(mut self) -> Self {
        self.races = true;
        self
    }

    /// How often it runs, where slow cases run too or do not.
    pub(crate) fn rounds(&self, slow: bool) -> u32 {
        if slow && self.races { self.repeat.max(Self::ROUNDS) } else { self.repeat }
    }

    /// Marks it as one that waits long.
    #[must_use]
    pub fn slow(mut self) -> Self {
        self.slow = true;
        self
    }

    /// Marks it as one that applies to no backend of this family so far.
    #[must_use]
    pub fn unproved(mut self) -> Self {
        self.unproved = true;
        self
    }

    /// Gives one run of it `deadline`.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Why it does not apply to a backend that makes `claims`; `None` if it does.
    pub fn not_applicable(&self, claims: &F::Claims) -> Option<String> {
        self.needs.as_ref().filter(|need| !(need.holds)(claims)).map(|need| format!("no {}", need.claim))
    }
}

impl<F: Factory> Clone for Case<F> {
    fn clone(&self) -> Self {
        Self { needs: self.needs.clone(), body: Arc::clone(&self.body), ..*self }
    }
}

impl<F: Factory> fmt::Debug for Case<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("id", &self.id).field("profile", &self.profile).finish_non_exhaustive()
    }
}

impl<C> Clone for Need<C> {
    fn clone(&self) -> Self {
        Self { claim: self.claim, holds: self.holds }
    }
}

impl<C> fmt::Debug for Need<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Need").field("claim", &self.claim).finish_non_exhaustive()
    }
}
