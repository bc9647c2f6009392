//! The isolation half on the stateful fake.

mod fake;

fn main() -> std::process::ExitCode {
    conformance::main(fake::setup())
}
