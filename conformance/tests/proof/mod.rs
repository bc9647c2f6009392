//! Where cases are seen to fail that apply to nothing the mutants run on by default.

#![allow(dead_code, reason = "not every test asks for everything")]

use std::sync::Arc;
use std::time::Duration;

use conformance::sandbox::mutants::{Mutant, mutants};
use conformance::sandbox::{Case, Setup, cases};
use conformance::{Factory, Failure, Outcome, Probe};
use sandbox::{Capabilities, async_trait};

/// On the embedded backend, by the test `mutants_local`, where its claims are there.
pub(crate) const ON_LOCAL: &[&str] = &[
    "hardening::cpu",
    "hardening::memory",
    "hardening::pids",
    "hardening::user_and_files",
    "hardening::user_and_group",
    "hardening::user_and_read_only_root",
];

/// On a cluster, by the test `mutants_k8s`: the embedded backend does not bound the disk, and its commands have no capability to drop.
pub(crate) const ON_K8S: &[&str] = &["hardening::disk", "hardening::dropped_chown"];

/// A suite about cases of the suite: `only` these, each of which must notice the mutants that name it.
pub(crate) struct Proof {
    pub(crate) setup: Setup,
    pub(crate) only: &'static [&'static str],
    /// What else is to be proved there.
    pub(crate) more: Vec<conformance::Case<Self>>,
}

impl Proof {
    fn of(&self, case: &Case, mutant: Mutant) -> conformance::Case<Self> {
        let (setup, mutant, id) = (self.setup.clone(), Arc::new(mutant), case.id);
        let name = format!("{id} notices: {}", mutant.name).leak();
        let body = move |_| {
            let (setup, mutant) = (setup.clone(), Arc::clone(&mutant));
            async move {
                let survived = mutant.survivors(&setup).await.into_iter().find(|(of, _)| *of == id);
                survived.map_or(Ok(()), |(_, verdict)| {
                    Err(Failure::new(mutant.name, "that the case fails", format!("{verdict:?}")))
                })
            }
        };
        let mut proof = conformance::Case::new(name, case.rule, body).profile(case.profile);
        // A mutant has a few cases, all of which run.
        proof = proof.deadline(4 * case.deadline + Duration::from_secs(60));
        proof.needs = case.needs.clone();
        proof
    }
}

#[async_trait]
impl Factory for Proof {
    type Context = ();
    type Claims = Capabilities;

    fn name(&self) -> &str {
        self.setup.name()
    }

    fn cases(&self) -> Vec<conformance::Case<Self>> {
        let chosen = cases().into_iter().filter(|case| self.only.contains(&case.id));
        let proofs = chosen.flat_map(|case| {
            let named = mutants().into_iter().filter(move |mutant| mutant.cases.contains(&case.id));
            named.map(|mutant| self.of(&case, mutant)).collect::<Vec<_>>()
        });
        proofs.chain(self.more.clone()).collect()
    }

    async fn probe(&self) -> Probe<Capabilities> {
        self.setup.probe().await
    }

    async fn open(&self, _: &'static str) -> Outcome {
        Ok(())
    }

    fn trail(&self, (): &()) -> String {
        String::new()
    }

    async fn close(&self, (): &()) -> Outcome {
        Ok(())
    }
}
