//! A carrier of one's own, written from the documentation alone: the cells of `custom-provider`, entered by `nsenter`.
//!
//! The provider beneath makes and removes cells and claims nothing. The carrier opens shells in them, and `sandbox-guest` does the
//! rest over it: deadlines and caps, processes to talk to, files, exports.

use std::process::Stdio;
use std::sync::Arc;

use custom_provider::{Cell, Cells, Init};
use sandbox::{
    Capabilities, Death, Env, Error, ErrorKind, ExecRequest, ExecResult, ExportStream, FileBatch, FileWrite,
    OwnedStream, Process, Provider, ProviderExt, ReadStream, Recreated, Sandbox, SandboxPath, SessionId, SpawnRequest,
    Spec, async_trait,
};
use sandbox_guest::{Carrier, CarrierStream, Closed, FarEnds, Guest, GuestConfig};

/// Opens shells in one cell.
#[derive(Debug)]
struct Enter(Init);

#[async_trait]
impl Carrier for Enter {
    async fn open(&self) -> Result<CarrierStream, Error> {
        if !self.0.lives() {
            return Err(Error::new(ErrorKind::NotFound).with_death(Death::Deleted));
        }
        let mut nsenter = tokio::process::Command::new("/usr/bin/nsenter");
        nsenter.args([
            "--target",
            &self.0.pid.to_string(),
            "--user",
            "--preserve-credentials",
            "--mount",
            "--pid",
            "--",
        ]);
        nsenter.args(["/usr/bin/setsid", "/bin/bash", "--norc", "--noprofile", "-p"]).current_dir("/").env_clear();
        nsenter.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = nsenter.spawn().map_err(|e| Error::new(ErrorKind::Unavailable).caused_by(e))?;
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Error::new(ErrorKind::Other).because("a pipe to the shell is missing"));
        };
        let closed = async move { Closed::new(format!("{:?}", child.wait().await)) };
        Ok(CarrierStream::new(stdin, stdout, stderr, closed))
    }

    fn far_ends(&self) -> FarEnds {
        FarEnds::Pipes
    }

    async fn cause_of_death(&self) -> Option<Death> {
        (!self.0.lives()).then_some(Death::Deleted)
    }
}

/// The cells below one directory, with everything that a carrier brings.
#[derive(Debug)]
pub struct Carried(Cells);

impl Carried {
    /// What `cells` makes, behind the checks that are the same for every backend.
    pub fn over(cells: Cells) -> Arc<dyn Provider> {
        Arc::new(Self(cells).checked())
    }

    fn handle(&self, session: &SessionId) -> Result<Handle, Error> {
        let cell = self.0.find(session).ok_or_else(|| Error::new(ErrorKind::NotFound))?;
        let mut env = Env::new().with("PATH", "/usr/local/bin:/usr/bin:/bin")?.with("HOME", "/workspace")?;
        for (name, value) in cell.spec.env.iter() {
            env.set(name, value.clone())?;
        }
        let config = GuestConfig::new(cell.spec.workdir.clone()).with_env(env);
        let guest = Guest::new(Arc::new(Enter(cell.init.clone())), config);
        Ok(Handle { cell, guest })
    }
}

#[async_trait]
impl Provider for Carried {
    fn capabilities(&self) -> Capabilities {
        let mut claims = self.0.capabilities();
        (claims.files, claims.export, claims.spawn) = (true, true, true);
        claims
    }

    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        self.0.provision(spec).await?;
        let handle = self.handle(&spec.session)?;
        // What keeps a shell from starting shows now, and not in the first command.
        handle.guest.warm_up().await?;
        Ok(Arc::new(handle))
    }

    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        Ok(Arc::new(self.handle(session)?))
    }

    async fn owned(&self) -> Result<OwnedStream, Error> {
        self.0.owned().await
    }

    async fn reap(&self, session: &SessionId) -> Result<(), Error> {
        self.0.reap(session).await
    }

    async fn export(&self, session: &SessionId, root: &SandboxPath) -> Result<ExportStream, Error> {
        self.handle(session)?.guest.export(root).await
    }
}

/// One cell, and a guest in it.
#[derive(Debug)]
struct Handle {
    cell: Cell,
    guest: Guest,
}

#[async_trait]
impl Sandbox for Handle {
    fn id(&self) -> &SessionId {
        &self.cell.spec.session
    }

    fn recreated(&self) -> Option<&Recreated> {
        None
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
        self.guest.close_idle();
        self.cell.destroy().await
    }
}
