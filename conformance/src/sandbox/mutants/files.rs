//! What can be wrong about files and exports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sandbox::{Body, ByteStream, Error, ErrorKind, ExecRequest, ExecResult, FileWrite, SandboxPath};
use tokio::io::AsyncReadExt;
use tokio::time::{sleep, timeout};

use super::{Hooks, Inner, Mutant};

fn hooks() -> Hooks {
    Hooks::default()
}

/// Runs `script` with `path` as its first argument.
pub(super) async fn run(inner: &Inner, script: &str, path: &SandboxPath) -> Result<ExecResult, Error> {
    let args = [b"bash".to_vec(), b"-c".to_vec(), script.into(), b"mutant".to_vec(), path.as_bytes().to_vec()];
    inner.exec(ExecRequest::args(args)).await
}

async fn holds(inner: &Inner, test: &str, path: &SandboxPath) -> bool {
    run(inner, test, path).await.is_ok_and(|result| result.success())
}

pub(super) fn once(bytes: impl Into<Bytes>) -> ByteStream {
    let bytes = bytes.into();
    ByteStream::new(futures::stream::once(async move { Ok(bytes) }))
}

/// All of a body, as long as no piece takes more than `pause`.
async fn collect(body: &mut Body<'_>, pause: Duration) -> Result<Vec<u8>, Error> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match timeout(pause, body.read(&mut buffer)).await {
            Ok(Ok(0)) | Err(_) => return Ok(all),
            Ok(Ok(n)) => all.extend_from_slice(&buffer[..n]),
            Ok(Err(e)) => return Err(Error::new(ErrorKind::Other).caused_by(e)),
        }
    }
}

const LONG: Duration = Duration::from_secs(30);

/// `path` with every component trimmed.
fn trimmed(path: &SandboxPath) -> SandboxPath {
    let parts: Vec<_> = path.as_bytes().split(|b| *b == b'/').map(<[u8]>::trim_ascii).collect();
    SandboxPath::new(parts.join(&b'/')).unwrap_or_else(|_| path.clone())
}

/// `path` in a tree of its own.
fn shadow(path: &SandboxPath) -> SandboxPath {
    SandboxPath::new([b"/tmp/.shadow", path.as_bytes()].concat()).unwrap_or_else(|_| path.clone())
}

/// Raises a flag when it is dropped armed.
struct Flag(Arc<AtomicBool>, bool);

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

pub(super) fn mutants() -> Vec<Mutant> {
    [reads(), writes(), failed_writes()].into_iter().flatten().collect()
}

/// Tells one kind of refusal of a read as another.
fn read_as(from: ErrorKind, to: ErrorKind) -> Hooks {
    hooks().read(move |inner, (path, limit)| async move {
        inner.read(&path, limit).await.map_err(|e| if e.kind() == from { Error::new(to) } else { e })
    })
}

/// Tells one kind of refusal of a write as another.
fn write_as(from: ErrorKind, to: ErrorKind) -> Hooks {
    hooks().write(move |inner, file| {
        Box::pin(async move { inner.write(file).await.map_err(|e| if e.kind() == from { Error::new(to) } else { e }) })
    })
}

/// Changes every file before it is written.
fn file(change: impl for<'a> Fn(&mut FileWrite<'a>) + Send + Sync + Copy + 'static) -> Hooks {
    hooks().write(move |inner, mut file| {
        Box::pin(async move {
            change(&mut file);
            inner.write(file).await
        })
    })
}

#[allow(clippy::too_many_lines)]
fn reads() -> Vec<Mutant> {
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

#[allow(clippy::too_many_lines)]
fn writes() -> Vec<Mutant> {
    vec![
        Mutant::new(
            "parents are not made",
            &["write::makes_parents"],
            hooks().write(|inner, file| {
                Box::pin(async move {
                    if holds(&inner, "[[ -d ${1%/*} ]]", &file.path).await {
                        inner.write(file).await
                    } else {
                        Err(Error::new(ErrorKind::NotWritable))
                    }
                })
            }),
        ),
        Mutant::new(
            "the old end stays",
            &["write::replaces"],
            hooks().write(|inner, mut file| {
                Box::pin(async move {
                    let mut bytes = collect(&mut file.body, LONG).await?;
                    if let Ok(stream) = inner.read(&file.path, 1 << 20).await {
                        let old = stream.collect(1 << 20).await?;
                        bytes.extend_from_slice(old.get(bytes.len()..).unwrap_or_default());
                    }
                    inner.write(FileWrite::bytes(file.path, bytes)).await
                })
            }),
        ),
        Mutant::new(
            "a slow body is taken for short",
            &["write::slow_bodies"],
            hooks().write(|inner, mut file| {
                Box::pin(async move {
                    let bytes = collect(&mut file.body, Duration::from_secs(1)).await?;
                    inner.write(FileWrite::new(file.path, file.size, Body::bytes(bytes))).await
                })
            }),
        ),
        Mutant::new(
            "empty files are not written",
            &["write::empty_200_times"],
            hooks().write(|inner, file| {
                Box::pin(async move { if file.size == 0 { Ok(()) } else { inner.write(file).await } })
            }),
        ),
        Mutant::new(
            "a body is read before the file is checked",
            &["write::refused_unread"],
            hooks().write(|inner, mut file| {
                Box::pin(async move {
                    let bytes = collect(&mut file.body, LONG).await?;
                    file.body = Body::bytes(bytes);
                    inner.write(file).await
                })
            }),
        ),
        Mutant::new(
            "a new file has the umask's mode",
            &["write::mode_of_a_new_file"],
            hooks().write(|inner, mut file| {
                Box::pin(async move {
                    if !holds(&inner, "[[ -e $1 ]]", &file.path).await {
                        file.mode.get_or_insert(0o600);
                    }
                    inner.write(file).await
                })
            }),
        ),
        Mutant::new(
            "a replaced file gets mode 0644",
            &["write::mode_is_kept"],
            file(|file| _ = file.mode.get_or_insert(0o644)),
        ),
        Mutant::new(
            "the mode of the request is ignored",
            &["write::mode_of_the_request"],
            file(|file| file.mode = None),
        ),
        Mutant::new(
            "a link is written through",
            &["write::onto_a_link"],
            hooks().write(|inner, mut file| {
                Box::pin(async move {
                    if holds(&inner, "[[ -L $1 && -e $1 ]]", &file.path).await {
                        let real = run(&inner, "printf %s \"$(readlink -f -- \"$1\")\"", &file.path).await?;
                        file.path = SandboxPath::new(real.stdout.bytes.to_vec())?;
                    }
                    inner.write(file).await
                })
            }),
        ),
        Mutant::new(
            "a directory is removed for a file",
            &["write::onto_a_directory"],
            hooks().write(|inner, file| {
                Box::pin(async move {
                    run(&inner, "[[ $1 == /tmp/?* && -d $1 ]] && rm -rf -- \"$1\"", &file.path).await?;
                    inner.write(file).await
                })
            }),
        ),
        Mutant::new(
            "a write onto a directory is told as unwritable",
            &["write::onto_a_directory"],
            write_as(ErrorKind::IsDirectory, ErrorKind::NotWritable),
        ),
        Mutant::new(
            "a write below a file is told as unwritable",
            &["write::below_a_file"],
            write_as(ErrorKind::NotDirectory, ErrorKind::NotWritable),
        ),
        Mutant::new(
            "a device swallows the write",
            &["write::onto_a_device", "write::onto_a_mount_point"],
            hooks().write(|inner, file| {
                Box::pin(async move {
                    match inner.write(file).await {
                        Err(e) if e.kind() == ErrorKind::NotReplaceable => Ok(()),
                        other => other,
                    }
                })
            }),
        ),
        Mutant::new(
            "an unwritable place has no reason",
            &["write::where_nothing_can_be_made"],
            write_as(ErrorKind::NotWritable, ErrorKind::NotWritable),
        ),
        Mutant::new(
            "what must be new replaces",
            &["write::create_new", "write::create_new_races"],
            file(|file| file.create_new = false),
        ),
        Mutant::new(
            "what must be new is looked for, then made",
            &["write::create_new_races"],
            hooks().write(|inner, mut file| {
                Box::pin(async move {
                    if file.create_new && holds(&inner, "[[ -e $1 || -L $1 ]]", &file.path).await {
                        return Err(Error::new(ErrorKind::AlreadyExists));
                    }
                    file.create_new = false;
                    inner.write(file).await
                })
            }),
        ),
    ]
}

fn failed_writes() -> Vec<Mutant> {
    /// Runs `script` after a write that failed.
    fn after(script: &'static str) -> Hooks {
        hooks().write(move |inner, file| {
            Box::pin(async move {
                let path = file.path.clone();
                let written = inner.write(file).await;
                if written.is_err() {
                    run(&inner, script, &path).await?;
                }
                written
            })
        })
    }
    /// Leaves something beside a file whose write was dropped.
    struct Residue(Option<Inner>);
    impl Drop for Residue {
        fn drop(&mut self) {
            if let Some(inner) = self.0.take() {
                tokio::spawn(async move { inner.exec(ExecRequest::shell("touch /tmp/d/.temporary")).await });
            }
        }
    }
    vec![
        Mutant::new(
            "a failed write removes the target",
            &["write::failed_changes_nothing", "write::broken_body"],
            after("rm -f -- \"$1\""),
        ),
        Mutant::new(
            "a failed write leaves a file beside",
            &["write::failed_changes_nothing", "write::broken_body"],
            after("touch -- \"${1%/*}/.temporary\""),
        ),
        Mutant::new(
            "a dropped write leaves a file beside",
            &["write::dropped"],
            hooks().write(|inner, file| {
                Box::pin(async move {
                    let mut residue = Residue(Some(inner.clone()));
                    let written = inner.write(file).await;
                    residue.0 = None;
                    written
                })
            }),
        ),
        Mutant::new(
            "a short body is filled up",
            &["write::short_body"],
            hooks().write(|inner, mut file| {
                Box::pin(async move {
                    let mut bytes = collect(&mut file.body, LONG).await?;
                    bytes.resize(bytes.len().max(usize::try_from(file.size).unwrap_or(0)), 0);
                    file.body = Body::bytes(bytes);
                    inner.write(file).await
                })
            }),
        ),
        Mutant::new(
            "a long body is cut",
            &["write::long_body"],
            hooks().write(|inner, mut file| {
                Box::pin(async move {
                    let mut bytes = collect(&mut file.body, LONG).await?;
                    bytes.truncate(usize::try_from(file.size).unwrap_or(usize::MAX));
                    file.body = Body::bytes(bytes);
                    inner.write(file).await
                })
            }),
        ),
    ]
}
