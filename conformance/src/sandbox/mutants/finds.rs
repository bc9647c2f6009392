//! What can be wrong about finding and listing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use futures::StreamExt;
use sandbox::{Error, ErrorKind, ExecRequest, Hardening, Owned, OwnedState, OwnedStream, Spec};

use super::provider::{address, hooks, locked, table, with};
use super::{Hooks, Mutant};

#[allow(clippy::too_many_lines)]
pub(super) fn mutants() -> Vec<Mutant> {
    let makers = table();
    let noted = Arc::clone(&makers);
    vec![
        Mutant::new(
            "attach finds nothing",
            &["attach::finds_it"],
            hooks().attach(|_, _| async { Err(Error::new(ErrorKind::NotFound)) }),
        ),
        Mutant::new(
            "attach makes a sandbox of its own",
            &["attach::finds_it"],
            hooks().attach(|p, session| async move {
                p.reap(&session).await?;
                p.provision(&Spec::new(session, "host")).await
            }),
        ),
        Mutant::new(
            "attach makes what is missing",
            &["attach::unknown_session", "attach::after_reap"],
            hooks().attach(|p, session| async move {
                match p.attach(&session).await {
                    Err(e) if e.kind() == ErrorKind::NotFound => p.provision(&Spec::new(session, "host")).await,
                    other => other,
                }
            }),
        ),
        {
            let hidden = table();
            let noted = Arc::clone(&hidden);
            Mutant::new(
                "attach leaves something that nobody lists",
                &["attach::unknown_session"],
                hooks()
                    .attach(move |p, session| {
                        let noted = Arc::clone(&noted);
                        async move {
                            if with(&noted, |hidden| hidden.contains_key(&session)) {
                                return Err(Error::new(ErrorKind::NotFound));
                            }
                            let found = p.attach(&session).await;
                            if found.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
                                with(&noted, |hidden| hidden.insert(session.clone(), ()));
                                p.provision(&Spec::new(session, "host").with_hardening(Hardening::none())).await?;
                                return Err(Error::new(ErrorKind::NotFound));
                            }
                            found
                        }
                    })
                    .owned(move |p, ()| {
                        let hidden = Arc::clone(&hidden);
                        async move {
                            let all: Vec<_> = p.owned().await?.collect().await;
                            let shown = all.into_iter().filter(move |entry| {
                                entry
                                    .as_ref()
                                    .map_or(true, |o| !with(&hidden, |hidden| hidden.contains_key(&o.session)))
                            });
                            Ok(OwnedStream::new(futures::stream::iter(shown.collect::<Vec<_>>())))
                        }
                    }),
            )
        },
        Mutant::new(
            "a sandbox is known only to its maker",
            &["attach::from_another_process"],
            hooks()
                .provision(move |p, spec| {
                    with(&noted, |makers| makers.entry(spec.session.clone()).or_insert_with(|| address(&p)).to_owned());
                    async move { p.provision(&spec).await }
                })
                .attach(move |p, session| {
                    let mine = with(&makers, |makers| makers.get(&session) == Some(&address(&p)));
                    async move { if mine { p.attach(&session).await } else { Err(Error::new(ErrorKind::NotFound)) } }
                }),
        ),
        Mutant::new(
            "attach clears up first",
            &["attach::changes_nothing"],
            hooks().attach(|p, session| async move {
                let sandbox = p.attach(&session).await?;
                let _ = sandbox.exec(ExecRequest::shell("kill -9 -1")).await;
                Ok(sandbox)
            }),
        ),
        Mutant::new(
            "nothing is owned",
            &["owned::lists_it"],
            hooks().owned(|_, ()| async { Ok(OwnedStream::new(futures::stream::empty())) }),
        ),
        Mutant::new(
            "everything is listed twice",
            &["owned::once"],
            hooks().owned(|p, ()| async move {
                let all: Vec<_> = p.owned().await?.collect().await;
                let twice: Vec<_> = all
                    .into_iter()
                    .flat_map(|entry| [entry.as_ref().ok().cloned().map(Ok), Some(entry)])
                    .flatten()
                    .collect();
                Ok(OwnedStream::new(futures::stream::iter(twice)))
            }),
        ),
        Mutant::new(
            "nobody can tell what a sandbox does",
            &["owned::state"],
            listed(|owned| owned.state = OwnedState::Unknown),
        ),
        Mutant::new(
            "every sandbox of a session has one incarnation",
            &["owned::incarnation"],
            listed(|owned| owned.incarnation = owned.session.to_string()),
        ),
        {
            let asked = AtomicUsize::new(0);
            Mutant::new(
                "an incarnation is another each time",
                &["owned::incarnation"],
                listed(move |owned| owned.incarnation = asked.fetch_add(1, Ordering::Relaxed).to_string()),
            )
        },
        Mutant::new(
            "a sandbox is made when it is listed",
            &["owned::created"],
            listed(|owned| owned.created = Some(SystemTime::now())),
        ),
        Mutant::new(
            "every sandbox is old",
            &["owned::created"],
            listed(|owned| owned.created = Some(SystemTime::UNIX_EPOCH)),
        ),
        {
            let dropped = Arc::new(AtomicBool::new(false));
            Mutant::new(
                "a dropped attach holds its lock for ever",
                &["attach::dropped"],
                hooks().attach(move |p, session| {
                    let flag = Arc::clone(&dropped);
                    async move { locked(flag, p.attach(&session)).await }
                }),
            )
        },
        {
            let dropped = Arc::new(AtomicBool::new(false));
            Mutant::new(
                "a dropped list holds its lock for ever",
                &["owned::dropped"],
                hooks().owned(move |p, ()| {
                    let flag = Arc::clone(&dropped);
                    async move { locked(flag, p.owned()).await }
                }),
            )
        },
    ]
}

/// Changes what is said of every sandbox.
fn listed(change: impl Fn(&mut Owned) + Send + Sync + 'static) -> Hooks {
    let change = Arc::new(change);
    hooks().owned(move |p, ()| {
        let change = Arc::clone(&change);
        async move {
            let changed = p.owned().await?.map(move |entry| {
                entry.map(|mut owned| {
                    change(&mut owned);
                    owned
                })
            });
            Ok(OwnedStream::new(changed))
        }
    })
}
