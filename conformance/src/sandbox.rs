//! The suite for a [`Provider`](sandbox::Provider).

mod bed;
mod cases;
mod containment;
mod faulty;
mod gate;
pub mod mutants;
mod setup;
mod subject;
mod tar;
mod traces;
mod up;

pub use bed::Bed;
pub use cases::{Unseen, cases, unseen};
pub use faulty::{Faults, faulty};
pub use gate::GateFixture;
pub use setup::{NoBackend, Setup};
pub use subject::Subject;
pub use traces::traces_of;

/// A case of this half of the suite.
pub type Case = crate::Case<Setup>;
