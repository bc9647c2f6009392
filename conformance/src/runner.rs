//! Runs cases: through the command line of a test binary, or from a program.

use std::any::Any;
use std::collections::HashSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Handle, Runtime};
use tokio::time::timeout;

use crate::report::{CaseReport, Report, Verdict};
use crate::{Case, Factory, Failure, Options, Outcome, Probe};

/// How long making and cleaning up a context may take.
const FIXTURE: Duration = Duration::from_secs(90);

/// The cases of one backend, probed and ready to run.
pub(crate) struct Suite<F: Factory> {
    factory: Arc<F>,
    probe: Probe<F::Claims>,
    cases: Vec<Case<F>>,
    options: Options,
}

impl<F: Factory> Suite<F> {
    /// Asks the backend what it claims.
    pub(crate) async fn new(factory: F, options: Options) -> Self {
        let probe = match timeout(FIXTURE, factory.probe()).await {
            Ok(probe) => probe,
            Err(_) => Probe::Broken(format!("the probe did not answer within {FIXTURE:?}")),
        };
        let cases = factory.cases();
        Self { factory: Arc::new(factory), probe, cases, options }
    }

    /// Why the suite cannot run: the verdict on the backend itself.
    fn unavailable(&self) -> Option<Verdict> {
        match &self.probe {
            Probe::Ready { .. } => None,
            Probe::Absent { reason, remedy } if self.options.requires(self.factory.name()) => {
                Some(Verdict::Failed(format!("the backend is required and absent: {reason}; {remedy}")))
            }
            Probe::Absent { reason, remedy } => Some(Verdict::Absent(format!("{reason}; {remedy}"))),
            Probe::Broken(reason) => Some(Verdict::Failed(format!("the backend does not work: {reason}"))),
        }
    }

    /// Why `case` is not run; `None` if it is.
    fn left_out(&self, case: &Case<F>) -> Option<Verdict> {
        let Probe::Ready { claims, .. } = &self.probe else { return None };
        match case.not_applicable(claims) {
            Some(reason) => Some(Verdict::NotApplicable(reason)),
            None if case.slow && !self.options.slow => Some(Verdict::LeftOut("slow".to_owned())),
            None if self.options.only_slow && !(case.slow || case.races) => Some(Verdict::LeftOut("quick".to_owned())),
            None => None,
        }
    }

    /// The id of the entry that stands for the whole suite where it cannot run.
    fn whole(&self) -> CaseReport {
        CaseReport::new(format!("{}::backend", self.factory.name()), "", "core", false)
    }

    pub(crate) fn empty_report(&self) -> Report {
        let (claimed, facts) = match &self.probe {
            Probe::Ready { claimed, facts, .. } => (claimed.clone(), facts.clone()),
            _ => Default::default(),
        };
        Report::new(self.factory.name(), claimed, facts)
    }

    /// Runs every case that applies, `options.threads` at once.
    pub(crate) async fn run(&self) -> Report {
        use futures::StreamExt;
        let mut report = self.empty_report();
        if let Some(verdict) = self.unavailable() {
            report.cases.push(self.whole().with(verdict, Duration::ZERO));
            return report;
        }
        let chosen = self.cases.iter().filter(|case| self.options.chooses(case.id));
        // Boxed, so that whoever runs a suite can send its future to another thread.
        let runs: Vec<BoxFuture<'_, CaseReport>> = chosen.map(|case| self.one(case).boxed()).collect();
        let mut done: Vec<_> = futures::stream::iter(runs).buffer_unordered(self.options.threads).collect().await;
        done.sort_by(|a: &CaseReport, b| a.id.cmp(&b.id));
        report.cases = done;
        report
    }

    async fn one(&self, case: &Case<F>) -> CaseReport {
        let entry = CaseReport::of(case);
        if let Some(verdict) = self.left_out(case) {
            return entry.with(verdict, Duration::ZERO);
        }
        let begun = Instant::now();
        let verdict = verdict(run_case(&*self.factory, case, self.options.slow).await);
        entry.with(verdict, begun.elapsed())
    }

    /// The cases as trials of a test binary, which note their verdicts in `done`. What does not apply is ignored and never run; what is
    /// slow is run if `ignored_too`.
    fn trials(&self, handle: &Handle, done: &Arc<Mutex<Vec<CaseReport>>>, ignored_too: bool) -> Vec<Trial> {
        let note = |entry: CaseReport| done.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        if let Some(verdict) = self.unavailable() {
            let entry = self.whole().with(verdict.clone(), Duration::ZERO);
            let name = entry.id.clone();
            note(entry);
            let trial = match verdict {
                Verdict::Absent(reason) => {
                    let text = one_line(&format!("absent: {reason} ({} cases)", self.cases.len()));
                    let failed = Failed::from(text.clone());
                    Trial::test(name, move || Err(failed)).with_kind(text).with_ignored_flag(true)
                }
                other => Trial::test(name, move || Err(Failed::from(other.text().to_owned()))),
            };
            return vec![trial];
        }
        self.cases
            .iter()
            .map(|case| {
                let entry = CaseReport::of(case);
                let left_out = self.left_out(case);
                let applies = !matches!(left_out, Some(Verdict::NotApplicable(_)));
                let ignored = left_out.is_some() && !(applies && ignored_too);
                let mut kind = match &left_out {
                    Some(Verdict::NotApplicable(reason)) => format!("n/a: {reason}"),
                    Some(Verdict::LeftOut(reason)) if reason == "quick" => "quick: CONFORMANCE_SLOW=only".to_owned(),
                    Some(_) => "slow: set CONFORMANCE_SLOW=1".to_owned(),
                    None => case.profile.to_owned(),
                };
                if case.unproved {
                    kind.push_str("; unproved");
                }
                if let Some(verdict) = left_out.clone() {
                    note(entry.clone().with(verdict, Duration::ZERO));
                }
                let (factory, case, handle) = (Arc::clone(&self.factory), case.clone(), handle.clone());
                let (done, id, slow) = (Arc::clone(done), case.id, self.options.slow);
                let body = move || {
                    let begun = Instant::now();
                    let verdict = verdict(handle.block_on(run_case(&*factory, &case, slow)));
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.retain(|other| other.id != entry.id);
                    done.push(entry.with(verdict.clone(), begun.elapsed()));
                    match verdict {
                        Verdict::Failed(text) => Err(Failed::from(text)),
                        _ => Ok(()),
                    }
                };
                Trial::test(id, body).with_kind(one_line(&kind)).with_ignored_flag(ignored)
            })
            .collect()
    }
}

fn verdict(outcome: Result<(), String>) -> Verdict {
    outcome.map_or_else(Verdict::Failed, |()| Verdict::Passed)
}

/// Runs `case` as often as it says, each time on a context of its own; the text of the first failure.
pub(crate) async fn run_case<F: Factory>(factory: &F, case: &Case<F>, slow: bool) -> Result<(), String> {
    let rounds = case.rounds(slow);
    for round in 1..=rounds {
        run_once(factory, case).await.map_err(|(failure, trail)| {
            let times = if rounds > 1 { format!("\nround {round} of {rounds}") } else { String::new() };
            let trail = if trail.is_empty() { trail } else { format!("\n--- what it did last\n{trail}") };
            failure.told(case.rule, &format!("{times}{trail}"))
        })?;
    }
    Ok(())
}

async fn run_once<F: Factory>(factory: &F, case: &Case<F>) -> Result<(), (Failure, String)> {
    let bare = |failure: Failure| (failure.before_the_rule(), String::new());
    let context = match timeout(FIXTURE, factory.open(case.id)).await {
        Ok(opened) => Arc::new(opened.map_err(bare)?),
        Err(_) => return Err(bare(late("making what the case runs on", FIXTURE))),
    };
    let body = AssertUnwindSafe((case.body)(Arc::clone(&context))).catch_unwind();
    let outcome = match timeout(case.deadline, body).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(Failure::new("the case", "that it does not panic", panic_text(&*panic))),
        Err(_) => Err(late("the whole case", case.deadline)),
    };
    let trail = factory.trail(&context);
    let closed = match timeout(FIXTURE, factory.close(&context)).await {
        Ok(closed) => closed,
        Err(_) => Err(late("cleaning up after the case", FIXTURE)),
    };
    match (outcome, closed) {
        (Ok(()), Ok(())) => Ok(()),
        (Err(failure), Ok(())) => Err((failure, trail)),
        (Ok(()), Err(leak)) => Err((leak.within("after the case"), trail)),
        (Err(failure), Err(leak)) => Err((failure, format!("{trail}\nand cleaning up failed: {}", leak.got))),
    }
}

fn late(what: &str, limit: Duration) -> Failure {
    Failure::new(what, format!("that it ends within {limit:?}"), "it did not end")
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a text".to_owned())
}

/// Waits for `future` at most `limit`.
///
/// # Errors
///
/// If it takes longer; the failure names `what` was waited for.
pub async fn within<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> Outcome<T> {
    timeout(limit, future).await.map_err(|_| late(what, limit))
}

/// `text` as it fits into a list with a line for each test.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// What `args` choose by, as it was written.
fn in_words(args: &Arguments, asked: bool) -> String {
    let filter = args.filter.iter().map(|filter| format!(" {filter:?}"));
    let skip = args.skip.iter().map(|skip| format!(" --skip {skip:?}"));
    let flags = [(args.exact, " --exact"), (asked, " --ignored")].into_iter().filter(|(given, _)| *given);
    filter.chain(skip).chain(flags.map(|(_, flag)| flag.to_owned())).collect()
}

/// Runs the suite of `factory` as a test binary does.
#[allow(clippy::print_stderr, reason = "it says why nothing runs, as a test binary does")]
pub(crate) fn run_as_test_binary<F: Factory>(factory: F, options: Options, mut args: Arguments) -> ExitCode {
    let runtime = Runtime::new().expect("a runtime needs threads and an event queue, which every test machine has");
    let suite = runtime.block_on(Suite::new(factory, options));
    let done = Arc::new(Mutex::new(Vec::new()));
    let available = suite.unavailable().is_none();
    let asked = (args.ignored || args.include_ignored) && available && !args.list;
    let mut trials = suite.trials(runtime.handle(), &done, asked);
    if asked {
        if args.ignored {
            trials.retain(|trial| suite.cases.iter().any(|c| c.id == trial.name() && suite.left_out(c).is_some()));
        }
        (args.ignored, args.include_ignored) = (false, false);
    }
    if !available && !args.list {
        // It stands for every case, so that no filter hides it.
        (args.filter, args.skip) = (None, Vec::new());
    }
    let chosen: Vec<_> = trials.iter().filter(|trial| !args.is_filtered_out(trial)).collect();
    // A run that was asked for by name, and in which nothing runs, must not look like one in which all is well.
    let runs = chosen.iter().any(|trial| !(asked && trial.has_ignored_flag()));
    if !args.list && !runs {
        let (cases, words) = (suite.cases.len(), in_words(&args, asked));
        let words = if words.is_empty() { words } else { format!(" for{words}") };
        let by_name = args.exact && args.filter.is_some();
        if chosen.is_empty() && cases > 0 && !by_name && !suite.options.requires(suite.factory.name()) {
            // Another test binary of the same `cargo test` may have what was asked for.
            eprintln!("0 of {cases} cases are there{words}; --list shows them");
            return libtest_mimic::run(&args, trials).exit_code();
        }
        for trial in chosen {
            eprintln!("[{}] {} is not run", trial.kind(), trial.name());
        }
        eprintln!("error: of {cases} cases none is there to run{words}; --list shows them");
        return ExitCode::from(101);
    }
    let conclusion = libtest_mimic::run(&args, trials);
    if let (Some(dir), false) = (&suite.options.report, args.list) {
        let mut report = suite.empty_report();
        report.cases = std::mem::take(&mut *done.lock().unwrap_or_else(PoisonError::into_inner));
        if available {
            // What a filter left out is told as not run: a report of a part must not look like one of the whole.
            let ran: HashSet<_> = report.cases.iter().map(|case| case.id.clone()).collect();
            report.cases.extend(suite.cases.iter().map(CaseReport::of).filter(|case| !ran.contains(&case.id)));
        }
        report.cases.sort_by(|a, b| a.id.cmp(&b.id));
        report.write(dir).expect("CONFORMANCE_REPORT names a directory that can be written");
    }
    conclusion.exit_code()
}
