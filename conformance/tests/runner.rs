//! The runner against cases that pass, fail, panic, hang and leak.

mod toy;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use conformance::{Options, Probe, Verdict, run};
use toy::Toy;

fn verdicts(report: &conformance::Report) -> BTreeMap<&str, &Verdict> {
    report.cases.iter().map(|case| (case.id.as_str(), &case.verdict)).collect()
}

#[tokio::test]
async fn each_way_to_end_is_told_apart() {
    let report = run(Toy::ready(), Options::default()).await;
    let by_id = verdicts(&report);
    assert_eq!(by_id["sum::holds"], &Verdict::Passed);
    assert_eq!(by_id["sum::claimed"], &Verdict::NotApplicable("no big_numbers".to_owned()));
    assert_eq!(by_id["sum::slow"], &Verdict::LeftOut("slow".to_owned()));
    for (id, parts) in [
        (
            "sum::fails",
            ["rule  One and one is two.", "step  adding", "want  2", "got   3", "on its fingers"].as_slice(),
        ),
        ("sum::panics", &["a bug in the case"]),
        ("sum::hangs", &["the whole case", "200ms"]),
        ("sum::waits", &["the post", "50ms"]),
    ] {
        let Verdict::Failed(text) = by_id[id] else { panic!("{id}: {:?}", by_id[id]) };
        for part in parts {
            assert!(text.contains(part), "{id}: {text}");
        }
    }
    assert_eq!(report.badge(), "conformance 0.1.0: 2 of 6 pass, 2 n/a, 1 not run, 1 unproved");
}

#[tokio::test]
async fn a_race_runs_again_and_again_each_time_on_a_context_of_its_own() {
    for (options, rounds) in [(Options::default(), 3), (Options::default().with_slow(), 20)] {
        let toy = Toy::ready();
        let opened = Arc::clone(&toy.opened);
        assert!(run(toy, options.with_only("races")).await.success());
        assert_eq!(opened.load(Ordering::Relaxed), rounds);
    }
}

#[tokio::test]
async fn what_stays_behind_fails_the_case() {
    let report = run(Toy { leaks: true, ..Toy::ready() }, Options::default().with_slow().with_only("holds")).await;
    let Verdict::Failed(text) = &report.cases[0].verdict else { panic!("{report:?}") };
    assert!(text.contains("after the case: looking around") && text.contains("a chair"), "{text}");
    assert_eq!(report.cases.len(), 1);
}

#[tokio::test]
async fn an_absent_backend_is_one_visible_entry_and_a_failure_where_it_is_required() {
    let absent = || {
        let (reason, remedy) = ("no cluster".to_owned(), "set TOY_URL".to_owned());
        Toy { probe: Probe::Absent { reason, remedy }, ..Toy::ready() }
    };
    let report = run(absent(), Options::default()).await;
    assert_eq!(verdicts(&report)["toy::backend"], &Verdict::Absent("no cluster; set TOY_URL".to_owned()));
    assert!(!report.success());
    let report = run(absent(), Options::default().with_required("toy")).await;
    let Verdict::Failed(text) = &report.cases[0].verdict else { panic!("{report:?}") };
    assert!(text.contains("required and absent") && text.contains("TOY_URL"), "{text}");
    let broken = Toy { probe: Probe::Broken("connection refused".to_owned()), ..Toy::ready() };
    assert_eq!(run(broken, Options::default()).await.counts().failed, 1);
}
