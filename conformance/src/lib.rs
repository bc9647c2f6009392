//! The public suite that holds a backend to the contract
