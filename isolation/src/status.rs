//! How a slot is doing.

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// Where a slot stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SlotState {
    /// Never prepared, or destroyed.
    #[default]
    Absent,
    /// Prepared and never started.
    Prepared,
    /// On its way up.
    Starting,
    /// The node stack runs.
    Running,
    /// It runs, and some of its units do not.
    Degraded,
    /// On its way down.
    Stopping,
    /// Stopped on request.
    Stopped,
    /// It ended by itself.
    Failed,
}

impl SlotState {
    /// Whether a command can run inside.
    pub fn is_running(self) -> bool {
        matches!(self, Self::Running | Self::Degraded)
    }
}

impl fmt::Display for SlotState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Absent => "absent",
            Self::Prepared => "prepared",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Degraded => "degraded",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        })
    }
}

/// How a slot is doing. The default is a slot that was never prepared.
///
/// `running` is not a field of its own: it follows from the state, so the two can't disagree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Status {
    /// Where the slot stands.
    pub state: SlotState,
    /// More, for humans.
    pub detail: String,
    /// Since when, if that is known.
    pub since: Option<SystemTime>,
    /// The process that carries the node stack.
    pub main_pid: Option<u32>,
    /// How often the service manager restarted it by itself.
    pub restarts: u32,
    /// The units of the node stack.
    pub units: Vec<UnitStatus>,
    /// Differs between two runs of the same slot: a boot id, an invocation id.
    pub instance: Option<String>,
}

/// One unit of the node stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitStatus {
    /// The unit, under its in-node name.
    pub name: String,
    /// Whether it is up.
    pub active: bool,
    /// More, for humans.
    pub detail: String,
}

impl Status {
    /// A status of this state.
    pub fn new(state: SlotState) -> Self {
        Self { state, ..Self::default() }
    }

    /// Whether a command can run inside.
    pub fn running(&self) -> bool {
        self.state.is_running()
    }

    /// Sets the text for humans.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Sets the main process.
    #[must_use]
    pub fn with_main_pid(mut self, pid: u32) -> Self {
        self.main_pid = Some(pid);
        self
    }

    /// Sets what tells two runs apart.
    #[must_use]
    pub fn with_instance(mut self, instance: impl Into<String>) -> Self {
        self.instance = Some(instance.into());
        self
    }

    /// Sets since when the state holds.
    #[must_use]
    pub fn with_since(mut self, since: SystemTime) -> Self {
        self.since = Some(since);
        self
    }

    /// Sets the units.
    #[must_use]
    pub fn with_units(mut self, units: Vec<UnitStatus>) -> Self {
        self.units = units;
        self
    }
}

/// The wire form carries `running` too, for readers that know only it. A Go status has nothing else.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    #[serde(default, alias = "Running")]
    running: bool,
    #[serde(default, alias = "Detail")]
    detail: String,
    #[serde(default)]
    state: Option<SlotState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<SystemTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    main_pid: Option<u32>,
    #[serde(default)]
    restarts: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    units: Vec<UnitStatus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
}

impl Serialize for Status {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { state, detail, since, main_pid, restarts, units, instance } = self.clone();
        let running = state.is_running();
        Wire { running, detail, state: Some(state), since, main_pid, restarts, units, instance }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        let state = match wire.state {
            Some(state) if state.is_running() != wire.running => {
                return Err(serde::de::Error::custom(format!("`running` contradicts the state `{state}`")));
            }
            Some(state) => state,
            None if wire.running => SlotState::Running,
            None => SlotState::Stopped,
        };
        let Wire { detail, since, main_pid, restarts, units, instance, .. } = wire;
        Ok(Self { state, detail, since, main_pid, restarts, units, instance })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_absent() {
        let status = Status::default();
        assert_eq!((status.state, status.running(), status.detail.as_str()), (SlotState::Absent, false, ""));
    }

    #[test]
    fn running_follows_from_the_state() {
        use SlotState::*;
        for state in [Absent, Prepared, Starting, Running, Degraded, Stopping, Stopped, Failed] {
            let status = Status::new(state).with_detail("d").with_instance("i");
            assert_eq!(status.running(), matches!(state, Running | Degraded));
            let json = serde_json::to_string(&status).unwrap();
            assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
        }
        assert!(serde_json::from_str::<Status>(r#"{"running":true,"state":"stopped"}"#).is_err());
        let go: Status = serde_json::from_str(r#"{"Running":true,"Detail":"up"}"#).unwrap();
        assert_eq!(go, Status::new(Running).with_detail("up"));
    }
}
