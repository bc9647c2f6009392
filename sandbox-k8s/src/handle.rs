//! The handle of one sandbox.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use sandbox::{
    Death, Error, ExecRequest, ExecResult, FileBatch, FileWrite, Process, ReadStream, Recreated, Sandbox, SandboxPath,
    SessionId, SpawnRequest,
};
use sandbox_guest::{Guest, GuestConfig};
use tokio::time::Instant;

use crate::carrier::K8sCarrier;
use crate::names::{PodId, pod_name};
use crate::provider::Place;
use crate::stamp::Stamp;
use crate::wait;

/// One running sandbox: that very Pod.
pub(crate) struct Live {
    place: Arc<Place>,
    session: SessionId,
    pub(crate) id: PodId,
    recreated: Option<Recreated>,
    carrier: K8sCarrier,
    pub(crate) guest: Guest,
}

impl Live {
    pub(crate) fn new(place: Arc<Place>, session: SessionId, stamp: Stamp) -> Self {
        let id = PodId { name: pod_name(&session), uid: stamp.uid };
        let carrier =
            K8sCarrier::new(place.pods.clone(), id.clone(), Arc::clone(&place.opening), place.config.request_timeout);
        // The container has most variables by itself; a shell makes something of its own of some, and these must reach commands too.
        let mut config = GuestConfig::new(stamp.workdir).with_env(stamp.env);
        config.max_opening = place.config.max_opening;
        let guest = Guest::new(Arc::new(carrier.clone()), config);
        Self { place, session, id, recreated: stamp.recreated, carrier, guest }
    }

    /// Whether a shell has started in it, for this handle.
    pub(crate) fn was_entered(&self) -> bool {
        self.carrier.was_entered()
    }

    /// The Pod is gone: nothing goes through its streams any more.
    pub(crate) fn close(&self, death: Death) {
        self.carrier.close(death);
        self.guest.close_idle();
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("K8sSandbox").field("session", &self.session).field("uid", &self.id.uid).finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Sandbox for Live {
    fn id(&self) -> &SessionId {
        &self.session
    }

    fn recreated(&self) -> Option<&Recreated> {
        self.recreated.as_ref()
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
        let place = &self.place;
        let deadline = Instant::now() + place.config.stop_timeout;
        let _turn = place.sessions.turn(&self.session, deadline).await?;
        wait::remove(&place.pods, &place.config, &self.id, true, deadline).await?;
        self.close(Death::Deleted);
        Ok(())
    }
}
