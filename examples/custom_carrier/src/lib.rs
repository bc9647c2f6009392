//! Sandboxes over somebody else's transport: a WebSocket to an agent that is the first process of its cell, as behind the vsock of a
//! virtual machine.
//!
//! The cells are those of `custom-provider`; the agent's socket lies in the directory of each, which the tenant cannot reach.

pub mod channels;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use custom_provider::{Cells, is_locked};
use sandbox::{Capabilities, Death, Error, ErrorKind, Provider, ProviderExt, Spec, async_trait};
use sandbox_guest::{Carrier, CarrierStream, Closed, DirProvider, FarEnds, Guest, GuestConfig, Maker};
use tokio::io::{AsyncReadExt, duplex, split};
use tokio::{join, net::UnixStream, sync::oneshot};

/// The provider of cells whose books are in `dir`, each with the program `agent`, behind the checks that are the same for every backend.
pub fn cells(dir: impl Into<PathBuf>, agent: impl Into<PathBuf>) -> Arc<dyn Provider> {
    Arc::new(DirProvider::new(dir, Agents(Cells { agent: Some(agent.into()) })).checked())
}

#[derive(Debug)]
struct Agents(Cells);

#[async_trait]
impl Maker for Agents {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn make(&self, dir: &Path, spec: &Spec) -> Result<(), Error> {
        self.0.make(dir, spec).await
    }

    fn enter(&self, dir: &Path, spec: &Spec) -> Option<Guest> {
        let init = File::open(dir.join("init")).ok().filter(is_locked)?;
        let config = GuestConfig::new(spec.workdir.clone()).with_env(spec.env.clone());
        Some(Guest::new(Arc::new(Agent { dir: File::open(dir).ok()?, init }), config))
    }

    async fn end(&self, dir: &Path) -> Result<(), Error> {
        self.0.end(dir).await
    }
}

/// The agent of one cell, and never of a later one: that has another directory.
#[derive(Debug)]
struct Agent {
    dir: File,
    init: File,
}

#[async_trait]
impl Carrier for Agent {
    async fn open(&self) -> Result<CarrierStream, Error> {
        let opening = async {
            let socket = UnixStream::connect(format!("/proc/self/fd/{}/agent", self.dir.as_raw_fd())).await?;
            let opening = tokio_tungstenite::client_async_with_config("ws://agent/", socket, channels::bounds());
            opening.await.map_err(std::io::Error::other)
        };
        let socket = match opening.await {
            Ok((socket, _)) => socket,
            Err(_) if !is_locked(&self.init) => return Err(Error::new(ErrorKind::NotFound).with_death(Death::Deleted)),
            Err(e) => return Err(Error::new(ErrorKind::Unavailable).caused_by(e)),
        };
        let [(stdin, input), (output, stdout), (errors, stderr)] = [channels::PIECE; 3].map(duplex);
        let ((mut out, output), (mut err, errors)) = (split(output), split(errors));
        let (over, end) = oneshot::channel();
        tokio::spawn(async move {
            // Nothing comes from there, but the news that a reader was dropped. Without both, the connection closes.
            let until = async { join!(out.read_u8(), err.read_u8()) };
            let to = vec![(1, Box::pin(output) as _), (2, Box::pin(errors) as _)];
            over.send(channels::carry(socket, vec![(0, Box::pin(input))], to, until).await)
        });
        let closed = async { Closed::new(format!("the connection ended: {:?}", end.await)) };
        Ok(CarrierStream::new(stdin, stdout, stderr, closed))
    }

    fn far_ends(&self) -> FarEnds {
        FarEnds::Pipes
    }

    async fn cause_of_death(&self) -> Option<Death> {
        (!is_locked(&self.init)).then_some(Death::Deleted)
    }
}
