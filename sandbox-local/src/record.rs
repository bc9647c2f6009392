//! What is known of a session's sandbox.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandbox::{Recreated, Spec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ident::Identity;

/// What is known of a session's sandbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Record {
    pub(crate) version: u32,
    /// Tells this sandbox from earlier and later ones of the session.
    pub(crate) nonce: String,
    /// Milliseconds since 1970.
    pub(crate) created: u64,
    pub(crate) phase: Phase,
    /// As it was when the sandbox was made.
    pub(crate) spec: Spec,
    pub(crate) fingerprint: String,
    /// The kernel's user and group of everything inside.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) recreated: Option<Recreated>,
    /// The run of the machine that it belongs to.
    pub(crate) boot: String,
    /// Its control groups.
    pub(crate) cgroups: Vec<PathBuf>,
    /// Known once it runs.
    pub(crate) identity: Option<Identity>,
}

/// How far a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    Starting,
    Running,
    Ending,
}

impl Record {
    pub(crate) const VERSION: u32 = 1;

    /// Takes a record apart, field by field, so that what does not fit is named. Pure.
    pub(crate) fn from_json(json: Value) -> Result<Self, String> {
        let Value::Object(mut fields) = json else { return Err("it is no record".to_owned()) };
        let version: u32 = take(&mut fields, "version")?;
        if version != Self::VERSION {
            return Err(format!("version is {version}, and this program knows version {}", Self::VERSION));
        }
        let record = Self {
            version,
            nonce: take(&mut fields, "nonce")?,
            created: take(&mut fields, "created")?,
            phase: take(&mut fields, "phase")?,
            spec: take(&mut fields, "spec")?,
            fingerprint: take(&mut fields, "fingerprint")?,
            uid: take(&mut fields, "uid")?,
            gid: take(&mut fields, "gid")?,
            recreated: take(&mut fields, "recreated")?,
            boot: take(&mut fields, "boot")?,
            cgroups: take(&mut fields, "cgroups")?,
            identity: take(&mut fields, "identity")?,
        };
        match fields.keys().next() {
            Some(unknown) => Err(format!("{unknown} is a field that this program does not know")),
            None => Ok(record),
        }
    }

    pub(crate) fn created(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.created)
    }
}

fn take<T: DeserializeOwned>(fields: &mut Map<String, Value>, name: &str) -> Result<T, String> {
    let value = fields.remove(name).unwrap_or(Value::Null);
    serde_json::from_value(value).map_err(|e| format!("{name}: {e}"))
}

#[cfg(test)]
mod tests {
    use sandbox::SessionId;

    use super::*;

    #[test]
    fn what_does_not_fit_is_named() {
        let spec = Spec::new(SessionId::new("a").unwrap(), "host");
        let record = Record {
            version: Record::VERSION,
            nonce: "n".into(),
            created: 5,
            phase: Phase::Running,
            fingerprint: spec.fingerprint(),
            spec,
            uid: 1,
            gid: 2,
            recreated: None,
            boot: "b".into(),
            cgroups: vec!["/c".into()],
            identity: None,
        };
        let good = serde_json::to_value(&record).unwrap();
        assert_eq!(Record::from_json(good.clone()), Ok(record));
        for (path, value, says) in [
            ("/version", 2.into(), "version is 2, and this program knows version 1"),
            ("/version", "1".into(), "version: "),
            ("/phase", "paused".into(), "phase: unknown variant `paused`"),
            ("/spec/image", 7.into(), "spec: "),
            ("/spec/hardening", "none".into(), "spec: "),
            ("/nonce", Value::Null, "nonce: "),
            ("/identity", 1.into(), "identity: "),
        ] {
            let mut bent = good.clone();
            *bent.pointer_mut(path).unwrap() = value;
            let error = Record::from_json(bent).expect_err(path);
            assert!(error.contains(says), "{error}");
        }
        let mut more = good.clone();
        more["spec"]["colour"] = "red".into();
        assert!(Record::from_json(more).unwrap_err().contains("spec: unknown field `colour`"));
        let mut more = good;
        more["colour"] = "red".into();
        assert_eq!(Record::from_json(more).unwrap_err(), "colour is a field that this program does not know");
        assert!(Record::from_json(Value::from(5)).is_err() && Record::from_json(Value::from(vec![1])).is_err());
    }
}
