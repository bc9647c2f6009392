//! The two places a node stack alternates between.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, ErrorKind, Reason, Result};

/// The name of one of the two alternating places for a node stack.
///
/// A slot name has 1 to 32 bytes of `a-z`, `0-9` and `-`, starts with a letter, does not end with a dash
/// and has no two dashes in a row.
/// That makes it at once a machine name, a unit instance, a container name, a directory name and a DNS
/// label, so nobody ever has to escape one.
///
/// ```
/// use isolation::SlotName;
///
/// assert_eq!(SlotName::new("kube1")?.as_str(), "kube1");
/// assert!(SlotName::new("../kube1").is_err());
/// # Ok::<(), isolation::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotName(Arc<str>);

impl SlotName {
    /// Checks `name`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSlot`], with the broken rule in [`Error::reason`].
    pub fn new(name: &str) -> Result<Self> {
        match Self::broken_rule(name) {
            Some(reason) => Err(Error::rejected(ErrorKind::InvalidSlot, "slot name", name.as_bytes(), reason)),
            None => Ok(Self(name.into())),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn broken_rule(name: &str) -> Option<Reason> {
        let (Some(first), Some(last)) = (name.chars().next(), name.chars().last()) else {
            return Some(Reason::Empty);
        };
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.starts_with('.') {
            Some(Reason::Reserved)
        } else if name.contains('\0') {
            Some(Reason::Nul)
        } else if !name.chars().all(allowed) {
            Some(Reason::Character)
        } else if !first.is_ascii_lowercase() {
            Some(Reason::FirstCharacter)
        } else if last == '-' {
            Some(Reason::LastCharacter)
        } else if name.contains("--") {
            Some(Reason::DoubleDash)
        } else if name.len() > 32 {
            Some(Reason::TooLong)
        } else {
            None
        }
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for SlotName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for SlotName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl Serialize for SlotName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SlotName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::wire::parsed(deserializer)
    }
}

/// Whatever tells an operation which slot it works on.
///
/// A bare [`SlotName`] is enough for every call that does not look at files, and every
/// [`NodeRoot`](crate::NodeRoot) is one too.
pub trait SlotRef: fmt::Debug + Send + Sync {
    /// The slot.
    fn slot(&self) -> &SlotName;
}

impl SlotRef for SlotName {
    fn slot(&self) -> &SlotName {
        self
    }
}

impl<T: SlotRef + ?Sized> SlotRef for &T {
    fn slot(&self) -> &SlotName {
        (**self).slot()
    }
}

impl<T: SlotRef + ?Sized> SlotRef for Box<T> {
    fn slot(&self) -> &SlotName {
        (**self).slot()
    }
}

impl<T: SlotRef + ?Sized> SlotRef for Arc<T> {
    fn slot(&self) -> &SlotName {
        (**self).slot()
    }
}

/// The two slots of a host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct SlotPair {
    a: SlotName,
    b: SlotName,
}

impl SlotPair {
    /// Joins two different slots.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSlot`] if they are equal.
    pub fn new(a: SlotName, b: SlotName) -> Result<Self> {
        if a == b {
            let name = a.as_str().as_bytes();
            return Err(Error::rejected(ErrorKind::InvalidSlot, "slot pair", name, Reason::SamePair));
        }
        Ok(Self { a, b })
    }

    /// The first slot.
    pub fn a(&self) -> &SlotName {
        &self.a
    }

    /// The second slot.
    pub fn b(&self) -> &SlotName {
        &self.b
    }

    /// Both slots, first to second.
    pub fn both(&self) -> [&SlotName; 2] {
        [&self.a, &self.b]
    }

    /// Whether `slot` is one of the two.
    pub fn contains(&self, slot: &SlotName) -> bool {
        *slot == self.a || *slot == self.b
    }

    /// The slot that `slot` alternates with.
    ///
    /// The other slot of a name outside the pair is an error, never a guess.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSlot`] if `slot` is in neither half.
    pub fn other(&self, slot: &SlotName) -> Result<&SlotName> {
        if *slot == self.a {
            Ok(&self.b)
        } else if *slot == self.b {
            Ok(&self.a)
        } else {
            let name = slot.as_str().as_bytes();
            Err(Error::rejected(ErrorKind::InvalidSlot, "slot", name, Reason::NotInPair))
        }
    }
}

/// `kube1` and `kube2`.
impl Default for SlotPair {
    fn default() -> Self {
        Self { a: SlotName("kube1".into()), b: SlotName("kube2".into()) }
    }
}

impl<'de> Deserialize<'de> for SlotPair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Wire {
            #[serde(alias = "A")]
            a: SlotName,
            #[serde(alias = "B")]
            b: SlotName,
        }
        let wire = Wire::deserialize(deserializer)?;
        Self::new(wire.a, wire.b).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names() {
        let longest = format!("k{}", "1".repeat(31));
        for name in ["k", "kube1", "kube2", "a-b-c", "z9", &longest] {
            assert_eq!(SlotName::new(name).unwrap().as_str(), name);
            let json = serde_json::to_string(&SlotName::new(name).unwrap()).unwrap();
            assert_eq!(serde_json::from_str::<SlotName>(&json).unwrap().as_str(), name);
        }
    }

    #[test]
    fn rejected_names() {
        use Reason::*;
        let long = "k".repeat(33);
        let table: &[(&str, Reason)] = &[
            ("", Empty),
            (".", Reserved),
            ("..", Reserved),
            (".host", Reserved),
            (".#kube1", Reserved),
            ("../x", Reserved),
            ("a/b", Character),
            ("/abs", Character),
            ("a b", Character),
            ("-x", FirstCharacter),
            ("-", FirstCharacter),
            ("1a", FirstCharacter),
            ("a-", LastCharacter),
            ("a--b", DoubleDash),
            ("a@b", Character),
            ("a:b", Character),
            ("a%b", Character),
            ("a$b", Character),
            ("a\nb", Character),
            ("a\0b", Nul),
            ("Kube1", Character),
            ("kubE", Character),
            ("kubе1", Character),
            ("\u{202e}kube", Character),
            ("kube\u{ff11}", Character),
            (&long, TooLong),
        ];
        for (name, reason) in table {
            let error = SlotName::new(name).unwrap_err();
            assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidSlot, Some(*reason)), "{name:?}");
            assert!(error.to_string().is_ascii(), "{error}");
            assert!(serde_json::from_value::<SlotName>(serde_json::Value::from(*name)).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_pair_never_guesses() {
        let pair = SlotPair::default();
        assert_eq!(pair.other(pair.a()).unwrap(), pair.b());
        assert_eq!(pair.other(pair.b()).unwrap(), pair.a());
        let error = pair.other(&SlotName::new("kube3").unwrap()).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::NotInPair));
        assert_eq!(SlotPair::new(pair.a().clone(), pair.a().clone()).unwrap_err().reason(), Some(Reason::SamePair));
        let json = serde_json::to_string(&pair).unwrap();
        assert_eq!(json, r#"{"a":"kube1","b":"kube2"}"#);
        assert_eq!(serde_json::from_str::<SlotPair>(&json).unwrap(), pair);
        assert!(serde_json::from_str::<SlotPair>(r#"{"a":"kube1","b":"kube1"}"#).is_err());
    }

    #[test]
    fn references_are_slot_refs() {
        let slot = SlotName::new("kube1").unwrap();
        let all: [&dyn SlotRef; 4] = [&slot, &&slot, &Box::new(slot.clone()), &Arc::new(slot.clone())];
        assert!(all.iter().all(|r| *r.slot() == slot));
    }
}
