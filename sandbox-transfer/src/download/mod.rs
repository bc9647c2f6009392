//! Out of a sandbox: an export, unpacked as hostile input.

mod entry;
mod place;
mod source;
mod unpack;

use std::fmt;
use std::future::Future;
use std::io::Read;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use sandbox::{Effect, Error, ErrorKind, ExportStream, Provider, SandboxPath, SessionId};
use tokio::sync::mpsc;

use crate::options::Meter;
use crate::{Limits, Progress, Report};
use source::{ChannelReader, Piece};

/// How many pieces of the stream wait for the disk.
const PIECES: usize = 4;

/// Downloads for every [`Provider`]; not to be implemented.
pub trait ProviderTransferExt: Provider {
    /// Exports `root` of a session and unpacks it as `target` on this machine.
    ///
    /// `target` becomes what `root` is: a directory or a file. What is taken: regular files and directories; symbolic links if
    /// [`DownloadOptions::with_links`] asks for them, and then only relative ones that stay inside. Modes are cut to `0777` and this process's
    /// umask, and a directory is always its owner's to read, write and search; owners, times, attributes and the other mode bits
    /// are not taken.
    ///
    /// - Nothing is ever made outside of `target`, whatever the archive says and whoever swaps directories for links meanwhile.
    /// - Unless [`DownloadOptions::in_place`] says otherwise, `target` is there whole or not at all: everything is unpacked into a
    ///   fresh directory beside it, and renamed once the archive has ended properly and the export's own verdict is good.
    /// - Memory is bounded, however large the archive or its names are.
    ///
    /// Dropping the future ends the export; what is half unpacked is removed a moment later. A process that is
    /// killed meanwhile leaves its `.sandbox-download-*` directory beside the target: nobody else can tell it from one in use, so remove it
    /// where no download runs. A sandbox can be as slow as it likes
    /// without being silent: bound the whole, where that matters, by a timeout around the call.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if something is at `target`. [`ErrorKind::ArchiveRefused`] with a [`Refused`](crate::Refused) for what is
    /// not taken, unless the options leave it out, and for an archive that does not end properly. [`ErrorKind::LimitExceeded`] with
    /// an [`Exceeded`](crate::Exceeded). [`ErrorKind::HostFile`] for what this machine refuses. `DeadlineExceeded` if nothing came for
    /// [`DownloadOptions::with_silence`]. Otherwise the errors of [`Provider::export`]. The effect is `None` where nothing is left of it; `Partial`
    /// where something is, and the reason says where.
    fn download(
        &self,
        session: &SessionId,
        root: &SandboxPath,
        target: impl AsRef<Path> + Send,
        options: DownloadOptions,
    ) -> impl Future<Output = Result<Report, Error>> + Send {
        async move {
            let complete = |e: Error| e.during("download").in_session(session);
            place::check(target.as_ref(), &options).map_err(complete)?;
            let stream = self.export(session, root).await?;
            run(stream, root.clone(), target.as_ref(), options).await.map_err(complete)
        }
    }
}

impl<P: Provider + ?Sized> ProviderTransferExt for P {}

/// Unpacks an archive that was kept, as [`ProviderTransferExt::download`] does; it blocks, and `archive` must fail rather than end where
/// it is not whole. `root` is the path that was exported.
///
/// # Errors
///
/// As [`ProviderTransferExt::download`].
pub fn unpack(
    archive: impl Read,
    root: &SandboxPath,
    target: impl AsRef<Path>,
    options: DownloadOptions,
) -> Result<Report, Error> {
    place::check(target.as_ref(), &options)
        .and_then(|()| place::run(archive, root, target.as_ref(), options))
        .map_err(|e| e.during("unpack"))
}

async fn run(
    stream: ExportStream,
    root: SandboxPath,
    target: &Path,
    options: DownloadOptions,
) -> Result<Report, Error> {
    let (pieces, source) = mpsc::channel(PIECES);
    let (silence, target) = (options.silence, target.to_owned());
    // Ended by the channel: it fails the reader as soon as this future is gone.
    let disk = tokio::task::spawn_blocking(move || place::run(ChannelReader::new(source), &root, &target, options));
    let verdict = pump(stream, pieces, silence).await;
    let unpacked = disk
        .await
        .unwrap_or_else(|e| Err(Error::new(ErrorKind::Other).because("the unpacking ended early").caused_by(e)));
    match (verdict, unpacked) {
        (Ok(()), unpacked) => unpacked,
        // It failed by itself before the stream did.
        (Err(_), Err(own)) if own.kind() != ErrorKind::Lost => Err(own),
        // The disk's side only knows that the bytes stopped; what it left is still its own word.
        (Err(failure), Err(left)) => Err(match (left.effect(), left.reason()) {
            (Effect::None, _) | (_, None) => failure.with_effect(Effect::None),
            (_, Some(left)) => {
                let reason = format!("{}; {left}", failure.reason().unwrap_or("the transfer broke"));
                failure.with_effect(Effect::Partial).because(reason)
            }
        }),
        (Err(failure), Ok(_)) => Err(failure.with_effect(Effect::Partial)),
    }
}

/// Hands the stream over piece by piece, and its end only where that is verified.
async fn pump(mut stream: ExportStream, pieces: mpsc::Sender<Piece>, silence: Duration) -> Result<(), Error> {
    loop {
        let next = pin!(tokio::time::timeout(silence, stream.next()));
        let piece = match select(pin!(pieces.closed()), next).await {
            // Nobody there: the unpacking has failed, and says why.
            Either::Left(_) => return Ok(()),
            Either::Right((Err(_), _)) => {
                return Err(Error::new(ErrorKind::DeadlineExceeded).because(format!("nothing came for {silence:?}")));
            }
            Either::Right((Ok(None), _)) => {
                let _ = pieces.send(Piece::End).await;
                return Ok(());
            }
            Either::Right((Ok(Some(piece)), _)) => piece?,
        };
        if pieces.send(Piece::Data(piece)).await.is_err() {
            return Ok(());
        }
    }
}

/// What becomes of an entry that is not taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnRefusal {
    /// The download fails.
    #[default]
    Fail,
    /// It is left out, and [`Report::left_out`] names it; unless it is the one at the top, without which nothing is left.
    LeaveOut,
}

/// How to download. The bounds of [`Limits`], and an archive that is cut or is none, fail in any case.
pub struct DownloadOptions {
    limits: Limits,
    refusal: OnRefusal,
    links: bool,
    in_place: bool,
    silence: Duration,
    meter: Meter,
}

impl Default for DownloadOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            refusal: OnRefusal::Fail,
            links: false,
            in_place: false,
            silence: Duration::from_secs(60),
            meter: Meter::default(),
        }
    }
}

impl DownloadOptions {
    /// Bounds it by `limits`.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Says what becomes of an entry that is not taken; it fails the download unless this says otherwise.
    #[must_use]
    pub fn on_refusal(mut self, refusal: OnRefusal) -> Self {
        self.refusal = refusal;
        self
    }

    /// Takes symbolic links that are relative and stay inside the target.
    #[must_use]
    pub fn with_links(mut self) -> Self {
        self.links = true;
        self
    }

    /// Unpacks right into the target, which may be there: a directory then gains what it does not have, and nothing is replaced
    /// (what is there already counts as a [`Duplicate`](crate::Rule::Duplicate)). A failure leaves what was unpacked so far, except an
    /// unfinished file.
    #[must_use]
    pub fn in_place(mut self) -> Self {
        self.in_place = true;
        self
    }

    /// Gives up when nothing came for `silence`; 60 seconds unless this says otherwise.
    #[must_use]
    pub fn with_silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Calls `told` with each piece and at the end of each file, on the thread that unpacks.
    #[must_use]
    pub fn with_progress(mut self, told: impl FnMut(Progress) + Send + 'static) -> Self {
        self.meter = Meter::telling(told);
        self
    }
}

impl fmt::Debug for DownloadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DownloadOptions")
            .field("limits", &self.limits)
            .field("refusal", &self.refusal)
            .field("links", &self.links)
            .field("in_place", &self.in_place)
            .field("silence", &self.silence)
            .finish_non_exhaustive()
    }
}
