//! Two calls make one session's sandbox at once, and do not mean the same: what the one gets that comes second.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fake_apiserver::{Gate, On, Rule, Verb};
use futures::FutureExt;
use sandbox::{
    AllowedHost, Env, Error, ErrorKind, GateMinter, GateRevoker, GateToken, Networking, Provider, SandboxPath,
    SessionId, Spec,
};
use sandbox_k8s::K8sConfig;

use crate::bed::{Bed, exec, fails, gated, side_by_side, within, works};

/// Counts.
#[derive(Debug, Default)]
struct Plane {
    recorded: AtomicUsize,
    revoked: AtomicUsize,
}

#[async_trait::async_trait]
impl GateMinter for Plane {
    fn generate(&self) -> Result<GateToken, Error> {
        GateToken::generate()
    }

    async fn persist(&self, _: &SessionId, _: &GateToken) -> Result<(), Error> {
        self.recorded.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[async_trait::async_trait]
impl GateRevoker for Plane {
    async fn revoke(&self, _: &SessionId) -> Result<(), Error> {
        self.revoked.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

struct Row {
    what: &'static str,
    /// What the first one makes, of what the second one wants.
    first: fn(Spec) -> Spec,
    second: fn(Spec) -> Spec,
    /// What the second one asks for. Who asks for none takes any: which one the cluster has by default is not known.
    class: Option<&'static str>,
    /// What the second one fails with; else it answers the first one's.
    fails: Option<ErrorKind>,
}

fn same(spec: Spec) -> Spec {
    spec
}

fn image(mut spec: Spec) -> Spec {
    spec.image = "another/image".to_owned();
    spec
}

fn env(spec: Spec) -> Spec {
    let (env, _) = Env::from_untrusted([("WHOSE", "another's")]);
    spec.with_env(env)
}

fn limited(spec: Spec) -> Spec {
    spec.with_networking(Networking::limited([AllowedHost::new("example.org").unwrap()]))
}

fn without(spec: Spec) -> Spec {
    limited(spec).with_networking(Networking::None)
}

fn workdir(spec: Spec) -> Spec {
    spec.with_workdir(SandboxPath::new("/var/tmp").unwrap())
}

#[rustfmt::skip]
fn rows() -> Vec<Row> {
    let row = |what, first, second, fails| Row { what, first, second, class: None, fails };
    let (busy, mismatch) = (Some(ErrorKind::Busy), Some(ErrorKind::SpecMismatch));
    vec![
        row("the same", same, same, None),
        row("the same with a gate", gated, gated, None),
        row("other variables, which are the first one's", env, same, None),
        row("another image", image, same, mismatch),
        row("another directory", workdir, same, mismatch),
        row("a network, and none was wanted", same, without, mismatch),
        row("no network, and one was wanted", without, same, mismatch),
        row("limited, and none was wanted", limited, without, mismatch),
        Row { what: "another runtime class", first: same, second: same, class: Some("other"), fails: mismatch },
        row("no gate, and one was wanted", same, gated, busy),
        row("a gate, and none was wanted", gated, same, busy),
        row("no gate and another image, and one was wanted", image, gated, busy),
        // Whatever it may reach is the gate's to know.
        row("a gate, with other hosts", |spec| limited(gated(spec)), gated, None),
        row("a gate, and another image", |spec| image(gated(spec)), gated, mismatch),
    ]
}

async fn race(row: Row) {
    let Row { what, first, second, class, fails: kind } = row;
    let bed = Bed::new().await;
    let plane = Arc::new(Plane::default());
    let with = |change: &dyn Fn(&mut K8sConfig)| {
        bed.provider_with(change).with_gates(Arc::<Plane>::clone(&plane), Arc::<Plane>::clone(&plane))
    };
    let (fast, slow) = (with(&|_| {}), with(&|config| config.runtime_class = class.map(str::to_owned)));
    let spec = bed.spec();
    let (first, second) = (first(spec.clone()), second(spec.clone()));

    let gate = Gate::new();
    bed.api.rule(Rule::when(On::pods(Verb::Create)).nth(1).hold(&gate));
    let (late, early) = tokio::join!(within(what, slow.provision(&second)), async {
        gate.reached(1).await;
        let early = within(what, fast.provision(&first)).await;
        gate.open();
        early
    });
    let early = early.unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let uid = bed.uid(&spec.session);
    match (late, kind) {
        (Ok(late), None) => {
            let whose = exec(&late, "echo $WHOSE").await.unwrap().stdout.to_string_lossy().into_owned();
            assert_eq!(whose.trim(), if first.env.is_empty() { "" } else { "another's" }, "{what}");
        }
        (late, Some(kind)) => {
            assert!(late.is_err(), "{what}: {late:?}");
            let error = fails(late, kind);
            assert!(error.reason().is_some() && error.death().is_none(), "{what}: {error:?}");
        }
        (Err(error), None) => panic!("{what}: {error:?}"),
    }
    works(&early).await;
    assert_eq!((bed.uid(&spec.session), bed.creates(), bed.deletes()), (uid.clone(), 2, 0), "{what}");
    // A token is recorded by whoever has made the gate, and by nobody else.
    let recorded = usize::from(first.gate.is_some());
    assert_eq!(plane.recorded.load(Ordering::SeqCst), recorded, "{what}");
    assert_eq!(plane.revoked.load(Ordering::SeqCst), 0, "{what}");

    // The next try is no race: a gate that is to be there, or not, is worth a new sandbox; nothing else is.
    match (within(what, slow.provision(&second)).await, kind) {
        (Ok(again), Some(ErrorKind::Busy)) => {
            works(&again).await;
            assert_ne!(bed.uid(&spec.session), uid, "{what}");
            assert!(again.recreated().is_some(), "{what}");
            let counts = (plane.recorded.load(Ordering::SeqCst), plane.revoked.load(Ordering::SeqCst));
            assert_eq!(counts, (1, recorded), "{what}");
        }
        (Ok(_), None) => assert_eq!(bed.uid(&spec.session), uid, "{what}"),
        (again, kind) => {
            fails(again, kind.unwrap());
            assert_eq!((bed.uid(&spec.session), bed.deletes()), (uid, 0), "{what}");
        }
    }
}

#[tokio::test]
async fn what_the_second_one_gets() {
    side_by_side(rows().into_iter().map(|row| race(row).boxed())).await;
}
