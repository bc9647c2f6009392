//! Requests that go wrong.

use std::time::{Duration, Instant};

use fake_apiserver::{Cut, FakeApi, Gate, On, Rule, Verb};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stream::run;
use crate::support::{pod, pods, refusal, uid, with_pod, within};

fn create() -> On {
    On::pods(Verb::Create)
}

async fn started(rule: Rule) -> (FakeApi, Api<Pod>) {
    let api = FakeApi::start().await;
    api.rule(rule);
    let pods = pods(&api);
    (api, pods)
}

async fn make(pods: &Api<Pod>, name: &str) -> Result<Pod, kube::Error> {
    within("an answer to a create", pods.create(&PostParams::default(), &pod(name))).await
}

#[tokio::test]
async fn an_answer_without_and_with_the_deed() {
    let (api, pods) = started(Rule::when(create()).nth(1).answer(503).message("not now")).await;
    assert_eq!(crate::support::message(make(&pods, "a").await), "not now");
    assert!(api.pod("ns", "a").is_none());
    make(&pods, "a").await.unwrap();

    let (api, pods) = started(Rule::when(create()).nth(1).applied().answer(504)).await;
    assert_eq!(refusal(make(&pods, "a").await), (504, "Timeout".to_owned()));
    assert!(api.pod("ns", "a").is_some(), "created all the same");
    assert_eq!(refusal(make(&pods, "a").await).0, 409);
}

#[tokio::test]
async fn a_client_that_retries_meets_its_own_pod() {
    let (api, _) = started(Rule::when(create()).nth(1).applied().answer(504)).await;
    let retrying: Api<Pod> = Api::namespaced(api.retrying_client(), "ns");
    assert_eq!(refusal(make(&retrying, "a").await), (409, "AlreadyExists".to_owned()));
    assert_eq!(api.count(&create()), 2);
}

#[tokio::test]
async fn a_429_names_its_time() {
    let rule = Rule::when(On::pods(Verb::Get)).nth(1).answer(429).retry_after(1);
    let (api, pods) = started(rule.clone()).await;
    make(&pods, "a").await.unwrap();
    assert_eq!(refusal(pods.get("a").await), (429, "TooManyRequests".to_owned()));
    api.clear_rules();
    api.rule(rule);
    let retrying: Api<Pod> = Api::namespaced(api.retrying_client(), "ns");
    let begun = Instant::now();
    retrying.get("a").await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(900), "the client kept to it: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_connection_dropped_before_and_after_the_deed() {
    for cut in [Cut::Fin, Cut::Rst, Cut::Close] {
        let (api, pods) = started(Rule::when(create()).nth(1).cut(cut)).await;
        let lost = make(&pods, "a").await;
        assert!(!matches!(lost, Ok(_) | Err(kube::Error::Api(_))), "{cut:?}: {lost:?}");
        assert!(api.pod("ns", "a").is_none(), "{cut:?}");
        make(&pods, "a").await.unwrap();

        let (api, pods) = started(Rule::when(create()).nth(1).applied().cut(cut)).await;
        let lost = make(&pods, "a").await;
        assert!(!matches!(lost, Ok(_) | Err(kube::Error::Api(_))), "{cut:?}: {lost:?}");
        assert!(api.pod("ns", "a").is_some(), "{cut:?}");
    }
}

/// A request without a client library between, to see how the connection itself ends.
async fn raw(api: &FakeApi, request: &str) -> (String, std::io::Result<usize>) {
    let mut stream = TcpStream::connect(api.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    let end = within("the end of the connection", stream.read_to_end(&mut text)).await;
    (String::from_utf8_lossy(&text).into_owned(), end)
}

const LIST: &str = "GET /api/v1/namespaces/ns/pods HTTP/1.1\r\nhost: x\r\n\r\n";

#[tokio::test]
async fn an_end_and_a_reset_are_told_apart() {
    for (cut, reset) in [(Cut::Fin, false), (Cut::Rst, true)] {
        let (api, _) = started(Rule::when(On::pods(Verb::List)).cut(cut)).await;
        let (text, end) = raw(&api, LIST).await;
        assert_eq!(text, "");
        let kind = end.err().map(|error| error.kind());
        assert_eq!(kind == Some(std::io::ErrorKind::ConnectionReset), reset, "{cut:?}: {kind:?}");
    }
}

#[tokio::test]
async fn a_body_is_cut_after_so_many_bytes() {
    for (cut, reset, proper) in [(Cut::Fin, false, false), (Cut::Rst, true, false), (Cut::Close, false, true)] {
        let (api, pods) = started(Rule::when(On::pods(Verb::List)).cut_answer(20, cut)).await;
        let request = LIST.replace("host", "connection: close\r\nhost");
        let (text, end) = raw(&api, &request).await;
        let kind = end.err().map(|error| error.kind());
        assert_eq!(kind == Some(std::io::ErrorKind::ConnectionReset), reset, "{cut:?}: {kind:?}");
        if !reset {
            let body = text.split_once("\r\n\r\n").unwrap().1;
            assert!(body.starts_with("14\r\n{"), "{cut:?}: {text}");
            assert_eq!(body.ends_with("\r\n0\r\n\r\n"), proper, "{cut:?}: {text}");
        }
        let list = within("an answer", pods.list(&ListParams::default())).await;
        assert!(!matches!(list, Ok(_) | Err(kube::Error::Api(_))), "{cut:?}: {list:?}");
    }
}

#[tokio::test]
async fn a_body_can_stop() {
    let (api, pods) = started(Rule::when(On::pods(Verb::List)).nth(1).stop_answer(5)).await;
    let mut stream = TcpStream::connect(api.address()).await.unwrap();
    stream.write_all(LIST.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    let more = tokio::time::timeout(Duration::from_millis(300), stream.read_to_end(&mut text)).await;
    assert!(more.is_err(), "the connection ended");
    let text = String::from_utf8(text).unwrap();
    let body = text.split_once("\r\n\r\n").unwrap().1;
    assert!(body.starts_with("5\r\n{") && body.len() == "5\r\n12345\r\n".len(), "neither more nor an end: {text}");
    pods.list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_server_can_be_down_for_a_while() {
    let (api, pods) = with_pod().await;
    api.set_down(true);
    let lost = within("an answer", pods.get("a")).await;
    assert!(!matches!(lost, Ok(_) | Err(kube::Error::Api(_))), "{lost:?}");
    api.set_down(false);
    pods.get("a").await.unwrap();
}

#[tokio::test]
async fn a_request_is_cut_after_so_many_bytes() {
    for (cut, reset) in [(Cut::Fin, false), (Cut::Rst, true)] {
        let rule = Rule::when(create()).nth(1).cut_request(10, cut);
        let (api, pods) = started(rule).await;
        let head = "POST /api/v1/namespaces/ns/pods HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n";
        let (text, end) = raw(&api, &format!("{head}{{\"kind\": \"")).await;
        assert_eq!(text, "", "{cut:?}");
        let kind = end.err().map(|error| error.kind());
        assert_eq!(kind == Some(std::io::ErrorKind::ConnectionReset), reset, "{cut:?}: {kind:?}");
        assert_eq!(api.count(&create()), 1);
        make(&pods, "a").await.unwrap();
    }
}

#[tokio::test]
async fn a_black_hole_swallows_requests_before_and_after_the_deed() {
    for applied in [false, true] {
        let rule = Rule::when(create()).nth(1).hang();
        let (api, pods) = started(if applied { rule.applied() } else { rule }).await;
        let asking = tokio::spawn({
            let pods = pods.clone();
            async move { pods.create(&PostParams::default(), &pod("a")).await }
        });
        api.until_requests(&create().name("a"), 1).await;
        if applied {
            api.until_pod("ns", "a", |pod| pod.is_some()).await;
        }
        assert!(tokio::time::timeout(Duration::from_millis(200), asking).await.is_err(), "there was an answer");
        assert_eq!(api.pod("ns", "a").is_some(), applied);
        make(&pods, "b").await.unwrap();
    }
}

#[tokio::test]
async fn a_delay_takes_its_time() {
    let time = Duration::from_millis(150);
    for rule in [Rule::when(create()).delay(time), Rule::when(create()).delay_answer(time)] {
        let (_api, pods) = started(rule).await;
        let begun = Instant::now();
        make(&pods, "a").await.unwrap();
        assert!(begun.elapsed() >= time);
    }
}

#[tokio::test]
async fn a_gate_holds_a_race_still() {
    let (before, after) = (Gate::new(), Gate::new());
    let (api, pods) = started(Rule::when(create()).nth(1).hold(&before).hold_answer(&after)).await;
    let first = tokio::spawn({
        let pods = pods.clone();
        async move { make(&pods, "a").await }
    });
    before.reached(1).await;
    assert!(api.pod("ns", "a").is_none());
    before.open();
    after.reached(1).await;
    let winner = uid(&pods.get("a").await.unwrap());
    assert!(!first.is_finished());
    pods.delete("a", &DeleteParams::default().grace_period(0)).await.unwrap();
    make(&pods, "a").await.unwrap();
    after.open();
    assert_eq!(uid(&first.await.unwrap().unwrap()), winner, "the answer is of the moment of the deed");
}

#[tokio::test]
async fn answers_can_lie_and_lag() {
    let (api, pods) = with_pod().await;
    let truth = pods.get("a").await.unwrap();
    let lying = api.rule(Rule::when(On::pods(Verb::Get)).lie_uid("another"));
    assert_eq!(uid(&pods.get("a").await.unwrap()), "another");
    lying.remove();
    assert_eq!(uid(&pods.get("a").await.unwrap()), uid(&truth));

    let stale = api.rule(Rule::when(On::pods(Verb::Get)).stale(1));
    let seen = pods.get("a").await.unwrap();
    assert_ne!(seen.metadata.resource_version, truth.metadata.resource_version);
    assert_eq!(uid(&seen), uid(&truth));
    pods.delete("a", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert_eq!(uid(&pods.get("a").await.unwrap()), uid(&truth), "gone, and still shown");
    stale.remove();
    assert_eq!(refusal(pods.get("a").await).0, 404);

    api.rule(Rule::when(On::pods(Verb::List)).lie(|item| item["metadata"]["labels"]["x"] = "y".into()));
    make(&pods, "b").await.unwrap();
    let list = pods.list(&ListParams::default()).await.unwrap();
    assert_eq!(list.items[0].metadata.labels.as_ref().unwrap()["x"], "y");
}

#[tokio::test]
async fn watches_can_lie() {
    let (api, pods) = with_pod().await;
    api.rule(Rule::when(On::pods(Verb::Watch)).lie_uid("another"));
    let mut events = pods.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let event = within("an event", events.try_next()).await.unwrap();
    assert!(matches!(event, Some(WatchEvent::Added(pod)) if uid(&pod) == "another"));
}

#[tokio::test]
async fn rules_count_and_the_first_one_acts() {
    let (api, pods) = started(Rule::when(create().name("x-*")).times(2).answer(500)).await;
    let second = api.rule(Rule::when(create()).after(3).answer(403));
    let third = api.rule(Rule::when(create()).nth(3).answer(404));
    let mut codes = Vec::new();
    for name in ["x-a", "other", "x-b", "x-c", "other-b"] {
        codes.push(match make(&pods, name).await {
            Ok(_) => 201,
            error => refusal(error).0,
        });
    }
    assert_eq!(codes, [500, 201, 500, 403, 403]);
    assert_eq!((second.seen(), second.acted()), (5, 2));
    assert_eq!((third.seen(), third.acted()), (5, 0), "the first rule was there first");
}

#[tokio::test]
async fn an_exec_can_be_refused_or_lost_after_it_began() {
    let (api, _pods) = with_pod().await;
    api.rule(Rule::when(On::exec()).nth(1).answer(403));
    api.rule(Rule::when(On::exec()).nth(2).applied().cut(Cut::Rst));
    assert_eq!(refusal(run(&api, "a", &["touch", "one"]).await.map(drop)).0, 403);
    assert!(run(&api, "a", &["touch", "two"]).await.is_err());
    let look = async { while run(&api, "a", &["test", "-e", "two"]).await.unwrap().code() != Some(0) {} };
    within("the process to run without its stream", look).await;
    assert_eq!(run(&api, "a", &["test", "-e", "one"]).await.unwrap().code(), Some(1));
}
