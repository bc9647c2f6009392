//! Where a root file system comes from.

mod dir;
mod tar;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;

pub use self::dir::DirSource;
pub use self::tar::{TarSource, UnpackLimits};
use crate::{Effect, Error, ErrorKind, NodeFs, OpCtx, Result};

/// Where a root file system comes from.
///
/// A backend takes one in its constructor and unpacks it into a directory of its choice. Pulling images is
/// the embedder's business: implement this for what you pull.
#[async_trait]
pub trait RootfsSource: fmt::Debug + Send + Sync + 'static {
    /// Names the content: equal texts mean equal content. It ends up in the marker by which a backend knows
    /// a finished root again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Artifact`] if the source is not there.
    async fn identity(&self) -> Result<String>;

    /// Whether the content is in its place already, so that a backend must not unpack.
    fn in_place(&self) -> bool;

    /// Fills the empty directory `into`. Dropping the future stops the work.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Artifact`] if the content is unusable or hostile, [`ErrorKind::Io`].
    async fn unpack(&self, ctx: &OpCtx, into: &NodeFs) -> Result<()>;
}

/// A root file system that somebody else has put in place.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct PreparedSource;

impl PreparedSource {
    /// The source.
    pub fn new() -> Self {
        Self
    }
}

#[async_trait]
impl RootfsSource for PreparedSource {
    async fn identity(&self) -> Result<String> {
        Ok("prepared".to_owned())
    }

    fn in_place(&self) -> bool {
        true
    }

    async fn unpack(&self, _: &OpCtx, _: &NodeFs) -> Result<()> {
        Ok(())
    }
}

/// Tells work on another thread that nobody waits for it any more.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "unpack the root file system").with_effect(Effect::Partial));
        }
        Ok(())
    }
}

struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Runs blocking work that looks at its [`Stop`] often; dropping the future sets it.
pub(crate) async fn on_thread<T: Send + 'static>(
    ctx: &OpCtx,
    operation: &'static str,
    work: impl FnOnce(&Stop) -> Result<T> + Send + 'static,
) -> Result<T> {
    let stop = Stop::default();
    let _stop = StopOnDrop(stop.clone());
    let thread = tokio::task::spawn_blocking(move || work(&stop));
    let joined = async {
        match thread.await {
            Ok(done) => done,
            Err(cause) => Err(Error::new(ErrorKind::Artifact, operation).because(cause)),
        }
    };
    ctx.bound(operation, joined).await
}
