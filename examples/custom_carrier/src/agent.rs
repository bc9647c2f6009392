//! The agent is the first process of a cell. The tenant, though the same user, has no name for it: it lives in a pid namespace further
//! in, whose own first process reaps orphans there.

use std::env::{args_os, set_current_dir};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::{fs::File, io::Result, time::Duration};

use custom_carrier::channels::{bounds, carry};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{self, CapabilitySet, CapabilitySets, LinkNameSpaceType};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::{net::UnixListener, net::UnixStream, sync::oneshot, time::sleep};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    // A child that has yet to become a shell shares its memory, and is in the tenant's sight.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let mut args = args_os().skip(1);
    // An address is short, a path need not be. And it lies outside: the root is about to become another.
    set_current_dir(args.next().unwrap_or_default())?;
    let listener = UnixListener::bind("agent")?;
    set_current_dir("/")?;
    let mut init = tokio::process::Command::new("unshare");
    let mut init = init.args(["--pid", "--fork", "--kill-child"]).args(args).spawn()?;
    loop {
        tokio::select! {
            _ = init.wait() => return Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => drop(tokio::spawn(serve(socket))),
                Err(_) => sleep(Duration::from_millis(100)).await,
            },
        }
    }
}

/// Serves one connection to its end. Its shell need not die of that.
async fn serve(socket: UnixStream) -> Result<String> {
    let socket = tokio_tungstenite::accept_async_with_config(socket, bounds()).await.map_err(std::io::Error::other)?;
    let ((started, starting), (over, end)) = (oneshot::channel(), oneshot::channel());
    // A thread of its own: what it gives up is its own, and the tenant can hold up what is not yet a shell.
    std::thread::Builder::new().spawn(move || {
        let mut shell = start();
        let pipes = shell.as_mut().ok().and_then(|s| Some((s.stdin.take()?, s.stdout.take()?, s.stderr.take()?)));
        let _ = started.send(pipes);
        over.send(format!("{:?}", shell.and_then(|mut shell| shell.wait())))
    })?;
    let until = async {
        let reason = end.await.unwrap_or_default();
        // For what it has printed.
        sleep(Duration::from_millis(500)).await;
        reason
    };
    let Ok(Some((stdin, stdout, stderr))) = starting.await else { return carry(socket, vec![], vec![], until).await };
    let (stdout, stderr) = (Box::pin(ChildStdout::from_std(stdout)?), Box::pin(ChildStderr::from_std(stderr)?));
    carry(socket, vec![(1, stdout), (2, stderr)], vec![(0, Box::pin(ChildStdin::from_std(stdin)?))], until).await
}

/// Starts a shell where the tenant is, with no capability. By then the root is the cell's, and `1` its first process.
fn start() -> Result<Child> {
    thread::move_into_link_name_space(File::open("/proc/1/ns/pid")?.as_fd(), Some(LinkNameSpaceType::ProcessID))?;
    thread::set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    let mut shell = Command::new("/usr/bin/setsid");
    shell.args(["/bin/bash", "--norc", "--noprofile", "-p"]);
    shell.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", "/workspace");
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}
