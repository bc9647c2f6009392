//! Which modes a program can operate.

use std::fmt;

use crate::{Error, ErrorKind, Mode, Reason, Result};

/// Which modes a program can operate, and how: an ordinary value, owned by the application.
///
/// There is no registry, nothing static and nothing collected at link time: what a program can do is what
/// its table says. Adding a mode is one entry. What an entry holds beside its mode is the program's own
/// type `T`: a function that makes a backend, and whatever else differs by mode.
///
/// ```
/// use std::sync::Arc;
/// use isolation::{Backend, ErrorKind, Mode, ModeEntry, ModeTable, Reason, fake::FakeBackend};
///
/// type Make = fn() -> Arc<dyn Backend>;
/// let make: Make = || Arc::new(FakeBackend::new());
/// let table = ModeTable::new()
///     .with(ModeEntry::new(Mode::Nspawn, make))
///     .with(ModeEntry::new(Mode::Container, make).opt_in());
///
/// assert!(table.get("".parse()?, &[]).is_ok());
/// let error = table.get(Mode::Container, &[]).unwrap_err();
/// assert_eq!((error.kind(), error.reason()), (ErrorKind::ModeUnavailable, Some(Reason::NeedsOptIn)));
/// assert!(table.get(Mode::Container, &[Mode::Container]).is_ok());
/// # Ok::<(), isolation::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ModeTable<T> {
    entries: Vec<ModeEntry<T>>,
}

/// How one mode is operated.
#[derive(Clone)]
pub struct ModeEntry<T> {
    mode: Mode,
    opt_in: bool,
    value: T,
}

impl<T> ModeEntry<T> {
    /// An entry that is available without more.
    pub fn new(mode: Mode, value: T) -> Self {
        Self { mode, opt_in: false, value }
    }

    /// Makes the entry available only to those who ask for it by name.
    #[must_use]
    pub fn opt_in(mut self) -> Self {
        self.opt_in = true;
        self
    }

    /// The mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether it must be asked for.
    pub fn needs_opt_in(&self) -> bool {
        self.opt_in
    }

    /// How the mode is operated.
    pub fn value(&self) -> &T {
        &self.value
    }
}

impl<T> fmt::Debug for ModeEntry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModeEntry").field("mode", &self.mode).field("opt_in", &self.opt_in).finish_non_exhaustive()
    }
}

impl<T> ModeTable<T> {
    /// A table without entries.
    pub fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Adds an entry; one of the same mode is replaced where it stands.
    #[must_use]
    pub fn with(mut self, entry: ModeEntry<T>) -> Self {
        match self.entries.iter_mut().find(|other| other.mode == entry.mode) {
            Some(other) => *other = entry,
            None => self.entries.push(entry),
        }
        self
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[ModeEntry<T>] {
        &self.entries
    }

    /// How `mode` is operated.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ModeUnavailable`], with [`Reason::NotCompiledIn`] if there is no entry, or
    /// [`Reason::NeedsOptIn`] if there is one that `opted_in` does not name.
    pub fn get(&self, mode: Mode, opted_in: &[Mode]) -> Result<&T> {
        let unavailable = |reason| {
            Err(Error::new(ErrorKind::ModeUnavailable, "choose a backend").with_mode(mode).with_reason(reason))
        };
        match self.entries.iter().find(|entry| entry.mode == mode) {
            None => unavailable(Reason::NotCompiledIn),
            Some(entry) if entry.opt_in && !opted_in.contains(&mode) => unavailable(Reason::NeedsOptIn),
            Some(entry) => Ok(&entry.value),
        }
    }
}

impl<T> Default for ModeTable<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_mode_can_still_be_unavailable() {
        let table =
            ModeTable::new().with(ModeEntry::new(Mode::Nspawn, 1)).with(ModeEntry::new(Mode::Container, 2).opt_in());
        assert_eq!(*table.get(Mode::Nspawn, &[]).unwrap(), 1);
        for (mode, reason) in [(Mode::None, Reason::NotCompiledIn), (Mode::Container, Reason::NeedsOptIn)] {
            let error = table.get(mode, &[Mode::Nspawn]).unwrap_err();
            assert_eq!(
                (error.kind(), error.mode(), error.reason()),
                (ErrorKind::ModeUnavailable, Some(mode), Some(reason))
            );
        }
        assert_eq!(*table.get(Mode::Container, &[Mode::Container]).unwrap(), 2);
        let table = table.with(ModeEntry::new(Mode::Nspawn, 3));
        assert_eq!((table.entries().len(), *table.get(Mode::Nspawn, &[]).unwrap()), (2, 3));
    }
}
