//! What can be wrong about making.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandbox::{Death, Env, Error, ErrorKind, Hardening, Provider, Recreated, Sandbox, SessionId, Spec};

use super::hooks::Silent;
use super::{Hooks, Mutant};

pub(super) fn hooks() -> Hooks {
    Hooks::default()
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

/// Counts who is inside.
pub(super) struct Inside(pub(super) Arc<AtomicUsize>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) async fn is_owned(provider: &Arc<dyn Provider>, session: &SessionId) -> Result<bool, Error> {
    let mut owned = provider.owned().await?;
    while let Some(entry) = owned.next().await {
        if entry?.session == *session {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A table that a mutant remembers things in.
pub(super) fn table<K, V>() -> Arc<Mutex<HashMap<K, V>>> {
    Arc::default()
}

pub(super) fn with<T, R>(table: &Mutex<T>, work: impl FnOnce(&mut T) -> R) -> R {
    work(&mut table.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Tells one provider from another.
pub(super) fn address(provider: &Arc<dyn Provider>) -> usize {
    Arc::as_ptr(provider).cast::<()>() as usize
}

/// Does `work`, holding a lock that whoever drops it half-way takes along.
pub(super) async fn locked<T>(
    dropped: Arc<AtomicBool>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    if dropped.load(Ordering::Relaxed) {
        return Err(Error::new(ErrorKind::Busy));
    }
    let mut flag = Flag(dropped, true);
    // Long enough to be dropped.
    tokio::time::sleep(Duration::from_millis(10)).await;
    let done = work.await;
    flag.1 = false;
    done
}

#[allow(clippy::too_many_lines)]
pub(super) fn mutants() -> Vec<Mutant> {
    vec![
        Mutant::new(
            "each provision makes a new sandbox",
            &["provision::twice_is_one"],
            hooks().provision(|p, spec| async move {
                p.reap(&spec.session).await?;
                p.provision(&spec).await
            }),
        ),
        {
            let made = table();
            let noted = Arc::clone(&made);
            Mutant::new("provision answers too early", &["provision::answers_once_it_runs", "provision::answers_a_hundred_times"], hooks()
                .provision(move |p, spec| {
                    let noted = Arc::clone(&noted);
                    async move {
                        let sandbox = p.provision(&spec).await?;
                        with(&noted, |made| made.insert(spec.session.clone(), Instant::now()));
                        Ok(sandbox)
                    }
                })
                .exec(move |inner, request| {
                    let young = with(&made, |made| made.get(inner.id()).is_some_and(|at| at.elapsed() < Duration::from_millis(200)));
                    async move {
                        if young { Err(Error::new(ErrorKind::NotFound)) } else { inner.exec(request).await }
                    }
                }))
        },
        Mutant::new(
            "what cannot be made stays half made",
            &["provision::what_cannot_be_made"],
            hooks().provision(|p, mut spec| async move {
                if !spec.image.contains("/no/such/image") {
                    return p.provision(&spec).await;
                }
                spec.image = "host".to_owned();
                p.provision(&spec).await?;
                Err(Error::new(ErrorKind::ImagePull))
            }),
        ),
        Mutant::new(
            "the gate is forgotten",
            &["networking::gate"],
            hooks().provision(|p, mut spec| async move {
                spec.gate = None;
                p.provision(&spec).await
            }),
        ),
        Mutant::new(
            "the id is cut",
            &["provision::id_is_the_session"],
            hooks().id(|id| {
                let cut: String = id.as_str().chars().take(40).collect();
                SessionId::new(cut.trim_end_matches('_')).unwrap_or_else(|_| id.clone())
            }),
        ),
        Mutant::new(
            "a bad spec is refused after it was made",
            &["provision::bad_spec_leaves_nothing"],
            hooks().provision(|p, spec| async move {
                if spec.validate().is_err() {
                    p.provision(&Spec::new(spec.session.clone(), "host").with_env(spec.env.clone())).await?;
                }
                p.provision(&spec).await
            }),
        ),
        Mutant::new(
            "a bad spec is mended",
            &["provision::bad_spec_leaves_nothing"],
            hooks().provision(|p, spec| async move {
                let good = if spec.validate().is_err() { Spec::new(spec.session.clone(), "host") } else { spec };
                p.provision(&good).await
            }),
        ),
        Mutant::new(
            "a bad spec removes what is there",
            &["provision::bad_spec_spares_what_is_there"],
            hooks().provision(|p, spec| async move {
                if spec.validate().is_err() {
                    p.reap(&spec.session).await?;
                }
                p.provision(&spec).await
            }),
        ),
        {
            let latest = Arc::new(Mutex::new(Env::new()));
            let noted = Arc::clone(&latest);
            Mutant::new(
                "the latest variables are in force",
                &["provision::env_is_bound"],
                hooks()
                    .provision(move |p, spec| {
                        with(&noted, |latest| latest.clone_from(&spec.env));
                        async move { p.provision(&spec).await }
                    })
                    .request(move |request| request.env = with(&latest, |latest| latest.clone())),
            )
        },
        {
            let bound = table();
            let noted = Arc::clone(&bound);
            Mutant::new(
                "each provider binds the variables anew",
                &["provision::env_is_bound"],
                hooks()
                    .provision(move |p, spec| {
                        let key = (address(&p), spec.session.clone());
                        with(&noted, |bound| bound.entry(key).or_insert_with(|| spec.env.clone()).clone());
                        async move { p.provision(&spec).await }
                    })
                    .request_of(move |inner, request| {
                        let key = (address(&inner.provider), inner.id().clone());
                        request.env =
                            with(&bound, |bound: &mut HashMap<_, Env>| bound.get(&key).cloned().unwrap_or_default());
                    }),
            )
        },
        Mutant::new(
            "a mismatch is overlooked",
            &["provision::image_mismatch", "provision::workdir_mismatch", "provision::networking_mismatch"],
            hooks().provision(|p, spec| async move {
                match p.provision(&spec).await {
                    Err(e) if e.kind() == ErrorKind::SpecMismatch => p.attach(&spec.session).await,
                    other => other,
                }
            }),
        ),
        Mutant::new(
            "a mismatch removes what is there",
            &["provision::image_mismatch", "provision::workdir_mismatch", "provision::networking_mismatch"],
            hooks().provision(|p, spec| async move {
                let made = p.provision(&spec).await;
                if matches!(&made, Err(e) if e.kind() == ErrorKind::SpecMismatch) {
                    p.reap(&spec.session).await?;
                }
                made
            }),
        ),
        {
            let inside = Arc::new(AtomicUsize::new(0));
            Mutant::new(
                "only one may provision at a time",
                &["provision::racers", "provision::a_hundred_racers"],
                hooks().provision(move |p, spec| {
                    let others = inside.fetch_add(1, Ordering::Relaxed);
                    let guard = Inside(Arc::clone(&inside));
                    async move {
                        let _guard = guard;
                        if others > 0 { Err(Error::new(ErrorKind::Busy)) } else { p.provision(&spec).await }
                    }
                }),
            )
        },
        {
            let dropped = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&dropped);
            Mutant::new(
                "a dropped provision holds its lock for ever",
                &["provision::dropped"],
                hooks()
                    .provision(move |p, spec| {
                        let raised = Arc::clone(&dropped);
                        async move {
                            let mut flag = Flag(raised, true);
                            let made = p.provision(&spec).await;
                            flag.1 = false;
                            made
                        }
                    })
                    .reap(move |p, session| {
                        let stuck = seen.load(Ordering::Relaxed);
                        async move { if stuck { Err(Error::new(ErrorKind::Busy)) } else { p.reap(&session).await } }
                    }),
            )
        },
        Mutant::new(
            "what is not claimed is ignored",
            &["provision::unclaimed_is_unsupported"],
            hooks().provision(|p, mut spec| async move {
                match p.provision(&spec).await {
                    Err(e) if e.kind() == ErrorKind::Unsupported => {
                        spec.hardening = Hardening::none();
                        p.provision(&spec).await
                    }
                    other => other,
                }
            }),
        ),
        Mutant::new(
            "what replaces a dead sandbox does not say so",
            &["dead::is_replaced", "dead::every_handle_says_so"],
            hooks().silent(Silent::All),
        ),
        Mutant::new(
            "only who replaced a dead sandbox says so",
            &["dead::every_handle_says_so"],
            hooks().silent(Silent::Attached),
        ),
        Mutant::new(
            "every sandbox is told as recreated",
            &["provision::recreated_is_none"],
            hooks().recreated(Recreated::new(Death::Ended, "always")),
        ),
        {
            let asked = AtomicUsize::new(0);
            Mutant::new(
                "capabilities change",
                &["provision::capabilities_are_constant"],
                hooks().capabilities(move |mut claims| {
                    claims.pids_limit = asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
                    claims
                }),
            )
        },
        {
            let first: Arc<tokio::sync::Mutex<Option<Arc<dyn Sandbox>>>> = Arc::default();
            Mutant::new(
                "sessions share a sandbox",
                &["session::files_are_its_own", "session::processes_are_its_own"],
                hooks().provision(move |p, spec| {
                    let first = Arc::clone(&first);
                    async move {
                        let mut first = first.lock().await;
                        if first.is_none() {
                            *first = Some(p.provision(&spec).await?);
                        }
                        first.clone().ok_or_else(|| Error::new(ErrorKind::Other))
                    }
                }),
            )
        },
    ]
}
