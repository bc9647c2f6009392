//! What can be wrong about removing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sandbox::{Effect, Error, ErrorKind, ExecRequest, ExecResult, Output};

use super::Mutant;
use super::provider::{Flag, Inside, hooks, is_owned, locked};

#[allow(clippy::too_many_lines)]
pub(super) fn mutants() -> Vec<Mutant> {
    vec![
        Mutant::new(
            "reap does nothing",
            &[
                "reap::removes",
                "reap::then_provision_is_fresh",
                "reap::whoever_made_it",
                "reap::hostile_files",
                "reap::two_hundred",
            ],
            hooks().reap(|_, _| async { Ok(()) }),
        ),
        Mutant::new(
            "reap answers before the sandbox is gone",
            &["reap::removes", "reap::whoever_made_it", "reap::two_hundred"],
            hooks().reap(|p, session| async move {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    p.reap(&session).await
                });
                Ok(())
            }),
        ),
        Mutant::new(
            "reaping what is not there fails",
            &["reap::twice", "reap::unknown_session"],
            hooks().reap(|p, session| async move {
                if is_owned(&p, &session).await? {
                    p.reap(&session).await
                } else {
                    Err(Error::new(ErrorKind::NotFound))
                }
            }),
        ),
        {
            let inside = Arc::new(AtomicUsize::new(0));
            Mutant::new(
                "only one may reap at a time",
                &["reap::at_once"],
                hooks().reap(move |p, session| {
                    let others = inside.fetch_add(1, Ordering::Relaxed);
                    let guard = Inside(Arc::clone(&inside));
                    async move {
                        let _guard = guard;
                        if others > 0 { Err(Error::new(ErrorKind::Busy)) } else { p.reap(&session).await }
                    }
                }),
            )
        },
        Mutant::new(
            "a removed sandbox's commands have results",
            &["reap::against_exec"],
            hooks().exec(|inner, request| async move {
                match inner.exec(request).await {
                    Err(e) if e.effect() == Effect::Unknown => {
                        Ok(ExecResult::new(137, false, Output::default(), Output::default(), Duration::ZERO))
                    }
                    other => other,
                }
            }),
        ),
        Mutant::new(
            "a removed sandbox's commands never ran",
            &["reap::against_exec"],
            hooks().exec(
                |inner, request| async move { inner.exec(request).await.map_err(|e| e.with_effect(Effect::None)) },
            ),
        ),
        {
            let dropped = Arc::new(AtomicBool::new(false));
            Mutant::new(
                "a dropped reap holds its lock for ever",
                &["reap::dropped"],
                hooks().reap(move |p, session| {
                    let stuck = dropped.load(Ordering::Relaxed);
                    let raised = Arc::clone(&dropped);
                    async move {
                        let mut flag = Flag(raised, true);
                        let reaped = if stuck { Err(Error::new(ErrorKind::Busy)) } else { p.reap(&session).await };
                        flag.1 = false;
                        reaped
                    }
                }),
            )
        },
        Mutant::new(
            "destroying twice fails",
            &["destroy::twice"],
            hooks().destroy(|inner, ()| async move {
                inner.exec(ExecRequest::shell("true")).await?;
                inner.destroy().await
            }),
        ),
        {
            let dropped = Arc::new(AtomicBool::new(false));
            Mutant::new(
                "a dropped destroy holds its lock for ever",
                &["destroy::dropped"],
                hooks().destroy(move |inner, ()| {
                    let flag = Arc::clone(&dropped);
                    async move { locked(flag, inner.destroy()).await }
                }),
            )
        },
        Mutant::new(
            "what is spawned in a sandbox that is gone is lost",
            &["destroy::twice", "handle::is_bound_to_its_sandbox"],
            hooks().spawn(|inner, request| async move {
                inner.spawn(request).await.map_err(|_| Error::new(ErrorKind::Lost))
            }),
        ),
        Mutant::new("destroy does nothing", &["destroy::twice"], hooks().destroy(|_, ()| async { Ok(()) })),
        Mutant::new(
            "destroy removes whatever the session has",
            &["destroy::spares_a_later_one"],
            hooks().destroy(|inner, ()| async move { inner.provider.reap(inner.id()).await }),
        ),
        Mutant::new(
            "a handle follows its session",
            &["handle::is_bound_to_its_sandbox"],
            hooks().exec(|inner, request| async move {
                match inner.exec(request.clone()).await {
                    Err(e) if e.kind() == ErrorKind::NotFound => {
                        inner.provider.attach(inner.id()).await?.exec(request).await
                    }
                    other => other,
                }
            }),
        ),
        Mutant::new(
            "the last handle takes the sandbox along",
            &["handle::dropping_removes_nothing"],
            hooks().reap_on_drop(),
        ),
    ]
}
