//! The whole suite on the small honest provider.

mod plain;

use conformance::sandbox::Setup;

fn main() -> std::process::ExitCode {
    let world = plain::World::new();
    conformance::main(Setup::new("plain", move || {
        let provider = world.provider();
        async move { Ok(provider) }
    }))
}
