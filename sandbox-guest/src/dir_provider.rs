//! A provider of sandboxes on this machine that keeps their books in a directory.

mod books;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox::{
    Capabilities, Death, Error, ErrorKind, ExecRequest, ExecResult, ExportStream, FileBatch, FileWrite, Owned,
    OwnedState, OwnedStream, Process, Provider, ReadStream, Recreated, Sandbox, SandboxPath, SessionId, SpawnRequest,
    Spec,
};

use self::books::{Books, Record};
use crate::Guest;
use crate::record::Nonce;

/// How the sandboxes of a [`DirProvider`] are made, entered and ended: what differs from backend to backend.
///
/// Each sandbox has a directory of its own, in which the maker keeps what finds the sandbox again from any process. `make` and `end`
/// are called for one session at a time, across processes.
#[async_trait]
pub trait Maker: std::fmt::Debug + Send + Sync + 'static {
    /// What the sandboxes promise, as [`Provider::capabilities`].
    fn capabilities(&self) -> Capabilities;

    /// Makes the sandbox of `spec` and answers once a shell can be started in it. `dir` is there, and empty.
    ///
    /// What a dropped future or an error leaves is ended by [`end`](Self::end).
    ///
    /// # Errors
    ///
    /// As [`Provider::provision`].
    async fn make(&self, dir: &Path, spec: &Spec) -> Result<(), Error>;

    /// A guest in the sandbox that was made in `dir`, or `None` if that is dead. Never waits; asked only of one that was finished.
    ///
    /// The guest's carrier is bound to that very sandbox, as every [`Carrier`](crate::Carrier) is.
    fn enter(&self, dir: &Path, spec: &Spec) -> Option<Guest>;

    /// Ends all that runs of the sandbox of `dir`, also of one that is half made, and waits until it is gone. The directory, where there is
    /// one, is removed afterwards; what can stand in the way of that, such as a mount, is gone by then, too.
    ///
    /// Succeeds when nothing runs. A dropped future can be repeated.
    ///
    /// # Errors
    ///
    /// As [`Provider::reap`].
    async fn end(&self, dir: &Path) -> Result<(), Error>;
}

/// A provider of sandboxes on this machine: a [`Maker`] makes them, a directory has the books.
///
/// It keeps the rules of [`Provider`] that are the same wherever sandboxes are found by their files: one at a time changes a session,
/// across processes; a session is made once and found again from everywhere; what was begun and never finished is not taken for a
/// sandbox, is listed and is removed; one that is dead is replaced, and [`Sandbox::recreated`] says so; a handle never touches
/// a later sandbox. Put [`Checked`](sandbox::Checked) around it, as around any provider.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use sandbox::{Provider, ProviderExt};
/// # use sandbox_guest::{DirProvider, Maker};
/// fn provider(mine: impl Maker) -> Arc<dyn Provider> {
///     Arc::new(DirProvider::new("/var/lib/mine", mine).checked())
/// }
/// ```
///
/// Below the directory, which is made when it is needed and is its owner's alone: `ID/record.json` is the spec of a session, variables
/// included, `ID/place` the maker's directory, and `ID.lock` is there while somebody changes the session. A record that is not
/// legible, as of another version of the program, is `Unavailable` and `OwnedState::Unknown`; a reap removes it and ends its sandbox.
///
/// A call that changes a session waits for whoever else does so, and fails as `Busy` after [30 seconds](Self::with_patience). Futures
/// can be dropped at any point; dropping the provider ends nothing.
#[derive(Debug)]
pub struct DirProvider<M> {
    shared: Shared<M>,
}

/// What a provider and its handles have in common.
#[derive(Debug)]
struct Shared<M> {
    books: Books,
    maker: Arc<M>,
}

impl<M> Clone for Shared<M> {
    fn clone(&self) -> Self {
        Self { books: self.books.clone(), maker: Arc::clone(&self.maker) }
    }
}

impl<M: Maker> DirProvider<M> {
    /// A provider whose books are in `dir`. Touches nothing yet.
    pub fn new(dir: impl Into<PathBuf>, maker: M) -> Self {
        Self { shared: Shared { books: Books::new(dir.into()), maker: Arc::new(maker) } }
    }

    /// Sets how long a call waits while another changes the same session.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.shared.books.patience = patience;
        self
    }
}

impl<M: Maker> Shared<M> {
    fn handle(&self, record: Record, guest: Guest) -> Arc<Handle<M>> {
        Arc::new(Handle { shared: self.clone(), record, guest })
    }

    /// The session's sandbox, if it lives.
    fn find(&self, session: &SessionId) -> Result<Arc<Handle<M>>, Error> {
        let absent = || Error::new(ErrorKind::NotFound);
        let record = self.books.read(session)?.ok_or_else(absent)?;
        if !record.finished {
            return Err(absent().because("it is being made, or was never finished"));
        }
        let guest = self.maker.enter(&self.books.place(session), &record.spec);
        let guest = guest.ok_or_else(|| absent().with_death(Death::Ended))?;
        Ok(self.handle(record, guest))
    }

    /// What is to be told of a session, unless it has gone meanwhile.
    fn describe(&self, session: SessionId) -> Option<Owned> {
        let place = self.books.place(&session);
        let Ok(Some(record)) = self.books.read(&session) else {
            let there = self.books.has(&session);
            return there.then(|| Owned::new(session, OwnedState::Unknown, ""));
        };
        let state = match record.finished {
            false => OwnedState::Starting,
            true if self.maker.enter(&place, &record.spec).is_some() => OwnedState::Running,
            true => OwnedState::Ended,
        };
        Some(Owned::new(session, state, record.nonce))
    }

    /// Ends and removes what there is of a session. Whoever calls it holds the lock.
    async fn remove(&self, session: &SessionId) -> Result<(), Error> {
        if self.books.has(session) {
            self.maker.end(&self.books.place(session)).await?;
        }
        self.books.remove(session)
    }

    /// Makes a sandbox where there is none that lives. Whoever calls it holds the lock.
    async fn make(&self, spec: &Spec, before: Option<Record>) -> Result<Arc<Handle<M>>, Error> {
        self.remove(&spec.session).await?;
        let recreated = before.and_then(|before| match before.finished {
            true => Some(Recreated::new(Death::Ended, "it was found dead")),
            // What was begun in its stead was never finished.
            false => before.recreated,
        });
        let nonce = Nonce::new().as_str().to_owned();
        let mut record = Record { nonce, spec: spec.clone(), finished: false, recreated };
        self.books.begin(&record)?;
        let place = self.books.place(&spec.session);
        let work = async {
            self.maker.make(&place, spec).await?;
            let ended = || Error::new(ErrorKind::Unavailable).because("it ended as soon as it was made");
            let guest = self.maker.enter(&place, spec).ok_or_else(ended)?;
            // What keeps a shell from starting shows now, and not in the first command.
            guest.warm_up().await?;
            record.finished = true;
            self.books.write(&record)?;
            Ok(guest)
        };
        match work.await {
            Ok(guest) => Ok(self.handle(record, guest)),
            Err(error) => {
                self.remove(&spec.session).await?;
                record.finished = false;
                // That the files of an earlier one are gone is still to be told.
                if record.recreated.is_some() {
                    self.books.begin(&record)?;
                }
                Err(error)
            }
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<M: Maker> Provider for DirProvider<M> {
    fn capabilities(&self) -> Capabilities {
        self.shared.maker.capabilities()
    }

    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        let _lock = self.shared.books.lock(&spec.session).await?;
        match self.shared.find(&spec.session) {
            Ok(there) => match there.record.spec.differences(spec) {
                same if same.is_empty() => Ok(there),
                differences => Err(Error::new(ErrorKind::SpecMismatch).because(differences)),
            },
            Err(absent) if absent.kind() == ErrorKind::NotFound => {
                let before = self.shared.books.read(&spec.session)?;
                Ok(self.shared.make(spec, before).await?)
            }
            Err(error) => Err(error),
        }
    }

    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        Ok(self.shared.find(session)?)
    }

    async fn owned(&self) -> Result<OwnedStream, Error> {
        let shared = self.shared.clone();
        let owned = self.shared.books.sessions()?.filter_map(move |session| match session {
            Ok(session) => shared.describe(session).map(Ok),
            Err(error) => Some(Err(error)),
        });
        Ok(OwnedStream::new(futures::stream::iter(owned)))
    }

    async fn reap(&self, session: &SessionId) -> Result<(), Error> {
        let books = &self.shared.books;
        if !books.has(session) && !books.is_locked(session) {
            return Ok(());
        }
        let _lock = books.lock(session).await?;
        self.shared.remove(session).await
    }

    async fn export(&self, session: &SessionId, root: &SandboxPath) -> Result<ExportStream, Error> {
        self.shared.find(session)?.guest.export(root).await
    }
}

/// One sandbox, and a guest in it.
#[derive(Debug)]
struct Handle<M> {
    shared: Shared<M>,
    record: Record,
    guest: Guest,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<M: Maker> Sandbox for Handle<M> {
    fn id(&self) -> &SessionId {
        &self.record.spec.session
    }

    fn recreated(&self) -> Option<&Recreated> {
        self.record.recreated.as_ref()
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecResult, Error> {
        self.guest.exec(request).await
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Process, Error> {
        self.guest.spawn(request).await
    }

    async fn read(&self, path: &SandboxPath, limit: u64) -> Result<ReadStream, Error> {
        self.guest.read(path, limit).await
    }

    async fn write(&self, file: FileWrite<'_>) -> Result<(), Error> {
        self.guest.write(file).await
    }

    async fn write_many(&self, files: FileBatch<'_>) -> Result<(), Error> {
        self.guest.write_many(files).await
    }

    async fn destroy(&self) -> Result<(), Error> {
        let (books, session) = (&self.shared.books, self.id());
        let _lock = books.lock(session).await?;
        // Never a later one of the same session.
        if books.read(session)?.is_some_and(|there| there.nonce == self.record.nonce) {
            self.shared.remove(session).await?;
        }
        self.guest.close_idle();
        Ok(())
    }
}
