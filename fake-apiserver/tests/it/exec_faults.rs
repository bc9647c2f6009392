//! Commands in pods, when it goes wrong.

use std::time::Duration;

use fake_apiserver::{Cut, ExecFault, FakeApi, Gate, On, Options, Protocol, Rule, Trace};
use futures::{SinkExt, StreamExt};
use kube::api::WatchParams;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::stream::{Asking, Ended, Seen, message, run};
use crate::support::{add, pods, with_pod, within};

const CUTS: [(Cut, Ended); 3] = [(Cut::Close, Ended::Closed), (Cut::Fin, Ended::Eof), (Cut::Rst, Ended::Reset)];

async fn with(fault: ExecFault) -> FakeApi {
    let (api, _pods) = with_pod().await;
    api.rule(Rule::when(On::exec()).nth(1).exec(fault));
    api
}

/// The first exec is at fault, the second is not.
async fn both(fault: ExecFault, argv: &[&str]) -> (Seen, Seen) {
    let api = with(fault).await;
    let first = run(&api, "a", argv).await.unwrap();
    (first, run(&api, "a", argv).await.unwrap())
}

const TEN: [&str; 3] = ["bash", "-c", "printf 0123456789"];

#[tokio::test]
async fn output_is_cut_after_every_count_of_bytes_in_every_way() {
    for (cut, ended) in CUTS {
        for count in [0, 1, 9, 10] {
            let (seen, whole) = both(ExecFault::new().cut_output(count, cut), &TEN).await;
            if cut == Cut::Rst {
                // What was on its way may be lost.
                assert!(b"0123456789"[..count as usize].starts_with(&seen.stdout), "{cut:?} {count}: {seen:?}");
            } else {
                assert_eq!(seen.stdout, b"0123456789"[..count as usize], "{cut:?} {count}");
            }
            assert_eq!((seen.status.as_ref(), seen.ended), (None, Some(ended)), "{cut:?} {count}");
            assert_eq!((whole.stdout.len(), whole.code()), (10, Some(0)), "{cut:?} {count}");
        }
    }
}

#[tokio::test]
async fn output_is_replaced_where_it_is_found() {
    let (seen, whole) = both(ExecFault::new().replace(b"345", b"three"), &TEN).await;
    assert_eq!((&*seen.stdout, seen.code()), (&b"012three6789"[..], Some(0)));
    assert_eq!(whole.stdout, b"0123456789");
    let (seen, _) = both(ExecFault::new().replace(b"absent", b""), &TEN).await;
    assert_eq!(seen.stdout, b"0123456789");
}

#[tokio::test]
async fn a_cut_beyond_the_output_never_comes() {
    let (seen, _) = both(ExecFault::new().cut_output(11, Cut::Rst), &TEN).await;
    assert_eq!((seen.stdout.len(), seen.code(), seen.ended), (10, Some(0), Some(Ended::Closed)));
}

#[tokio::test]
async fn a_cut_falls_into_large_output_too() {
    let count = 1_000_003;
    let argv = ["head", "-c", "5000000", "/dev/zero"];
    let (seen, whole) = both(ExecFault::new().cut_output(count, Cut::Fin), &argv).await;
    assert_eq!((seen.stdout.len() as u64, seen.status), (count, None));
    assert_eq!(whole.stdout.len(), 5_000_000);
}

#[tokio::test]
async fn half_a_frame_is_no_message() {
    // With one byte missing, anything that was still said would complete the frame.
    let cuts = [(4, Cut::Fin, Ended::Eof), (4, Cut::Rst, Ended::Reset), (9, Cut::Close, Ended::Eof)];
    for (count, cut, ended) in cuts {
        let (seen, _) = both(ExecFault::new().cut_output(count, cut).half_frame(), &TEN).await;
        assert_eq!((seen.stdout.len(), seen.status.as_ref()), (0, None), "{cut:?}: {seen:?}");
        assert_eq!(seen.ended, Some(ended), "inside of a frame there is no way to say goodbye");
    }
    // Ten bytes fill the frame; the one of the status is the half.
    let (seen, _) = both(ExecFault::new().cut_output(10, Cut::Fin).half_frame(), &TEN).await;
    assert_eq!((seen.stdout.as_slice(), seen.status), (b"0123456789".as_slice(), None));
    let (seen, _) = both(ExecFault::new().half_status(Cut::Fin), &TEN).await;
    assert_eq!((seen.stdout.len(), seen.status, seen.ended), (10, None, Some(Ended::Eof)));
}

#[tokio::test]
async fn input_is_cut_after_every_count_of_bytes_in_every_way() {
    for (cut, ended) in CUTS {
        for count in [0, 1, 7] {
            let api = with(ExecFault::new().cut_input(count, cut)).await;
            let argv = ["bash", "-c", "cat > part; mv part got"];
            let mut open = Asking::new(&argv).stdin().open(&api, "a").await.unwrap();
            // The cut may be faster than a message, which then is the one that is told.
            let mut told = None;
            for part in [b"0123".as_slice(), b"456789"] {
                told = told.or(open.send(0, part).await.err());
            }
            let seen = open.rest().await;
            let reset = told.is_some_and(|error| crate::stream::is_reset(&error));
            let seen_end = if reset { Some(Ended::Reset) } else { seen.ended };
            assert_eq!((seen.status.as_ref(), seen_end), (None, Some(ended)), "{cut:?} {count}");
            let look = async {
                loop {
                    let seen = run(&api, "a", &["cat", "got"]).await.unwrap();
                    if seen.code() == Some(0) {
                        return seen.stdout;
                    }
                }
            };
            let got = within("the process to see the end of its input", look).await;
            assert_eq!(got, b"0123456789"[..count as usize], "{cut:?} {count}");
        }
    }
}

#[tokio::test]
async fn a_stream_is_cut_when_the_test_says_so() {
    for (cut, ended) in CUTS {
        let gate = Gate::new();
        let api = with(ExecFault::new().cut_at(&gate, cut)).await;
        let mut open = Asking::new(&["bash", "-c", "echo x; sleep 600"]).open(&api, "a").await.unwrap();
        assert_eq!(open.read(2).await.stdout, b"x\n");
        gate.open();
        let seen = open.rest().await;
        assert_eq!((seen.status.as_ref(), seen.ended), (None, Some(ended)));
    }
}

#[tokio::test]
async fn a_stream_freezes_when_the_test_says_so() {
    let gate = Gate::new();
    let api = with(ExecFault::new().freeze_at(&gate)).await;
    let mut open = Asking::new(&["cat"]).stdin().open(&api, "a").await.unwrap();
    open.send(0, b"x\n").await.unwrap();
    assert_eq!(open.read(2).await.stdout, b"x\n");
    gate.open();
    gate.reached(1).await;
    open.send(0, b"y\n").await.unwrap();
    open.to.send(Message::Ping(vec![].into())).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(300), open.from.next()).await.is_err());
}

#[tokio::test]
async fn every_connection_can_be_cut_while_processes_go_on() {
    for (cut, ended) in CUTS {
        let (api, pods) = with_pod().await;
        let client = api.client();
        let argv = ["bash", "-c", "echo $$; exec sleep 600"];
        let mut open = Asking::new(&argv).open_with(&client, "a").await.unwrap();
        let first = open.read(2).await;
        let mut events = pods.watch(&WatchParams::default(), "0").await.unwrap().boxed();
        assert!(within("an event", events.next()).await.unwrap().is_ok());
        api.cut_connections(cut);
        let seen = open.rest().await;
        assert_eq!((seen.status.as_ref(), seen.ended), (None, Some(ended)));
        let watched = within("the watch to end", events.next()).await;
        assert!(!matches!(watched, Some(Ok(_))), "{watched:?}");
        let pid = String::from_utf8(first.stdout).unwrap().trim().parse().unwrap();
        assert!(crate::life::runs(pid), "the process goes on");
        assert_eq!(run(&api, "a", &["true"]).await.unwrap().code(), Some(0), "so does the server");
    }
}

#[tokio::test]
async fn output_stops_and_the_stream_stays() {
    let api = with(ExecFault::new().stop_output(3)).await;
    let mut open = Asking::new(&TEN).open(&api, "a").await.unwrap();
    assert_eq!(open.read(3).await.stdout, b"012");
    open.to.send(Message::Ping(vec![].into())).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(300), open.from.next()).await.is_err());
}

#[tokio::test]
async fn a_status_can_be_missing_false_or_garbage() {
    let (seen, whole) = both(ExecFault::new().omit_status(), &TEN).await;
    assert_eq!((seen.stdout.len(), seen.status.as_ref(), seen.ended), (10, None, Some(Ended::Closed)));
    assert_eq!(whole.code(), Some(0));
    let (seen, _) = both(ExecFault::new().lie_status(&json!({"status": "Success"})), &["false"]).await;
    assert_eq!(seen.code(), Some(0));
    let (seen, _) = both(ExecFault::new().garbage_status(b"{]"), &TEN).await;
    assert_eq!((seen.status.as_deref(), seen.code()), (Some(b"{]".as_slice()), None));
}

#[tokio::test]
async fn frames_can_be_small_empty_and_strange() {
    let fault = ExecFault::new().one_byte_per_frame().empty_frames().unknown_channels();
    let (seen, _) = both(fault, &TEN).await;
    assert_eq!((seen.stdout.as_slice(), seen.code()), (b"0123456789".as_slice(), Some(0)));
    let count = |wanted: (Option<u8>, usize)| seen.frames.iter().filter(|frame| **frame == wanted).count();
    assert_eq!(count((Some(1), 1)), 10, "{:?}", seen.frames);
    // One opens the stream; the status is a frame too.
    assert_eq!(count((Some(1), 0)), 11);
    assert_eq!(count((Some(3), 0)), 1);
    assert_eq!(count((None, 0)), 11);
    assert_eq!((count((Some(9), 5)), count((Some(200), 5))), (11, 11));
}

#[tokio::test]
async fn a_silent_stream_says_nothing_while_the_process_runs() {
    let api = with(ExecFault::new().silent()).await;
    let mut open = Asking::new(&["bash", "-c", "echo x; touch ran"]).open(&api, "a").await.unwrap();
    open.to.send(Message::Ping(vec![].into())).await.unwrap();
    let look = async { while run(&api, "a", &["test", "-e", "ran"]).await.unwrap().code() != Some(0) {} };
    within("the process to run", look).await;
    assert!(tokio::time::timeout(Duration::from_millis(300), open.from.next()).await.is_err());
}

#[tokio::test]
async fn a_deaf_stream_blocks_a_client_that_writes_much() {
    let api = with(ExecFault::new().deaf()).await;
    let mut open = Asking::new(&["cat"]).stdin().open(&api, "a").await.unwrap();
    let chunk = vec![0; 1 << 20];
    let writing = async { while open.to.send(message(0, &chunk)).await.is_ok() {} };
    assert!(tokio::time::timeout(Duration::from_millis(500), writing).await.is_err(), "the stream broke");
}

#[tokio::test]
async fn a_status_arrives_while_the_input_is_stuck() {
    let (api, _pods) = with_pod().await;
    // Never reads; its input fills up, then it ends.
    let argv = ["bash", "-c", "until [[ -e go ]]; do read -t 0.01 <> <(:); done; exit 5"];
    let open = Asking::new(&argv).stdin().open(&api, "a").await.unwrap();
    let (mut to, from) = (open.to, open.from);
    let writing = tokio::spawn(async move {
        let chunk = vec![0; 1 << 20];
        while to.send(message(0, &chunk)).await.is_ok() {}
    });
    let reading = tokio::spawn(crate::stream::collect(from));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!writing.is_finished(), "the input is stuck, not broken");
    assert_eq!(run(&api, "a", &["touch", "go"]).await.unwrap().code(), Some(0));
    assert_eq!(within("the status", reading).await.unwrap().code(), Some(5));
    within("the writer to notice", writing).await.unwrap();
}

#[tokio::test]
async fn pings_can_stay_unanswered() {
    let api = with(ExecFault::new().no_pong()).await;
    let mut open = Asking::new(&["bash", "-c", "read -r x; echo $x"]).stdin().open(&api, "a").await.unwrap();
    open.to.send(Message::Ping(vec![].into())).await.unwrap();
    open.send(0, b"x\n").await.unwrap();
    let seen = open.rest().await;
    assert_eq!((seen.pongs, seen.stdout.as_slice()), (0, b"x\n".as_slice()));
}

#[tokio::test]
async fn a_stream_can_outlive_its_pod_in_silence() {
    let api = with(ExecFault::new().never_ends()).await;
    let mut open = Asking::new(&["bash", "-c", "echo x; sleep 600"]).open(&api, "a").await.unwrap();
    open.read(2).await;
    api.remove_pod("ns", "a").await;
    assert!(tokio::time::timeout(Duration::from_millis(300), open.from.next()).await.is_err());
}

#[tokio::test]
async fn one_stream_can_be_offered_another_protocol() {
    let api = with(ExecFault::new().only(Protocol::V4)).await;
    assert!(!Asking::new(&["true"]).open(&api, "a").await.unwrap().v5);
    assert!(Asking::new(&["true"]).open(&api, "a").await.unwrap().v5);
    let api = FakeApi::start_with(Options::new().protocols(&[Protocol::V4])).await;
    let pods = pods(&api);
    add(&api, &pods, "a").await;
    assert!(!Asking::new(&["true"]).open(&api, "a").await.unwrap().v5);
}

#[tokio::test]
async fn a_trace_tells_where_frames_ended() {
    let trace = Trace::new();
    let api = with(ExecFault::new().one_byte_per_frame().trace(&trace)).await;
    let mut stream = Asking::new(&["head", "-c", "3"]).stdin().open(&api, "a").await.unwrap();
    stream.send(0, b"ab").await.unwrap();
    stream.send(0, b"c").await.unwrap();
    let seen = stream.rest().await;
    assert_eq!((seen.stdout.as_slice(), seen.code()), (b"abc".as_slice(), Some(0)));
    assert_eq!((trace.input(), trace.output()), (vec![2, 3], vec![1, 2, 3]));
}
