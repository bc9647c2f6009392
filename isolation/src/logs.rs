//! Which part of a node's journal to show.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, ErrorKind, Reason, Result};

const SUFFIXES: [&str; 11] = [
    ".service",
    ".socket",
    ".device",
    ".mount",
    ".automount",
    ".swap",
    ".target",
    ".path",
    ".timer",
    ".slice",
    ".scope",
];

/// The name of a systemd unit.
///
/// A unit name has at most 255 bytes of letters, digits and `:_.@\-`, does not start with a dash and ends
/// in a unit's suffix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitName(String);

impl UnitName {
    /// Checks `name`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`], with the broken rule in [`Error::reason`].
    pub fn new(name: &str) -> Result<Self> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b':' | b'_' | b'.' | b'@' | b'\\' | b'-');
        let reason = if name.is_empty() {
            Reason::Empty
        } else if name.contains('\0') {
            Reason::Nul
        } else if name.len() > 255 {
            Reason::TooLong
        } else if name.starts_with('-') {
            Reason::FirstCharacter
        } else if !name.bytes().all(allowed) {
            Reason::Character
        } else if !SUFFIXES.iter().any(|suffix| name.len() > suffix.len() && name.ends_with(suffix)) {
            Reason::UnitSuffix
        } else {
            return Ok(Self(name.to_owned()));
        };
        Err(Error::rejected(ErrorKind::InvalidInput, "unit name", name.as_bytes(), reason))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for UnitName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl Serialize for UnitName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for UnitName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::wire::parsed(deserializer)
    }
}

/// A place in a journal, to go on from later. Opaque: it comes from a [`LogEntry`](crate::LogEntry).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cursor(String);

impl Cursor {
    /// Checks that `text` can be a cursor: at most 512 printable ASCII bytes without spaces or quotes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`].
    pub fn new(text: &str) -> Result<Self> {
        let reason = if text.is_empty() {
            Reason::Empty
        } else if text.len() > 512 {
            Reason::TooLong
        } else if !text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b'\\')) {
            Reason::Character
        } else {
            return Ok(Self(text.to_owned()));
        };
        Err(Error::rejected(ErrorKind::InvalidInput, "cursor", text.as_bytes(), reason))
    }

    /// The cursor as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::wire::parsed(deserializer)
    }
}

/// How the lines of a log look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LogFormat {
    /// One line of text per entry, with an exact time (`short-iso-precise`).
    #[default]
    ShortIsoPrecise,
    /// The message alone (`cat`).
    Cat,
    /// One JSON object per entry: what [`LogEntries`](crate::LogEntries) reads.
    Json,
}

impl LogFormat {
    /// The name journalctl knows the format by.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ShortIsoPrecise => "short-iso-precise",
            Self::Cat => "cat",
            Self::Json => "json",
        }
    }
}

/// Which log lines, and whether to wait for more. The default is everything there is.
///
/// No unit means all units of the node stack, and no unit of the host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct LogOptions {
    /// Only this unit.
    #[serde(alias = "Unit", deserialize_with = "unit_or_empty", skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnitName>,
    /// Keep the stream open for lines to come.
    #[serde(alias = "Follow")]
    pub follow: bool,
    /// Only the last so many lines.
    #[serde(alias = "Lines", deserialize_with = "positive_or_none", skip_serializing_if = "Option::is_none")]
    pub lines: Option<NonZeroU32>,
    /// Only what came after this place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Cursor>,
    /// How the lines look.
    pub format: LogFormat,
}

impl LogOptions {
    /// Limits to one unit.
    #[must_use]
    pub fn with_unit(mut self, unit: UnitName) -> Self {
        self.unit = Some(unit);
        self
    }

    /// Keeps the stream open.
    #[must_use]
    pub fn with_follow(mut self, follow: bool) -> Self {
        self.follow = follow;
        self
    }

    /// Limits to the last `lines`; 0 is no limit.
    #[must_use]
    pub fn with_lines(mut self, lines: u32) -> Self {
        self.lines = NonZeroU32::new(lines);
        self
    }

    /// Goes on after a place seen before.
    #[must_use]
    pub fn with_after(mut self, after: Cursor) -> Self {
        self.after = Some(after);
        self
    }

    /// Sets the format.
    #[must_use]
    pub fn with_format(mut self, format: LogFormat) -> Self {
        self.format = format;
        self
    }
}

/// Go writes an absent unit as an empty string.
fn unit_or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<UnitName>, D::Error> {
    match Option::<String>::deserialize(deserializer)?.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => UnitName::new(text).map(Some).map_err(serde::de::Error::custom),
    }
}

/// Go writes "no limit" as 0 or less.
fn positive_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NonZeroU32>, D::Error> {
    let lines = Option::<i64>::deserialize(deserializer)?.unwrap_or(0);
    let lines = u32::try_from(lines.max(0)).map_err(serde::de::Error::custom)?;
    Ok(NonZeroU32::new(lines))
}

/// The journal flags for following, line count and starting place; which unit and which machine is added
/// by each backend.
///
/// In this order: `--follow`; `--lines=N`, or `--no-tail` when following without a limit (journalctl
/// would show the last ten otherwise, which contradicts "no limit"); `--after-cursor=C`. The default
/// options give nothing.
pub fn journal_tail_args(options: &LogOptions) -> Vec<String> {
    let mut args = Vec::new();
    if options.follow {
        args.push("--follow".to_owned());
    }
    match options.lines {
        Some(lines) => args.push(format!("--lines={lines}")),
        None if options.follow => args.push("--no-tail".to_owned()),
        None => {}
    }
    if let Some(cursor) = &options.after {
        args.push(format!("--after-cursor={}", cursor.as_str()));
    }
    args
}

/// The journal flags for a quiet, uncut, machine-independent output in the wanted format.
pub fn journal_output_args(options: &LogOptions) -> Vec<String> {
    let output = format!("--output={}", options.format.as_str());
    vec!["--no-pager".to_owned(), "--quiet".to_owned(), output]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_arguments() {
        let cursor = Cursor::new("s=1;i=2").unwrap();
        let table: [(LogOptions, &[&str]); 6] = [
            (LogOptions::default(), &[]),
            (LogOptions::default().with_follow(true), &["--follow", "--no-tail"]),
            (LogOptions::default().with_lines(3), &["--lines=3"]),
            (LogOptions::default().with_lines(0), &[]),
            (LogOptions::default().with_follow(true).with_lines(20), &["--follow", "--lines=20"]),
            (
                LogOptions::default().with_follow(true).with_after(cursor),
                &["--follow", "--no-tail", "--after-cursor=s=1;i=2"],
            ),
        ];
        for (options, args) in table {
            assert_eq!(journal_tail_args(&options), args);
        }
        let json = LogOptions::default().with_format(LogFormat::Json);
        assert_eq!(journal_output_args(&json), ["--no-pager", "--quiet", "--output=json"]);
        let default = journal_output_args(&LogOptions::default());
        assert_eq!(default, ["--no-pager", "--quiet", "--output=short-iso-precise"]);
    }

    #[test]
    fn rejected_units() {
        let long = format!("{}.service", "x".repeat(250));
        let table = [
            ("", Reason::Empty),
            ("--root=/", Reason::FirstCharacter),
            ("-x", Reason::FirstCharacter),
            ("-x.service", Reason::FirstCharacter),
            ("a b", Reason::Character),
            ("a b.service", Reason::Character),
            ("a/b.service", Reason::Character),
            ("a\n.service", Reason::Character),
            ("a\0.service", Reason::Nul),
            ("kubelet", Reason::UnitSuffix),
            (".service", Reason::UnitSuffix),
            (&long, Reason::TooLong),
        ];
        for (name, reason) in table {
            let error = UnitName::new(name).unwrap_err();
            assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidInput, Some(reason)), "{name:?}");
        }
        for name in ["kubelet.service", "a@b.service", "dev-sda\\x2d1.device", "x.y:z_.mount", "init.scope"] {
            assert_eq!(UnitName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn rejected_cursors() {
        let long = "s".repeat(513);
        let table = [
            ("", Reason::Empty),
            ("a b", Reason::Character),
            ("a\nb", Reason::Character),
            ("a\0b", Reason::Character),
            ("a\"b", Reason::Character),
            ("a'b", Reason::Character),
            ("a\\b", Reason::Character),
            ("ü", Reason::Character),
            (&long, Reason::TooLong),
        ];
        for (text, reason) in table {
            let error = Cursor::new(text).unwrap_err();
            assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidInput, Some(reason)), "{text:?}");
            assert!(serde_json::from_value::<Cursor>(serde_json::Value::from(text)).is_err(), "{text:?}");
        }
    }

    #[test]
    fn go_json_and_ours() {
        let go: LogOptions = serde_json::from_str(r#"{"Unit":"","Follow":true,"Lines":-1}"#).unwrap();
        assert_eq!(go, LogOptions::default().with_follow(true));
        let go: LogOptions = serde_json::from_str(r#"{"Unit":"kubelet.service","Follow":false,"Lines":5}"#).unwrap();
        let ours = LogOptions::default().with_unit(UnitName::new("kubelet.service").unwrap()).with_lines(5);
        assert_eq!(go, ours);
        let json = serde_json::to_string(&ours).unwrap();
        assert_eq!(serde_json::from_str::<LogOptions>(&json).unwrap(), ours);
        assert!(serde_json::from_str::<LogOptions>(r#"{"unit":"-x.service"}"#).is_err());
        assert!(serde_json::from_str::<LogOptions>(r#"{"tail":1}"#).is_err());
    }
}
