//! The rules of the cases and the sentences of the contract are the same, word for word, in both directions.

use std::collections::BTreeSet;

use conformance::sandbox::{cases, unseen};

/// The documentation of one source file: all of its text, and the sentences of its lists.
fn documentation(source: &str) -> (String, Vec<String>) {
    let (mut text, mut bullets, mut open) = (String::new(), Vec::<String>::new(), false);
    for line in source.lines().map(str::trim) {
        let Some(doc) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            open = false;
            continue;
        };
        let doc = doc.trim();
        text.push_str(doc);
        text.push(' ');
        match doc.strip_prefix("- ") {
            Some(sentence) => {
                bullets.push(sentence.to_owned());
                open = true;
            }
            None if doc.is_empty() => open = false,
            None if open => {
                if let Some(last) = bullets.last_mut() {
                    last.push(' ');
                    last.push_str(doc);
                }
            }
            None => {}
        }
    }
    (text, bullets)
}

/// `text` with every run of blanks as one.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn contract() -> (String, Vec<String>) {
    documentation(include_str!("../../sandbox/src/provider.rs"))
}

#[test]
fn the_sentences_are_found() {
    let (_, bullets) = contract();
    assert!(bullets.len() > 50, "{bullets:?}");
    assert!(bullets.iter().all(|sentence| sentence.ends_with('.')), "{bullets:?}");
}

#[test]
fn every_sentence_of_the_contract_has_a_case_or_a_reason() {
    let rules: BTreeSet<_> = cases().iter().map(|case| plain(case.rule)).collect();
    let unseen: BTreeSet<_> = unseen().iter().map(|sentence| plain(sentence.rule)).collect();
    let (_, bullets) = contract();
    let without: Vec<_> =
        bullets.iter().map(|b| plain(b)).filter(|b| !rules.contains(b) && !unseen.contains(b)).collect();
    assert!(without.is_empty(), "sentences without a case:\n{}", without.join("\n"));
}

/// Part of a sentence, quoted alone, says nothing to who reads that it does not hold.
#[test]
fn every_rule_is_a_whole_sentence() {
    let whole = |rule: &str| {
        let begins = rule.starts_with(|first: char| first.is_uppercase() || first == '`');
        begins && rule.ends_with('.') && rule.split(' ').count() >= 5
    };
    let fragments: Vec<_> = cases().iter().filter(|case| !whole(case.rule)).map(|case| (case.id, case.rule)).collect();
    assert!(fragments.is_empty(), "{fragments:#?}");
}

#[test]
fn every_rule_of_a_case_stands_in_the_documentation() {
    let mut all = String::new();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../sandbox/src")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "rs") {
            all.push_str(&documentation(&std::fs::read_to_string(path).unwrap()).0);
        }
    }
    let all = plain(&all);
    let rules = cases().iter().map(|case| (case.id, plain(case.rule))).collect::<Vec<_>>();
    let strangers: Vec<_> = rules.iter().filter(|(_, rule)| !all.contains(rule)).collect();
    assert!(strangers.is_empty(), "{strangers:#?}");
    for sentence in unseen() {
        assert!(all.contains(&plain(sentence.rule)) && !sentence.reason.is_empty(), "{sentence:?}");
    }
}
