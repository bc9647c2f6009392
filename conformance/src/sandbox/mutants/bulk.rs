//! What can be wrong about batches and exports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use sandbox::{ByteStream, Effect, Error, ErrorKind, FileBatch, Sandbox, SandboxPath, Spec};

use super::files::{holds, impatient, once, run, watched};
use super::writes::Residue;
use super::{Hooks, Inner, Mutant};

fn hooks() -> Hooks {
    Hooks::default()
}

pub(super) fn mutants() -> Vec<Mutant> {
    [batches(), exports()].into_iter().flatten().collect()
}

fn batches() -> Vec<Mutant> {
    const FAILING: &[&str] = &["batch::stops_at_the_first_failure", "batch::every_kind_of_failure"];
    vec![
        Mutant::new(
            "the last member is lost",
            &[
                "batch::round_trip",
                "batch::empty",
                "batch::odd_names",
                "batch::same_target_twice",
                "batch::a_thousand",
                "batch::twenty_thousand",
            ],
            hooks().write_many(|inner, files| {
                Box::pin(async move {
                    let mut all: Vec<_> = files.collect().await;
                    all.pop();
                    inner.write_many(FileBatch::new(all)).await
                })
            }),
        ),
        Mutant::new(
            "members get mode 0644",
            &["batch::modes"],
            hooks().write_many(|inner, files| {
                Box::pin(
                    async move { inner.write_many(FileBatch::stream(files.map(|file| file.with_mode(0o644)))).await },
                )
            }),
        ),
        Mutant::new(
            "what replaces a link among many has the mode of a link",
            &["batch::modes"],
            hooks().write_many(|inner, files| {
                Box::pin(async move {
                    let files: Vec<_> = files.collect().await;
                    let mut links = Vec::new();
                    if files.len() > 4 {
                        let paths: Vec<_> = files.iter().map(|file| file.path.clone()).collect();
                        for path in paths {
                            if holds(&inner, "[[ -L $1 ]]", &path).await {
                                links.push(path);
                            }
                        }
                    }
                    inner.write_many(FileBatch::new(files)).await?;
                    for path in links {
                        run(&inner, "chmod 777 -- \"$1\"", &path).await?;
                    }
                    Ok(())
                })
            }),
        ),
        Mutant::new(
            "members are counted anew in each part of a batch",
            &["batch::stops_at_the_first_failure", "batch::below_a_file"],
            hooks().write_many(|inner, files| {
                Box::pin(async move {
                    inner.write_many(files).await.map_err(|e| match e.member() {
                        Some(member) => e.of_member(member % 1024),
                        None => e,
                    })
                })
            }),
        ),
        Mutant::new(
            "a batch goes on after a failure",
            FAILING,
            hooks().write_many(|inner, mut files| {
                Box::pin(async move {
                    let (mut first, mut index) = (Ok(()), 0);
                    while let Some(file) = files.next().await {
                        let written = inner.write(file).await.map_err(|e| e.of_member(index));
                        first = first.and(written);
                        index += 1;
                    }
                    first
                })
            }),
        ),
        Mutant::new(
            "what comes before a blocked member lands",
            &["batch::below_a_file"],
            hooks().write_many(|inner, files| Box::pin(one_by_one(inner, files))),
        ),
        Mutant::new(
            "a batch makes private directories",
            &["batch::directories"],
            hooks().write_many(|inner, files| {
                Box::pin(async move {
                    let files: Vec<_> = files.collect().await;
                    let paths: Vec<_> = files.iter().map(|file| file.path.clone()).collect();
                    for path in paths {
                        run(&inner, "umask 077; mkdir -p -- \"${1%/*}\"", &path).await?;
                    }
                    inner.write_many(FileBatch::new(files)).await
                })
            }),
        ),
        Mutant::new(
            "members must be new",
            &["batch::repeated"],
            hooks().write_many(|inner, files| {
                Box::pin(
                    async move { inner.write_many(FileBatch::stream(files.map(sandbox::FileWrite::create_new))).await },
                )
            }),
        ),
        Mutant::new(
            "a dropped batch leaves a file beside",
            &["batch::dropped"],
            hooks().write_many(|inner, files| {
                Box::pin(async move {
                    let mut residue = Residue(Some(inner.clone()));
                    // Long enough to be dropped.
                    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
                    let written = inner.write_many(files).await;
                    residue.0 = None;
                    written
                })
            }),
        ),
        Mutant::new(
            "a failed batch names no member",
            FAILING,
            hooks().write_many(|inner, files| {
                Box::pin(async move {
                    inner.write_many(files).await.map_err(|e| Error::new(e.kind()).with_effect(e.effect()))
                })
            }),
        ),
    ]
}

/// Writes each member as if it were alone.
async fn one_by_one(inner: Inner, mut files: FileBatch<'_>) -> Result<(), Error> {
    let mut index = 0;
    while let Some(file) = files.next().await {
        inner.write(file).await.map_err(|e| {
            let e = e.of_member(index);
            if index > 0 { e.with_effect(Effect::Partial) } else { e }
        })?;
        index += 1;
    }
    Ok(())
}

fn exports() -> Vec<Mutant> {
    async fn first(inner: sandbox::ExportStream, most: usize) -> Result<ByteStream, Error> {
        let whole = inner.collect(1 << 30).await?;
        Ok(once(whole.slice(..whole.len().min(most))))
    }
    async fn within(
        p: &Arc<dyn sandbox::Provider>,
        session: &sandbox::SessionId,
        script: &str,
        path: &SandboxPath,
    ) -> Result<(), Error> {
        let sandbox: Arc<dyn Sandbox> = p.attach(session).await?;
        run(&Inner { provider: Arc::clone(p), sandbox }, script, path).await.map(drop)
    }
    let broken = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&broken);
    vec![
        Mutant::new(
            "the directory above is exported",
            &["export::shape", "export::a_file_as_root", "export::odd_names"],
            hooks()
                .export(|p, (session, root)| async move { p.export(&session, &root.parent().unwrap_or(root)).await }),
        ),
        Mutant::new(
            "modes are lost",
            &["export::modes_and_empty_directories", "export::changes_nothing"],
            hooks().export(|p, (session, root)| async move {
                within(&p, &session, "chmod -R 755 -- \"$1\"", &root).await?;
                p.export(&session, &root).await
            }),
        ),
        Mutant::new(
            "the archive is cut",
            &["export::large_and_many", "export::waits_for_its_reader_of_much"],
            hooks().export(|p, (session, root)| async move { first(p.export(&session, &root).await?, 1 << 20).await }),
        ),
        Mutant::new(
            "an archive ends where its reader is slow",
            &["export::waits_for_its_reader"],
            hooks().export(|p, (session, root)| async move { impatient(p.export(&session, &root).await?).await }),
        ),
        Mutant::new(
            "links are exported as what they point to",
            &["export::links", "export::a_dangling_link_as_root"],
            hooks().export(|p, (session, root)| async move {
                within(&p, &session, "rm -rf /tmp/.copy; mkdir /tmp/.copy; cp -rL -- \"$1\" /tmp/.copy/", &root)
                    .await?;
                let copy = SandboxPath::new([b"/tmp/.copy/", root.file_name()].concat())?;
                p.export(&session, &copy).await
            }),
        ),
        Mutant::new(
            "a missing root is an empty archive",
            &["export::missing_root"],
            hooks().export(|p, (session, root)| async move {
                match p.export(&session, &root).await {
                    Err(e) if e.kind() == ErrorKind::FileNotFound => Ok(once(vec![0; 1024])),
                    other => other,
                }
            }),
        ),
        Mutant::new(
            "an export makes what is missing",
            &["export::unknown_session"],
            hooks().export(|p, (session, root)| async move {
                match p.export(&session, &root).await {
                    Err(e) if e.kind() == ErrorKind::NotFound => {
                        p.provision(&Spec::new(session.clone(), "host")).await?;
                        p.export(&session, &root).await
                    }
                    other => other,
                }
            }),
        ),
        Mutant::new(
            "a dropped export breaks the provider",
            &["export::dropped"],
            hooks().export(move |p, (session, root)| {
                let (flag, stuck) = (Arc::clone(&broken), seen.load(Ordering::Relaxed));
                async move {
                    if stuck {
                        return Err(Error::new(ErrorKind::Lost));
                    }
                    Ok(watched(p.export(&session, &root).await?, flag))
                }
            }),
        ),
    ]
}
