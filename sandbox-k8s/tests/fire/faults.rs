//! Every operation while a part of the cluster fails, all of them under one fault: those that it meets half-way, and those that begin
//! under it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::DeleteParams;
use libtest_mimic::Trial;
use sandbox::{
    Death, Effect, Error, ErrorKind, ExecRequest, FileBatch, FileWrite, Provider, Sandbox, SandboxExt, SandboxPath,
    SpawnRequest, Spec,
};
use sandbox_k8s::K8sProvider;

use crate::bed::{Bed, equal, fails, holds, says};
use crate::levers::Fault;
use crate::look::{no_remains, owned_is_true, reap_owned, tree, until, works};
use crate::numbers;
use crate::scene::{self, EXEC, Half, Running, SLACK, TRANSFER, run, typed};
use crate::{Any, Outcome, lever_trial, trial};

/// How soon what is to be met half-way is under way.
const SOON: Duration = Duration::from_secs(30);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        lever_trial("faults::api_server_restarted", |bed| under(bed, Fault::ApiServer, Duration::ZERO)),
        lever_trial("faults::etcd_paused", |bed| under(bed, Fault::Etcd, Duration::from_secs(6))),
        lever_trial("faults::kubelet_restarted", |bed| under(bed, Fault::Kubelet, Duration::from_secs(2))),
        lever_trial("faults::node_cut", |bed| under(bed, Fault::Node, Duration::from_secs(6))),
        lever_trial("faults::node_lost", node_lost),
        trial("faults::pods_deleted", pods_deleted),
    ]
}

/// The sandboxes of one fault.
struct Scene {
    bed: Bed,
    provider: K8sProvider,
    /// Who knows nothing of what the first one saw.
    other: K8sProvider,
    /// In which files are written and commands run.
    work: Spec,
    sandbox: Arc<dyn Sandbox>,
    /// To be made half-way when it happens, and begun after.
    made: [Spec; 2],
    /// The same for what is removed.
    reaped: [Spec; 2],
}

/// What is half-way.
struct Early {
    exec: Running<sandbox::ExecResult>,
    write: Running<()>,
    bulk: Running<()>,
    export: Running<Vec<u8>>,
    provision: Running<Arc<dyn Sandbox>>,
    reap: Running<()>,
    halves: scene::Halves,
}

impl Scene {
    async fn new(bed: Bed) -> Result<Self, Any> {
        let (provider, other) = (bed.provider()?, bed.apart().await?);
        let (work, made, reaped) = (bed.spec(), [bed.spec(), bed.spec()], [bed.spec(), bed.spec()]);
        let (sandbox, _, _) = tokio::try_join!(
            provider.provision(&work),
            provider.provision(&reaped[0]),
            provider.provision(&reaped[1]),
        )?;
        scene::plant(&sandbox).await?;
        Ok(Self { bed, provider, other, work, sandbox, made, reaped })
    }

    fn provision(&self, what: &'static str, spec: &Spec) -> Running<Arc<dyn Sandbox>> {
        let config = &self.bed.config;
        let (provider, spec) = (self.provider.clone(), spec.clone());
        let most = config.ready_timeout + config.stop_timeout + SLACK;
        run(what, most, async move { provider.provision(&spec).await })
    }

    fn reap(&self, what: &'static str, spec: &Spec) -> Running<()> {
        let (provider, session) = (self.provider.clone(), spec.session.clone());
        run(what, self.bed.config.stop_timeout + SLACK, async move { provider.reap(&session).await })
    }

    fn exec(&self, what: &'static str, work: &'static str) -> Running<sandbox::ExecResult> {
        run(what, EXEC, scene::exec(Arc::clone(&self.sandbox), what, work))
    }

    /// Begins all of them, and waits until each is in the middle.
    async fn early(&self) -> Result<Early, Any> {
        let (half, mut halves) = Half::new();
        let sandbox = || Arc::clone(&self.sandbox);
        let write = run("write", TRANSFER, scene::write(sandbox(), half.clone()));
        let bulk = run("bulk", TRANSFER, scene::bulk(sandbox(), half.clone()));
        let export = scene::export(self.provider.clone(), self.work.session.clone(), half);
        let export = run("export", TRANSFER, export);
        halves.arrived(vec!["write", "bulk", "export"]).await?;
        let exec = self.exec("exec", "sleep 4");
        let begun = async || Ok(says(&self.sandbox, "cat exec 2>/dev/null").await? == "x");
        until("the command begins", SOON, begun).await?;
        let ([made, _], [reaped, _]) = (&self.made, &self.reaped);
        let (provision, reap) = (self.provision("provision", made), self.reap("reap", reaped));
        let is_there = async || Ok(self.bed.uid(&made.session).await?.is_some());
        until("a Pod is being made", SOON, is_there).await?;
        let goes = async || {
            let pod = self.bed.pods.get_opt(&reaped.session.object_name("sbx")).await?;
            Ok(pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()))
        };
        until("a Pod is being removed", SOON, goes).await?;
        Ok(Early { exec, write, bulk, export, provision, reap, halves })
    }

    async fn times(&self, sandbox: &Arc<dyn Sandbox>, name: &str) -> Result<usize, Any> {
        Ok(says(sandbox, &format!("cat {name} 2>/dev/null | wc -l")).await?.parse()?)
    }

    /// A provision that ended: its word is true, and the session can be used.
    async fn check_provision(&self, what: &str, spec: &Spec, outcome: Result<Arc<dyn Sandbox>, Error>) -> Outcome {
        let uid = self.bed.uid(&spec.session).await?;
        match &outcome {
            Ok(sandbox) => {
                holds(&format!("{what}: there is a Pod"), uid.is_some(), &uid)?;
                works(what, sandbox).await?;
            }
            Err(error) => {
                typed(what, error, true)?;
                let known = matches!(error.effect(), Effect::None | Effect::Unknown);
                holds(
                    &format!("{what}: its effect"),
                    known && (error.effect() != Effect::None || uid.is_none()),
                    error,
                )?;
            }
        }
        works(&format!("{what}, again"), &self.provider.provision(spec).await?).await?;
        if outcome.is_ok() {
            equal(&format!("{what}: still the same"), self.bed.uid(&spec.session).await?, uid)?;
        }
        Ok(())
    }

    /// A reap that ended: its word is true, and it can be repeated.
    async fn check_reap(&self, what: &str, spec: &Spec, outcome: Result<(), Error>) -> Outcome {
        if let Err(error) = outcome {
            typed(what, &error, true)?;
            equal(&format!("{what}: its effect"), error.effect(), Effect::Unknown)?;
            self.other.reap(&spec.session).await?;
        }
        equal(&format!("{what}: it is gone"), self.bed.uid(&spec.session).await?, None)
    }

    /// Whatever happened: what is owned is what there is, and it can be removed.
    async fn end(&self) -> Outcome {
        owned_is_true(&self.bed, &self.provider).await?;
        reap_owned(&self.bed, &self.other).await
    }
}

/// All operations under a fault that every sandbox survives.
async fn under(bed: Bed, fault: Fault, lasts: Duration) -> Outcome {
    let scene = Scene::new(bed).await?;
    let uid = scene.bed.uid(&scene.work.session).await?;
    let early = scene.early().await?;

    let begun = Instant::now();
    let broken = fault.begin().await?;
    early.halves.go_on();
    let late = scene.exec("late", "true");
    let (provision, reap) =
        (scene.provision("late provision", &scene.made[1]), scene.reap("late reap", &scene.reaped[1]));
    tokio::time::sleep(numbers::lasts(lasts)).await;
    broken.mend().await?;
    eprintln!("  {fault:?}: broken for {:.1?}", begun.elapsed());

    let (exec, late) = (early.exec.ended().await?, late.ended().await?);
    let (write, bulk, export) = (early.write.ended().await?, early.bulk.ended().await?, early.export.ended().await?);
    let (early_made, late_made) = (early.provision.ended().await?, provision.ended().await?);
    let (early_reap, late_reap) = (early.reap.ended().await?, reap.ended().await?);

    // The old handle goes on, and a new one in another process is the same sandbox.
    works("the handle", &scene.sandbox).await?;
    let (work, session) = (&scene.work, &scene.work.session);
    let again = scene.other.provision(work).await?;
    equal("the sandbox", scene.bed.uid(session).await?, uid)?;
    equal("nothing was lost", again.recreated().cloned(), None)?;
    scene::check_exec("exec", &exec, scene.times(&again, "exec").await?, true)?;
    scene::check_exec("late exec", &late, scene.times(&again, "late").await?, false)?;
    no_remains(&again).await?;
    scene::check_write(&write, &again.read_bytes(&SandboxPath::new(scene::FILE)?, 16 << 20).await?)?;
    scene::check_bulk(&bulk, &tree(&scene.other, session, scene::BULK).await?)?;
    scene::check_export(&export)?;
    scene.check_provision("provision", &scene.made[0], early_made).await?;
    scene.check_provision("late provision", &scene.made[1], late_made).await?;
    scene.check_reap("reap", &scene.reaped[0], early_reap).await?;
    scene.check_reap("late reap", &scene.reaped[1], late_reap).await?;
    scene.end().await
}

/// How soon a control plane says that it does not hear from a node: after 20 seconds on the test bed.
const UNHEARD_OF: Duration = Duration::from_secs(90);

/// All operations on a sandbox whose node is gone for so long that the control plane says so, and comes back.
async fn node_lost(bed: Bed) -> Outcome {
    let (provider, other, spec) = (bed.provider()?, bed.apart().await?, bed.spec());
    let sandbox = provider.provision(&spec).await?;
    says(&sandbox, "echo x > /workspace/f").await?;
    let uid = bed.uid(&spec.session).await?;
    let held = Arc::clone(&sandbox);
    let running = run("exec", UNHEARD_OF + EXEC, async move { held.exec(ExecRequest::shell("sleep 600")).await });
    let broken = Fault::Node.begin().await?;
    let is_told = async || {
        let error = fails("attach", other.attach(&spec.session).await.map(drop)).ok();
        Ok(error.is_some_and(|error| error.death() == Some(Death::NodeLost)))
    };
    until("the node is told as lost", UNHEARD_OF, is_told).await?;
    let file = || SandboxPath::new("/workspace/f");
    let write = || file().map(|path| FileWrite::bytes(path, "y"));
    let errors = [
        ("half-way", fails("half-way", running.ended().await?)?),
        ("exec", fails("exec", says(&sandbox, "true").await)?),
        ("spawn", fails("spawn", sandbox.spawn(SpawnRequest::shell("true")).await.map(drop))?),
        ("read", fails("read", sandbox.read(&file()?, 10).await.map(drop))?),
        ("write", fails("write", sandbox.write(write()?).await)?),
        ("bulk", fails("bulk", sandbox.write_many(FileBatch::new([write()?])).await)?),
        ("export", fails("export", provider.export(&spec.session, &file()?).await.map(drop))?),
    ];
    for (what, error) in errors {
        let got = (error.kind(), error.death());
        equal(&format!("{what}: {error:?}"), got, (ErrorKind::NotFound, Some(Death::NodeLost)))?;
    }
    // It may run, so nobody removes it and nobody makes another.
    let hasty = bed.provider_with(|config| config.ready_timeout = Duration::from_secs(3))?;
    let error = fails("provision", hasty.provision(&spec).await)?;
    equal(&format!("{error:?}"), (error.kind(), error.effect()), (ErrorKind::DeadlineExceeded, Effect::None))?;
    broken.mend().await?;
    // It did, and all is as it was.
    let again = other.provision(&spec).await?;
    equal("the sandbox", (bed.uid(&spec.session).await?, again.recreated().cloned()), (uid, None))?;
    equal("the old handle", says(&sandbox, "cat /workspace/f").await?, "x".to_owned())?;
    other.reap(&spec.session).await?;
    Ok(())
}

/// All operations on sandboxes whose Pods are deleted under them.
async fn pods_deleted(bed: Bed) -> Outcome {
    let scene = Scene::new(bed).await?;
    let uid = scene.bed.uid(&scene.work.session).await?;
    let early = scene.early().await?;
    for spec in [&scene.work, &scene.made[0], &scene.reaped[0]] {
        let now = DeleteParams::default().grace_period(0);
        match scene.bed.pods.delete(&spec.session.object_name("sbx"), &now).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => drop(other?),
        }
    }
    let begun = Instant::now();
    let exec = fails("exec", early.exec.ended().await?)?;
    // A Pod that was deleted lives on for a moment, in which the others might end well.
    early.halves.go_on();
    let late = scene.exec("late", "true");
    let errors = [
        ("exec", exec, Some(Effect::Unknown)),
        ("late exec", fails("late exec", late.ended().await?)?, None),
        ("write", fails("write", early.write.ended().await?)?, Some(Effect::None)),
        ("bulk", fails("bulk", early.bulk.ended().await?)?, None),
        ("export", fails("export", early.export.ended().await?)?, Some(Effect::None)),
    ];
    // A connection into a Pod that is gone can stay open in silence.
    holds("they end soon", begun.elapsed() < Duration::from_secs(10) + SLACK, begun.elapsed())?;
    for (what, error, effect) in errors {
        typed(what, &error, false)?;
        equal(&format!("{what}: {error:?}"), error.death(), Some(Death::Deleted))?;
        holds(&format!("{what}: its effect"), effect.is_none_or(|effect| effect == error.effect()), &error)?;
    }
    let (made, reaped) = (early.provision.ended().await?, early.reap.ended().await?);
    scene.check_provision("provision", &scene.made[0], made).await?;
    scene.check_reap("reap", &scene.reaped[0], reaped).await?;

    // The old handle is nobody's any more; the session has another sandbox, which is empty.
    equal("the old handle", fails("exec", says(&scene.sandbox, "true").await)?.kind(), ErrorKind::NotFound)?;
    let again = scene.provider.provision(&scene.work).await?;
    let next = scene.bed.uid(&scene.work.session).await?;
    holds("another Pod", next.is_some() && next != uid, &next)?;
    equal("its files", says(&again, "ls -A /workspace").await?, String::new())?;
    scene.end().await
}
