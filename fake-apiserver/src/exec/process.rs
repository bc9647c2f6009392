//! The process behind a stream.

use std::future::Future;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};

use super::{STDERR, STDOUT};
use crate::shared::Shared;

/// What is read from a process at once, as a kubelet does.
const CHUNK: usize = 32 * 1024;

/// What comes out of a process: bytes on a channel, and its end.
#[derive(Debug)]
pub(super) enum Output {
    Data(u8, Bytes),
    Ended(i32),
}

/// The ends of a process that a stream holds. Without the stream the process goes on: its input is at an end, and its
/// output goes nowhere.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) input: mpsc::Sender<Bytes>,
    pub(super) output: mpsc::Receiver<Output>,
}

/// What to run, and which of its streams are wanted.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) argv: Vec<String>,
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) env: Vec<(String, String)>,
    pub(super) cwd: Option<PathBuf>,
}

impl Job {
    /// Environment and directory of a container's spec. A working directory is taken if it is one of this machine's
    /// temporary directories: a test made it.
    pub(super) fn of_container(&mut self, spec: &Value) {
        for pair in spec["env"].as_array().into_iter().flatten() {
            if let (Some(name), Some(value)) = (pair["name"].as_str(), pair["value"].as_str()) {
                self.env.push((name.to_owned(), value.to_owned()));
            }
        }
        let dir = spec["workingDir"].as_str().and_then(|dir| Path::new(dir).canonicalize().ok());
        self.cwd =
            dir.filter(|dir| dir.is_dir() && std::env::temp_dir().canonicalize().is_ok_and(|t| dir.starts_with(t)));
    }

    fn command(&self, home: &Path) -> Command {
        let mut command = Command::new(self.argv.first().map_or("", String::as_str));
        command.args(self.argv.get(1..).unwrap_or(&[])).env_clear();
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("HOME", home).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.cwd.as_deref().unwrap_or(home));
        let pipe = |wanted: bool| if wanted { Stdio::piped() } else { Stdio::null() };
        command.stdin(pipe(self.stdin)).stdout(pipe(self.stdout)).stderr(pipe(self.stderr));
        command
    }
}

/// Starts a process in the place of a pod. It belongs to the pod, not to the stream.
pub(super) fn start(shared: &Arc<Shared>, uid: &str, job: &Job) -> io::Result<Pipes> {
    let (child, gone) = shared.places.spawn(uid, |home| job.command(home))?;
    let (input, from_client) = mpsc::channel(16);
    let (to_client, output) = mpsc::channel(4);
    let drain = shared.options.drain;
    shared.tasks.spawn(follow(child, from_client, to_client, drain, gone));
    Ok(Pipes { input, output })
}

async fn follow(
    mut child: Child,
    from_client: mpsc::Receiver<Bytes>,
    to_client: mpsc::Sender<Output>,
    drain: Duration,
    gone: watch::Receiver<bool>,
) {
    let feed = feed(child.stdin.take(), from_client);
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (ended, mut has_ended) = watch::channel(false);
    let wait = async {
        let status = child.wait().await;
        ended.send_replace(true);
        status
    };
    let too_long = async {
        let _ = has_ended.wait_for(|ended| *ended).await;
        tokio::time::sleep(drain).await;
    };
    let outputs = async {
        let both = async { tokio::join!(pump(STDOUT, out, &to_client), pump(STDERR, err, &to_client)) };
        tokio::select! {
            _ = both => {}
            () = too_long => {}
        }
    };
    let forever = async {
        feed.await;
        std::future::pending::<()>().await;
    };
    let status = tokio::select! {
        (status, ()) = join(wait, outputs) => status,
        () = forever => return,
    };
    drop(gone);
    let _ = to_client.send(Output::Ended(code(status))).await;
}

async fn join<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    tokio::join!(a, b)
}

/// As a runtime tells it: 128 and the signal for who was killed.
fn code(status: io::Result<ExitStatus>) -> i32 {
    match status {
        Ok(status) => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        Err(_) => 255,
    }
}

/// Gives the client's bytes to the process; what it does not take any more is thrown away.
async fn feed(stdin: Option<ChildStdin>, mut from_client: mpsc::Receiver<Bytes>) {
    let mut stdin = stdin;
    while let Some(bytes) = from_client.recv().await {
        if let Some(pipe) = &mut stdin
            && pipe.write_all(&bytes).await.is_err()
        {
            stdin = None;
        }
    }
}

/// Gives the process's bytes to the client; when nobody takes them any more, they are thrown away.
async fn pump(channel: u8, from: Option<impl AsyncRead + Unpin>, to_client: &mpsc::Sender<Output>) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; CHUNK];
    let mut wanted = true;
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if wanted {
            let bytes = Bytes::copy_from_slice(&buffer[..count]);
            wanted = to_client.send(Output::Data(channel, bytes)).await.is_ok();
        }
    }
}
