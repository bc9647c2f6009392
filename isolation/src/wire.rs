//! Small serde helpers: values that parse from text, byte strings, Go's nulls.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::marker::PhantomData;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeSeq, Serializer};

/// Deserialises a string through `FromStr`, so that nothing gets in that the constructor refuses.
pub(crate) fn parsed<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err = crate::Error>,
    D: Deserializer<'de>,
{
    struct Text<T>(PhantomData<T>);
    impl<T: FromStr<Err = crate::Error>> Visitor<'_> for Text<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }
    deserializer.deserialize_str(Text(PhantomData))
}

/// A Go nil slice or map arrives as `null` and means "empty".
pub(crate) fn null_is_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// A byte string on the wire: text where it is UTF-8, else a list of numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WireBytes(pub(crate) Vec<u8>);

impl Serialize for WireBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_bytes(&self.0, serializer)
    }
}

pub(crate) fn serialize_bytes<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => serializer.serialize_str(text),
        Err(_) => {
            let mut list = serializer.serialize_seq(Some(bytes.len()))?;
            for byte in bytes {
                list.serialize_element(byte)?;
            }
            list.end()
        }
    }
}

impl<'de> Deserialize<'de> for WireBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = WireBytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of bytes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<WireBytes, E> {
                Ok(WireBytes(text.as_bytes().to_vec()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<WireBytes, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = seq.next_element()? {
                    bytes.push(byte);
                }
                Ok(WireBytes(bytes))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// `#[serde(with = "crate::wire::bytes")]` for byte buffers.
pub(crate) mod bytes {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(bytes: &::bytes::Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_bytes(bytes, serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<::bytes::Bytes, D::Error> {
        WireBytes::deserialize(deserializer).map(|bytes| bytes.0.into())
    }
}

/// `#[serde(with = "crate::wire::os_list")]` for argument lists.
pub(crate) mod os_list {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(list: &[OsString], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(|item| WireBytes(item.as_bytes().to_vec())))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<OsString>, D::Error> {
        let list = Option::<Vec<WireBytes>>::deserialize(deserializer)?.unwrap_or_default();
        Ok(list.into_iter().map(|item| OsString::from_vec(item.0)).collect())
    }
}

/// `#[serde(with = "crate::wire::path_list")]` for paths of the host.
pub(crate) mod path_list {
    use std::path::PathBuf;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(list: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(|path| WireBytes(path.as_os_str().as_bytes().to_vec())))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(os_list::deserialize(deserializer)?.into_iter().map(PathBuf::from).collect())
    }
}

/// `#[serde(with = "crate::wire::os_pairs")]` for environments, as a list of pairs.
pub(crate) mod os_pairs {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(list: &[(OsString, OsString)], serializer: S) -> Result<S::Ok, S::Error> {
        let wire = |text: &OsStr| WireBytes(text.as_bytes().to_vec());
        serializer.collect_seq(list.iter().map(|(key, value)| (wire(key), wire(value))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(OsString, OsString)>, D::Error> {
        let list = Vec::<(WireBytes, WireBytes)>::deserialize(deserializer)?;
        let os = |bytes: WireBytes| OsString::from_vec(bytes.0);
        Ok(list.into_iter().map(|(key, value)| (os(key), os(value))).collect())
    }
}
