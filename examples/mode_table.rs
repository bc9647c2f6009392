//! Shows how a program says which modes it can operate: a mode it knows, one it must be asked for, one it lacks, one nobody knows.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::sync::Arc;

use isolation::fake::FakeBackend;
use isolation::{Backend, Mode, ModeEntry, ModeTable};

/// How this program operates a mode. Yours may hold more: how the node is bootstrapped, who operates it.
type Make = fn() -> Arc<dyn Backend>;

/// Adding a mode is one entry; there is nothing to register anywhere else.
fn table() -> ModeTable<Make> {
    let nspawn: Make = || Arc::new(FakeBackend::new());
    let container: Make = || Arc::new(FakeBackend::new().with_mode(Mode::Container));
    ModeTable::new()
        .with(ModeEntry::new(Mode::Nspawn, nspawn))
        .with(ModeEntry::new(Mode::Container, container).opt_in())
}

fn choose(configured: &str, opted_in: &[Mode]) -> Result<Arc<dyn Backend>, isolation::Error> {
    let mode: Mode = configured.parse()?;
    Ok(table().get(mode, opted_in)?())
}

fn main() {
    let tries: [(&str, &[Mode]); 6] = [
        ("", &[]),
        ("nspawn", &[]),
        ("container", &[]),
        ("container", &[Mode::Container]),
        ("none", &[]),
        ("Nspawn", &[]),
    ];
    for (configured, opted_in) in tries {
        match choose(configured, opted_in) {
            Ok(backend) => println!("{configured:12?} -> {}", backend.mode()),
            Err(error) => println!("{configured:12?} -> {error}"),
        }
    }
}
