//! The cases, by area.

mod batch;
mod dead;
mod dropped;
mod exec;
mod export;
mod gate;
mod hardening;
mod hostile;
mod inputs;
mod lifetime;
mod limits;
mod networking;
mod overrun;
mod owned;
mod provider;
mod read;
mod spawn;
mod target;
mod write;

use std::io::Write;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sandbox::ByteStream;

use super::bed::unexpected;
use super::{Bed, Case};
use crate::{Outcome, within};

/// What every body gets.
type B = Arc<Bed>;

/// Every case of the suite.
pub fn cases() -> Vec<Case> {
    let core = [exec::cases(), limits::cases(), overrun::cases(), dropped::cases()].concat();
    let life = [provider::cases(), dead::cases(), lifetime::cases(), owned::cases()].concat();
    let files = [read::cases(), write::cases(), target::cases(), batch::cases(), export::cases()].concat();
    let rest = [spawn::cases(), networking::cases(), gate::cases(), hardening::cases(), hostile::cases()].concat();
    [core, life, files, rest].concat()
}

/// A sentence of the contract that no case can look at, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unseen {
    /// The sentence.
    pub rule: &'static str,
    /// Why no case can look at it.
    pub reason: &'static str,
}

/// The sentences of the contract that no case can look at.
pub fn unseen() -> &'static [Unseen] {
    const fn unseen(rule: &'static str, reason: &'static str) -> Unseen {
        Unseen { rule, reason }
    }
    const ALL: &[Unseen] = &[
        unseen(
            "`NotFound` also for a sandbox that is dead, being made or being removed;",
            "a caller cannot hold a sandbox in one of these states",
        ),
        unseen("`NotOurs` if the name is taken by something else.", "what has a name is the backend's own matter"),
        unseen(
            "`Busy` if another process is changing this session's sandbox for longer than the provider's time limit, or again and again;",
            "the limits are the provider's own",
        ),
        unseen(
            "Cheap, constant, and callable outside a runtime.",
            "what is cheap differs; that it is constant has a case",
        ),
    ];
    ALL
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A number of seconds that no other command sleeps for: the mark by which its processes are found.
fn mark() -> String {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).expect("the operating system has a source of randomness");
    format!("{}", 100_000 + u32::from_le_bytes(bytes) % 800_000_000)
}

/// What `seq 1 2000000` prints.
fn two_million() -> &'static [u8] {
    static PRINTED: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut printed = Vec::with_capacity(14_888_896);
        (1..=2_000_000u32).for_each(|n| writeln!(printed, "{n}").expect("memory takes everything"));
        printed
    });
    &PRINTED
}

/// `size` bytes without a period, the same each time.
fn filler(size: usize) -> Bytes {
    let mut state = 0x9e37_79b9_u32;
    let mut bytes = Vec::with_capacity(size + 4);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes.into()
}

/// What `cksum` says of `bytes`: the CRC of POSIX, over the bytes and their number.
fn cksum(bytes: &[u8]) -> u32 {
    static TABLE: LazyLock<[u32; 256]> = LazyLock::new(|| {
        std::array::from_fn(|n| {
            (0..8).fold((n as u32) << 24, |crc, _| if crc >> 31 == 1 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 })
        })
    });
    let table: &[u32; 256] = &TABLE;
    let length = bytes.len().to_le_bytes();
    let significant = length.len() - length.iter().rev().take_while(|byte| **byte == 0).count();
    let all = bytes.iter().chain(&length[..significant]);
    !all.fold(0, |crc, byte| crc << 8 ^ table[usize::from((crc >> 24) as u8 ^ byte)])
}

#[test]
fn checksums_are_those_of_posix() {
    assert_eq!((cksum(b""), cksum(b"123456789"), cksum(b"\0")), (4_294_967_295, 930_766_865, 4_215_202_376));
}

/// Waits until `check` holds, at most for `limit`; then it fails as `check` does.
async fn soon<Fut: Future<Output = Outcome>>(limit: Duration, check: impl Fn() -> Fut) -> Outcome {
    let begun = Instant::now();
    loop {
        let settled = check().await;
        if settled.is_ok() || begun.elapsed() > limit {
            return settled.map_err(|failure| failure.within(format!("after {limit:?}")));
        }
        tokio::time::sleep(millis(50)).await;
    }
}

/// All of `stream`, for a reader that pauses once and then takes its time.
async fn slowly(mut stream: ByteStream, what: &str) -> Outcome<Bytes> {
    let mut all = Vec::new();
    while let Some(piece) = within(what, secs(30), stream.next()).await? {
        let before = all.len();
        all.extend_from_slice(&piece.map_err(|e| unexpected(what, "a piece", &e))?);
        if before == 0 {
            tokio::time::sleep(secs(3)).await;
        } else if before >> 16 != all.len() >> 16 {
            tokio::time::sleep(millis(20)).await;
        }
    }
    Ok(all.into())
}

/// Names that somebody trims, expands, folds, splits or takes for options.
fn odd_names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        " a",
        "a ",
        "-rf",
        "--",
        "-",
        "a b",
        "a\nb",
        "\n",
        "a\tb",
        "*",
        "?",
        "[0]",
        "a:b",
        "\\x20",
        "\\",
        "$(id)",
        "`id`",
        "'\"",
        "'",
        "%2e%2e",
        "%s",
        "\u{e9}",
        "e\u{301}",
        "...",
        ".hidden",
        "~",
        "#",
        "!",
        "&",
        ";",
        "|",
        "{a,b}",
        "a=b",
        "@",
        "+x",
        "\r",
        "\u{1b}[2J",
    ]
    .map(|name| name.as_bytes().to_vec())
    .into();
    names.extend([vec![0xff, 0xfe], vec![b'n'; 255], b"a\xc3".to_vec(), vec![1, 2, 127]]);
    names
}
