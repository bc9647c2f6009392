//! A suite whose cases pass, fail, panic, hang and leak.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use conformance::{Case, Factory, Failure, Outcome, Probe, equal, within};

/// A factory whose contexts are numbers.
pub(crate) struct Toy {
    pub(crate) probe: Probe<bool>,
    pub(crate) leaks: bool,
    pub(crate) opened: Arc<AtomicU32>,
    /// Without the cases that fail.
    pub(crate) sound: bool,
    /// Without any case.
    pub(crate) empty: bool,
}

impl Toy {
    pub(crate) fn ready() -> Self {
        let probe = Probe::Ready { claims: false, claimed: BTreeMap::new(), facts: BTreeMap::new() };
        Self { probe, leaks: false, opened: Arc::default(), sound: false, empty: false }
    }
}

const RULE: &str = "One and one is two.";

#[async_trait]
impl Factory for Toy {
    type Context = u32;
    type Claims = bool;

    fn name(&self) -> &str {
        "toy"
    }

    fn cases(&self) -> Vec<Case<Self>> {
        let moment = Duration::from_millis(200);
        let all = vec![
            Case::new("sum::holds", RULE, |_| async { Ok(()) }),
            Case::new("sum::fails", RULE, |one| async move { equal("adding", *one + 2, 2) }),
            Case::new("sum::panics", RULE, |_| async { panic!("a bug in the case") }),
            Case::new("sum::hangs", RULE, |_| std::future::pending()).deadline(moment),
            Case::new("sum::waits", RULE, |_| within("the post", Duration::from_millis(50), std::future::pending())),
            Case::new("sum::claimed", RULE, |_| async { Ok(()) }).needs("big_numbers", |claims| *claims),
            Case::new("sum::unproved", RULE, |_| async { Ok(()) }).needs("odd_numbers", |_| false).unproved(),
            Case::new("sum::slow", RULE, |_| async { Ok(()) }).slow(),
            Case::new("odd::races", RULE, |_| async { Ok(()) }).repeat(3).races(),
        ];
        let fails = ["sum::fails", "sum::panics", "sum::hangs", "sum::waits"];
        all.into_iter().filter(|case| !(self.empty || self.sound && fails.contains(&case.id))).collect()
    }

    async fn probe(&self) -> Probe<bool> {
        self.probe.clone()
    }

    async fn open(&self, _: &'static str) -> Outcome<u32> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(1)
    }

    fn trail(&self, _: &u32) -> String {
        "it counted on its fingers".to_owned()
    }

    async fn close(&self, _: &u32) -> Outcome {
        if self.leaks { Err(Failure::new("looking around", "nothing left", "a chair")) } else { Ok(()) }
    }
}
