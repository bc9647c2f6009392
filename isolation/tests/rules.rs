//! `RULES.md` is held to the sources: every number is there, and every test it names.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The sentences of the vocabulary are numbered from 1 to this.
const SENTENCES: usize = 65;

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Number, sentence and tests of each row.
fn rows() -> Vec<(usize, String, Vec<String>)> {
    let table = std::fs::read_to_string(here().join("RULES.md")).unwrap();
    let cells = table.lines().filter_map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        Some((cells.first()?.parse().ok()?, cells.get(1)?.to_string(), cells.get(2)?.to_string()))
    });
    cells.map(|(number, sentence, tests)| (number, sentence, tests.split(", ").map(str::to_owned).collect())).collect()
}

/// The ids of the cases, as the sources of the suite have them.
fn cases(dir: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            cases(&path, into);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for piece in text.split("Case::new(").skip(1) {
            into.extend(piece.split('"').nth(1).map(str::to_owned));
        }
    }
}

/// Whether `text` has a test function of this name, and not only a function.
fn has_test(text: &str, name: &str) -> bool {
    let wanted = [format!("fn {name}("), format!("async fn {name}(")];
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(n, line)| {
        wanted.iter().any(|wanted| line.starts_with(wanted.as_str()))
            && lines[..n].iter().rev().take_while(|above| above.starts_with("#[")).any(|above| above.contains("test"))
    })
}

#[test]
fn every_sentence_has_its_row() {
    let numbers: Vec<_> = rows().iter().map(|row| row.0).collect();
    assert_eq!(numbers, (1..=SENTENCES).collect::<Vec<_>>());
    assert!(rows().iter().all(|(_, sentence, tests)| sentence.len() > 15 && !tests.is_empty()));
}

#[test]
fn every_test_that_is_named_is_there() {
    let mut known = BTreeSet::new();
    cases(&here().join("../conformance/src/isolation/cases"), &mut known);
    assert!(known.len() > 70, "{known:?}");
    let mut missing = Vec::new();
    for (number, _, tests) in rows() {
        for test in tests {
            let found = match test.strip_prefix("suite ") {
                Some(case) => known.contains(case.trim_matches('`')),
                None => test.trim_matches('`').rsplit_once("::").is_some_and(|(file, name)| {
                    std::fs::read_to_string(here().join(file)).is_ok_and(|text| has_test(&text, name))
                }),
            };
            if !found {
                missing.push(format!("{number}: {test}"));
            }
        }
    }
    assert!(missing.is_empty(), "tests that do not exist:\n{}", missing.join("\n"));
}

#[test]
fn every_case_of_the_suite_guards_a_sentence_of_the_contract() {
    // The other direction is the suite's own: `cases_quote_the_contract_and_the_contract_is_quoted`.
    let text = std::fs::read_to_string(here().join("../conformance/tests/isolation_mutants.rs")).unwrap();
    assert!(has_test(&text, "cases_quote_the_contract_and_the_contract_is_quoted"));
}

#[test]
fn the_trait_has_no_default_methods() {
    let text = include_str!("../src/backend.rs");
    let body = text.split("pub trait Backend").nth(1).unwrap().split("\n}\n").next().unwrap();
    let code: Vec<_> = body.lines().map(str::trim).filter(|line| !line.starts_with("///")).collect();
    let methods = code.iter().filter(|line| line.starts_with("fn ") || line.starts_with("async fn ")).count();
    assert_eq!((methods, code.join("").matches(';').count()), (11, 11), "each method ends without a body");
    assert_eq!(code.join("").matches('{').count(), 1, "only the trait itself has braces");
}
