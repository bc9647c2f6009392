//! Real Kubernetes and real systemd hosts for the tests.
fn main() {}
