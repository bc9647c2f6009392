//! A backend, as the runner takes it.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;

use super::{Bed, Caps, Case, Harness};
use crate::{Factory, Outcome, Probe};

pub use crate::sandbox::NoBackend;

type Connect = Arc<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn Harness>, NoBackend>> + Send + Sync>;
type Wrap = Arc<dyn Fn(Arc<dyn Harness>) -> Arc<dyn Harness> + Send + Sync>;

/// Your backend, as the suite takes it.
#[derive(Clone)]
pub struct Setup {
    name: String,
    connect: Connect,
    wrap: Option<Wrap>,
    facts: BTreeMap<String, String>,
    cases: Option<Vec<Case>>,
}

impl Setup {
    /// A backend that reports and `CONFORMANCE_REQUIRE` call `name`. `connect` makes a harness, again for each case.
    ///
    /// Harnesses that share one host need `--test-threads=1`.
    pub fn new<F, Fut>(name: impl Into<String>, connect: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Arc<dyn Harness>, NoBackend>> + Send + 'static,
    {
        Self {
            name: name.into(),
            connect: Arc::new(move || Box::pin(connect())),
            wrap: None,
            facts: BTreeMap::new(),
            cases: None,
        }
    }

    /// Adds a line to the report about the place it ran in, such as the version of systemd.
    #[must_use]
    pub fn with_fact(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.insert(name.into(), value.into());
        self
    }

    /// Runs `cases` and not the whole suite.
    #[must_use]
    pub fn with_cases(mut self, cases: Vec<Case>) -> Self {
        self.cases = Some(cases);
        self
    }

    /// Puts a wrapper around every harness. Cleaning up goes past it.
    #[must_use]
    pub fn with_wrapper(mut self, wrap: impl Fn(Arc<dyn Harness>) -> Arc<dyn Harness> + Send + Sync + 'static) -> Self {
        self.wrap = Some(Arc::new(wrap));
        self
    }
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("name", &self.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl Factory for Setup {
    type Context = Bed;
    type Claims = Caps;

    fn name(&self) -> &str {
        &self.name
    }

    fn cases(&self) -> Vec<Case> {
        self.cases.clone().unwrap_or_else(super::cases)
    }

    async fn probe(&self) -> Probe<Caps> {
        match (self.connect)().await {
            Ok(harness) => {
                let claims = harness.caps();
                let claimed = serde_json::to_value(claims).and_then(serde_json::from_value).unwrap_or_default();
                let mut facts = self.facts.clone();
                facts.insert("mode".to_owned(), harness.mode().to_string());
                facts.insert("backend".to_owned(), crate::short(&harness.backend()));
                Probe::Ready { claims, claimed, facts }
            }
            Err(NoBackend::Absent { reason, remedy }) => Probe::Absent { reason, remedy },
            Err(other) => Probe::Broken(other.to_string()),
        }
    }

    async fn open(&self, _: &'static str) -> Outcome<Bed> {
        let honest = (self.connect)().await;
        let honest = honest.map_err(|why| crate::Failure::new("making a harness", "one", why.to_string()))?;
        let tried = self.wrap.as_ref().map_or_else(|| Arc::clone(&honest), |wrap| wrap(Arc::clone(&honest)));
        Bed::open(honest, tried).await
    }

    fn trail(&self, bed: &Bed) -> String {
        bed.trail()
    }

    async fn close(&self, bed: &Bed) -> Outcome {
        bed.close().await
    }
}
