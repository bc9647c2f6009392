//! Streams to shells inside one Pod.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kube::api::AttachParams;
use kube::core::{Request, Resource as _};
use sandbox::{Death, Error, ErrorKind};
use sandbox_guest::{Carrier, CarrierStream, FarEnds};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::api::Pods;
use crate::error::{api_error, no_answer};
use crate::names::{PodId, SANDBOX};
use crate::pump;
use crate::state::death;

/// The whole command line of every exec: what a command is travels inside the stream.
const SHELL: [&str; 4] = ["/bin/bash", "--norc", "--noprofile", "-p"];
/// How often somebody looks whether the Pod of open streams is still there: a connection into a Pod that was removed can stay
/// open in silence.
const LOOK: Duration = Duration::from_secs(5);
/// For how long the API server may answer nothing before the streams through it are given up.
const UNHEARD: Duration = Duration::from_secs(45);
/// How long a Pod may take to say why its container has ended.
const SETTLE: Duration = Duration::from_secs(10);
/// How long a Pod whose shells do not start may still look alive, and take to say why: less than a failed operation waits for it.
const VERDICT: Duration = Duration::from_secs(4);
/// How long a shell may take to start on a node that nobody hears from, before the streams into it are given up.
const ENTRY: Duration = Duration::from_secs(10);
/// How much longer a request that is under way by then may take.
const SLACK: Duration = Duration::from_millis(500);
/// For how long a shell that says nothing counts among those that start. Others must not wait for ever behind a sandbox whose shells hang.
const FIRST_WORD: Duration = Duration::from_secs(2);

/// Enters one Pod, and never a later one of the same name.
#[derive(Clone)]
pub(crate) struct K8sCarrier {
    shared: Arc<Shared>,
}

struct Shared {
    pods: Pods,
    id: PodId,
    /// Shells that may start at once, over all Pods of a provider.
    opening: Arc<Semaphore>,
    request_timeout: Duration,
    /// How often all streams had to be ended.
    cuts: watch::Sender<u64>,
    /// Whether somebody looks after the open streams.
    watched: AtomicBool,
    cause: Mutex<Option<Death>>,
    /// Whether a shell has ever started.
    entered: AtomicBool,
    /// When the last look for a cause of death began, and what came of it. Who looks holds it.
    verdict: tokio::sync::Mutex<Option<(Instant, Option<Death>)>>,
}

impl K8sCarrier {
    pub(crate) fn new(pods: Pods, id: PodId, opening: Arc<Semaphore>, request_timeout: Duration) -> Self {
        let shared = Shared {
            pods,
            id,
            opening,
            request_timeout,
            cuts: watch::Sender::new(0),
            watched: AtomicBool::new(false),
            cause: Mutex::default(),
            entered: AtomicBool::new(false),
            verdict: tokio::sync::Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Whether a shell has ever started.
    pub(crate) fn was_entered(&self) -> bool {
        self.shared.entered.load(Ordering::Acquire)
    }

    /// Ends every stream, since the Pod is gone.
    pub(crate) fn close(&self, death: Death) {
        self.shared.died(death);
    }
}

impl Shared {
    fn died(&self, death: Death) -> Death {
        let mut cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        let known = *cause.get_or_insert(death);
        drop(cause);
        self.cut();
        known
    }

    fn cut(&self) {
        self.cuts.send_modify(|times| *times += 1);
    }

    fn known(&self) -> Option<Death> {
        *self.cause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the Pod is no more, as far as the API server knows. A Pod whose container has ended says only some moments later why:
    /// that is waited for.
    async fn ask(&self, until: Instant) -> Result<Option<Death>, Error> {
        loop {
            match self.ask_once().await? {
                // That does not change soon.
                Some((Death::NodeLost, false)) => return Ok(Some(Death::NodeLost)),
                Some((_, false)) if Instant::now() < until => sleep(Duration::from_millis(100)).await,
                Some((death, true)) => return Ok(Some(self.died(death))),
                answer => return Ok(answer.map(|(death, _)| death)),
            }
        }
    }

    async fn ask_once(&self) -> Result<Option<(Death, bool)>, Error> {
        if let Some(death) = self.known() {
            return Ok(Some((death, true)));
        }
        let pod = self.pods.get_soon(&self.id.name).await?;
        Ok(match &pod {
            None => Some((Death::Deleted, true)),
            Some(pod) if !self.id.is(pod) => Some((Death::Replaced, true)),
            Some(pod) => death(pod),
        })
    }

    /// Starts a shell in the Pod of this name, whichever that is.
    async fn connect(&self) -> Result<kube::client::Connection, kube::Error> {
        self.pods.client.connect(request(&self.pods.namespace, &self.id.name)?).await
    }

    async fn open(self: &Arc<Self>) -> Result<CarrierStream, Error> {
        let gone = |death| Error::new(ErrorKind::NotFound).with_death(death);
        // Before it is known to be there, so that no death is missed in between.
        let cuts = self.cuts.subscribe();
        if let Some(death) = self.known() {
            return Err(gone(death));
        }
        let turn = Arc::clone(&self.opening).acquire_owned().await;
        let turn = turn.map_err(|_| Error::new(ErrorKind::Other).because("closed"))?;
        let doing = "create pods/exec";
        let connection = match timeout(self.request_timeout, self.connect()).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                let answer = api_error(doing, error);
                if answer.kind() == ErrorKind::Forbidden {
                    return Err(answer);
                }
                drop(turn);
                // The container can be gone, or not yet there: the Pod says which.
                return Err(match self.ask(Instant::now() + SETTLE).await? {
                    Some(death) => gone(death).caused_by(answer),
                    None => Error::new(ErrorKind::Unavailable).because("no shell starts").caused_by(answer),
                });
            }
            Err(_) => return Err(no_answer(doing, self.request_timeout)),
        };
        // The name may have been another Pod's by then. That ours is there now, after the shell was started, proves that it was ours:
        // a uid never comes back.
        match self.pods.look(&self.id.name).await? {
            Some(pod) if pod.metadata.uid.as_deref() == Some(&self.id.uid) => {}
            Some(_) => return Err(gone(self.died(Death::Replaced))),
            None => return Err(gone(self.died(Death::Deleted))),
        }
        let half_close = connection.supports_stream_close();
        let mut stream = pump::start(connection.into_stream(), half_close, cuts);
        stream.stdout = Box::pin(FirstWord::new(stream.stdout, turn));
        self.entered.store(true, Ordering::Release);
        self.look_after();
        Ok(stream)
    }

    /// As [`Carrier::cause_of_death`]: however many operations fail at once, one looks for all of them, and once more for those that failed
    /// while it looked.
    async fn verdict(&self) -> Option<Death> {
        let failed = Instant::now();
        let until = failed + VERDICT;
        let mut last = self.verdict.lock().await;
        let known = last.and_then(|(_, cause)| cause).or_else(|| self.known());
        // Who failed before the last look began has its answer; who has waited for too long has no time for another.
        if Instant::now() >= until || last.is_some_and(|(begun, _)| begun >= failed) {
            return known;
        }
        let begun = Instant::now();
        let cause = timeout_at(until + SLACK, self.look_for_cause(until)).await.ok().flatten();
        *last = Some((begun, cause));
        cause
    }

    async fn look_for_cause(&self, until: Instant) -> Option<Death> {
        loop {
            let unheard_of = match self.ask(until).await {
                Ok(Some(Death::NodeLost)) if self.known().is_none() => true,
                Ok(Some(death)) => return Some(death),
                _ => false,
            };
            // A Pod says late that its container has ended. If a shell starts in it, it has not.
            if self.enters(until).await {
                // Unless it is another one's. A node that nobody hears from can be heard through another way.
                let cause = self.ask(until).await.ok().flatten();
                return cause.filter(|cause| *cause != Death::NodeLost || self.known().is_some());
            }
            if unheard_of {
                return Some(Death::NodeLost);
            }
            if Instant::now() >= until {
                return None;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Whether a shell starts in the Pod of this name, whichever that is.
    async fn enters(&self, until: Instant) -> bool {
        let shell = async {
            let _turn = self.opening.acquire().await;
            self.connect().await
        };
        let patience = until.min(Instant::now() + self.request_timeout);
        matches!(timeout_at(patience, shell).await, Ok(Ok(_)))
    }

    /// Has somebody look, as long as there are streams, whether the Pod is still there.
    fn look_after(self: &Arc<Self>) {
        if self.watched.swap(true, Ordering::AcqRel) {
            return;
        }
        // Ends once no stream is open, or with the Pod.
        tokio::spawn(look_after(Arc::downgrade(self)));
    }
}

/// The request for a shell. Nothing but the names of the Pod and its namespace differs from one to another.
fn request(namespace: &str, pod: &str) -> Result<http::Request<Vec<u8>>, kube::Error> {
    let params = AttachParams::default().container(SANDBOX).stdin(true).stdout(true).stderr(true);
    Request::new(Pod::url_path(&(), Some(namespace))).exec(pod, SHELL, &params).map_err(kube::Error::BuildRequest)
}

async fn look_after(shared: Weak<Shared>) {
    let mut answered = Instant::now();
    loop {
        sleep(LOOK).await;
        let Some(shared) = shared.upgrade() else { return };
        if shared.cuts.receiver_count() == 0 {
            shared.watched.store(false, Ordering::Release);
            // A stream that was opened in between takes nobody for granted.
            if shared.cuts.receiver_count() == 0 || shared.watched.swap(true, Ordering::AcqRel) {
                return;
            }
        }
        match shared.ask(Instant::now() + SETTLE).await {
            Ok(Some(_)) if shared.known().is_some() => return,
            // Whoever pings may answer for a node that is gone; a shell of it nobody else starts.
            Ok(Some(Death::NodeLost)) => {
                answered = Instant::now();
                if !shared.enters(answered + ENTRY).await {
                    shared.cut();
                }
            }
            // One that is about to end has streams until it has.
            Ok(_) => answered = Instant::now(),
            Err(error) if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded) => {
                answered = Instant::now();
            }
            // Then the streams hear nothing either, only that a peer that has unread input need not answer them.
            Err(_) if answered.elapsed() > UNHEARD => {
                shared.cut();
                answered = Instant::now();
            }
            Err(_) => {}
        }
    }
}

#[async_trait]
impl Carrier for K8sCarrier {
    async fn open(&self) -> Result<CarrierStream, Error> {
        self.shared.open().await
    }

    fn far_ends(&self) -> FarEnds {
        FarEnds::Pipes
    }

    async fn cause_of_death(&self) -> Option<Death> {
        self.shared.verdict().await
    }
}

/// The output of a shell, which counts among those that start until its first byte, its end, or for [`FIRST_WORD`]: also while nobody
/// reads it, since it takes in no more.
struct FirstWord {
    output: Pin<Box<dyn AsyncRead + Send>>,
    /// Dropped, the shell counts no more.
    starts: Option<oneshot::Sender<()>>,
}

impl FirstWord {
    fn new(output: Pin<Box<dyn AsyncRead + Send>>, turn: OwnedSemaphorePermit) -> Self {
        let (starts, heard) = oneshot::channel::<()>();
        // Ends with the first word, with this output, or when its time is over.
        tokio::spawn(async move {
            let _turn = turn;
            let _ = timeout(FIRST_WORD, heard).await;
        });
        Self { output, starts: Some(starts) }
    }
}

impl AsyncRead for FirstWord {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let outcome = self.output.as_mut().poll_read(cx, buf);
        if outcome.is_ready() {
            self.starts = None;
        }
        outcome
    }
}

impl fmt::Debug for K8sCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("K8sCarrier")
            .field("pod", &self.shared.id.name)
            .field("uid", &self.shared.id.uid)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_short_and_constant() {
        let request = request(&"n".repeat(63), &"p".repeat(63)).unwrap();
        let uri = request.uri().to_string();
        assert!(uri.len() < 512, "{uri}");
        let wanted = format!(
            "/api/v1/namespaces/{}/pods/{}/exec?&stdin=true&stdout=true&stderr=true&container=sandbox\
             &command=%2Fbin%2Fbash&command=--norc&command=--noprofile&command=-p",
            "n".repeat(63),
            "p".repeat(63)
        );
        assert_eq!(uri, wanted);
        assert!(request.body().is_empty());
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
#[path = "carrier_tests.rs"]
mod stream_tests;
