//! Folders into a sandbox, and out of it again.
//!
//! [`SandboxTransferExt::upload_dir`] sends a folder of this machine into a sandbox; [`ProviderTransferExt::download`] unpacks an
//! export onto this machine, and [`unpack`] an archive that was kept. All three say in a [`Report`] what they moved, and name what
//! they left out and why.
//!
//! ```no_run
//! use std::path::Path;
//! use sandbox::{Provider, SandboxExt, SandboxPath, SessionId};
//! use sandbox_transfer::{DownloadOptions, ProviderTransferExt, SandboxTransferExt, UploadOptions};
//!
//! async fn build(provider: &dyn Provider, session: &SessionId) -> Result<(), sandbox::Error> {
//!     let sandbox = provider.attach(session).await?;
//!     let options = UploadOptions::default().with_filter(|item| item.path != Path::new("target"));
//!     let sent = sandbox.upload_dir("project", &SandboxPath::new("/workspace/project")?, options).await?;
//!     assert!(sent.left_out.is_empty(), "{:?}", sent.left_out);
//!     sandbox.exec_str("make -C /workspace/project").await?;
//!     let out = SandboxPath::new("/workspace/project/out")?;
//!     provider.download(session, &out, "out", DownloadOptions::default()).await?;
//!     Ok(())
//! }
//! ```
//!
//! # A crate of its own
//!
//! `sandbox` opens no file on its own account, on any system, and one can check that by its dependencies. Whoever moves folders
//! wants the opposite: file systems, threads, an archive reader. A feature of `sandbox` would switch that on for every crate of a
//! build as soon as one of them asks for it; a crate beside it leaves the promise as it is.
//!
//! # Systems
//!
//! Any Unix; on Windows the crate is empty, because nothing here could keep its promises about links and names there. On Linux
//! paths are resolved by `openat2`; elsewhere, and where a filter forbids that call, component by component, with the same answer.
//!
//! # What is trusted
//!
//! The archive of a download is written by whoever owns the sandbox: every name, size, mode and link in it is taken as an attack.
//! The folder of an upload is the caller's, but what lies in it can change while it is read: nothing outside of it is ever sent.

#![cfg(unix)]

mod dir;
mod download;
mod names;
mod options;
mod report;
mod upload;

pub use download::{DownloadOptions, OnRefusal, ProviderTransferExt, unpack};
pub use options::{Limits, Progress};
pub use report::{Bound, Exceeded, Refused, Report, Rule};
pub use upload::{Candidate, CandidateKind, SandboxTransferExt, UploadOptions};
