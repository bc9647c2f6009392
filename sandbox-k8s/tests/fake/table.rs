//! The states of a Pod, row by row: what provision, attach and owned make of each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_apiserver::{Fate, On, Step, Verb};
use kube::api::{Api, DeleteParams};
use sandbox::{Death, Effect, Error, ErrorKind, Networking, OwnedState, Provider, Sandbox, SessionId, Spec};
use sandbox_k8s::K8sProvider;

use crate::bed::{Bed, NAMESPACE, fails, name, side_by_side, with_gates, within, works};

/// What a provision makes of a Pod that it finds.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Finds {
    /// Answers that Pod.
    It,
    /// Fails, and leaves it.
    Refuses(ErrorKind),
    /// Fails, and removes it.
    Reclaims(ErrorKind),
    /// Removes it and makes another, which says why, if files were lost.
    Replaces(Option<Death>),
}

struct Row {
    state: &'static str,
    fate: Option<Fate>,
    provision: Finds,
    /// A handle, or `NotFound` with that cause.
    attach: Result<(), Option<Death>>,
    owned: OwnedState,
}

fn failed(reason: &str) -> Option<Fate> {
    Some(Fate::Failed { reason: reason.to_owned(), message: "said so".to_owned() })
}

fn waiting(reason: &str) -> Option<Fate> {
    let (container, message) = ("sandbox".to_owned(), "said so".to_owned());
    Some(Fate::Waiting { container, reason: reason.to_owned(), message })
}

#[rustfmt::skip]
fn rows() -> Vec<Row> {
    use Finds::{It, Reclaims, Refuses, Replaces};
    use OwnedState::{Ended, Ending, Running, Starting, Unknown};
    let row = |state, fate, provision, attach, owned| Row { state, fate, provision, attach, owned };
    let crash = |container: &str| Some(Fate::CrashLoop { container: container.to_owned(), exit_code: 1 });
    let init = Some(Fate::InitFailed { container: "netsetup".to_owned(), exit_code: 1 });
    let deaf = |seconds| Some(Fate::Deaf { container: "gate".to_owned(), seconds });
    let (container, message) = ("gate".to_owned(), "said so".to_owned());
    let slow_gate = Fate::Waiting { container, reason: "ContainerCreating".to_owned(), message };
    vec![
        row("ready", None, It, Ok(()), Running),
        row("running, not ready", Some(Fate::NotReady), Refuses(ErrorKind::DeadlineExceeded), Err(None), Running),
        row("creating", waiting("ContainerCreating"), Refuses(ErrorKind::DeadlineExceeded), Err(None), Starting),
        row("unschedulable", Some(Fate::Unschedulable("0/1 nodes".into())), Refuses(ErrorKind::Unschedulable), Err(None), Starting),
        row("pull back-off", Some(Fate::image_pull_back_off("sandbox")), Refuses(ErrorKind::ImagePull), Err(None), Starting),
        row("pull failed", waiting("ErrImagePull"), Refuses(ErrorKind::ImagePull), Err(None), Starting),
        row("image name", waiting("InvalidImageName"), Refuses(ErrorKind::ImagePull), Err(None), Starting),
        row("never pulled", waiting("ErrImageNeverPull"), Refuses(ErrorKind::ImagePull), Err(None), Starting),
        row("container config", waiting("CreateContainerConfigError"), Refuses(ErrorKind::Unavailable), Err(None), Starting),
        row("container", waiting("CreateContainerError"), Refuses(ErrorKind::Unavailable), Err(None), Starting),
        row("run container", waiting("RunContainerError"), Refuses(ErrorKind::Unavailable), Err(None), Starting),
        row("crash loop", crash("sandbox"), Refuses(ErrorKind::Unavailable), Err(None), Running),
        row("gate: crash loop", crash("gate"), Reclaims(ErrorKind::Unavailable), Err(None), Starting),
        row("gate: slow", Some(slow_gate), Refuses(ErrorKind::DeadlineExceeded), Err(None), Starting),
        row("gate: deaf", deaf(60), Reclaims(ErrorKind::Unavailable), Err(None), Starting),
        row("gate: deaf for a moment", deaf(3), Refuses(ErrorKind::DeadlineExceeded), Err(None), Starting),
        row("init failed", init, Replaces(None), Err(Some(Death::Ended)), Ended),
        row("evicted", Some(Fate::evicted()), Replaces(Some(Death::Evicted)), Err(Some(Death::Evicted)), Ended),
        row("node shut down", failed("NodeShutdown"), Replaces(Some(Death::NodeLost)), Err(Some(Death::NodeLost)), Ended),
        row("lived too long", failed("DeadlineExceeded"), Replaces(Some(Death::Ended)), Err(Some(Death::Ended)), Ended),
        row("succeeded", Some(Fate::Succeeded), Replaces(Some(Death::Ended)), Err(Some(Death::Ended)), Ended),
        row("out of memory", Some(Fate::OomKilled), Replaces(Some(Death::OomKilled)), Err(Some(Death::OomKilled)), Ended),
        row("unknown", Some(Fate::Unknown), Refuses(ErrorKind::DeadlineExceeded), Err(Some(Death::NodeLost)), Unknown),
        row("unheard of", Some(Fate::Unheard), Refuses(ErrorKind::DeadlineExceeded), Err(Some(Death::NodeLost)), Running),
        row("deletion that stays", Some(Fate::NodeLost), Refuses(ErrorKind::DeadlineExceeded), Err(Some(Death::NodeLost)), Ending),
    ]
}

/// A spec whose Pod has the container that such a fate is about.
fn spec_for(bed: &Bed, fate: Option<&Fate>) -> Spec {
    match fate {
        Some(Fate::InitFailed { .. }) => bed.spec().with_networking(Networking::None),
        Some(Fate::CrashLoop { container, .. } | Fate::Waiting { container, .. } | Fate::Deaf { container, .. })
            if container == "gate" =>
        {
            bed.gated_spec()
        }
        _ => bed.spec(),
    }
}

async fn state_of(provider: &K8sProvider, session: &SessionId) -> Option<OwnedState> {
    let mut owned = provider.owned().await.unwrap();
    let mut found = Vec::new();
    while let Some(entry) = owned.next().await {
        found.push(entry.unwrap());
    }
    assert!(found.len() <= 1, "{found:?}");
    assert!(found.iter().all(|entry| entry.session == *session), "{found:?}");
    found.pop().map(|entry| entry.state)
}

/// Long enough for a container that cannot be made, where the row is about one.
fn patience(row: &Row) -> Duration {
    match row.provision {
        Finds::Refuses(ErrorKind::DeadlineExceeded) => Duration::from_millis(1500),
        _ => Duration::from_secs(30),
    }
}

async fn check(row: Row) {
    let (bed, state) = (Bed::new().await, row.state);
    let spec = spec_for(&bed, row.fate.as_ref());
    let maker = with_gates(bed.provider());
    drop(within(state, maker.provision(&spec)).await.unwrap_or_else(|e| panic!("{state}: {e:?}")));
    let pod = name(&spec.session);
    let uid = bed.uid(&spec.session);
    if let Some(fate) = row.fate.clone() {
        bed.api.set_fate(NAMESPACE, &pod, fate).await;
    }
    let provider = with_gates(bed.provider_with(|config| config.ready_timeout = patience(&row)));

    match (within(state, provider.attach(&spec.session)).await, row.attach) {
        (Ok(sandbox), Ok(())) => works(&sandbox).await,
        (Err(error), Err(death)) => {
            assert_eq!((error.kind(), error.death()), (ErrorKind::NotFound, death), "{state}: {error:?}");
        }
        (got, _) => panic!("{state}: attach: {got:?}"),
    }
    assert_eq!(state_of(&provider, &spec.session).await, Some(row.owned), "{state}");
    assert_eq!((bed.creates(), bed.deletes()), (1, 0), "{state}: looking changes nothing");

    let begun = Instant::now();
    let outcome = within(state, provider.provision(&spec)).await;
    let took = begun.elapsed();
    match row.provision {
        Finds::It => {
            let sandbox = outcome.unwrap();
            works(&sandbox).await;
            assert_eq!((sandbox.recreated(), &bed.uid(&spec.session)), (None, &uid), "{state}");
        }
        Finds::Refuses(kind) => {
            let error = fails(outcome, kind);
            assert!(error.reason().is_some_and(|reason| !reason.is_empty()), "{state}: {error:?}");
            assert_eq!((bed.creates(), bed.deletes()), (1, 0), "{state}");
            assert_eq!(bed.uid(&spec.session), uid, "{state}");
            let most = patience(&row).min(Duration::from_secs(5)) + Duration::from_secs(6);
            assert!(took < most, "{state}: {took:?}");
        }
        Finds::Reclaims(kind) => {
            fails(outcome, kind);
            assert_eq!((bed.creates(), bed.uid(&spec.session)), (1, None), "{state}");
        }
        Finds::Replaces(death) => {
            let sandbox = outcome.unwrap_or_else(|e| panic!("{state}: {e:?}"));
            works(&sandbox).await;
            assert_ne!(bed.uid(&spec.session), uid, "{state}");
            assert_eq!(bed.creates(), 2, "{state}");
            // Whoever looks later, and from elsewhere, is told the same.
            let later = bed.provider().attach(&spec.session).await.unwrap();
            let again = bed.provider().provision(&spec).await.unwrap();
            for handle in [&sandbox, &later, &again] {
                assert_eq!(handle.recreated().map(|why| why.reason), death, "{state}");
            }
            assert_eq!(later.recreated(), sandbox.recreated(), "{state}");
        }
    }
    let uids = bed.every_delete_names_its_pod();
    assert!(uids.iter().all(|removed| Some(removed) == uid.as_ref()), "{state}: {uids:?}");
}

#[tokio::test]
async fn what_is_found() {
    side_by_side(rows().into_iter().map(check)).await;
}

/// A Pod that this call has made meets that fate before it is ready.
async fn unborn(fate: Fate) -> (Bed, Result<Arc<dyn Sandbox>, Error>, SessionId) {
    let bed = Bed::new().await;
    bed.api.hold(Step::Start);
    let spec = spec_for(&bed, Some(&fate));
    let pod = name(&spec.session);
    let patience = if fate == Fate::NotReady { 3 } else { 30 };
    let provider = bed.provider_with(|config| config.ready_timeout = Duration::from_secs(patience));
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
        bed.api.until_pod(NAMESPACE, &pod, |pod| pod.is_some()).await;
        bed.api.set_fate(NAMESPACE, &pod, fate).await;
    });
    (bed, outcome, spec.session)
}

#[tokio::test]
async fn what_this_call_made_and_never_runs_is_removed_again() {
    let waits = |reason| waiting(reason).unwrap();
    let init = Fate::InitFailed { container: "netsetup".to_owned(), exit_code: 1 };
    let rows = [
        ("unschedulable", Fate::Unschedulable("0/1 nodes".to_owned()), ErrorKind::Unschedulable, None, "0/1 nodes"),
        ("pull back-off", Fate::image_pull_back_off("sandbox"), ErrorKind::ImagePull, None, "ImagePullBackOff"),
        ("image name", waits("InvalidImageName"), ErrorKind::ImagePull, None, "InvalidImageName"),
        ("container", waits("CreateContainerError"), ErrorKind::Unavailable, None, "CreateContainerError"),
        ("cut-off failed", init, ErrorKind::Unavailable, None, "the network could not be cut off"),
        ("evicted", Fate::evicted(), ErrorKind::Unavailable, Some(Death::Evicted), "Evicted"),
        ("out of memory", Fate::OomKilled, ErrorKind::Unavailable, Some(Death::OomKilled), "OOMKilled"),
        ("succeeded", Fate::Succeeded, ErrorKind::Unavailable, Some(Death::Ended), "Completed"),
        ("not ready", Fate::NotReady, ErrorKind::DeadlineExceeded, None, "Running"),
    ];
    let checks = rows.into_iter().map(|(state, fate, kind, death, word)| async move {
        let (bed, outcome, session) = unborn(fate).await;
        let error = fails(outcome, kind);
        assert_eq!(error.death(), death, "{state}");
        assert!(error.reason().unwrap().contains(word), "{state}: {error:?}");
        assert_eq!((bed.creates(), bed.uid(&session)), (1, None), "{state}");
        assert_eq!(bed.every_delete_names_its_pod().len(), 1, "{state}");
    });
    side_by_side(checks).await;
}

#[tokio::test]
async fn a_deletion_is_waited_for_and_then_another_is_made() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    let pod = name(&spec.session);
    drop(within("provision", bed.provider().provision(&spec)).await.unwrap());
    let uid = bed.uid(&spec.session);
    bed.api.hold(Step::Terminate);
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(bed.api.client(), NAMESPACE);
    pods.delete(&pod, &DeleteParams::default().grace_period(10)).await.unwrap();
    let provider = bed.provider();
    let gets = bed.api.count(&On::pods(Verb::Get));
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
        bed.api.until_requests(&On::pods(Verb::Get), gets + 2).await;
        assert_eq!(bed.creates(), 1, "it is still there");
        bed.api.release(Step::Terminate);
    });
    let sandbox = outcome.unwrap();
    works(&sandbox).await;
    assert_ne!(bed.uid(&spec.session), uid);
    assert_eq!((bed.creates(), bed.deletes()), (2, 1), "the one deletion was this test's");
}

#[tokio::test]
async fn a_pod_that_goes_while_somebody_waits_for_it_is_made_again() {
    let bed = Bed::new().await;
    bed.api.hold(Step::Start);
    let spec = bed.spec();
    let pod = name(&spec.session);
    let provider = bed.provider();
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
        bed.api.until_pod(NAMESPACE, &pod, |pod| pod.is_some()).await;
        bed.api.remove_pod(NAMESPACE, &pod).await;
        bed.api.release(Step::Start);
    });
    let sandbox = outcome.unwrap();
    works(&sandbox).await;
    assert_eq!((bed.creates(), sandbox.recreated()), (2, None), "it never ran");
}

#[tokio::test]
async fn a_pod_that_goes_again_and_again_is_somebody_elses_doing() {
    let bed = Bed::new().await;
    bed.api.hold(Step::Start);
    let spec = bed.spec();
    let pod = name(&spec.session);
    let provider = bed.provider();
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
        for _ in 0..4 {
            bed.api.until_pod(NAMESPACE, &pod, |pod| pod.is_some()).await;
            bed.api.remove_pod(NAMESPACE, &pod).await;
        }
    });
    assert!(fails(outcome, ErrorKind::Busy).reason().is_some());
    assert_eq!((bed.creates(), bed.uid(&spec.session)), (4, None));
}

#[tokio::test]
async fn a_pod_whose_shells_never_answer_takes_no_longer_than_the_ready_timeout() {
    use fake_apiserver::{ExecFault, Rule};
    let bed = Bed::new().await;
    bed.api.rule(Rule::when(On::exec()).exec(ExecFault::new().silent()));
    let spec = bed.spec();
    let provider = bed.provider_with(|config| config.ready_timeout = Duration::from_secs(2));
    let begun = Instant::now();
    let error = fails(within("provision", provider.provision(&spec)).await, ErrorKind::DeadlineExceeded);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert_eq!(error.effect(), Effect::Unknown);
    assert!(bed.uid(&spec.session).is_some() && bed.deletes() == 0, "it is ready, and others may be at work in it");
}
