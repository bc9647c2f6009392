//! Why a sandbox is no more, whatever was going on in it and whatever is asked of it afterwards: operation by operation, cause by cause.

use std::sync::Arc;
use std::time::Duration;

use fake_apiserver::{Fate, Gate, On, Rule, Step, Verb};
use futures::{FutureExt, StreamExt, stream};
use sandbox::{
    Body, Death, Effect, Error, ErrorKind, ExecRequest, FileBatch, FileWrite, Provider, Sandbox, SandboxPath,
    SessionId, SpawnRequest, Spec,
};
use sandbox_k8s::K8sProvider;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::bed::{Bed, NAMESPACE, exec, fails, name, side_by_side, within, works};

/// More than lies between a sandbox and whoever reads from it.
const LARGE: usize = 24 << 20;
const HALF: usize = 100_000;

/// What ends a sandbox.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cause {
    OutOfMemory,
    Evicted,
    Completed,
    NodeShutDown,
    NodeSilent,
    Deleted,
    /// By an eviction through the API, and it has not gone yet.
    Drained,
    Replaced,
}

use Cause::{Completed, Deleted, Drained, Evicted, NodeShutDown, NodeSilent, OutOfMemory, Replaced};

const CAUSES: [(Cause, Death); 8] = [
    (OutOfMemory, Death::OomKilled),
    (Evicted, Death::Evicted),
    (Completed, Death::Ended),
    (NodeShutDown, Death::NodeLost),
    (NodeSilent, Death::NodeLost),
    (Deleted, Death::Deleted),
    (Drained, Death::Evicted),
    (Replaced, Death::Replaced),
];

impl Cause {
    async fn strikes(self, bed: &Bed, session: &SessionId) {
        let pod = name(session);
        match self {
            OutOfMemory => bed.set_fate(session, Fate::OomKilled).await,
            Evicted => bed.set_fate(session, Fate::evicted()).await,
            Completed => bed.set_fate(session, Fate::Succeeded).await,
            NodeShutDown => {
                let (reason, message) = ("Terminated".to_owned(), "the node shut down".to_owned());
                bed.set_fate(session, Fate::Failed { reason, message }).await;
            }
            NodeSilent => {
                // Streams that are open stay so, and say nothing.
                bed.api.rule(Rule::when(On::exec()).message("dial tcp: no route to host").answer(500));
                bed.set_fate(session, Fate::Unheard).await;
            }
            Deleted => bed.api.remove_pod(NAMESPACE, &pod).await,
            Drained => {
                bed.api.hold(Step::Terminate);
                bed.api.edit_pod(NAMESPACE, &pod, |pod| {
                    let condition = serde_json::json!(
                        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
                    );
                    pod["status"]["conditions"].as_array_mut().unwrap().push(condition);
                    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                });
                // The kubelet has ended the processes, and the Pod is still there.
                bed.set_fate(session, Fate::Succeeded).await;
            }
            Replaced => {
                let mut next = bed.pod(session).unwrap();
                next["metadata"]
                    .as_object_mut()
                    .unwrap()
                    .retain(|key, _| ["name", "labels", "annotations"].contains(&key.as_str()));
                next["spec"].as_object_mut().unwrap().remove("nodeName");
                next.as_object_mut().unwrap().remove("status");
                // Nobody sees what was in between.
                let gate = Gate::new();
                let rule = bed.api.rule(Rule::when(On::pods(Verb::Get)).hold(&gate));
                bed.api.remove_pod(NAMESPACE, &pod).await;
                bed.api.add_pod(NAMESPACE, &next).unwrap();
                rule.remove();
                gate.open();
                bed.api.until_ready(NAMESPACE, &pod).await;
            }
        }
    }

    /// Whether what was half-way may have had an effect that nobody knows of.
    fn is_silent(self) -> bool {
        self == NodeSilent
    }
}

/// One operation that is under way.
type Early = (&'static str, JoinHandle<Result<(), Error>>);

/// What a sandbox is asked for, all of it half-way.
struct Scene {
    bed: Bed,
    spec: Spec,
    provider: K8sProvider,
    sandbox: Arc<dyn Sandbox>,
    go: watch::Sender<bool>,
}

impl Scene {
    async fn new() -> Self {
        let (bed, go) = (Bed::new().await, watch::Sender::new(false));
        let (spec, provider) = (bed.spec(), bed.provider());
        let sandbox = within("provision", provider.provision(&spec)).await.unwrap();
        std::fs::write(bed.file("large"), vec![7; LARGE]).unwrap();
        std::fs::create_dir(bed.file("tree")).unwrap();
        std::fs::write(bed.file("tree/large"), vec![7; LARGE]).unwrap();
        Self { bed, spec, provider, sandbox, go }
    }

    fn path(&self, name: &str) -> SandboxPath {
        self.bed.path(name)
    }

    /// Waits, in the middle of something, until the sandbox is no more.
    fn waits(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut go = self.go.subscribe();
        async move {
            let _ = go.wait_for(|go| *go).await;
        }
    }

    /// Begins each, and comes back when all are in the middle.
    async fn early(&self) -> Vec<Early> {
        let (arrive, mut arrived) = tokio::sync::mpsc::channel::<()>(8);
        let begun = self.bed.file("begun");
        let (sandbox, command) = (Arc::clone(&self.sandbox), format!("touch {}; exec sleep 300", begun.display()));
        let running = tokio::spawn(async move { sandbox.exec(ExecRequest::shell(command)).await.map(drop) });

        let mut process = self.sandbox.spawn(SpawnRequest::shell("echo x; exec sleep 300")).await.unwrap();
        assert_eq!(process.stdout.next().await.unwrap().unwrap(), "x\n");
        let spawned = tokio::spawn(async move { process.wait().await.map(drop) });

        let mut read = self.sandbox.read(&self.path("large"), LARGE as u64).await.unwrap();
        read.next().await.unwrap().unwrap();
        let until = self.waits();
        let read = tokio::spawn(async move {
            until.await;
            while let Some(piece) = read.next().await {
                piece?;
            }
            Ok(())
        });

        let mut export = self.provider.export(&self.spec.session, &self.path("tree")).await.unwrap();
        export.next().await.unwrap().unwrap();
        let until = self.waits();
        let export = tokio::spawn(async move {
            until.await;
            while let Some(piece) = export.next().await {
                piece?;
            }
            Ok(())
        });

        let (mut give, take) = tokio::io::duplex(1024);
        let (until, here) = (self.waits(), arrive.clone());
        tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            let _ = give.write_all(&[7; HALF]).await;
            let _ = here.send(()).await;
            until.await;
            let _ = give.write_all(&[7; HALF]).await;
        });
        let (sandbox, path) = (Arc::clone(&self.sandbox), self.path("written"));
        let write =
            tokio::spawn(async move { sandbox.write(FileWrite::new(path, 2 * HALF as u64, Body::reader(take))).await });

        let (until, here, sandbox) = (self.waits(), arrive, Arc::clone(&self.sandbox));
        let paths: Vec<_> = (0..20).map(|at| self.path(&format!("many/{at}"))).collect();
        let bulk = tokio::spawn(async move {
            let file = |path: &SandboxPath| FileWrite::bytes(path.clone(), vec![7; HALF]);
            let pause = async move {
                let _ = here.send(()).await;
                until.await;
            };
            let first: Vec<_> = paths[..10].iter().map(file).collect();
            let rest: Vec<_> = paths[10..].iter().map(file).collect();
            let pause = stream::once(pause).filter_map(|()| async { None });
            sandbox.write_many(FileBatch::stream(stream::iter(first).chain(pause).chain(stream::iter(rest)))).await
        });
        for _ in 0..2 {
            within("half-way", arrived.recv()).await.unwrap();
        }
        while !begun.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        vec![
            ("exec", running),
            ("spawn", spawned),
            ("read", read),
            ("export", export),
            ("write", write),
            ("bulk", bulk),
        ]
    }

    /// Each once more, through the handle of what is no more.
    async fn late(&self) -> Vec<(&'static str, Result<(), Error>)> {
        let handle = &self.sandbox;
        let bytes = |name: &str| FileWrite::bytes(self.path(name), "x");
        vec![
            ("exec", within("exec", exec(handle, "true")).await.map(drop)),
            ("spawn", within("spawn", handle.spawn(SpawnRequest::shell("true"))).await.map(drop)),
            ("read", within("read", handle.read(&self.path("large"), LARGE as u64)).await.map(drop)),
            ("write", within("write", handle.write(bytes("later"))).await),
            ("bulk", within("bulk", handle.write_many(FileBatch::new([bytes("later")]))).await),
        ]
    }
}

async fn dies_of(cause: Cause, death: Death) {
    let scene = Scene::new().await;
    let (bed, session) = (&scene.bed, &scene.spec.session);
    let early = scene.early().await;
    cause.strikes(bed, session).await;
    let mut outcomes = Vec::new();
    for (what, task) in early {
        if what == "read" {
            // All those that wait for nobody are told by themselves.
            scene.go.send_replace(true);
        }
        let outcome = within(&format!("{cause:?}: {what}"), task).await.unwrap();
        outcomes.push((what, "half-way", outcome));
    }
    outcomes.extend(scene.late().await.into_iter().map(|(what, outcome)| (what, "afterwards", outcome)));
    for (what, when, outcome) in outcomes {
        let error = fails(outcome, ErrorKind::NotFound);
        assert_eq!(error.death(), Some(death), "{cause:?}: {what} {when}: {error:?}");
        if when == "afterwards" || what == "read" || what == "export" {
            assert_eq!(error.effect(), Effect::None, "{cause:?}: {what} {when}: {error:?}");
        }
    }

    let attach = within("attach", scene.provider.attach(session)).await;
    let export = within("export", scene.provider.export(session, &scene.path("tree"))).await.map(drop);
    match cause {
        // Another one is there, and nobody told this session's own.
        Replaced => {
            works(&attach.unwrap()).await;
            export.unwrap();
        }
        _ => {
            // Of what is gone without a trace nobody can say why.
            let death = Some(death).filter(|_| cause != Deleted);
            for outcome in [attach.map(drop), export] {
                let error = fails(outcome, ErrorKind::NotFound);
                assert_eq!((error.death(), error.effect()), (death, Effect::None), "{cause:?}: {error:?}");
            }
        }
    }
    let listed: Vec<_> = within("owned", scene.provider.owned().await.unwrap().collect::<Vec<_>>()).await;
    assert_eq!(listed.len(), usize::from(cause != Deleted), "{cause:?}: {listed:?}");

    if cause.is_silent() {
        // It may come back, and then all is as it was.
        bed.api.clear_rules();
        bed.api.give_back(NAMESPACE, &name(session));
        bed.api.until_ready(NAMESPACE, &name(session)).await;
        works(&scene.sandbox).await;
    }
    within("destroy", scene.sandbox.destroy()).await.unwrap();
    if cause == Replaced {
        assert!(bed.uid(session).is_some(), "it is another's");
    }
}

#[tokio::test]
async fn every_operation_tells_the_cause() {
    side_by_side(CAUSES.map(|(cause, death)| dies_of(cause, death).boxed())).await;
}
