//! A provider of one's own, written from the documentation alone: commands in namespaces made by `unshare`, and nothing claimed.
//!
//! It shows how little a backend needs to pass the profile `core`. It is no containment against anybody who means harm.

mod cell;
mod command;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sandbox::{
    Capabilities, Effect, Error, ErrorKind, ExportStream, Owned, OwnedState, OwnedStream, Provider, ProviderExt,
    Sandbox, SandboxPath, SessionId, Spec, async_trait,
};

pub use cell::{Cell, Init};

/// Cells below one directory: `ID/spec` is what was asked for, `ID/init` its first process, `ID.lock` whoever changes it.
#[derive(Debug)]
pub struct Cells {
    base: PathBuf,
}

impl Cells {
    /// The cells below `base`, behind the checks that are the same for every backend.
    pub fn below(base: impl Into<PathBuf>) -> Arc<dyn Provider> {
        Arc::new(Self::new(base).checked())
    }

    /// The same without the checks, for a provider that is built upon this one.
    pub fn new(base: impl Into<PathBuf>) -> Self {
        Self { base: base.into() }
    }

    /// Waits until nobody else changes the session; the lock goes with the file.
    async fn lock(&self, session: &SessionId) -> Result<std::fs::File, Error> {
        let file = std::fs::File::create(self.base.join(format!("{session}.lock"))).map_err(fault)?;
        for _ in 0..6000 {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        Err(Error::new(ErrorKind::Busy))
    }

    /// The session's cell, if it lives.
    pub fn find(&self, session: &SessionId) -> Option<Cell> {
        let dir = self.base.join(session.as_str());
        let init = Init::read(&dir).filter(Init::lives)?;
        let spec = serde_json::from_slice(&std::fs::read(dir.join("spec")).ok()?).ok()?;
        Some(Cell { spec, init, dir })
    }

    async fn remove(&self, session: &SessionId) -> Result<(), Error> {
        let dir = self.base.join(session.as_str());
        if let Some(init) = Init::read(&dir) {
            init.end().await?;
        }
        // Whoever was making it was killed a moment ago, and may still have been at work.
        for _ in 0..500 {
            match std::fs::remove_dir_all(&dir) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
                Err(e) if e.kind() != std::io::ErrorKind::DirectoryNotEmpty => return Err(fault(e)),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                Ok(()) => return Ok(()),
            }
        }
        Err(Error::new(ErrorKind::DeadlineExceeded).with_effect(Effect::Unknown))
    }
}

fn fault(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Other).caused_by(error)
}

#[async_trait]
impl Provider for Cells {
    fn capabilities(&self) -> Capabilities {
        let mut claims = Capabilities::default();
        claims.networking_unrestricted = true;
        claims
    }

    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        let _lock = self.lock(&spec.session).await?;
        if let Some(cell) = self.find(&spec.session) {
            let same = cell.spec.fingerprint() == spec.fingerprint();
            return if same { Ok(Arc::new(cell)) } else { Err(Error::new(ErrorKind::SpecMismatch)) };
        }
        self.remove(&spec.session).await?;
        Ok(Arc::new(Cell::make(self.base.join(spec.session.as_str()), spec).await?))
    }

    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        let cell = self.find(session).ok_or_else(|| Error::new(ErrorKind::NotFound))?;
        Ok(Arc::new(cell))
    }

    async fn owned(&self) -> Result<OwnedStream, Error> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&self.base).map_err(fault)?.flatten() {
            if let Some(session) = entry.file_name().to_str().and_then(|name| SessionId::new(name).ok()) {
                let state = if self.find(&session).is_some() { OwnedState::Running } else { OwnedState::Ended };
                all.push(Ok(Owned::new(session, state, "")));
            }
        }
        Ok(OwnedStream::new(futures::stream::iter(all)))
    }

    async fn reap(&self, session: &SessionId) -> Result<(), Error> {
        let _lock = self.lock(session).await?;
        self.remove(session).await
    }

    async fn export(&self, _: &SessionId, _: &SandboxPath) -> Result<ExportStream, Error> {
        Err(Error::new(ErrorKind::Unsupported))
    }
}
