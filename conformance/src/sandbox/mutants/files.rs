//! What can be wrong about reading files and exports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sandbox::{Body, ByteStream, Error, ErrorKind, ExecRequest, ExecResult, FileWrite, SandboxPath};
use tokio::io::AsyncReadExt;
use tokio::time::{sleep, timeout};

use super::{Hooks, Inner, Mutant};

pub(super) fn hooks() -> Hooks {
    Hooks::default()
}

/// Runs `script` with `path` as its first argument.
pub(super) async fn run(inner: &Inner, script: &str, path: &SandboxPath) -> Result<ExecResult, Error> {
    let args = [b"bash".to_vec(), b"-c".to_vec(), script.into(), b"mutant".to_vec(), path.as_bytes().to_vec()];
    inner.exec(ExecRequest::args(args)).await
}

pub(super) async fn holds(inner: &Inner, test: &str, path: &SandboxPath) -> bool {
    run(inner, test, path).await.is_ok_and(|result| result.success())
}

pub(super) fn once(bytes: impl Into<Bytes>) -> ByteStream {
    let bytes = bytes.into();
    ByteStream::new(futures::stream::once(async move { Ok(bytes) }))
}

/// All of a body, as long as no piece takes more than `pause`.
pub(super) async fn collect(body: &mut Body<'_>, pause: Duration) -> Result<Vec<u8>, Error> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match timeout(pause, body.read(&mut buffer)).await {
            Ok(Ok(0)) | Err(_) => return Ok(all),
            Ok(Ok(n)) => all.extend_from_slice(&buffer[..n]),
            Ok(Err(e)) => return Err(Error::new(ErrorKind::Other).caused_by(e)),
        }
    }
}

pub(super) const LONG: Duration = Duration::from_secs(30);

/// `path` with every component trimmed.
pub(super) fn trimmed(path: &SandboxPath) -> SandboxPath {
    let parts: Vec<_> = path.as_bytes().split(|b| *b == b'/').map(<[u8]>::trim_ascii).collect();
    SandboxPath::new(parts.join(&b'/')).unwrap_or_else(|_| path.clone())
}

/// `path` in a tree of its own.
pub(super) fn shadow(path: &SandboxPath) -> SandboxPath {
    SandboxPath::new([b"/tmp/.shadow", path.as_bytes()].concat()).unwrap_or_else(|_| path.clone())
}

/// Raises a flag when it is dropped armed.
pub(super) struct Flag(pub(super) Arc<AtomicBool>, pub(super) bool);

impl Drop for Flag {
    fn drop(&mut self) {
        if self.1 {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// `stream`, which raises `flag` if it is dropped before its end.
pub(super) fn watched(stream: ByteStream, flag: Arc<AtomicBool>) -> ByteStream {
    let state = (stream, Flag(flag, true));
    ByteStream::new(futures::stream::unfold(state, |(mut stream, mut flag)| async move {
        let piece = stream.next().await;
        flag.1 = piece.is_some();
        piece.map(|piece| (piece, (stream, flag)))
    }))
}

/// `stream` in small pieces, which ends where its reader took longer than a second for one.
pub(super) async fn impatient(stream: ByteStream) -> Result<ByteStream, Error> {
    let state = (stream.collect(1 << 30).await?, None::<Instant>);
    Ok(ByteStream::new(futures::stream::unfold(state, |(mut left, given)| async move {
        let late = given.is_some_and(|given| given.elapsed() > Duration::from_secs(1));
        let piece = left.split_to(left.len().min(1 << 14));
        (!late && !piece.is_empty()).then(|| (Ok(piece), (left, Some(Instant::now()))))
    })))
}

/// Tells one kind of refusal of a read as another.
fn read_as(from: ErrorKind, to: ErrorKind) -> Hooks {
    hooks().read(move |inner, (path, limit)| async move {
        inner.read(&path, limit).await.map_err(|e| if e.kind() == from { Error::new(to) } else { e })
    })
}

/// Changes every file before it is written.
pub(super) fn file(change: impl for<'a> Fn(&mut FileWrite<'a>) + Send + Sync + Copy + 'static) -> Hooks {
    hooks().write(move |inner, mut file| {
        Box::pin(async move {
            change(&mut file);
            inner.write(file).await
        })
    })
}

#[allow(clippy::too_many_lines)]
pub(super) fn mutants() -> Vec<Mutant> {
    let broken = Arc::new(AtomicBool::new(false));
    vec![
        Mutant::new(
            "content is made UTF-8",
            &["read::bytes", "read::sizes"],
            hooks().read(|inner, (path, limit)| async move {
                let bytes = inner.read(&path, limit).await?.collect(1 << 30).await?;
                Ok(once(String::from_utf8_lossy(&bytes).into_owned()))
            }),
        ),
        Mutant::new(
            "names are trimmed",
            &["read::odd_names", "read::odd_directories"],
            file(|file| file.path = trimmed(&file.path)),
        ),
        Mutant::new(
            "files live in a tree of their own",
            &["read::one_file_system"],
            file(|file| file.path = shadow(&file.path))
                .read(|inner, (path, limit)| async move { inner.read(&shadow(&path), limit).await }),
        ),
        Mutant::new(
            "the limit is exclusive",
            &["read::limit_is_inclusive"],
            hooks().read(|inner, (path, limit)| async move { inner.read(&path, limit.saturating_sub(1)).await }),
        ),
        Mutant::new(
            "too large is found out at the end",
            &["read::limit_is_inclusive"],
            hooks().read(|inner, (path, limit)| async move {
                let bytes = inner.read(&path, 1 << 30).await?.collect(1 << 30).await?;
                let late = (bytes.len() as u64 > limit).then(|| Err(Error::new(ErrorKind::FileTooLarge)));
                Ok(ByteStream::new(futures::stream::iter([Some(Ok(bytes)), late].into_iter().flatten())))
            }),
        ),
        Mutant::new(
            "a small file that is a byte too large is found out at the end",
            &["read::limit_is_inclusive"],
            hooks().read(|inner, (path, limit)| async move {
                if limit >= 4096 {
                    return inner.read(&path, limit).await;
                }
                let bytes = inner.read(&path, limit + 1).await?.collect(1 << 16).await?;
                let late = (bytes.len() as u64 > limit).then(|| Err(Error::new(ErrorKind::FileTooLarge)));
                Ok(ByteStream::new(futures::stream::iter([Some(Ok(bytes)), late].into_iter().flatten())))
            }),
        ),
        Mutant::new(
            "a limit of 0 is none",
            &["read::limit_of_0"],
            hooks().read(|inner, (path, limit)| async move {
                let bytes = inner.read(&path, if limit == 0 { 1 << 30 } else { limit }).await?.collect(1 << 30).await?;
                Ok(once(bytes))
            }),
        ),
        Mutant::new(
            "a missing file is empty",
            &["read::missing"],
            hooks().read(|inner, (path, limit)| async move {
                match inner.read(&path, limit).await {
                    Err(e) if e.kind() == ErrorKind::FileNotFound => Ok(once("")),
                    other => other,
                }
            }),
        ),
        Mutant::new(
            "a directory is told as irregular",
            &["read::directory"],
            read_as(ErrorKind::IsDirectory, ErrorKind::NotRegularFile),
        ),
        Mutant::new(
            "links are followed",
            &["read::link_fifo_socket_device"],
            hooks().read(|inner, (path, limit)| async move {
                match inner.read(&path, limit).await {
                    Err(e) if e.kind() == ErrorKind::NotRegularFile => {
                        let real = run(&inner, "printf %s \"$(readlink -f -- \"$1\")\"", &path).await?;
                        let real = SandboxPath::new(real.stdout.bytes.to_vec())?;
                        if real == path { Err(e) } else { inner.read(&real, limit).await }
                    }
                    other => other,
                }
            }),
        ),
        Mutant::new(
            "a FIFO or a device is opened before it is looked at",
            &["read::link_fifo_socket_device"],
            hooks().read(|inner, (path, limit)| async move {
                run(&inner, "[[ -L $1 || -d $1 ]] || timeout 8 head -c 1 -- \"$1\"", &path).await?;
                inner.read(&path, limit).await
            }),
        ),
        Mutant::new(
            "a socket is an empty file",
            &["read::link_fifo_socket_device"],
            hooks().read(|inner, (path, limit)| async move {
                if holds(&inner, "[[ -S $1 && ! -L $1 ]]", &path).await {
                    Ok(once(""))
                } else {
                    inner.read(&path, limit).await
                }
            }),
        ),
        Mutant::new(
            "a blocked path is told as missing",
            &["read::below_a_file"],
            read_as(ErrorKind::NotDirectory, ErrorKind::FileNotFound),
        ),
        Mutant::new(
            "links on the way are refused",
            &["read::links_on_the_way"],
            hooks().read(|inner, (path, limit)| async move {
                if holds(&inner, "d=$(dirname -- \"$1\"); [[ $(readlink -f -- \"$d\") == \"$d\" ]]", &path).await {
                    inner.read(&path, limit).await
                } else {
                    Err(Error::new(ErrorKind::NotDirectory))
                }
            }),
        ),
        Mutant::new(
            "what has no size is empty",
            &["read::files_without_a_size"],
            hooks().read(|inner, (path, limit)| async move {
                let stream = inner.read(&path, limit).await?;
                if holds(&inner, "[[ -s $1 ]]", &path).await { Ok(stream) } else { Ok(once("")) }
            }),
        ),
        Mutant::new(
            "a file that grew is a fault",
            &["read::beside_a_writer"],
            read_as(ErrorKind::FileTooLarge, ErrorKind::Protocol),
        ),
        Mutant::new(
            "a file ends where its reader is slow",
            &["read::waits_for_its_reader"],
            hooks().read(|inner, (path, limit)| async move { impatient(inner.read(&path, limit).await?).await }),
        ),
        {
            let seen = Arc::clone(&broken);
            Mutant::new(
                "a dropped read breaks the handle",
                &["read::dropped"],
                hooks().read(move |inner, (path, limit)| {
                    let (flag, stuck) = (Arc::clone(&broken), seen.load(Ordering::Relaxed));
                    async move {
                        if stuck {
                            return Err(Error::new(ErrorKind::Lost));
                        }
                        Ok(watched(inner.read(&path, limit).await?, flag))
                    }
                }),
            )
        },
        {
            let inside = Arc::new(AtomicUsize::new(0));
            Mutant::new(
                "only one may write at a time",
                &["read::many_at_once"],
                hooks().write(move |inner, file| {
                    let inside = Arc::clone(&inside);
                    Box::pin(async move {
                        let others = inside.fetch_add(1, Ordering::Relaxed);
                        sleep(Duration::from_millis(5)).await;
                        let written =
                            if others > 0 { Err(Error::new(ErrorKind::Busy)) } else { inner.write(file).await };
                        inside.fetch_sub(1, Ordering::Relaxed);
                        written
                    })
                }),
            )
        },
        Mutant::new(
            "a file is removed before it is replaced",
            &["write::replaces_in_one_step"],
            hooks().write(|inner, file| {
                Box::pin(async move {
                    run(&inner, "rm -f -- \"$1\"; sleep 0.1", &file.path).await?;
                    inner.write(file).await
                })
            }),
        ),
        Mutant::new(
            "a file is written in two steps",
            &["write::replaces_in_one_step"],
            hooks().write(|inner, mut file| {
                Box::pin(async move {
                    let bytes = collect(&mut file.body, LONG).await?;
                    let half = Bytes::from(bytes[..(bytes.len() / 2) | 1].to_vec());
                    inner.write(FileWrite::bytes(file.path.clone(), half)).await?;
                    sleep(Duration::from_millis(60)).await;
                    inner.write(FileWrite::bytes(file.path, bytes)).await
                })
            }),
        ),
    ]
}
