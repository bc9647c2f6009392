//! Misbehaviour, request by request.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use crate::call::Call;
use crate::exec::ExecFault;
use crate::gate::Gate;
use crate::on::On;
use crate::watch::WatchFault;
use crate::wire::Cut;

/// What happens to some requests instead of the ordinary.
///
/// A rule says which requests it is for ([`On`]), which of them by count ([`nth`](Self::nth),
/// [`times`](Self::times); without either, all), whether they wait, and one deed. A rule with no deed serves the
/// request as usual, after the wait. When several rules are for a request, the one that was added first acts; each
/// counts it. A deed that does not fit the request, such as [`exec`](Self::exec) on a list, does nothing.
///
/// ```
/// use fake_apiserver::{On, Rule, Verb};
///
/// // The first create is applied, and answered as if it had timed out.
/// let rule = Rule::when(On::pods(Verb::Create)).nth(1).applied().answer(504);
/// # drop(rule);
/// ```
#[derive(Debug, Clone)]
pub struct Rule {
    on: On,
    from: u64,
    until: u64,
    apply: bool,
    retry_after: Option<u64>,
    message: Option<String>,
    before: Vec<Pause>,
    after: Vec<Pause>,
    action: Action,
}

#[derive(Debug, Clone)]
pub(crate) enum Pause {
    For(Duration),
    At(Gate),
}

impl Pause {
    pub(crate) async fn take(&self) {
        match self {
            Self::For(time) => tokio::time::sleep(*time).await,
            Self::At(gate) => gate.pass().await,
        }
    }
}

pub(crate) type Liar = Arc<dyn Fn(&mut Value) + Send + Sync>;

#[derive(Clone)]
pub(crate) enum Action {
    Serve,
    Answer(StatusCode),
    AnswerPlain(StatusCode),
    Drop(Cut),
    Hang,
    /// Without a cut, the body stops and the connection stays.
    CutAnswer(u64, Option<Cut>),
    CutRequest(u64, Cut),
    Lie(Liar),
    Stale(usize),
    Watch(WatchFault),
    Exec(ExecFault),
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serve => write!(f, "Serve"),
            Self::Answer(code) => write!(f, "Answer({code})"),
            Self::AnswerPlain(code) => write!(f, "AnswerPlain({code})"),
            Self::Drop(cut) => write!(f, "Drop({cut:?})"),
            Self::Hang => write!(f, "Hang"),
            Self::CutAnswer(after, cut) => write!(f, "CutAnswer({after}, {cut:?})"),
            Self::CutRequest(after, cut) => write!(f, "CutRequest({after}, {cut:?})"),
            Self::Lie(_) => write!(f, "Lie"),
            Self::Stale(back) => write!(f, "Stale({back})"),
            Self::Watch(fault) => write!(f, "Watch({fault:?})"),
            Self::Exec(fault) => write!(f, "Exec({fault:?})"),
        }
    }
}

impl Rule {
    /// A rule for these requests.
    #[must_use]
    pub fn when(on: On) -> Self {
        Self {
            on,
            from: 1,
            until: u64::MAX,
            apply: false,
            retry_after: None,
            message: None,
            before: Vec::new(),
            after: Vec::new(),
            action: Action::Serve,
        }
    }

    /// Only the `n`th of them, counted from 1.
    #[must_use]
    pub fn nth(mut self, n: u64) -> Self {
        (self.from, self.until) = (n.max(1), n.max(1));
        self
    }

    /// Only the first `n` of them.
    #[must_use]
    pub fn times(mut self, n: u64) -> Self {
        (self.from, self.until) = (1, n);
        self
    }

    /// All of them but the first `n`.
    #[must_use]
    pub fn after(mut self, n: u64) -> Self {
        (self.from, self.until) = (n.saturating_add(1), u64::MAX);
        self
    }

    /// The request is carried out before the deed; otherwise [`answer`](Self::answer), [`cut`](Self::cut) and
    /// [`hang`](Self::hang) leave everything as it was.
    #[must_use]
    pub fn applied(mut self) -> Self {
        self.apply = true;
        self
    }

    /// The request waits this long before anything happens.
    #[must_use]
    pub fn delay(mut self, time: Duration) -> Self {
        self.before.push(Pause::For(time));
        self
    }

    /// The request waits at a gate before anything happens.
    #[must_use]
    pub fn hold(mut self, gate: &Gate) -> Self {
        self.before.push(Pause::At(gate.clone()));
        self
    }

    /// The request is carried out, and its answer waits this long.
    #[must_use]
    pub fn delay_answer(mut self, time: Duration) -> Self {
        self.after.push(Pause::For(time));
        self
    }

    /// The request is carried out, and its answer waits at a gate.
    #[must_use]
    pub fn hold_answer(mut self, gate: &Gate) -> Self {
        self.after.push(Pause::At(gate.clone()));
        self
    }

    /// An answer carries `Retry-After`.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// An answer carries this message.
    #[must_use]
    pub fn message(mut self, message: &str) -> Self {
        self.message = Some(message.to_owned());
        self
    }

    /// Deed: a `Status` with this code is the answer.
    ///
    /// # Panics
    ///
    /// If `code` is no HTTP status.
    #[must_use]
    pub fn answer(self, code: u16) -> Self {
        self.deed(Action::Answer(StatusCode::from_u16(code).expect("an HTTP status")))
    }

    /// Deed: as [`answer`](Self::answer), in plain text, as whoever is not the API server answers.
    ///
    /// # Panics
    ///
    /// If `code` is no HTTP status.
    #[must_use]
    pub fn answer_plain(self, code: u16) -> Self {
        self.deed(Action::AnswerPlain(StatusCode::from_u16(code).expect("an HTTP status")))
    }

    /// Deed: the connection ends without an answer.
    #[must_use]
    pub fn cut(self, cut: Cut) -> Self {
        self.deed(Action::Drop(cut))
    }

    /// Deed: nothing is ever answered, and the connection stays open.
    #[must_use]
    pub fn hang(self) -> Self {
        self.deed(Action::Hang)
    }

    /// Deed: the request is carried out, and the body of its answer is cut after so many bytes. For a stream opened by
    /// exec, see [`ExecFault`].
    #[must_use]
    pub fn cut_answer(self, bytes: u64, cut: Cut) -> Self {
        self.deed(Action::CutAnswer(bytes, Some(cut)))
    }

    /// Deed: the request is carried out, and the body of its answer stops after so many bytes. The connection stays open.
    #[must_use]
    pub fn stop_answer(self, bytes: u64) -> Self {
        self.deed(Action::CutAnswer(bytes, None))
    }

    /// Deed: the connection ends when so many bytes of the request's body have come; nothing is carried out.
    /// Such a rule looks at the request before its body: a create has no name yet, and waits are not taken.
    #[must_use]
    pub fn cut_request(self, bytes: u64, cut: Cut) -> Self {
        self.deed(Action::CutRequest(bytes, cut))
    }

    /// Deed: the request is carried out, and the object in the answer is falsified. For a list, each item is; for a
    /// watch, the object of each event.
    #[must_use]
    pub fn lie(self, lie: impl Fn(&mut Value) + Send + Sync + 'static) -> Self {
        self.deed(Action::Lie(Arc::new(lie)))
    }

    /// Deed: the object in the answer has another uid.
    #[must_use]
    pub fn lie_uid(self, uid: &str) -> Self {
        let uid = uid.to_owned();
        self.lie(move |object| object["metadata"]["uid"] = uid.clone().into())
    }

    /// Deed: a get is answered with the object as it was before its last `back` changes, also if it is gone by now.
    /// With fewer changes, the oldest known state; with none, the truth.
    #[must_use]
    pub fn stale(self, back: usize) -> Self {
        self.deed(Action::Stale(back))
    }

    /// Deed: a watch goes wrong.
    #[must_use]
    pub fn watch(self, fault: WatchFault) -> Self {
        self.deed(Action::Watch(fault))
    }

    /// Deed: a stream opened by exec goes wrong.
    #[must_use]
    pub fn exec(self, fault: ExecFault) -> Self {
        self.deed(Action::Exec(fault))
    }

    fn deed(mut self, action: Action) -> Self {
        self.action = action;
        self
    }

    pub(crate) fn verdict(&self) -> Verdict {
        Verdict {
            apply: self.apply,
            retry_after: self.retry_after,
            message: self.message.clone(),
            before: self.before.clone(),
            after: self.after.clone(),
            action: self.action.clone(),
        }
    }
}

/// What a rule decided for one request.
#[derive(Debug, Clone)]
pub(crate) struct Verdict {
    pub(crate) apply: bool,
    pub(crate) retry_after: Option<u64>,
    pub(crate) message: Option<String>,
    pub(crate) before: Vec<Pause>,
    pub(crate) after: Vec<Pause>,
    pub(crate) action: Action,
}

impl Verdict {
    pub(crate) fn ordinary() -> Self {
        Rule::when(On::any()).verdict()
    }
}

#[derive(Debug)]
struct Entry {
    rule: Rule,
    seen: AtomicU64,
    acted: AtomicU64,
    removed: AtomicBool,
}

/// A rule that was added. Dropping this leaves the rule in force.
#[derive(Debug, Clone)]
pub struct RuleHandle(Arc<Entry>);

impl RuleHandle {
    /// How many requests the rule was for, whether it acted or not.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.0.seen.load(Ordering::SeqCst)
    }

    /// How many requests it acted on.
    #[must_use]
    pub fn acted(&self) -> u64 {
        self.0.acted.load(Ordering::SeqCst)
    }

    /// Ends the rule, for requests that come from now on.
    pub fn remove(&self) {
        self.0.removed.store(true, Ordering::SeqCst);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Rules(Mutex<Vec<RuleHandle>>);

impl Rules {
    pub(crate) fn add(&self, rule: Rule) -> RuleHandle {
        let (seen, acted, removed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let handle = RuleHandle(Arc::new(Entry { rule, seen, acted, removed }));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(handle.clone());
        handle
    }

    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Rules that act while a body is still on its way are asked before it is read.
    pub(crate) fn cut_request(&self, call: &Call) -> Option<(u64, Cut)> {
        match self.ask(call, |action| matches!(action, Action::CutRequest(..)))?.action {
            Action::CutRequest(bytes, cut) => Some((bytes, cut)),
            _ => None,
        }
    }

    pub(crate) fn decide(&self, call: &Call) -> Verdict {
        let verdict = self.ask(call, |action| !matches!(action, Action::CutRequest(..)));
        verdict.unwrap_or_else(Verdict::ordinary)
    }

    fn ask(&self, call: &Call, kind: impl Fn(&Action) -> bool) -> Option<Verdict> {
        let mut rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rules.retain(|handle| !handle.0.removed.load(Ordering::SeqCst));
        let mut verdict = None;
        for RuleHandle(entry) in rules.iter().filter(|handle| kind(&handle.0.rule.action)) {
            if !entry.rule.on.matches(call) {
                continue;
            }
            let count = entry.seen.fetch_add(1, Ordering::SeqCst) + 1;
            if verdict.is_none() && (entry.rule.from..=entry.rule.until).contains(&count) {
                entry.acted.fetch_add(1, Ordering::SeqCst);
                verdict = Some(entry.rule.verdict());
            }
        }
        verdict
    }
}
