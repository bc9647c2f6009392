//! What both directions share: bounds and progress.

use std::fmt;

use sandbox::{Error, ErrorKind};

use crate::{Bound, Exceeded};

/// How much a transfer may move. Whatever is over a bound ends it as [`LimitExceeded`](ErrorKind::LimitExceeded), and
/// [`Exceeded::of`] says which bound it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Files, directories, links and whatever is left out; 200,000 by default.
    pub entries: u64,
    /// Bytes of all files together; 8 GiB by default.
    pub bytes: u64,
    /// Bytes of one file; 4 GiB by default.
    pub file_bytes: u64,
    /// Bytes of one name with its directories; [`Limits::MAX_NAME`] by default and at most.
    pub name_bytes: usize,
    /// Directories in one another, the one at the top not counted; 64 by default, [`Limits::MAX_DEPTH`] at most.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: 200_000, bytes: 8 << 30, file_bytes: 4 << 30, name_bytes: Self::MAX_NAME, depth: 64 }
    }
}

impl Limits {
    /// The longest name, in bytes.
    pub const MAX_NAME: usize = 4095;
    /// The most directories in one another: each holds a descriptor for a while.
    pub const MAX_DEPTH: usize = 250;

    /// Sets how many entries there may be.
    #[must_use]
    pub fn with_entries(mut self, entries: u64) -> Self {
        self.entries = entries;
        self
    }

    /// Sets how many bytes there may be in all.
    #[must_use]
    pub fn with_bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets how many bytes one file may have.
    #[must_use]
    pub fn with_file_bytes(mut self, bytes: u64) -> Self {
        self.file_bytes = bytes;
        self
    }

    /// Sets how many bytes one name may have.
    #[must_use]
    pub fn with_name_bytes(mut self, bytes: usize) -> Self {
        self.name_bytes = bytes;
        self
    }

    /// Sets how deep directories may lie in one another.
    #[must_use]
    pub fn with_depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidRequest).because(what));
        if self.name_bytes > Self::MAX_NAME {
            return refuse(format!("limit name_bytes {}: it must be at most {}", self.name_bytes, Self::MAX_NAME));
        }
        if self.depth > Self::MAX_DEPTH {
            return refuse(format!("limit depth {}: it must be at most {}", self.depth, Self::MAX_DEPTH));
        }
        Ok(())
    }

    /// Fails unless `value` is within `bound`.
    pub(crate) fn check(&self, bound: Bound, value: u64) -> Result<(), Error> {
        let most = match bound {
            Bound::Entries => self.entries,
            Bound::Bytes => self.bytes,
            Bound::FileBytes => self.file_bytes,
            Bound::NameBytes => self.name_bytes as u64,
            Bound::Depth => self.depth as u64,
            Bound::HeaderBytes | Bound::TailBytes => u64::MAX,
        };
        if value > most { Err(Exceeded { bound, most }.into_error()) } else { Ok(()) }
    }
}

/// How far a transfer is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Files that were moved to their end.
    pub files: u64,
    /// Bytes that were moved, those of an unfinished file included.
    pub bytes: u64,
}

/// The caller's function for progress.
#[derive(Default)]
pub(crate) struct Meter {
    so_far: Progress,
    told: Option<Box<dyn FnMut(Progress) + Send>>,
}

impl Meter {
    pub(crate) fn telling(told: impl FnMut(Progress) + Send + 'static) -> Self {
        Self { so_far: Progress::default(), told: Some(Box::new(told)) }
    }

    pub(crate) fn bytes(&mut self, more: u64) {
        self.so_far.bytes += more;
        self.tell();
    }

    pub(crate) fn file(&mut self) {
        self.so_far.files += 1;
        self.tell();
    }

    fn tell(&mut self) {
        if let Some(told) = &mut self.told {
            told(self.so_far);
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("so_far", &self.so_far).field("told", &self.told.is_some()).finish()
    }
}
