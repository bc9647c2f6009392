//! The agent is the first process of a cell. The tenant, though the same user, has no name for it: it lives in a pid namespace further
//! in, whose own first process reaps the orphans there.

use std::io::{Error, Result};
use std::os::{fd::AsFd, unix::net};
use std::{env, fs::File, process::Stdio, thread, time::Duration};

use custom_carrier::channels::{bounds, carry};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, LinkNameSpaceType};
use rustix::thread::{move_into_link_name_space, set_capabilities, set_no_new_privs};
use tokio::{net::UnixStream, process::Command};

fn main() -> Result<()> {
    // A child that has yet to become a shell shares its memory, and is in the tenant's sight.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let mut args = env::args_os().skip(1);
    // An address is short, a path need not be. And it is outside: the root is about to become another.
    env::set_current_dir(args.next().unwrap_or_default())?;
    let listener = net::UnixListener::bind("agent")?;
    env::set_current_dir("/")?;
    let mut init = std::process::Command::new("unshare");
    let mut init = init.args(["--pid", "--fork", "--kill-child"]).args(args).spawn()?;
    thread::spawn(move || {
        loop {
            match listener.accept() {
                // A thread for each: the tenant can hold up the start of a shell, and not the others.
                Ok((socket, _)) => drop(thread::Builder::new().spawn(|| serve(socket))),
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    });
    init.wait().map(drop)
}

/// Serves one connection, with a shell where the tenant is and without a capability. That need not die of the connection's end.
#[tokio::main(flavor = "current_thread")]
async fn serve(socket: net::UnixStream) -> Result<()> {
    socket.set_nonblocking(true)?;
    let socket = tokio_tungstenite::accept_async_with_config(UnixStream::from_std(socket)?, bounds()).await;
    let socket = socket.map_err(Error::other)?;
    move_into_link_name_space(File::open("/proc/1/ns/pid")?.as_fd(), Some(LinkNameSpaceType::ProcessID))?;
    set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    let mut shell = Command::new("/usr/bin/env");
    shell.args(["--default-signal", "/usr/bin/setsid", "/bin/bash", "--norc", "--noprofile", "-p"]).env_clear();
    shell.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", "/workspace");
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pipe = || Error::other("a pipe to the shell is missing");
    let stdin = Box::pin(shell.stdin.take().ok_or_else(pipe)?);
    let (stdout, stderr) = (shell.stdout.take().ok_or_else(pipe)?, shell.stderr.take().ok_or_else(pipe)?);
    let gone = async {
        let _ = shell.wait().await;
        // For what it has printed.
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    let _ = carry(socket, vec![(1, Box::pin(stdout)), (2, Box::pin(stderr))], vec![(0, stdin)], gone).await;
    shell.wait().await.map(drop)
}
