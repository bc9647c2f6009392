//! The server's own end.

use std::net::SocketAddr;
use std::time::Duration;

use fake_apiserver::{FakeApi, On, Options, Rule, Verb};
use kube::api::{ListParams, WatchParams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stream::Asking;
use crate::support::{add, pods, with_pod, within};

/// Whether a process is there and no zombie.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Whether a server of version 9.77 answers. A port that is free again may be another test's by now.
async fn is_ours(address: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        std::io::Result::Ok(text.contains("v9.77.0"))
    };
    matches!(tokio::time::timeout(Duration::from_secs(2), ask).await, Ok(Ok(true)))
}

#[tokio::test]
async fn dropping_the_server_ends_processes_directories_and_connections() {
    let api = FakeApi::start_with(Options::new().version(9, 77)).await;
    let pods = pods(&api);
    add(&api, &pods, "a").await;
    let mut open =
        Asking::new(&["bash", "-c", "setsid sleep 600 & echo $!; exec sleep 600"]).open(&api, "a").await.unwrap();
    let seen = open.read(2).await;
    let pid: u32 = String::from_utf8(seen.stdout).unwrap().trim().parse().unwrap();
    assert!(runs(pid));
    let dir = api.pod_dir("ns", "a");
    let watch = pods.watch(&WatchParams::default(), "0").await.unwrap();
    let mut idle = TcpStream::connect(api.address()).await.unwrap();
    let address = api.address();
    drop(api);
    assert!(!runs(pid));
    assert!(!dir.exists());
    open.rest().await;
    drop(watch);
    let closed = within("the idle connection to end", idle.read(&mut [0])).await;
    assert!(matches!(closed, Ok(0) | Err(_)));
    within("the server to be gone", async { while is_ours(address).await {} }).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_every_task() {
    let api = FakeApi::start_with(Options::new().version(9, 77)).await;
    assert!(is_ours(api.address()).await);
    api.rule(Rule::when(On::pods(Verb::List)).hang());
    let pods = pods(&api);
    let hung = tokio::spawn(async move { pods.list(&ListParams::default()).await.map(drop) });
    api.until_requests(&On::pods(Verb::List), 1).await;
    let address = api.address();
    within("the shutdown", api.shutdown()).await;
    assert!(!is_ours(address).await);
    assert!(within("the client to notice", hung).await.unwrap().is_err());
}

#[test]
fn a_server_may_be_dropped_outside_of_its_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (api, open) = runtime.block_on(async {
        let (api, _pods) = with_pod().await;
        let open = Asking::new(&["sleep", "600"]).open(&api, "a").await.unwrap();
        (api, open)
    });
    let dir = api.pod_dir("ns", "a");
    drop(runtime);
    drop(open);
    drop(api);
    assert!(!dir.exists());
}
