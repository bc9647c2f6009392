use futures::channel::mpsc::{Receiver, Sender, channel};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::*;

/// The far end of a connection that exists in this process alone: what the peer says, and what it hears.
struct Peer {
    say: Sender<Result<Message, WsError>>,
    hear: Receiver<Message>,
}

/// A socket whose peer takes at most `room` messages unread.
fn connection(room: usize) -> (impl Stream<Item = Result<Message, WsError>> + Sink<Message, Error = WsError>, Peer) {
    let (say, said) = channel(1);
    let (heard, hear) = channel(room);
    (Both(said, heard.sink_map_err(|_| WsError::ConnectionClosed)), Peer { say, hear })
}

struct Both<R, W>(R, W);

impl<R: Stream + Unpin, W: Unpin> Stream for Both<R, W> {
    type Item = R::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<R::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl<R: Unpin, W: Sink<Message, Error = WsError> + Unpin> Sink<Message> for Both<R, W> {
    type Error = WsError;

    fn poll_ready(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), WsError>> {
        self.1.poll_ready_unpin(cx)
    }

    fn start_send(mut self: std::pin::Pin<&mut Self>, message: Message) -> Result<(), WsError> {
        self.1.start_send_unpin(message)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), WsError>> {
        self.1.poll_flush_unpin(cx)
    }

    fn poll_close(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), WsError>> {
        self.1.poll_close_unpin(cx)
    }
}

fn frame(channel: u8, data: &[u8]) -> Message {
    Message::Binary([&[channel], data].concat().into())
}

impl Peer {
    async fn say(&mut self, message: Message) {
        self.say.send(Ok(message)).await.unwrap();
    }

    /// The next message that is no ping.
    async fn hears(&mut self) -> Option<Message> {
        loop {
            match self.hear.next().await {
                Some(Message::Ping(_)) => {}
                other => return other,
            }
        }
    }
}

fn start_alive<S>(socket: S, half_close: bool) -> CarrierStream
where
    S: Stream<Item = Result<Message, WsError>> + Sink<Message, Error = WsError> + Send + 'static,
{
    // That nobody is left to say so is no death.
    start(socket, half_close, watch::channel(0).1)
}

async fn to_end(mut from: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut all = Vec::new();
    from.read_to_end(&mut all).await.unwrap();
    all
}

#[tokio::test(start_paused = true)]
async fn bytes_go_to_their_channels() {
    let (socket, mut peer) = connection(8);
    let mut stream = start_alive(socket, true);
    peer.say(frame(STDOUT, b"")).await;
    peer.say(frame(STDERR, b"err")).await;
    peer.say(frame(STDOUT, b"out")).await;
    peer.say(frame(77, b"of no channel")).await;
    peer.say(Message::Binary(Bytes::new())).await;
    peer.say(frame(STATUS, br#"{"status":"Failure","reason":"NonZeroExitCode","message":"code 3"}"#)).await;
    stream.stdin.write_all(b"in").await.unwrap();
    assert_eq!(peer.hears().await, Some(frame(STDIN, b"in")));
    drop(peer);
    assert_eq!(to_end(stream.stdout).await, b"out");
    assert_eq!(to_end(stream.stderr).await, b"err");
    assert_eq!(stream.closed.await.detail, "Failure: NonZeroExitCode: code 3");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_input_is_said_where_the_protocol_can() {
    for half_close in [true, false] {
        let (socket, mut peer) = connection(8);
        let stream = start_alive(socket, half_close);
        drop(stream.stdin);
        let said = timeout(Duration::from_secs(2), peer.hears()).await;
        match half_close {
            true => assert_eq!(said.unwrap(), Some(Message::Binary(Bytes::from_static(&[255, 0])))),
            false => assert!(said.is_err(), "{said:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn input_goes_in_frames_that_are_neither_huge_nor_tiny() {
    const SIZE: usize = 4 << 20;
    let (socket, mut peer) = connection(8);
    let mut stream = start_alive(socket, true);
    let writing = tokio::spawn(async move {
        stream.stdin.write_all(&vec![1; SIZE]).await.unwrap();
        stream
    });
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < SIZE {
        match timeout(Duration::from_secs(30), peer.hears()).await.unwrap() {
            Some(Message::Binary(data)) if data[0] == STDIN => sizes.push(data.len() - 1),
            other => panic!("{other:?}"),
        }
    }
    // A server rejects a huge one, and each costs a way there.
    assert!(sizes.iter().all(|size| *size <= 1 << 20), "{sizes:?}");
    assert!(sizes.len() <= SIZE / (16 * 1024), "{} frames", sizes.len());
    drop(writing.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn output_arrives_while_input_is_blocked() {
    // A peer that reads nothing before all that it says was read.
    let (socket, mut peer) = connection(0);
    let mut stream = start_alive(socket, true);
    let writing = tokio::spawn(async move {
        let _ = stream.stdin.write_all(&vec![1; 10 << 20]).await;
    });
    let saying = tokio::spawn(async move {
        for _ in 0..200 {
            peer.say(frame(STDOUT, &[2; 32 * 1024])).await;
        }
        peer
    });
    let mut out = vec![0; 200 * 32 * 1024];
    timeout(Duration::from_secs(30), stream.stdout.read_exact(&mut out)).await.unwrap().unwrap();
    assert!(out.iter().all(|byte| *byte == 2));
    writing.abort();
    drop(saying.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_status_that_comes_while_input_is_blocked_ends_the_stream() {
    for half_close in [true, false] {
        // A peer that reads nothing more.
        let (socket, mut peer) = connection(0);
        let CarrierStream { mut stdin, stdout, stderr, closed, .. } = start_alive(socket, half_close);
        let writing = tokio::spawn(async move { stdin.write_all(&vec![1; 10 << 20]).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!writing.is_finished(), "it is blocked");
        peer.say(frame(STDOUT, b"last words")).await;
        peer.say(frame(STATUS, br#"{"status":"Failure","reason":"NonZeroExitCode","message":"code 3"}"#)).await;
        // The connection stays open, and nobody in it reads.
        let begun = Instant::now();
        let (out, err, closed) =
            timeout(Duration::from_secs(30), async { tokio::join!(to_end(stdout), to_end(stderr), closed) })
                .await
                .unwrap();
        assert_eq!((&out[..], &err[..]), (&b"last words"[..], &b""[..]));
        assert_eq!(closed.detail, "Failure: NonZeroExitCode: code 3");
        assert!(begun.elapsed() <= FAREWELL + Duration::from_secs(1), "{:?}", begun.elapsed());
        // Nor does who writes wait for ever.
        let outcome = timeout(FAREWELL + Duration::from_secs(5), writing).await.unwrap().unwrap();
        assert!(outcome.is_err());
        drop(peer);
    }
}

#[tokio::test(start_paused = true)]
async fn unread_output_holds_the_peer_up_and_is_bounded() {
    let (socket, mut peer) = connection(8);
    let mut stream = start_alive(socket, true);
    let mut taken = 0usize;
    while timeout(Duration::from_secs(1), peer.say(frame(STDOUT, &[3; 64 * 1024]))).await.is_ok() {
        taken += 64 * 1024;
        assert!(taken <= OUTPUT_BUFFER + 8 * 64 * 1024, "{taken} bytes are held");
    }
    // Reading lets it go on.
    let mut some = vec![0; taken];
    stream.stdout.read_exact(&mut some).await.unwrap();
    timeout(Duration::from_secs(1), peer.say(frame(STDOUT, b"more"))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_output_that_nobody_wants_holds_nothing_up() {
    let (socket, mut peer) = connection(8);
    let stream = start_alive(socket, true);
    drop(stream.stdout);
    for _ in 0..100 {
        timeout(Duration::from_secs(1), peer.say(frame(STDOUT, &[3; 64 * 1024]))).await.unwrap();
    }
    peer.say(frame(STDERR, b"heard")).await;
    drop(peer);
    assert_eq!(to_end(stream.stderr).await, b"heard");
}

#[tokio::test(start_paused = true)]
async fn a_cut_is_an_end_that_says_so() {
    type Cut = fn(&mut Peer);
    let cuts: [(&str, Cut); 3] = [
        ("ended without a status", |_| {}),
        ("closed without a status", |peer| peer.say.try_send(Ok(Message::Close(None))).unwrap()),
        ("Connection closed", |peer| peer.say.try_send(Err(WsError::ConnectionClosed)).unwrap()),
    ];
    for (wanted, cut) in cuts {
        let (socket, mut peer) = connection(8);
        let stream = start_alive(socket, true);
        cut(&mut peer);
        drop(peer.say);
        assert_eq!(to_end(stream.stdout).await, b"");
        let detail = stream.closed.await.detail;
        assert!(detail.contains(wanted), "{detail:?} is not {wanted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_that_is_none_is_said_and_a_peer_that_never_closes_is_not_waited_for() {
    let (socket, mut peer) = connection(8);
    let stream = start_alive(socket, true);
    peer.say(frame(STATUS, b"{nonsense")).await;
    let begun = Instant::now();
    assert_eq!(stream.closed.await.detail, "the connection ended with a status that is none");
    assert!(begun.elapsed() <= FAREWELL + Duration::from_secs(1));
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_given_up_unless_it_has_input_to_read() {
    for input in [false, true] {
        let (socket, peer) = connection(64);
        let mut stream = start_alive(socket, true);
        if input {
            stream.stdin.write_all(b"unread").await.unwrap();
        }
        let ended = timeout(SILENCE * 4, &mut stream.closed).await;
        assert_eq!(ended.is_err(), input, "{ended:?}");
        drop(peer);
    }
}

#[tokio::test(start_paused = true)]
async fn answered_pings_keep_a_silent_connection() {
    let (socket, mut peer) = connection(8);
    let mut stream = start_alive(socket, true);
    let answering = tokio::spawn(async move {
        while let Some(message) = peer.hear.next().await {
            if let Message::Ping(payload) = message
                && peer.say.send(Ok(Message::Pong(payload))).await.is_err()
            {
                return;
            }
        }
    });
    assert!(timeout(SILENCE * 20, &mut stream.closed).await.is_err());
    answering.abort();
}

#[tokio::test(start_paused = true)]
async fn dropping_the_stream_closes_the_connection_cleanly() {
    let (socket, mut peer) = connection(8);
    drop(start_alive(socket, false));
    // The channel in the place of a socket ends where a socket says Close.
    assert_eq!(timeout(Duration::from_secs(2), peer.hears()).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_death_ends_a_connection_that_does_not_notice() {
    let (socket, peer) = connection(8);
    let (alive, cut) = watch::channel(0);
    let stream = start(socket, true, cut);
    alive.send_modify(|times| *times += 1);
    assert_eq!(to_end(stream.stdout).await, b"");
    assert_eq!(stream.closed.await.detail, "the sandbox is gone, or nothing answers for it");
    drop(peer);
}
