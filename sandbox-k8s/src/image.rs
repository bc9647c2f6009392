//! What an image must have.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use sandbox::{
    Error, ErrorKind, ExecRequest, ExecResult, Hardening, Networking, Provider, Sandbox, SandboxPath, SessionId, Spec,
};
use tokio::time::{Instant, sleep};

use crate::handle::Live;
use crate::make::Look;
use crate::names::SANDBOX;
use crate::provider::{K8s, K8sProvider};
use crate::sessions::lock;

/// Tools without which no command runs, and those that files need.
const NEEDED: &str = "dd cat env";
const FOR_FILES: &str = "stat mkdir chmod mv ln rm rmdir tar";
/// The oldest bash that does.
const BASH: (u32, u32) = (4, 4);
/// The line before an answer, since startup files of the image may speak first, and its last one.
const BEGIN: &str = "it-has";
const END: &str = "that-is-all";
/// How long looking may take, beside the call's own deadline, and when it is tried again if it fails.
const LIMIT: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(100);
/// How many images are remembered.
const REMEMBERED: usize = 1024;

/// What an image has of what a sandbox needs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageReport {
    /// Tools that are missing and without which nothing works, and the bash that is wanted if the image's is too old.
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
    /// Makes a sandbox of `image`, looks what it has, and reaps it. An image that lacks what every command needs is a report, where a
    /// provision fails.
    ///
    /// The sandbox is contained by `hardening`, which the namespace must allow: where that is one with Pod Security `restricted`,
    /// [`Hardening::restricted`]. Its networking is `unrestricted`, and nothing but what the image has is run in it.
    ///
    /// It takes as long as a provision, then at most a minute for the answer, and as long as a reap. A future that is dropped leaves the
    /// sandbox, of a session that only [`owned`](Provider::owned) tells.
    ///
    /// # Errors
    ///
    /// As a provision: `ImagePull` if it cannot be had, `Unavailable` with the runtime's words if its `/bin/bash` is missing or does
    /// not run, or if it does not answer whole in its time; and as a reap, if what it has made cannot be removed.
    pub async fn probe_image(&self, image: &str, hardening: &Hardening) -> Result<ImageReport, Error> {
        let spec = Spec::new(SessionId::generate(), image)
            .with_networking(Networking::Unrestricted)
            .with_hardening(hardening.clone());
        self.checked.check(&spec)?;
        let backend = self.checked.inner();
        let outcome = async {
            let deadline = Instant::now() + backend.place.config.ready_timeout;
            let live = backend.find_or_make(&spec, Look::No).await?;
            loop {
                match look(&live).await {
                    Ok(report) => return report,
                    Err(error)
                        if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost)
                            && Instant::now() + AGAIN < deadline =>
                    {
                        sleep(AGAIN).await;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        .await;
        let reaped = self.reap(&spec.session).await;
        let report = outcome.map_err(|e| e.during("probe the image"))?;
        reaped.map(|()| report)
    }
}

impl K8s {
    /// Looks once at each image that a sandbox is made from; answers why no command runs in it, if that is so. An error says nothing about
    /// the image.
    pub(crate) async fn look_at_image(&self, spec: &Spec, pod: &Pod, live: &Live) -> Result<Option<Error>, Error> {
        let image = image_of(pod).unwrap_or(&spec.image);
        if lock(&self.images).contains(image) {
            return Ok(None);
        }
        let report = match look(live).await? {
            Ok(report) => report,
            Err(unfit) => return Ok(Some(unfit)),
        };
        if !report.missing.is_empty() {
            let (missing, bash) = (report.missing.join(", "), report.bash);
            return Ok(Some(Error::new(ErrorKind::Unavailable).because(format!(
                "the image lacks {missing}, which commands need; its bash is {bash}, and tools count in /usr/bin and /bin"
            ))));
        }
        if !report.missing_for_files.is_empty() {
            tracing::warn!(missing = report.missing_for_files.join(", "), "the image lacks what files need");
        }
        let mut seen = lock(&self.images);
        if seen.len() >= REMEMBERED {
            seen.clear();
        }
        seen.insert(image.to_owned());
        Ok(None)
    }
}

/// Which image a Pod runs, by digest: a tag can be another image's later.
fn image_of(pod: &Pod) -> Option<&str> {
    let mut statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let id = &statuses.find(|container| container.name == SANDBOX)?.image_id;
    (!id.is_empty()).then_some(id)
}

/// Looks what an image has; the inner error is the image's own doing.
async fn look(live: &Live) -> Result<Result<ImageReport, Error>, Error> {
    let text = format!(
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin; echo {BEGIN}; echo \"${{BASH_VERSINFO[0]}}.${{BASH_VERSINFO[1]}} $UID\"; \
         for t in {NEEDED} {FOR_FILES}; do command -v \"$t\" >/dev/null || echo \"$t\"; done; echo {END}"
    );
    // The image's own working directory says nothing of its tools.
    read(&live.exec(ExecRequest::shell(text).with_workdir(SandboxPath::new("/proc")?).with_limit(LIMIT)).await?)
}

/// What an image has answered.
fn read(result: &ExecResult) -> Result<Result<ImageReport, Error>, Error> {
    let answer = result.stdout.to_string_lossy();
    let mut lines: Vec<_> = answer.lines().collect();
    // A list that was cut would lack what is missing.
    if result.timed_out || result.truncated() || result.exit_code != 0 || lines.pop() != Some(END) {
        return Err(Error::new(ErrorKind::Unavailable).because("the image did not say in time, and whole, what it has"));
    }
    let begun = lines.iter().rposition(|line| *line == BEGIN).map_or(lines.len(), |at| at + 1);
    let lines = lines.split_off(begun);
    let of_bash = |line: &str| -> Option<(String, (u32, u32), u32)> {
        let (bash, user) = line.split_once(' ')?;
        let (major, minor) = bash.split_once('.')?;
        let bounded = bash.chars().take(16).collect();
        Some((bounded, (major.parse().ok()?, minor.parse().ok()?), user.parse().unwrap_or(u32::MAX)))
    };
    let Some((bash, version, user)) = lines.first().and_then(|line| of_bash(line)) else {
        let why = "the image's bash does not run a command as it must";
        return Ok(Err(Error::new(ErrorKind::Unavailable).because(why)));
    };
    // Only what was asked for is taken from what the image says.
    let of = |tools: &str| -> Vec<String> {
        tools.split(' ').filter(|tool| lines[1..].contains(tool)).map(str::to_owned).collect()
    };
    let mut missing = of(NEEDED);
    if version < BASH {
        missing.push(format!("bash {}.{} or later", BASH.0, BASH.1));
    }
    Ok(Ok(ImageReport { missing, missing_for_files: of(FOR_FILES), bash, user }))
}

#[cfg(test)]
mod tests {
    use sandbox::Output;

    use super::*;

    fn said(text: &str) -> ExecResult {
        let out = |text: String| Output::new(text.clone(), text.len() as u64);
        ExecResult::new(0, false, out(format!("noise on stdout\nit-has\n{text}")), out(String::new()), Duration::ZERO)
    }

    #[test]
    fn what_an_image_says() {
        let report = read(&said("5.2 0\ntar\nenv\nnot-asked-for\nthat-is-all\n")).unwrap().unwrap();
        assert_eq!(
            (report.missing.clone(), report.missing_for_files.clone()),
            (vec!["env".into()], vec!["tar".into()])
        );
        assert_eq!((&*report.bash, report.user, report.is_complete()), ("5.2", 0, false));
        assert!(read(&said("5.2 1000\nthat-is-all\n")).unwrap().unwrap().is_complete());
        assert!(read(&said("that-is-all\n")).unwrap().is_err(), "it ran, and said nothing");
        let mut without = said("");
        without.stdout = Output::new("5.2 0\nthat-is-all\n".to_owned(), 18);
        assert!(read(&without).unwrap().is_err(), "who knows what those lines are");
        for line in ["5.2", "five.two 0", "5 0"] {
            assert!(read(&said(&format!("{line}\nthat-is-all\n"))).unwrap().is_err(), "{line}: of no bash");
        }
    }

    #[test]
    fn a_bash_that_is_too_old_is_named() {
        for (bash, fits) in [("3.2", false), ("4.3", false), ("4.4", true), ("5.0", true), ("10.0", true)] {
            let report = read(&said(&format!("{bash} 0\nthat-is-all\n"))).unwrap().unwrap();
            let missing: &[String] = if fits { &[] } else { &["bash 4.4 or later".to_owned()] };
            assert_eq!((report.missing.as_slice(), report.is_complete(), &*report.bash), (missing, fits, bash));
        }
    }

    #[test]
    fn an_answer_that_is_cut_says_nothing() {
        for text in ["", "5.2 0\n", "5.2 0\nta"] {
            read(&said(text)).unwrap_err();
        }
        let whole = || said("5.2 0\nthat-is-all\n");
        let mut each = [whole(), whole(), whole()];
        each[0].timed_out = true;
        each[1].exit_code = 1;
        each[2].stdout.total += 1;
        for result in &each {
            read(result).unwrap_err();
        }
    }
}
