//! The whole suite on the embedded backend.
//!
//! `cfg`: the backend exists on Linux alone, since it stands on its namespaces.
#![cfg_attr(not(target_os = "linux"), allow(unused))]

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use std::sync::Arc;

    use conformance::sandbox::{Setup, traces_of};
    use sandbox::Provider;
    use sandbox_local::{LocalConfig, LocalProvider};

    let directory = tempfile::tempdir().expect("a directory for the sandboxes");
    let state = directory.path().join("state");
    let config = LocalConfig::default().with_state_dir(&state);
    conformance::main(
        Setup::new("local", move || {
            let provider = LocalProvider::new(config.clone());
            async move { Ok(Arc::new(provider?) as Arc<dyn Provider>) }
        })
        .with_facts(facts::of_this_machine)
        .with_killer(|session| async move { first::kill(session.as_str()) })
        .with_leak_check(move |session| {
            let place = state.join(session.as_str());
            let mut left = traces_of(&place);
            left.extend(leaks::put_away(&state, session.as_str()));
            async move { left }
        }),
    )
}

#[cfg(target_os = "linux")]
mod first {
    use std::fs;

    use rustix::process::{Pid, Signal, kill_process};

    /// Kills the first process of a session's sandbox: one that is the first of its namespace, and has that session's files.
    pub(super) fn kill(session: &str) -> Result<(), String> {
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let process = entry.path();
            let status = fs::read_to_string(process.join("status")).unwrap_or_default();
            let inside = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
            let numbers: Vec<_> = inside.split_whitespace().collect();
            let mounts = || fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
            if numbers.len() > 1 && numbers.last() == Some(&"1") && mounts().contains(session) {
                let pid = numbers[0].parse().ok().and_then(Pid::from_raw).ok_or("a number that is none")?;
                return kill_process(pid, Signal::KILL).map_err(|e| e.to_string());
            }
        }
        Err(format!("{session} has no first process"))
    }
}

#[cfg(target_os = "linux")]
mod facts {
    use std::collections::BTreeMap;
    use std::path::Path;

    /// What a backend of namespaces stands on.
    pub(super) async fn of_this_machine() -> BTreeMap<String, String> {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let groups = Path::new("/sys/fs/cgroup");
        let groups = match (groups.join("cgroup.controllers").exists(), groups.join("memory").exists()) {
            (true, _) => "v2",
            (false, true) => "v1",
            (false, false) => "none",
        };
        let facts = [
            ("kernel", kernel.trim().to_owned()),
            ("control groups", groups.to_owned()),
            ("user", rustix::process::geteuid().as_raw().to_string()),
            ("util-linux", first_line("unshare").await),
            ("bash", first_line("bash").await),
        ];
        facts.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// What a program says of its version.
    async fn first_line(program: &str) -> String {
        match tokio::process::Command::new(program).arg("--version").output().await {
            Ok(said) => String::from_utf8_lossy(&said.stdout).lines().next().unwrap_or_default().to_owned(),
            Err(e) => format!("not told: {e}"),
        }
    }
}

#[cfg(target_os = "linux")]
mod leaks {
    use std::fs;
    use std::path::Path;

    /// What was put out of the way to be removed, and is still there.
    pub(super) fn put_away(state: &Path, session: &str) -> Vec<String> {
        let all = fs::read_dir(state.join(".trash")).into_iter().flatten().flatten();
        let names = all.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| name.starts_with(&format!("{session}.")))
            .map(|name| format!("{name} is put away"))
            .collect()
    }
}
