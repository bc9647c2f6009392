//! How a sandbox is contained.

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind};

mod capability;

pub use capability::{CapDrop, Capability};

/// How a sandbox is contained.
///
/// What a backend cannot impose it refuses as [`ErrorKind::Unsupported`], with one exception that names itself:
/// [`Limit::Preferred`]. Three presets: [`Hardening::default`], [`Hardening::restricted`] and [`Hardening::none`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Hardening {
    /// A sandbox never has more processes and threads at once than this.
    pub pids: Limit,
    /// A sandbox gets no more processor time than this, in thousandths of a core.
    pub cpu_millis: Limit,
    /// A sandbox takes no more memory than this, in bytes; who wants more fails or is killed, and did not time out.
    pub memory_bytes: Limit,
    /// The sandbox's own files take no more disk than this, in bytes.
    pub disk_bytes: Limit,
    /// No process of the sandbox can have one of these capabilities. If there is one, no process can gain privileges either.
    pub cap_drop: CapDrop,
    /// Only the working directory, `/tmp` and `/mnt` can be written.
    pub read_only_root: bool,
    /// Commands run as this numeric user; `None` is the image's own.
    pub run_as_user: Option<u32>,
    /// Commands run as this numeric group; `None` is the image's own.
    pub run_as_group: Option<u32>,
    /// The group that owns the writable directories.
    pub fs_group: Option<u32>,
    /// Refuse to run as user 0.
    pub run_as_non_root: bool,
}

/// An upper bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// No bound.
    #[default]
    Off,
    /// This bound holds where the backend can impose one, and is never a reason to refuse a spec. [`Capabilities`](crate::Capabilities) tells which.
    Preferred(u64),
    /// This bound; a backend that cannot impose it refuses the spec.
    Required(u64),
}

impl Limit {
    /// The bound, where there is one.
    #[must_use]
    pub fn value(self) -> Option<u64> {
        match self {
            Self::Off => None,
            Self::Preferred(n) | Self::Required(n) => Some(n),
        }
    }

    /// Whether a backend that cannot impose it must refuse.
    #[must_use]
    pub fn is_required(self) -> bool {
        matches!(self, Self::Required(_))
    }
}

impl Default for Hardening {
    /// Drops `NET_RAW`, `SETUID` and `SETGID`, and with them the gaining of privileges; prefers bounds of 512 processes and two
    /// cores. Memory and disk have no bound: set them, as for a tenant whom you do not know.
    fn default() -> Self {
        Self {
            pids: Limit::Preferred(512),
            cpu_millis: Limit::Preferred(2000),
            cap_drop: CapDrop::only([Capability::NET_RAW, Capability::SETUID, Capability::SETGID]),
            ..Self::none()
        }
    }
}

impl Hardening {
    /// The largest user or group id: above it the kernel's and Kubernetes' types differ.
    pub const MAX_ID: u32 = i32::MAX as u32;

    /// No containment beyond what the backend always imposes.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            pids: Limit::Off,
            cpu_millis: Limit::Off,
            memory_bytes: Limit::Off,
            disk_bytes: Limit::Off,
            cap_drop: CapDrop::none(),
            read_only_root: false,
            run_as_user: None,
            run_as_group: None,
            fs_group: None,
            run_as_non_root: false,
        }
    }

    /// What passes Kubernetes' Pod Security level `restricted`: no capability, user 65534, never root; bounds as in the default.
    #[must_use]
    pub fn restricted() -> Self {
        Self {
            cap_drop: CapDrop::all(),
            run_as_user: Some(65534),
            run_as_group: Some(65534),
            fs_group: Some(65534),
            run_as_non_root: true,
            ..Self::default()
        }
    }

    /// Checks what does not depend on a backend.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSpec`], naming the field, the value and the rule.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidSpec).because(what));
        for (field, id) in
            [("run_as_user", self.run_as_user), ("run_as_group", self.run_as_group), ("fs_group", self.fs_group)]
        {
            if let Some(id) = id.filter(|id| *id > Self::MAX_ID) {
                return refuse(format!("{field} {id}: it must be at most {}", Self::MAX_ID));
            }
        }
        for (field, limit) in [
            ("pids", self.pids),
            ("cpu_millis", self.cpu_millis),
            ("memory_bytes", self.memory_bytes),
            ("disk_bytes", self.disk_bytes),
        ] {
            match limit.value() {
                Some(0) => return refuse(format!("{field} 0: a bound must be above 0; use off for none")),
                Some(n) if n > MAX_LIMIT => return refuse(format!("{field} {n}: it must be at most {MAX_LIMIT}")),
                _ => {}
            }
        }
        if self.cpu_millis.value().is_some_and(|n| n > MAX_CPU_MILLIS) {
            return refuse(format!(
                "cpu_millis {}: it must be at most {MAX_CPU_MILLIS}",
                self.cpu_millis.value().unwrap_or(0)
            ));
        }
        if self.run_as_non_root && self.run_as_user == Some(0) {
            return refuse("run_as_user 0: run_as_non_root forbids it".to_owned());
        }
        Ok(())
    }
}

/// The largest bound: a positive 64-bit signed number, as every engine's API has it.
const MAX_LIMIT: u64 = i64::MAX as u64;
/// The largest processor bound that can be told in nanoseconds, a millionth of a thousandth, without overflow.
const MAX_CPU_MILLIS: u64 = (i64::MAX / 1_000_000) as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_drop_lists() {
        let names = |list: &str| CapDrop::parse(list).unwrap_or_else(|e| panic!("{e}")).names();
        assert_eq!(names(" cap_net_raw , SYS_ADMIN "), ["NET_RAW", "SYS_ADMIN"]);
        assert_eq!(names("NET_RAW,net_raw,CHOWN"), ["NET_RAW", "CHOWN"]);
        assert_eq!(names("CHOWN,ALL"), ["ALL"]);
        assert!(names("none").is_empty() && names("NONE").is_empty() && names("").is_empty());
        let told = |list: &str| {
            let error = CapDrop::parse(list).expect_err(list);
            assert_eq!(error.kind(), ErrorKind::InvalidSpec);
            error.reason().expect("a reason").to_owned()
        };
        for list in [
            "NET_RAW,",
            ",",
            "NET RAW",
            "0",
            "_",
            "123",
            "CAP_CAP_NET_RAW",
            "NET_RAWW",
            "SYS_ADMINN",
            "none,CHOWN",
            "CAP_",
        ] {
            let reason = told(list);
            let names_it = list.split(',').any(|name| reason.contains(&format!("{:?}", name.trim())));
            assert!(names_it, "{list:?}: {reason}");
        }
        assert_eq!(CapDrop::all().iter().count(), 41);
    }

    #[test]
    fn presets_are_valid_and_survive_a_round_trip() {
        for hardening in [Hardening::default(), Hardening::restricted(), Hardening::none()] {
            hardening.validate().unwrap();
            let json = serde_json::to_string(&hardening).unwrap();
            assert_eq!(serde_json::from_str::<Hardening>(&json).unwrap(), hardening, "{json}");
        }
        assert!(serde_json::from_str::<Hardening>(r#"{"memory":1}"#).is_err());
    }

    #[test]
    fn what_is_not_said_is_the_default() {
        let Hardening { pids, cpu_millis, memory_bytes, disk_bytes, cap_drop, run_as_user, .. } = Hardening::default();
        assert_eq!((pids, cpu_millis), (Limit::Preferred(512), Limit::Preferred(2000)));
        assert_eq!((memory_bytes, disk_bytes), (Limit::Off, Limit::Off));
        assert_eq!(cap_drop.names(), ["NET_RAW", "SETUID", "SETGID"]);
        assert_eq!(run_as_user, None);
        assert_eq!(serde_json::from_str::<Hardening>("{}").unwrap(), Hardening::default());
        // Off is said, and stays so.
        for field in ["pids", "cpu_millis", "memory_bytes", "disk_bytes"] {
            let json = serde_json::json!({ field: "off" });
            let read: Hardening = serde_json::from_value(json).unwrap_or_else(|e| panic!("{field}: {e}"));
            let limits = [read.pids, read.cpu_millis, read.memory_bytes, read.disk_bytes];
            assert!(limits.contains(&Limit::Off), "{field}: {read:?}");
        }
    }

    #[test]
    fn values_out_of_range() {
        let with = |change: fn(&mut Hardening)| {
            let mut h = Hardening::none();
            change(&mut h);
            h
        };
        for uid in [0, 1, 65534, Hardening::MAX_ID] {
            Hardening { run_as_user: Some(uid), ..Hardening::none() }.validate().unwrap();
        }
        for (bad, value, rule) in [
            (with(|h| h.run_as_user = Some(2_147_483_648)), "run_as_user 2147483648", "at most 2147483647"),
            (with(|h| h.run_as_group = Some(u32::MAX)), "run_as_group 4294967295", "at most 2147483647"),
            (with(|h| h.fs_group = Some(u32::MAX)), "fs_group 4294967295", "at most 2147483647"),
            (with(|h| h.pids = Limit::Required(0)), "pids 0", "above 0"),
            (with(|h| h.cpu_millis = Limit::Preferred(0)), "cpu_millis 0", "above 0"),
            (with(|h| h.memory_bytes = Limit::Required(0)), "memory_bytes 0", "above 0"),
            (with(|h| h.disk_bytes = Limit::Required(0)), "disk_bytes 0", "above 0"),
            (with(|h| h.memory_bytes = Limit::Preferred(u64::MAX)), "memory_bytes 18446744073709551615", "at most"),
            (with(|h| h.cpu_millis = Limit::Required(9_223_372_036_854_775)), "cpu_millis 9223372036854775", "at most"),
            (with(|h| (h.run_as_non_root, h.run_as_user) = (true, Some(0))), "run_as_user 0", "run_as_non_root"),
        ] {
            let error = bad.validate().expect_err(&format!("{bad:?}"));
            assert_eq!(error.kind(), ErrorKind::InvalidSpec);
            let reason = error.reason().expect("a reason");
            assert!(reason.contains(value) && reason.contains(rule), "{value}, {rule}: {reason}");
        }
    }
}
