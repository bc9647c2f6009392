//! What to prepare, and what came of it.

use serde::{Deserialize, Serialize};

use crate::{Grant, GrantKind, Result, SlotName, SlotRef, wire};

/// What a slot is to hold.
///
/// Where the root file system comes from is the backend's business: its constructor takes a
/// [`RootfsSource`](crate::RootfsSource).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct NodeSpec {
    /// The slot.
    #[serde(alias = "Slot")]
    pub slot: SlotName,
    /// The Kubernetes version, for humans; no backend decides anything by it.
    #[serde(default, alias = "Version")]
    pub version: String,
    /// What the node asks of the host, in order.
    #[serde(default, alias = "Grants", deserialize_with = "wire::null_is_default")]
    pub grants: Vec<Grant>,
}

impl NodeSpec {
    /// A slot without grants.
    pub fn new(slot: SlotName) -> Self {
        Self { slot, version: String::new(), grants: Vec::new() }
    }

    /// Sets the version.
    #[must_use]
    pub fn with_version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Sets the grants.
    #[must_use]
    pub fn with_grants(mut self, grants: Vec<Grant>) -> Self {
        self.grants = grants;
        self
    }

    /// Checks every grant.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidGrant`](crate::ErrorKind::InvalidGrant), with [`Error::index`](crate::Error::index).
    pub fn validate(&self) -> Result<()> {
        Grant::validate_all(&self.grants)
    }
}

impl SlotRef for NodeSpec {
    fn slot(&self) -> &SlotName {
        &self.slot
    }
}

/// What `prepare` did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct PrepareReport {
    /// Positions of the grants that are provided.
    pub applied: Vec<usize>,
    /// Positions of the grants for which nothing had to be done, and why.
    pub ignored: Vec<IgnoredGrant>,
    /// Whether anything on the host is different now.
    pub changed: bool,
}

/// A grant for which nothing had to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct IgnoredGrant {
    /// Its position in the spec.
    pub index: usize,
    /// Its kind.
    pub kind: GrantKind,
    /// Why, for humans.
    pub why: String,
}

impl IgnoredGrant {
    /// A grant that needs nothing done.
    pub fn new(index: usize, kind: GrantKind, why: impl Into<String>) -> Self {
        Self { index, kind, why: why.into() }
    }
}

impl PrepareReport {
    /// A report without grants.
    pub fn new(changed: bool) -> Self {
        Self { changed, ..Self::default() }
    }

    /// Sets what is provided.
    #[must_use]
    pub fn with_applied(mut self, applied: Vec<usize>) -> Self {
        self.applied = applied;
        self
    }

    /// Sets what needed nothing.
    #[must_use]
    pub fn with_ignored(mut self, ignored: Vec<IgnoredGrant>) -> Self {
        self.ignored = ignored;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, HostPath, Purpose};

    #[test]
    fn go_json_and_ours() {
        let go: NodeSpec = serde_json::from_str(r#"{"Slot":"kube1","Version":"1.36.2","Grants":null}"#).unwrap();
        assert_eq!(go, NodeSpec::new(SlotName::new("kube1").unwrap()).with_version("1.36.2"));
        let go = r#"{"Slot":"kube1","Grants":[{"Kind":"device","Purpose":"host-device","Source":"/dev/kvm"}]}"#;
        let go: NodeSpec = serde_json::from_str(go).unwrap();
        assert_eq!(serde_json::from_str::<NodeSpec>(&serde_json::to_string(&go).unwrap()).unwrap(), go);
        assert!(serde_json::from_str::<NodeSpec>(r#"{"slot":"../x"}"#).is_err());
        assert!(serde_json::from_str::<NodeSpec>(r#"{"slot":"kube1","image":"x"}"#).is_err());
    }

    #[test]
    fn the_position_of_a_bad_grant_is_told() {
        let host = |path| HostPath::new(path).unwrap();
        let spec = NodeSpec::new(SlotName::new("kube1").unwrap()).with_grants(vec![
            Grant::device(Purpose::HostDevice, host("/dev/kvm")),
            Grant::device(Purpose::HostDevice, host("/etc/kvm")),
        ]);
        let error = spec.validate().unwrap_err();
        assert_eq!((error.kind(), error.index()), (ErrorKind::InvalidGrant, Some(1)));
    }

    #[test]
    fn the_report_round_trips() {
        let report = PrepareReport::new(true).with_applied(vec![0]).with_ignored(vec![IgnoredGrant::new(
            1,
            GrantKind::Device,
            "the host's own",
        )]);
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<PrepareReport>(&json).unwrap(), report);
    }
}
