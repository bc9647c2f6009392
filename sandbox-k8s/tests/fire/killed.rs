//! Clients that are killed while they make, use and remove sandboxes: whatever they leave is owned, and can be reaped.
//!
//! The client is this program itself, started with [`DEPLOYMENT`].

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use libtest_mimic::Trial;
use sandbox::Provider;

use crate::bed::{Bed, equal, holds, says};
use crate::harness::chain;
use crate::look::{owned_is_true, pods, reap_owned};
use crate::numbers::{Drawn, count};
use crate::{Any, Outcome, trial};

/// Whose sandboxes the client makes.
const DEPLOYMENT: &str = "FIRE_DEPLOYMENT";
/// Clients that are at work at once. A kill is soon done; what it waits for is the node.
const LANES: usize = 4;
/// How many kills there are before what they left is reaped: a node takes only so many Pods.
const PILE: usize = 5;
/// How long a client may take to start, and for one cycle.
const MOST: Duration = Duration::from_secs(40);

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("killed::at_random_points", at_random_points)]
}

pub(crate) fn deployment() -> Option<String> {
    std::env::var(DEPLOYMENT).ok()
}

/// The client: a sandbox after the other, for as long as somebody wants to hear of it.
pub(crate) fn cycles(deployment: String) -> ExitCode {
    // Nobody is left who would kill it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("there is a runtime");
    let outcome = runtime.block_on(async {
        let bed = Bed::of(deployment).await?;
        println!("begun");
        loop {
            cycle(&bed).await?;
            println!("a cycle");
        }
    });
    let outcome: Outcome = outcome;
    outcome.map_or_else(
        |error| {
            eprintln!("{}", chain(&*error));
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

async fn cycle(bed: &Bed) -> Outcome {
    let (provider, spec) = (bed.provider()?, bed.spec());
    let sandbox = provider.provision(&spec).await?;
    equal("a command", says(&sandbox, "echo hello").await?, "hello".to_owned())?;
    Ok(provider.reap(&spec.session).await?)
}

/// A client at work. Dropped, it is killed.
struct Client {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Client {
    fn start(bed: &Bed) -> Result<Self, Any> {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(DEPLOYMENT, &bed.config.deployment).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or("it has no output")?;
        let (sender, lines) = std::sync::mpsc::channel();
        // Ends with the client.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Ok(Self { child, lines })
    }

    /// Waits for what it says next.
    async fn says(&mut self) -> Result<String, Any> {
        let end = Instant::now() + MOST;
        loop {
            if let Ok(line) = self.lines.try_recv() {
                return Ok(line);
            }
            let ended = self.child.try_wait()?;
            holds("a client goes on", ended.is_none() && Instant::now() < end, ended)?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills it where it stands.
    fn kill(mut self) -> Outcome {
        let ended = self.child.try_wait()?;
        holds("nothing else ends a client", ended.is_none(), ended)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How long a client needs from its first word to the end of its first cycle.
async fn span(bed: &Bed) -> Result<Duration, Any> {
    let mut client = Client::start(bed)?;
    equal("its first word", client.says().await?, "begun".to_owned())?;
    let begun = Instant::now();
    equal("its second", client.says().await?, "a cycle".to_owned())?;
    let span = begun.elapsed();
    client.kill()?;
    Ok(span)
}

async fn at_random_points(bed: Bed) -> Outcome {
    let kills = count("FIRE_KILLS", 100, 1000);
    let drawn = Drawn::new("points in time");
    let span = span(&bed).await?;
    let mut beds = vec![bed];
    for _ in 1..LANES {
        beds.push(Bed::open().await?);
    }
    let begun = Instant::now();
    let lanes = beds.iter().enumerate().map(|(at, bed)| {
        let mine = kills / LANES + usize::from(at < kills % LANES);
        // With others beside it a cycle takes longer.
        lane(bed, mine, drawn.part(at), span * 3 / 2)
    });
    let outcome = try_join_all(lanes).await;
    let mut left = Vec::new();
    for bed in &beds {
        left.extend(bed.close().await?);
    }
    let behind: usize = outcome?.into_iter().sum();
    eprintln!("  {kills} clients killed in {:.0?}, {behind} of them with a sandbox", begun.elapsed());
    equal("left behind", left, Vec::new())?;
    // Otherwise none was killed where it counts.
    holds("some left a sandbox", behind > 0, behind)
}

/// Kills one client after the other; answers how many Pods they left.
async fn lane(bed: &Bed, kills: usize, mut drawn: Drawn, span: Duration) -> Result<usize, Any> {
    let provider = bed.apart().await?;
    let (mut behind, mut before) = (0, 0);
    for at in 1..=kills {
        let mut client = Client::start(bed)?;
        client.says().await?;
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        tokio::time::sleep(Duration::from_micros(drawn.below(micros))).await;
        client.kill()?;
        owned_is_true(bed, &provider).await?;
        let now = pods(bed).await?.len();
        behind += now.saturating_sub(before);
        before = now;
        if at % PILE == 0 || at == kills {
            reap_owned(bed, &provider).await?;
            before = 0;
        }
    }
    Ok(behind)
}
