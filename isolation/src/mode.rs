//! Which kind of place a node stack lives in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, ErrorKind, Reason};

/// Which kind of place the node stack lives in.
///
/// There are exactly three modes, `nspawn`, `none` and `container`, and `nspawn` is the default.
/// An empty text parses as the default mode.
/// Any other text must equal a wire name byte for byte; nothing falls back to the default, because an
/// older program must never run a newer mode as `nspawn`.
///
/// That a text parses says only that this is a mode; whether the running program can operate it is
/// the business of its [`ModeTable`](crate::ModeTable).
///
/// ```
/// use isolation::{ErrorKind, Mode};
///
/// assert_eq!("none".parse::<Mode>()?, Mode::None);
/// assert_eq!("".parse::<Mode>()?, Mode::Nspawn);
/// assert_eq!("None".parse::<Mode>().unwrap_err().kind(), ErrorKind::UnknownMode);
/// # Ok::<(), isolation::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Mode {
    /// A systemd-nspawn machine that shares the host's network.
    #[default]
    Nspawn,
    /// No container at all: units on the host.
    None,
    /// A privileged OCI container with systemd inside. Experimental, and therefore opt-in.
    Container,
}

impl Mode {
    /// Every mode, in the order of declaration.
    pub const ALL: [Self; 3] = [Self::Nspawn, Self::None, Self::Container];

    /// The name in files and on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nspawn => "nspawn",
            Self::None => "none",
            Self::Container => "container",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        Self::ALL.into_iter().find(|mode| mode.as_str() == text).ok_or_else(|| {
            Error::rejected(ErrorKind::UnknownMode, "mode", text.as_bytes(), Reason::Unknown)
                .with_known("nspawn, none, container")
        })
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::wire::parsed(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
            let json = serde_json::to_string(&mode).unwrap();
            assert_eq!(json, format!("\"{mode}\""));
            assert_eq!(serde_json::from_str::<Mode>(&json).unwrap(), mode);
        }
        assert_eq!(Mode::default(), Mode::Nspawn);
        assert_eq!("".parse::<Mode>().unwrap(), Mode::Nspawn);
    }

    #[test]
    fn everything_else_is_rejected() {
        let long = "n".repeat(300);
        for text in ["Nspawn", " none", "none ", "nspa", "nspawnx", "NONE", "docker", "\0", "null", &long, "nоne"] {
            let error = text.parse::<Mode>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnknownMode, "{text:?}");
            assert!(error.given().unwrap().chars().count() <= 64);
            assert!(error.given().unwrap().is_ascii());
            assert!(error.to_string().contains("nspawn, none, container"));
            assert!(serde_json::from_value::<Mode>(serde_json::Value::from(text)).is_err());
        }
    }

    #[test]
    fn an_absent_field_defaults_and_null_does_not() {
        #[derive(serde::Deserialize)]
        struct Config {
            #[serde(default)]
            mode: Mode,
        }
        assert_eq!(serde_json::from_str::<Config>("{}").unwrap().mode, Mode::Nspawn);
        assert!(serde_json::from_str::<Config>(r#"{"mode":null}"#).is_err());
        assert_eq!(serde_json::from_str::<Config>(r#"{"mode":""}"#).unwrap().mode, Mode::Nspawn);
    }
}
