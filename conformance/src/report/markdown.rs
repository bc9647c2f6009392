//! A report as Markdown.

use super::{Report, Verdict};

/// `text` fit for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

impl Report {
    /// As Markdown: counts first, then what failed, then everything.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut out = format!("# Conformance of `{}`\n\n{}, {}.\n", self.backend, self.badge(), self.date());
        if !self.facts.is_empty() {
            out.push_str("\n| where | |\n| --- | --- |\n");
            for (name, value) in &self.facts {
                out.push_str(&format!("| {} | {} |\n", cell(name), cell(value)));
            }
        }
        out.push_str("\n| profile | passed | failed | not applicable | not run |\n| --- | --: | --: | --: | --: |\n");
        for (profile, c) in self.profiles() {
            let row = [c.passed, c.failed, c.not_applicable, c.not_run].map(|n| n.to_string()).join(" | ");
            out.push_str(&format!("| {} | {row} |\n", cell(&profile)));
        }
        if self.failures().next().is_some() {
            out.push_str("\n## Failed\n");
        }
        for case in self.failures() {
            let text = case.verdict.text().replace("\n", "\n    ");
            out.push_str(&format!("\n### `{}`\n\n    {text}\n", case.id));
        }
        out.push_str("\n## Cases\n\n| case | rule | verdict | seconds |\n| --- | --- | --- | --: |\n");
        for case in &self.cases {
            let verdict = match &case.verdict {
                Verdict::Passed | Verdict::Failed(_) => case.told(),
                other => format!("{}: {}", case.told(), cell(other.text())),
            };
            out.push_str(&format!("| `{}` | {} | {verdict} | {:.2} |\n", case.id, cell(&case.rule), case.seconds));
        }
        if self.unproved().next().is_some() {
            out.push_str(&format!("\n{}\n", super::UNPROVED));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use crate::report::Verdict;

    #[test]
    fn tables_survive_hostile_text() {
        let text = crate::report::tests::report().to_markdown();
        assert!(text.contains("| core | 1 | 1 | 0 | 0 |"), "{text}");
        assert!(text.contains("| core (slow) | 0 | 0 | 0 | 1 |"), "{text}");
        assert!(text.contains("A rule \\| with &lt;marks>."), "{text}");
        assert!(text.contains("    want  <1>\n"), "{text}");
    }

    #[test]
    fn what_is_unproved_says_so() {
        let mut report = crate::report::tests::report();
        let text = report.to_markdown();
        assert!(text.contains("| not applicable, unproved: no files |") && text.contains("\nUnproved: "), "{text}");
        report.cases[3].verdict = Verdict::Passed;
        assert!(report.to_markdown().contains("| passed, unproved |"));
        report.cases[3].unproved = false;
        assert!(!report.to_markdown().to_lowercase().contains("unproved"));
    }
}
