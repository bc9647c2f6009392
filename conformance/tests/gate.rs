//! The case of a gate on gates that err: each is found out, and nobody is told the secret.

mod plain;

use conformance::sandbox::Setup;
use conformance::{Options, Verdict};
use plain::{Flaw, SECRET, World};

async fn verdict(flaw: Flaw) -> Verdict {
    let world = World::with_gate(flaw);
    let fixture = world.gate();
    let setup = Setup::new("plain", move || {
        let provider = world.provider();
        async move { Ok(provider) }
    });
    let report = conformance::run(setup.with_gate(fixture), Options::default().with_only("networking::gate")).await;
    report.cases[0].verdict.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_errs_is_found_out() {
    assert_eq!(verdict(Flaw::None).await, Verdict::Passed);
    let flaws = [
        (Flaw::KeepsThePlaceholder, "what the origin got"),
        (Flaw::ForgetsTheHeader, "what the origin got"),
        (Flaw::ChangesTunnels, "what the origin got through a tunnel"),
        (Flaw::LetsOthersThrough, "plain HTTP to another host"),
        (Flaw::TunnelsToOthers, "a tunnel to it"),
        (Flaw::CanBePassed, "the origin past the gate"),
    ];
    let verdicts = futures::future::join_all(flaws.map(|(flaw, _)| verdict(flaw))).await;
    for ((flaw, step), verdict) in flaws.into_iter().zip(verdicts) {
        let Verdict::Failed(text) = verdict else { panic!("{flaw:?} goes unnoticed") };
        assert!(text.contains(&format!("step  {step}\n")), "{flaw:?}: {text}");
        assert!(!text.contains(SECRET), "{flaw:?}: the secret is told");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_gate_to_try_it_is_not_applicable() {
    let world = World::new();
    let setup = Setup::new("plain", move || {
        let provider = world.provider();
        async move { Ok(provider) }
    });
    let report = conformance::run(setup, Options::default().with_only("networking::gate")).await;
    assert_eq!(report.cases[0].verdict, Verdict::NotApplicable("no gate to try it with".to_owned()));
    let debug = format!("{:?}", World::with_gate(Flaw::None).gate());
    assert!(debug.contains("origin.invalid") && !debug.contains(SECRET), "{debug}");
}
