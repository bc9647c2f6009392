//! What can be wrong about commands that one can talk to.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use sandbox::{
    ByteStream, Command, Env, Error, ErrorKind, ExecRequest, Exit, Process, ProcessControl, Signal, SpawnRequest,
};
use tokio::io::AsyncWrite;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::{Hooks, Mutant};

/// How a control differs from the honest one.
#[derive(Default)]
struct Sins {
    exit: Option<fn(Exit) -> Exit>,
    signal: Option<fn(Signal) -> Signal>,
    wait_once: bool,
    no_late_signal: bool,
    kill_once: bool,
    gone: bool,
    turn: Option<OwnedMutexGuard<()>>,
}

/// The control of a process that is kept whole behind it.
struct Control {
    inner: Arc<Mutex<Process>>,
    sins: Sins,
    waited: bool,
    killed: AtomicBool,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Control")
    }
}

#[async_trait]
impl ProcessControl for Control {
    async fn signal(&self, signal: Signal) -> Result<(), Error> {
        if self.waited && self.sins.no_late_signal {
            return Err(Error::new(ErrorKind::NotFound));
        }
        if signal == Signal::Kill && self.killed.swap(true, Ordering::Relaxed) && self.sins.kill_once {
            return Err(Error::new(ErrorKind::NotFound));
        }
        let signal = self.sins.signal.map_or(signal, |change| change(signal));
        self.inner.lock().await.signal(signal).await
    }

    async fn wait(&mut self) -> Result<Exit, Error> {
        if self.waited && self.sins.wait_once {
            return Err(Error::new(ErrorKind::NotFound));
        }
        let exit = match self.inner.lock().await.wait().await {
            Err(_) if self.sins.gone => Exit::new(137, false),
            ended => ended?,
        };
        self.waited = true;
        self.sins.turn = None;
        Ok(self.sins.exit.map_or(exit, |change| change(exit)))
    }
}

/// `process` with another control.
fn sinning(process: Process, sins: Sins) -> (Process, Arc<Mutex<Process>>) {
    let mut process = process;
    let empty = || ByteStream::new(futures::stream::empty());
    let stdin = process.stdin.take();
    let stdout = std::mem::replace(&mut process.stdout, empty());
    let stderr = std::mem::replace(&mut process.stderr, empty());
    let inner = Arc::new(Mutex::new(process));
    let control = Control { inner: Arc::clone(&inner), sins, waited: false, killed: AtomicBool::new(false) };
    (Process::new(stdin, stdout, stderr, Box::new(control)), inner)
}

fn hooks() -> Hooks {
    Hooks::default()
}

/// Changes the control of every process.
fn control(sins: fn() -> Sins) -> Hooks {
    hooks().spawn(move |inner, request| async move { Ok(sinning(inner.spawn(request).await?, sins()).0) })
}

/// Changes every request.
fn request(change: fn(&mut SpawnRequest)) -> Hooks {
    hooks().spawn(move |inner, mut request| async move {
        change(&mut request);
        inner.spawn(request).await
    })
}

/// The command as a text for the shell.
fn text(command: &Command) -> String {
    match command {
        Command::Shell(text) => String::from_utf8_lossy(text).into_owned(),
        Command::Args(args) => args.iter().map(|arg| String::from_utf8_lossy(arg)).collect::<Vec<_>>().join(" "),
        _ => String::new(),
    }
}

/// A stream that gives everything at once when its inner one has ended.
fn late(mut stream: ByteStream) -> ByteStream {
    ByteStream::new(futures::stream::once(async move {
        let mut all = Vec::new();
        while let Some(piece) = stream.next().await {
            all.extend_from_slice(&piece?);
        }
        Ok(all.into())
    }))
}

/// A stream that is read as fast as it comes, whoever reads.
fn eager(mut stream: ByteStream) -> ByteStream {
    let (send, receive) = tokio::sync::mpsc::channel(1 << 20);
    tokio::spawn(async move {
        while let Some(piece) = stream.next().await {
            if send.send(piece).await.is_err() {
                return;
            }
        }
    });
    ByteStream::new(futures::stream::unfold(
        receive,
        |mut receive| async move { Some((receive.recv().await?, receive)) },
    ))
}

/// A stream that is neither read nor dropped for a while once its reader has gone.
struct Kept(Option<ByteStream>);

impl Drop for Kept {
    fn drop(&mut self) {
        let stream = self.0.take();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(stream);
        });
    }
}

fn kept(stream: ByteStream) -> ByteStream {
    ByteStream::new(futures::stream::unfold(Kept(Some(stream)), |mut kept| async move {
        let piece = kept.0.as_mut()?.next().await?;
        Some((piece, kept))
    }))
}

/// The pieces of a stream that lie within its first `most` bytes.
fn head(stream: ByteStream, most: usize) -> ByteStream {
    ByteStream::new(futures::stream::unfold((stream, 0), move |(mut stream, before)| async move {
        let piece = stream.next().await?;
        let seen = before + piece.as_ref().map_or(0, bytes::Bytes::len);
        (seen <= most).then_some((piece, (stream, seen)))
    }))
}

/// A stream whose failure nobody hears of.
fn mute(stream: ByteStream) -> ByteStream {
    ByteStream::new(stream.then(|piece| async move {
        match piece {
            Ok(piece) => Ok(piece),
            Err(_) => std::future::pending().await,
        }
    }))
}

/// An input that takes nothing any more where it fails.
struct Full(Pin<Box<dyn AsyncWrite + Send>>);

impl Full {
    fn hide<T>(result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(result, Poll::Ready(Err(_))) { Poll::Pending } else { result }
    }
}

impl AsyncWrite for Full {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Self::hide(self.0.as_mut().poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::hide(self.0.as_mut().poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::hide(self.0.as_mut().poll_shutdown(cx))
    }
}

#[allow(clippy::too_many_lines)]
pub(super) fn mutants() -> Vec<Mutant> {
    let one = Arc::new(Mutex::new(()));
    vec![
        Mutant::new(
            "input is cut",
            &["spawn::echo", "spawn::checksums", "spawn::checksums_of_much"],
            request(|r| {
                if r.stdin {
                    r.command = Command::Shell(format!("head -c 500000 | {{ {}\n}}", text(&r.command)).into());
                }
            }),
        ),
        Mutant::new(
            "a byte of the input is another",
            &["spawn::checksums", "spawn::checksums_of_much"],
            request(|r| {
                if r.stdin {
                    let tr = "tr '\\000' '\\001'";
                    r.command = Command::Shell(format!("{tr} | {{ {}\n}}", text(&r.command)).into());
                }
            }),
        ),
        Mutant::new(
            "there is input though none was asked for",
            &["spawn::no_input"],
            request(|r| {
                if !r.stdin {
                    r.command = Command::Shell(format!("exec < <(echo typed)\n{}", text(&r.command)).into());
                }
            }),
        ),
        Mutant::new(
            "output comes at the end",
            &["spawn::output_arrives", "spawn::conversation"],
            hooks().spawn(|inner, request| async move {
                let mut process = inner.spawn(request).await?;
                process.stdout =
                    late(std::mem::replace(&mut process.stdout, ByteStream::new(futures::stream::empty())));
                Ok(process)
            }),
        ),
        Mutant::new(
            "output is piled up",
            &["spawn::output_waits"],
            hooks().spawn(|inner, request| async move {
                let mut process = inner.spawn(request).await?;
                process.stdout =
                    eager(std::mem::replace(&mut process.stdout, ByteStream::new(futures::stream::empty())));
                Ok(process)
            }),
        ),
        Mutant::new(
            "output that is dropped stands still",
            &["spawn::dropped_output"],
            hooks().spawn(|inner, request| async move {
                let mut process = inner.spawn(request).await?;
                process.stdout =
                    kept(std::mem::replace(&mut process.stdout, ByteStream::new(futures::stream::empty())));
                Ok(process)
            }),
        ),
        Mutant::new(
            "the tail of a spawned command's long output is lost",
            &["spawn::long_output_is_whole"],
            hooks().spawn(|inner, request| async move {
                let mut process = inner.spawn(request).await?;
                let stdout = std::mem::replace(&mut process.stdout, ByteStream::new(futures::stream::empty()));
                process.stdout = head(stdout, 14_000_000);
                Ok(process)
            }),
        ),
        Mutant::new(
            "codes of spawned commands above 125 become 1",
            &["spawn::codes"],
            control(|| Sins {
                exit: Some(|exit| if exit.code > 125 { Exit::new(1, exit.timed_out) } else { exit }),
                ..Sins::default()
            }),
        ),
        Mutant::new(
            "one can wait once",
            &["spawn::wait_again"],
            control(|| Sins { wait_once: true, ..Sins::default() }),
        ),
        Mutant::new(
            "a spawned command has no variables of the spec",
            &["spawn::env_of_the_spec"],
            request(|r| {
                let lost = format!("unset OF_THE_SPEC\n{}", text(&r.command));
                r.command = Command::Shell(lost.into());
            }),
        ),
        Mutant::new(
            "a spawned command starts where it can",
            &["spawn::workdir_that_is_none"],
            hooks().spawn(|inner, mut request| async move {
                if let Some(dir) = request.workdir.take() {
                    let look = ExecRequest::args([&b"test"[..], b"-d", dir.as_bytes()].map(<[u8]>::to_vec));
                    request.workdir = inner.exec(look).await?.success().then_some(dir);
                }
                inner.spawn(request).await
            }),
        ),
        Mutant::new(
            "a spawned command is started before its request is looked at",
            &["spawn::invalid_request_starts_nothing"],
            hooks().spawn(|inner, request| async move {
                if request.validate().is_err() {
                    inner.exec(ExecRequest::shell("touch /tmp/started")).await?;
                }
                inner.spawn(request).await
            }),
        ),
        Mutant::new(
            "the end of a reaped sandbox is one of the spawned command",
            &["reap::against_exec"],
            hooks().spawn(|inner, request| async move {
                Ok(sinning(inner.spawn(request).await?, Sins { gone: true, ..Sins::default() }).0)
            }),
        ),
        Mutant::new(
            "variables of a spawned command are lost",
            &["spawn::env_and_workdir"],
            request(|r| r.env = Env::new()),
        ),
        Mutant::new(
            "the working directory of a spawned command is lost",
            &["spawn::env_and_workdir"],
            request(|r| r.workdir = None),
        ),
        Mutant::new(
            "a signal reaches another group",
            &["spawn::signal"],
            request(|r| {
                let quoted = text(&r.command).replace('\'', "'\\''");
                r.command = Command::Shell(format!("setsid -w bash -c '{quoted}'").into());
            }),
        ),
        Mutant::new(
            "a late signal is an error",
            &["spawn::signal_after_the_end"],
            control(|| Sins { no_late_signal: true, ..Sins::default() }),
        ),
        Mutant::new(
            "a kill can be ignored",
            &["spawn::kill"],
            control(|| Sins {
                signal: Some(|signal| if signal == Signal::Kill { Signal::Terminate } else { signal }),
                ..Sins::default()
            }),
        ),
        Mutant::new(
            "a second kill is an error",
            &["spawn::kill"],
            control(|| Sins { kill_once: true, ..Sins::default() }),
        ),
        Mutant::new(
            "a dropped process runs on",
            &["spawn::dropped"],
            hooks().spawn(|inner, request| async move {
                let spawn = tokio::spawn(async move {
                    let (process, held) = sinning(inner.spawn(request).await?, Sins::default());
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_secs(30)).await;
                        drop(held);
                    });
                    Ok(process)
                });
                spawn.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Other)))
            }),
        ),
        Mutant::new(
            "output of a lost command never ends",
            &["spawn::streams_end"],
            hooks().spawn(|inner, request| async move {
                let mut process = inner.spawn(request).await?;
                process.stderr =
                    mute(std::mem::replace(&mut process.stderr, ByteStream::new(futures::stream::empty())));
                Ok(process)
            }),
        ),
        Mutant::new(
            "writing to a command that ended waits for ever",
            &["spawn::streams_end"],
            hooks().spawn(|inner, request| async move {
                let mut process = inner.spawn(request).await?;
                process.stdin = process.stdin.take().map(|stdin| Box::pin(Full(stdin)) as _);
                Ok(process)
            }),
        ),
        Mutant::new(
            "a limit of a spawned command is an ordinary end",
            &["spawn::limit"],
            control(|| Sins { exit: Some(|exit| Exit::new(exit.code, false)), ..Sins::default() }),
        ),
        Mutant::new(
            "spawned commands queue behind each other",
            &["spawn::many_at_once"],
            hooks().spawn(move |inner, request| {
                let one = Arc::clone(&one);
                async move {
                    let turn = one.lock_owned().await;
                    let process = inner.spawn(request).await?;
                    Ok(sinning(process, Sins { turn: Some(turn), ..Sins::default() }).0)
                }
            }),
        ),
    ]
}
