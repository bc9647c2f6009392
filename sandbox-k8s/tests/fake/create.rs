//! A create whose answer does not say what became of it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fake_apiserver::{Cut, Fate, Gate, On, Rule, Step, Verb};
use sandbox::{Effect, Error, ErrorKind, GateMinter, GateToken, Provider, SessionId};
use sandbox_k8s::{K8sConfig, K8sProvider};

use crate::bed::{Bed, NAMESPACE, Tokens, fails, foreign, name, with_gates, within, works};

fn first_create() -> Rule {
    Rule::when(On::pods(Verb::Create)).nth(1)
}

/// The rule acts on the first create; then there is one Pod, which works, and nothing was removed on the way.
async fn one_pod_comes_of(rule: Rule, creates: usize) {
    one_pod_comes_by(|_| {}, rule, creates).await;
}

async fn one_pod_comes_by(change: impl FnOnce(&mut K8sConfig), rule: Rule, creates: usize) {
    let (bed, what) = (Bed::new().await, format!("{rule:?}"));
    let rule = bed.api.rule(rule);
    let spec = bed.spec();
    let provider = bed.provider_with(change);
    let sandbox = within(&what, provider.provision(&spec)).await.unwrap_or_else(|e| panic!("{what}: {e:?}"));
    works(&sandbox).await;
    assert_eq!(sandbox.recreated(), None, "{what}");
    assert_eq!((rule.acted(), bed.creates(), bed.deletes()), (1, creates, 0), "{what}");
    assert_eq!(bed.api.pod_names(NAMESPACE), [name(&spec.session)], "{what}");
}

#[tokio::test]
async fn applied_and_answered_504_then_409() {
    one_pod_comes_of(first_create().applied().answer(504), 2).await;
}

#[tokio::test]
async fn applied_and_the_connection_dropped() {
    for cut in [Cut::Close, Cut::Fin, Cut::Rst] {
        one_pod_comes_of(first_create().applied().cut(cut), 2).await;
    }
}

#[tokio::test]
async fn applied_and_never_answered() {
    one_pod_comes_by(|config| config.request_timeout = Duration::from_secs(4), first_create().applied().hang(), 2)
        .await;
}

#[tokio::test]
async fn applied_and_the_answer_cut_short() {
    for cut in [Cut::Close, Cut::Fin, Cut::Rst] {
        one_pod_comes_of(first_create().cut_answer(100, cut), 2).await;
    }
}

#[tokio::test]
async fn not_applied_and_the_request_cut_short() {
    // Such a rule sees the request before its body.
    one_pod_comes_of(first_create().cut_request(50, Cut::Rst), 2).await;
}

#[tokio::test]
async fn not_applied_and_answered_503_or_500() {
    for code in [500, 503] {
        one_pod_comes_of(first_create().answer(code), 2).await;
    }
}

#[tokio::test]
async fn the_client_itself_repeats_what_was_answered_504() {
    let bed = Bed::new().await;
    bed.api.rule(first_create().applied().answer(504));
    let spec = bed.spec();
    let provider = K8sProvider::new(bed.api.retrying_client(), bed.config()).unwrap();
    let sandbox = within("provision", provider.provision(&spec)).await.unwrap();
    works(&sandbox).await;
    assert_eq!((bed.api.pod_names(NAMESPACE).len(), bed.deletes()), (1, 0));
}

#[tokio::test]
async fn too_many_requests_are_asked_again_when_the_server_says() {
    let bed = Bed::new().await;
    bed.api.rule(first_create().retry_after(1).answer(429));
    let spec = bed.spec();
    let sandbox = within("provision", bed.provider().provision(&spec)).await.unwrap();
    works(&sandbox).await;
    let requests = bed.api.requests();
    let creates: Vec<Instant> =
        requests.iter().filter(|request| request.is(&On::pods(Verb::Create))).map(|request| request.instant).collect();
    assert_eq!(creates.len(), 2);
    assert!(creates[1] - creates[0] >= Duration::from_secs(1), "{:?}", creates[1] - creates[0]);
}

#[tokio::test]
async fn a_server_that_has_too_much_to_do_for_ever_fails_the_call_in_its_time() {
    let bed = Bed::new().await;
    bed.api.rule(Rule::when(On::pods(Verb::Create)).retry_after(3600).answer(429));
    let provider = bed.provider_with(|config| config.ready_timeout = Duration::from_millis(800));
    let begun = Instant::now();
    let error = fails(within("provision", provider.provision(&bed.spec())).await, ErrorKind::Unavailable);
    assert!(error.reason().unwrap().contains("429"), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(bed.api.pod_names(NAMESPACE).is_empty());
}

#[tokio::test]
async fn somebody_elses_pod_comes_between_the_lost_create_and_its_repetition() {
    let bed = Bed::new().await;
    let gate = Gate::new();
    bed.api.rule(first_create().hold(&gate).answer(504));
    let spec = bed.spec();
    let pod = name(&spec.session);
    let provider = bed.provider();
    let (outcome, theirs) = tokio::join!(within("provision", provider.provision(&spec)), async {
        gate.reached(1).await;
        let theirs = bed.api.add_pod(NAMESPACE, &foreign(&pod)).unwrap();
        gate.open();
        theirs
    });
    fails(outcome, ErrorKind::NotOurs);
    assert_eq!(bed.uid(&spec.session).as_deref(), theirs["metadata"]["uid"].as_str());
    assert_eq!((bed.creates(), bed.deletes()), (2, 0));
}

#[tokio::test]
async fn another_call_of_the_same_session_comes_between() {
    let bed = Bed::new().await;
    let gate = Gate::new();
    bed.api.rule(first_create().hold(&gate).answer(504));
    let spec = bed.spec();
    let (one, other) = (bed.provider(), bed.provider());
    let (slow, fast) = tokio::join!(within("provision", one.provision(&spec)), async {
        gate.reached(1).await;
        let fast = within("provision", other.provision(&spec)).await;
        gate.open();
        fast
    });
    let (slow, fast) = (slow.unwrap(), fast.unwrap());
    works(&slow).await;
    works(&fast).await;
    assert_eq!((bed.api.pod_names(NAMESPACE).len(), bed.deletes()), (1, 0));
}

#[tokio::test]
async fn what_a_lost_create_made_is_this_calls_to_remove() {
    let bed = Bed::new().await;
    bed.api.rule(first_create().applied().answer(504));
    bed.api.hold(Step::Start);
    let spec = bed.spec();
    let pod = name(&spec.session);
    let provider = bed.provider();
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
        bed.api.until_pod(NAMESPACE, &pod, |pod| pod.is_some()).await;
        bed.api.set_fate(NAMESPACE, &pod, Fate::image_pull_back_off("sandbox")).await;
    });
    fails(outcome, ErrorKind::ImagePull);
    assert_eq!((bed.creates(), bed.uid(&spec.session)), (2, None));
}

/// Remembers which tokens it made valid.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<String>>);

#[async_trait::async_trait]
impl GateMinter for Recorder {
    fn generate(&self) -> Result<GateToken, Error> {
        GateToken::generate()
    }

    async fn persist(&self, _: &SessionId, token: &GateToken) -> Result<(), Error> {
        self.0.lock().unwrap().push(token.expose().to_owned());
        Ok(())
    }
}

#[tokio::test]
async fn the_token_of_a_lost_creates_gate_is_made_valid_once() {
    let bed = Bed::new().await;
    bed.api.rule(first_create().applied().answer(504));
    let spec = bed.gated_spec();
    let minter = Arc::new(Recorder::default());
    let provider = bed.provider().with_gates(Arc::<Recorder>::clone(&minter), Arc::new(Tokens));
    works(&within("provision", provider.provision(&spec)).await.unwrap()).await;
    let pod = bed.pod(&spec.session).unwrap();
    let env = pod["spec"]["initContainers"][0]["env"].as_array().unwrap();
    let token = env.iter().find(|var| var["name"] == "GATE_TOKEN").unwrap()["value"].as_str().unwrap();
    assert_eq!(*minter.0.lock().unwrap(), [token]);
    assert_eq!(bed.creates(), 2);
}

fn nth_create(n: u64) -> Rule {
    Rule::when(On::pods(Verb::Create)).nth(n)
}

#[tokio::test]
async fn after_a_lost_create_a_refusal_is_not_the_last_word() {
    // As where this very Pod has used up the quota.
    let bed = Bed::new().await;
    bed.api.hold(Step::Start);
    bed.api.rule(nth_create(1).applied().answer(504));
    bed.api.rule(nth_create(2).answer(403));
    let spec = bed.spec();
    let error = fails(within("provision", bed.provider().provision(&spec)).await, ErrorKind::Forbidden);
    assert_eq!(error.effect(), Effect::Unknown);
    bed.api.until_pod(NAMESPACE, &name(&spec.session), |pod| pod.is_none()).await;
    assert_eq!(bed.creates(), 2);
}

#[tokio::test]
async fn a_refusal_alone_is_one() {
    for code in [403, 422] {
        let bed = Bed::new().await;
        bed.api.rule(nth_create(1).retry_after(1).answer(429));
        bed.api.rule(nth_create(2).answer(code));
        let error = within("provision", bed.provider().provision(&bed.spec())).await.unwrap_err();
        assert_eq!((error.effect(), bed.deletes()), (Effect::None, 0), "{error:?}");
    }
}

#[tokio::test]
async fn what_stands_there_after_a_lost_create_cannot_be_looked_at() {
    let bed = Bed::new().await;
    bed.api.hold(Step::Start);
    bed.api.rule(nth_create(1).applied().answer(504));
    // The first one finds nothing.
    bed.api.rule(Rule::when(On::pods(Verb::Get)).nth(2).answer(403));
    let spec = bed.spec();
    let error = fails(within("provision", bed.provider().provision(&spec)).await, ErrorKind::Forbidden);
    assert_eq!(error.effect(), Effect::Unknown);
    bed.api.until_pod(NAMESPACE, &name(&spec.session), |pod| pod.is_none()).await;
}

#[tokio::test]
async fn a_gated_pod_whose_create_is_never_answered_goes_although_it_runs() {
    let bed = Bed::new().await;
    bed.api.rule(Rule::when(On::pods(Verb::Create)).applied().hang());
    let spec = bed.gated_spec();
    let provider = with_gates(bed.provider_with(|config| config.ready_timeout = Duration::from_secs(2)));
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
        bed.api.until_ready(NAMESPACE, &name(&spec.session)).await;
    });
    assert_eq!(fails(outcome, ErrorKind::DeadlineExceeded).effect(), Effect::Unknown);
    // Nobody has recorded its token.
    bed.api.until_pod(NAMESPACE, &name(&spec.session), |pod| pod.is_none()).await;
}

#[tokio::test]
async fn a_pod_that_others_may_use_stays_though_its_create_was_never_answered() {
    let bed = Bed::new().await;
    bed.api.rule(Rule::when(On::pods(Verb::Create)).applied().hang());
    let spec = bed.spec();
    let provider = bed.provider_with(|config| config.ready_timeout = Duration::from_secs(2));
    let gets = On::pods(Verb::Get);
    let error = fails(within("provision", provider.provision(&spec)).await, ErrorKind::DeadlineExceeded);
    assert_eq!(error.effect(), Effect::Unknown);
    bed.api.until_requests(&gets, 2).await;
    let uid = bed.uid(&spec.session);
    works(&within("provision", provider.provision(&spec)).await.unwrap()).await;
    assert_eq!((bed.uid(&spec.session), bed.deletes()), (uid, 0));
}
