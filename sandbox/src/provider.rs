//! The two traits.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    Capabilities, Error, ExecRequest, ExecResult, ExportStream, FileBatch, FileWrite, OwnedStream, Process, ReadStream,
    Recreated, SandboxPath, SessionId, SpawnRequest, Spec,
};

/// Makes, finds, lists, exports and removes the sandboxes of one place.
///
/// *Implementers* write this trait; *callers* also have [`ProviderExt`](crate::ProviderExt), which every provider has and none can
/// override. There are no default methods: a wrapper that forgot one would lose the wrapped backend's own version. Every
/// sentence of the lists below is a case of the `conformance` suite, which quotes it.
///
/// # Contract
///
/// A provider keeps no state of its own about a sandbox: the session id alone finds it again, from any process.
///
/// Futures can be dropped at any point. What a dropped `provision` has begun is either nothing or something that `owned` shows and
/// `reap` removes. A dropped `reap` or `destroy` can be repeated. A dropped `attach` or `owned` changes nothing and holds nobody up.
#[async_trait]
pub trait Provider: fmt::Debug + Send + Sync + 'static {
    /// What this backend promises. Cheap, constant, and callable outside a runtime.
    fn capabilities(&self) -> Capabilities;

    /// Makes the session's sandbox, or finds the one that is there, and answers once it runs commands.
    ///
    /// - Provisioning a session again with the same spec answers the same sandbox, files included.
    /// - A spec that breaks a rule is refused before anything is made, and leaves nothing behind.
    /// - Variables are bound when the sandbox is made: a later provision with other values finds the first ones in force.
    /// - A provision whose image, working directory or networking differs from the sandbox that is there fails as `SpecMismatch`, and
    ///   the sandbox stays as it is.
    /// - However many provision one session at once, they all end with the same sandbox.
    ///
    /// A sandbox that is there but dead is replaced, and [`Sandbox::recreated`] says so.
    ///
    /// # Errors
    ///
    /// `InvalidSpec` and `Unsupported` before anything is made; `NotOurs` and `SpecMismatch` without touching what is there; `Busy` if
    /// another process is changing this session's sandbox for longer than the provider's time limit, or again and again;
    /// `DeadlineExceeded`, `ImagePull`, `Unschedulable`, `Forbidden`, `Unavailable` if it cannot be made. What was begun of a sandbox that
    /// cannot be made is removed. Where that is not known, the error has `Effect::Unknown`: it may be there, and the next provision takes it
    /// up. Likewise `Lost` or `Protocol` if it is made and runs no commands, and with a gate whatever its minter or revoker fails with.
    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error>;

    /// Finds the session's sandbox.
    ///
    /// - Attaching answers the sandbox that is there: what is written through one handle is seen through the other.
    /// - Attaching to a session that has no sandbox fails as `NotFound`, and makes nothing.
    /// - After a reap, attaching fails as `NotFound`, and the session is not owned.
    ///
    /// It never waits, starts, heals or removes anything, so that it is safe beside a running session.
    ///
    /// # Errors
    ///
    /// `NotFound` also for a sandbox that is dead, being made or being removed; `NotOurs` if the name is taken by something else.
    /// `SpecMismatch` if what is there is no sandbox that this backend can have made; `DeadlineExceeded`, `Unavailable` or `Forbidden` if it
    /// cannot be looked for.
    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error>;

    /// Lists the sandboxes of this provider, dead or alive, each session once.
    ///
    /// - A session is owned from its provision until it is reaped or destroyed.
    /// - A sandbox that runs commands is listed as [`Running`](crate::OwnedState::Running).
    /// - A later sandbox of a session has another incarnation than an earlier one, and one sandbox has the same each time.
    /// - A sandbox is listed as made when it was made, to the second, where that is known.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded`, `Unavailable` or `Forbidden`, here or as an item of the stream, which then ends.
    async fn owned(&self) -> Result<OwnedStream, Error>;

    /// Removes everything of the session, whoever made it, and waits until it is gone.
    ///
    /// - After a reap the sandbox is gone: a handle that was made before fails as `NotFound`, and the session is not owned.
    /// - A command that runs when its sandbox is removed fails as `NotFound` or `Lost`, with `Effect::Unknown`.
    /// - Reaping a session again succeeds.
    /// - Reaping a session that never was succeeds.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded`, `Unavailable` or `Forbidden`, with `Effect::Unknown`; repeat it. `Busy` if another process is changing this
    /// session's sandbox for longer than the provider's time limit, with `Effect::None`. With gates also whatever their revoker fails with.
    async fn reap(&self, session: &SessionId) -> Result<(), Error>;

    /// Streams `root` and what is below it as a plain tar archive.
    ///
    /// - An export has exactly one entry at its top, named like the last component of its root, with everything else below it.
    /// - Links are exported as links, also the root itself.
    /// - Exporting a root that does not exist fails as `FileNotFound`.
    /// - Exporting from a session that has no sandbox fails as `NotFound`.
    ///
    /// The archive comes from inside the sandbox: read it as hostile input. Needs [`Capabilities::export`].
    ///
    /// # Errors
    ///
    /// The above, and those of [`attach`](Self::attach); those of [`Sandbox::exec`] if the sandbox does not begin it. A transfer that dies in
    /// the middle is the stream's last item, after which what came before is not whole.
    async fn export(&self, session: &SessionId, root: &SandboxPath) -> Result<ExportStream, Error>;
}

/// One session's sandbox.
///
/// A handle is bound to the very sandbox it was made for. Once that one is gone, everything fails as `NotFound`, also when the
/// session has another by then. Dropping a handle removes nothing. All operations can run at once, through one handle or
/// several. A backend may bound how many are under way; then `exec`, `spawn`, `read`, `write` and `write_many` wait for their turn in the
/// order of the calls, for as long as those before them take: put a limit on what you run, or drop the future. A sentence of the lists below
/// is a case of the `conformance` suite, which quotes it.
///
/// Everything that comes out of a sandbox is hostile: bytes, sizes, names, exit codes. A tenant can make its own session lie to
/// you; it cannot make a command that ran past its limit look punctual, reach another session, or make a call hang or grow.
#[async_trait]
pub trait Sandbox: fmt::Debug + Send + Sync + 'static {
    /// The session. A handle tells the very session that its sandbox was made for.
    fn id(&self) -> &SessionId;

    /// Whether an earlier sandbox of this session died, and its files with it. Every handle of this sandbox says the same, in every
    /// process.
    fn recreated(&self) -> Option<&Recreated>;

    /// Runs a command to its end.
    ///
    /// - Standard output and standard error are captured apart, byte for byte.
    /// - The exit code of the command is the exit code of the result; a command that fails is a result, not an error.
    /// - A command starts in the working directory.
    /// - Variables of the spec reach every command byte for byte.
    /// - Variables and the working directory of one request apply to that command alone.
    /// - A working directory that does not exist fails as `FileNotFound` and one that is no directory as `NotDirectory`, with its path and
    ///   before anything is started.
    /// - Arguments reach the program byte for byte; no shell reads them.
    /// - A shell text of any length up to the bound runs whole.
    /// - The standard input of a command is empty.
    /// - A command that runs into its limit is killed and reported as timed out, and the sandbox stays usable.
    /// - What a command started dies with it at its limit, also what left its process group.
    /// - A command that ends in time leaves no watchdog behind and nothing in its output.
    /// - A command ends when its process ends: a background process that holds its output neither delays the result nor dies of it.
    /// - What a background process prints after its command ended is in no later result.
    /// - A limit does not delay a command that ends in time.
    /// - A command that ran past its limit is never reported as punctual, whatever it kills or closes.
    /// - A command that kills itself in time is not timed out.
    /// - Exit code 124 is not a timeout.
    /// - Of each stream the first bytes up to the cap are kept and the rest is drained, so that the command runs to its end.
    /// - Limits below a second are kept as they are, not rounded.
    /// - A command whose future is dropped is killed.
    /// - A failed command, a dropped future or a timeout costs no other command anything.
    /// - Whatever a command kills, stops, closes or leaves behind, later commands run, unless what it leaves behind uses up a bound of the
    ///   sandbox.
    ///
    /// `limit` counts on the caller's clock from the moment the command starts; until then, from its turn on, a deadline of the backend's
    /// own counts. Who leaves behind as many processes, or as much memory or disk, as the sandbox may have starves its own later calls: they
    /// fail in their time, until that ends or the sandbox is reaped. Who hides from its killer on purpose, without the command's variables and
    /// output, can outlive the limit, and never the sandbox. At the limit the command gets `SIGKILL` (or `SIGTERM`, and `SIGKILL` after `grace`). The call returns at most two seconds
    /// later, plus `grace`.
    ///
    /// # Errors
    ///
    /// A request that breaks a rule fails as `InvalidRequest` before anything is started. `FileNotFound` or `NotDirectory` for the working
    /// directory; `NotFound` if the sandbox is
    /// gone; `DeadlineExceeded` if it does not begin the command in the backend's time, with `Effect::Unknown` if it may yet have begun;
    /// `Lost` with `Effect::Unknown` if the way to the command broke, as when somebody inside kills the shell that started it; `Protocol`
    /// with `Effect::Unknown` if what comes back is no answer; `Unavailable` or `Forbidden` if there is no way in. A command is never run twice.
    async fn exec(&self, request: ExecRequest) -> Result<ExecResult, Error>;

    /// Starts a command and answers at once, so that one can write to it, read from it and signal it.
    ///
    /// - A spawned command reads what is written to it, and an end of input when that is closed.
    /// - A spawned command's output arrives while it runs.
    /// - A signal reaches a spawned command's process group.
    /// - A spawned command is killed when its handle is dropped.
    /// - Soon after the end of a spawned command is known, or that it is lost, its output ends, or fails where some may be missing, and writing
    ///   to it fails, whoever holds its streams.
    ///
    /// Needs [`Capabilities::spawn`]. Output is not capped: it waits for its reader. It waits for its turn as [`exec`](Self::exec) does, and
    /// has it until it ends or is dropped.
    ///
    /// # Errors
    ///
    /// As [`exec`](Self::exec); what is wrong with the working directory may be told by [`Process::wait`] instead.
    async fn spawn(&self, request: SpawnRequest) -> Result<Process, Error>;

    /// Reads a regular file of at most `limit` bytes.
    ///
    /// - A file reads back as it was written, whatever its bytes and its name.
    /// - A file larger than the limit fails as `FileTooLarge` before any of its bytes travel; one of exactly the limit is read.
    /// - Reading what does not exist fails as `FileNotFound`.
    /// - Reading a directory fails as `IsDirectory`.
    /// - Reading a link, a FIFO, a socket or a device fails as `NotRegularFile`, without blocking.
    /// - Reading below something that is not a directory fails as `NotDirectory`.
    ///
    /// A link is never followed at the last component; earlier ones are. It waits for its turn as [`exec`](Self::exec) does, and has it until
    /// the stream ends or is dropped. Needs [`Capabilities::files`].
    ///
    /// # Errors
    ///
    /// The above, here; `DeadlineExceeded` if the sandbox does not answer in the backend's time; `NotFound`, `Lost`, `Protocol`, `Unavailable` and
    /// `Forbidden` as [`exec`](Self::exec); `ShortTransfer`, `Lost` or, when content stands still for too long, `DeadlineExceeded` as the last
    /// item of the stream.
    async fn read(&self, path: &SandboxPath, limit: u64) -> Result<ReadStream, Error>;

    /// Writes a file: all of it, or nothing.
    ///
    /// - A write makes missing parents and replaces what is there in one step.
    /// - A failed write leaves the target as it was, and nothing beside it.
    /// - A body of another length than declared fails as `ShortTransfer`.
    /// - A new file has mode 0644, whatever the umask; a file that is replaced keeps its mode.
    /// - A link at the target is replaced by the file, and what it points to stays as it is.
    /// - Writing onto a directory, or a link to one, fails as `IsDirectory`.
    /// - Writing below something that is not a directory fails as `NotDirectory`.
    /// - Writing onto a device or a mount point fails as `NotReplaceable`.
    /// - Writing where nothing can be made fails as `NotWritable`, with the system's reason.
    /// - A write that must make a new file fails as `AlreadyExists` where something is.
    ///
    /// It waits for its turn as [`exec`](Self::exec) does. Needs [`Capabilities::files`].
    ///
    /// # Errors
    ///
    /// The above; `DeadlineExceeded` if the sandbox does not answer or takes nothing for too long; `Lost` with `Effect::Unknown` if
    /// the way into the sandbox broke: then the target holds its old content or all of the new one; `NotFound`, `Protocol`, `Unavailable` and
    /// `Forbidden` as [`exec`](Self::exec).
    async fn write(&self, file: FileWrite<'_>) -> Result<(), Error>;

    /// Writes many files in one delivery, each as [`write`](Self::write) does, in order.
    ///
    /// - Every member of a batch lands as a single write would.
    /// - Directories that a batch makes have mode 0755, whatever the umask.
    /// - A batch with a member below something that is not a directory fails as `NotDirectory` and writes nothing.
    /// - At any other failure a batch ends at the first failing member, which the error names; what came before it stays, and nothing
    ///   after it is written.
    ///
    /// What no member may be below is looked for in as many members as come before the 1024th and the fourth MiB; a longer batch is taken
    /// in parts of that size, of which those before stay. Needs [`Capabilities::files`].
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), with [`Error::member`].
    async fn write_many(&self, files: FileBatch<'_>) -> Result<(), Error>;

    /// Removes this sandbox and waits until it is gone; never a later one of the same session.
    ///
    /// - Destroying twice succeeds, and every other operation then fails as `NotFound`.
    ///
    /// # Errors
    ///
    /// As [`Provider::reap`].
    async fn destroy(&self) -> Result<(), Error>;
}
