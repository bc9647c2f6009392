//! What can be wrong about writing files.

use std::time::Duration;

use sandbox::{Body, Error, ErrorKind, ExecRequest, FileWrite, SandboxPath};

use super::files::{LONG, collect, file, holds, hooks, run};
use super::{Hooks, Inner, Mutant};

pub(super) fn mutants() -> Vec<Mutant> {
    [writes(), failed_writes()].into_iter().flatten().collect()
}

/// Tells one kind of refusal of a write as another.
fn write_as(from: ErrorKind, to: ErrorKind) -> Hooks {
    hooks().write(move |inner, file| {
        Box::pin(async move { inner.write(file).await.map_err(|e| if e.kind() == from { Error::new(to) } else { e }) })
    })
}

/// What cannot be replaced takes a write in silence, if `test` holds.
fn swallowed(test: &'static str) -> Hooks {
    hooks().write(move |inner, file| {
        Box::pin(async move {
            let path = file.path.clone();
            match inner.write(file).await {
                Err(e) if e.kind() == ErrorKind::NotReplaceable && holds(&inner, test, &path).await => Ok(()),
                other => other,
            }
        })
    })
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
            "a default ACL decides the mode",
            &["write::mode_of_a_new_file"],
            hooks().write(|inner, mut file| {
                Box::pin(async move {
                    if holds(&inner, "[[ ! -e $1 && $(getfacl -cd -- \"${1%/*}\") ]]", &file.path).await {
                        file.mode.get_or_insert(0o666);
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
        Mutant::new("a device swallows the write", &["write::onto_a_device"], swallowed("[[ -c $1 ]]")),
        Mutant::new("what is mounted swallows the write", &["write::onto_a_mount_point"], swallowed("[[ -f $1 ]]")),
        Mutant::new(
            "what is mounted is told as unwritable",
            &["write::onto_a_mount_point", "write::onto_a_device"],
            write_as(ErrorKind::NotReplaceable, ErrorKind::NotWritable),
        ),
        Mutant::new(
            "an unwritable place has no reason",
            &["write::where_nothing_can_be_made"],
            write_as(ErrorKind::NotWritable, ErrorKind::NotWritable),
        ),
        Mutant::new(
            "what must be new is for its owner alone",
            &["write::mode_of_a_new_file"],
            file(|file| file.mode = file.mode.or(file.create_new.then_some(0o600))),
        ),
        Mutant::new(
            "the reason of an unwritable place is made up",
            &["write::where_nothing_can_be_made"],
            hooks().write(|inner, file| {
                Box::pin(async move {
                    inner.write(file).await.map_err(|e| match e.kind() {
                        ErrorKind::NotWritable => Error::new(ErrorKind::NotWritable).because("it could not be done"),
                        _ => e,
                    })
                })
            }),
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

/// Leaves something beside a file whose write was dropped.
pub(super) struct Residue(pub(super) Option<Inner>);

impl Drop for Residue {
    fn drop(&mut self) {
        if let Some(inner) = self.0.take() {
            tokio::spawn(async move { inner.exec(ExecRequest::shell("touch /tmp/d/.temporary")).await });
        }
    }
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
            "a failed write leaves the parents that it made",
            &["write::failed_changes_nothing", "write::broken_body"],
            after("mkdir -p -- \"${1%/*}\""),
        ),
        Mutant::new(
            "a small write under a name that is too long leaves the parents that it made",
            &["write::failed_changes_nothing"],
            after("name=${1##*/}; ((${#name} <= 255)) || mkdir -p -- \"${1%/*}\""),
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
