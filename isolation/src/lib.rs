//! Where a Kubernetes node stack lives on a host: the contract
