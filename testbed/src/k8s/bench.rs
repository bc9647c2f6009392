//! The peers' side of the tables: what `kubectl` and a raw WebSocket exec take on this cluster, all from one run.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Cluster;
use super::smoke::pod;
use crate::error::{Context as _, Error, Result};
use crate::images::DEBIAN;
use crate::process::Task;

const POD: &str = "bench";
const LIMIT: Duration = Duration::from_secs(120);
const EXECS: usize = 40;
const COPIES: usize = 5;
const STARTS: usize = 7;
const SIZE: usize = 64 << 20;
const FILES: usize = 1000;

/// Measures and prints a table.
pub(crate) fn run(cluster: &Cluster) -> Result<()> {
    let bench = Bench { cluster };
    println!("Kubernetes {}, {} cores, milliseconds", cluster.bed.state.version, cores());
    println!("{:<48} {:>8} {:>8} {:>8} {:>4}", "", "p50", "p95", "max", "n");
    bench.start_pod(POD)?;
    row("kubectl exec POD -- true", repeat(EXECS, || bench.kubectl(&["exec", POD, "--", "true"]))?);
    row("one WebSocket exec of true, no kubectl", bench.websocket()?);

    let scratch = tempfile::tempdir().doing(|| "make a temporary folder".to_owned())?;
    let (big, many) = (scratch.path().join("big"), scratch.path().join("many"));
    write_noise(&big)?;
    fs::create_dir(&many).doing(|| "make a folder".to_owned())?;
    for number in 0..FILES {
        fs::write(many.join(format!("file-{number}")), vec![b'x'; 4096]).doing(|| "write a file".to_owned())?;
    }
    let (big_there, many_there) = (format!("{POD}:/root/big"), format!("{POD}:/root/many"));
    let back = scratch.path().join("back");
    let (big, many, back) = (text(&big), text(&many), text(&back));
    row("kubectl cp 64 MiB up", repeat(COPIES, || bench.kubectl(&["cp", &big, &big_there]))?);
    row("kubectl cp 64 MiB down", repeat(COPIES, || bench.kubectl(&["cp", &big_there, &back]))?);
    // Copied into a folder that is there, it would nest: so a fresh one each time.
    let mut number = 0;
    let up = || {
        number += 1;
        bench.kubectl(&["cp", &many, &format!("{many_there}-{number}")])
    };
    row("kubectl cp 1000 files of 4 KiB up", repeat(COPIES, up)?);
    let mut number = 0;
    let down = || {
        number += 1;
        bench.kubectl(&["cp", &format!("{many_there}-1"), &format!("{back}-{number}")])
    };
    row("kubectl cp 1000 files of 4 KiB down", repeat(COPIES, down)?);

    let mut starts = Vec::new();
    for number in 0..STARTS {
        let name = format!("start-{number}");
        let started = Instant::now();
        bench.start_pod(&name)?;
        starts.push(started.elapsed());
        bench.kubectl(&["delete", "pod", &name, "--wait=true"])?;
    }
    row("create a Pod until Ready (kubectl twice)", starts);
    bench.kubectl(&["delete", "pod", POD])
}

struct Bench<'a> {
    cluster: &'a Cluster,
}

impl Bench<'_> {
    fn kubectl(&self, args: &[&str]) -> Result<()> {
        self.cluster.kubectl(args, LIMIT).stdout().map(drop)
    }

    fn start_pod(&self, name: &str) -> Result<()> {
        self.cluster.apply(&format!("pod-{name}"), &pod(name, DEBIAN))?;
        self.kubectl(&["wait", "--for=condition=Ready", "pod", name, "--timeout=60s"])
    }

    fn websocket(&self) -> Result<Vec<Duration>> {
        let count = EXECS.to_string();
        let task = Task::new(self.cluster.bin().join("wsexec"), LIMIT);
        let printed = task.args([self.cluster.kubeconfig()]).args(["default", POD, &count, "true"]).stdout()?;
        let times: Vec<_> = printed.lines().filter_map(|line| line.parse().ok()).map(Duration::from_micros).collect();
        if times.len() == EXECS { Ok(times) } else { Err(Error::new(format!("wsexec printed {printed:?}"))) }
    }
}

fn repeat(count: usize, mut each: impl FnMut() -> Result<()>) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let started = Instant::now();
        each()?;
        times.push(started.elapsed());
    }
    Ok(times)
}

fn row(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let (p50, p95) = (percentile(&times, 50), percentile(&times, 95));
    let max = percentile(&times, 100);
    println!("{name:<48} {:>8.1} {:>8.1} {:>8.1} {:>4}", ms(p50), ms(p95), ms(max), times.len());
}

/// The smallest time that so many percent do not exceed; `times` is sorted.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    let rank = (times.len() * percent).div_ceil(100).max(1);
    times.get(rank - 1).copied().unwrap_or_default()
}

/// 64 MiB that do not compress.
fn write_noise(path: &Path) -> Result<()> {
    let mut noise = File::open("/dev/urandom").doing(|| "open /dev/urandom".to_owned())?;
    let mut file = File::create(path).doing(|| format!("create {}", path.display()))?;
    let size = u64::try_from(SIZE).expect("64 MiB fit in u64");
    std::io::copy(&mut std::io::Read::take(&mut noise, size), &mut file)
        .and_then(|_| file.flush())
        .doing(|| "write noise".to_owned())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let times: Vec<_> = (1..=20).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 50), Duration::from_millis(10));
        assert_eq!(percentile(&times, 95), Duration::from_millis(19));
        assert_eq!(percentile(&times, 100), Duration::from_millis(20));
        assert_eq!(percentile(&times[..1], 50), Duration::from_millis(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
