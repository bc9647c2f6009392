//! Counting: what passed, what failed, what took how long.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::stop;

/// A sum of results.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Counts {
    /// Reads the line that ends a run of libtest or libtest-mimic; `None` for any other line.
    pub(crate) fn from_result_line(line: &str) -> Option<Self> {
        let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut counts = Self::default();
        let mut seen = 0;
        for part in numbers.split("; ") {
            let Some((number, what)) = part.split_once(' ') else {
                continue;
            };
            let field = match what {
                "passed" => &mut counts.passed,
                "failed" => &mut counts.failed,
                "ignored" => &mut counts.ignored,
                _ => continue,
            };
            *field = number.parse().ok()?;
            seen += 1;
        }
        (seen == 3).then_some(counts)
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// The same counts, with one failure more when the run itself failed although no test of it says so.
    pub(crate) fn with_verdict(mut self, success: bool) -> Self {
        if !success && self.failed == 0 {
            self.failed = 1;
        }
        self
    }
}

/// One row of the summary.
#[derive(Debug)]
struct Row {
    name: String,
    counts: Counts,
    took: Duration,
}

/// All rows of a run.
#[derive(Debug)]
pub(crate) struct Tally {
    rows: Vec<Row>,
    /// What to say of failures once more at the end, where it is read first.
    failures: Vec<String>,
    started: Instant,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self { rows: Vec::new(), failures: Vec::new(), started: Instant::now() }
    }

    /// Adds a row that began at `started` and ends now.
    pub(crate) fn push(&mut self, name: impl Into<String>, counts: Counts, started: Instant) {
        self.rows.push(Row { name: name.into(), counts, took: started.elapsed() });
    }

    /// Has a failure told again after all rows, by its first lines.
    pub(crate) fn failure(&mut self, text: &str) {
        const LINES: usize = 5;
        self.failures.push(text.lines().take(LINES).collect::<Vec<_>>().join("\n    "));
    }

    pub(crate) fn total(&self) -> Counts {
        let mut total = Counts::default();
        for row in &self.rows {
            total.add(row.counts);
        }
        total
    }

    /// Prints every row with its time, then `N passed, N failed` as the last line. True when all is well:
    /// something ran and nothing failed.
    pub(crate) fn print(&self) -> bool {
        println!("\n{:>8}  {:>6} {:>6} {:>7}", "seconds", "passed", "failed", "ignored");
        for Row { name, counts, took } in &self.rows {
            let Counts { passed, failed, ignored } = counts;
            let mark = if *failed > 0 { "  FAILED" } else { "" };
            println!("{:>8.1}  {passed:>6} {failed:>6} {ignored:>7}  {name}{mark}", took.as_secs_f64());
        }
        println!("{:>8.1}  in all", self.started.elapsed().as_secs_f64());
        for failure in &self.failures {
            println!("FAILED: {failure}");
        }
        let mut total = self.total();
        if total.passed + total.failed == 0 {
            println!("nothing ran, which counts as one failure");
            total.failed = 1;
        }
        println!("{} passed, {} failed", total.passed, total.failed);
        total.failed == 0
    }
}

/// Checks of one subject, each counted as one passed or one failed.
#[derive(Debug)]
pub(crate) struct Checks<'a> {
    subject: String,
    tally: &'a mut Tally,
}

impl<'a> Checks<'a> {
    pub(crate) fn of(subject: impl Into<String>, tally: &'a mut Tally) -> Self {
        Self { subject: subject.into(), tally }
    }

    /// Runs one check. A failure is told and counted, and the next check still runs; only a stop is an error.
    pub(crate) fn run(&mut self, name: &str, check: impl FnOnce() -> Result<()>) -> Result<()> {
        let started = Instant::now();
        let outcome = check();
        if stop::requested() {
            return Err(Error::new("stopped"));
        }
        let (verdict, failed) = match &outcome {
            Ok(()) => ("ok".to_owned(), false),
            Err(error) => (format!("FAILED\n{error}"), true),
        };
        println!("{}: {name} ... {verdict}", self.subject);
        let counts = Counts { passed: u64::from(!failed), failed: u64::from(failed), ignored: 0 };
        if let Err(error) = &outcome {
            self.tally.failure(&format!("{}: {name}: {error}", self.subject));
        }
        self.tally.push(format!("{}: {name}", self.subject), counts, started);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_of_both_harnesses_are_read() {
        let libtest = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s";
        assert_eq!(Counts::from_result_line(libtest), Some(Counts { passed: 3, failed: 0, ignored: 1 }));
        let mimic =
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.53s";
        assert_eq!(Counts::from_result_line(mimic), Some(Counts { passed: 10, failed: 2, ignored: 0 }));
    }

    #[test]
    fn other_lines_are_not() {
        for line in [
            "",
            "running 3 tests",
            "test result: ok.",
            "test result: ok. many passed; 0 failed; 0 ignored",
            " test result: ok. 3 passed; 0 failed; 1 ignored",
        ] {
            assert_eq!(Counts::from_result_line(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_run_that_died_counts_as_one_failure() {
        let died = Counts { passed: 4, failed: 0, ignored: 0 }.with_verdict(false);
        assert_eq!(died.failed, 1);
        let told = Counts { passed: 4, failed: 2, ignored: 0 }.with_verdict(false);
        assert_eq!(told.failed, 2);
    }

    #[test]
    fn nothing_ran_is_not_well() {
        assert!(!Tally::new().print());
    }
}
