//! Operations that wait half-way until something has broken, and what must be true of each afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, stream};
use sandbox::{
    Body, Effect, Error, ErrorKind, ExecRequest, ExecResult, FileBatch, FileWrite, Provider, Sandbox, SandboxExt,
    SandboxPath, SessionId,
};
use sandbox_k8s::K8sProvider;
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::bed::{equal, holds, says};
use crate::numbers::noise;
use crate::{Any, Outcome};

/// What a machine with other work to do may add to any deadline.
pub(crate) const SLACK: Duration = Duration::from_secs(3);
/// The limit of each command.
const LIMIT: Duration = Duration::from_secs(15);
/// How long an exec may take by its own rules: thirty seconds to begin, its limit and two seconds more, five to find out what broke.
pub(crate) const EXEC: Duration = Duration::from_secs(30 + 15 + 2 + 5).saturating_add(SLACK);
/// The same of a transfer: thirty seconds to begin, thirty of standstill, thirty for the answer, five to find out what broke.
pub(crate) const TRANSFER: Duration = Duration::from_secs(30 + 30 + 30 + 5).saturating_add(SLACK);

/// The file that is written, and where the others are.
pub(crate) const FILE: &str = "/workspace/file";
pub(crate) const BULK: &str = "/workspace/bulk";
pub(crate) const TREE: &str = "/workspace/tree";
const WRITE_SIZE: usize = 6 << 20;
/// So that a first delivery is over by the half, and more than one is still to come.
const BULK_FILES: usize = 600;
const BULK_HALF: usize = 300;
const BULK_SIZE: usize = 14 << 10;
const TREE_FILES: usize = 4;
/// Together more than all buffers on the way take.
const TREE_SIZE: usize = 8 << 20;

/// An operation under way.
pub(crate) struct Running<T> {
    what: &'static str,
    most: Duration,
    task: JoinHandle<Option<(Result<T, Error>, Duration)>>,
}

/// Begins it; it may take as long as `most`.
pub(crate) fn run<T: Send + 'static>(
    what: &'static str,
    most: Duration,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Running<T> {
    let begun = Instant::now();
    let task = tokio::spawn(async move { timeout(most, work).await.ok().map(|outcome| (outcome, begun.elapsed())) });
    Running { what, most, task }
}

impl<T> Running<T> {
    /// Waits for its end, and says how it went.
    pub(crate) async fn ended(self) -> Result<Result<T, Error>, Any> {
        let Self { what, most, task } = self;
        let (outcome, took) = task.await?.ok_or_else(|| format!("{what}: it takes longer than {most:?}"))?;
        match &outcome {
            Ok(_) => eprintln!("    {what}: done in {took:.1?}"),
            Err(error) => eprintln!("    {what}: {:?}, {:?} after {took:.1?}", error.kind(), error.effect()),
        }
        Ok(outcome)
    }
}

/// Where an operation waits half-way until it is told to go on.
#[derive(Clone)]
pub(crate) struct Half {
    arrived: mpsc::Sender<&'static str>,
    go: watch::Receiver<bool>,
}

/// Who knows when they are there, and tells them.
pub(crate) struct Halves {
    arrived: mpsc::Receiver<&'static str>,
    go: watch::Sender<bool>,
}

impl Half {
    pub(crate) fn new() -> (Self, Halves) {
        let (here, arrived) = mpsc::channel(8);
        let (go, gone) = watch::channel(false);
        (Self { arrived: here, go: gone }, Halves { arrived, go })
    }

    async fn wait(mut self, what: &'static str) {
        let _ = self.arrived.send(what).await;
        // Who is no longer there lets it go on, too.
        let _ = self.go.wait_for(|go| *go).await;
    }
}

impl Halves {
    /// Waits until all of them are half-way.
    pub(crate) async fn arrived(&mut self, mut which: Vec<&'static str>) -> Outcome {
        while !which.is_empty() {
            let next = timeout(Duration::from_secs(30), self.arrived.recv()).await;
            let next = next.map_err(|_| format!("never half-way: {which:?}"))?;
            which.retain(|what| Some(*what) != next);
        }
        Ok(())
    }

    pub(crate) fn go_on(&self) {
        self.go.send_replace(true);
    }
}

/// A command that counts how often it runs, does `work`, and answers.
pub(crate) async fn exec(
    sandbox: Arc<dyn Sandbox>,
    name: &'static str,
    work: &'static str,
) -> Result<ExecResult, Error> {
    let text = format!("echo x >> /workspace/{name}; {work}; echo out; echo err >&2; exit 7");
    sandbox.exec(ExecRequest::shell(text).with_limit(LIMIT)).await
}

/// The content of the file before.
pub(crate) fn old() -> Vec<u8> {
    noise(1, 100_000)
}

fn new() -> Vec<u8> {
    noise(2, WRITE_SIZE)
}

/// Replaces the file.
pub(crate) async fn write(sandbox: Arc<dyn Sandbox>, half: Half) -> Result<(), Error> {
    let (mut give, take) = tokio::io::duplex(64 << 10);
    // Ends with whoever reads.
    tokio::spawn(async move {
        let content = new();
        let (first, rest) = content.split_at(WRITE_SIZE / 2);
        if give.write_all(first).await.is_ok() {
            half.wait("write").await;
            let _ = give.write_all(rest).await;
        }
    });
    sandbox.write(FileWrite::new(SandboxPath::new(FILE)?, WRITE_SIZE as u64, Body::reader(take))).await
}

fn member(at: usize) -> (String, Bytes) {
    (format!("{at:03}"), noise(1000 + at as u64, BULK_SIZE).into())
}

/// Writes many files.
pub(crate) async fn bulk(sandbox: Arc<dyn Sandbox>, half: Half) -> Result<(), Error> {
    let file = |at: usize| {
        let (name, content) = member(at);
        FileWrite::bytes(SandboxPath::new(format!("{BULK}/{name}")).expect("it is a path"), content)
    };
    let pause = stream::once(half.wait("bulk")).filter_map(|()| async { None });
    let first = stream::iter(0..BULK_HALF).map(file).chain(pause);
    sandbox.write_many(FileBatch::stream(first.chain(stream::iter(BULK_HALF..BULK_FILES).map(file)))).await
}

fn exported() -> BTreeMap<String, Vec<u8>> {
    let content = |at: usize| format!("tree-{at}\n").into_bytes().repeat(TREE_SIZE / 7 + 1);
    (0..TREE_FILES).map(|at| (at.to_string(), content(at)[..TREE_SIZE].to_vec())).collect()
}

/// Makes what is exported, and what is written over.
pub(crate) async fn plant(sandbox: &Arc<dyn Sandbox>) -> Outcome {
    sandbox.write_bytes(&SandboxPath::new(FILE)?, old()).await?;
    let last = TREE_FILES - 1;
    let text =
        format!("mkdir {TREE}; for i in $(seq 0 {last}); do yes tree-$i | head -c {TREE_SIZE} > {TREE}/$i; done");
    equal("what the tree is made with", says(sandbox, &text).await?, String::new())
}

/// Takes the tree out.
pub(crate) async fn export(provider: K8sProvider, session: SessionId, half: Half) -> Result<Vec<u8>, Error> {
    let mut stream = provider.export(&session, &SandboxPath::new(TREE)?).await?;
    let mut archive = Vec::new();
    let mut half = Some(half);
    while let Some(piece) = stream.next().await {
        archive.extend_from_slice(&piece?);
        if let Some(half) = half.take() {
            half.wait("export").await;
        }
    }
    Ok(archive)
}

/// What an error may be where the sandbox lives and the way to it broke, or where it died.
pub(crate) fn typed(what: &str, error: &Error, lives: bool) -> Outcome {
    use ErrorKind::{DeadlineExceeded, Lost, NotFound, Unavailable};
    let way = matches!(error.kind(), DeadlineExceeded | Lost | Unavailable) && error.death().is_none();
    let died = error.kind() == NotFound && error.death().is_some();
    holds(&format!("{what}: the kind of its error"), if lives { way } else { died }, error)?;
    holds(
        &format!("{what}: its operation and session"),
        error.operation().is_some() && error.session().is_some(),
        error,
    )
}

/// How often a command ran is what its outcome says. `begun`: somebody has seen it at work.
pub(crate) fn check_exec(what: &str, outcome: &Result<ExecResult, Error>, times: usize, begun: bool) -> Outcome {
    match outcome {
        // Nobody told its end before its limit, which is a timeout by the rules.
        Ok(result) if result.timed_out => {
            holds(&format!("{what}: its time"), result.elapsed >= LIMIT, result)?;
            equal(&format!("{what}: times it ran"), times, 1)
        }
        Ok(result) => {
            let said = (result.stdout.to_string_lossy(), result.stderr.to_string_lossy());
            let is_true = result.exit_code == 7 && said.0 == "out\n" && said.1 == "err\n";
            holds(&format!("{what}: its result"), is_true, result)?;
            equal(&format!("{what}: times it ran"), times, 1)
        }
        Err(error) => {
            typed(what, error, true)?;
            let possible = match (error.effect(), begun) {
                (Effect::None, false) => times == 0,
                (Effect::Unknown, false) => times <= 1,
                (Effect::Unknown, true) => times == 1,
                _ => false,
            };
            holds(&format!("{what}: it ran {times} times"), possible, error)
        }
    }
}

pub(crate) fn check_write(outcome: &Result<(), Error>, there: &[u8]) -> Outcome {
    let (is_old, is_new) = (there == old(), there == new());
    let right = match outcome {
        Ok(()) => is_new,
        Err(error) => {
            typed("write", error, true)?;
            match error.effect() {
                Effect::None => is_old,
                Effect::Unknown => is_old || is_new,
                Effect::Partial => false,
            }
        }
    };
    holds("write: what is there", right, (there.len(), is_old, is_new, outcome))
}

pub(crate) fn check_bulk(outcome: &Result<(), Error>, there: &BTreeMap<String, Vec<u8>>) -> Outcome {
    let (done, may_be) = match outcome {
        Ok(()) => (BULK_FILES, BULK_FILES),
        Err(error) => {
            typed("bulk", error, true)?;
            let done = error.member().filter(|at| *at < BULK_FILES);
            let done = done.ok_or_else(|| format!("bulk: it names no member: {error:?}"))?;
            (done, if error.effect() == Effect::Unknown { BULK_FILES } else { done })
        }
    };
    let mut wanted: BTreeMap<String, Bytes> = (0..may_be).map(member).collect();
    for (name, content) in there {
        let whole = wanted.remove(name).is_some_and(|wanted| wanted == content);
        holds("bulk: each file is whole and one of its own", whole, (name, content.len(), outcome))?;
    }
    let missing = wanted.keys().find(|name| name.parse().is_ok_and(|at: usize| at < done));
    holds("bulk: all that came before the failure is there", missing.is_none(), (missing, outcome))
}

pub(crate) fn check_export(outcome: &Result<Vec<u8>, Error>) -> Outcome {
    match outcome {
        Ok(archive) => {
            let files = crate::look::files(archive)?;
            holds("export: the whole tree", files == exported(), files.len())
        }
        Err(error) => {
            typed("export", error, true)?;
            equal("export: its effect", error.effect(), Effect::None)
        }
    }
}
