//! Conveniences for callers.

use std::future::Future;

use bytes::Bytes;

use crate::{Checked, Error, ErrorKind, ExecRequest, ExecResult, FileWrite, Provider, Sandbox, SandboxPath};

/// Conveniences over every [`Provider`]; not to be implemented.
pub trait ProviderExt: Provider {
    /// This provider behind the checks of [`Checked`].
    fn checked(self) -> Checked<Self>
    where
        Self: Sized,
    {
        Checked::new(self)
    }
}

impl<P: Provider + ?Sized> ProviderExt for P {}

/// Conveniences over every [`Sandbox`]; not to be implemented.
pub trait SandboxExt: Sandbox {
    /// Runs `text` as `bash -c` would, without a limit.
    fn exec_str(&self, text: &str) -> impl Future<Output = Result<ExecResult, Error>> + Send {
        let request = ExecRequest::shell(text.to_owned());
        async move { self.exec(request).await }
    }

    /// Reads a file of at most `limit` bytes into memory.
    fn read_bytes(&self, path: &SandboxPath, limit: usize) -> impl Future<Output = Result<Bytes, Error>> + Send {
        async move { self.read(path, limit as u64).await?.collect(limit).await }
    }

    /// Reads a text of at most `limit` bytes; what is not UTF-8 fails as [`ErrorKind::NotText`].
    fn read_to_string(&self, path: &SandboxPath, limit: usize) -> impl Future<Output = Result<String, Error>> + Send {
        async move {
            let bytes = self.read_bytes(path, limit).await?;
            String::from_utf8(bytes.into()).map_err(|e| {
                Error::new(ErrorKind::NotText)
                    .during("read")
                    .in_session(self.id())
                    .at(path.clone())
                    .because("it is not UTF-8")
                    .caused_by(e.utf8_error())
            })
        }
    }

    /// Writes `bytes` to `path`.
    fn write_bytes(
        &self,
        path: &SandboxPath,
        bytes: impl Into<Bytes>,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        let file = FileWrite::bytes(path.clone(), bytes);
        async move { self.write(file).await }
    }
}

impl<S: Sandbox + ?Sized> SandboxExt for S {}
