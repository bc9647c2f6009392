//! What a run found: as data, and as JSON, Markdown, HTML and a badge.

mod diff;
mod html;
mod markdown;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::{Case, Factory};

/// What stands below the cases of a report in which one is unproved.
const UNPROVED: &str = "Unproved: the case applies to no backend of the family of this suite so far, so that nobody has seen its rule hold \
     on a real one.";

/// What a run found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// The version of the suite.
    pub suite: String,
    /// The name of the backend.
    pub backend: String,
    /// When it ran, in seconds since 1970.
    pub at: u64,
    /// What the backend claims.
    pub claims: BTreeMap<String, bool>,
    /// Where it ran.
    pub facts: BTreeMap<String, String>,
    /// Each case, by id.
    pub cases: Vec<CaseReport>,
}

/// What became of one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CaseReport {
    /// Its id.
    pub id: String,
    /// Its rule.
    pub rule: String,
    /// Its profile.
    pub profile: String,
    /// Whether it is one that waits long.
    pub slow: bool,
    /// Whether it applies to no backend of the family of this suite so far.
    #[serde(default)]
    pub unproved: bool,
    /// What was found.
    pub verdict: Verdict,
    /// How long it took, all its rounds together.
    pub seconds: f64,
}

/// What was found about one case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "text")]
#[non_exhaustive]
pub enum Verdict {
    /// The rule holds.
    Passed,
    /// It does not, and here is why.
    Failed(String),
    /// The backend does not claim what the rule is about.
    NotApplicable(String),
    /// It was not run, because nobody asked for it.
    LeftOut(String),
    /// The backend is not here.
    Absent(String),
}

impl Verdict {
    /// Its word.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "failed",
            Self::NotApplicable(_) => "not applicable",
            Self::LeftOut(_) => "left out",
            Self::Absent(_) => "absent",
        }
    }

    /// Its reason.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Passed => "",
            Self::Failed(text) | Self::NotApplicable(text) | Self::LeftOut(text) | Self::Absent(text) => text,
        }
    }
}

/// How many cases had which verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counts {
    /// Passed.
    pub passed: usize,
    /// Failed.
    pub failed: usize,
    /// Not applicable.
    pub not_applicable: usize,
    /// Left out or absent.
    pub not_run: usize,
}

impl Counts {
    fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed(_) => self.failed += 1,
            Verdict::NotApplicable(_) => self.not_applicable += 1,
            Verdict::LeftOut(_) | Verdict::Absent(_) => self.not_run += 1,
        }
    }
}

impl CaseReport {
    pub(crate) fn new(id: impl Into<String>, rule: &str, profile: &str, slow: bool) -> Self {
        let (rule, profile) = (rule.to_owned(), profile.to_owned());
        let verdict = Verdict::LeftOut("not chosen".to_owned());
        Self { id: id.into(), rule, profile, slow, unproved: false, verdict, seconds: 0.0 }
    }

    pub(crate) fn of<F: Factory>(case: &Case<F>) -> Self {
        Self { unproved: case.unproved, ..Self::new(case.id, case.rule, case.profile, case.slow) }
    }

    pub(crate) fn with(mut self, verdict: Verdict, took: Duration) -> Self {
        self.verdict = verdict;
        self.seconds = (took.as_secs_f64() * 1000.0).round() / 1000.0;
        self
    }

    /// Its verdict in a word, and what must be known to judge it.
    fn told(&self) -> String {
        let word = self.verdict.word();
        if self.unproved { format!("{word}, unproved") } else { word.to_owned() }
    }

    /// The profile it is counted in: its own, and apart if it is one that waits long.
    fn counted_in(&self) -> String {
        if self.slow { format!("{} (slow)", self.profile) } else { self.profile.clone() }
    }
}

impl Report {
    pub(crate) fn new(backend: &str, claims: BTreeMap<String, bool>, facts: BTreeMap<String, String>) -> Self {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let suite = env!("CARGO_PKG_VERSION").to_owned();
        Self { suite, backend: backend.to_owned(), at, claims, facts, cases: Vec::new() }
    }

    /// Whether no case failed and at least one passed.
    #[must_use]
    pub fn success(&self) -> bool {
        let all = self.counts();
        all.failed == 0 && all.passed > 0
    }

    /// All cases together.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.cases.iter().for_each(|case| counts.add(&case.verdict));
        counts
    }

    /// The cases by profile; those that wait long are counted apart.
    #[must_use]
    pub fn profiles(&self) -> BTreeMap<String, Counts> {
        let mut profiles = BTreeMap::<String, Counts>::new();
        for case in &self.cases {
            profiles.entry(case.counted_in()).or_default().add(&case.verdict);
        }
        profiles
    }

    /// The cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases.iter().filter(|case| matches!(case.verdict, Verdict::Failed(_)))
    }

    /// The cases that apply to no backend of the family of this suite so far.
    pub fn unproved(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases.iter().filter(|case| case.unproved)
    }

    /// One line for a badge, such as `conformance 0.1.0: 120 of 120 pass, 4 n/a, 1 unproved`. What is unproved is among the others too.
    #[must_use]
    pub fn badge(&self) -> String {
        let Counts { passed, failed, not_applicable, not_run } = self.counts();
        let mut text = format!("conformance {}: {passed} of {} pass", self.suite, passed + failed);
        let unproved = self.unproved().count();
        for (count, word) in [(not_applicable, "n/a"), (not_run, "not run"), (unproved, "unproved")] {
            if count > 0 {
                text.push_str(&format!(", {count} {word}"));
            }
        }
        text
    }

    /// As JSON, which [`from_json`](Self::from_json) reads.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is text and numbers, which JSON has")
    }

    /// Reads a report.
    ///
    /// # Errors
    ///
    /// What does not fit, and where.
    pub fn from_json(json: &str) -> Result<Self, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    /// Writes `report.json`, `report.md`, `report.html` and `badge.txt` into `dir`, which is made if need be.
    ///
    /// # Errors
    ///
    /// If the system refuses.
    pub fn write(&self, dir: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join("report.json"), self.to_json() + "\n")?;
        std::fs::write(dir.join("report.md"), self.to_markdown())?;
        std::fs::write(dir.join("report.html"), self.to_html())?;
        std::fs::write(dir.join("badge.txt"), self.badge() + "\n")
    }

    /// When it ran, as `2026-11-30 07:15 UTC`.
    fn date(&self) -> String {
        let (days, second) = (self.at / 86_400, self.at % 86_400);
        // Days since 0000-03-01, in eras of 400 years: the calendar repeats after each.
        let since = days + 719_468;
        let (era, day) = (since / 146_097, since % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let of_year = day - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let of_month = of_year - (153 * month + 2) / 5 + 1;
        let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        let year = era * 400 + year + carry;
        format!("{year}-{month:02}-{of_month:02} {:02}:{:02} UTC", second / 3600, second % 3600 / 60)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn report() -> Report {
        let facts = BTreeMap::from([("kernel".to_owned(), "6.1 <x> | y".to_owned())]);
        let mut report = Report::new("demo", BTreeMap::from([("files".to_owned(), true)]), facts);
        report.at = 1_796_022_909;
        let case = |id: &str, profile: &str, slow, verdict| {
            CaseReport::new(id, "A rule | with <marks>.", profile, slow).with(verdict, Duration::from_millis(1234))
        };
        report.cases = vec![
            case("exec::a", "core", false, Verdict::Passed),
            case("exec::b", "core", false, Verdict::Failed("rule  x\nwant  <1>\ngot   2".to_owned())),
            case("exec::c", "core", true, Verdict::LeftOut("slow".to_owned())),
            case("files::d", "files", false, Verdict::NotApplicable("no files".to_owned())),
        ];
        report.cases[3].unproved = true;
        report
    }

    #[test]
    fn counts_badge_and_date() {
        let report = report();
        assert_eq!(report.badge(), "conformance 0.1.0: 1 of 2 pass, 1 n/a, 1 not run, 1 unproved");
        assert_eq!(report.date(), "2026-11-30 07:15 UTC");
        assert_eq!(report.profiles().keys().collect::<Vec<_>>(), ["core", "core (slow)", "files"]);
        assert!(!report.success());
        assert_eq!(Report::from_json(&report.to_json()).unwrap(), report);
        // A report of before there was such a word.
        let old =
            report.to_json().replace(",\n      \"unproved\": false", "").replace(",\n      \"unproved\": true", "");
        assert!(!old.contains("unproved"), "{old}");
        assert_eq!(Report::from_json(&old).unwrap().unproved().count(), 0);
        for (at, date) in [(0, "1970-01-01 00:00 UTC"), (951_782_400, "2000-02-29 00:00 UTC")] {
            assert_eq!(Report { at, ..report.clone() }.date(), date);
        }
    }

    #[test]
    fn a_report_without_a_pass_is_no_success() {
        let mut report = report();
        report.cases.retain(|case| case.verdict.word() == "not applicable");
        assert!(!report.success());
    }
}
