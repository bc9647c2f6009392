//! What a backend hands to the suite.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::{Case, Outcome};

/// Makes what cases run on, and cleans up after them.
///
/// You do not implement this for a backend: a ready one exists for each contract, as [`sandbox::Setup`](crate::sandbox::Setup). It is public
/// because the runner is the same for every contract, and yours may be another one.
#[async_trait]
pub trait Factory: Send + Sync + Sized + 'static {
    /// What the body of a case gets.
    type Context: Send + Sync + 'static;
    /// What decides whether a case applies.
    type Claims: Send + Sync + 'static;

    /// The name of the backend: a word for reports and for `CONFORMANCE_REQUIRE`.
    fn name(&self) -> &str;

    /// The cases of this contract.
    fn cases(&self) -> Vec<Case<Self>>;

    /// Finds out whether the backend is here, and what it claims. Asked once, before anything is listed.
    async fn probe(&self) -> Probe<Self::Claims>;

    /// Makes a context for one run of the case `id`.
    async fn open(&self, id: &'static str) -> Outcome<Self::Context>;

    /// What was done in `context` last, for the text of a failure.
    fn trail(&self, context: &Self::Context) -> String;

    /// Removes what the case left, and fails if something stays behind. Runs also after a case that failed.
    async fn close(&self, context: &Self::Context) -> Outcome;
}

/// Whether a backend can be tried.
#[derive(Debug, Clone)]
pub enum Probe<C> {
    /// It can.
    Ready {
        /// What it claims.
        claims: C,
        /// Its claims by name, for the report.
        claimed: BTreeMap<String, bool>,
        /// What the report says of the place it ran in, such as a server's version.
        facts: BTreeMap<String, String>,
    },
    /// What it needs is not here.
    Absent {
        /// What is missing.
        reason: String,
        /// What to do about it, such as the variable to set.
        remedy: String,
    },
    /// It is here and does not work.
    Broken(String),
}
