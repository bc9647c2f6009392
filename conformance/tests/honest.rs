//! The whole suite on the small honest provider.

mod plain;

use std::sync::Arc;

use conformance::sandbox::Setup;

fn main() -> std::process::ExitCode {
    let world = plain::World::new();
    let (place, gate) = (Arc::clone(&world), world.gate());
    let setup = Setup::new("plain", move || {
        let provider = world.provider();
        async move { Ok(provider) }
    });
    conformance::main(setup.with_gate(gate).with_leak_check(move |session| {
        let left = place.left(&session);
        async move { left }
    }))
}
