//! A provision that is dropped: what it has begun is nothing, or is found.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fake_apiserver::{Gate, On, Rule, Step, Verb};
use futures::{FutureExt, StreamExt};
use sandbox::{Error, GateMinter, GateRevoker, GateToken, Provider, SessionId, Spec};
use sandbox_k8s::K8sProvider;
use tokio::sync::Notify;

use crate::bed::{Bed, NAMESPACE, name, side_by_side, within, works};

/// Where a provision is when it is dropped.
#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    Look,
    CreateUnread,
    CreateUnanswered,
    Start,
    Ready,
    FirstShell,
}

use At::{CreateUnanswered, CreateUnread, FirstShell, Look, Ready, Start};

const ALL: [At; 6] = [Look, CreateUnread, CreateUnanswered, Start, Ready, FirstShell];

/// Drops a provision there; whether it has made a Pod by then.
async fn drop_at(bed: &Bed, at: At, provider: &K8sProvider, spec: &Spec) -> bool {
    let gate = Gate::new();
    let rule = match at {
        Look => Rule::when(On::pods(Verb::Get)).nth(1).hold(&gate),
        CreateUnread => Rule::when(On::pods(Verb::Create)).nth(1).hold(&gate).answer(503),
        CreateUnanswered => Rule::when(On::pods(Verb::Create)).nth(1).hold_answer(&gate),
        FirstShell => Rule::when(On::exec()).nth(1).hold(&gate),
        Start | Ready => Rule::when(On::exec()).nth(99),
    };
    match at {
        Start => bed.api.hold(Step::Start),
        Ready => bed.api.hold(Step::Ready),
        _ => {}
    }
    let rule = bed.api.rule(rule);
    let there = async {
        match at {
            Start | Ready => bed.until_other(&spec.session, None).await,
            _ => gate.reached(1).await,
        }
    };
    tokio::select! {
        outcome = provider.provision(spec) => panic!("{at:?}: it waits: {outcome:?}"),
        () = there => {}
    }
    rule.remove();
    gate.open();
    bed.api.release(Step::Start);
    bed.api.release(Step::Ready);
    !matches!(at, Look | CreateUnread)
}

async fn owned(provider: &K8sProvider) -> Vec<SessionId> {
    within("owned", provider.owned().await.unwrap().map(|entry| entry.unwrap().session).collect()).await
}

async fn is_found(at: At) {
    let bed = Bed::new().await;
    let (provider, taken, reaped) = (bed.provider(), bed.spec(), bed.spec());
    for spec in [&taken, &reaped] {
        let made = drop_at(&bed, at, &provider, spec).await;
        let uid = bed.uid(&spec.session);
        assert_eq!(uid.is_some(), made, "{at:?}");
        let listed = owned(&bed.provider()).await.contains(&spec.session);
        assert_eq!(listed, made, "{at:?}: what is there is owned");
        if spec.session == reaped.session {
            within("reap", provider.reap(&spec.session)).await.unwrap();
            assert_eq!(bed.uid(&spec.session), None, "{at:?}");
            continue;
        }
        // By whoever asks next, and nobody was held up.
        let sandbox = within("provision", bed.provider().provision(spec)).await.unwrap();
        works(&sandbox).await;
        assert_eq!(sandbox.recreated(), None, "{at:?}");
        if made {
            assert_eq!((bed.uid(&spec.session), bed.deletes()), (uid, 0), "{at:?}: it is taken up");
        }
        works(&within("once more", provider.provision(spec)).await.unwrap()).await;
    }
}

#[tokio::test]
async fn what_it_has_begun_is_nothing_or_is_found() {
    side_by_side(ALL.map(|at| is_found(at).boxed())).await;
}

/// Never says whether a token is recorded.
#[derive(Debug, Default)]
struct Slow {
    asked: Notify,
    revoked: AtomicUsize,
}

#[async_trait::async_trait]
impl GateMinter for Slow {
    fn generate(&self) -> Result<GateToken, Error> {
        GateToken::generate()
    }

    async fn persist(&self, _: &SessionId, _: &GateToken) -> Result<(), Error> {
        self.asked.notify_one();
        std::future::pending().await
    }
}

#[async_trait::async_trait]
impl GateRevoker for Slow {
    async fn revoke(&self, _: &SessionId) -> Result<(), Error> {
        self.revoked.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::test]
async fn one_whose_gate_has_no_token_yet_is_removed_although_it_runs() {
    let bed = Bed::new().await;
    let plane = Arc::new(Slow::default());
    let provider = bed.provider().with_gates(Arc::<Slow>::clone(&plane), Arc::<Slow>::clone(&plane));
    let gone = async |spec: &Spec| bed.api.until_pod(NAMESPACE, &name(&spec.session), |pod| pod.is_none()).await;

    // Nobody was asked to record anything.
    let spec = bed.gated_spec();
    assert!(drop_at(&bed, CreateUnanswered, &provider, &spec).await);
    within("it goes", gone(&spec)).await;
    assert_eq!(plane.revoked.load(Ordering::SeqCst), 0);

    // It may be recorded.
    let spec = bed.gated_spec();
    tokio::select! {
        outcome = provider.provision(&spec) => panic!("it waits: {outcome:?}"),
        () = async {
            plane.asked.notified().await;
            bed.api.until_ready(NAMESPACE, &name(&spec.session)).await;
        } => {}
    }
    within("it goes", gone(&spec)).await;
    assert_eq!(plane.revoked.load(Ordering::SeqCst), 1);
    // Who comes next waits for that, and is not met by it.
    within("reap", provider.reap(&spec.session)).await.unwrap();
    assert!(bed.api.pod_names(NAMESPACE).is_empty());
}
