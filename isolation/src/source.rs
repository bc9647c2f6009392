//! Where a root file system comes from.

mod dir;
mod tar;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use async_trait::async_trait;

pub use self::dir::DirSource;
pub use self::tar::{TarSource, UnpackLimits};
use crate::{Error, ErrorKind, NodeFs, OpCtx, Result, Stop, run_blocking};

const LOOK: &str = "look at the root file system";

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

/// As [`run_blocking`]; what makes its reader panic is unusable, and no reason for the caller to panic.
async fn on_thread(
    ctx: &OpCtx,
    operation: &'static str,
    work: impl FnOnce(&Stop) -> Result<()> + Send + 'static,
) -> Result<()> {
    run_blocking(ctx, operation, move |stop| {
        let done = catch_unwind(AssertUnwindSafe(|| work(stop)));
        let panicked = |_| Err(Error::new(ErrorKind::Artifact, operation).with_detail("its reader panicked"));
        done.unwrap_or_else(panicked)
    })
    .await
}
