//! What all connections, the kubelet and the test's handle share.

use std::collections::HashSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::kubelet::Kubelet;
use crate::log::Log;
use crate::options::Options;
use crate::place::Places;
use crate::rule::Rules;
use crate::store::Store;
use crate::wire::Cut;

#[derive(Debug)]
pub(crate) struct Shared {
    store: Mutex<Store>,
    /// Counts the changes of the store.
    pub(crate) changed: watch::Sender<u64>,
    pub(crate) rules: Rules,
    pub(crate) log: Log,
    pub(crate) access: Access,
    pub(crate) kubelet: Kubelet,
    pub(crate) places: Places,
    pub(crate) tasks: Tasks,
    pub(crate) cuts: Cuts,
    pub(crate) options: Options,
}

impl Shared {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            store: Mutex::default(),
            changed: watch::Sender::new(0),
            rules: Rules::default(),
            log: Log::new(),
            access: Access::default(),
            kubelet: Kubelet::default(),
            places: Places::default(),
            tasks: Tasks::default(),
            cuts: Cuts::new(),
            options,
        }
    }

    /// Looks at the store, and wakes who waits for a change if there was one.
    pub(crate) fn store<T>(&self, f: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let before = (store.revision(), store.bookmarks);
        let out = f(&mut store);
        let changed = before != (store.revision(), store.bookmarks);
        drop(store);
        if changed {
            self.wake();
        }
        out
    }

    /// Lets the kubelet and every watch look again.
    pub(crate) fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

/// What the client may do: everything that was not forbidden.
#[derive(Debug, Default)]
pub(crate) struct Access(Mutex<HashSet<(String, String)>>);

impl Access {
    fn set(&self) -> MutexGuard<'_, HashSet<(String, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forbid(&self, verb: &str, resource: &str) {
        self.set().insert((verb.to_owned(), resource.to_owned()));
    }

    pub(crate) fn allow(&self, verb: &str, resource: &str) {
        self.set().remove(&(verb.to_owned(), resource.to_owned()));
    }

    pub(crate) fn allows(&self, verb: &str, resource: &str) -> bool {
        let set = self.set();
        let forbidden = |verb: &str| set.contains(&(verb.to_owned(), resource.to_owned()));
        !forbidden(verb) && !forbidden("*")
    }
}

/// Cuts of everything that is connected, and whether new connections are taken.
#[derive(Debug)]
pub(crate) struct Cuts(watch::Sender<Cut>, AtomicBool);

impl Cuts {
    fn new() -> Self {
        Self(watch::Sender::new(Cut::Fin), AtomicBool::new(false))
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.1.store(down, Ordering::SeqCst);
    }

    pub(crate) fn is_down(&self) -> bool {
        self.1.load(Ordering::SeqCst)
    }

    pub(crate) fn cut(&self, cut: Cut) {
        self.0.send_replace(cut);
    }

    /// Waits for the next cut from now.
    pub(crate) fn next(&self) -> impl Future<Output = Cut> + Send + use<> {
        let mut cuts = self.0.subscribe();
        async move {
            match cuts.changed().await {
                Ok(()) => *cuts.borrow(),
                Err(_) => std::future::pending().await,
            }
        }
    }
}

/// Every task that serves somebody; they all end with the server.
#[derive(Debug, Default)]
pub(crate) struct Tasks(Mutex<TaskSet>);

#[derive(Debug, Default)]
struct TaskSet {
    closed: bool,
    running: JoinSet<()>,
}

impl Tasks {
    /// Starts a task, unless the server has ended.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut set = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if set.closed {
            return;
        }
        while set.running.try_join_next().is_some() {}
        set.running.spawn(task);
    }

    /// Ends them all; none begins afterwards.
    pub(crate) fn close(&self) -> JoinSet<()> {
        let mut set = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        set.closed = true;
        set.running.abort_all();
        std::mem::take(&mut set.running)
    }
}
