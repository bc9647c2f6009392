//! The whole suite on a carrier of one's own.

use conformance::sandbox::Setup;
use custom_carrier::Carried;
use custom_provider::Cells;

fn main() -> std::process::ExitCode {
    let directory = tempfile::tempdir().expect("a directory for the cells");
    let path = directory.path().to_owned();
    conformance::main(Setup::new("carried", move || {
        let carried = Carried::over(Cells::new(path.clone()));
        async move { Ok(carried) }
    }))
}
