//! `pods/exec`: a command in a pod, over a WebSocket.

mod fault;
mod frames;
mod process;
mod session;

use std::future::Future;
use std::sync::Arc;

use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

pub use fault::{ExecFault, Trace};
use process::Job;
use session::Subject;

use crate::call::Call;
use crate::options::{NotRunning, Protocol};
use crate::refusal::Refusal;
use crate::shared::Shared;
use crate::store::Key;
use crate::wire::{Cut, Wire};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const CLOSE: u8 = 255;

/// Checks the request as an API server and a kubelet do, starts the process, and answers with the upgrade. What
/// follows belongs to a task of its own.
pub(crate) fn open(
    shared: &Arc<Shared>,
    call: &Call,
    headers: &HeaderMap,
    upgrade: Option<OnUpgrade>,
    fault: ExecFault,
) -> Result<Response<()>, Refusal> {
    let (uid, spec, runs) = target(shared, call)?;
    let query = &call.query;
    let mut job = Job {
        argv: query.all("command"),
        stdin: query.flag("stdin"),
        stdout: query.flag("stdout"),
        stderr: query.flag("stderr"),
        env: Vec::new(),
        cwd: None,
    };
    if job.argv.is_empty() {
        return Err(Refusal::bad_request("you must specify at least one command for the container"));
    }
    if !(job.stdin || job.stdout || job.stderr) {
        return Err(Refusal::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
    }
    job.of_container(&spec);
    let (protocol, response) = handshake(shared, headers, &fault)?;
    let upgrade = upgrade.ok_or_else(|| Refusal::bad_request("Upgrade request required"))?;
    let subject = match runs {
        Ok(()) => match process::start(shared, &uid, &job) {
            Ok(pipes) => Subject::Process(pipes),
            Err(error) => Subject::Refusal(could_not_start(&job.argv[0], &error)),
        },
        Err(message) => match shared.options.not_running {
            NotRunning::Refuse => return Err(Refusal::kubelet(message)),
            NotRunning::InStream => {
                let message = format!("unable to upgrade connection: {message}");
                Subject::Refusal(Refusal::internal(&message).status())
            }
        },
    };
    let cut = shared.cuts.next();
    shared.tasks.spawn(serve(upgrade, subject, protocol, fault, cut));
    Ok(response)
}

async fn serve(
    upgrade: OnUpgrade,
    subject: Subject,
    protocol: Protocol,
    fault: ExecFault,
    cut: impl Future<Output = Cut>,
) {
    // Without a stream, the process goes on alone.
    let Ok(upgraded) = upgrade.await else { return };
    let Ok(parts) = upgraded.downcast::<TokioIo<Wire>>() else { return };
    let Some(stream) = parts.io.into_inner().into_stream() else { return };
    session::run(stream, &parts.read_buf, subject, protocol, &fault, cut).await;
}

/// The pod's uid, the container's spec, and why it does not run if it does not.
type Target = (String, Value, Result<(), String>);

fn target(shared: &Arc<Shared>, call: &Call) -> Result<Target, Refusal> {
    let name = call.name.as_deref().unwrap_or("");
    let key = Key::new("pods", call.namespace.as_deref().unwrap_or(""), name);
    let pod = shared.store(|store| store.get(&key).cloned()).ok_or_else(|| Refusal::not_found("pods", name))?;
    let list = |field: &str| pod["spec"][field].as_array().cloned().unwrap_or_default();
    let (main, init) = (list("containers"), list("initContainers"));
    let spec = match call.query.get("container") {
        Some(container) => main
            .iter()
            .chain(&init)
            .find(|spec| spec["name"] == container)
            .ok_or_else(|| Refusal::bad_request(format!("container {container} is not valid for pod {name}")))?,
        None if main.len() == 1 => &main[0],
        None => {
            let names: Vec<&str> = main.iter().filter_map(|spec| spec["name"].as_str()).collect();
            return Err(Refusal::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: {names:?}"
            )));
        }
    };
    if !pod["spec"]["nodeName"].is_string() {
        return Err(Refusal::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let container = spec["name"].as_str().unwrap_or("");
    let statuses = ["containerStatuses", "initContainerStatuses"];
    let mut statuses = statuses.iter().flat_map(|field| pod["status"][field].as_array().into_iter().flatten());
    let runs = statuses.any(|status| status["name"] == container && status["state"]["running"].is_object());
    let why_not = if runs { Ok(()) } else { Err(format!("container not found ({container:?})")) };
    Ok((pod["metadata"]["uid"].as_str().unwrap_or("").to_owned(), spec.clone(), why_not))
}

fn handshake(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    fault: &ExecFault,
) -> Result<(Protocol, Response<()>), Refusal> {
    let text = |value: Option<&http::HeaderValue>| value.and_then(|v| v.to_str().ok()).unwrap_or("").to_owned();
    let key = text(headers.get(SEC_WEBSOCKET_KEY));
    if !text(headers.get(UPGRADE)).eq_ignore_ascii_case("websocket") || key.is_empty() {
        return Err(Refusal::bad_request("Upgrade request required"));
    }
    let offered: Vec<String> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .flat_map(|value| text(Some(value)).split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>())
        .collect();
    let ours = match fault.protocol {
        Some(only) => vec![only],
        None => shared.options.protocols.clone(),
    };
    let chosen = offered.iter().find_map(|name| ours.iter().find(|protocol| protocol.name() == name));
    let Some(chosen) = chosen.copied() else {
        return Err(Refusal::bad_request(format!("no supported protocol among {offered:?}")));
    };
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_ACCEPT, derive_accept_key(key.as_bytes()))
        .header(SEC_WEBSOCKET_PROTOCOL, chosen.name())
        .body(())
        .map_err(|error| Refusal::internal(&error.to_string()))?;
    Ok((chosen, response))
}

fn could_not_start(program: &str, error: &std::io::Error) -> Value {
    let why = match error.kind() {
        std::io::ErrorKind::NotFound => "executable file not found in $PATH".to_owned(),
        _ => error.to_string(),
    };
    let message = format!("error executing command in container: failed to start exec: exec: {program:?}: {why}");
    Refusal::internal(&message).status()
}
