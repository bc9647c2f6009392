//! The tables of rules are held to the sources: no rule is missing, and every test that one names is there.
#![allow(clippy::unwrap_used, reason = "a failure in a test is the point")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use conformance::sandbox::cases;

const REPORTS: &str = "conformance/REPORTS.md";

fn top() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The rows of the tables in a file: their cells.
fn rows(file: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(top().join(file)).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let rows = lines.map(|line| line.split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>());
    rows.filter(|cells| !cells.last().unwrap().starts_with("test")).collect()
}

/// The tests that a row names.
fn tests(row: &[String]) -> Vec<&str> {
    row.last().unwrap().split("; ").next().unwrap().split(", ").collect()
}

/// Whether `text` has a test function of this name, and not only a function.
fn has_test(text: &str, name: &str) -> bool {
    let wanted = [format!("fn {name}("), format!("async fn {name}(")];
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let attributes = |n: usize| lines[..n].iter().rev().take_while(|above| above.starts_with("#["));
    let is = |line: &str| wanted.iter().any(|wanted| line.starts_with(wanted.as_str()));
    (0..lines.len()).any(|n| is(lines[n]) && attributes(n).any(|a| a.starts_with("#[test]") || a.contains("::test")))
}

/// Whether an area has a trial of that name.
fn has_trial(machine: &Path, area: &str, name: &str) -> bool {
    let text = std::fs::read_to_string(machine.join(area).with_extension("rs")).unwrap_or_default();
    text.contains(&format!("(\"{area}::{name}\", Needs::"))
}

/// Whether the tests on a cluster have a trial of that name.
fn has_cluster_trial(path: &str, name: &str) -> bool {
    let area = Path::new(path).file_stem().unwrap().to_str().unwrap();
    let text = std::fs::read_to_string(top().join(path)).unwrap_or_default();
    text.contains(&format!("trial(\"{area}::{name}\", "))
}

/// The tests that a table names and that are not there.
fn missing(file: &str, base: &str) -> Vec<String> {
    let known: BTreeSet<_> = cases().iter().map(|case| case.id).collect();
    let machine = top().join("sandbox-local/tests/machine");
    let is_there = |test: &str| match test.strip_prefix("suite ") {
        Some(case) => known.contains(case.trim_matches('`')),
        None => match test.trim_matches('`').rsplit_once("::") {
            Some((path, name)) if path.ends_with(".rs") && path.contains("tests/machine/") => {
                has_trial(&machine, Path::new(path).file_stem().unwrap().to_str().unwrap(), name)
            }
            Some((path, name)) if ["tests/cluster/", "tests/fire/"].iter().any(|folder| path.contains(folder)) => {
                has_cluster_trial(path, name)
            }
            Some((path, name)) if path.ends_with(".rs") => {
                std::fs::read_to_string(top().join(base).join(path)).is_ok_and(|text| has_test(&text, name))
            }
            Some((area, name)) => has_trial(&machine, area, name),
            None => false,
        },
    };
    let of_row = |row: Vec<String>| {
        let missing: Vec<_> = tests(&row).into_iter().filter(|test| !is_there(test)).map(str::to_owned).collect();
        missing.into_iter().map(move |test| format!("{}: {test}", row[0]))
    };
    rows(file).into_iter().flat_map(of_row).collect()
}

#[test]
fn every_test_that_is_named_is_there() {
    let tables = [
        ("sandbox/RULES.md", ""),
        ("sandbox-local/RULES.md", "sandbox-local"),
        ("sandbox-k8s/RULES.md", ""),
        (REPORTS, ""),
    ];
    for (file, base) in tables {
        let missing = missing(file, base);
        assert!(missing.is_empty(), "{file} names tests that do not exist:\n{}", missing.join("\n"));
    }
}

#[test]
fn no_rule_is_missing() {
    let rows = rows("sandbox/RULES.md");
    let numbers: Vec<u32> = rows.iter().filter_map(|row| row[0].parse().ok()).collect();
    assert_eq!(numbers, (61..=112).filter(|number| *number != 82).collect::<Vec<_>>());
    let others: Vec<_> = rows.iter().filter(|row| row[0].parse::<u32>().is_err()).collect();
    for what in ["never reaches the backend", "`exec_str`", "`upload_dir`", "`download`"] {
        assert!(others.iter().any(|row| row[0].contains(what)), "{what}");
    }
    assert!(rows.iter().all(|row| row.len() == if row[0].parse::<u32>().is_ok() { 3 } else { 2 }));
}

#[test]
fn no_past_fault_is_missing() {
    let numbers: Vec<_> = rows("sandbox-k8s/RULES.md").into_iter().map(|row| row[0].clone()).collect();
    let elsewhere = ["F33", "F37", "F38"];
    let wanted = (1..=38).map(|number| format!("F{number}")).filter(|number| !elsewhere.contains(&number.as_str()));
    assert_eq!(numbers, wanted.collect::<Vec<_>>());
    let text = std::fs::read_to_string(top().join("sandbox-k8s/RULES.md")).unwrap();
    assert!(elsewhere.iter().all(|number| text.contains(number)));
}

#[test]
fn every_trial_of_the_machine_has_its_rule() {
    let named: BTreeSet<String> = rows("sandbox-local/RULES.md")
        .iter()
        .flat_map(|row| tests(row).into_iter().map(|test| test.trim_matches('`').to_owned()).collect::<Vec<_>>())
        .collect();
    let mut seen = 0;
    for entry in std::fs::read_dir(top().join("sandbox-local/tests/machine")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for line in text.lines().filter(|line| line.contains("\", Needs::")) {
            let trial = line.split('"').nth(1).unwrap();
            assert!(named.contains(trial), "{trial} is in no row of sandbox-local/RULES.md");
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
}

/// `owner/repository#7`, a change, or something else of theirs by name; or a number that all know.
fn is_reference(text: &str) -> bool {
    let word = |word: &str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if let Some(number) = text.strip_prefix("CVE-") {
        return number.split('-').count() == 2 && number.split('-').all(digits);
    }
    let Some((owner, rest)) = text.split_once('/') else { return false };
    let cut = rest.find(['#', '@', ' ']).unwrap_or(rest.len());
    let (repository, what) = rest.split_at(cut);
    let named = what.strip_prefix(" (`").is_some_and(|name| name.ends_with("`)"));
    let change =
        what.strip_prefix('@').is_some_and(|hash| hash.len() >= 7 && hash.bytes().all(|b| b.is_ascii_hexdigit()));
    word(owner) && word(repository) && (named || change || what.strip_prefix('#').is_some_and(digits))
}

#[test]
fn every_report_is_named_once_and_can_be_looked_up() {
    let rows = rows(REPORTS);
    let mut seen = BTreeSet::new();
    for row in &rows {
        assert_eq!(row.len(), 3, "{row:?}");
        for reference in row[0].split(", ") {
            assert!(is_reference(reference), "{reference}");
            assert!(seen.insert(reference), "{reference} has two rows");
        }
    }
    assert!(rows.len() > 40, "{}", rows.len());
    let text = std::fs::read_to_string(top().join(REPORTS)).unwrap();
    let (_, missing) = text.split_once("## Not yet").unwrap();
    for line in missing.lines().filter_map(|line| line.strip_prefix("- ")) {
        let (references, what) = line.split_once(": ").unwrap();
        assert!(references.split(", ").all(is_reference) && !what.is_empty(), "{line}");
    }
}
