//! How a provider is set up.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::ident;

/// How a [`LocalProvider`](crate::LocalProvider) is set up.
///
/// ```
/// use sandbox_local::LocalConfig;
///
/// let config = LocalConfig::default().with_state_dir("/var/tmp/my-sandboxes");
/// ```
///
/// From a file, with what is left out at its default; an unknown field is refused:
///
/// ```
/// # use sandbox_local::LocalConfig;
/// let text = r#"{"state_dir": "/var/tmp/my-sandboxes", "start_timeout": {"secs": 30, "nanos": 0}}"#;
/// let config: LocalConfig = serde_json::from_str(text)?;
/// assert!(serde_json::from_str::<LocalConfig>(r#"{"stat_dir": "/x"}"#).is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct LocalConfig {
    /// Where everything about the sandboxes is, their files too. Providers with the same directory have the same sandboxes, in one
    /// process or several; whoever has another one knows nothing of them. It belongs to the caller, with mode 0700, and is made
    /// if need be.
    pub state_dir: PathBuf,
    /// How long making a sandbox may take. As every time here, at most a day, and all but `lock_timeout` more than 0.
    pub start_timeout: Duration,
    /// How long ending and removing a sandbox may take.
    pub stop_timeout: Duration,
    /// How long to wait for somebody else who is changing the same session.
    pub lock_timeout: Duration,
    /// How long a call into a sandbox may take until what it asks for begins
    /// ([`GuestConfig::begin_timeout`](sandbox_guest::GuestConfig::begin_timeout)): whatever the tenant stops or starves, a call ends.
    pub begin_timeout: Duration,
    /// How long the content of a file may stand still
    /// ([`GuestConfig::inactivity`](sandbox_guest::GuestConfig::inactivity)).
    pub inactivity: Duration,
    /// More trees of this machine that every sandbox sees, read-only and at their own places: toolchains, data. They are shown with all
    /// that is mounted in them; choose none that holds secrets. They must be there, and neither be, hold nor lie in `/proc`, `/dev`, `/sys`
    /// or `/tmp`, nor be `/etc` or hold the state directory.
    pub show: Vec<PathBuf>,
    /// As root, the first of 65,536 kernel users, and groups of the same numbers, that sandboxes run as: no sandbox ever runs as kernel
    /// user 0. Nobody else may use them. Deployments may share them: a user that has a process is given to no other sandbox, as long as they
    /// see each other's processes and have the same `/run`. A sandbox keeps the user that it was made with: providers with
    /// the same state directory need not agree on this, but the users of all of them must exist wherever one of them attaches. Without
    /// root, sandboxes run as the caller.
    pub first_uid: u32,
    /// Where bounds on memory and processor time come from.
    pub cgroup: Cgroup,
}

/// Where the control groups of the sandboxes are made. Without one, bounds on memory and processor time are not claimed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cgroup {
    /// Below the caller's own group, where it was delegated to the caller; as root also in the version 1 hierarchies.
    #[default]
    Auto,
    /// Nowhere.
    Off,
    /// Below this directory of the version 2 hierarchy, which the caller may write to and which holds no process itself. A caller
    /// that is not root must itself run below the same delegated directory.
    At(PathBuf),
}

impl Default for LocalConfig {
    /// State in `/var/lib/sandbox-local` as root, else in `/var/tmp/sandbox-local-UID`; 30 seconds for everything.
    fn default() -> Self {
        let uid = rustix::process::geteuid();
        let state_dir = match uid.is_root() {
            true => PathBuf::from("/var/lib/sandbox-local"),
            false => PathBuf::from(format!("/var/tmp/sandbox-local-{}", uid.as_raw())),
        };
        Self {
            state_dir,
            start_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(30),
            begin_timeout: Duration::from_secs(30),
            inactivity: Duration::from_secs(30),
            show: Vec::new(),
            first_uid: 0x7000_0000,
            cgroup: Cgroup::Auto,
        }
    }
}

/// No wait is longer than this.
const MOST: Duration = Duration::from_secs(24 * 3600);

/// How many kernel users the sandboxes of root are spread over.
pub(crate) const USERS: u32 = 65_536;

impl LocalConfig {
    /// Whether sandboxes can see `tree` at its own place; otherwise the rule that it breaks.
    fn may_show(&self, tree: &Path) -> Result<(), String> {
        if !tree.is_absolute() {
            return Err("it must be an absolute path".to_owned());
        }
        // Every sandbox has its own there.
        if let Some(own) = ["/proc", "/dev", "/sys", "/tmp"]
            .into_iter()
            .find(|p| tree.starts_with(p) || Path::new(p).starts_with(tree))
        {
            return Err(format!("it must not be, hold or lie in {own}"));
        }
        if Path::new("/etc").starts_with(tree) {
            return Err("it must not be /etc, of which sandboxes see some files: show what is missing of it by itself"
                .to_owned());
        }
        if self.state_dir.starts_with(tree) {
            return Err(format!("it must not hold the state directory {}", self.state_dir.display()));
        }
        fs::metadata(tree).map(drop).map_err(|e| format!("{e}: it must be there"))
    }

    /// Refuses values that break a rule by themselves, or on this machine.
    pub(crate) fn check(&self, is_root: bool) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidSpec).because(what));
        for (name, value) in [
            ("start_timeout", self.start_timeout),
            ("stop_timeout", self.stop_timeout),
            ("begin_timeout", self.begin_timeout),
            ("inactivity", self.inactivity),
        ] {
            if value.is_zero() || value > MOST {
                return refuse(format!("{name} {value:?}: more than 0 and at most a day"));
            }
        }
        if self.lock_timeout > MOST {
            return refuse(format!("lock_timeout {:?}: at most a day", self.lock_timeout));
        }
        for tree in &self.show {
            if let Err(rule) = self.may_show(tree) {
                return refuse(format!("show {}: {rule}", tree.display()));
            }
        }
        let first = self.first_uid;
        if is_root && (first == 0 || first.checked_add(USERS).is_none()) {
            return refuse(format!("first_uid {first}: it must be above 0 and leave room for {USERS} users"));
        }
        Ok(())
    }

    /// Refuses users that there are not.
    pub(crate) fn check_users(&self, is_root: bool) -> Result<(), Error> {
        let first = self.first_uid;
        if !is_root {
            return Ok(());
        }
        for (map, who) in [("uid_map", "users"), ("gid_map", "groups")] {
            let text = fs::read_to_string(format!("/proc/self/{map}")).unwrap_or_default();
            if !ident::is_mapped(&text, first, USERS) {
                let has: Vec<String> =
                    text.lines().map(|l| l.split_ascii_whitespace().collect::<Vec<_>>().join(" ")).collect();
                return Err(Error::new(ErrorKind::InvalidSpec).because(format!(
                    "first_uid {first}: the {USERS} {who} from there on do not exist in this user namespace (its {map} is {}): \
                     choose a range that does, or run outside of it or as another user than root",
                    has.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// Sets where everything about the sandboxes is.
    #[must_use]
    pub fn with_state_dir(mut self, state_dir: impl Into<PathBuf>) -> Self {
        self.state_dir = state_dir.into();
        self
    }

    /// Adds a tree of this machine that every sandbox sees.
    #[must_use]
    pub fn with_shown(mut self, tree: impl Into<PathBuf>) -> Self {
        self.show.push(tree.into());
        self
    }

    /// Sets how long making a sandbox may take.
    #[must_use]
    pub fn with_start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// Sets how long ending and removing a sandbox may take.
    #[must_use]
    pub fn with_stop_timeout(mut self, timeout: Duration) -> Self {
        self.stop_timeout = timeout;
        self
    }

    /// Sets how long to wait for somebody else who is changing the same session.
    #[must_use]
    pub fn with_lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// Sets how long a call into a sandbox may take until what it asks for begins.
    #[must_use]
    pub fn with_begin_timeout(mut self, timeout: Duration) -> Self {
        self.begin_timeout = timeout;
        self
    }

    /// Sets how long the content of a file may stand still.
    #[must_use]
    pub fn with_inactivity(mut self, timeout: Duration) -> Self {
        self.inactivity = timeout;
        self
    }

    /// As root, sets the first of the 65,536 kernel users that sandboxes run as.
    #[must_use]
    pub fn with_first_uid(mut self, uid: u32) -> Self {
        self.first_uid = uid;
        self
    }

    /// Sets where bounds on memory and processor time come from.
    #[must_use]
    pub fn with_cgroup(mut self, cgroup: Cgroup) -> Self {
        self.cgroup = cgroup;
        self
    }
}
