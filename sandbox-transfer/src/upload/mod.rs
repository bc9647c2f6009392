//! Into a sandbox: a folder of this machine.

mod commands;
mod feed;
mod walk;

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbox::{Effect, Error, ErrorKind, ExecRequest, FileBatch, Sandbox, SandboxPath};
use tokio::sync::mpsc;

use crate::options::Meter;
use crate::{Limits, Progress, Report};
use feed::Feed;

/// How many items of the folder wait for the sandbox.
const ITEMS: usize = 16;

/// Uploads for every [`Sandbox`]; not to be implemented.
pub trait SandboxTransferExt: Sandbox {
    /// Sends the folder `from` of this machine, so that what it holds lies below `into`.
    ///
    /// Files keep their bytes, names and permission bits (up to `0777`); directories arrive also where they are empty, with the mode that
    /// the sandbox gives a new one; symbolic links arrive as links if they are relative and stay in the folder. What is there
    /// already stays, unless a file or link of that name arrives. Files travel through [`Sandbox::write_many`]; directories and
    /// links are made by `mkdir` and `ln` in the sandbox, through [`Sandbox::exec`].
    ///
    /// - Nothing outside of `from` is ever sent: no link in it is followed, whoever changes it meanwhile.
    /// - Links that leave the folder, sockets, FIFOs and devices are left out, and [`Report::left_out`] names them.
    /// - Names arrive byte for byte.
    /// - Files are streamed: memory is bounded, whatever their sizes and number.
    /// - It stops at the first failure.
    ///
    /// Of a file that grows meanwhile, the bytes up to its first size are sent. Dropping the future ends the transfer; what was sent
    /// stays.
    ///
    /// # Errors
    ///
    /// Those of [`Sandbox::write_many`] and [`Sandbox::exec`], with the path in the sandbox; [`ErrorKind::LimitExceeded`] with an
    /// [`Exceeded`](crate::Exceeded); [`ErrorKind::HostFile`] for what this machine refuses. The effect is `Partial` where
    /// something was sent.
    fn upload_dir(
        &self,
        from: impl AsRef<Path> + Send,
        into: &SandboxPath,
        options: UploadOptions,
    ) -> impl Future<Output = Result<Report, Error>> + Send {
        let (from, into) = (from.as_ref().to_owned(), into.clone());
        async move { run(self, from, into, options).await.map_err(|e| e.during("upload").in_session(self.id())) }
    }
}

impl<S: Sandbox + ?Sized> SandboxTransferExt for S {}

async fn run<S: Sandbox + ?Sized>(
    sandbox: &S,
    from: PathBuf,
    into: SandboxPath,
    options: UploadOptions,
) -> Result<Report, Error> {
    options.limits.validate()?;
    // Before anything is sent: what a command refuses for it would come in the middle.
    let (limit, most) = (options.command_limit, ExecRequest::MAX_LIMIT);
    if limit.is_zero() || limit > most {
        let rule = format!("command_limit {limit:?}: more than 0 and at most {most:?}");
        return Err(Error::new(ErrorKind::InvalidRequest).because(rule));
    }
    let meter = Arc::new(Mutex::new(options.meter));
    let (items, source) = mpsc::channel(ITEMS);
    let plan = walk::Plan { from, into, limits: options.limits, filter: options.filter };
    // Ended by the channel: nobody takes its next item once this future is gone.
    let walk = tokio::task::spawn_blocking(move || walk::run(plan, &items));
    let mut feed = Feed::new(source, Arc::clone(&meter));
    let sent = send(sandbox, &mut feed, options.command_limit).await;
    let begun = feed.begun;
    // So that a walk that waits to hand over its next item ends.
    drop(feed);
    let walked =
        walk.await.unwrap_or_else(|e| Err(Error::new(ErrorKind::Other).because("the walk ended early").caused_by(e)));
    let result = match (sent, walked) {
        (Err(failure), _) | (Ok(()), Err(failure)) => Err(failure),
        (Ok(()), Ok(report)) => Ok(report),
    };
    result.map_err(|e| if begun && e.effect() == Effect::None { e.with_effect(Effect::Partial) } else { e })
}

/// Sends what the walk finds, batch by batch: files first, then the directories and links that came up among them.
async fn send<S: Sandbox + ?Sized>(sandbox: &S, feed: &mut Feed, limit: Duration) -> Result<(), Error> {
    while feed.more().await {
        if feed.has_file() {
            let result = sandbox.write_many(FileBatch::stream(feed.files())).await;
            if let Err(e) = result {
                return Err(feed.name(e));
            }
            feed.begun = true;
            if feed.has_file() {
                return Err(Error::new(ErrorKind::Other).because("the backend answered before it took the files"));
            }
        }
        let directories = std::mem::take(&mut feed.directories);
        if !directories.is_empty() {
            feed.begun = true;
            commands::make_directories(sandbox, &directories, limit).await?;
        }
        let links = std::mem::take(&mut feed.links);
        if !links.is_empty() {
            feed.begun = true;
            commands::make_links(sandbox, &links, limit).await?;
        }
    }
    Ok(())
}

/// Something in the folder, before it is sent.
#[derive(Debug)]
#[non_exhaustive]
pub struct Candidate<'a> {
    /// Where it lies, relative to the folder.
    pub path: &'a Path,
    /// What it is.
    pub kind: CandidateKind,
    /// The bytes of a file, else 0.
    pub size: u64,
}

/// What a [`Candidate`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CandidateKind {
    /// A regular file.
    File,
    /// A directory: a no leaves out all that it holds.
    Directory,
    /// A symbolic link.
    Link,
    /// A socket, a FIFO or a device: with a no it is not named among what is left out.
    Other,
}

/// The caller's function that says what is sent.
type Filter = Box<dyn FnMut(&Candidate<'_>) -> bool + Send>;

/// How to upload.
pub struct UploadOptions {
    limits: Limits,
    filter: Option<Filter>,
    command_limit: Duration,
    meter: Meter,
}

impl Default for UploadOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            filter: None,
            command_limit: Duration::from_secs(60),
            meter: Meter::default(),
        }
    }
}

impl UploadOptions {
    /// Bounds it by `limits`.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sends only what `filter` says yes to. It is asked on the thread that reads the folder, for a directory before what it holds.
    #[must_use]
    pub fn with_filter(mut self, filter: impl FnMut(&Candidate<'_>) -> bool + Send + 'static) -> Self {
        self.filter = Some(Box::new(filter));
        self
    }

    /// Bounds each command that makes directories or links in the sandbox; 60 seconds unless this says otherwise. More than 0, and at most
    /// [`ExecRequest::MAX_LIMIT`].
    #[must_use]
    pub fn with_command_limit(mut self, limit: Duration) -> Self {
        self.command_limit = limit;
        self
    }

    /// Calls `told` with each piece that the sandbox takes, and at the end of each file.
    #[must_use]
    pub fn with_progress(mut self, told: impl FnMut(Progress) + Send + 'static) -> Self {
        self.meter = Meter::telling(told);
        self
    }
}

impl fmt::Debug for UploadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UploadOptions")
            .field("limits", &self.limits)
            .field("filter", &self.filter.is_some())
            .field("command_limit", &self.command_limit)
            .finish_non_exhaustive()
    }
}
