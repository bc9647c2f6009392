//! What happens inside a sandbox, over any byte carrier.

mod carrier;
mod command;
mod config;
mod control;
mod exec;
mod guest;
mod pool;
mod quote;
mod record;
mod scripts;
mod stream;

pub use carrier::{Carrier, CarrierStream, Closed, FarEnds};
pub use config::GuestConfig;
pub use guest::Guest;
