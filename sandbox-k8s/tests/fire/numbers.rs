//! How much is tried, and what is drawn.
//!
//! | variable | what | usual | whole |
//! |---|---|---|---|
//! | `FIRE_CUTS` | numbers of bytes after which a connection is cut | 40 | 200 |
//! | `FIRE_KILLS` | clients that are killed | 100 | 1000 |
//! | `FIRE_UPLOADS` | uploads of 64 MiB | 3 | 200 |
//! | `FIRE_LASTS` | seconds that a component is broken | up to 6 | up to 6 |
//! | `FIRE_SEED` | what is drawn | a new one each time, which is printed | |
//!
//! With `CONFORMANCE_SLOW=1` the whole is tried where no variable says otherwise.

use std::str::FromStr;
use std::time::Duration;

fn is_whole() -> bool {
    std::env::var_os("CONFORMANCE_SLOW").is_some_and(|value| value == "1")
}

/// How long one test may take.
pub(crate) fn limit() -> Duration {
    let more =
        is_whole() || ["FIRE_CUTS", "FIRE_KILLS", "FIRE_UPLOADS"].iter().any(|name| std::env::var_os(name).is_some());
    Duration::from_secs(if more { 1200 } else { 180 })
}

pub(crate) fn count(name: &str, usual: usize, whole: usize) -> usize {
    given(name).unwrap_or(if is_whole() { whole } else { usual })
}

/// How long a component is broken.
pub(crate) fn lasts(usual: Duration) -> Duration {
    given("FIRE_LASTS").map_or(usual, Duration::from_secs)
}

fn given<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: it must be a number")))
}

/// Numbers that are the same for the same seed.
#[derive(Debug, Clone)]
pub(crate) struct Drawn(u64);

impl Drawn {
    /// A new seed, or the one that is given; says which.
    pub(crate) fn new(what: &str) -> Self {
        let seed = given("FIRE_SEED").unwrap_or_else(|| {
            let mut bytes = [0; 4];
            getrandom::fill(&mut bytes).expect("the system draws");
            u64::from(u32::from_le_bytes(bytes))
        });
        eprintln!("  {what}: FIRE_SEED={seed}");
        Self(seed)
    }

    /// Another row of numbers.
    pub(crate) fn part(&self, at: usize) -> Self {
        let mut part = Self(self.0 ^ (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        part.next();
        part
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.next() % most.max(1)
    }
}

/// Content that nothing makes smaller, of its own for each seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut content = Vec::with_capacity(len + 8);
    while content.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
    }
    content.truncate(len);
    content
}
