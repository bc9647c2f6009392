//! How a stream opened by exec goes wrong.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::gate::Gate;
use crate::options::Protocol;
use crate::wire::Cut;

/// How a stream opened by exec goes wrong. Faults add up.
///
/// Bytes are counted as the client's program sees them: what stands in the channels, without the channel's number and
/// without the frames around it. Output is standard output and standard error together.
///
/// ```
/// use fake_apiserver::{Cut, ExecFault, On, Rule};
///
/// let rule = Rule::when(On::exec()).nth(2).exec(ExecFault::new().cut_output(4096, Cut::Rst));
/// # drop(rule);
/// ```
#[derive(Debug, Clone, Default)]
pub struct ExecFault {
    pub(super) cut_output: Option<(u64, Cut)>,
    pub(super) cut_input: Option<(u64, Cut)>,
    pub(super) stop_output: Option<u64>,
    pub(super) cut_at: Option<(Gate, Cut)>,
    pub(super) freeze_at: Option<Gate>,
    pub(super) half_frame: bool,
    pub(super) half_status: Option<Cut>,
    pub(super) status: Status,
    pub(super) replace: Option<(Vec<u8>, Vec<u8>)>,
    pub(super) one_byte: bool,
    pub(super) empty_frames: bool,
    pub(super) unknown_channels: bool,
    pub(super) silent: bool,
    pub(super) deaf: bool,
    pub(super) no_pong: bool,
    pub(super) never_ends: bool,
    pub(super) protocol: Option<Protocol>,
    pub(super) trace: Option<Trace>,
}

/// Where the frames of a stream ended: what a test needs to cut the next one there. Clones are the same trace.
#[derive(Debug, Clone, Default)]
pub struct Trace(Arc<Mutex<(Vec<u64>, Vec<u64>)>>);

impl Trace {
    /// An empty trace.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// After how many bytes of output each frame of it ended, in the order in which they were sent.
    #[must_use]
    pub fn output(&self) -> Vec<u64> {
        self.with(|(output, _)| output.clone())
    }

    /// After how many bytes of standard input each frame of it ended.
    #[must_use]
    pub fn input(&self) -> Vec<u64> {
        self.with(|(_, input)| input.clone())
    }

    pub(super) fn sent(&self, bytes: u64) {
        self.with(|(output, _)| output.push(bytes));
    }

    pub(super) fn taken(&self, bytes: u64) {
        self.with(|(_, input)| input.push(bytes));
    }

    fn with<T>(&self, f: impl FnOnce(&mut (Vec<u64>, Vec<u64>)) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[derive(Debug, Clone, Default)]
pub(super) enum Status {
    #[default]
    True,
    Omitted,
    Text(Vec<u8>),
}

impl ExecFault {
    /// No fault yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The stream ends once so many bytes of output are sent; with zero, as soon as it is open. Nothing comes after
    /// them, no status either. The process goes on.
    #[must_use]
    pub fn cut_output(mut self, bytes: u64, cut: Cut) -> Self {
        self.cut_output = Some((bytes, cut));
        self
    }

    /// The stream ends once so many bytes of standard input have come; with zero, as soon as it is open. The process
    /// is given them, and the end of its input.
    #[must_use]
    pub fn cut_input(mut self, bytes: u64, cut: Cut) -> Self {
        self.cut_input = Some((bytes, cut));
        self
    }

    /// Together with [`cut_output`](Self::cut_output): the last bytes stand in a frame that promises more. If they
    /// happen to fill a frame, the cut comes in the frame that follows, after its channel's number.
    #[must_use]
    pub fn half_frame(mut self) -> Self {
        self.half_frame = true;
        self
    }

    /// The stream ends when a test opens the gate.
    #[must_use]
    pub fn cut_at(mut self, gate: &Gate, cut: Cut) -> Self {
        self.cut_at = Some((gate.clone(), cut));
        self
    }

    /// The stream stays open, and nothing is read or written any more once a test opens the gate: a network that
    /// swallows everything.
    #[must_use]
    pub fn freeze_at(mut self, gate: &Gate) -> Self {
        self.freeze_at = Some(gate.clone());
        self
    }

    /// The stream stays open, and nothing more is sent once so many bytes of output are: no status, no pong.
    #[must_use]
    pub fn stop_output(mut self, bytes: u64) -> Self {
        self.stop_output = Some(bytes);
        self
    }

    /// The stream ends in the middle of the status frame.
    #[must_use]
    pub fn half_status(mut self, cut: Cut) -> Self {
        self.half_status = Some(cut);
        self
    }

    /// No status is sent; the stream ends as usual otherwise.
    #[must_use]
    pub fn omit_status(mut self) -> Self {
        self.status = Status::Omitted;
        self
    }

    /// This `Status` is sent in place of the true one.
    #[must_use]
    pub fn lie_status(self, status: &Value) -> Self {
        let text = status.to_string();
        self.garbage_status(text.as_bytes())
    }

    /// These bytes are sent in place of the status.
    #[must_use]
    pub fn garbage_status(mut self, bytes: &[u8]) -> Self {
        self.status = Status::Text(bytes.to_vec());
        self
    }

    /// Where output that is read from the process at once holds `from`, `to` is sent instead, the first time that it does.
    #[must_use]
    pub fn replace(mut self, from: &[u8], to: &[u8]) -> Self {
        self.replace = Some((from.to_vec(), to.to_vec()));
        self
    }

    /// Each byte of output has a frame of its own.
    #[must_use]
    pub fn one_byte_per_frame(mut self) -> Self {
        self.one_byte = true;
        self
    }

    /// Before each frame come one that holds only the number of a channel, and one that holds nothing at all.
    #[must_use]
    pub fn empty_frames(mut self) -> Self {
        self.empty_frames = true;
        self
    }

    /// Before each frame come some of channels that the protocol does not have.
    #[must_use]
    pub fn unknown_channels(mut self) -> Self {
        self.unknown_channels = true;
        self
    }

    /// The stream opens, and nothing is ever sent. The process runs.
    #[must_use]
    pub fn silent(mut self) -> Self {
        self.silent = true;
        self
    }

    /// The stream opens, and nothing is ever read from it: a client that writes much is stuck in the end.
    #[must_use]
    pub fn deaf(mut self) -> Self {
        self.deaf = true;
        self
    }

    /// Pings are not answered.
    #[must_use]
    pub fn no_pong(mut self) -> Self {
        self.no_pong = true;
        self
    }

    /// When the process ends, also with its pod, the stream stays open and silent.
    #[must_use]
    pub fn never_ends(mut self) -> Self {
        self.never_ends = true;
        self
    }

    /// No fault: notes where the frames end, of every stream that the rule is for.
    #[must_use]
    pub fn trace(mut self, trace: &Trace) -> Self {
        self.trace = Some(trace.clone());
        self
    }

    /// Only this protocol is on offer.
    #[must_use]
    pub fn only(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }
}
