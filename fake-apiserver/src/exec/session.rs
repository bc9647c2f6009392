//! One stream: the channel protocol over a WebSocket, and everything that can go wrong with it.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::fault::{ExecFault, Status};
use super::frames::{self, Frames};
use super::process::{Output, Pipes};
use super::{CLOSE, ERROR, STDIN};
use crate::options::Protocol;
use crate::wire::Cut;

/// How long a stream that has ended waits for the client to see it.
const GOODBYE: Duration = Duration::from_secs(2);

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Everything was said.
    Done,
    /// The client closed it, or it broke.
    Client,
    /// The client did not keep to the protocol.
    Protocol,
    /// A fault.
    Cut(Cut),
}

/// What a stream is about: a process, or a refusal in its place.
#[derive(Debug)]
pub(super) enum Subject {
    Process(Pipes),
    Refusal(Value),
}

pub(super) async fn run(
    mut stream: TcpStream,
    read_already: &[u8],
    subject: Subject,
    protocol: Protocol,
    fault: &ExecFault,
    cut: impl Future<Output = Cut>,
) {
    let (pongs, to_answer) = mpsc::channel(8);
    let in_frame = AtomicBool::new(false);
    let end = {
        let (read, write) = stream.split();
        let (input, said) = match subject {
            Subject::Process(pipes) => (Some(pipes.input), Ok(pipes.output)),
            Subject::Refusal(status) => (None, Err(status)),
        };
        let mut writer = Writer { to: write, fault, sent: 0, in_frame: &in_frame };
        let mut reader = Reader { input, pongs, protocol, fault, taken: 0 };
        tokio::select! {
            end = writer.run(said, to_answer) => end,
            end = reader.run(Frames::new(read, read_already)) => end,
            cut = cut => End::Cut(cut),
            cut = cut_at(fault) => End::Cut(cut),
            () = freeze_at(fault) => std::future::pending().await,
        }
    };
    finish(stream, end, in_frame.into_inner()).await;
}

async fn cut_at(fault: &ExecFault) -> Cut {
    match &fault.cut_at {
        Some((gate, cut)) => {
            gate.pass().await;
            *cut
        }
        None => std::future::pending().await,
    }
}

async fn freeze_at(fault: &ExecFault) {
    match &fault.freeze_at {
        Some(gate) => gate.pass().await,
        None => std::future::pending().await,
    }
}

async fn finish(mut stream: TcpStream, end: End, in_frame: bool) {
    let code = match end {
        End::Cut(Cut::Rst) => {
            // With no time to linger, closing resets. A connection that is gone needs no reset.
            let _ = stream.set_zero_linger();
            return;
        }
        End::Cut(Cut::Fin) => None,
        End::Protocol => Some(1002),
        End::Done | End::Client | End::Cut(Cut::Close) => Some(1000),
    };
    let goodbye = async {
        if let Some(code) = code.filter(|_| !in_frame) {
            stream.write_all(&frames::close(code)).await?;
        }
        stream.shutdown().await?;
        // Closing with bytes unread would reset.
        let mut sink = [0; 4096];
        while stream.read(&mut sink).await? > 0 {}
        io::Result::Ok(())
    };
    // The client may be gone, or may not care.
    let _ = tokio::time::timeout(GOODBYE, goodbye).await;
}

struct Writer<'a, W> {
    to: W,
    fault: &'a ExecFault,
    /// Bytes of output so far.
    sent: u64,
    in_frame: &'a AtomicBool,
}

/// The next thing to do after a message.
enum Next {
    GoOn,
    Stop(End),
}

impl<W: AsyncWrite + Unpin> Writer<'_, W> {
    async fn run(&mut self, said: Result<mpsc::Receiver<Output>, Value>, pongs: mpsc::Receiver<Bytes>) -> End {
        match self.say(said, pongs).await {
            Ok(end) => end,
            Err(_) => End::Client,
        }
    }

    async fn say(
        &mut self,
        said: Result<mpsc::Receiver<Output>, Value>,
        mut pongs: mpsc::Receiver<Bytes>,
    ) -> io::Result<End> {
        if self.fault.silent {
            return std::future::pending().await;
        }
        if let Some((0, cut)) = self.fault.cut_output.filter(|_| !self.fault.half_frame) {
            return Ok(End::Cut(cut));
        }
        // The lowest channel is told to be open.
        self.raw(&frames::message(super::STDOUT, b"")).await?;
        let mut output = match said {
            Ok(output) => output,
            Err(status) => return self.status(&status).await,
        };
        let mut listening = true;
        loop {
            self.stop_if_told().await;
            tokio::select! {
                biased;
                pong = pongs.recv(), if listening => match pong {
                    Some(payload) => self.raw(&frames::frame(frames::PONG, &payload)).await?,
                    None => listening = false,
                },
                next = output.recv() => match next {
                    Some(Output::Data(channel, data)) => {
                        if let Next::Stop(end) = self.data(channel, &data).await? {
                            return Ok(end);
                        }
                    }
                    Some(Output::Ended(code)) => return self.status(&status_of(code)).await,
                    // The process's task ended with the server.
                    None => return Ok(End::Done),
                },
            }
        }
    }

    async fn stop_if_told(&self) {
        if self.fault.stop_output.is_some_and(|limit| self.sent >= limit) {
            std::future::pending::<()>().await;
        }
    }

    /// All of it or, when this is dropped half-way, a frame that stays open.
    async fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.in_frame.store(true, Ordering::Relaxed);
        self.to.write_all(bytes).await?;
        self.in_frame.store(false, Ordering::Relaxed);
        Ok(())
    }

    async fn data(&mut self, channel: u8, data: &[u8]) -> io::Result<Next> {
        let replaced = self.fault.replace.as_ref().and_then(|(from, to)| {
            let at = data.windows(from.len().max(1)).position(|window| window == from)?;
            Some([&data[..at], to, &data[at + from.len()..]].concat())
        });
        let data = replaced.as_deref().unwrap_or(data);
        let piece = if self.fault.one_byte { 1 } else { data.len().max(1) };
        for piece in data.chunks(piece) {
            if let Next::Stop(end) = self.piece(channel, piece).await? {
                return Ok(Next::Stop(end));
            }
        }
        Ok(Next::GoOn)
    }

    async fn noise(&mut self, channel: u8) -> io::Result<()> {
        if self.fault.empty_frames {
            self.raw(&frames::message(channel, b"")).await?;
            self.raw(&frames::frame(frames::BINARY, b"")).await?;
        }
        if self.fault.unknown_channels {
            self.raw(&frames::message(9, b"noise")).await?;
            self.raw(&frames::message(200, b"noise")).await?;
        }
        Ok(())
    }

    async fn piece(&mut self, channel: u8, mut data: &[u8]) -> io::Result<Next> {
        self.noise(channel).await?;
        if let Some(limit) = self.fault.stop_output {
            let left = usize::try_from(limit.saturating_sub(self.sent)).unwrap_or(usize::MAX);
            data = &data[..data.len().min(left)];
        }
        let length = data.len() as u64;
        if let Some((limit, cut)) = self.fault.cut_output {
            let left = limit.saturating_sub(self.sent);
            if self.fault.half_frame && length > left {
                self.half(channel, data, left as usize).await?;
                return Ok(Next::Stop(End::Cut(cut)));
            }
            if !self.fault.half_frame && length >= left {
                self.raw(&frames::message(channel, &data[..left as usize])).await?;
                return Ok(Next::Stop(End::Cut(cut)));
            }
        }
        self.raw(&frames::message(channel, data)).await?;
        self.sent += data.len() as u64;
        if let Some(trace) = &self.fault.trace {
            trace.sent(self.sent);
        }
        self.stop_if_told().await;
        Ok(Next::GoOn)
    }

    /// A frame that promises all of `data` and holds only the first bytes of it.
    async fn half(&mut self, channel: u8, data: &[u8], count: usize) -> io::Result<()> {
        let mut bytes = frames::message(channel, data);
        bytes.truncate(bytes.len() - (data.len() - count));
        self.in_frame.store(true, Ordering::Relaxed);
        self.to.write_all(&bytes).await
    }

    async fn status(&mut self, status: &Value) -> io::Result<End> {
        if self.fault.never_ends {
            return std::future::pending().await;
        }
        let bytes = match &self.fault.status {
            Status::Omitted => return Ok(End::Done),
            Status::True => status.to_string().into_bytes(),
            Status::Text(bytes) => bytes.clone(),
        };
        self.noise(ERROR).await?;
        if let Some((limit, cut)) = self.fault.cut_output.filter(|_| self.fault.half_frame)
            && self.sent == limit
        {
            self.half(ERROR, &bytes, 0).await?;
            return Ok(End::Cut(cut));
        }
        if let Some(cut) = self.fault.half_status {
            self.half(ERROR, &bytes, bytes.len() / 2).await?;
            return Ok(End::Cut(cut));
        }
        self.raw(&frames::message(ERROR, &bytes)).await?;
        Ok(End::Done)
    }
}

fn status_of(code: i32) -> Value {
    if code == 0 {
        return json!({"metadata": {}, "status": "Success"});
    }
    json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

struct Reader<'a> {
    /// Until the client says that its input is at an end.
    input: Option<mpsc::Sender<Bytes>>,
    pongs: mpsc::Sender<Bytes>,
    protocol: Protocol,
    fault: &'a ExecFault,
    /// Bytes of input so far.
    taken: u64,
}

impl Reader<'_> {
    async fn run<R: AsyncRead + Unpin>(&mut self, mut frames: Frames<R>) -> End {
        if self.fault.deaf {
            return std::future::pending().await;
        }
        // Of a message in several frames, only the first names the channel.
        let mut channel = None;
        loop {
            if let Some((limit, cut)) = self.fault.cut_input
                && self.taken >= limit
            {
                return End::Cut(cut);
            }
            let frame = match frames.next().await {
                Ok(Some(frame)) => frame,
                Ok(None) => return End::Client,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return End::Protocol,
                Err(_) => return End::Client,
            };
            match frame.opcode {
                frames::BINARY => {
                    channel = frame.payload.first().copied();
                    self.message(channel, frame.payload.slice(frame.payload.len().min(1)..)).await;
                }
                frames::CONTINUE => self.message(channel, frame.payload).await,
                frames::CLOSE => return End::Client,
                frames::PING if !self.fault.no_pong => {
                    // Who asks faster than it reads does without an answer.
                    let _ = self.pongs.try_send(frame.payload);
                }
                _ => {}
            }
        }
    }

    async fn message(&mut self, channel: Option<u8>, mut data: Bytes) {
        match channel {
            Some(STDIN) => {
                if let Some((limit, _)) = self.fault.cut_input {
                    let left = usize::try_from(limit - self.taken).unwrap_or(usize::MAX);
                    data.truncate(left);
                }
                self.taken += data.len() as u64;
                if let Some(trace) = &self.fault.trace {
                    trace.taken(self.taken);
                }
                if let Some(input) = self.input.as_ref().filter(|_| !data.is_empty()) {
                    // The process's task ends only with the process.
                    let _ = input.send(data).await;
                }
            }
            Some(CLOSE) if self.protocol == Protocol::V5 && data.first() == Some(&STDIN) => self.input = None,
            // Sizes of terminals, and what the protocol does not know.
            _ => {}
        }
    }
}
