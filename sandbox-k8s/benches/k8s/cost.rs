//! What this process holds.

use std::fmt;
use std::fs;

/// Threads, sockets and memory of this process.
pub(crate) struct Cost {
    threads: f64,
    sockets: f64,
    kib: f64,
}

impl Cost {
    pub(crate) fn now() -> Self {
        let links = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        let sockets = links.filter(|link| link.to_string_lossy().starts_with("socket:")).count();
        Self { threads: field("Threads:"), sockets: sockets as f64, kib: field("VmRSS:") }
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            threads: self.threads - before.threads,
            sockets: self.sockets - before.sockets,
            kib: self.kib - before.kib,
        }
    }

    pub(crate) fn each(&self, n: usize) -> Self {
        let n = n as f64;
        Self { threads: self.threads / n, sockets: self.sockets / n, kib: self.kib / n }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} threads, {:.1} sockets, {:.0} KiB", self.threads, self.sockets, self.kib)
    }
}

fn field(name: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Runs `work`, and raises `most` to the kibibytes by which memory was at its highest over what it was before.
pub(crate) async fn peak_over<T>(most: &mut u64, work: impl Future<Output = T>) -> T {
    // The peak begins anew.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = field("VmHWM:");
    let done = work.await;
    *most = (*most).max((field("VmHWM:") - before).max(0.0) as u64);
    done
}
