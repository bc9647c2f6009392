//! How many shells start at once, and when none has to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_apiserver::{Cut, ExecFault, Gate, On, Rule};
use futures::future::join_all;
use sandbox::{ErrorKind, Provider, Sandbox};
use sandbox_k8s::K8sProvider;

use crate::bed::{Bed, exec, text, within, works};

/// Longer than any of these tests.
const LONG: Duration = Duration::from_secs(100);

/// Handles of sandboxes that work, none of which has a stream.
async fn attached(bed: &Bed, provider: &K8sProvider, count: usize) -> Vec<Arc<dyn Sandbox>> {
    let maker = bed.provider();
    let mut all = Vec::new();
    for _ in 0..count {
        let spec = bed.spec();
        drop(within("provision", maker.provision(&spec)).await.unwrap());
        all.push(within("attach", provider.attach(&spec.session)).await.unwrap());
    }
    all
}

fn asked_for(bed: &Bed) -> Vec<Instant> {
    bed.api.requests().into_iter().filter(|request| request.is(&On::exec())).map(|request| request.instant).collect()
}

#[tokio::test]
async fn so_many_shells_start_at_once_over_all_sandboxes() {
    let bed = Bed::new().await;
    let provider = bed.provider_with(|config| config.max_opening = 2);
    let sandboxes = attached(&bed, &provider, 4).await;
    let before = asked_for(&bed).len();
    let gate = Gate::new();
    bed.api.rule(Rule::when(On::exec()).hold(&gate));
    let commands = join_all(sandboxes.iter().map(|sandbox| exec(sandbox, "true")));
    let (outcomes, ()) = tokio::join!(commands, async {
        gate.reached(2).await;
        // The others are just as far, but for their turn.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(asked_for(&bed).len() - before, 2);
        gate.open();
    });
    outcomes.into_iter().for_each(|outcome| drop(outcome.unwrap()));
}

#[tokio::test]
async fn a_shell_starts_until_its_first_word_but_holds_up_others_for_two_seconds_at_most() {
    let bed = Bed::new().await;
    let provider = bed.provider_with(|config| config.max_opening = 2);
    let sandboxes = attached(&bed, &provider, 2).await;
    let before = asked_for(&bed).len();
    // The first two open, and never say a word.
    bed.api.rule(Rule::when(On::exec()).times(2).exec(ExecFault::new().silent()));
    let hangs = sandboxes[0].exec(text("true"));
    let (first, _) = tokio::join!(
        async {
            bed.api.until_requests(&On::exec(), before + 2).await;
            works(&sandboxes[1]).await;
            asked_for(&bed)
        },
        // It has a deadline of its own, which is not waited for.
        tokio::time::timeout(Duration::from_secs(25), hangs),
    );
    let asked = &first[before..];
    let waited = asked[2] - asked[0];
    assert!(waited >= Duration::from_millis(1500) && waited < Duration::from_secs(15), "{waited:?}");
}

#[tokio::test]
async fn nor_does_one_that_takes_nothing_in() {
    let bed = Bed::new().await;
    let provider = bed.provider_with(|config| config.max_opening = 1);
    // More than what lies between here and there holds.
    let vars = (0..8).map(|at| (format!("LARGE{at}"), "'".repeat(120_000)));
    let (env, _) = sandbox::Env::from_untrusted(vars);
    let large = bed.spec().with_env(env);
    drop(within("provision", bed.provider().provision(&large)).await.unwrap());
    let hangs = within("attach", provider.attach(&large.session)).await.unwrap();
    let other = attached(&bed, &provider, 1).await.remove(0);
    let before = asked_for(&bed).len();
    bed.api.rule(Rule::when(On::exec()).nth(1).exec(ExecFault::new().silent().deaf()));
    let hanging = hangs.exec(text("true"));
    let (waited, _) = tokio::join!(
        async {
            bed.api.until_requests(&On::exec(), before + 1).await;
            let begun = Instant::now();
            works(&other).await;
            begun.elapsed()
        },
        tokio::time::timeout(Duration::from_secs(25), hanging),
    );
    assert!(waited < Duration::from_secs(15), "{waited:?}");
}

#[tokio::test]
async fn one_looks_for_the_cause_where_many_operations_fail_at_once() {
    const MANY: usize = 20;
    let bed = Bed::new().await;
    let spec = bed.spec();
    let sandbox = within("provision", bed.provider().provision(&spec)).await.unwrap();
    let commands: Vec<_> = (0..MANY)
        .map(|at| {
            let (sandbox, begun) = (Arc::clone(&sandbox), bed.file(&format!("begun-{at}")));
            tokio::spawn(async move {
                sandbox.exec(text(&format!(": >{}; sleep 100", begun.display())).with_limit(LONG)).await
            })
        })
        .collect();
    let all_begun = async {
        while !(0..MANY).all(|at| bed.file(&format!("begun-{at}")).exists()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("they begin", all_begun).await;
    // Whoever looks does not get on for as long as the others have to look, too.
    let gate = Gate::new();
    bed.api.rule(Rule::when(On::exec()).hold(&gate));
    bed.api.cut_connections(Cut::Rst);
    let begun = Instant::now();
    for command in commands {
        let error = within("a command", command).await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.death()), (ErrorKind::Lost, None), "{error:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    // One or two, and the stream of the kills.
    assert!(gate.arrived() <= 5, "{} shells were asked for", gate.arrived());
    gate.open();
    works(&sandbox).await;
}

#[tokio::test]
async fn a_sandbox_that_is_as_busy_as_it_can_be_is_provisioned_again() {
    // As many operations as may be under way.
    const PLACES: usize = 64;
    let bed = Bed::new().await;
    let spec = bed.spec();
    let provider = bed.provider_with(|config| config.ready_timeout = Duration::from_secs(50));
    let sandbox = within("provision", provider.provision(&spec)).await.unwrap();
    let commands: Vec<_> = (0..PLACES)
        .map(|at| {
            let (sandbox, begun) = (Arc::clone(&sandbox), bed.file(&format!("begun-{at}")));
            tokio::spawn(async move {
                sandbox.exec(text(&format!(": >{}; sleep 100", begun.display())).with_limit(LONG)).await
            })
        })
        .collect();
    let all_begun = async {
        while !(0..PLACES).all(|at| bed.file(&format!("begun-{at}")).exists()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("they begin", all_begun).await;
    let begun = Instant::now();
    drop(within("provision", provider.provision(&spec)).await.unwrap());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    commands.iter().for_each(tokio::task::JoinHandle::abort);
}
