//! What happens inside a sandbox, over any byte carrier.

mod carrier;

pub use carrier::{Carrier, CarrierStream, Closed, FarEnds};
