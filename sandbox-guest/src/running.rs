//! A command that runs: how it is started, what its end record says, and that dropping it kills it.

use sandbox::{Command, Effect, Env, Error, ErrorKind, SandboxPath};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::command::{self, Run};
use crate::control::{Control, Who};
use crate::guest::Inner;
use crate::pool::{Lease, Pool, Turn};
use crate::record::{Nonce, Record};
use crate::stream::{SendError, Shell, Tries, late, lost};

/// What to start.
pub(crate) struct Start<'a> {
    pub(crate) command: &'a Command,
    pub(crate) env: &'a Env,
    pub(crate) workdir: &'a SandboxPath,
    pub(crate) marker: &'a str,
    pub(crate) input: bool,
}

/// A command that may be running. Dropping it kills the command and gives up its stream.
pub(crate) struct Running {
    control: Control,
    shell: Shell,
    marker: String,
    lease: Option<Lease>,
    /// What the end records will carry.
    pub(crate) end: Nonce,
    /// When it began, on the caller's clock.
    pub(crate) begun: Instant,
}

impl Running {
    /// Sends the request and waits until the command begins, all by one deadline. A stream that was found dead before the request was
    /// sent whole costs another one, silently; the request is never sent twice.
    pub(crate) async fn start(guest: &Inner, start: &Start<'_>) -> Result<Self, Error> {
        command::check_size(start.command, start.env, &guest.config.env)?;
        let late = |what: &str| late(what, guest.config.begin_timeout).with_effect(Effect::Unknown);
        let mut tries = Tries::new(&guest.config);
        let mut turn = guest.pool.turn().await?;
        let deadline = turn.deadline;
        loop {
            let mut lease = Lease::new(guest.stream_and_control(&turn).await?, turn);
            let (begin, end) = (Nonce::new(), Nonce::new());
            lease.stream.out.scanner.expect(begin);
            lease.stream.err.scanner.expect(begin);
            let Start { command, env, workdir, marker, input } = *start;
            let request = command::request(
                begin,
                end,
                &Run { command, env, workdir, marker, reopen: lease.stream.reopen, input },
            );
            // From here on the command may run.
            let mut running = Self {
                control: guest.control.clone(),
                shell: lease.stream.shell.clone(),
                marker: marker.to_owned(),
                lease: Some(lease),
                end,
                begun: Instant::now(),
            };
            let asked = Instant::now();
            match timeout_at(deadline, running.lease().stream.send(&request)).await {
                Ok(Ok(())) => {}
                // It may have all of it.
                Ok(Err(SendError::Flush(e))) => return Err(lost("the stream broke behind the request").caused_by(e)),
                Ok(Err(SendError::Write(e))) => {
                    // The shell needs the whole request before it runs anything, and did not get it.
                    turn = running.give_back();
                    tries.another(e)?;
                    continue;
                }
                Err(_) => return Err(guest.pool.failed(asked, late("the sandbox did not take the request"))),
            }
            match timeout_at(deadline, running.lease().stream.await_record(b'B')).await {
                Ok(begun) => begun?,
                Err(_) => return Err(guest.pool.failed(asked, late("the command did not begin"))),
            };
            guest.pool.heard();
            running.begun = Instant::now();
            return Ok(running);
        }
    }

    pub(crate) fn lease(&mut self) -> &mut Lease {
        self.lease.as_mut().expect("the lease is there until the command is settled")
    }

    /// Nothing was started, so that nothing has to be killed.
    fn give_back(mut self) -> Turn {
        self.lease.take().expect("the lease is there until the command is settled").into_turn()
    }

    /// Orders a signal, as long as the command is not settled.
    pub(crate) fn signal(&self, signal: &'static str, who: Who) -> oneshot::Receiver<bool> {
        self.order(signal, who, self.lease.as_ref().map(Lease::place))
    }

    /// As [`signal`](Self::signal); `turn` is held until the order is done, too.
    pub(crate) fn signal_in_turn(
        &self,
        signal: &'static str,
        who: Who,
        turn: OwnedSemaphorePermit,
    ) -> oneshot::Receiver<bool> {
        let place = self.lease.as_ref().map(Lease::place);
        self.order(signal, who, place.map(|place| (place, turn)))
    }

    fn order(&self, signal: &'static str, who: Who, held: impl Send + Sync + 'static) -> oneshot::Receiver<bool> {
        self.control.signal(signal, &self.shell, &self.marker, who, held)
    }

    /// The command ended by itself, and its stream is not wanted any more.
    pub(crate) fn forget(mut self) {
        self.lease = None;
    }

    /// The command ended by itself and needs no kill: its stream goes back, if it can serve another.
    pub(crate) fn settle(mut self, pool: &Pool, reusable: bool) {
        if let Some(lease) = self.lease.take()
            && reusable
        {
            pool.release(lease);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            let place = lease.place();
            drop(lease);
            drop(self.order("KILL", Who::Shell, place));
        }
    }
}

/// What an end record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The command ended with this code; somebody still holds its output, or not.
    Exit { code: i32, retired: bool },
    /// The working directory is not there.
    NoWorkdir,
    /// The working directory is no directory.
    BadWorkdir,
}

impl End {
    pub(crate) fn parse(record: &Record) -> Result<Self, Error> {
        let text = String::from_utf8_lossy(&record.payload);
        let parts: Vec<&str> = text.split(' ').collect();
        let end = match (record.kind, parts.as_slice()) {
            (b'E', ["w", "n"]) => Some(Self::NoWorkdir),
            (b'E', ["w", "d"]) => Some(Self::BadWorkdir),
            (b'E', ["x", code, retired @ ("0" | "1")]) => {
                let code = code.parse().ok().filter(|code| (0..=255).contains(code));
                code.map(|code| Self::Exit { code, retired: *retired == "1" })
            }
            _ => None,
        };
        end.ok_or_else(|| {
            Error::new(ErrorKind::Protocol).with_effect(Effect::Unknown).because("an end record that says nothing")
        })
    }

    /// The exit code, or why nothing was started in `workdir`.
    pub(crate) fn code(self, workdir: &SandboxPath) -> Result<i32, Error> {
        let refused = |kind| Err(Error::new(kind).at(workdir.clone()).because("the working directory"));
        match self {
            Self::Exit { code, .. } => Ok(code),
            Self::NoWorkdir => refused(ErrorKind::FileNotFound),
            Self::BadWorkdir => refused(ErrorKind::NotDirectory),
        }
    }
}
