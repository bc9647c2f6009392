//! Read-only grants on real mounts: the stateful fake has only links, so here it gets mounts, and their case is seen to fail.
#![allow(clippy::unwrap_used)]

mod fake;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use conformance::isolation::mutants::mutants;
use conformance::isolation::{Caps, Fault, Footprint, Harness, Setup};
use conformance::{Factory, Options, Probe, Verdict};
use isolation::{
    Backend, Error, ErrorKind, ExecOutput, ExecSpec, ExecStream, Grant, GrantKind, LogOptions, LogStream, Mode,
    NodeRoot, NodeSpec, OpCtx, PrepareReport, Requirements, Result, SlotName, SlotPair, SlotRef, Status, async_trait,
};

const CASE: &str = "grants::read_only";

fn run(program: &str, args: &[&str], target: &Path) -> bool {
    Command::new(program).args(args).arg(target).output().is_ok_and(|output| output.status.success())
}

/// Whether this test may mount.
fn can_mount() -> bool {
    let dir = tempfile::tempdir().unwrap();
    run("mount", &["-t", "tmpfs", "tmpfs"], dir.path()) && run("umount", &[], dir.path())
}

/// The fake, with its mounts bound in place of its links.
#[derive(Debug)]
struct Mounting {
    inner: Arc<dyn Backend>,
    bound: Mutex<Vec<PathBuf>>,
}

impl Mounting {
    fn bind(&self, root: &dyn NodeRoot, grant: &Grant) -> Option<()> {
        let (source, target) = (grant.source()?.as_path().to_path_buf(), root.path(&grant.target()?));
        std::fs::remove_file(&target).ok()?;
        std::fs::create_dir(&target).ok()?;
        let bound = run("mount", &["--bind", source.to_str()?], &target);
        bound.then(|| self.bound.lock().unwrap().push(target.clone()))?;
        (!grant.is_read_only() || run("mount", &["-o", "remount,bind,ro"], &target)).then_some(())
    }

    fn unbind(&self) {
        for target in self.bound.lock().unwrap().drain(..) {
            run("umount", &[], &target);
        }
    }
}

impl Drop for Mounting {
    fn drop(&mut self) {
        self.unbind();
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Mounting {
    fn mode(&self) -> Mode {
        self.inner.mode()
    }

    fn requirements(&self) -> Requirements {
        self.inner.requirements()
    }

    async fn prepare(&self, ctx: &OpCtx, spec: &NodeSpec) -> Result<(Arc<dyn NodeRoot>, PrepareReport)> {
        let (root, report) = self.inner.prepare(ctx, spec).await?;
        for grant in spec.grants.iter().filter(|grant| grant.kind() == GrantKind::Mount) {
            self.bind(&root, grant).ok_or_else(|| Error::new(ErrorKind::Command, "mount"))?;
        }
        Ok((root, report))
    }

    async fn start(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        self.inner.start(ctx, slot).await
    }

    async fn stop(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        self.inner.stop(ctx, slot).await
    }

    async fn restart(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        self.inner.restart(ctx, slot).await
    }

    async fn destroy(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        self.unbind();
        self.inner.destroy(ctx, slot).await
    }

    async fn status(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<Status> {
        self.inner.status(ctx, slot).await
    }

    async fn exec(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecOutput> {
        self.inner.exec(ctx, slot, spec).await
    }

    async fn exec_stream(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecStream> {
        self.inner.exec_stream(ctx, slot, spec).await
    }

    async fn logs(&self, ctx: &OpCtx, slot: &dyn SlotRef, options: &LogOptions) -> Result<LogStream> {
        self.inner.logs(ctx, slot, options).await
    }
}

struct Mounted {
    inner: Arc<dyn Harness>,
    backend: Arc<Mounting>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Harness for Mounted {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::<Mounting>::clone(&self.backend)
    }

    fn mode(&self) -> Mode {
        self.inner.mode()
    }

    fn caps(&self) -> Caps {
        let mut caps = self.inner.caps();
        caps.mounts_read_only = can_mount();
        caps
    }

    fn pair(&self) -> SlotPair {
        self.inner.pair()
    }

    fn spec(&self, slot: &SlotName) -> NodeSpec {
        self.inner.spec(slot)
    }

    async fn footprint(&self) -> Footprint {
        self.inner.footprint().await
    }

    async fn rendered(&self, slot: &SlotName) -> String {
        self.inner.rendered(slot).await
    }

    async fn emit_log(&self, slot: &SlotName, unit: &str, line: &str) {
        self.inner.emit_log(slot, unit, line).await;
    }

    fn executed(&self) -> Vec<String> {
        self.inner.executed()
    }

    async fn inject(&self, fault: Fault<'_>) -> Option<Box<dyn Any + Send>> {
        self.inner.inject(fault).await
    }
}

#[tokio::test]
async fn links_do_not_claim_to_be_read_only() {
    let Probe::Ready { claims, .. } = fake::setup().probe().await else { panic!("no backend") };
    assert!(!claims.mounts_read_only);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_that_can_be_written_to_is_seen() {
    let setup = Setup::new("mounts", || async {
        let inner = fake::harness();
        let backend = Arc::new(Mounting { inner: inner.backend(), bound: Mutex::default() });
        Ok(Arc::new(Mounted { inner, backend }) as Arc<dyn Harness>)
    });
    let mut options = Options::default();
    options.only = vec![CASE.to_owned()];
    let report = conformance::run(setup.clone(), options).await;
    let honest: Vec<_> = report.cases.iter().filter(|case| case.id == CASE).map(|case| &case.verdict).collect();
    let breakers: Vec<_> = mutants().into_iter().filter(|mutant| mutant.cases.contains(&CASE)).collect();
    assert!(!breakers.is_empty());
    for mutant in breakers {
        let survivors = mutant.survivors(&setup).await;
        // Without the privilege to mount both say so, and nobody has seen the case fail here.
        match can_mount() {
            true => {
                assert!(matches!(honest[..], [Verdict::Passed]), "{honest:?}");
                assert!(survivors.is_empty(), "\"{}\" got past: {survivors:?}", mutant.name);
            }
            false => assert!(matches!(honest[..], [Verdict::NotApplicable(_)]), "{honest:?}"),
        }
    }
}
