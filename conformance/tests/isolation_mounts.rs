//! Read-only grants on real mounts: the stateful fake has only links, so here it gets mounts, and their case is seen to fail.
#![allow(clippy::unwrap_used)]

mod fake;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use conformance::isolation::Setup;
use conformance::isolation::mutants::hooks::{self, Hooks};
use conformance::isolation::mutants::mutants;
use conformance::{Factory, Options, Probe, Verdict};
use isolation::{Error, ErrorKind, Grant, GrantKind, NodeRoot};

const CASE: &str = "grants::read_only";

fn run(program: &str, args: &[&str], target: &Path) -> bool {
    Command::new(program).args(args).arg(target).output().is_ok_and(|output| output.status.success())
}

/// Whether this test may mount.
fn can_mount() -> bool {
    let dir = tempfile::tempdir().unwrap();
    run("mount", &["-t", "tmpfs", "tmpfs"], dir.path()) && run("umount", &[], dir.path())
}

/// What is mounted, until it is dropped.
#[derive(Debug, Default)]
struct Bound(Mutex<Vec<PathBuf>>);

impl Bound {
    fn bind(&self, root: &dyn NodeRoot, grant: &Grant) -> Option<()> {
        let (source, target) = (grant.source()?.as_path().to_path_buf(), root.path(&grant.target()?));
        std::fs::remove_file(&target).ok()?;
        std::fs::create_dir(&target).ok()?;
        let bound = run("mount", &["--bind", source.to_str()?], &target);
        bound.then(|| self.0.lock().unwrap().push(target.clone()))?;
        (!grant.is_read_only() || run("mount", &["-o", "remount,bind,ro"], &target)).then_some(())
    }

    fn unbind(&self) {
        for target in self.0.lock().unwrap().drain(..) {
            run("umount", &[], &target);
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.unbind();
    }
}

/// The fake, with its mounts bound in place of its links.
fn mounting() -> Hooks {
    let bound = Arc::new(Bound::default());
    let unbound = Arc::clone(&bound);
    Hooks::new()
        .prepare(move |inner, ctx, spec| {
            let bound = Arc::clone(&bound);
            async move {
                let (root, report) = inner.backend().prepare(&ctx, &spec).await?;
                for grant in spec.grants.iter().filter(|grant| grant.kind() == GrantKind::Mount) {
                    bound.bind(&root, grant).ok_or_else(|| Error::new(ErrorKind::Command, "mount"))?;
                }
                Ok((root, report))
            }
        })
        .destroy(move |inner, ctx, slot| {
            unbound.unbind();
            async move { inner.backend().destroy(&ctx, &slot).await }
        })
        .caps(|caps| caps.mounts_read_only = can_mount())
}

#[tokio::test]
async fn links_do_not_claim_to_be_read_only() {
    let Probe::Ready { claims, .. } = fake::setup().probe().await else { panic!("no backend") };
    assert!(!claims.mounts_read_only);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_that_can_be_written_to_is_seen() {
    let setup = Setup::new("mounts", || async { Ok(hooks::wrap(fake::harness(), Arc::new(mounting()))) });
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
