//! File operations: requests, answers, and the bytes between them.

mod answer;
mod read;
mod transfer;
mod write;

pub(crate) use read::read;
pub(crate) use write::write;
