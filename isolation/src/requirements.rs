//! What a backend needs of the host before it changes anything.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, HostRunner, Result, UnitName, wire};

/// What a backend needs of the host before it changes anything.
///
/// Requirements are honest: they name every program a backend runs and cover every path it writes.
/// They come from [`Backend::requirements`](crate::Backend::requirements), and
/// [`preflight`](crate::preflight) checks them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Requirements {
    /// Packages of the host's distribution.
    #[serde(alias = "HostPackages", deserialize_with = "wire::null_is_default")]
    pub host_packages: Vec<String>,
    /// Programs that must resolve on the host.
    #[serde(alias = "HostCommands", deserialize_with = "wire::null_is_default")]
    pub host_commands: Vec<CommandReq>,
    /// Everything the backend writes is at or below one of these.
    #[serde(alias = "WritablePaths", with = "wire::path_list")]
    pub writable_paths: Vec<PathBuf>,
    /// Units of the host that have to be up before the slot is; a backend orders its own unit after them.
    #[serde(alias = "After", deserialize_with = "wire::null_is_default")]
    pub after: Vec<UnitName>,
    /// What the kernel must offer.
    pub kernel: KernelReq,
    /// The oldest systemd that will do.
    pub systemd_min: Option<u32>,
}

/// A program that must be there, or one of several.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CommandReq {
    /// This program.
    One(String),
    /// At least one of these, in order of preference.
    AnyOf(Vec<String>),
}

impl CommandReq {
    /// The programs that satisfy it.
    pub fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::AnyOf(names) => names,
        }
    }
}

impl fmt::Display for CommandReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(" or "))
    }
}

/// What the kernel must offer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct KernelReq {
    /// The oldest version that will do, as `[major, minor]`.
    pub min_version: Option<[u32; 2]>,
    /// The unified control group hierarchy.
    pub cgroup_v2: bool,
    /// Controllers that must be available.
    pub controllers: Vec<String>,
    /// Modules that must be loaded, built in or loadable.
    pub modules: Vec<String>,
}

impl Requirements {
    /// Adds a package.
    #[must_use]
    pub fn with_package(mut self, name: impl Into<String>) -> Self {
        self.host_packages.push(name.into());
        self
    }

    /// Adds a program.
    #[must_use]
    pub fn with_command(mut self, name: impl Into<String>) -> Self {
        self.host_commands.push(CommandReq::One(name.into()));
        self
    }

    /// Adds a choice of programs.
    #[must_use]
    pub fn with_any_command<I>(mut self, names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.host_commands.push(CommandReq::AnyOf(names.into_iter().map(Into::into).collect()));
        self
    }

    /// Adds a path that is written to.
    #[must_use]
    pub fn with_writable_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.writable_paths.push(path.into());
        self
    }

    /// Adds a unit to start after.
    #[must_use]
    pub fn with_after(mut self, unit: UnitName) -> Self {
        self.after.push(unit);
        self
    }

    /// Sets what the kernel must offer.
    #[must_use]
    pub fn with_kernel(mut self, kernel: KernelReq) -> Self {
        self.kernel = kernel;
        self
    }

    /// Sets the oldest systemd.
    #[must_use]
    pub fn with_systemd_min(mut self, version: u32) -> Self {
        self.systemd_min = Some(version);
        self
    }

    /// Checks that every declared program resolves, as `prepare` does before it changes anything. Blocks.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotPrepared`], with the program that is missing.
    pub fn check_commands(&self, runner: &dyn HostRunner) -> Result<()> {
        let there = |need: &CommandReq| need.names().iter().any(|name| runner.resolve(name).is_some());
        match self.host_commands.iter().find(|need| !there(need)) {
            None => Ok(()),
            Some(missing) => {
                let error = Error::new(ErrorKind::NotPrepared, "prepare the slot");
                Err(error.with_program(missing.to_string(), Vec::new()))
            }
        }
    }

    /// Whether a path is at or below a declared one, component by component.
    pub fn covers(&self, path: &std::path::Path) -> bool {
        self.writable_paths.iter().any(|declared| path.starts_with(declared))
    }

    /// Whether a program is declared; its directory does not count.
    pub fn declares(&self, program: &str) -> bool {
        let name = program.rsplit('/').next().unwrap_or(program);
        self.host_commands.iter().flat_map(CommandReq::names).any(|declared| declared == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    #[test]
    fn a_missing_command_is_named() {
        let runner = crate::SystemRunner::default();
        let needs = Requirements::default().with_command("sh").with_any_command(["no-such-program", "cat"]);
        needs.check_commands(&runner).unwrap();
        let error = needs.with_any_command(["no-such-a", "no-such-b"]).check_commands(&runner).unwrap_err();
        assert_eq!((error.kind(), error.program()), (ErrorKind::NotPrepared, Some("no-such-a or no-such-b")));
    }

    #[test]
    fn go_json_and_ours() {
        let go = r#"{"HostPackages":["curl"],"HostCommands":["systemctl"],"WritablePaths":null,"After":["a.service"]}"#;
        let go: Requirements = serde_json::from_str(go).unwrap();
        let ours = Requirements::default()
            .with_package("curl")
            .with_command("systemctl")
            .with_after(UnitName::new("a.service").unwrap());
        assert_eq!(go, ours);
        let ours = ours.with_any_command(["podman", "docker"]).with_systemd_min(249);
        let json = serde_json::to_string(&ours).unwrap();
        assert_eq!(serde_json::from_str::<Requirements>(&json).unwrap(), ours);
        assert!(json.contains(r#"["systemctl",["podman","docker"]]"#), "{json}");
        let odd = ours.with_writable_path(<OsStr as OsStrExt>::from_bytes(b"/\xff"));
        let json = serde_json::to_string(&odd).unwrap();
        assert_eq!(serde_json::from_str::<Requirements>(&json).unwrap(), odd);
        assert!(serde_json::from_str::<Requirements>(r#"{"after":["--x"]}"#).is_err());
        assert!(serde_json::from_str::<Requirements>(r#"{"before":[]}"#).is_err());
    }

    #[test]
    fn covering_is_component_wise() {
        let needs = Requirements::default().with_writable_path("/m/kube1").with_any_command(["podman", "docker"]);
        assert!(needs.covers(Path::new("/m/kube1")) && needs.covers(Path::new("/m/kube1/x")));
        assert!(!needs.covers(Path::new("/m/kube10")));
        assert!(needs.declares("/usr/bin/docker") && !needs.declares("nerdctl"));
    }
}
