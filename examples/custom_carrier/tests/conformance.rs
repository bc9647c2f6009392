//! The whole suite over a transport of one's own.

use conformance::sandbox::{Setup, traces_of};

fn main() -> std::process::ExitCode {
    let directory = tempfile::tempdir().expect("a directory for the cells");
    let (path, place) = (directory.path().to_owned(), directory.path().to_owned());
    let agent = std::env::var_os("CARGO_BIN_EXE_custom-carrier-agent");
    let agent = agent.unwrap_or(env!("CARGO_BIN_EXE_custom-carrier-agent").into());
    let setup = Setup::new("cells", move || {
        let cells = custom_carrier::cells(path.clone(), agent.clone());
        async move { Ok(cells) }
    });
    // Files of a session, its lock included, and whatever process or mount has to do with them: the agent is named by them.
    conformance::main(setup.with_leak_check(move |session| {
        let mut left = traces_of(&place.join(session.as_str()));
        left.extend(traces_of(&place.join(format!("{session}.lock"))));
        async move { left }
    }))
}
