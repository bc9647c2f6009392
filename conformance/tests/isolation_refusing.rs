//! A backend may refuse grants: it passes the suite all the same, and what it takes without a claim is seen.
#![allow(clippy::unwrap_used)]

mod fake;

use std::sync::Arc;

use conformance::isolation::mutants::hooks::{self, Hooks};
use conformance::isolation::{Caps, Setup};
use conformance::{Options, Report, Verdict};
use isolation::{Error, ErrorKind, Grant, GrantKind};

/// The fake, which refuses some grants, in a harness that claims only what it is told to.
fn setup(refuses: fn(&Grant) -> bool, claims: fn(&mut Caps)) -> Setup {
    let prepare = move |inner: hooks::Inner, ctx, spec: isolation::NodeSpec| async move {
        // What is malformed is told as that first.
        match spec.grants.iter().position(refuses) {
            Some(at) if spec.validate().is_ok() => {
                Err(Error::new(ErrorKind::GrantUnsupported, "prepare the slot").with_index(at))
            }
            _ => inner.backend().prepare(&ctx, &spec).await,
        }
    };
    let hooks = Arc::new(Hooks::new().prepare(prepare).caps(claims));
    Setup::new("refusing", move || {
        let hooks = Arc::clone(&hooks);
        async move { Ok(hooks::wrap(fake::harness(), hooks)) }
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
