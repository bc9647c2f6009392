//! File operations: requests, answers, and the bytes between them.

pub(crate) mod answer;
mod bulk;
mod read;
mod tar;
mod transfer;
mod write;

pub(crate) use bulk::write_many;
pub(crate) use read::{export, read};
pub(crate) use write::write;
