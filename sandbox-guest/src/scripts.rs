//! The scripts that run inside, one file each.

use std::sync::LazyLock;

static AGENT: LazyLock<String> = LazyLock::new(|| stripped(include_str!("scripts/agent.bash")));
static FILES: LazyLock<String> = LazyLock::new(|| stripped(include_str!("scripts/files.bash")));
static WRITE: LazyLock<String> = LazyLock::new(|| stripped(include_str!("scripts/write.bash")));
static BULK: LazyLock<String> = LazyLock::new(|| stripped(include_str!("scripts/bulk.bash")));
static EXPORT: LazyLock<String> = LazyLock::new(|| stripped(include_str!("scripts/export.bash")));
static CONTROL: LazyLock<String> = LazyLock::new(|| stripped(include_str!("scripts/control.bash")));

/// What makes a shell serve requests.
pub(crate) fn agent() -> &'static str {
    &AGENT
}

/// What a serving shell needs to know for `part`.
pub(crate) fn part(part: Part) -> &'static str {
    match part {
        Part::Files => &FILES,
        Part::Write => &WRITE,
        Part::Bulk => &BULK,
        Part::Export => &EXPORT,
    }
}

/// A text that a serving shell is given once, when something first needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Reading files; the other parts stand on it.
    Files,
    /// Writing one.
    Write,
    /// Writing many at once.
    Bulk,
    /// Packing a tree.
    Export,
}

impl Part {
    /// This part and what it stands on, in the order in which a shell learns it.
    pub(crate) fn with_needs(self) -> &'static [Self] {
        match self {
            Self::Files => &[Self::Files],
            Self::Write => &[Self::Files, Self::Write],
            Self::Bulk => &[Self::Files, Self::Write, Self::Bulk],
            Self::Export => &[Self::Files, Self::Export],
        }
    }
}

/// What makes a serving shell the control stream.
pub(crate) fn control() -> &'static str {
    &CONTROL
}

/// Without comments and indentation: a shell reads a pipe byte by byte. No script has a text of several lines.
fn stripped(script: &str) -> String {
    let mut out = String::new();
    for line in script.lines().map(str::trim_start) {
        if !line.is_empty() && !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}
