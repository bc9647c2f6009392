//! The suite as a test binary: what it lists, what it runs, and what it answers to whoever started it.
//!
//! The binary is this one: started with `TOY` it is the test file of somebody who has a suite, without it the tests of that.

mod toy;

use std::collections::BTreeSet;
use std::process::{Command, ExitCode, Output};

use conformance::{Probe, Report};
use libtest_mimic::{Arguments, Failed, Trial};
use toy::Toy;

fn main() -> ExitCode {
    let absent = Probe::Absent { reason: "no\ncluster".to_owned(), remedy: "set TOY_URL".to_owned() };
    let toy = match std::env::var("TOY").ok().as_deref() {
        None => return tests(),
        Some("ready") => Toy::ready(),
        Some("sound") => Toy { sound: true, ..Toy::ready() },
        Some("empty") => Toy { empty: true, ..Toy::ready() },
        Some("absent") => Toy { probe: absent, ..Toy::ready() },
        Some("broken") => Toy { probe: Probe::Broken("connection refused".to_owned()), ..Toy::ready() },
        Some(other) => panic!("TOY={other}"),
    };
    conformance::main(toy)
}

/// What comes of starting the toy's test file.
fn start(toy: &str, vars: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a test knows its own file"));
    for name in ["CONFORMANCE_REQUIRE", "CONFORMANCE_SLOW", "CONFORMANCE_REPORT"] {
        command.env_remove(name);
    }
    command.env("TOY", toy).envs(vars.iter().copied()).args(args).output().expect("a test can start itself")
}

struct Told {
    code: Option<i32>,
    out: String,
    err: String,
}

fn told(toy: &str, vars: &[(&str, &str)], args: &[&str]) -> Told {
    let output = start(toy, vars, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Told { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

impl Told {
    /// Wants that exit code and those words.
    #[track_caller]
    fn is(&self, code: i32, words: &[&str]) -> &Self {
        let missing: Vec<_> =
            words.iter().filter(|word| !self.out.contains(**word) && !self.err.contains(**word)).collect();
        let Self { code: got, out, err } = self;
        assert!(*got == Some(code) && missing.is_empty(), "{got:?}, without {missing:?}:\n{out}\n{err}");
        self
    }
}

/// The names in a list, which has nothing else in it.
#[track_caller]
fn names(list: &Told) -> BTreeSet<&str> {
    list.is(0, &[]);
    let names: Vec<_> = list.out.lines().map(|line| line.strip_suffix(": test").expect(line)).collect();
    let set: BTreeSet<_> = names.iter().copied().collect();
    assert_eq!(set.len(), names.len(), "{names:?}");
    set
}

const IGNORED: [&str; 3] = [
    "[n/a: no big_numbers] sum::claimed",
    "[n/a: no odd_numbers; unproved] sum::unproved",
    "[slow: set CONFORMANCE_SLOW=1] sum::slow",
];
const SOUND: [&str; 2] = ["[core] odd::races", "[core] sum::holds"];

fn a_list_is_one_line_for_each_test() {
    let all: BTreeSet<_> = IGNORED.into_iter().chain(SOUND).collect();
    for format in [&[][..], &["--format", "terse"]] {
        let list = |more: &[&str]| told("sound", &[], &[&["--list"], format, more].concat());
        assert_eq!(names(&list(&[])), all);
        assert_eq!(names(&list(&["--ignored"])), IGNORED.into_iter().collect());
        assert_eq!(names(&list(&["races"])), ["[core] odd::races"].into_iter().collect());
        assert_eq!(names(&list(&["nothing is called that"])), BTreeSet::new());
    }
    let absent = told("absent", &[], &["--list", "--format", "terse"]);
    assert_eq!(names(&absent), ["[absent: no cluster; set TOY_URL (9 cases)] toy::backend"].into_iter().collect());
    assert_eq!(names(&told("broken", &[], &["--list"])), ["toy::backend"].into_iter().collect());
}

fn each_name_of_a_list_runs_that_test_alone() {
    for name in SOUND {
        told("sound", &[], &["--exact", name]).is(0, &["running 1 test", name, "1 passed; 0 failed; 0 ignored"]);
    }
    told("ready", &[], &["--exact", "[core] sum::fails", "--nocapture"])
        .is(101, &["0 passed; 1 failed", "rule  One and one is two.", "want  2", "got   3"]);
    // Half a name is none.
    told("sound", &[], &["--exact", "sum::hold"]).is(101, &["--list"]);
}

fn everything_that_applies_runs() {
    told("sound", &[], &[]).is(0, &["running 5 tests", "2 passed; 0 failed; 3 ignored"]);
    told("sound", &[("CONFORMANCE_SLOW", "1")], &[]).is(0, &["3 passed; 0 failed; 2 ignored"]);
    // The slow one, and the one that races.
    let only = told("sound", &[("CONFORMANCE_SLOW", "only")], &[]);
    only.is(0, &["2 passed; 0 failed; 3 ignored", "[quick: CONFORMANCE_SLOW=only]"]);
    told("ready", &[], &[]).is(101, &["2 passed; 4 failed; 3 ignored"]);
}

fn a_filter_that_matches_nothing_says_so_and_is_no_failure() {
    let nothing = "nothing is called that";
    for (args, words) in [
        (&[nothing][..], "0 of 5 cases are there for \"nothing is called that\"; --list"),
        (&["--skip", "::"], "0 of 5 cases are there for --skip \"::\";"),
        (&["--ignored", "holds"], "0 of 5 cases are there for \"holds\" --ignored;"),
    ] {
        told("sound", &[], args).is(0, &[words, "running 0 tests", "0 passed; 0 failed; 0 ignored"]);
        told("sound", &[("CONFORMANCE_REQUIRE", "other")], args).is(0, &[words]);
        // Where the backend is required, a run of nothing is none.
        told("sound", &[("CONFORMANCE_REQUIRE", "other,toy")], args).is(101, &["error: of 5 cases none"]);
    }
}

fn arguments_for_which_nothing_runs_are_a_failure() {
    // A name that is spelled out is that of one test of this very binary.
    told("sound", &[], &["--exact", "nothing is called that"]).is(101, &["of 5 cases none", "--exact", "--list"]);
    // A suite without cases tests nothing, whatever it is asked for.
    for args in [&[][..], &["sum"], &["--ignored"]] {
        told("empty", &[], args).is(101, &["error: of 0 cases none"]);
    }
    // What is ignored is at least shown.
    told("sound", &[], &["claimed"]).is(0, &["[n/a: no big_numbers] sum::claimed", "0 passed; 0 failed; 1 ignored"]);
}

fn what_does_not_apply_never_passes() {
    let slow = "[slow: set CONFORMANCE_SLOW=1] sum::slow";
    let all = told("sound", &[], &["--include-ignored"]);
    all.is(0, &["3 passed; 0 failed; 2 ignored", "[slow: set CONFORMANCE_SLOW=1]"]);
    let ignored = told("sound", &[], &["--ignored"]);
    ignored.is(0, &["1 passed; 0 failed; 2 ignored", "[slow: set CONFORMANCE_SLOW=1]"]);
    told("sound", &[], &["--ignored", "--exact", slow]).is(0, &["1 passed; 0 failed; 0 ignored"]);
    // By name, as a runner does that starts each test alone and takes exit code 0 for a pass.
    for flag in ["--ignored", "--include-ignored"] {
        let alone = told("sound", &[], &[flag, "--exact", IGNORED[0]]);
        alone.is(101, &["[n/a: no big_numbers] sum::claimed is not run"]);
    }
}

fn an_absent_backend_is_one_entry_or_a_failure() {
    let entry = "toy::backend";
    for args in [&[][..], &["sum::holds"], &["--skip", "toy"]] {
        told("absent", &[], args).is(0, &[entry, "set TOY_URL", "9 cases", "0 passed; 0 failed; 1 ignored"]);
        let required = told("absent", &[("CONFORMANCE_REQUIRE", "other, toy")], args);
        required.is(101, &[entry, "required and absent", "set TOY_URL", "0 passed; 1 failed"]);
        told("absent", &[("CONFORMANCE_REQUIRE", "other")], args).is(0, &["1 ignored"]);
        told("broken", &[], args).is(101, &[entry, "connection refused", "0 passed; 1 failed"]);
    }
    told("absent", &[], &["--include-ignored"]).is(101, &["set TOY_URL", "0 passed; 1 failed"]);
}

fn a_report_is_written_of_what_ran() {
    let dir = tempfile::tempdir().expect("a directory");
    let read = |toy: &str, args: &[&str]| {
        let at = dir.path().join(format!("{toy} {}", args.join(" ")));
        drop(start(toy, &[("CONFORMANCE_REPORT", at.to_str().expect("text"))], args));
        let json = std::fs::read_to_string(at.join("report.json")).ok()?;
        for (name, part) in [("report.md", "sum::holds"), ("report.html", "</html>"), ("badge.txt", "conformance ")] {
            let text = std::fs::read_to_string(at.join(name)).expect(name);
            assert!(text.contains(part) || toy == "absent", "{name}: {text}");
        }
        Some(Report::from_json(&json).expect("a report"))
    };
    let counts = |report: &Report| {
        let counts = report.counts();
        (counts.passed, counts.failed, counts.not_applicable, counts.not_run)
    };
    let whole = read("ready", &[]).expect("a report");
    assert_eq!((counts(&whole), whole.backend.as_str()), ((2, 4, 2, 1), "toy"));
    assert_eq!(counts(&read("ready", &["--include-ignored"]).expect("a report")), (3, 4, 2, 0));
    assert_eq!(counts(&read("ready", &["sum::holds"]).expect("a report")), (1, 0, 2, 6));
    assert_eq!(counts(&read("absent", &[]).expect("a report")), (0, 0, 0, 1));
    let unproved: Vec<_> = whole.unproved().map(|case| (case.id.as_str(), case.verdict.word())).collect();
    assert_eq!(unproved, [("sum::unproved", "not applicable")]);
    assert_eq!(read("ready", &["--list"]), None);
    assert_eq!(read("ready", &["nothing is called that"]), None);
}

fn tests() -> ExitCode {
    macro_rules! trials {
        ($($name:ident)*) => {
            vec![$(Trial::test(stringify!($name), || {
                std::panic::catch_unwind($name).map_err(|_| Failed::from("see above"))
            })),*]
        };
    }
    let trials = trials![
        a_list_is_one_line_for_each_test
        each_name_of_a_list_runs_that_test_alone
        everything_that_applies_runs
        a_filter_that_matches_nothing_says_so_and_is_no_failure
        arguments_for_which_nothing_runs_are_a_failure
        what_does_not_apply_never_passes
        an_absent_backend_is_one_entry_or_a_failure
        a_report_is_written_of_what_ran
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
