//! What leaves a sandbox that has a gate.

use std::time::Instant;

use sandbox::{Env, ExecRequest};

use super::super::bed::unexpected;
use super::super::{GateFixture, Subject};
use super::{B, Case, millis, secs};
use crate::{Failure, Outcome, ensure, within};

const THROUGH: &str = "With a gate, whatever leaves the sandbox goes through it, and it decides by the policy that it fetches from its control plane.";

pub(super) fn cases() -> Vec<Case> {
    let case = Case::new("networking::gate", THROUGH, gate).profile("networking").needs("gate", |c| c.gate);
    // No backend of the family brings a gate of its own.
    vec![case.unproved()]
}

/// A host that no policy allows.
const DENIED: &str = "denied.invalid";

async fn gate(bed: B) -> Outcome {
    let Some(fixture) = bed.gate() else {
        return Err(Failure::new("the gate", "Setup::with_gate, where the claim gate is made", "none"));
    };
    let spec = bed.spec().with_networking(fixture.networking.clone()).with_gate(fixture.spec.clone());
    let visitor = Visitor { sandbox: bed.provision(&spec).await?, fixture: fixture.clone() };
    let GateFixture { host, port, placeholder, secret, .. } = fixture;
    let echo = visitor.post(&format!("http://{host}:{port}/echo"));

    let proxy = visitor.run("printf %s \"$HTTP_PROXY\"", String::new(), secs(15)).await?;
    ensure(!proxy.is_empty(), "HTTP_PROXY in the sandbox", "where the gate is", || "nothing".to_owned())?;
    // Before its first policy arrives, a gate denies everything.
    let begun = Instant::now();
    let answer = loop {
        let answer = visitor.send(echo.clone()).await?;
        if status(&answer) == Some(200) {
            break answer;
        }
        let seen = || visitor.shown(&answer);
        ensure(begun.elapsed() < secs(45), "the allowed host, for 45 s", "200", seen)?;
        tokio::time::sleep(millis(500)).await;
    };
    let in_place = answer.matches(secret.as_str()).count() == 2 && !answer.contains(placeholder.as_str());
    ensure(in_place, "what the origin got", "the secret in header and body, nowhere the placeholder", || {
        visitor.shown(&answer)
    })?;

    // What a gate cannot read it cannot change: not the secret, and not for who pretends.
    let tunnel = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n{}", visitor.post("/echo"));
    let answer = visitor.send(tunnel).await?;
    let untouched = answer.matches(placeholder.as_str()).count() == 2 && !answer.contains(secret.as_str());
    ensure(untouched, "what the origin got through a tunnel", "the placeholder, nowhere the secret", || {
        visitor.shown(&answer)
    })?;

    let tunnel = format!("CONNECT {DENIED}:443 HTTP/1.1\r\nHost: {DENIED}:443\r\n\r\n");
    for (what, request) in
        [("plain HTTP to another host", visitor.post(&format!("http://{DENIED}/echo"))), ("a tunnel to it", tunnel)]
    {
        let answer = visitor.send(request).await?;
        ensure(status(&answer) == Some(403), what, "403", || visitor.shown(&answer))?;
    }

    // That it can be reached was seen above.
    let result = visitor.run("exec 3<>\"/dev/tcp/$HOST/$PORT\" && echo reached", String::new(), secs(3)).await?;
    ensure(!result.contains("reached"), "the origin past the gate", "no way", || result.clone())
}

/// Somebody in the sandbox who talks HTTP.
struct Visitor {
    sandbox: Subject,
    fixture: GateFixture,
}

impl Visitor {
    /// A request with the placeholder in its header and body.
    fn post(&self, target: &str) -> String {
        let GateFixture { host, port, placeholder, .. } = &self.fixture;
        let host = if target.contains(DENIED) { DENIED.to_owned() } else { format!("{host}:{port}") };
        format!(
            "POST {target} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {placeholder}\r\nConnection: close\r\n\
             Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{placeholder}",
            placeholder.len()
        )
    }

    /// What comes back for `request` from where the variables of a proxy point.
    async fn send(&self, request: String) -> Outcome<String> {
        let text = "p=${HTTP_PROXY#*://} p=${p%%/*} h=${p%:*} h=${h#[} h=${h%]}; \
                    exec 3<>\"/dev/tcp/$h/${p##*:}\" || exit; printf %s \"$REQUEST\" >&3; cat <&3";
        self.run(text, request, secs(15)).await
    }

    async fn run(&self, text: &'static str, request: String, limit: std::time::Duration) -> Outcome<String> {
        let fixture = &self.fixture;
        let env = Env::new()
            .with("REQUEST", request)
            .and_then(|env| env.with("HOST", fixture.host.clone()))
            .and_then(|env| env.with("PORT", fixture.port.to_string()))
            .map_err(|e| Failure::new("the variables of a request", "legal ones", e.to_string()))?;
        // Past the trail, which would show what came back.
        let request = ExecRequest::shell(text).with_env(env).with_limit(limit);
        let result = within("a request from the sandbox", limit + secs(30), self.sandbox.inner.exec(request)).await?;
        let result = result.map_err(|e| unexpected("a request from the sandbox", "a result", &e))?;
        Ok(result.stdout.to_string_lossy().into_owned())
    }

    /// An answer as it may be shown.
    fn shown(&self, answer: &str) -> String {
        crate::short(&answer.replace(&self.fixture.secret, "(the secret)"))
    }
}

/// The status of an answer.
fn status(answer: &str) -> Option<u16> {
    let rest = answer.strip_prefix("HTTP/1.")?;
    rest.split(' ').nth(1)?.trim().parse().ok()
}
