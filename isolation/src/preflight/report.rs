//! What the checks found, as text and as JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Finding;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// All is well.
    Ok,
    /// It may go wrong.
    Warning,
    /// It will go wrong.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// What one check found about one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Outcome {
    /// The check.
    pub name: String,
    /// What was looked at.
    pub target: String,
    /// How bad it is, after the ignore list.
    pub severity: Severity,
    /// What is the matter.
    pub message: String,
    /// It was an error, and the ignore list made it a warning.
    pub ignored: bool,
}

impl Outcome {
    pub(super) fn new(name: &str, finding: Finding, ignore: bool) -> Self {
        let Finding { target, severity, message } = finding;
        let ignored = ignore && severity == Severity::Error;
        let severity = if ignored { Severity::Warning } else { severity };
        // One finding is one line, whatever a target is called.
        let plain = |text: String| text.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"");
        Self { name: name.to_owned(), target: plain(target), severity, message: plain(message), ignored }
    }
}

/// Whether an installation may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportStatus {
    /// It may.
    Ok,
    /// It may not.
    Failed,
}

/// How many findings of each severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Counts {
    /// Well.
    pub ok: usize,
    /// Warnings, those that were errors and are ignored included.
    pub warning: usize,
    /// Errors.
    pub error: usize,
}

/// What all checks found. `Display` is the text form, serde the JSON form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Report {
    /// Whether an installation may go on.
    pub status: ReportStatus,
    /// How many of each.
    pub counts: Counts,
    /// Everything found, in the order of the checks.
    pub results: Vec<Outcome>,
}

impl Report {
    pub(super) fn new(results: Vec<Outcome>, fail_on_warnings: bool) -> Self {
        let mut counts = Counts::default();
        for outcome in &results {
            *match outcome.severity {
                Severity::Ok => &mut counts.ok,
                Severity::Warning => &mut counts.warning,
                Severity::Error => &mut counts.error,
            } += 1;
        }
        let failed = counts.error > 0 || (fail_on_warnings && counts.warning > 0);
        let status = if failed { ReportStatus::Failed } else { ReportStatus::Ok };
        Self { status, counts, results }
    }

    /// Whether an installation may go on.
    pub fn success(&self) -> bool {
        self.status == ReportStatus::Ok
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for outcome in &self.results {
            let Outcome { name, target, severity, message, ignored } = outcome;
            let ignored = if *ignored { " (ignored)" } else { "" };
            writeln!(f, "{severity:<8} {name:<22} {target}: {message}{ignored}")?;
        }
        let Counts { ok, warning, error } = self.counts;
        let status = if self.success() { "ok" } else { "failed" };
        write!(f, "{status}: {ok} ok, {warning} warnings, {error} errors")
    }
}
