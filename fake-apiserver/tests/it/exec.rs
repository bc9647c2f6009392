//! Commands in pods, when all goes well.

use std::time::{Duration, Instant};

use fake_apiserver::{FakeApi, NotRunning, Options, Protocol, Step};
use futures::SinkExt;
use kube::api::{AttachParams, DeleteParams, PostParams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

use crate::stream::{Asking, Ended, collect, message, run};
use crate::support::{add, message as message_of, pod, pods, refusal, with_pod, within};

const MIB: usize = 1024 * 1024;

/// Bytes without a pattern that a lost or doubled chunk would leave in place.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(count).collect()
}

async fn with_protocol(protocol: Protocol) -> FakeApi {
    let api = FakeApi::start_with(Options::new().protocols(&[protocol])).await;
    let pods = pods(&api);
    add(&api, &pods, "a").await;
    api
}

#[tokio::test]
async fn streams_and_exit_codes() {
    let (api, _pods) = with_pod().await;
    let seen = run(&api, "a", &["bash", "-c", "printf out; printf err >&2; exit 7"]).await.unwrap();
    assert_eq!((seen.stdout.as_slice(), seen.stderr.as_slice()), (b"out".as_slice(), b"err".as_slice()));
    assert_eq!(seen.code(), Some(7));
    assert_eq!(seen.json()["reason"], "NonZeroExitCode");
    assert_eq!(seen.ended, Some(Ended::Closed));
    for code in [0, 1, 126, 255] {
        let seen = run(&api, "a", &["bash", "-c", &format!("exit {code}")]).await.unwrap();
        assert_eq!(seen.code(), Some(code));
    }
    let killed = run(&api, "a", &["bash", "-c", "kill -KILL $$"]).await.unwrap();
    assert_eq!(killed.code(), Some(137));
    let ok = run(&api, "a", &["true"]).await.unwrap();
    assert_eq!(ok.json()["status"], "Success");
}

#[tokio::test]
async fn the_client_of_kube_works() {
    let (_api, pods) = with_pod().await;
    let params = AttachParams::default().stdin(true).stdout(true).stderr(false);
    let mut process = pods.exec("a", ["bash", "-c", "read -r x; echo \"got $x\"; exit 3"], &params).await.unwrap();
    let status = process.take_status().unwrap();
    let mut stdin = process.stdin().unwrap();
    stdin.write_all(b"word\n").await.unwrap();
    let mut out = String::new();
    within("stdout", process.stdout().unwrap().read_to_string(&mut out)).await.unwrap();
    assert_eq!(out, "got word\n");
    let status = within("status", status).await.unwrap();
    assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"));
}

#[tokio::test]
async fn a_mebibyte_goes_in_and_out_on_v5() {
    let api = with_protocol(Protocol::V5).await;
    let mut open = Asking::new(&["cat"]).stdin().open(&api, "a").await.unwrap();
    assert!(open.v5);
    let data = noise(MIB);
    let reading = tokio::spawn(collect(open.from));
    for chunk in data.chunks(100_000) {
        open.to.send(message(0, chunk)).await.unwrap();
    }
    open.to.send(message(255, &[0])).await.unwrap();
    let seen = reading.await.unwrap();
    assert!(seen.stdout == data, "{} bytes came back", seen.stdout.len());
    assert_eq!((seen.code(), seen.ended), (Some(0), Some(Ended::Closed)));
}

#[tokio::test]
async fn a_mebibyte_goes_in_and_out_on_v4() {
    let api = with_protocol(Protocol::V4).await;
    let argv = ["bash", "-c", "head -c 1048576; echo done >&2; exit 4"];
    let mut open = Asking::new(&argv).stdin().open(&api, "a").await.unwrap();
    assert!(!open.v5);
    let data = noise(MIB);
    let reading = tokio::spawn(collect(open.from));
    for chunk in data.chunks(7_777) {
        open.to.send(message(0, chunk)).await.unwrap();
    }
    let seen = reading.await.unwrap();
    assert!(seen.stdout == data, "{} bytes came back", seen.stdout.len());
    assert_eq!((seen.stderr.as_slice(), seen.code()), (b"done\n".as_slice(), Some(4)));
}

#[tokio::test]
async fn channel_255_means_nothing_on_v4() {
    let api = with_protocol(Protocol::V4).await;
    let argv = ["bash", "-c", "read -r -t 10 x; echo \"$x\""];
    let mut open = Asking::new(&argv).stdin().open(&api, "a").await.unwrap();
    open.send(255, &[0]).await.unwrap();
    open.send(0, b"still open\n").await.unwrap();
    assert_eq!(open.rest().await.stdout, b"still open\n");
}

#[tokio::test]
async fn output_waits_for_a_client_that_does_not_read() {
    let (api, _pods) = with_pod().await;
    let argv = ["bash", "-c", "head -c 50000000 /dev/zero; touch \"$HOME/written\""];
    let mut open = Asking::new(&argv).open(&api, "a").await.unwrap();
    open.read(1).await;
    let marker = api.pod_dir("ns", "a").join("written");
    // Far longer than the writing takes once somebody reads.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!marker.exists(), "all of it is buffered somewhere");
    assert_eq!(open.rest().await.code(), Some(0));
    assert!(marker.exists());
}

#[tokio::test]
async fn pings_are_answered_and_resizing_is_ignored() {
    let (api, _pods) = with_pod().await;
    let mut open = Asking::new(&["bash", "-c", "read -r x; echo $x"]).stdin().open(&api, "a").await.unwrap();
    open.to.send(Message::Ping(vec![1].into())).await.unwrap();
    open.send(4, br#"{"Width":80,"Height":24}"#).await.unwrap();
    open.send(0, b"x\n").await.unwrap();
    let seen = open.rest().await;
    assert_eq!((seen.pongs, seen.stdout.as_slice()), (1, b"x\n".as_slice()));
}

#[tokio::test]
async fn a_process_has_a_clean_environment_and_a_directory_of_its_own() {
    let (api, pods) = with_pod().await;
    let seen = run(&api, "a", &["env"]).await.unwrap();
    let text = String::from_utf8(seen.stdout).unwrap();
    let mut names: Vec<&str> = text.lines().map(|line| line.split('=').next().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["FAKE_APISERVER_POD", "GREETING", "HOME", "PATH"]);
    assert!(text.contains("GREETING=hello\n"));
    let dir = run(&api, "a", &["bash", "-c", "echo kept > file; pwd -P"]).await.unwrap();
    let dir = String::from_utf8(dir.stdout).unwrap().trim_end().to_owned();
    assert_eq!(dir, api.pod_dir("ns", "a").canonicalize().unwrap().to_str().unwrap());
    assert_eq!(run(&api, "a", &["cat", "file"]).await.unwrap().stdout, b"kept\n");
    let group = run(&api, "a", &["bash", "-c", "[[ $(ps -o pgid= $$) -eq $$ ]]"]).await.unwrap();
    assert_eq!(group.code(), Some(0), "a process group of its own");
    add(&api, &pods, "b").await;
    assert_ne!(api.pod_dir("ns", "a"), api.pod_dir("ns", "b"));
}

#[tokio::test]
async fn a_working_directory_that_the_test_made_is_used() {
    let (api, pods) = with_pod().await;
    let dir = tempfile::tempdir().unwrap();
    for (name, work, want) in [("here", dir.path().to_str().unwrap(), true), ("root", "/", false)] {
        let mut pod = pod(name);
        pod.spec.as_mut().unwrap().containers[0].working_dir = Some(work.to_owned());
        pods.create(&PostParams::default(), &pod).await.unwrap();
        api.until_ready("ns", name).await;
        let seen = run(&api, name, &["pwd", "-P"]).await.unwrap();
        let at = String::from_utf8(seen.stdout).unwrap();
        let same = std::path::Path::new(at.trim_end()) == std::path::Path::new(work).canonicalize().unwrap();
        assert_eq!(same, want, "{at}");
    }
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_internal_error() {
    let (api, _pods) = with_pod().await;
    let seen = run(&api, "a", &["no-such-program"]).await.unwrap();
    let status = seen.json();
    assert_eq!((&status["reason"], &status["code"]), (&"InternalError".into(), &500.into()));
    assert!(status["message"].as_str().unwrap().contains("executable file not found in $PATH"));
}

#[tokio::test]
async fn a_pod_without_a_host_is_400_and_a_container_that_does_not_run_500() {
    let api = FakeApi::start().await;
    let pods = pods(&api);
    api.hold(Step::Schedule);
    api.hold(Step::Start);
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    let refused = run(&api, "a", &["true"]).await;
    assert!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 400));
    assert!(message_of(refused).contains("does not have a host assigned"));

    api.release(Step::Schedule);
    api.until_pod("ns", "a", |pod| pod.is_some_and(|pod| pod["spec"]["nodeName"].is_string())).await;
    let refused = run(&api, "a", &["true"]).await;
    assert!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 500));
    assert_eq!(message_of(refused), "container not found (\"main\")");

    api.release(Step::Start);
    api.until_ready("ns", "a").await;
    assert_eq!(run(&api, "a", &["true"]).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn a_container_that_does_not_run_can_be_told_in_the_stream() {
    let api = FakeApi::start_with(Options::new().not_running(NotRunning::InStream)).await;
    api.hold(Step::Start);
    let pods = pods(&api);
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    api.until_pod("ns", "a", |pod| pod.is_some_and(|pod| pod["spec"]["nodeName"].is_string())).await;
    let seen = run(&api, "a", &["true"]).await.unwrap();
    assert!(seen.json()["message"].as_str().unwrap().contains("container not found (\"main\")"));
    assert_eq!(seen.code(), None);
}

#[tokio::test]
async fn what_is_asked_wrongly_is_refused() {
    let (api, _pods) = with_pod().await;
    assert_eq!(refusal(run(&api, "absent", &["true"]).await.map(drop)).0, 404);
    assert_eq!(refusal(run(&api, "a", &[]).await.map(drop)).0, 400);
    let wrong = Asking::new(&["true"]).container("other").open(&api, "a").await;
    assert!(message_of(wrong).contains("container other is not valid for pod a"));
    let right = Asking::new(&["true"]).container("main").open(&api, "a").await.unwrap().rest().await;
    assert_eq!(right.code(), Some(0));
    let plain = http::Request::get("/api/v1/namespaces/ns/pods/a/exec?command=true&stdout=1").body(Vec::new()).unwrap();
    assert_eq!(refusal(api.client().request_text(plain).await).0, 400);
}

#[tokio::test]
async fn a_server_without_a_common_protocol_refuses() {
    let api = FakeApi::start_with(Options::new().protocols(&[])).await;
    let pods = pods(&api);
    add(&api, &pods, "a").await;
    assert!(message_of(run(&api, "a", &["true"]).await.map(drop)).contains("no supported protocol"));
}

#[tokio::test]
async fn a_closed_stream_does_not_end_the_process() {
    let (api, _pods) = with_pod().await;
    let argv = ["bash", "-c", "echo go; while read -r x; do :; done; echo lost; touch after"];
    let mut open = Asking::new(&argv).stdin().open(&api, "a").await.unwrap();
    open.read(3).await;
    drop(open);
    let after = api.pod_dir("ns", "a").join("after");
    let look =
        async { while run(&api, "a", &["test", "-e", after.to_str().unwrap()]).await.unwrap().code() != Some(0) {} };
    within("the process to go on", look).await;
}

#[tokio::test]
async fn what_holds_the_output_delays_the_end_for_a_while_only() {
    let drain = Duration::from_millis(200);
    let api = FakeApi::start_with(Options::new().drain(drain)).await;
    let pods = pods(&api);
    add(&api, &pods, "a").await;
    let begun = Instant::now();
    let seen = run(&api, "a", &["bash", "-c", "sleep 600 & echo here"]).await.unwrap();
    assert_eq!((seen.stdout.as_slice(), seen.code()), (b"here\n".as_slice(), Some(0)));
    assert!(begun.elapsed() >= drain);
}

#[tokio::test]
async fn a_pod_takes_its_processes_along() {
    let (api, pods) = with_pod().await;
    // One in the group, one in a session of its own, one that changed its directory.
    let script = "sleep 600 & setsid sleep 600 & (cd / && exec setsid sleep 600) & echo $(jobs -p); wait";
    let mut open = Asking::new(&["bash", "-c", script]).open(&api, "a").await.unwrap();
    let seen = open.read(6).await;
    let pids: Vec<u32> =
        String::from_utf8(seen.stdout).unwrap().split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 3);
    let listed = api.processes("ns", "a");
    assert!(pids.iter().all(|pid| listed.contains(&i32::try_from(*pid).unwrap())), "{pids:?} {listed:?}");
    let dir = api.pod_dir("ns", "a");
    pods.delete("a", &DeleteParams::default()).await.unwrap();
    api.until_pod("ns", "a", |pod| pod.is_none()).await;
    for pid in pids {
        assert!(!crate::life::runs(pid), "{pid}");
    }
    assert!(!dir.exists());
    assert_eq!(open.rest().await.code(), Some(137));
}
