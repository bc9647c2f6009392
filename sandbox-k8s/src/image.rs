//! What an image must have.

use std::sync::Arc;
use std::time::Duration;

use sandbox::{Error, ErrorKind, ExecRequest, Networking, Provider, Sandbox, SessionId, Spec};

use crate::handle::Live;
use crate::provider::{K8s, K8sProvider};

/// Tools without which no command runs, and those that files need.
const NEEDED: &str = "dd cat env";
const FOR_FILES: &str = "stat mkdir chmod mv ln rm rmdir tar";
/// How long looking may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How many images are remembered.
const REMEMBERED: usize = 1024;

/// What an image has of what a sandbox needs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageReport {
    /// Tools that are missing and without which nothing works.
    pub missing: Vec<String>,
    /// Tools that are missing and without which files or exports fail, the others work.
    pub missing_for_files: Vec<String>,
    /// The version of its bash, as in `5.2`.
    pub bash: String,
    /// The user that commands run as in the probed sandbox.
    pub user: u32,
}

impl ImageReport {
    /// Whether commands, files and exports all work.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.missing_for_files.is_empty()
    }
}

impl K8sProvider {
    /// Makes a sandbox of `image`, looks what it has, and reaps it.
    ///
    /// # Errors
    ///
    /// As a provision: `ImagePull` if it cannot be had, `Unavailable` with the runtime's words if its `/bin/bash` is missing or does
    /// not run.
    pub async fn probe_image(&self, image: &str) -> Result<ImageReport, Error> {
        let spec = Spec::new(SessionId::generate(), image).with_networking(Networking::Unrestricted);
        spec.validate()?;
        let backend = self.checked.inner();
        let outcome = async {
            let live = backend.find_or_make(&spec).await?;
            look(&live).await
        }
        .await;
        let reaped = self.reap(&spec.session).await;
        let report = outcome.map_err(|e| e.during("probe the image"))?;
        reaped.map(|()| report)
    }
}

impl K8s {
    /// Looks once at each image that a sandbox is made from.
    ///
    /// # Errors
    ///
    /// `Unavailable`, naming the tools that are missing.
    pub(crate) async fn look_at_image(&self, spec: &Spec, live: &Arc<Live>) -> Result<(), Error> {
        if self.has_seen(&spec.image, false) {
            return Ok(());
        }
        let report = look(live).await?;
        if !report.missing.is_empty() {
            let missing = report.missing.join(", ");
            return Err(Error::new(ErrorKind::Unavailable)
                .because(format!("the image lacks {missing}; commands need it in /usr/bin or /bin")));
        }
        if !report.missing_for_files.is_empty() {
            tracing::warn!(missing = report.missing_for_files.join(", "), "the image lacks what files need");
        }
        self.has_seen(&spec.image, true);
        Ok(())
    }

    /// Whether the image was looked at; it is now, with `remember`.
    fn has_seen(&self, image: &str, remember: bool) -> bool {
        let mut seen = self.images.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if remember {
            if seen.len() >= REMEMBERED {
                seen.clear();
            }
            return !seen.insert(image.to_owned());
        }
        seen.contains(image)
    }
}

async fn look(live: &Live) -> Result<ImageReport, Error> {
    let text = format!(
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin; echo \"${{BASH_VERSINFO[0]}}.${{BASH_VERSINFO[1]}} $UID\"; \
         for t in {NEEDED} {FOR_FILES}; do command -v \"$t\" >/dev/null || echo \"$t\"; done"
    );
    let result = live.exec(ExecRequest::shell(text).with_limit(LIMIT)).await?;
    let answer = result.stdout.to_string_lossy().into_owned();
    let mut lines = answer.lines();
    let head = lines.next().and_then(|line| line.split_once(' '));
    let (bash, user) = head.ok_or_else(|| {
        Error::new(ErrorKind::Unavailable).because("the image's bash does not run a command as it must")
    })?;
    let missing: Vec<_> = lines.collect();
    // Only what was asked for is taken from what the image says.
    let of = |tools: &str| -> Vec<String> {
        tools.split(' ').filter(|tool| missing.contains(tool)).map(str::to_owned).collect()
    };
    Ok(ImageReport {
        missing: of(NEEDED),
        missing_for_files: of(FOR_FILES),
        bash: bash.chars().take(16).collect(),
        user: user.parse().unwrap_or(u32::MAX),
    })
}
