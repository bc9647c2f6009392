//! One disposable sandbox per session: the contract every backend keeps
