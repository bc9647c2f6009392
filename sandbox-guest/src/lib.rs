//! What happens inside a sandbox, over any byte carrier
