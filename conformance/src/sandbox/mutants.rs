//! Wrappers that break one rule each: the proof that the cases see what they say they see.
//!
//! A [`Mutant`] goes around an honest provider and breaks exactly one rule. Each case of the suite must fail on the mutants
//! that name it; a test of this crate runs them all. You can do the same with your backend as the honest one, which shows
//! that the suite would notice there too:
//!
//! ```no_run
//! # async fn check(setup: conformance::sandbox::Setup) {
//! use conformance::sandbox::mutants::mutants;
//!
//! for mutant in mutants() {
//!     assert!(mutant.survivors(&setup).await.is_empty(), "{} goes unnoticed", mutant.name);
//! }
//! # }
//! ```

mod bulk;
mod exec;
mod files;
mod finds;
mod hooks;
mod hostile;
mod limits;
mod provider;
mod removal;
mod spawn;
mod writes;

use std::sync::Arc;

use sandbox::Provider;

pub(crate) use hooks::{Hooks, Inner, wrap};

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

    /// `provider`, with one rule broken.
    pub fn wrap(&self, provider: Arc<dyn Provider>) -> Arc<dyn Provider> {
        hooks::wrap(provider, Arc::clone(&self.hooks))
    }

    /// `setup`, with one rule broken.
    #[must_use]
    pub fn around(&self, setup: &Setup) -> Setup {
        let hooks = Arc::clone(&self.hooks);
        // A case that is not run has noticed nothing.
        setup.clone().with_wrapper(move |provider| hooks::wrap(provider, Arc::clone(&hooks))).patient()
    }

    /// Runs the cases that must notice around `setup`, and answers those that did not: passed, by id, or not applicable, with
    /// the reason.
    pub async fn survivors(&self, setup: &Setup) -> Vec<(String, Verdict)> {
        let mut options = Options::default().with_slow();
        // Mutants are many, and each has few cases.
        options.threads = 2;
        options.only = self.cases.iter().map(|id| (*id).to_owned()).collect();
        let report = crate::run(self.around(setup), options).await;
        let cited = report.cases.into_iter().filter(|case| self.cases.contains(&&*case.id) || case.rule.is_empty());
        cited.filter(|case| !matches!(case.verdict, Verdict::Failed(_))).map(|case| (case.id, case.verdict)).collect()
    }
}

/// Every mutant.
#[must_use]
pub fn mutants() -> Vec<Mutant> {
    let mut all = exec::mutants();
    all.extend(limits::mutants());
    all.extend(provider::mutants());
    all.extend(finds::mutants());
    all.extend(removal::mutants());
    all.extend(files::mutants());
    all.extend(writes::mutants());
    all.extend(bulk::mutants());
    all.extend(spawn::mutants());
    all.extend(hostile::mutants());
    all
}
