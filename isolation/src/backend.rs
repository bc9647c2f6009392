//! The contract.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    ExecOutput, ExecSpec, ExecStream, LogOptions, LogStream, Mode, NodeRoot, NodeSpec, OpCtx, PrepareReport,
    Requirements, Result, SlotRef, Status,
};

/// A place for node stacks: prepares, starts, stops, restarts, destroys, inspects, enters and logs the two
/// slots of one host.
///
/// *Implementers* write this trait; *callers* mostly add [`BackendExt`](crate::BackendExt), which every
/// backend has and none can override. There are no default methods: a wrapper that forgot one would lose
/// the wrapped backend's own version.
///
/// # Contract
///
/// Each sentence of the lists below and of the methods is one rule, and the crate `conformance` has a case
/// for each that quotes it.
///
/// **Idempotence.**
///
/// - A whole life from `prepare` to `destroy` leaves nothing behind, however often it is repeated.
/// - Work on one slot leaves the other slot as it is.
///
/// **Exclusion.** Two slots share the host's network and ports. Lifecycle calls are `prepare`, `start`,
/// `stop`, `restart` and `destroy`.
///
/// - Lifecycle calls on one slot happen one after the other, across processes too.
/// - A lifecycle call on a slot that another process holds waits, and fails as `Busy` at its deadline.
/// - Lifecycle calls on two slots do not wait for each other.
/// - `status`, `exec` and `logs` never wait for a lifecycle call.
/// - Starting a slot, or restarting a stopped one, while its pair runs fails as `Conflict` and leaves both as
///   they are.
///
/// **Failure and cancellation.** A future that is dropped and a [`Cancel`](crate::Cancel) that fires mean
/// the same: our helpers end, and the slot is left so that the same call can be repeated.
///
/// - A lifecycle call that was cut short can be repeated and then succeeds.
/// - A lifecycle call whose `Cancel` fires ends within ten seconds, as a success or as `Cancelled`, and can be
///   repeated.
/// - No call takes a root that was prepared half-way for a finished one.
/// - A call that is cancelled before it begins changes nothing and fails as `Cancelled`.
/// - A call whose deadline has passed fails as `Timeout` and changes nothing.
/// - A full disk or a read-only file system gives an `Io` error and leaves no partial final file.
/// - If the service manager can't be asked, `status` is an error and never says that the slot is stopped.
/// - After the node's main process was killed from outside, `status` no longer calls it running, or it runs
///   as a new instance.
///
/// **Events.**
///
/// - Every lifecycle call emits one event when it starts and one when it finishes or fails, with the same
///   id.
///
/// **Secrets.**
///
/// - Arguments, environment and input of a command never appear in an error or an event.
///
/// **Grants.**
///
/// - Every grant is listed in the report as applied or ignored, or refused as `GrantUnsupported`.
/// - Equal grants render equally, and configured mounts keep their order.
/// - An invalid grant is refused as `InvalidGrant` with its position, before anything is written.
/// - No text in a grant can add a line or a section to a rendered file.
/// - What is mounted for a node can be seen inside at its target.
/// - A read-only grant can't be written to from inside.
/// - A device that is granted can be seen and opened inside.
///
/// **Honesty.**
///
/// - Every program a backend runs is among its declared commands.
/// - Every path a backend writes is covered by its declared writable paths.
/// - Units to start after appear as ordering in the backend's own unit.
/// - If a declared command is missing, `prepare` fails before it changes anything.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Which mode this is.
    ///
    /// - The mode of a backend never changes, and parses back to itself.
    fn mode(&self) -> Mode;

    /// What the backend needs of the host.
    ///
    /// - Requirements are the same at every call, without duplicates and empty names, and asking for them
    ///   touches nothing.
    fn requirements(&self) -> Requirements;

    /// Makes the slot's root file system and configuration.
    ///
    /// - Preparing makes the slot `Prepared` and not running.
    /// - Preparing writes only below the declared writable paths.
    /// - The node root that `prepare` returns is that of the slot asked for.
    /// - Preparing again with an equal spec changes nothing and says so.
    /// - Preparing again with other grants leaves exactly the new ones, and says that something changed.
    /// - A file written through the node root can be read inside, and the other way round.
    ///
    /// # Errors
    ///
    /// `InvalidGrant` and `GrantUnsupported` with the position; `Conflict` if something that is not ours is
    /// in the way; `Artifact` if the root file system is unusable; `NotPrepared` if the host lacks
    /// something; `Io`. After an error the same call may be repeated.
    async fn prepare(&self, ctx: &OpCtx, spec: &NodeSpec) -> Result<(Arc<dyn NodeRoot>, PrepareReport)>;

    /// Starts the node stack, now and after a reboot of the host.
    ///
    /// - When `start` returns, the slot is running and a command can run inside at once.
    /// - Starting what runs succeeds and leaves the running instance alone.
    /// - A start that meets a stale registration of its own slot clears it and goes on.
    /// - Starting a slot that was never prepared fails as `UnknownSlot` and leaves nothing.
    /// - A slot that was started runs again after a reboot of the host, as a new instance, and one that was
    ///   stopped or never started does not.
    ///
    /// # Errors
    ///
    /// `UnknownSlot`; `NotPrepared` if a preparation with another spec was cut short and not yet repeated; `Conflict`, `Busy`, `Timeout`,
    /// `Command`.
    async fn start(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()>;

    /// Stops the node stack, now and after a reboot of the host.
    ///
    /// - When `stop` returns, the slot is not running and the processes of its node stack are gone.
    /// - Stopping what is stopped, or was never prepared, succeeds and changes nothing.
    /// - Stopping keeps the files, and the slot can be started again and sees them.
    ///
    /// # Errors
    ///
    /// `Busy`, `Timeout`, `Command`.
    async fn stop(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()>;

    /// Restarts the node stack: a soft reboot.
    ///
    /// - Restarting gives a new instance that is ready on return and sees the same files.
    /// - Restarting never touches the host or the other slot.
    /// - Restarting a stopped slot starts it.
    /// - Restarting a slot that was never prepared fails as `UnknownSlot` and leaves nothing.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    async fn restart(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()>;

    /// Removes the slot: its root file system and its configuration.
    ///
    /// - Destroying stops first and leaves neither files nor processes of the slot.
    /// - Destroying what is gone, or was never prepared, succeeds and changes nothing.
    /// - After `destroy` the slot is `Absent` and can be prepared anew.
    /// - Destroying never removes what is mounted into the root.
    ///
    /// # Errors
    ///
    /// `Conflict` if something is mounted into the root, `Busy`, `Timeout`, `Io`; the effect may be
    /// `Partial`, and the same call may be repeated.
    async fn destroy(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()>;

    /// How the slot is doing.
    ///
    /// - `status` never changes anything.
    /// - A slot that was never prepared is `Absent`, not an error.
    ///
    /// # Errors
    ///
    /// Only if it could not be found out.
    async fn status(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<Status>;

    /// Runs a command inside to its end.
    ///
    /// - Output is untouched, and its text form loses only the newlines at its end.
    /// - Standard output and standard error are kept apart.
    /// - Every exit code comes back as data, exactly.
    /// - Death by a signal is reported as that signal and never as success.
    /// - A program that does not exist, or is none, is reported as that and never as a broken transport.
    /// - Arguments arrive verbatim, whatever they contain.
    /// - A command without a program, or with a NUL, is refused before anything is spawned.
    /// - Output beyond the limit is dropped and reported, and never blocks the command.
    /// - A command that runs past its time is killed, reported as `TimedOut`, and leaves no process inside.
    /// - When the call is cancelled, its command ends inside too.
    /// - Commands that run at the same time never mix their outputs.
    /// - Input, environment and working directory arrive exactly.
    /// - Without more said, a command has a clean environment, no input, and `/` as its directory.
    /// - A command runs as the user that was asked for.
    /// - A command in a slot that was never prepared fails as `UnknownSlot`.
    /// - A command in a slot that does not run fails as `NotRunning`.
    /// - A command met by a start, a stop or a destroy ends with a result or an error, and never hangs.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, `UnknownSlot`, `NotRunning`, `CommandNotFound`, `Transport`, `Timeout`, `Cancelled`;
    /// `Unsupported` for an option the backend does not have. A non-zero exit is a value.
    async fn exec(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecOutput>;

    /// Starts a command inside and hands out its standard streams. What is read of the output is the caller's affair, so the
    /// command's `max_output` does not count; a backend may refuse its `stdin` and `timeout` as `Unsupported`, with the field.
    ///
    /// - A command that is talked to reads and answers while it runs, and its status comes at the end.
    /// - Dropping the handle of a running command ends the command.
    /// - When its call is cancelled, a command that is talked to ends inside too, also after the call has returned.
    /// - What `exec` refuses before it runs anything, `exec_stream` refuses with the same kind of error.
    ///
    /// # Errors
    ///
    /// As [`exec`](Self::exec).
    async fn exec_stream(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecStream>;

    /// Opens the journal of the node stack. The context's deadline bounds the opening; its cancel ends the
    /// stream.
    ///
    /// - Lines written after a following log was opened arrive in it.
    /// - A log that is closed or cancelled early is no error.
    /// - A log that ended by itself with a failure says so when it is closed.
    /// - A log that is dropped leaves no process.
    /// - A line limit of N gives the last N lines; without a limit all of them come, following or not.
    /// - A unit gives only that unit's lines; without one come all units of the node stack and none of the
    ///   host.
    /// - Entries carry a cursor, and a log opened after it goes on behind it.
    /// - A stopped slot's log can still be read.
    /// - The log of a slot that was never prepared fails as `UnknownSlot`.
    /// - Many logs can be open at once, and none is left when they are closed.
    ///
    /// # Errors
    ///
    /// `UnknownSlot`, `CommandNotFound`, `Transport`, `Unsupported`.
    async fn logs(&self, ctx: &OpCtx, slot: &dyn SlotRef, options: &LogOptions) -> Result<LogStream>;
}

/// A backend behind an `Arc` is the same backend.
#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<B: Backend + ?Sized> Backend for Arc<B> {
    fn mode(&self) -> Mode {
        (**self).mode()
    }

    fn requirements(&self) -> Requirements {
        (**self).requirements()
    }

    async fn prepare(&self, ctx: &OpCtx, spec: &NodeSpec) -> Result<(Arc<dyn NodeRoot>, PrepareReport)> {
        (**self).prepare(ctx, spec).await
    }

    async fn start(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        (**self).start(ctx, slot).await
    }

    async fn stop(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        (**self).stop(ctx, slot).await
    }

    async fn restart(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        (**self).restart(ctx, slot).await
    }

    async fn destroy(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        (**self).destroy(ctx, slot).await
    }

    async fn status(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<Status> {
        (**self).status(ctx, slot).await
    }

    async fn exec(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecOutput> {
        (**self).exec(ctx, slot, spec).await
    }

    async fn exec_stream(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecStream> {
        (**self).exec_stream(ctx, slot, spec).await
    }

    async fn logs(&self, ctx: &OpCtx, slot: &dyn SlotRef, options: &LogOptions) -> Result<LogStream> {
        (**self).logs(ctx, slot, options).await
    }
}
