//! The cases that apply to no provider of these tests but the embedded backend: each mutant that names one dies by it there.
//!
//! A case that needs a claim which the backend does not make here, such as bounds without control groups, is listed and ignored, and
//! says so.
//!
//! `cfg`: the backend exists on Linux alone.
#![cfg_attr(not(target_os = "linux"), allow(unused))]

mod proof;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use std::sync::Arc;

    use conformance::sandbox::mutants::mutants;
    use conformance::sandbox::{NoBackend, Setup, cases};
    use conformance::{Factory, Probe};
    use libtest_mimic::{Arguments, Failed, Trial};
    use sandbox::Provider;
    use sandbox_local::{LocalConfig, LocalProvider};

    let directory = tempfile::tempdir().expect("a directory for the sandboxes");
    let config = LocalConfig::default().with_state_dir(directory.path().join("state"));
    let setup = Setup::new("local", move || {
        let provider = LocalProvider::new(config.clone());
        async move { Ok::<_, NoBackend>(Arc::new(provider?) as Arc<dyn Provider>) }
    });
    let runtime = Arc::new(tokio::runtime::Runtime::new().expect("a runtime"));
    let claims = match runtime.block_on(setup.probe()) {
        Probe::Ready { claims, .. } => claims,
        Probe::Absent { reason, .. } | Probe::Broken(reason) => panic!("no backend: {reason}"),
    };
    let mut trials = Vec::new();
    for case in cases().into_iter().filter(|case| proof::ON_LOCAL.contains(&case.id)) {
        let not_applicable = case.not_applicable(&claims);
        let why = not_applicable.as_ref().map_or_else(String::new, |why| format!(" [n/a: {why}]"));
        for mutant in mutants().into_iter().filter(|mutant| mutant.cases.contains(&case.id)) {
            let (setup, runtime, id) = (setup.clone(), Arc::clone(&runtime), case.id);
            let name = format!("{id} notices: {}{why}", mutant.name);
            let trial = Trial::test(name, move || {
                let survived = runtime.block_on(mutant.survivors(&setup));
                let verdict = survived.into_iter().find(|(of, _)| *of == id);
                verdict.map_or(Ok(()), |(_, verdict)| Err(Failed::from(format!("it got past: {verdict:?}"))))
            });
            trials.push(trial.with_ignored_flag(not_applicable.is_some()));
        }
    }
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    drop(directory);
    conclusion.exit_code()
}
