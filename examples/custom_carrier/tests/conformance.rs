//! The whole suite over a transport of one's own.

use conformance::sandbox::Setup;

fn main() -> std::process::ExitCode {
    let directory = tempfile::tempdir().expect("a directory for the cells");
    let path = directory.path().to_owned();
    let agent = std::env::var_os("CARGO_BIN_EXE_custom-carrier-agent");
    let agent = agent.unwrap_or(env!("CARGO_BIN_EXE_custom-carrier-agent").into());
    conformance::main(Setup::new("cells", move || {
        let cells = custom_carrier::cells(path.clone(), agent.clone());
        async move { Ok(cells) }
    }))
}
