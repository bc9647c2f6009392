//! Sandboxes that do not answer, or hardly: how long they can hold up a call. The shells are none, and time is not real.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::shell::Shell;
use sandbox::{Body, Death, Effect, Error, ErrorKind, ExecRequest, FileBatch, FileWrite, SandboxPath, SpawnRequest};
use sandbox_guest::{Carrier, CarrierStream, FarEnds, Guest, GuestConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};

/// What a shell does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Nothing at all.
    Mute,
    /// Says READY, then takes nothing.
    Deaf,
    /// Says READY and takes everything, without an answer.
    Absent,
    /// Begins what it is asked for; then a byte goes in and comes out every 20 seconds.
    Trickle,
    /// Begins what it is asked for; takes 16 MiB at once, and then a page every ten seconds.
    Tired,
    /// Begins what it is asked for; then 32 KiB go in every second, and it says in the end that all is well.
    Steady,
    /// Runs commands, which do nothing.
    Good,
    /// Begins commands and never ends them, nor answers to a signal.
    Endless,
    /// Answers a delivery of many files with that.
    Boasts(&'static str),
    /// Begins commands, and says after that many milliseconds that there is no such directory to start them in.
    Denies(u64),
    /// Runs commands that end at once; what they have printed arrives so slowly: so many pieces, one every second.
    Slow(usize),
}

const LARGE: u64 = 20 << 20;
const NEXT: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Fake {
    /// What the shells do, in the order in which they are opened; the last one goes for all that follow.
    manners: Vec<Manner>,
    opened: AtomicUsize,
    /// Whether nobody tells why a sandbox is no more, and takes for ever.
    silent: bool,
}

fn guest(manners: &[Manner]) -> (Guest, Arc<Fake>) {
    let fake = Arc::new(Fake { manners: manners.to_vec(), opened: AtomicUsize::new(0), silent: false });
    (Guest::new(Arc::clone(&fake) as Arc<dyn Carrier>, GuestConfig::new(path("/tmp"))), fake)
}

fn path(text: &str) -> SandboxPath {
    SandboxPath::new(text).unwrap()
}

#[sandbox::async_trait]
impl Carrier for Fake {
    async fn open(&self) -> Result<CarrierStream, Error> {
        let turn = self.opened.fetch_add(1, Ordering::Relaxed);
        let manner = self.manners[turn.min(self.manners.len() - 1)];
        let (stream, mut shell) = Shell::open();
        tokio::spawn(async move {
            let _ = serve(&mut shell, manner).await;
            std::future::pending::<()>().await;
        });
        Ok(stream)
    }

    fn far_ends(&self) -> FarEnds {
        FarEnds::Other
    }

    async fn cause_of_death(&self) -> Option<Death> {
        if self.silent { std::future::pending().await } else { None }
    }
}

/// What a shell does from its opening on.
async fn serve(shell: &mut Shell, manner: Manner) -> std::io::Result<()> {
    if manner == Manner::Mute {
        return Ok(());
    }
    shell.ready().await?;
    match manner {
        Manner::Mute | Manner::Deaf => Ok(()),
        Manner::Absent => loop {
            shell.more().await?;
        },
        Manner::Good => loop {
            let (_, words) = shell.words(&["__sbx_exec"]).await?;
            let record = format!("{}B0000{}E0005x 0 0", words[0], words[1]);
            shell.out.write_all(record.as_bytes()).await?;
            shell.err.write_all(record.as_bytes()).await?;
        },
        Manner::Slow(pieces) => {
            let (_, words) = shell.words(&["__sbx_exec"]).await?;
            shell.out.write_all(format!("{}B0000{}E0005x 0 0", words[0], words[1]).as_bytes()).await?;
            shell.err.write_all(format!("{}B0000", words[0]).as_bytes()).await?;
            for _ in 0..pieces {
                sleep(Duration::from_secs(1)).await;
                shell.err.write_all(&[b'x'; 100]).await?;
            }
            shell.err.write_all(format!("{}E0005x 0 0", words[1]).as_bytes()).await
        }
        Manner::Endless => loop {
            let (_, words) = shell.words(&["__sbx_exec"]).await?;
            shell.out.write_all(format!("{}B0000", words[0]).as_bytes()).await?;
            shell.err.write_all(format!("{}B0000", words[0]).as_bytes()).await?;
        },
        Manner::Denies(millis) => loop {
            let (_, words) = shell.words(&["__sbx_exec"]).await?;
            for end in [format!("{}B0000", words[0]), format!("{}E0003w n", words[1])] {
                shell.out.write_all(end.as_bytes()).await?;
                shell.err.write_all(end.as_bytes()).await?;
                sleep(Duration::from_millis(millis)).await;
            }
        },
        Manner::Boasts(said) if said.starts_with('W') => {
            shell.ways = &said[1..];
            shell.words(&[]).await.map(drop)
        }
        Manner::Boasts(said) => {
            let (_, words) = shell.words(&["__sbx_bulk"]).await?;
            shell
                .out
                .write_all(format!("{}{}{:04x}{}", &words[0][..32], &said[..1], said.len() - 1, &said[1..]).as_bytes())
                .await
        }
        Manner::Trickle | Manner::Tired | Manner::Steady => {
            let heads = ["__sbx_read", "__sbx_export", "__sbx_write", "__sbx_bulk"];
            let (which, words) = shell.words(&heads).await?;
            let nonce = &words[0][..32];
            let begun = ["B0000", "B0000", "G0000", "G00018"][which];
            shell.out.write_all(format!("{nonce}{begun}").as_bytes()).await?;
            if manner == Manner::Trickle {
                loop {
                    sleep(Duration::from_secs(20)).await;
                    shell.out.write_all(b"x").await?;
                    shell.requests.read_exact(&mut [0]).await?;
                }
            }
            if manner == Manner::Tired {
                let mut page = [0; 4096];
                for n in 0u32.. {
                    if n >= 4096 {
                        sleep(Duration::from_secs(10)).await;
                    }
                    match which {
                        0 | 1 => shell.out.write_all(&page).await?,
                        _ => drop(shell.requests.read_exact(&mut page).await?),
                    }
                }
            }
            // Two announcements and a dot come along.
            let mut left = usize::try_from(LARGE).unwrap() + "16777216\n4194304\n.\n".len();
            while left > 0 {
                sleep(Duration::from_secs(1)).await;
                let mut piece = vec![0; left.min(32 << 10)];
                left -= shell.requests.read_exact(&mut piece).await?;
            }
            let answer = format!("+ ok {LARGE}");
            shell.out.write_all(format!("{nonce}E{:04x}{answer}", answer.len()).as_bytes()).await
        }
    }
}

/// A call, as its error.
type Call = (&'static str, fn(Guest) -> Pin<Box<dyn Future<Output = Option<Error>> + Send>>);

fn large() -> FileWrite<'static> {
    FileWrite::new(path("/tmp/f"), LARGE, Body::reader(tokio::io::repeat(7).take(LARGE)))
}

fn files() -> FileBatch<'static> {
    FileBatch::new((0..8).map(|i| FileWrite::bytes(path(&format!("/tmp/{i}")), vec![b'x'; 60_000])))
}

const CALLS: &[Call] = &[
    ("exec", |g| Box::pin(async move { g.exec(ExecRequest::shell("true")).await.err() })),
    ("spawn", |g| Box::pin(async move { g.spawn(SpawnRequest::shell("true")).await.err() })),
    ("read", |g| {
        Box::pin(async move {
            match g.read(&path("/tmp/f"), 1 << 40).await {
                Ok(stream) => stream.collect(1 << 30).await.err(),
                Err(e) => Some(e),
            }
        })
    }),
    ("export", |g| {
        Box::pin(async move {
            match g.export(&path("/tmp/f")).await {
                Ok(stream) => stream.collect(1 << 30).await.err(),
                Err(e) => Some(e),
            }
        })
    }),
    ("write", |g| Box::pin(async move { g.write(FileWrite::bytes(path("/tmp/f"), "x")).await.err() })),
    ("large write", |g| Box::pin(async move { g.write(large()).await.err() })),
    ("write_many", |g| Box::pin(async move { g.write_many(files()).await.err() })),
];

/// Inside one can say how many of the caller's own list, and nothing else.
#[tokio::test(start_paused = true)]
async fn who_boasts_of_more_than_was_sent_is_not_believed() {
    for said in ["W+ ok 2", "W+ ok -1", "G9", "G-1", "Gx", "G", "E+ ok 9", "E+ ok 18446744073709551615", "E+ ok -1"] {
        let (guest, _) = guest(&[Manner::Boasts(said)]);
        let error = guest.write_many(files()).await.unwrap_err();
        assert_eq!((error.kind(), error.member()), (ErrorKind::Protocol, Some(0)), "{said}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_deadline_until_a_call_begins() {
    for manner in [Manner::Mute, Manner::Deaf, Manner::Absent] {
        for (name, call) in CALLS {
            let (guest, _) = guest(&[manner]);
            let begun = Instant::now();
            let error = call(guest).await.unwrap_or_else(|| panic!("{name} succeeds, {manner:?}"));
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{name}, {manner:?}: {error}");
            assert_eq!(begun.elapsed().as_secs(), 30, "{name}, {manner:?}: {error}");
            if manner == Manner::Mute {
                assert_eq!(error.effect(), Effect::None, "{name}: {error}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_behind_a_silent_sandbox_ends_with_the_first() {
    let (guest, fake) = guest(&[Manner::Mute]);
    let begun = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    for round in 0..3u64 {
        // More than there are places for.
        for _ in 0..100 {
            let guest = guest.clone();
            calls.spawn(async move {
                sleep(Duration::from_secs(5 * round)).await;
                guest.exec(ExecRequest::shell("true")).await.unwrap_err().kind()
            });
        }
    }
    while let Some(kind) = calls.join_next().await {
        assert_eq!(kind.unwrap(), ErrorKind::DeadlineExceeded);
    }
    assert_eq!(begun.elapsed().as_secs(), 30);
    let opened = fake.opened.load(Ordering::Relaxed);
    assert!(opened <= 10, "{opened} streams were tried");
    // The verdict is over with those who waited: a sandbox that has come round is asked anew.
    let begun = Instant::now();
    guest.exec(ExecRequest::shell("true")).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn one_silent_shell_among_others_fails_nobody_else() {
    // The control stream and the first command's; then one that says nothing, then good ones again.
    let (guest, _) = guest(&[Manner::Good, Manner::Good, Manner::Mute, Manner::Good]);
    guest.exec(ExecRequest::shell("true")).await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for i in 0..200u64 {
        let guest = guest.clone();
        calls.spawn(async move {
            sleep(Duration::from_millis(200 * i)).await;
            guest.exec(ExecRequest::shell("true")).await
        });
    }
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_trickle_does_not_hold_a_transfer() {
    for (name, call) in CALLS.iter().filter(|(name, _)| !matches!(*name, "exec" | "spawn" | "write")) {
        let (guest, _) = guest(&[Manner::Trickle]);
        let begun = Instant::now();
        let error = call(guest).await.unwrap_or_else(|| panic!("{name} succeeds"));
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{name}: {error}");
        let effect = if *name == "write_many" { Effect::Unknown } else { Effect::None };
        assert_eq!(error.effect(), effect, "{name}: {error}");
        let took = begun.elapsed();
        assert!(took >= NEXT && took < 2 * NEXT + Duration::from_secs(10), "{name}: {took:?}");
    }
}

/// Neither direction is held by one who was fast for a while: what that earned would last for days.
#[tokio::test(start_paused = true)]
async fn a_trickle_after_a_fast_beginning_does_not_hold_a_transfer() {
    for (name, call) in CALLS.iter().filter(|(name, _)| matches!(*name, "read" | "export" | "large write")) {
        let (guest, _) = guest(&[Manner::Tired]);
        let begun = Instant::now();
        let error = call(guest).await.unwrap_or_else(|| panic!("{name} succeeds"));
        assert_eq!((error.kind(), error.effect()), (ErrorKind::DeadlineExceeded, Effect::None), "{name}: {error}");
        let took = begun.elapsed();
        assert!(took >= NEXT && took < 2 * NEXT, "{name}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_moves_steadily_may_take_long() {
    let (guest, _) = guest(&[Manner::Steady]);
    let begun = Instant::now();
    guest.write(large()).await.unwrap();
    assert!(begun.elapsed() > Duration::from_secs(600), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn nobody_who_knows_a_cause_of_death_is_waited_for_long() {
    let fake = Fake { manners: vec![Manner::Mute], opened: AtomicUsize::new(0), silent: true };
    let guest = Guest::new(Arc::new(fake), GuestConfig::new(path("/tmp")).with_begin_timeout(Duration::from_secs(3)));
    let begun = Instant::now();
    let error = guest.exec(ExecRequest::shell("true")).await.unwrap_err();
    assert_eq!((error.kind(), begun.elapsed().as_secs()), (ErrorKind::DeadlineExceeded, 8));
}

/// Forty commands to kill, and nobody inside who does: that is tried, and then it is over.
#[tokio::test(start_paused = true)]
async fn orders_that_nobody_carries_out_do_not_pile_up() {
    let (guest, fake) = guest(&[Manner::Endless]);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let guest = guest.clone();
        calls.spawn(async move { guest.exec(ExecRequest::shell("true")).await.map(drop) });
    }
    sleep(Duration::from_secs(5)).await;
    assert_eq!(calls.len(), 40);
    calls.shutdown().await;
    sleep(Duration::from_secs(40)).await;
    let opened = fake.opened.load(Ordering::Relaxed);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(fake.opened.load(Ordering::Relaxed), opened, "somebody still tries");
    let limited = ExecRequest::shell("true").with_limit(Duration::from_secs(1));
    let begun = Instant::now();
    assert!(guest.exec(limited).await.unwrap().timed_out);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

/// Whoever ran past its limit was started, whatever a shell says by then.
#[tokio::test(start_paused = true)]
async fn what_ran_past_its_limit_was_started() {
    let limit = Duration::from_secs(1);
    for (millis, started) in [(200, false), (1200, true), (1700, true), (3500, true)] {
        let (guest, _) = guest(&[Manner::Denies(millis)]);
        let grace = Duration::from_secs(3);
        let result = guest.exec(ExecRequest::shell("true").with_limit(limit).with_grace(grace)).await;
        let mut process = guest.spawn(SpawnRequest::shell("true").with_limit(limit)).await.unwrap();
        let exit = process.wait().await;
        if started {
            assert!(result.unwrap().timed_out && exit.unwrap().timed_out, "after {millis} ms");
        } else {
            for error in [result.unwrap_err(), exit.unwrap_err()] {
                assert_eq!((error.kind(), error.effect()), (ErrorKind::FileNotFound, Effect::None));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_way_is_no_broken_one() {
    let (guest, _) = guest(&[Manner::Slow(20)]);
    let result = guest.exec(ExecRequest::shell("x")).await.unwrap();
    assert_eq!((result.exit_code, result.stderr.bytes.len()), (0, 2000));
    // Whoever prints for ever what nobody asked for holds nobody up for as long.
    let (guest, _) = self::guest(&[Manner::Slow(usize::MAX)]);
    let begun = Instant::now();
    let error = guest.exec(ExecRequest::shell("x")).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Lost, Effect::Unknown));
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}
