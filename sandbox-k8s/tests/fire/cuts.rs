//! Connections that break after any number of bytes, from the first of the handshake to the last of the answer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use libtest_mimic::Trial;
use sandbox::{
    Effect, Error, ErrorKind, ExecRequest, FileBatch, FileWrite, Provider, SandboxExt, SandboxPath, SessionId,
};
use sandbox_k8s::K8sProvider;
use testbed::Misbehaviour;
use tokio::time::timeout;

use crate::bed::{Bed, equal, holds, reap};
use crate::look::{collect, files, no_remains, tree};
use crate::numbers::{Drawn, count, noise};
use crate::proxied::Proxied;
use crate::{Any, Outcome, trial};

/// How long an operation may take whose every connection breaks: half a minute to begin, five seconds to find out what broke.
const MOST: Duration = Duration::from_secs(30 + 5 + 3);
/// What goes over a connection besides content: handshakes, the scripts of a shell, records.
const AROUND: u64 = 40_000;
const SIZE: usize = 200_000;
const FILES: usize = 40;
const FILE_SIZE: usize = SIZE / FILES;
const LIMIT: Duration = Duration::from_secs(20);
/// Runs of one operation at once: a broken stream is given time to say its last.
const LANES: usize = 2;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("cuts::after_any_number_of_bytes", after_any_number_of_bytes)]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Exec,
    Read,
    Write,
    Bulk,
    Export,
}

const OPERATIONS: [Operation; 5] =
    [Operation::Exec, Operation::Read, Operation::Write, Operation::Bulk, Operation::Export];

fn content(run: usize) -> Vec<u8> {
    noise(run as u64, SIZE)
}

fn members(run: usize) -> BTreeMap<String, Vec<u8>> {
    (0..FILES).map(|at| (format!("bulk-{run}/{at:02}"), noise((run * FILES + at) as u64, FILE_SIZE))).collect()
}

fn path(name: &str) -> Result<SandboxPath, Error> {
    SandboxPath::new(format!("/workspace/{name}"))
}

/// One operation by a client that has no connection yet.
async fn perform(operation: Operation, provider: &K8sProvider, session: &SessionId, run: usize) -> Result<(), Error> {
    let wrong = |what: &str| Err(Error::new(ErrorKind::Other).because(format!("a false success: {what}")));
    let sandbox = provider.attach(session).await?;
    match operation {
        Operation::Exec => {
            let text = format!("printf x >> /workspace/exec-{run}; cat /workspace/planted; echo some >&2; exit 7");
            let result = sandbox.exec(ExecRequest::shell(text).with_limit(LIMIT)).await?;
            let whole = result.stdout.bytes == content(0) && &result.stderr.bytes[..] == b"some\n";
            if !whole || result.exit_code != 7 || result.timed_out || result.truncated() {
                return wrong(&format!("{result:?}"));
            }
        }
        Operation::Read => {
            let read = sandbox.read_bytes(&path("planted")?, SIZE).await?;
            if read != content(0) {
                return wrong(&format!("{} bytes", read.len()));
            }
        }
        Operation::Write => sandbox.write_bytes(&path(&format!("write-{run}"))?, content(run)).await?,
        Operation::Bulk => {
            let files = members(run).into_iter().map(|(name, content)| Ok(FileWrite::bytes(path(&name)?, content)));
            sandbox.write_many(FileBatch::new(files.collect::<Result<Vec<_>, Error>>()?)).await?;
        }
        Operation::Export => {
            let archive = collect(provider.export(session, &path("tree")?).await?).await?;
            let is_whole =
                files(&archive).is_ok_and(|files| files == BTreeMap::from([("file".to_owned(), content(1))]));
            if !is_whole {
                return wrong(&format!("{} bytes", archive.len()));
            }
        }
    }
    Ok(())
}

/// What one run said.
struct Ended {
    run: usize,
    after: u64,
    outcome: Result<(), Error>,
}

/// Runs of one operation, each over connections that break after a number of bytes that is drawn.
async fn lane(
    bed: &Bed,
    session: &SessionId,
    operation: Operation,
    runs: Vec<usize>,
    mut drawn: Drawn,
) -> Result<Vec<Ended>, Any> {
    let way = Proxied::open(bed, Misbehaviour::default()).await?;
    let mut ended = Vec::new();
    for run in runs {
        let provider = way.provider()?;
        let after = drawn.below(SIZE as u64 + 4 * AROUND);
        way.proxy.set(Misbehaviour { cut_after: Some(after), ..Misbehaviour::default() });
        let begun = Instant::now();
        let what = format!("{operation:?}, run {run}, cut after {after} bytes");
        let outcome = timeout(MOST, perform(operation, &provider, session, run)).await;
        way.proxy.set(Misbehaviour::default());
        let outcome = outcome.map_err(|_| format!("{what}: it takes longer than {MOST:?}"))?;
        if let Err(error) = &outcome {
            use ErrorKind::{DeadlineExceeded, Lost, ShortTransfer, Unavailable};
            let known = matches!(error.kind(), DeadlineExceeded | Lost | ShortTransfer | Unavailable);
            holds(&format!("{what}, {:?}: its error", begun.elapsed()), known && error.death().is_none(), error)?;
        }
        ended.push(Ended { run, after, outcome });
    }
    Ok(ended)
}

/// What is there afterwards is what the operation said.
fn check(operation: Operation, ended: &Ended, there: &BTreeMap<String, Vec<u8>>) -> Outcome {
    let Ended { run, after, outcome } = ended;
    let what = format!("{operation:?}, run {run}, cut after {after} bytes: {outcome:?}");
    let effect = outcome.as_ref().err().map(Error::effect);
    match operation {
        Operation::Exec => {
            let times = there.get(&format!("exec-{run}")).map_or(0, Vec::len);
            let possible = match effect {
                None => times == 1,
                Some(Effect::None) => times == 0,
                Some(Effect::Unknown) => times <= 1,
                Some(Effect::Partial) => false,
            };
            holds(&what, possible, times)
        }
        Operation::Read | Operation::Export => holds(&what, effect.is_none_or(|effect| effect == Effect::None), ()),
        Operation::Write => {
            let written = there.get(&format!("write-{run}"));
            let whole = written.is_some_and(|written| *written == content(*run));
            let possible = match effect {
                None => whole,
                Some(Effect::None) => written.is_none(),
                Some(Effect::Unknown) => written.is_none() || whole,
                Some(Effect::Partial) => false,
            };
            holds(&what, possible, written.map(Vec::len))
        }
        Operation::Bulk => {
            let failed = outcome.as_ref().err().map(|error| error.member().unwrap_or(0));
            for (at, (name, content)) in members(*run).iter().enumerate() {
                let written = there.get(name);
                let must = failed.is_none_or(|failed| at < failed);
                let may = must || effect == Some(Effect::Unknown);
                let whole = written.is_some_and(|written| written == content);
                holds(
                    &what,
                    if must { whole } else { written.is_none() || may && whole },
                    (name, written.map(Vec::len)),
                )?;
            }
            Ok(())
        }
    }
}

async fn after_any_number_of_bytes(bed: Bed) -> Outcome {
    let cuts = count("FIRE_CUTS", 40, 200);
    let drawn = Drawn::new("numbers of bytes");
    let begun = Instant::now();
    let provider = bed.provider()?;
    let spec = bed.spec();
    let (sandbox, session) = (provider.provision(&spec).await?, &spec.session);
    sandbox.write_bytes(&path("planted")?, content(0)).await?;
    sandbox.write_bytes(&path("tree/file")?, content(1)).await?;
    let lanes = (0..LANES * OPERATIONS.len()).map(|at| {
        let operation = OPERATIONS[at % OPERATIONS.len()];
        let runs = (0..cuts).skip(at).step_by(LANES * OPERATIONS.len()).collect();
        let (bed, drawn) = (&bed, drawn.part(at));
        async move { Ok::<_, Any>((operation, lane(bed, session, operation, runs, drawn).await?)) }
    });
    let ended = try_join_all(lanes).await?;
    no_remains(&sandbox).await?;
    // At the end, when what was left running has had its time.
    let there = tree(&provider, session, "/workspace").await?;
    let mut failed = 0;
    for (operation, runs) in &ended {
        for ended in runs {
            check(*operation, ended, &there)?;
            failed += usize::from(ended.outcome.is_err());
        }
    }
    eprintln!("  {cuts} cuts in {:.0?}, {failed} of them in the middle of something", begun.elapsed());
    // Otherwise nothing was cut where it counts.
    holds("some cut hurts", failed > 0, failed)?;
    equal("what was planted", there.get("planted").map(|planted| *planted == content(0)), Some(true))?;
    reap(&provider, session).await
}
