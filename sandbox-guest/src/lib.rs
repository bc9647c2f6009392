//! What happens inside a sandbox, over any byte carrier.
//!
//! A backend brings a [`Carrier`]: about a hundred lines that open streams of bytes to a shell inside its sandbox. A [`Guest`] over it does
//! the rest, the same for every backend: commands with deadlines and capped output, processes to talk to, files. On Unix a [`DirProvider`] makes a
//! whole provider of it, for sandboxes on this machine: a [`Maker`] says how they are made, entered and ended. The example
//! `custom_provider` of this repository is one from end to end, and `custom_carrier` is a carrier over a transport of its own, with the agent at
//! its far side.
//!
//! ```
//! use std::process::Stdio;
//! use sandbox::{Death, Error, ErrorKind, ExecRequest, SandboxPath};
//! use sandbox_guest::{Carrier, CarrierStream, Closed, FarEnds, Guest, GuestConfig};
//!
//! /// Not a sandbox at all: a shell on this machine. Yours runs `docker exec`, `ssh`, `nsenter` or speaks to an API.
//! #[derive(Debug)]
//! struct Here;
//!
//! #[sandbox::async_trait]
//! impl Carrier for Here {
//!     async fn open(&self) -> Result<CarrierStream, Error> {
//!         let mut child = tokio::process::Command::new("/bin/bash")
//!             .args(["--norc", "--noprofile", "-p"])
//!             .stdin(Stdio::piped())
//!             .stdout(Stdio::piped())
//!             .stderr(Stdio::piped())
//!             .spawn()
//!             .map_err(|e| Error::new(ErrorKind::Unavailable).caused_by(e))?;
//!         let missing = || Error::new(ErrorKind::Other).because("a pipe is missing");
//!         let stdin = child.stdin.take().ok_or_else(missing)?;
//!         let stdout = child.stdout.take().ok_or_else(missing)?;
//!         let stderr = child.stderr.take().ok_or_else(missing)?;
//!         let closed = async move { Closed::new(format!("{:?}", child.wait().await)) };
//!         Ok(CarrierStream::new(stdin, stdout, stderr, closed))
//!     }
//!
//!     fn far_ends(&self) -> FarEnds {
//!         FarEnds::Pipes
//!     }
//!
//!     async fn cause_of_death(&self) -> Option<Death> {
//!         None
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let guest = Guest::new(std::sync::Arc::new(Here), GuestConfig::new(SandboxPath::new("/tmp")?));
//! let result = guest.exec(ExecRequest::shell("echo $((6 * 7)); exit 3")).await?;
//! assert_eq!((result.stdout.bytes.as_ref(), result.exit_code), (&b"42\n"[..], 3));
//! # Ok(())
//! # }
//! ```
//!
//! # How a command travels
//!
//! A stream is a shell that serves requests one after the other. It says READY once; to each request it answers BEGIN before
//! anything runs and END, with the exit code, afterwards, on both of its outputs. What stands between is the command's, byte for byte:
//! the command runs on the stream's own pipes, with open file descriptions of its own. BEGIN and END carry nonces of that request
//! alone, which stand in no argument, variable or file.
//!
//! After END the shell looks through `/proc` for a process that still holds its output. If there is none, the stream serves the next
//! request; otherwise it is retired, and the shell becomes a reader of its own output, so that a server left in the background may
//! go on printing.
//!
//! A call has one deadline until it begins, [`GuestConfig::begin_timeout`], and what waits behind a sandbox that gives no answer fails with
//! the first that found out.
//!
//! One more stream per guest, the control stream, carries signals: first to the command's process group, then to whoever holds its
//! output or has its marker (the variable `__sbx_exec`) in the environment. If the client vanishes, its far end still kills each
//! command at its limit, in the same way; what a command that ended in time left in the background it leaves alone.
//!
//! # How a file travels
//!
//! The scripts for files go to a shell with the first request that needs them. A file that is read comes as a BEGIN record, its bytes, and
//! an END record that says how many bytes were sent; it is whole only if so many arrived. A file that is written goes into a
//! temporary file beside its target, whose name (`.sbx-write-` and 16 digits) nobody inside knows beforehand, and gets its own name at the
//! end. Up to 64 KiB its content travels with the request; more of it goes in announced chunks, so that a source that fails is made up
//! for with zeros and taken back: the stream stays in step and the target as it was. Many small files go as one archive, which is
//! unpacked beside the targets and renamed; what is out of the ordinary in it is written singly, so that each failure has its own name.
//! An export is `tar`'s own output, and whole only if `tar` said so and the archive has its end.
//!
//! The shell classifies by its own tests; what tools print is only ever a reason in words. A transfer without progress for
//! [`GuestConfig::inactivity`] fails, and so does one that only trickles. One that is dropped ends inside too, and what was begun is removed; if the whole way into the
//! sandbox is lost at that moment, a temporary file can stay.
//!
//! # What an image needs
//!
//! `/bin/bash` (4.4 or later), `/proc`, and these tools of coreutils or BusyBox in `/usr/sbin:/usr/bin:/sbin:/bin`: `dd`, `cat` and `env` for
//! commands, also `stat`, `mkdir`, `chmod`, `mv`, `ln`, `rm` and `rmdir` for files, also `tar` for exports and for writing many files fast.
//! Nothing is injected.
//!
//! # Trust
//!
//! All of this runs with the tenant's credentials, in the tenant's reach. A tenant can falsify its own session's answers; it cannot
//! make a command that ran past its limit look punctual, since the verdict falls on the caller's clock, nor make a call hang or grow.
//! File operations run the tools of the fixed path with an empty environment; a tenant that can replace those tools can make its own
//! files lie to it and to you, no more.

mod carrier;
mod clock;
mod command;
mod config;
mod control;
#[cfg(unix)]
mod dir_provider;
mod exec;
mod files;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[allow(missing_docs, unreachable_pub, reason = "for the fuzzer")]
pub mod fuzzing;
mod guest;
mod opening;
mod patience;
mod pool;
mod quote;
mod record;
mod running;
mod scripts;
mod spawn;
mod stream;

pub use carrier::{Carrier, CarrierStream, Closed, FarEnds};
pub use config::GuestConfig;
#[cfg(unix)]
pub use dir_provider::{DirProvider, Maker};
pub use guest::Guest;
