//! A stream is cut: after every frame, and after any number of bytes, in either direction.
//!
//! Whatever an operation then says must be true: a success is one, what failed without effect had none, and nothing hangs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_apiserver::{Cut, ExecFault, On, Rule, Trace};
use futures::future::join_all;
use sandbox::{
    ByteStream, Effect, Error, ErrorKind, FileBatch, FileWrite, Provider, Sandbox, SandboxExt, SessionId, SpawnRequest,
};
use sandbox_k8s::K8sProvider;

use crate::bed::{Bed, text, within};

/// Numbers of bytes that are drawn, for each direction and operation.
const DRAWN: u64 = 50;
/// How long an operation on a broken stream may take: it has a limit of its own, and this machine may be busy.
const MOST: Duration = Duration::from_secs(50);
/// Larger than what is read at once, smaller than what makes this slow.
const CONTENT: usize = 10_000;
/// Larger than what goes with its request.
const LARGE: usize = 70_000;
/// As many as make it worth a delivery.
const MEMBERS: usize = 6;
const CUTS: [Cut; 3] = [Cut::Fin, Cut::Rst, Cut::Close];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operation {
    Exec,
    Spawn,
    Read,
    Export,
    Write,
    WriteLarge,
    WriteMany,
}

fn content() -> Vec<u8> {
    bytes(CONTENT)
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at % 251) as u8).collect()
}

/// A provider that has no stream yet, and its handle.
struct Hands {
    provider: K8sProvider,
    sandbox: Arc<dyn Sandbox>,
}

/// The sandbox of one operation, and its servers' streams, fresh for each run.
struct Target {
    bed: Bed,
    session: SessionId,
    operation: Operation,
}

impl Target {
    async fn new(operation: Operation) -> Self {
        let bed = Bed::new().await;
        let spec = bed.spec();
        drop(within("provision", bed.provider().provision(&spec)).await.unwrap());
        std::fs::write(bed.file("read"), content()).unwrap();
        std::fs::create_dir(bed.file("tree")).unwrap();
        std::fs::write(bed.file("tree/file"), content()).unwrap();
        Self { bed, session: spec.session, operation }
    }

    async fn hands(&self) -> Hands {
        let provider = self.bed.provider();
        let sandbox = provider.attach(&self.session).await.unwrap();
        Hands { provider, sandbox }
    }

    fn written(&self, run: usize) -> String {
        format!("{:?}-{run}", self.operation)
    }

    /// The files that are written, by their names.
    fn files(&self, run: usize) -> Vec<(String, Vec<u8>)> {
        let name = self.written(run);
        match self.operation {
            Operation::Write => vec![(name, content())],
            Operation::WriteLarge => vec![(name, bytes(LARGE))],
            Operation::WriteMany => (0..MEMBERS).map(|at| (format!("{name}/{at}"), content())).collect(),
            _ => Vec::new(),
        }
    }

    async fn perform(&self, hands: &Hands, run: usize) -> Result<(), Error> {
        let Hands { provider, sandbox } = hands;
        let file = self.written(run);
        let command = format!("printf x >>{file}; printf 'some output'; printf 'some more' >&2; exit 7");
        match self.operation {
            Operation::Exec => {
                let result = sandbox.exec(text(&command)).await?;
                let (out, err) = (&result.stdout.bytes[..], &result.stderr.bytes[..]);
                assert_eq!((result.exit_code, out, err), (7, &b"some output"[..], &b"some more"[..]), "{result:?}");
                assert!(!result.timed_out && !result.truncated());
            }
            Operation::Spawn => {
                let request = SpawnRequest::shell(command).with_limit(Duration::from_secs(20));
                let mut process = sandbox.spawn(request).await?;
                let (out, err) = (all(&mut process.stdout).await?, all(&mut process.stderr).await?);
                let exit = process.wait().await?;
                assert_eq!((exit.code, &out[..], &err[..]), (7, &b"some output"[..], &b"some more"[..]), "{exit:?}");
                assert!(!exit.timed_out);
            }
            Operation::Read => {
                let read = sandbox.read_bytes(&self.bed.path("read"), CONTENT).await?;
                assert!(read == content(), "{} bytes are not the file's", read.len());
            }
            Operation::Export => {
                let archive = provider.export(&self.session, &self.bed.path("tree")).await?.collect(1 << 20).await?;
                let wanted = [("tree/".to_owned(), Vec::new()), ("tree/file".to_owned(), content())];
                assert!(entries(&archive) == wanted, "{} bytes are not the tree's", archive.len());
            }
            Operation::Write | Operation::WriteLarge => {
                let (name, content) = self.files(run).remove(0);
                sandbox.write_bytes(&self.bed.path(&name), content).await?;
            }
            Operation::WriteMany => {
                let file = |(name, content): (String, Vec<u8>)| FileWrite::bytes(self.bed.path(&name), content);
                sandbox.write_many(FileBatch::new(self.files(run).into_iter().map(file))).await?;
            }
        }
        Ok(())
    }

    /// After how many bytes the frames end, of output and of input, of the streams that one operation opens.
    async fn frames(&self) -> [Vec<Vec<u64>>; 2] {
        let traces = [Trace::new(), Trace::new()];
        let rules = [1, 2].map(|nth| {
            let fault = ExecFault::new().trace(&traces[nth - 1]);
            self.bed.api.rule(Rule::when(On::exec()).nth(nth as u64).exec(fault))
        });
        let hands = self.hands().await;
        within("the run without a fault", self.perform(&hands, 999_999)).await.unwrap();
        rules.iter().for_each(fake_apiserver::RuleHandle::remove);
        [traces.iter().map(Trace::output).collect(), traces.iter().map(Trace::input).collect()]
    }

    /// One run in which the `nth` stream goes wrong.
    async fn run(&self, run: usize, nth: u64, fault: ExecFault) -> Result<(), Error> {
        let what = format!("{:?}, run {run}, stream {nth}: {fault:?}", self.operation);
        let hands = self.hands().await;
        let rule = self.bed.api.rule(Rule::when(On::exec()).nth(nth).exec(fault));
        let begun = Instant::now();
        let outcome = within(&what, self.perform(&hands, run)).await;
        rule.remove();
        assert!(begun.elapsed() < MOST, "{what}: {:?}", begun.elapsed());
        if let Err(error) = &outcome {
            use ErrorKind::{DeadlineExceeded, Lost, Protocol, ShortTransfer, Unavailable};
            let kinds = [DeadlineExceeded, Lost, Protocol, ShortTransfer, Unavailable];
            assert!(kinds.contains(&error.kind()), "{what}: {error:?}");
            assert_eq!(error.death(), None, "{what}: the sandbox lives: {error:?}");
        }
        outcome
    }

    /// What is there afterwards is what the operation said.
    fn check(&self, run: usize, outcome: &Result<(), Error>) {
        let what = format!("{:?}, run {run}: {outcome:?}", self.operation);
        let effect = outcome.as_ref().err().map(Error::effect);
        match self.operation {
            Operation::Exec | Operation::Spawn => {
                let times = bytes_of(&self.bed.file(&self.written(run))).map_or(0, |bytes| bytes.len());
                match effect {
                    None => assert_eq!(times, 1, "{what}"),
                    Some(Effect::None) => assert_eq!(times, 0, "{what}"),
                    Some(_) => assert!(times <= 1, "{what}: it ran {times} times"),
                }
            }
            Operation::Read | Operation::Export => assert!(matches!(effect, None | Some(Effect::None)), "{what}"),
            Operation::Write | Operation::WriteLarge | Operation::WriteMany => {
                // Of a batch, what came before the member that the error names is there.
                let done = outcome.as_ref().err().map_or(usize::MAX, |error| error.member().unwrap_or(0));
                if self.operation == Operation::WriteMany {
                    assert!(outcome.as_ref().err().is_none_or(|error| error.member().is_some()), "{what}");
                }
                for (at, (name, wanted)) in self.files(run).into_iter().enumerate() {
                    match (effect, bytes_of(&self.bed.file(&name))) {
                        (_, Some(bytes)) if at < done => assert!(bytes == wanted, "{what}: a part of {name}"),
                        (_, None) if at < done => panic!("{what}: {name} is not there"),
                        (Some(Effect::Unknown), Some(bytes)) => assert!(bytes == wanted, "{what}: a part of {name}"),
                        (Some(Effect::Unknown | Effect::None), None) => {}
                        (effect, there) => panic!("{what}: {name}: {effect:?}, {:?}", there.map(|bytes| bytes.len())),
                    }
                }
            }
        }
    }
}

/// What a process prints, to its end.
async fn all(stream: &mut ByteStream) -> Result<Vec<u8>, Error> {
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

/// The entries of an archive: their names and contents.
fn entries(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(archive);
    let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut content).unwrap();
        (String::from_utf8(entry.path_bytes().into_owned()).unwrap(), content)
    };
    archive.entries().unwrap().map(read).collect()
}

fn bytes_of(path: &Path) -> Option<Vec<u8>> {
    std::fs::read(path).ok()
}

/// Numbers that are the same in each run of the tests.
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most.max(1)
    }
}

/// Every frame's end of both streams, and numbers that are drawn from all that goes over one.
fn faults([output, input]: &[Vec<Vec<u64>>; 2], seed: u64) -> Vec<(u64, ExecFault)> {
    let mut faults = Vec::new();
    let mut drawn = Drawn(seed);
    let used = |stream: &usize| !output[*stream].is_empty() || !input[*stream].is_empty();
    let streams: Vec<usize> = (0..2).filter(used).collect();
    for stream in streams.iter().copied() {
        let nth = stream as u64 + 1;
        for end in std::iter::once(&0).chain(&output[stream]) {
            let cut = CUTS[faults.len() % 3];
            faults.push((nth, ExecFault::new().cut_output(*end, cut)));
            faults.push((nth, ExecFault::new().cut_output(*end, cut).half_frame()));
        }
        for end in std::iter::once(&0).chain(&input[stream]) {
            faults.push((nth, ExecFault::new().cut_input(*end, CUTS[faults.len() % 3])));
        }
    }
    let longest = |of: &[Vec<u64>]| of.iter().filter_map(|ends| ends.last()).copied().max().unwrap_or(0);
    let (longest_output, longest_input) = (longest(output), longest(input));
    for at in 0..DRAWN {
        let nth = streams[at as usize % streams.len()] as u64 + 1;
        let cut = CUTS[at as usize % 3];
        let half = ExecFault::new().cut_output(drawn.below(longest_output), cut);
        faults.push((nth, if at % 4 == 3 { half.half_frame() } else { half }));
        faults.push((nth, ExecFault::new().cut_input(drawn.below(longest_input), cut)));
    }
    faults
}

async fn cut_everywhere(operation: Operation, seed: u64) {
    let target = Target::new(operation).await;
    let frames = target.frames().await;
    let faults = faults(&frames, seed);
    assert!(faults.len() as u64 > 2 * DRAWN + 6, "{operation:?}: there are frames: {frames:?}");
    drop(target);
    // A server for each, since rules count what all ask of one. Most of the time a broken stream is given time to say its last.
    const LANES: usize = 18;
    let faults = &faults;
    let lanes = (0..LANES).map(|lane| async move {
        let target = Target::new(operation).await;
        let mut outcomes = Vec::new();
        for (run, (nth, fault)) in faults.iter().enumerate().skip(lane).step_by(LANES) {
            outcomes.push((run, target.run(run, *nth, fault.clone()).await));
        }
        // At the end, when what was left running has had its time.
        outcomes.iter().for_each(|(run, outcome)| target.check(*run, outcome));
        outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count()
    });
    let failed: usize = join_all(lanes).await.into_iter().sum();
    // Otherwise nothing was cut where it counts.
    assert!(failed > 0, "{operation:?}: no cut hurt");
}

#[tokio::test]
async fn a_command() {
    cut_everywhere(Operation::Exec, 1).await;
}

#[tokio::test]
async fn a_read() {
    cut_everywhere(Operation::Read, 2).await;
}

#[tokio::test]
async fn a_write() {
    cut_everywhere(Operation::Write, 3).await;
}

#[tokio::test]
async fn a_large_write() {
    cut_everywhere(Operation::WriteLarge, 4).await;
}

#[tokio::test]
async fn a_batch() {
    cut_everywhere(Operation::WriteMany, 5).await;
}

#[tokio::test]
async fn an_export() {
    cut_everywhere(Operation::Export, 6).await;
}

#[tokio::test]
async fn a_spawned_command() {
    cut_everywhere(Operation::Spawn, 7).await;
}
