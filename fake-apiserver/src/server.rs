//! Connections, and what happens to each request on them.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt};
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};

use crate::call::{Call, Verb};
use crate::exec;
use crate::refusal::Refusal;
use crate::rest;
use crate::rule::{Action, Verdict};
use crate::shared::Shared;
use crate::watch;
use crate::wire::{Control, Cut, Wire};

/// What an API server takes as a body.
const LONGEST_BODY: usize = 3 * 1024 * 1024;
/// How long a client may take to send one.
const BODY_PATIENCE: Duration = Duration::from_secs(30);

type Body = UnsyncBoxBody<Bytes, Broken>;
type Answer = Result<Response<Body>, Broken>;

/// The connection is to end, without more words.
#[derive(Debug)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection is cut on purpose")
    }
}

impl std::error::Error for Broken {}

/// Takes connections until the task is aborted.
pub(crate) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => shared.tasks.spawn(connection(stream, Arc::clone(&shared))),
            // Out of descriptors, most likely: others have to go first.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    // Before the look, so that no cut falls in between.
    let cut = shared.cuts.next();
    if shared.cuts.is_down() {
        // With no time to linger, closing resets: as good as refused.
        let _ = stream.set_zero_linger();
        return;
    }
    // Small answers go at once. If it can't be set, they come late and are the same.
    let _ = stream.set_nodelay(true);
    let control = Control::new();
    let wire = TokioIo::new(Wire::new(stream, Arc::clone(&control)));
    let service = service_fn(|request| request_of(Arc::clone(&shared), Arc::clone(&control), request));
    let serving = http1::Builder::new().serve_connection(wire, service).with_upgrades();
    tokio::select! {
        // How a connection ends is the client's to judge.
        _ = serving => {}
        cut = cut => control.cut(cut),
    }
}

async fn request_of(shared: Arc<Shared>, control: Arc<Control>, mut request: Request<Incoming>) -> Answer {
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let (parts, body) = request.into_parts();
    let mut call = Call::parse(&parts.method, parts.uri.path(), parts.uri.query().unwrap_or(""));
    let id = shared.log.add(&call, parts.method.as_str(), &parts.uri.to_string());
    if let Some((bytes, cut)) = shared.rules.cut_request(&call) {
        read_some(body, bytes).await;
        control.cut(cut);
        return Err(Broken);
    }
    let body = match read(body).await {
        Ok(body) => body,
        Err(refusal) => {
            shared.log.edit(id, |entry| entry.status = Some(refusal.code.as_u16()));
            return Ok(refused(&refusal));
        }
    };
    if call.verb == Verb::Create && call.name.is_none() {
        let object: Option<Value> = serde_json::from_slice(&body).ok();
        call.name = object.and_then(|object| object["metadata"]["name"].as_str().map(str::to_owned));
    }
    shared.log.edit(id, |entry| {
        entry.body = body.clone();
        entry.name = call.name.clone();
    });
    let verdict = shared.rules.decide(&call);
    for pause in &verdict.before {
        pause.take().await;
    }
    let asked = Asked { shared: &shared, control: &control, call: &call, parts: &parts, body: &body };
    let answer = asked.answer(&verdict, upgrade).await;
    if let Ok(answer) = &answer {
        shared.log.edit(id, |entry| entry.status = Some(answer.status().as_u16()));
    }
    answer
}

struct Asked<'a> {
    shared: &'a Arc<Shared>,
    control: &'a Arc<Control>,
    call: &'a Call,
    parts: &'a Parts,
    body: &'a Bytes,
}

impl Asked<'_> {
    async fn answer(&self, verdict: &Verdict, upgrade: Option<OnUpgrade>) -> Answer {
        let harmful =
            matches!(verdict.action, Action::Answer(_) | Action::AnswerPlain(_) | Action::Drop(_) | Action::Hang);
        let answer = if harmful && !verdict.apply { None } else { Some(self.serve(verdict, upgrade).await) };
        for pause in &verdict.after {
            pause.take().await;
        }
        match (&verdict.action, answer) {
            (Action::Answer(code) | Action::AnswerPlain(code), _) => {
                let mut refusal = Refusal::scripted(*code, verdict.message.clone(), verdict.retry_after);
                refusal.plain = matches!(verdict.action, Action::AnswerPlain(_));
                Ok(refused(&refusal))
            }
            (Action::Hang, _) => std::future::pending().await,
            (Action::CutAnswer(bytes, cut), Some(answer)) => Ok(self.cut(answer, *bytes, *cut)),
            (Action::Drop(cut), _) => {
                self.control.cut(*cut);
                Err(Broken)
            }
            (_, Some(answer)) => Ok(answer),
            (_, None) => Err(Broken),
        }
    }

    /// Serves the request as usual, but for what a rule falsifies.
    async fn serve(&self, verdict: &Verdict, upgrade: Option<OnUpgrade>) -> Response<Body> {
        match self.try_serve(verdict, upgrade).await {
            Ok(response) => response,
            Err(refusal) => refused(&refusal),
        }
    }

    async fn try_serve(&self, verdict: &Verdict, upgrade: Option<OnUpgrade>) -> Result<Response<Body>, Refusal> {
        self.authorize()?;
        let accept = self.header(ACCEPT);
        let partial = accept.contains("as=PartialObjectMetadata");
        match self.call.verb {
            Verb::Connect if self.call.subresource.as_deref() == Some("exec") => {
                let fault = match &verdict.action {
                    Action::Exec(fault) => fault.clone(),
                    _ => exec::ExecFault::new(),
                };
                let response = exec::open(self.shared, self.call, &self.parts.headers, upgrade, fault)?;
                Ok(response.map(|()| full(Bytes::new())))
            }
            Verb::Watch if matches!(self.call.resource.as_str(), "pods" | "nodes" | "namespaces" | "events") => {
                let (fault, lie) = match &verdict.action {
                    Action::Watch(fault) => (Some(*fault), None),
                    Action::Lie(lie) => (None, Some(Arc::clone(lie))),
                    _ => (None, None),
                };
                let events = watch::start(self.shared, self.call, partial, fault, lie)?;
                Ok(response(StatusCode::OK, "application/json", streamed(events)))
            }
            _ => {
                if let (Action::Stale(back), Verb::Get, Some(key)) =
                    (&verdict.action, self.call.verb, rest::key_of(self.call))
                    && let Some(object) = self.shared.store(|store| store.earlier(&key, *back))
                {
                    return Ok(json(StatusCode::OK, &object));
                }
                let kind = self.header(CONTENT_TYPE);
                let (status, mut object) = rest::serve(self.shared, self.call, &accept, &kind, self.body).await?;
                if let Action::Lie(lie) = &verdict.action {
                    match object["items"].as_array_mut() {
                        Some(items) => items.iter_mut().for_each(|item| lie(item)),
                        None => lie(&mut object),
                    }
                }
                Ok(json(status, &object))
            }
        }
    }

    fn header(&self, name: http::HeaderName) -> String {
        let value = self.parts.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or("").to_owned()
    }

    fn authorize(&self) -> Result<(), Refusal> {
        let resource = self.call.full_resource();
        // A stream opened by GET needs both, since Kubernetes 1.35.
        let verbs: &[&str] =
            if self.call.verb == Verb::Connect { &["get", "create"] } else { &[self.call.verb.as_str()] };
        match verbs.iter().find(|verb| !self.shared.access.allows(verb, &resource)) {
            Some(verb) => Err(Refusal::forbidden(&resource, self.call.name.as_deref().unwrap_or(""), verb)),
            None => Ok(()),
        }
    }

    /// The same answer, with a body that ends too early.
    fn cut(&self, answer: Response<Body>, bytes: u64, cut: Option<Cut>) -> Response<Body> {
        let (mut parts, body) = answer.into_parts();
        parts.headers.remove(http::header::CONTENT_LENGTH);
        let state = Some((body, bytes, Arc::clone(self.control)));
        let body = stream::unfold(state, move |state| async move {
            let (mut body, left, control) = state?;
            if left == 0 {
                let cut = match cut {
                    None => std::future::pending().await,
                    Some(Cut::Close) => return None,
                    Some(cut) => cut,
                };
                // What was let through has to be on its way before the connection ends.
                control.flushed().await;
                control.cut(cut);
                return Some((Err(Broken), None));
            }
            let frame = body.frame().await?;
            let data = frame.ok()?.into_data().ok()?;
            let count = data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            Some((Ok(Frame::data(data.slice(..count))), Some((body, left - count as u64, control))))
        });
        Response::from_parts(parts, StreamBody::new(body).boxed_unsync())
    }
}

async fn read(body: Incoming) -> Result<Bytes, Refusal> {
    match tokio::time::timeout(BODY_PATIENCE, Limited::new(body, LONGEST_BODY).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(_)) => Err(Refusal::too_large()),
        Err(_) => Err(Refusal::bad_request("the body of the request did not come")),
    }
}

async fn read_some(mut body: Incoming, bytes: u64) {
    let mut left = bytes;
    let reading = async {
        while left > 0 {
            let Some(Ok(frame)) = body.frame().await else { return };
            left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len() as u64));
        }
    };
    // A client that sends no more is cut off as well.
    let _ = tokio::time::timeout(BODY_PATIENCE, reading).await;
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never: Infallible| match never {}).boxed_unsync()
}

fn streamed(stream: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Body {
    StreamBody::new(stream.map(|Ok(bytes)| Ok(Frame::data(bytes)))).boxed_unsync()
}

fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

fn json(status: StatusCode, value: &Value) -> Response<Body> {
    response(status, "application/json", full(value.to_string().into()))
}

fn refused(refusal: &Refusal) -> Response<Body> {
    let mut response = match refusal.plain {
        true => response(refusal.code, "text/plain", full(Bytes::from(refusal.message().to_owned()))),
        false => json(refusal.code, &refusal.status()),
    };
    if let Some(seconds) = refusal.retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}
