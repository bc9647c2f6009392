//! Every case is itself tested: on a wrapper that breaks its rule it fails, and on one that breaks nothing it passes.

mod plain;
mod proof;

use std::collections::BTreeSet;

use conformance::sandbox::mutants::{Mutant, mutants};
use conformance::sandbox::{Setup, cases};
use conformance::{Factory, Options, Probe, Verdict};
use futures::StreamExt;
use proof::{ON_K8S, ON_LOCAL};

/// Cases that do not apply to what the mutants run on here.
fn absent_here() -> impl Iterator<Item = &'static str> {
    ON_LOCAL.iter().chain(ON_K8S).copied()
}

fn setup(world: &std::sync::Arc<plain::World>) -> Setup {
    let (world, place, gate) = (std::sync::Arc::clone(world), std::sync::Arc::clone(world), world.gate());
    let scene = std::sync::Arc::clone(&place);
    let setup = Setup::new("plain", move || {
        let provider = world.provider();
        async move { Ok(provider) }
    });
    let setup = setup.with_killer(move |session| {
        let killed = scene.kill(&session);
        async move { killed }
    });
    setup.with_gate(gate).with_leak_check(move |session| {
        let left = place.left(&session);
        async move { left }
    })
}

#[test]
fn every_case_has_a_mutant_and_every_mutant_a_case() {
    let ids: BTreeSet<_> = cases().iter().map(|case| case.id).collect();
    assert_eq!(ids.len(), cases().len(), "two cases have one id");
    let cited: BTreeSet<_> = mutants().iter().flat_map(|mutant| mutant.cases).copied().collect();
    let names: BTreeSet<_> = mutants().iter().map(|mutant| mutant.name).collect();
    assert_eq!(names.len(), mutants().len(), "two mutants have one name");
    let without: Vec<_> = ids.difference(&cited).collect();
    assert!(without.is_empty(), "cases without a mutant: {without:?}");
    let strangers: Vec<_> = cited.difference(&ids).collect();
    assert!(strangers.is_empty(), "mutants name cases that do not exist: {strangers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mutant_dies_by_the_cases_it_names() {
    let world = plain::World::new();
    let setup = setup(&world);
    let only = std::env::var("MUTANT").unwrap_or_default();
    let Probe::Ready { claims, .. } = setup.probe().await else { panic!("no backend") };
    let absent: BTreeSet<_> =
        cases().iter().filter(|case| case.not_applicable(&claims).is_some()).map(|case| case.id).collect();
    let elsewhere: BTreeSet<_> = absent_here().collect();
    assert_eq!(absent, elsewhere, "the cases that are seen to fail elsewhere");
    let all = mutants();
    let runs = all.iter().filter(|mutant| mutant.name.contains(&only)).map(|mutant| {
        let setup = &setup;
        async move { (mutant.name, mutant.survivors(setup).await) }
    });
    let results: Vec<_> = futures::stream::iter(runs).buffer_unordered(4).collect().await;
    let mut alive = Vec::new();
    for (name, survivors) in results {
        for (id, verdict) in survivors {
            if !(elsewhere.contains(&*id) && matches!(verdict, Verdict::NotApplicable(_))) {
                alive.push(format!("\"{name}\" got past {id}: {verdict:?}"));
            }
        }
    }
    assert!(alive.is_empty(), "{}", alive.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrapper_alone_breaks_nothing() {
    let world = plain::World::new();
    // What races is tried twenty times where a real backend is tried.
    let slow = cases().into_iter().filter(|case| case.slow);
    let slow = slow.fold(Options::default().with_slow(), |options, case| options.with_only(case.id));
    for mut options in [Options::default(), slow] {
        options.threads = 2;
        let report = conformance::run(Mutant::harmless().around(&setup(&world)), options).await;
        let failed: Vec<_> = report.failures().map(|case| format!("{}\n{}", case.id, case.verdict.text())).collect();
        assert!(failed.is_empty(), "{}", failed.join("\n\n"));
        assert!(report.success());
    }
}
