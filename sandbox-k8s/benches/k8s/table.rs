//! What was measured, as a table and as a plot.

use std::time::{Duration, Instant};

use crate::plot;

/// Sorted times.
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn new(mut all: Vec<Duration>) -> Self {
        all.sort();
        Self(all)
    }

    pub(crate) fn p(&self, percent: usize) -> Duration {
        self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)]
    }
}

/// Measures `run` so often. What it gives is looked at by `then`, which is not measured.
pub(crate) async fn times<F: Future>(n: usize, run: impl Fn(usize) -> F, mut then: impl FnMut(F::Output)) -> Times {
    let mut all = Vec::with_capacity(n);
    for at in 0..n {
        let begun = Instant::now();
        let output = run(at).await;
        all.push(begun.elapsed());
        then(output);
    }
    Times::new(all)
}

struct Row {
    what: String,
    ours: Duration,
    peer: &'static str,
    theirs: Duration,
    /// The most that `ours / theirs` is meant to be, where there is an aim.
    aim: Option<f64>,
    floor: Option<Floor>,
}

/// Below what no such implementation gets, measured in the same run.
pub(crate) struct Floor {
    pub(crate) time: Duration,
    pub(crate) of: &'static str,
}

#[derive(Default)]
pub(crate) struct Table(Vec<Row>);

impl Table {
    pub(crate) fn row(&mut self, what: &str, ours: Duration, peer: &'static str, theirs: Duration, aim: Option<f64>) {
        println!("{what}: {ours:.1?}, {peer}: {theirs:.1?}");
        self.0.push(Row { what: what.to_owned(), ours, peer, theirs, aim, floor: None });
    }

    /// Adds a floor to the last row.
    pub(crate) fn floor(&mut self, time: Duration, of: &'static str) {
        println!("  floor: {time:.1?}, {of}");
        if let Some(row) = self.0.last_mut() {
            row.floor = Some(Floor { time, of });
        }
    }

    pub(crate) fn print(&self, title: &str) {
        println!("\n| work | ours | peer | peer's | ours / peer's | aim |\n|---|---|---|---|---|---|");
        for row in &self.0 {
            let Row { what, ours, peer, theirs, aim, floor } = row;
            let ratio = row.ratio();
            let floor = floor.as_ref().map_or_else(String::new, |Floor { time, of }| {
                format!("; floor {}: {of}", short(time.as_secs_f64() / theirs.as_secs_f64()))
            });
            let aim = match aim {
                Some(aim) if ratio <= *aim => format!("at most {}", short(*aim)),
                Some(aim) => format!("at most {}, missed{floor}", short(*aim)),
                None => "–".to_owned(),
            };
            println!("| {what} | {ours:.1?} | `{peer}` | {theirs:.1?} | {} | {aim} |", short(ratio));
        }
        let bars = self.0.iter().map(|row| plot::Bar {
            label: format!("{} / {}", row.what, row.peer),
            ratio: row.ratio(),
            aim: row.aim,
        });
        let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("k8s-bench.svg");
        std::fs::write(&file, plot::svg(title, &bars.collect::<Vec<_>>())).unwrap();
        println!("\n{}", file.display());
    }
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours.as_secs_f64() / self.theirs.as_secs_f64()
    }
}

/// Small ratios as fractions.
fn short(ratio: f64) -> String {
    if ratio < 0.15 { format!("1/{:.0}", 1.0 / ratio) } else { format!("{ratio:.2}") }
}
