//! A backend may refuse grants: it passes the suite all the same, and what it takes without a claim is seen.
#![allow(clippy::unwrap_used)]

mod fake;

use std::any::Any;
use std::sync::Arc;

use conformance::isolation::{Caps, Fault, Footprint, Harness, Setup};
use conformance::{Options, Report, Verdict};
use isolation::{
    Backend, Error, ErrorKind, ExecOutput, ExecSpec, ExecStream, Grant, GrantKind, LogOptions, LogStream, Mode,
    NodeRoot, NodeSpec, OpCtx, PrepareReport, Requirements, Result, SlotName, SlotPair, SlotRef, Status, async_trait,
};

/// The fake, which refuses some grants, in a harness that claims only what it is told to.
#[derive(Clone)]
struct Refusing {
    harness: Arc<dyn Harness>,
    backend: Arc<dyn Backend>,
    refuses: fn(&Grant) -> bool,
    claims: fn(&mut Caps),
}

impl std::fmt::Debug for Refusing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Refusing").field(&self.backend).finish()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Refusing {
    fn mode(&self) -> Mode {
        self.backend.mode()
    }

    fn requirements(&self) -> Requirements {
        self.backend.requirements()
    }

    async fn prepare(&self, ctx: &OpCtx, spec: &NodeSpec) -> Result<(Arc<dyn NodeRoot>, PrepareReport)> {
        // What is malformed is told as that first.
        match spec.grants.iter().position(self.refuses) {
            Some(at) if spec.validate().is_ok() => {
                Err(Error::new(ErrorKind::GrantUnsupported, "prepare the slot").with_index(at))
            }
            _ => self.backend.prepare(ctx, spec).await,
        }
    }

    async fn start(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        self.backend.start(ctx, slot).await
    }

    async fn stop(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        self.backend.stop(ctx, slot).await
    }

    async fn restart(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        self.backend.restart(ctx, slot).await
    }

    async fn destroy(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        self.backend.destroy(ctx, slot).await
    }

    async fn status(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<Status> {
        self.backend.status(ctx, slot).await
    }

    async fn exec(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecOutput> {
        self.backend.exec(ctx, slot, spec).await
    }

    async fn exec_stream(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecStream> {
        self.backend.exec_stream(ctx, slot, spec).await
    }

    async fn logs(&self, ctx: &OpCtx, slot: &dyn SlotRef, options: &LogOptions) -> Result<LogStream> {
        self.backend.logs(ctx, slot, options).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Harness for Refusing {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.clone())
    }

    fn mode(&self) -> Mode {
        self.harness.mode()
    }

    fn caps(&self) -> Caps {
        let mut caps = self.harness.caps();
        (self.claims)(&mut caps);
        caps
    }

    fn pair(&self) -> SlotPair {
        self.harness.pair()
    }

    fn spec(&self, slot: &SlotName) -> NodeSpec {
        self.harness.spec(slot)
    }

    async fn footprint(&self) -> Footprint {
        self.harness.footprint().await
    }

    async fn rendered(&self, slot: &SlotName) -> String {
        self.harness.rendered(slot).await
    }

    async fn emit_log(&self, slot: &SlotName, unit: &str, line: &str) {
        self.harness.emit_log(slot, unit, line).await;
    }

    fn executed(&self) -> Vec<String> {
        self.harness.executed()
    }

    async fn inject(&self, fault: Fault<'_>) -> Option<Box<dyn Any + Send>> {
        self.harness.inject(fault).await
    }
}

fn setup(refuses: fn(&Grant) -> bool, claims: fn(&mut Caps)) -> Setup {
    Setup::new("refusing", move || async move {
        let harness = fake::harness();
        let backend = harness.backend();
        Ok(Arc::new(Refusing { harness, backend, refuses, claims }) as Arc<dyn Harness>)
    })
}

fn no_mounts(caps: &mut Caps) {
    (caps.mounts, caps.mounts_visible) = (false, false);
}

fn no_grants(caps: &mut Caps) {
    no_mounts(caps);
    (caps.devices, caps.devices_usable) = (false, false);
}

fn verdict<'a>(report: &'a Report, id: &str) -> &'a Verdict {
    &report.cases.iter().find(|case| case.id == id).unwrap().verdict
}

/// Nothing failed, these cases did not apply, and those did and passed.
fn passes(report: &Report, not_applicable: &[&str], passed: &[&str]) {
    let failed: Vec<_> = report.failures().map(|case| format!("{}\n{}", case.id, case.verdict.text())).collect();
    assert!(report.success() && failed.is_empty(), "{}", failed.join("\n\n"));
    for id in not_applicable {
        assert!(matches!(verdict(report, id), Verdict::NotApplicable(_)), "{id}: {:?}", verdict(report, id));
    }
    for id in passed {
        assert!(matches!(verdict(report, id), Verdict::Passed), "{id}: {:?}", verdict(report, id));
    }
}

const OF_MOUNTS: &[&str] = &["grants::order_of_mounts", "grants::no_injection", "grants::mounts_are_visible"];

#[tokio::test(flavor = "multi_thread")]
async fn whoever_refuses_every_mount_passes() {
    let setup = setup(|grant| grant.kind() == GrantKind::Mount, no_mounts);
    let report = conformance::run(setup, Options::default()).await;
    let looked_at = ["grants::accounted_for", "grants::only_the_new_ones", "grants::order_of_discovery"];
    passes(&report, OF_MOUNTS, &[&looked_at[..], &["grants::invalid"]].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_refuses_every_grant_passes() {
    let report = conformance::run(setup(|_| true, no_grants), Options::default().with_only("grants::")).await;
    let rest = ["grants::only_the_new_ones", "grants::order_of_discovery", "grants::devices_are_usable"];
    passes(&report, &[OF_MOUNTS, &rest].concat(), &["grants::accounted_for", "grants::invalid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_takes_what_is_not_claimed_is_seen() {
    let mounts: fn(&Grant) -> bool = |grant| grant.kind() == GrantKind::Mount;
    let nothing: fn(&Grant) -> bool = |_| false;
    for (refuses, told) in [(mounts, "`devices`"), (nothing, "`mounts`")] {
        let report = conformance::run(setup(refuses, no_grants), Options::default().with_only("accounted_for")).await;
        let verdict = verdict(&report, "grants::accounted_for");
        assert!(matches!(verdict, Verdict::Failed(_)) && verdict.text().contains(told), "{verdict:?}");
    }
}
