//! Every case of the isolation half is itself tested, and every sentence it quotes stands in the contract.
#![allow(clippy::unwrap_used)]

mod fake;

use std::collections::BTreeSet;

use conformance::isolation::mutants::{Mutant, mutants};
use conformance::isolation::{Caps, cases, unseen};
use conformance::{Factory, Options, Probe, Verdict};
use futures::StreamExt;

/// Cases that never apply to the fake, each with the reason why its mutant is not run here.
const UNPROVED: &[(&str, &str)] = &[(
    "grants::read_only",
    "the fake makes mounts visible as links, and no link keeps root from writing; `isolation_mounts.rs` runs it on real mounts",
)];

/// Cases that apply to the fake where it runs with enough privilege.
fn needing_privilege(claims: &Caps) -> impl Iterator<Item = &'static str> {
    let table = [
        ("exec::user", claims.exec_user),
        ("faults::no_space", claims.fault_no_space),
        ("faults::mounts_survive", claims.fault_foreign_mount),
        ("grants::devices_are_usable", claims.devices_usable),
    ];
    table.into_iter().filter(|(_, claimed)| !claimed).map(|(id, _)| id)
}

fn is_unproved(id: &str) -> bool {
    UNPROVED.iter().any(|(unproved, reason)| *unproved == id && !reason.is_empty())
}

#[test]
fn there_are_enough_cases() {
    assert!(cases().len() >= 74, "{} cases", cases().len());
}

#[test]
fn every_case_has_a_mutant_and_every_mutant_a_case() {
    let ids: BTreeSet<_> = cases().iter().map(|case| case.id).collect();
    assert_eq!(ids.len(), cases().len(), "two cases have one id");
    let cited: BTreeSet<_> = mutants().iter().flat_map(|mutant| mutant.cases).copied().collect();
    let names: BTreeSet<_> = mutants().iter().map(|mutant| mutant.name).collect();
    assert_eq!(names.len(), mutants().len(), "two mutants have one name");
    let without: Vec<_> = ids.difference(&cited).filter(|id| !is_unproved(id)).collect();
    assert!(without.is_empty(), "cases without a mutant: {without:?}");
    let strangers: Vec<_> = cited.difference(&ids).collect();
    assert!(strangers.is_empty(), "mutants name cases that do not exist: {strangers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mutant_dies_by_the_cases_it_names() {
    let setup = fake::setup();
    let only = std::env::var("MUTANT").unwrap_or_default();
    let Probe::Ready { claims, .. } = setup.probe().await else { panic!("no backend") };
    let absent: BTreeSet<_> =
        cases().iter().filter(|case| case.not_applicable(&claims).is_some()).map(|case| case.id).collect();
    let mut unproved: BTreeSet<_> = UNPROVED.iter().map(|(id, _)| *id).collect();
    unproved.extend(needing_privilege(&claims));
    assert_eq!(absent, unproved, "the cases that nobody has seen fail");
    let all = mutants();
    let runs = all.iter().filter(|mutant| mutant.name.contains(&only)).map(|mutant| {
        let setup = &setup;
        async move { (mutant.name, mutant.survivors(setup).await) }
    });
    let results: Vec<_> = futures::stream::iter(runs).buffer_unordered(4).collect().await;
    let mut alive = Vec::new();
    for (name, survivors) in results {
        for (id, verdict) in survivors {
            if !(unproved.contains(&*id) && matches!(verdict, Verdict::NotApplicable(_))) {
                alive.push(format!("\"{name}\" got past {id}: {verdict:?}"));
            }
        }
    }
    assert!(alive.is_empty(), "{}", alive.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrapper_alone_breaks_nothing() {
    let report = conformance::run(Mutant::harmless().around(&fake::setup()), Options::default().with_slow()).await;
    let failed: Vec<_> = report.failures().map(|case| format!("{}\n{}", case.id, case.verdict.text())).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    assert!(report.success());
}

/// The bullets of the documentation in `source`, each as one line.
fn bullets(source: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut open = false;
    for line in source.lines() {
        let Some(text) = line.trim_start().strip_prefix("///") else {
            open = false;
            continue;
        };
        if let Some(first) = text.strip_prefix(" - ") {
            found.push(first.trim().to_owned());
            open = true;
        } else if open && text.starts_with("   ") {
            let last = found.last_mut().unwrap();
            last.push(' ');
            last.push_str(text.trim());
        } else {
            open = false;
        }
    }
    found
}

#[test]
fn cases_quote_the_contract_and_the_contract_is_quoted() {
    let contract = [include_str!("../../isolation/src/backend.rs"), include_str!("../../isolation/src/node_root.rs")];
    let stated: BTreeSet<String> = contract.iter().flat_map(|source| bullets(source)).collect();
    let quoted: BTreeSet<String> = cases().iter().map(|case| case.rule.to_owned()).collect();
    let invented: Vec<_> = quoted.difference(&stated).collect();
    assert!(invented.is_empty(), "cases quote what the contract does not say: {invented:#?}");
    let unseen: BTreeSet<String> = unseen().iter().map(|unseen| unseen.rule.to_owned()).collect();
    let unquoted: Vec<_> = stated.difference(&quoted).filter(|rule| !unseen.contains(*rule)).collect();
    assert!(unquoted.is_empty(), "the contract says what no case looks at: {unquoted:#?}");
}
