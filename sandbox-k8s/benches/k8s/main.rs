//! `CONFORMANCE_K8S=<context> cargo bench -p sandbox-k8s`: what a sandbox on that cluster costs, beside `kubectl` in the same run.
//!
//! It makes Pods there and removes them, and prints a table and the path of a plot. With `BENCH_OWNED=<number>` it also lists as many
//! Pods, which no node runs. Absolute times depend on the cluster and its load; the ratios are what counts.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark talks, and fails loudly")]

mod cost;
mod kubectl;
mod listed;
#[path = "../../../sandbox-local/benches/plot/mod.rs"]
mod plot;
mod table;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use futures::{StreamExt, stream};
use sandbox::{
    ExecRequest, FileBatch, FileWrite, Provider, Sandbox, SandboxExt, SandboxPath, SessionId, SpawnRequest, Spec,
};
use sandbox_k8s::{K8sConfig, K8sProvider};
use sandbox_transfer::{DownloadOptions, ProviderTransferExt};
use tokio::io::AsyncReadExt;

use crate::cost::{Cost, peak_over};
use crate::kubectl::Kubectl;
use crate::table::{Table, Times, times};

const IMAGE: &str = "debian:stable-slim";
const DEPLOYMENT: &str = "bench";
const SIZE: usize = 64 << 20;
const FILES: usize = 1000;
const AT_ONCE: usize = 64;

struct Bench {
    config: K8sConfig,
    provider: K8sProvider,
    kubectl: Kubectl,
    table: Table,
}

type Made = (SessionId, Arc<dyn Sandbox>);

fn path(text: impl Into<String>) -> SandboxPath {
    SandboxPath::new(text.into()).unwrap()
}

async fn run(sandbox: &Arc<dyn Sandbox>, args: &[&str]) {
    let request = ExecRequest::args(args.iter().copied());
    assert_eq!(sandbox.exec(request).await.unwrap().exit_code, 0, "{args:?}");
}

/// How long a round of `script` takes inside, of 50: what no way to ask for the same is faster than.
async fn inside(sandbox: &Arc<dyn Sandbox>, script: &str) -> Duration {
    let body = format!(
        "cd /workspace; begun=${{EPOCHREALTIME/[.,]/}}; for ((n = 0; n < 50; n++)); do {script}; done; \
         echo $(((${{EPOCHREALTIME/[.,]/}} - begun) / 50))"
    );
    let result = sandbox.exec(ExecRequest::shell(body)).await.unwrap();
    Duration::from_micros(result.stdout.to_string_lossy().trim().parse().unwrap())
}

impl Bench {
    /// A sandbox with one open stream.
    async fn made(&self) -> Made {
        let spec = Spec::new(SessionId::generate(), IMAGE);
        let sandbox = self.provider.provision(&spec).await.unwrap();
        run(&sandbox, &["true"]).await;
        (spec.session, sandbox)
    }

    async fn reap(&self, made: Made) {
        self.provider.reap(&made.0).await.unwrap();
    }

    /// Gives the peer's time of one command, by which others are measured.
    async fn provisions(&mut self) -> Duration {
        let mut all = Vec::new();
        let ours = times(7, |_| async { self.made().await }, |made| all.push(made)).await;
        let pod = all[0].0.object_name("sbx");
        let exec =
            times(40, |_| self.kubectl.run_owned(vec!["exec".into(), pod.clone(), "--".into(), "true".into()]), drop)
                .await;
        let plain = times(7, |n| self.kubectl.ready_pod(n, IMAGE), drop).await;
        for n in 0..7 {
            self.kubectl.remove_pod(n).await;
        }
        let theirs = plain.p(50) + exec.p(50);
        self.table.row("provision to first answer", ours.p(50), "create to Ready, and kubectl exec", theirs, Some(1.0));
        let reaped = all.split_off(1);
        let reaps = times(reaped.len(), |n| self.provider.reap(&reaped[n].0), |done| done.unwrap()).await;
        println!("reap: {:.1?}; create to Ready: {:.1?}; kubectl exec: {:.1?}", reaps.p(50), plain.p(50), exec.p(50));
        self.reap(all.remove(0)).await;
        exec.p(50)
    }

    async fn execs(&mut self, kubectl: Duration) {
        let made = self.made().await;
        let execs = times(500, |_| run(&made.1, &["true"]), drop).await;
        let peer = "kubectl exec, p50";
        self.table.row("exec true, p50 of 500", execs.p(50), peer, kubectl, Some(1.0 / 35.0));
        self.table.row("exec true, p99 of 500", execs.p(99), peer, kubectl, Some(1.0 / 12.0));
        let shell = times(200, |_| run(&made.1, &["bash", "-c", "true"]), drop).await;
        self.table.row("exec bash -c true, p50", shell.p(50), peer, kubectl, None);

        let (small, content) = (path("/workspace/small"), Bytes::from(vec![7; 4096]));
        let write = |to: SandboxPath| {
            let (sandbox, content) = (&made.1, content.clone());
            async move { sandbox.write(FileWrite::bytes(to, content)).await.unwrap() }
        };
        let writes = times(200, |_| write(small.clone()), drop).await;
        let deep = times(100, |n| write(path(format!("/workspace/{n}/new/small"))), drop).await;
        let reads = times(200, |_| made.1.read_bytes(&small, 4096), |read| assert_eq!(read.unwrap().len(), 4096)).await;
        self.table.row("read 4 KiB", reads.p(50), peer, kubectl, Some(1.0 / 60.0));
        let rename = inside(&made.1, "printf x >from; chmod 644 from; mv -fT from to").await;
        self.table.row("write 4 KiB", writes.p(50), peer, kubectl, Some(1.0 / 30.0));
        self.table.floor(reads.p(50) + rename, "a round trip, and `chmod` and `mv` inside");
        let parents = inside(&made.1, "mkdir -p $n/new; printf x >from; chmod 644 from; mv -fT from $n/new/to").await;
        self.table.row("write 4 KiB with new parents", deep.p(50), peer, kubectl, Some(1.0 / 25.0));
        self.table.floor(reads.p(50) + parents, "a round trip, and `mkdir`, `chmod` and `mv` inside");
        self.reap(made).await;
    }

    /// Each from one open stream.
    async fn at_once(&mut self, kubectl: Duration) {
        for (what, args, rest, aim) in [
            ("64 x true at once", &["true"][..], Duration::ZERO, 1.5),
            ("64 x sleep 1 at once, less the second", &["sleep", "1"], Duration::from_secs(1), 15.0),
        ] {
            let mut all = Vec::new();
            for _ in 0..3 {
                let made = self.made().await;
                let begun = std::time::Instant::now();
                join_all((0..AT_ONCE).map(|_| run(&made.1, args))).await;
                all.push(begun.elapsed().saturating_sub(rest));
                self.reap(made).await;
            }
            self.table.row(what, Times::new(all).p(50), "one kubectl exec", kubectl, Some(aim));
            if rest.is_zero() {
                let made = self.made().await;
                let all = "for ((m = 0; m < 64; m++)); do bash -c true & done; wait";
                self.table.floor(inside(&made.1, all).await, "64 times `bash -c true` inside, at once");
                self.reap(made).await;
            } else {
                self.table.floor(self.opens().await, "64 streams opened, 8 at once, without a command");
            }
        }
    }

    /// How long it takes until as many bare streams are open, by this process's own client and nothing of ours.
    async fn opens(&self) -> Duration {
        let made = self.made().await;
        let options = kube::config::KubeConfigOptions { context: self.config.context.clone(), ..Default::default() };
        let client = kube::Client::try_from(kube::Config::from_kubeconfig(&options).await.unwrap()).unwrap();
        let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::default_namespaced(client);
        let (pods, name) = (&pods, made.0.object_name("sbx"));
        let open = |_| {
            let params = kube::api::AttachParams::default().container("sandbox").stdin(true);
            let name = &name;
            async move {
                let mut stream = pods.exec(name, ["bash", "-c", "echo; exec cat"], &params).await.unwrap();
                stream.stdout().unwrap().read_u8().await.unwrap();
                stream
            }
        };
        let begun = std::time::Instant::now();
        let open: Vec<_> = stream::iter((0..AT_ONCE).map(open)).buffer_unordered(8).collect().await;
        let took = begun.elapsed();
        drop(open);
        self.reap(made).await;
        took
    }

    async fn large(&mut self) {
        let made = self.made().await;
        let pod = made.0.object_name("sbx");
        let scratch = tempfile::tempdir().unwrap();
        for (kind, content, up_aim) in [("noise", noise(SIZE), 1.0), ("source text", text(SIZE), 1.0 / 2.5)] {
            let local = scratch.path().join("big");
            std::fs::write(&local, &content).unwrap();
            let (local, there) = (local.display().to_string(), format!("{pod}:/workspace/theirs"));
            let up = times(5, |_| self.kubectl.run_owned(vec!["cp".into(), local.clone(), there.clone()]), drop).await;
            let down =
                times(5, |_| self.kubectl.run_owned(vec!["cp".into(), there.clone(), local.clone()]), drop).await;
            let big = path("/workspace/ours");
            let mut over = 0;
            let write = |_| async { made.1.write(FileWrite::bytes(big.clone(), content.clone())).await.unwrap() };
            let writes = peak_over(&mut over, times(5, write, drop)).await;
            let read = |_| async { made.1.read(&big, SIZE as u64).await.unwrap().finish().await.unwrap() };
            let reads = peak_over(&mut over, times(5, read, |size| assert_eq!(size, SIZE as u64))).await;
            println!("memory over idle while 64 MiB of {kind} went in and out: {over} KiB at most");
            self.table.row(&format!("write 64 MiB of {kind}"), writes.p(50), "kubectl cp", up.p(50), Some(up_aim));
            if kind != "noise" {
                self.table.floor(gzipped(&local).await, "`gzip -1 | gzip -dc` alone, which compressing would cost");
            }
            let aim = (kind == "noise").then_some(1.0 / 1.1);
            self.table.row(&format!("read 64 MiB of {kind}"), reads.p(50), "kubectl cp", down.p(50), aim);
        }
        self.reap(made).await;
    }

    async fn many(&mut self) {
        let made = self.made().await;
        let pod = made.0.object_name("sbx");
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("many");
        std::fs::create_dir(&folder).unwrap();
        let content = noise(4096);
        for n in 0..FILES {
            std::fs::write(folder.join(n.to_string()), &content).unwrap();
        }
        let (from, back) = (folder.display().to_string(), scratch.path().join("back").display().to_string());
        // Into a folder that is there it would nest: a fresh one each time.
        let at = |n: usize| format!("{pod}:/workspace/theirs{n}");
        let up = times(5, |n| self.kubectl.run_owned(vec!["cp".into(), from.clone(), at(n)]), drop).await;
        let down = times(5, |n| self.kubectl.run_owned(vec!["cp".into(), at(n), format!("{back}{n}")]), drop).await;
        let write = |n: usize| {
            let (sandbox, content) = (&made.1, content.clone());
            let files =
                (0..FILES).map(move |f| FileWrite::bytes(path(format!("/workspace/ours{n}/{f}")), content.clone()));
            async move { sandbox.write_many(FileBatch::new(files.collect::<Vec<_>>())).await.unwrap() }
        };
        let writes = times(5, write, drop).await;
        let export = |n: usize| {
            let (root, session) = (path(format!("/workspace/ours{n}")), &made.0);
            let (provider, into) = (&self.provider, scratch.path().join(format!("ours{n}")));
            async move { provider.download(session, &root, into, DownloadOptions::default()).await.unwrap() }
        };
        let exports = times(5, export, |report| assert!(report.left_out.is_empty())).await;
        self.table.row("1,000 files of 4 KiB in", writes.p(50), "kubectl cp", up.p(50), Some(2.0 / 3.0));
        self.table.row("1,000 files of 4 KiB out", exports.p(50), "kubectl cp", down.p(50), Some(2.0 / 3.0));
        self.reap(made).await;
    }

    /// What this process holds for sandboxes that are idle, and for commands that run.
    async fn costs(&mut self) {
        const IDLE: usize = 8;
        const RUNNING: usize = 16;
        let before = Cost::now();
        let all = join_all((0..IDLE).map(|_| self.made())).await;
        println!("a session with one open stream holds {}", Cost::now().since(&before).each(IDLE));
        let before = Cost::now();
        let mut commands = Vec::new();
        for _ in 0..RUNNING {
            commands.push(all[0].1.spawn(SpawnRequest::args(["sleep", "600"])).await.unwrap());
        }
        println!("a running command holds {}", Cost::now().since(&before).each(RUNNING));
        drop(commands);
        for made in all {
            self.reap(made).await;
        }
    }
}

/// How long it takes to compress a file as fast as `gzip` can, and to undo it at the same time, with nothing in between.
async fn gzipped(file: &str) -> Duration {
    let pipe = |_| async {
        let mut shell = tokio::process::Command::new("bash");
        let status = shell.args(["-c", "gzip -1 <\"$1\" | gzip -dc >/dev/null", "bash", file]).status().await;
        assert!(status.unwrap().success());
    };
    times(3, pipe, drop).await.p(50)
}

/// Bytes that do not compress.
fn noise(size: usize) -> Bytes {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes.into()
}

/// Bytes that do: this crate's own source text, over and over.
fn text(size: usize) -> Bytes {
    let sources = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap().flatten();
    let files = sources.filter_map(|entry| std::fs::read(entry.path()).ok());
    let all = files.collect::<Vec<_>>().concat();
    all.iter().copied().cycle().take(size).collect::<Vec<_>>().into()
}

#[tokio::main]
async fn main() {
    let Some(context) = std::env::var("CONFORMANCE_K8S").ok().filter(|context| !context.is_empty()) else {
        println!("not run: set CONFORMANCE_K8S to a context of your kubeconfig; it makes Pods there");
        return;
    };
    let config = K8sConfig::default().with_context(&context).with_deployment(DEPLOYMENT);
    let provider = config.clone().connect().await.unwrap();
    let mut bench = Bench { config, provider, kubectl: Kubectl::new(context), table: Table::default() };
    bench.costs().await;
    let kubectl = bench.provisions().await;
    bench.execs(kubectl).await;
    bench.at_once(kubectl).await;
    bench.large().await;
    bench.many().await;
    if let Some(number) = std::env::var("BENCH_OWNED").ok().and_then(|number| number.parse().ok()) {
        listed::run(&bench.config, &bench.provider, number, &mut bench.table).await;
    }
    bench.table.print("sandbox-k8s: time as a multiple of its peer's");
}
