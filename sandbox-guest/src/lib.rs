//! What happens inside a sandbox, over any byte carrier.

mod carrier;
mod clock;
mod command;
mod config;
mod control;
mod exec;
mod guest;
mod pool;
mod quote;
mod record;
mod running;
mod scripts;
mod spawn;
mod stream;

pub use carrier::{Carrier, CarrierStream, Closed, FarEnds};
pub use config::GuestConfig;
pub use guest::Guest;
