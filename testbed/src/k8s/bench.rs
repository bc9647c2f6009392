//! The peers' side.
