//! Variables that have the names of the scripts' own: they reach each command as they are, and do nothing to the scripts.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::BTreeSet;

use common::Bare;
use common::exec::run_request;
use common::files::{filler, read, write};
use sandbox::{Env, ExecRequest};

const SCRIPTS: [&str; 6] = [
    include_str!("../src/scripts/agent.bash"),
    include_str!("../src/scripts/bulk.bash"),
    include_str!("../src/scripts/control.bash"),
    include_str!("../src/scripts/export.bash"),
    include_str!("../src/scripts/files.bash"),
    include_str!("../src/scripts/write.bash"),
];

/// Every word that could be a variable of the scripts, and that a caller may set; of their own kind what follows the prefix.
fn names() -> BTreeSet<&'static str> {
    let words = SCRIPTS.iter().flat_map(|script| script.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let names = words.map(|word| word.strip_prefix("__sbx_").unwrap_or(word));
    names.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase())).collect()
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum From {
    /// The image, or the Pod: the shells have them by themselves.
    Shell,
    Sandbox,
    Call,
}

#[tokio::test]
async fn no_name_of_a_variable_means_anything_to_the_scripts() {
    let names = names();
    assert!(["begin", "end", "marker", "kind", "ready", "code", "path"].iter().all(|name| names.contains(name)));
    for from in [From::Shell, From::Sandbox, From::Call] {
        let dir = tempfile::tempdir().unwrap();
        let planted = dir.path().join("planted");
        // What arithmetic would run, were it ever to look at it.
        let value = format!("x[$(touch {})]", planted.display());
        let vars: Env = names
            .iter()
            .map(|name| (*name, value.clone()))
            .try_fold(Env::new(), |mut all, (name, value)| all.set(name, value).map(|()| all))
            .unwrap();
        let leaked: &'static str = Box::leak(value.clone().into_boxed_str());
        let mut bare = Bare::default();
        if from == From::Shell {
            bare.env = names.iter().map(|name| (*name, leaked)).collect();
        }
        let (guest, _) = bare.guest_with(dir.path(), |mut config| {
            if from == From::Sandbox {
                config.env = vars.clone();
            }
            config
        });
        // Also what comes with file operations stays out of a later command's way, and the other way round.
        for round in 0..2 {
            for (kind, request) in [
                ("args", ExecRequest::args(["/usr/bin/env", "-0"])),
                ("shell", ExecRequest::shell("exec /usr/bin/env -0")),
                ("long", ExecRequest::shell(format!("exec /usr/bin/env -0 {}", " ".repeat(140_000)))),
            ] {
                let request = if from == From::Call { request.with_env(vars.clone()) } else { request };
                let result = run_request(&guest, request).await;
                assert_eq!(
                    (result.exit_code, result.timed_out),
                    (0, false),
                    "{from:?} {kind}: {}",
                    result.stderr.to_string_lossy()
                );
                let told = result.stdout.to_string_lossy().into_owned();
                let told: BTreeSet<&str> = told.split('\0').collect();
                for name in &names {
                    assert!(told.contains(&*format!("{name}={value}")), "{from:?} {kind}: {name} in {told:?}");
                }
            }
            for size in [10, 5000, 100_000] {
                let (path, content) = (dir.path().join("new").join(format!("{round}{size}")), filler(size));
                write(&guest, &path, &content).await.unwrap();
                assert!(read(&guest, &path).await.unwrap() == content, "{from:?} {size}");
            }
        }
        assert!(!planted.exists(), "{from:?}: a value was evaluated");
    }
}
