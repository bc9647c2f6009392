//! The whole suite on a Kubernetes cluster: the one of the context that `CONFORMANCE_K8S` names, and no other.
//!
//! `CONFORMANCE_K8S_NAMESPACE` is where (`default` unless the context says otherwise), `CONFORMANCE_K8S_IMAGE` what sandboxes are made
//! from, `CONFORMANCE_K8S_NET_SETUP_IMAGE` the image that cuts the network off.

mod cluster;

fn main() -> std::process::ExitCode {
    conformance::main(cluster::setup())
}
