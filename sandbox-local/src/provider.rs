//! The provider, as callers see it.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox::{
    Capabilities, Checked, Error, ExportStream, OwnedStream, Provider, Sandbox, SandboxPath, SessionId, Spec,
};

use crate::config::LocalConfig;
use crate::host::Host;
use crate::local::Local;

/// Sandboxes on this machine.
///
/// It needs a tokio runtime with input, output and time enabled, of either flavor.
///
/// Its sandboxes survive it, and the process: any other provider with the same state directory finds them. (They do not survive a
/// service manager that kills everything its service has started.)
#[derive(Debug, Clone)]
pub struct LocalProvider {
    checked: Checked<Local>,
}

impl LocalProvider {
    /// Looks at the machine and opens the state directory.
    ///
    /// # Errors
    ///
    /// `InvalidSpec` for a configuration that breaks a rule or cannot hold here, naming the field, its value and the rule;
    /// `Unavailable` or `Forbidden` for a machine that lacks something. Whether the kernel lets sandboxes be made is seen at the
    /// first provision, or by [`probe`](Self::probe).
    pub fn new(config: LocalConfig) -> Result<Self, Error> {
        Ok(Self { checked: Checked::new(Local::new(Host::new(config)?)) })
    }

    /// Tries whether this machine lets sandboxes be made. It makes none.
    ///
    /// # Errors
    ///
    /// `Unavailable`, with a [`Forbidden`](crate::Forbidden) as its source that says what forbids it and what would help.
    pub async fn probe(&self) -> Result<(), Error> {
        self.checked.inner().probe().await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Provider for LocalProvider {
    fn capabilities(&self) -> Capabilities {
        self.checked.capabilities()
    }

    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        self.checked.provision(spec).await
    }

    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        self.checked.attach(session).await
    }

    async fn owned(&self) -> Result<OwnedStream, Error> {
        self.checked.owned().await
    }

    async fn reap(&self, session: &SessionId) -> Result<(), Error> {
        self.checked.reap(session).await
    }

    async fn export(&self, session: &SessionId, root: &SandboxPath) -> Result<ExportStream, Error> {
        self.checked.export(session, root).await
    }
}
