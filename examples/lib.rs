//! One idea per file; run one with `cargo run --example NAME`.
