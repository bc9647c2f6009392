//! Wrappers that break one rule each: the proof that the cases see what they say they see.
//!
//! A [`Mutant`] goes around an honest harness and breaks exactly one rule of its backend. Each case of the suite must fail on
//! the mutants that name it; a test of this crate runs them all on the fake. Run them on your backend to see that the suite
//! would notice there too.

mod exec;
mod grants;
#[doc(hidden)]
#[allow(missing_docs, clippy::must_use_candidate, reason = "for the mutants, and for the tests of this crate")]
pub mod hooks;
mod lifecycle;
mod logs;
mod order;

use std::sync::Arc;

use hooks::Hooks;

use super::Setup;
use crate::{Options, Verdict};

/// A wrapper that breaks one rule.
#[derive(Debug)]
#[non_exhaustive]
pub struct Mutant {
    /// What it does wrong.
    pub name: &'static str,
    /// The cases that must notice.
    pub cases: &'static [&'static str],
    hooks: Arc<Hooks>,
}

impl Mutant {
    fn new(name: &'static str, cases: &'static [&'static str], hooks: Hooks) -> Self {
        Self { name, cases, hooks: Arc::new(hooks) }
    }

    /// The wrapper that breaks nothing.
    #[must_use]
    pub fn harmless() -> Self {
        Self::new("breaks nothing", &[], Hooks::default())
    }

    /// `setup`, with one rule broken.
    #[must_use]
    pub fn around(&self, setup: &Setup) -> Setup {
        let hooks = Arc::clone(&self.hooks);
        setup.clone().with_wrapper(move |harness| hooks::wrap(harness, Arc::clone(&hooks)))
    }

    /// Runs the cases that must notice around `setup`, and answers those that did not: passed, by id, or not applicable, with
    /// the reason.
    pub async fn survivors(&self, setup: &Setup) -> Vec<(String, Verdict)> {
        let mut options = Options::default().with_slow();
        options.only = self.cases.iter().map(|id| (*id).to_owned()).collect();
        let report = crate::run(self.around(setup), options).await;
        let cited = report.cases.into_iter().filter(|case| self.cases.contains(&&*case.id) || case.rule.is_empty());
        cited.filter(|case| !matches!(case.verdict, Verdict::Failed(_))).map(|case| (case.id, case.verdict)).collect()
    }
}

/// Every mutant.
#[must_use]
pub fn mutants() -> Vec<Mutant> {
    let mut all = lifecycle::mutants();
    all.extend(order::mutants());
    all.extend(exec::mutants());
    all.extend(logs::mutants());
    all.extend(grants::mutants());
    all
}
