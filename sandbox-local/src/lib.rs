//! Sandboxes on this machine: Linux namespaces, nothing to install
