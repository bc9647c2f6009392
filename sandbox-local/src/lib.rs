//! Sandboxes on this machine: Linux namespaces, nothing to install.
//!
//! ```no_run
//! use sandbox::{ExecRequest, Networking, Provider, SandboxExt, SandboxPath, SessionId, Spec};
//! use sandbox_local::{LocalConfig, LocalProvider};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), sandbox::Error> {
//! let provider = LocalProvider::new(LocalConfig::default())?;
//! let spec = Spec::new(SessionId::generate(), "host").with_networking(Networking::None);
//! let sandbox = provider.provision(&spec).await?;
//! let result = sandbox.exec(ExecRequest::shell("echo $((6 * 7))")).await?;
//! assert_eq!(result.stdout.bytes, "42\n");
//! provider.reap(&spec.session).await?;
//! # Ok(())
//! # }
//! ```
//!
//! It needs bash, coreutils and util-linux 2.38 or later, and a kernel that lets the caller make user namespaces: root, or an ordinary user
//! without any privilege. Where it is forbidden, the error says by what, with a [`Forbidden`] as its source;
//! [`LocalProvider::probe`] asks beforehand. On other systems than Linux the crate is empty: it stands on Linux's namespaces.
//!
//! # What is inside
//!
//! [`Spec::image`](sandbox::Spec::image) is `host`, or the absolute path of a directory with a root file system.
//!
//! - `host` shows `/usr` and its like read-only, a few entries of `/etc` that programs need, six devices, and a `/proc` of its own.
//!   `/`, `/tmp`, `/var/tmp`, `/home`, `/run` and the working directory are empty and belong to the tenant. Nothing else of the machine
//!   is there: no process, socket, home, environment, descriptor, terminal or key.
//! - A directory shows what is in it, read-only, links included, and the same places of the tenant's own. It needs `/bin/bash`. None
//!   of its programs runs before the host is out of their reach. Whoever makes sandboxes must be able to search it: as root that is not the
//!   caller, but users from [`LocalConfig::first_uid`] on.
//! - [`LocalConfig::show`] adds trees of the machine, such as toolchains.
//!
//! Commands run as user 1000, or as [`run_as_user`](sandbox::Hardening::run_as_user) says. The one user and the one group that exist inside
//! are never 0: what asks for that, or for an `fs_group` that is not the group, is refused as `Unsupported`. There are no capabilities,
//! and no way to gain any, whatever the spec says. With [`read_only_root`](sandbox::Hardening::read_only_root) the working directory, `/tmp`
//! and `/mnt` can be written, and `/dev/shm`, which is memory.
//!
//! # Networking
//!
//! `limited` and `none` have no interface but a loopback of their own, which is up where the machine has the program `ip`. `unrestricted`
//! is the machine's own network: with its loopback, its abstract sockets and its name service.
//!
//! # Bounds
//!
//! - Processes: always, for everything inside together. What serves the caller counts too: two for each call that is under way, such
//!   as a command, and five more. So the lowest bound is 8, with which one command of one process runs, and each further one at the same
//!   time takes three: a lower bound that is required is refused as `Unsupported`, and a preferred one is 8.
//! - Memory and processor time: through control groups, where there are any to be had ([`LocalConfig::cgroup`]). Delegated ones of version 2
//!   (`Delegate=yes` and `DelegateSubgroup=` in a systemd unit), or as root those of version 1. Otherwise they are not claimed:
//!   [`capabilities`](sandbox::Provider::capabilities) tells, and a required bound is refused.
//! - Disk: not bounded. `/dev/shm` has 64 MiB.
//!
//! # Lifetime
//!
//! A sandbox is a few processes and a directory below [`LocalConfig::state_dir`]; it outlives its provider and the process, and any other
//! process with the same state directory finds it by its session id. Whoever is killed at whatever point leaves nothing that
//! [`owned`](sandbox::Provider::owned) does not list and that the next provision or reap does not remove. Once nothing of a sandbox
//! runs any more, what it wrote is put out of the way in one step, and its session is free; a reap then removes it within
//! [`LocalConfig::stop_timeout`], and what is not removed by then, or was left by somebody who was killed, goes at the next provision
//! or reap of any process. A sandbox whose first process was killed is replaced by the next provision, and all handles of the new one
//! say so. After a restart of the machine the same holds.
//!
//! A sandbox that another version of this crate made, and whose record this one does not understand, is left alone: provisions and attaches
//! fail as `Unavailable`, by file and field, `owned` lists it as `Unknown`, and a reap removes it.
//!
//! What it cannot protect against stands in SECURITY.md: above all a fault of the kernel, whose whole interface is exposed.
#![cfg(target_os = "linux")]

mod argv;
mod carrier;
mod cgroup;
mod config;
mod error;
mod fstab;
mod host;
mod ident;
mod inherited;
mod life;
mod live;
mod local;
mod make;
mod modes;
mod parse;
mod plan;
mod probe;
mod provider;
mod record;
mod remove;
mod share;
mod spawn;
mod spec;
mod start;
mod state_dir;
mod store;
mod teardown;
mod tools;
mod trash;
mod users;
mod verify;
mod wanted;

pub use config::{Cgroup, LocalConfig};
pub use probe::Forbidden;
pub use provider::LocalProvider;
