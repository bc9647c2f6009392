//! The whole suite on a provider of one's own.

use conformance::sandbox::Setup;

fn main() -> std::process::ExitCode {
    let directory = tempfile::tempdir().expect("a directory for the cells");
    let path = directory.path().to_owned();
    conformance::main(Setup::new("cells", move || {
        let cells = custom_provider::cells(path.clone());
        async move { Ok(cells) }
    }))
}
