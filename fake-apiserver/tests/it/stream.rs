//! A client for exec that looks at everything, frame by frame, and reads and writes at the same time.

use bytes::Bytes;
use fake_apiserver::FakeApi;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kube::Client;
use serde_json::Value;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::support::within;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// A command to be run.
pub(crate) struct Asking {
    argv: Vec<String>,
    stdin: bool,
    container: Option<String>,
}

impl Asking {
    pub(crate) fn new(argv: &[&str]) -> Self {
        Self { argv: argv.iter().map(|word| (*word).to_owned()).collect(), stdin: false, container: None }
    }

    pub(crate) fn stdin(mut self) -> Self {
        self.stdin = true;
        self
    }

    pub(crate) fn container(mut self, name: &str) -> Self {
        self.container = Some(name.to_owned());
        self
    }

    pub(crate) async fn open(self, api: &FakeApi, pod: &str) -> Result<Open, kube::Error> {
        self.open_with(&api.client(), pod).await
    }

    pub(crate) async fn open_with(self, client: &Client, pod: &str) -> Result<Open, kube::Error> {
        let params = kube::api::AttachParams {
            container: self.container,
            stdin: self.stdin,
            stdout: true,
            stderr: true,
            ..Default::default()
        };
        let request = kube::core::Request::new("/api/v1/namespaces/ns/pods").exec(pod, self.argv, &params);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let connection = within("the upgrade", client.connect(request)).await?;
        let v5 = connection.supports_stream_close();
        let (to, from) = connection.into_stream().split();
        Ok(Open { v5, to, from })
    }
}

/// Runs a command to its end.
pub(crate) async fn run(api: &FakeApi, pod: &str, argv: &[&str]) -> Result<Seen, kube::Error> {
    Ok(Asking::new(argv).open(api, pod).await?.rest().await)
}

/// A stream that is open.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) v5: bool,
    pub(crate) to: SplitSink<Socket, Message>,
    pub(crate) from: SplitStream<Socket>,
}

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By a `Close` frame.
    Closed,
    /// By an end of file, without one.
    Eof,
    /// By a reset.
    Reset,
}

/// Everything that came.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) status: Option<Vec<u8>>,
    /// Channel (or none) and length of each message.
    pub(crate) frames: Vec<(Option<u8>, usize)>,
    pub(crate) pongs: usize,
    pub(crate) ended: Option<Ended>,
}

impl Seen {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(self.status.as_deref().expect("a status")).expect("JSON")
    }

    /// The exit code, if there was a status that tells one.
    pub(crate) fn code(&self) -> Option<i32> {
        let status: Value = serde_json::from_slice(self.status.as_deref()?).ok()?;
        if status["status"] == "Success" {
            return Some(0);
        }
        let causes = status["details"]["causes"].as_array()?;
        let cause = causes.iter().find(|cause| cause["reason"] == "ExitCode")?;
        cause["message"].as_str()?.parse().ok()
    }

    /// Takes one message; true when it was the last.
    pub(crate) fn take(&mut self, message: Option<Result<Message, Error>>) -> bool {
        match message {
            Some(Ok(Message::Binary(bytes))) => {
                let data = bytes.get(1..).unwrap_or(&[]);
                self.frames.push((bytes.first().copied(), data.len()));
                match bytes.first() {
                    Some(1) => self.stdout.extend_from_slice(data),
                    Some(2) => self.stderr.extend_from_slice(data),
                    Some(3) => self.status = Some(data.to_vec()),
                    _ => {}
                }
            }
            Some(Ok(Message::Pong(_))) => self.pongs += 1,
            Some(Ok(Message::Close(_))) => self.ended = Some(Ended::Closed),
            Some(Ok(_)) => {}
            Some(Err(error)) if is_reset(&error) => {
                self.ended.get_or_insert(Ended::Reset);
                return true;
            }
            Some(Err(_)) => {
                self.ended.get_or_insert(Ended::Eof);
                return true;
            }
            None => {
                self.ended.get_or_insert(Ended::Eof);
                return true;
            }
        }
        false
    }
}

pub(crate) async fn collect(mut from: SplitStream<Socket>) -> Seen {
    let mut seen = Seen::default();
    while !seen.take(within("a message", from.next()).await) {}
    seen
}

impl Open {
    pub(crate) async fn send(&mut self, channel: u8, data: &[u8]) -> Result<(), Error> {
        self.to.send(message(channel, data)).await
    }

    /// Reads until so many bytes of standard output have come.
    pub(crate) async fn read(&mut self, count: usize) -> Seen {
        let mut seen = Seen::default();
        while seen.stdout.len() < count {
            let last = seen.take(within("output", self.from.next()).await);
            assert!(!last, "{count} bytes wanted: {seen:?}");
        }
        seen
    }

    /// Reads to the end.
    pub(crate) async fn rest(&mut self) -> Seen {
        let mut seen = Seen::default();
        while !seen.take(within("a message", self.from.next()).await) {}
        seen
    }
}

/// A write to a connection that was reset may also find the pipe broken.
pub(crate) fn is_reset(error: &Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error, Error::Io(error) if matches!(error.kind(), ConnectionReset | BrokenPipe))
}

pub(crate) fn message(channel: u8, data: &[u8]) -> Message {
    let mut bytes = vec![channel];
    bytes.extend_from_slice(data);
    Message::Binary(Bytes::from(bytes))
}
