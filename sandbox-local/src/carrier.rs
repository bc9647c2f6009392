//! Streams to shells inside one sandbox.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use sandbox::{Death, Error, ErrorKind, Networking, SessionId};
use sandbox_guest::{Carrier, CarrierStream, Closed, FarEnds};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::process::Child;
use tokio::runtime::Handle;

use crate::argv::{self, Enter, Kernel, Prelude};
use crate::cgroup;
use crate::error::io_error;
use crate::host::Host;
use crate::ident::Identity;
use crate::inherited;
use crate::record::Record;

/// Enters one sandbox, and never a later one of the same session.
#[derive(Clone)]
pub(crate) struct LocalCarrier {
    host: Arc<Host>,
    session: SessionId,
    nonce: String,
    identity: Identity,
    kernel: Kernel,
    own_network: bool,
    /// The most processes and threads.
    processes: Option<u64>,
    /// Control group files to join.
    join: Vec<PathBuf>,
}

impl LocalCarrier {
    /// A carrier for the sandbox of a record; `NotFound` if that one does not run yet.
    pub(crate) fn new(host: Arc<Host>, record: &Record) -> Result<Self, Error> {
        let identity = record.identity.clone();
        Ok(Self {
            kernel: host.kernel_of(record)?,
            host,
            session: record.spec.session.clone(),
            nonce: record.nonce.clone(),
            identity: identity.ok_or_else(|| Error::new(ErrorKind::NotFound).because("it does not run"))?,
            own_network: !matches!(record.spec.networking, Networking::Unrestricted),
            processes: crate::spec::processes(&record.spec.hardening).ok().flatten(),
            join: cgroup::join_files(&record.cgroups),
        })
    }

    /// Starts a shell: everything that blocks.
    fn enter(&self, runtime: &Handle) -> Result<(Child, [OwnedFd; 3]), Error> {
        // At every entry: a number that was given away must never be entered.
        if let Some(death) = self.host.death(&self.session, &self.nonce)? {
            return Err(Error::new(ErrorKind::NotFound).with_death(death));
        }
        let inherited = inherited::look();
        let argv = argv::enter(
            &self.host.tools,
            &Enter {
                kernel: self.kernel,
                parent: self.identity.parent.pid,
                init: self.identity.init.pid,
                own_network: self.own_network,
                prelude: Prelude { inherited, join: &self.join },
            },
        );
        let start = || -> io::Result<_> {
            let (stdin, to_shell) = io::pipe()?;
            let (from_shell, stdout) = io::pipe()?;
            let (from_errors, stderr) = io::pipe()?;
            let far: [OwnedFd; 3] = [stdin.into(), stdout.into(), stderr.into()];
            if self.kernel.switch {
                // So that the shell's user may reopen them through /proc/self/fd.
                for end in &far {
                    fchown(end, Some(self.kernel.uid), Some(self.kernel.gid))?;
                }
            }
            let (spawner, ends) = (&self.host.spawner, far.map(Stdio::from));
            let deadline = Instant::now() + self.host.config.begin_timeout;
            let child = spawner.spawn(runtime, &argv, Path::new("/"), ends, inherited.terminal, deadline)?;
            Ok((child, [to_shell.into(), from_shell.into(), from_errors.into()]))
        };
        start().map_err(|e| io_error("cannot start a shell in the sandbox", e))
    }
}

#[async_trait]
impl Carrier for LocalCarrier {
    async fn open(&self) -> Result<CarrierStream, Error> {
        let (runtime, this) = (Handle::current(), self.clone());
        // It goes on when this future is dropped; then the ends are dropped too, and the shell reads the end of its input.
        let entered = tokio::task::spawn_blocking(move || this.enter(&runtime)).await;
        let (mut child, [stdin, stdout, stderr]) = entered
            .map_err(|e| Error::new(ErrorKind::Other).because("the task that starts a shell ended").caused_by(e))??;
        let failed = |e| io_error("cannot use the pipes to the shell", e);
        let stdin = Sender::from_owned_fd(stdin).map_err(failed)?;
        let stdout = Receiver::from_owned_fd(stdout).map_err(failed)?;
        let stderr = Receiver::from_owned_fd(stderr).map_err(failed)?;
        let (init, most) = (self.identity.init.pid, self.processes);
        let closed = async move {
            match child.wait().await {
                Ok(status) if status.success() => Closed::new(status.to_string()),
                Ok(status) => {
                    let full = tokio::task::spawn_blocking(move || fullness(init, most)).await.ok().flatten();
                    Closed::new(full.map_or_else(|| status.to_string(), |full| format!("{status}, and {full}")))
                }
                Err(e) => Closed::new(e.to_string()),
            }
        };
        Ok(CarrierStream::new(stdin, stdout, stderr, closed))
    }

    fn far_ends(&self) -> FarEnds {
        FarEnds::Pipes
    }

    async fn cause_of_death(&self) -> Option<Death> {
        let (host, session, nonce) = (Arc::clone(&self.host), self.session.clone(), self.nonce.clone());
        tokio::task::spawn_blocking(move || host.death(&session, &nonce)).await.ok()?.ok()?
    }
}

/// Says so if a sandbox has as many processes and threads as it may have, or nearly.
fn fullness(init: i32, most: Option<u64>) -> Option<String> {
    let most = most?;
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace(&init.to_string())?;
    let mut count = 0;
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().filter(|name| name.starts_with(|c: char| c.is_ascii_digit())) else { continue };
        if namespace(pid).as_ref() == Some(&own) {
            // A process that ended meanwhile has no threads.
            count += fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |threads| threads.count() as u64);
        }
    }
    // Entering takes several.
    (count + 8 >= most)
        .then(|| format!("{count} processes and threads run in the sandbox, of {most} that it may have (pids)"))
}

impl fmt::Debug for LocalCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCarrier")
            .field("session", &self.session)
            .field("nonce", &self.nonce)
            .finish_non_exhaustive()
    }
}
