//! `CONFORMANCE_K8S=<context> cargo bench -p sandbox-k8s`: what a sandbox on that cluster costs, beside `kubectl` in the same run.
//!
//! It makes Pods there and removes them. Absolute times depend on the cluster and its load; the ratios are what counts.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark talks, and fails loudly")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sandbox::{ExecRequest, FileBatch, FileWrite, Provider, SandboxExt, SandboxPath, SessionId, Spec};
use sandbox_k8s::K8sConfig;

const SIZE: usize = 64 << 20;
const FILES: usize = 1000;

struct Times(Vec<Duration>);

impl Times {
    fn new(mut all: Vec<Duration>) -> Self {
        all.sort();
        Self(all)
    }

    fn percentile(&self, percent: usize) -> Duration {
        self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)]
    }
}

async fn times<Fut: Future<Output = ()>>(n: usize, mut run: impl FnMut(usize) -> Fut) -> Times {
    let mut all = Vec::new();
    for at in 0..n {
        let begun = Instant::now();
        run(at).await;
        all.push(begun.elapsed());
    }
    Times::new(all)
}

fn row(what: &str, ours: &Times, peer: Option<(&str, &Times)>) {
    let [p50, p99] = [50, 99].map(|p| ours.percentile(p));
    match peer {
        Some((name, theirs)) => {
            let ratio = p50.as_secs_f64() / theirs.percentile(50).as_secs_f64();
            println!("{what:<34} {p50:>9.1?} {p99:>9.1?}   {name}: {:.1?} (x{ratio:.3})", theirs.percentile(50));
        }
        None => println!("{what:<34} {p50:>9.1?} {p99:>9.1?}"),
    }
}

fn kubectl(context: &str, args: &[&str]) {
    let program = std::env::var_os("TESTBED_KUBECTL").unwrap_or_else(|| "kubectl".into());
    let mut command = Command::new(program);
    command.args(["--context", context]).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(command.status().unwrap().success(), "kubectl {args:?}");
}

#[tokio::main]
async fn main() {
    let Some(context) = std::env::var("CONFORMANCE_K8S").ok().filter(|context| !context.is_empty()) else {
        println!("not run: set CONFORMANCE_K8S to a context of your kubeconfig; it makes Pods there");
        return;
    };
    let provider = K8sConfig::default().with_context(&context).with_deployment("bench").connect().await.unwrap();
    let spec = || Spec::new(SessionId::generate(), "debian:stable-slim");
    println!("{:<34} {:>9} {:>9}", "", "p50", "p99");

    let mut made = Vec::new();
    let mut provisions = Vec::new();
    for _ in 0..5 {
        let (spec, begun) = (spec(), Instant::now());
        let sandbox = provider.provision(&spec).await.unwrap();
        sandbox.exec(ExecRequest::args(["true"])).await.unwrap();
        provisions.push(begun.elapsed());
        made.push((spec.session, sandbox));
    }
    row("provision and a first command", &Times::new(provisions), None);
    let (session, sandbox) = made.pop().unwrap();
    let reaps = times(made.len(), |at| {
        let (provider, session) = (&provider, made[at].0.clone());
        async move { provider.reap(&session).await.unwrap() }
    });
    row("reap", &reaps.await, None);

    let pod = session.object_name("sbx");
    let kubectl_exec = times(10, |_| async { kubectl(&context, &["exec", &pod, "--", "true"]) }).await;
    let peer = Some(("kubectl exec true", &kubectl_exec));
    let exec = |text: &'static str| {
        let sandbox = &sandbox;
        async move { assert_eq!(sandbox.exec(ExecRequest::shell(text)).await.unwrap().exit_code, 0) }
    };
    row("exec bash -c true", &times(200, |_| exec("true")).await, peer);
    let args = times(200, |_| async { drop(sandbox.exec(ExecRequest::args(["true"])).await.unwrap()) }).await;
    row("exec true", &args, peer);
    let many = times(3, |_| async {
        futures::future::join_all((0..64).map(|_| sandbox.exec(ExecRequest::args(["true"])))).await;
    });
    row("64 x exec true at once", &many.await, peer);
    let sleeps = times(3, |_| async {
        futures::future::join_all((0..64).map(|_| sandbox.exec(ExecRequest::args(["sleep", "1"])))).await;
    });
    row("64 x sleep 1 at once", &sleeps.await, None);

    let small = SandboxPath::new("/workspace/small").unwrap();
    let write = times(100, |_| async { sandbox.write_bytes(&small, vec![7; 4096]).await.unwrap() }).await;
    row("write 4 KiB", &write, peer);
    let read = times(100, |_| async { drop(sandbox.read_bytes(&small, 4096).await.unwrap()) }).await;
    row("read 4 KiB", &read, peer);

    let directory = tempfile::tempdir().unwrap();
    let local = directory.path().join("big");
    let content: Bytes = (0..SIZE).map(|n| ((n * 2_654_435_761) >> 13) as u8).collect::<Vec<_>>().into();
    std::fs::write(&local, &content).unwrap();
    let (local, remote) = (local.to_string_lossy().into_owned(), format!("{pod}:/workspace/big2"));
    let up = times(3, |_| async { kubectl(&context, &["cp", &local, &remote]) }).await;
    let down = times(3, |_| async { kubectl(&context, &["cp", &remote, &format!("{local}.back")]) }).await;
    let big = SandboxPath::new("/workspace/big").unwrap();
    let write = times(3, |_| async { sandbox.write_bytes(&big, content.clone()).await.unwrap() }).await;
    row("write 64 MiB", &write, Some(("kubectl cp", &up)));
    let read = times(3, |_| async {
        let mut stream = sandbox.read(&big, SIZE as u64).await.unwrap();
        let mut total = 0;
        while let Some(piece) = stream.next().await {
            total += piece.unwrap().len();
        }
        assert_eq!(total, SIZE);
    });
    row("read 64 MiB", &read.await, Some(("kubectl cp", &down)));

    let folder = directory.path().join("many");
    std::fs::create_dir(&folder).unwrap();
    for at in 0..FILES {
        std::fs::write(folder.join(format!("f{at}")), [9; 4096]).unwrap();
    }
    let remote = format!("{pod}:/workspace/many2");
    let theirs = times(3, |_| async { kubectl(&context, &["cp", &folder.to_string_lossy(), &remote]) }).await;
    let ours = times(3, |_| async {
        let path = |at: usize| SandboxPath::new(format!("/workspace/many/f{at}")).unwrap();
        let files = (0..FILES).map(|at| FileWrite::bytes(path(at), vec![9; 4096]));
        sandbox.write_many(FileBatch::new(files.collect::<Vec<_>>())).await.unwrap();
    });
    row("1,000 files of 4 KiB in", &ours.await, Some(("kubectl cp", &theirs)));
    provider.reap(&session).await.unwrap();
}
