//! `cargo bench -p sandbox-local`: what a sandbox on this machine costs, beside its peers in the same run.
//!
//! Prints a table and writes a plot (the path is the last line). Absolute times depend on the machine and its load; the ratios are
//! what counts. Peers: `bwrap` of the package bubblewrap, `nsenter` of util-linux, `bash`, `cat` and `tar` through a pipe.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark talks, and fails loudly")]

mod plot;

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox::{ExecRequest, FileBatch, FileWrite, Networking, Provider, Sandbox, SandboxPath, SessionId, Spec};
use sandbox_local::{LocalConfig, LocalProvider};

const SIZE: usize = 64 << 20;
const FILES: usize = 1000;

/// One line of the table.
struct Row {
    what: &'static str,
    ours: Duration,
    peer: &'static str,
    theirs: Duration,
    /// The most that `ours / theirs` is meant to be, where there is an aim.
    aim: Option<f64>,
}

/// Sorted times of `n` runs.
fn times(n: usize, mut run: impl FnMut()) -> Vec<Duration> {
    let mut all: Vec<_> = (0..n)
        .map(|_| {
            let begun = Instant::now();
            run();
            begun.elapsed()
        })
        .collect();
    all.sort();
    all
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

fn run(program: &str, args: &[&str]) {
    assert!(Command::new(program).args(args).stdin(Stdio::null()).status().unwrap().success(), "{program} {args:?}");
}

/// Namespaces for `nsenter` to enter.
struct Place(Child);

impl Place {
    fn new() -> Self {
        let mut child = Command::new("unshare")
            .args([
                "--user",
                "--map-root-user",
                "--mount",
                "--net",
                "--ipc",
                "--uts",
                "bash",
                "-c",
                "echo ready; exec sleep 600",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        Self(child)
    }

    fn enter(&self, args: &[&str]) {
        let pid = self.0.id().to_string();
        let all = ["--target", &pid, "--user", "--preserve-credentials", "--mount", "--net", "--ipc", "--uts"];
        run("nsenter", &[&all, args].concat());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `bytes` through `program`, which prints them again or eats them.
fn through(program: &str, args: &[&str], bytes: &[u8]) {
    let mut child = Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(bytes).unwrap());
        let mut sink = vec![0; 1 << 16];
        while stdout.read(&mut sink).unwrap() > 0 {}
    });
    assert!(child.wait().unwrap().success());
}

struct Bench {
    runtime: tokio::runtime::Runtime,
    provider: LocalProvider,
    /// Where the sandboxes' files are.
    place: tempfile::TempDir,
}

impl Bench {
    fn provision(&self) -> Arc<dyn Sandbox> {
        let spec = Spec::new(SessionId::generate(), "host").with_networking(Networking::None);
        self.runtime.block_on(self.provider.provision(&spec)).unwrap()
    }

    fn exec(&self, sandbox: &Arc<dyn Sandbox>, text: &'static str) {
        assert!(self.runtime.block_on(sandbox.exec(ExecRequest::shell(text))).unwrap().success());
    }

    fn reap(&self, sandbox: &Arc<dyn Sandbox>) {
        self.runtime.block_on(self.provider.reap(sandbox.id())).unwrap();
    }
}

fn noise(size: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_u32;
    let mut bytes = Vec::with_capacity(size + 4);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// The resident memory of a process, in kibibytes, so far at its highest.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}

fn rows(bench: &Bench) -> Vec<Row> {
    let place = Place::new();
    let mut rows = Vec::new();
    let bwrap = ["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "bash", "-c", "true"];
    let theirs = times(20, || run("bwrap", &bwrap));
    let mut made = Vec::new();
    let mut alone = Vec::new();
    let ours = times(20, || {
        let begun = Instant::now();
        let sandbox = bench.provision();
        alone.push(begun.elapsed());
        bench.exec(&sandbox, "true");
        made.push(sandbox);
    });
    made.iter().for_each(|s| bench.reap(s));
    alone.sort();
    let median = |all: &[Duration]| percentile(all, 50);
    println!("of a provision and its first answer, the provision alone: {:.1?}", median(&alone));
    rows.push(Row {
        what: "provision to first answer",
        ours: median(&ours),
        peer: "bwrap … bash -c true",
        theirs: median(&theirs),
        aim: Some(4.0),
    });

    let sandbox = bench.provision();
    bench.exec(&sandbox, "true");
    let ours = times(500, || bench.exec(&sandbox, "true"));
    let plain = times(500, || run("bash", &["-c", "true"]));
    let entered = times(500, || place.enter(&["bash", "-c", "true"]));
    for (what, percent, aim) in
        [("exec true, p50", 50, Some(1.0)), ("exec true, p95", 95, None), ("exec true, p99", 99, None)]
    {
        let at = |all: &[Duration]| percentile(all, percent);
        rows.push(Row { what, ours: at(&ours), peer: "nsenter … bash -c true", theirs: at(&entered), aim });
        rows.push(Row { what, ours: at(&ours), peer: "bash -c true", theirs: at(&plain), aim: None });
    }
    let at_once = |n: usize| {
        times(5, || {
            let all = (0..n).map(|_| sandbox.exec(ExecRequest::shell("true")));
            let results = bench.runtime.block_on(futures::future::join_all(all));
            assert!(results.iter().all(|r| r.as_ref().unwrap().success()));
        })
    };
    let theirs = times(5, || {
        let mut all: Vec<_> = (0..64).map(|_| Command::new("bash").args(["-c", "true"]).spawn().unwrap()).collect();
        all.iter_mut().for_each(|c| assert!(c.wait().unwrap().success()));
    });
    rows.push(Row {
        what: "64 execs of true at once",
        ours: median(&at_once(64)),
        peer: "64 bash -c true at once",
        theirs: median(&theirs),
        aim: None,
    });

    let bytes = bytes::Bytes::from(noise(SIZE));
    let path = SandboxPath::new("/workspace/big").unwrap();
    let before = peak();
    let write =
        times(5, || bench.runtime.block_on(sandbox.write(FileWrite::bytes(path.clone(), bytes.clone()))).unwrap());
    let read = times(5, || {
        let stream = bench.runtime.block_on(sandbox.read(&path, SIZE as u64)).unwrap();
        assert_eq!(bench.runtime.block_on(stream.finish()).unwrap(), SIZE as u64);
    });
    println!("memory over idle while 64 MiB went in and out: {} KiB at most", peak() - before);
    let cat = times(5, || through("cat", &[], &bytes));
    rows.push(Row {
        what: "write 64 MiB",
        ours: median(&write),
        peer: "cat through a pipe",
        theirs: median(&cat),
        aim: Some(2.0),
    });
    // What any write has to do besides: into a file of the same file system, beside the target, and onto it.
    let place = bench.place.path().to_str().unwrap();
    let script = "cat > \"$0/new\" && mv -fT \"$0/new\" \"$0/file\"";
    let file = times(5, || through("bash", &["-c", script, place], &bytes));
    rows.push(Row {
        what: "write 64 MiB",
        ours: median(&write),
        peer: "cat through a pipe into a file, and mv",
        theirs: median(&file),
        aim: None,
    });
    rows.push(Row {
        what: "read 64 MiB",
        ours: median(&read),
        peer: "cat through a pipe",
        theirs: median(&cat),
        aim: Some(2.0),
    });

    let small = bytes::Bytes::from(noise(4096));
    let many = times(5, || {
        let files = (0..FILES).map(|i| {
            FileWrite::bytes(SandboxPath::new(format!("/workspace/many/{}/{i}", i % 10)).unwrap(), small.clone())
        });
        bench.runtime.block_on(sandbox.write_many(FileBatch::new(files.collect::<Vec<_>>()))).unwrap();
    });
    let scratch = tempfile::tempdir().unwrap();
    let mut archive = tar::Builder::new(Vec::new());
    for i in 0..FILES {
        let mut header = tar::Header::new_gnu();
        header.set_size(4096);
        header.set_mode(0o644);
        archive.append_data(&mut header, format!("many/{}/{i}", i % 10), small.as_ref()).unwrap();
    }
    let archive = archive.into_inner().unwrap();
    let tar = times(5, || through("tar", &["-x", "-C", scratch.path().to_str().unwrap()], &archive));
    rows.push(Row {
        what: "1,000 files of 4 KiB in",
        ours: median(&many),
        peer: "tar through a pipe",
        theirs: median(&tar),
        aim: Some(2.0),
    });
    bench.reap(&sandbox);
    rows
}

/// Processes that were not there before, and the memory that is theirs alone, of one idle sandbox.
fn idle_cost(bench: &Bench) {
    let all = || -> std::collections::BTreeSet<u32> {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
    };
    let before = all();
    let sandbox = bench.provision();
    let bare: Vec<_> = all().difference(&before).copied().collect();
    bench.exec(&sandbox, "true");
    let used: Vec<_> = all().difference(&before).copied().collect();
    let private = |pids: &[u32]| -> u64 {
        let rollup = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let lines = pids.iter().map(rollup).collect::<String>();
        let private = lines.lines().filter(|l| l.starts_with("Private"));
        private.filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
    };
    println!("an idle sandbox: {} processes, {} KiB of their own", bare.len(), private(&bare));
    println!("with its streams open: {} processes, {} KiB of their own", used.len(), private(&used));
    bench.reap(&sandbox);
}

fn main() {
    let state = tempfile::tempdir().unwrap();
    let mut config = LocalConfig::default();
    config.state_dir = state.path().join("state");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let provider = {
        let _context = runtime.enter();
        LocalProvider::new(config).unwrap()
    };
    let bench = Bench { runtime, provider, place: state };
    idle_cost(&bench);
    let rows = rows(&bench);
    println!("\n| work | ours | peer | peer's | ours / peer's | aim |\n|---|---|---|---|---|---|");
    for r in &rows {
        let ratio = r.ours.as_secs_f64() / r.theirs.as_secs_f64();
        let Row { what, ours, peer, theirs, .. } = r;
        let aim = match r.aim {
            Some(aim) if ratio <= aim => format!("at most {aim}"),
            Some(aim) => format!("at most {aim} (missed)"),
            None => "–".to_owned(),
        };
        println!("| {what} | {ours:.1?} | `{peer}` | {theirs:.1?} | {ratio:.2} | {aim} |");
    }
    let bars = rows.iter().map(|r| plot::Bar {
        label: format!("{} / {}", r.what, r.peer),
        ratio: r.ours.as_secs_f64() / r.theirs.as_secs_f64(),
        aim: r.aim,
    });
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("local-bench.svg");
    std::fs::write(&file, plot::svg("sandbox-local: time as a multiple of its peer's", &bars.collect::<Vec<_>>()))
        .unwrap();
    println!("\n{}", file.display());
}
