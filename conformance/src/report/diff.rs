//! What changed between two reports.

use std::collections::BTreeMap;

use super::{CaseReport, Report};

impl Report {
    /// What changed since `old`, one line a case: verdicts that differ, cases that are new, cases that are gone.
    #[must_use]
    pub fn changes_since(&self, old: &Self) -> Vec<String> {
        let by_id = |report: &'_ Self| -> BTreeMap<String, CaseReport> {
            report.cases.iter().map(|case| (case.id.clone(), case.clone())).collect()
        };
        let (before, after) = (by_id(old), by_id(self));
        let mut lines = Vec::new();
        for (id, case) in &after {
            let word = case.verdict.word();
            match before.get(id) {
                None => lines.push(format!("+ {id}: {word}")),
                Some(then) if then.verdict.word() != word => {
                    lines.push(format!("! {id}: {} -> {word}", then.verdict.word()));
                }
                Some(then) if then.rule != case.rule => lines.push(format!("~ {id}: its rule has another wording")),
                Some(_) => {}
            }
        }
        lines.extend(before.keys().filter(|id| !after.contains_key(*id)).map(|id| format!("- {id}")));
        lines
    }
}

#[cfg(test)]
mod tests {
    use crate::report::{Verdict, tests::report};

    #[test]
    fn every_kind_of_change() {
        let old = report();
        let mut new = report();
        assert!(new.changes_since(&old).is_empty());
        new.cases[1].verdict = Verdict::Passed;
        new.cases[0].rule.push('x');
        new.cases[3].id = "files::e".to_owned();
        assert_eq!(
            new.changes_since(&old),
            [
                "~ exec::a: its rule has another wording",
                "! exec::b: failed -> passed",
                "+ files::e: not applicable",
                "- files::d"
            ]
        );
    }
}
