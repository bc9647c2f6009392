//! Smoke.
