//! A stream is cut: after every frame, and after any number of bytes, in either direction.
//!
//! Whatever an operation then says must be true: a success is one, what failed without effect had none, and nothing hangs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_apiserver::{Cut, ExecFault, On, Rule, Trace};
use futures::future::join_all;
use sandbox::{Effect, Error, ErrorKind, Provider, Sandbox, SandboxExt, SessionId};

use crate::bed::{Bed, text, within};

/// Numbers of bytes that are drawn, for each direction and operation.
const DRAWN: u64 = 50;
/// How long an operation on a broken stream may take: it has a limit of its own, and this machine may be busy.
const MOST: Duration = Duration::from_secs(50);
/// Larger than what is read at once, smaller than what makes this slow.
const CONTENT: usize = 10_000;
const CUTS: [Cut; 3] = [Cut::Fin, Cut::Rst, Cut::Close];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operation {
    Exec,
    Read,
    Write,
}

fn content() -> Vec<u8> {
    (0..CONTENT).map(|at| (at % 251) as u8).collect()
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
        Self { bed, session: spec.session, operation }
    }

    /// A handle that has no stream yet.
    async fn handle(&self) -> Arc<dyn Sandbox> {
        self.bed.provider().attach(&self.session).await.unwrap()
    }

    fn written(&self, run: usize) -> String {
        format!("{:?}-{run}", self.operation)
    }

    async fn perform(&self, sandbox: &Arc<dyn Sandbox>, run: usize) -> Result<(), Error> {
        let file = self.written(run);
        match self.operation {
            Operation::Exec => {
                let command = format!("printf x >>{file}; printf 'some output'; printf 'some more' >&2; exit 7");
                let result = sandbox.exec(text(&command)).await?;
                let (out, err) = (&result.stdout.bytes[..], &result.stderr.bytes[..]);
                assert_eq!((result.exit_code, out, err), (7, &b"some output"[..], &b"some more"[..]), "{result:?}");
                assert!(!result.timed_out && !result.truncated());
            }
            Operation::Read => {
                let read = sandbox.read_bytes(&self.bed.path("read"), CONTENT).await?;
                assert!(read == content(), "{} bytes are not the file's", read.len());
            }
            Operation::Write => sandbox.write_bytes(&self.bed.path(&file), content()).await?,
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
        let sandbox = self.handle().await;
        within("the run without a fault", self.perform(&sandbox, 999_999)).await.unwrap();
        rules.iter().for_each(fake_apiserver::RuleHandle::remove);
        [traces.iter().map(Trace::output).collect(), traces.iter().map(Trace::input).collect()]
    }

    /// One run in which the `nth` stream goes wrong.
    async fn run(&self, run: usize, nth: u64, fault: ExecFault) -> Result<(), Error> {
        let what = format!("{:?}, run {run}, stream {nth}: {fault:?}", self.operation);
        let sandbox = self.handle().await;
        let rule = self.bed.api.rule(Rule::when(On::exec()).nth(nth).exec(fault));
        let begun = Instant::now();
        let outcome = within(&what, self.perform(&sandbox, run)).await;
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
        let path = self.bed.file(&self.written(run));
        let what = format!("{:?}, run {run}: {outcome:?}", self.operation);
        let effect = outcome.as_ref().err().map(Error::effect);
        match self.operation {
            Operation::Exec => {
                let times = bytes_of(&path).map_or(0, |bytes| bytes.len());
                match effect {
                    None => assert_eq!(times, 1, "{what}"),
                    Some(Effect::None) => assert_eq!(times, 0, "{what}"),
                    Some(_) => assert!(times <= 1, "{what}: it ran {times} times"),
                }
            }
            Operation::Read => {}
            Operation::Write => match (effect, bytes_of(&path)) {
                (None | Some(Effect::Unknown), Some(bytes)) => assert!(bytes == content(), "{what}: a part"),
                (None, None) => panic!("{what}: it is not there"),
                (Some(Effect::None), there) => assert!(there.is_none(), "{what}: it is there"),
                (Some(_), None) => {}
                (Some(effect), Some(_)) => panic!("{what}: {effect:?}"),
            },
        }
    }
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
