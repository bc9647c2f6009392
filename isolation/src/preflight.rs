//! Checks of a host before anything on it is changed.
//!
//! A [`Preflight`] runs checks over a [`HostView`] and gives a [`Report`]. Nothing is changed: no file is
//! written, no module is loaded, no unit is touched, and it can be repeated as often as wanted. Messages
//! name logical targets, never the content of a file, a token or a URL.
//!
//! A result is ok, a warning or an error. Errors are fatal unless their check is in the ignore list, which
//! makes them warnings; [`Preflight::fail_on_warnings`] makes every warning fatal.
//!
//! ```no_run
//! use std::time::Duration;
//! use isolation::preflight::{HostView, Input, Preflight};
//! use isolation::{Mode, OpCtx, Requirements};
//!
//! # async fn example() {
//! let input = Input::new(Mode::Nspawn, Requirements::default().with_command("systemctl"));
//! let ctx = OpCtx::new(Duration::from_secs(30));
//! let report = Preflight::new(input).ignore("swap-active").run(&ctx, &HostView::this()).await;
//! println!("{report}");
//! # }
//! ```

mod checks;
mod host;
mod report;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

pub use self::host::HostView;
pub use self::report::{Counts, Outcome, Report, ReportStatus, Severity};
use crate::{Grant, Mode, OpCtx, Requirements, SlotName, SlotPair};

/// How long one check may take.
const CHECK_LIMIT: Duration = Duration::from_secs(20);

/// What is to be installed, as far as the checks have to know it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Input {
    /// The mode.
    pub mode: Mode,
    /// Modes the caller has opted into.
    pub opted_in: Vec<Mode>,
    /// Modes this program operates.
    pub operated: Vec<Mode>,
    /// The mode that an earlier installation wrote down, as it stands there.
    pub recorded_mode: Option<String>,
    /// What the backend needs.
    pub requirements: Requirements,
    /// What the node will ask of the host.
    pub grants: Vec<Grant>,
    /// Positions of grants whose source may be missing.
    pub optional_grants: Vec<usize>,
    /// The slots.
    pub pair: SlotPair,
    /// Slots that run, as the caller knows them.
    pub active: Vec<SlotName>,
    /// The host can't install packages.
    pub offline: bool,
    /// The caller resumes an installation of its own: what it left is no foreign deployment.
    pub resume: bool,
    /// What must not be there before a first installation.
    pub foreign: Vec<PathBuf>,
    /// Where roots will be.
    pub roots: PathBuf,
    /// How much must be free where the roots will be.
    pub free_bytes: u64,
    /// Kernel settings that must hold already, as dotted name and value.
    pub sysctls: Vec<(String, String)>,
    /// Ports that nobody else may listen on.
    pub ports: Vec<u16>,
}

impl Input {
    /// The usual input: 8 GiB free below `/var/lib`, the kubelet's port.
    pub fn new(mode: Mode, requirements: Requirements) -> Self {
        Self {
            mode,
            opted_in: Vec::new(),
            operated: Mode::ALL.to_vec(),
            recorded_mode: None,
            requirements,
            grants: Vec::new(),
            optional_grants: Vec::new(),
            pair: SlotPair::default(),
            active: Vec::new(),
            offline: false,
            resume: false,
            foreign: Vec::new(),
            roots: PathBuf::from("/var/lib"),
            free_bytes: 8 << 30,
            sysctls: Vec::new(),
            ports: vec![10250],
        }
    }

    /// Sets the grants.
    #[must_use]
    pub fn with_grants(mut self, grants: Vec<Grant>) -> Self {
        self.grants = grants;
        self
    }

    /// Sets what must be free where the roots will be.
    #[must_use]
    pub fn with_roots(mut self, roots: impl Into<PathBuf>, free_bytes: u64) -> Self {
        self.roots = roots.into();
        self.free_bytes = free_bytes;
        self
    }
}

/// What one check found about one target.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at, by its logical name.
    pub target: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is the matter, for humans.
    pub message: String,
}

impl Finding {
    /// All is well.
    pub fn ok(target: impl Into<String>) -> Self {
        Self { target: target.into(), severity: Severity::Ok, message: "ok".to_owned() }
    }

    /// It may go wrong.
    pub fn warning(target: impl Into<String>, message: impl Into<String>) -> Self {
        Self { target: target.into(), severity: Severity::Warning, message: message.into() }
    }

    /// It will go wrong.
    pub fn error(target: impl Into<String>, message: impl Into<String>) -> Self {
        Self { target: target.into(), severity: Severity::Error, message: message.into() }
    }
}

/// One check. Implement it for what only your program knows, and add it with [`Preflight::with_check`].
///
/// A check changes nothing and can be repeated.
#[async_trait]
pub trait Check: fmt::Debug + Send + Sync {
    /// Its name, for reports and for the ignore list.
    fn name(&self) -> &str;

    /// Looks, and says what it found; nothing at all if it does not apply.
    async fn run(&self, ctx: &OpCtx, host: &HostView, input: &Input) -> Vec<Finding>;
}

/// A list of checks, and how strict to be.
#[derive(Debug)]
pub struct Preflight {
    input: Input,
    checks: Vec<Box<dyn Check>>,
    ignore: Vec<String>,
    fail_on_warnings: bool,
}

impl Preflight {
    /// Every check that fits every backend.
    pub fn new(input: Input) -> Self {
        Self { input, checks: checks::all(), ignore: Vec::new(), fail_on_warnings: false }
    }

    /// Adds a check.
    #[must_use]
    pub fn with_check(mut self, check: impl Check + 'static) -> Self {
        self.checks.push(Box::new(check));
        self
    }

    /// Makes the errors of a check warnings; `all` means every check.
    #[must_use]
    pub fn ignore(mut self, name: impl Into<String>) -> Self {
        self.ignore.push(name.into());
        self
    }

    /// Makes warnings fatal, also those that were errors and are ignored.
    #[must_use]
    pub fn fail_on_warnings(mut self, yes: bool) -> Self {
        self.fail_on_warnings = yes;
        self
    }

    /// The names of the checks, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.checks.iter().map(|check| check.name())
    }

    /// Runs every check, one after the other. A check that takes too long is an error of that check.
    pub async fn run(&self, ctx: &OpCtx, host: &HostView) -> Report {
        let mut outcomes = Vec::new();
        for check in &self.checks {
            let narrow = ctx.within(CHECK_LIMIT);
            let found = async { Ok(check.run(&narrow, host, &self.input).await) };
            let found = narrow.bound("run the check", found).await;
            let found = found.unwrap_or_else(|error| vec![Finding::error("check", error.to_string())]);
            let ignored = self.ignore.iter().any(|name| name == "all" || name == check.name());
            outcomes.extend(found.into_iter().map(|finding| Outcome::new(check.name(), finding, ignored)));
        }
        Report::new(outcomes, self.fail_on_warnings)
    }
}
