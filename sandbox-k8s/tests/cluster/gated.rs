//! Sandboxes with a gate: when its token is made, recorded and taken back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::api::{DeleteParams, PostParams};
use libtest_mimic::Trial;
use sandbox::{
    AllowedHost, Death, Error, ErrorKind, GateMinter, GateRevoker, GateSpec, GateToken, Networking, Provider,
    SessionId, Spec, async_trait,
};
use sandbox_k8s::K8sProvider;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use crate::bed::{Bed, equal, fails, holds, reap, says};
use crate::{Outcome, bed_trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        bed_trial("gated::life", life),
        bed_trial("gated::shape_changes", shape_changes),
        bed_trial("gated::token_not_recorded", token_not_recorded),
        bed_trial("gated::token_forgotten", token_forgotten),
        bed_trial("gated::never_listens", never_listens),
        bed_trial("gated::racers", racers),
        bed_trial("gated::revoked_before_a_reap", revoked_before_a_reap),
        bed_trial("gated::revoked_without_a_successor", revoked_without_a_successor),
    ]
}

/// A control plane: the one valid token of each session, and what was asked of it.
#[derive(Debug, Default)]
struct Plane {
    valid: Mutex<HashMap<SessionId, String>>,
    log: Mutex<Vec<&'static str>>,
    fails: AtomicBool,
}

impl Plane {
    fn note(&self, what: &'static str) -> Result<(), Error> {
        self.log.lock().expect("nobody panics with it").push(what);
        match self.fails.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Unavailable).because("the plane is down")),
            false => Ok(()),
        }
    }

    /// What was asked since the last time.
    fn asked(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.log.lock().expect("nobody panics with it"))
    }

    /// Serves the policy to gates with a valid token, at the address that Pods of the test bed reach; says where.
    async fn serve(self: &Arc<Self>, bed: &Bed) -> Result<String, crate::Any> {
        let server = crate::bed::kube_config().await?.cluster_url.host().unwrap_or_default().to_owned();
        let network = server.rsplit_once('.').ok_or("the server has no address of version 4")?.0.to_owned();
        let listener = TcpListener::bind("0.0.0.0:0").await?;
        let url = format!("http://{network}.254:{}", listener.local_addr()?.port());
        let (plane, _) = (Arc::clone(self), bed);
        // Ends with the runtime of the test.
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let plane = Arc::clone(&plane);
                tokio::spawn(async move {
                    let (from, mut to) = socket.into_split();
                    let mut lines = BufReader::new(from).lines();
                    let mut good = false;
                    while let Ok(Some(line)) = lines.next_line().await {
                        if line.is_empty() {
                            break;
                        }
                        if let Some(token) = line.strip_prefix("Authorization: Bearer ") {
                            good =
                                plane.valid.lock().expect("nobody panics with it").values().any(|valid| valid == token);
                        }
                    }
                    let answer = if good { "200 OK" } else { "401 Unauthorized" };
                    let text = format!("HTTP/1.1 {answer}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}");
                    let _ = to.write_all(text.as_bytes()).await;
                });
            }
        });
        Ok(url)
    }
}

#[async_trait]
impl GateMinter for Plane {
    fn generate(&self) -> Result<GateToken, Error> {
        self.log.lock().expect("nobody panics with it").push("generate");
        GateToken::generate()
    }

    async fn persist(&self, session: &SessionId, token: &GateToken) -> Result<(), Error> {
        self.note("persist")?;
        self.valid.lock().expect("nobody panics with it").insert(session.clone(), token.expose().to_owned());
        Ok(())
    }
}

#[async_trait]
impl GateRevoker for Plane {
    async fn revoke(&self, session: &SessionId) -> Result<(), Error> {
        self.note("revoke")?;
        self.valid.lock().expect("nobody panics with it").remove(session);
        Ok(())
    }
}

struct Gated {
    plane: Arc<Plane>,
    provider: K8sProvider,
    spec: Spec,
}

async fn open(bed: &Bed) -> Result<Gated, crate::Any> {
    let plane = Arc::new(Plane::default());
    let url = plane.serve(bed).await?;
    let mut spec = bed
        .spec()
        .with_networking(Networking::limited([AllowedHost::new("example.org")?]))
        .with_gate(GateSpec::new("testbed.local/gate:1", url));
    spec.hardening.run_as_user = Some(0);
    Ok(Gated { provider: with(bed, &plane)?, plane, spec })
}

/// A provider as another process of the same service would have it.
fn with(bed: &Bed, plane: &Arc<Plane>) -> Result<K8sProvider, Error> {
    let (minter, revoker) = (Arc::clone(plane), Arc::clone(plane));
    Ok(bed.provider()?.with_gates(minter, revoker))
}

/// How often the gate was started, asked whether it is well, and called from inside, this call included.
async fn calls(sandbox: &Arc<dyn sandbox::Sandbox>) -> Result<(u64, u64, u64), crate::Any> {
    let ask = "exec 3<>/dev/tcp/127.0.0.1/15080 && printf 'GET /cgi-bin/calls HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3";
    let said = says(sandbox, ask).await?;
    let count = |what: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
        line.and_then(|count| count.trim().parse().ok()).ok_or_else(|| format!("no {what} in {said:?}"))
    };
    Ok((count("start")?, count("healthcheck")?, count("call")?))
}

async fn life(bed: Bed) -> Outcome {
    let Gated { plane, provider, spec } = open(&bed).await?;
    let sandbox = provider.provision(&spec).await?;
    equal("a provision", plane.asked(), vec!["generate", "persist"])?;
    let proxy = "exec 3<>/dev/tcp/127.0.0.1/15080 && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && tail -n1 <&3";
    equal("the gate answers inside", says(&sandbox, proxy).await?, "ok".to_owned())?;
    // It was started once and asked until it listened; the kubelet goes on asking, and the sandbox can count on it.
    let first = calls(&sandbox).await?;
    holds("one start, some questions", first.0 == 1 && first.1 >= 1 && first.2 == 1, first)?;
    let until = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let now = calls(&sandbox).await?;
        equal("it is the same gate", now.0, 1)?;
        if now.1 > first.1 {
            break holds("each call counts", now.2 > first.2, now)?;
        }
        holds("readiness is asked for", tokio::time::Instant::now() < until, now)?;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let proxies = says(&sandbox, "echo $HTTP_PROXY $https_proxy \"[$NO_PROXY$no_proxy]\"").await?;
    equal("the proxies", proxies, "http://127.0.0.1:15080 http://127.0.0.1:15080 []".to_owned())?;
    holds(
        "the token is not there",
        !says(&sandbox, "env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'").await?.contains("gtk_"),
        (),
    )?;
    // The hosts of a gated sandbox are the gate's to know: another list is the same sandbox.
    let uid = bed.uid(&spec.session).await?;
    let other = spec.clone().with_networking(Networking::Unrestricted);
    with(&bed, &plane)?.provision(&other).await?;
    provider.attach(&spec.session).await?;
    equal("an adoption", (plane.asked(), bed.uid(&spec.session).await?), (vec![], uid))?;
    let refused = fails("a gate without a minter", bed.provider()?.provision(&spec).await)?;
    equal("its kind", refused.kind(), ErrorKind::Unsupported)?;
    reap(&provider, &spec.session).await?;
    equal("a reap", plane.asked(), vec!["revoke"])
}

async fn shape_changes(bed: Bed) -> Outcome {
    let Gated { plane, provider, spec } = open(&bed).await?;
    let mut plain = spec.clone().with_networking(Networking::Unrestricted);
    plain.gate = None;
    provider.provision(&plain).await?;
    let gated = provider.provision(&spec).await?;
    equal("a gate for one that has none", plane.asked(), vec!["generate", "persist"])?;
    equal("it says so", gated.recreated().map(|r| r.reason), Some(Death::Replaced))?;
    let uid = bed.uid(&spec.session).await?;
    plane.fails.store(true, Ordering::SeqCst);
    fails("no gate, while the token cannot be taken back", provider.provision(&plain).await)?;
    equal("the Pod", bed.uid(&spec.session).await?, uid)?;
    plane.fails.store(false, Ordering::SeqCst);
    let again = provider.provision(&plain).await?;
    equal("no gate for one that has one", plane.asked(), vec!["revoke", "revoke"])?;
    equal("it says so", again.recreated().map(|r| r.reason), Some(Death::Replaced))?;
    equal("no proxies", says(&again, "env | grep -ci proxy").await?, "0".to_owned())?;
    reap(&provider, &spec.session).await
}

async fn token_not_recorded(bed: Bed) -> Outcome {
    let Gated { plane, provider, spec } = open(&bed).await?;
    plane.fails.store(true, Ordering::SeqCst);
    let error = fails("a provision whose token is not recorded", provider.provision(&spec).await)?;
    equal("its kind", error.kind(), ErrorKind::Unavailable)?;
    equal("what is left", bed.uid(&spec.session).await?, None)?;
    // It may have been recorded all the same.
    equal("what was asked", plane.asked(), vec!["generate", "persist", "revoke"])
}

/// A process that died between making the Pod and recording the token leaves a gate that nobody lets in.
async fn token_forgotten(bed: Bed) -> Outcome {
    let Gated { plane, provider, spec } = open(&bed).await?;
    provider.provision(&spec).await?;
    let name = spec.session.object_name("sbx");
    let mut pod = bed.pods.get(&name).await?;
    bed.pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
    while bed.pods.get_opt(&name).await?.is_some() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    pod.metadata = kube::core::ObjectMeta {
        name: pod.metadata.name,
        labels: pod.metadata.labels,
        annotations: pod.metadata.annotations,
        ..Default::default()
    };
    pod.status = None;
    if let Some(spec) = &mut pod.spec {
        spec.node_name = None;
    }
    plane.valid.lock().expect("nobody panics with it").clear();
    bed.pods.create(&PostParams::default(), &pod).await?;
    plane.asked();
    let error = fails("a provision that finds it", provider.provision(&spec).await)?;
    holds("why", error.reason().is_some_and(|r| r.contains("the token is not valid")), &error)?;
    equal("it is removed, whoever made it", bed.uid(&spec.session).await?, None)?;
    equal("what was asked", plane.asked(), vec!["revoke"])?;
    provider.provision(&spec).await?;
    equal("the next one", plane.asked(), vec!["generate", "persist"])?;
    reap(&provider, &spec.session).await
}

/// A gate that runs and never listens, whose provision was given up: the kubelet starts it anew after a minute, and whoever finds it then
/// knows.
async fn never_listens(bed: Bed) -> Outcome {
    let Gated { plane, provider, mut spec } = open(&bed).await?;
    let closed = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
    // It asks its control plane again and again, and nobody answers.
    spec.gate = Some(GateSpec::new("testbed.local/gate:1", format!("http://127.0.0.1:{closed}")));
    let given_up = tokio::time::timeout(Duration::from_secs(5), provider.provision(&spec)).await;
    holds("it does not start", given_up.is_err(), &given_up)?;
    let uid = bed.uid(&spec.session).await?;
    equal("its token is recorded", plane.asked(), vec!["generate", "persist"])?;
    let begun = std::time::Instant::now();
    let finds = bed.provider_with(|config| config.ready_timeout = Duration::from_secs(150))?;
    let finds = finds.with_gates(Arc::<Plane>::clone(&plane), Arc::<Plane>::clone(&plane));
    let error = fails("a provision that finds it", finds.provision(&spec).await)?;
    holds("why", error.reason().is_some_and(|why| why.contains("the gate did not listen in")), &error)?;
    equal("its kind", error.kind(), ErrorKind::Unavailable)?;
    let took = begun.elapsed().as_secs();
    holds("after its minute, and not at the end of all patience", (40..120).contains(&took), took)?;
    holds("it is removed, whoever made it", uid.is_some() && bed.uid(&spec.session).await?.is_none(), &uid)?;
    equal("what was asked", plane.asked(), vec!["revoke"])
}

async fn racers(bed: Bed) -> Outcome {
    let Gated { plane, provider, spec } = open(&bed).await?;
    let others = [provider, with(&bed, &plane)?, with(&bed, &plane)?];
    let all = futures::future::join_all(others.iter().map(|provider| provider.provision(&spec))).await;
    for one in all {
        equal("each has a sandbox that works", says(&one?, "echo alive").await?, "alive".to_owned())?;
    }
    let asked = plane.asked();
    equal("tokens recorded", asked.iter().filter(|what| **what == "persist").count(), 1)?;
    reap(&others[0], &spec.session).await
}

async fn revoked_before_a_reap(bed: Bed) -> Outcome {
    let Gated { plane, provider, spec } = open(&bed).await?;
    provider.provision(&spec).await?;
    let uid = bed.uid(&spec.session).await?;
    plane.fails.store(true, Ordering::SeqCst);
    fails("a reap whose token cannot be taken back", provider.reap(&spec.session).await)?;
    equal("the Pod", bed.uid(&spec.session).await?, uid)?;
    plane.fails.store(false, Ordering::SeqCst);
    reap(&provider, &spec.session).await?;
    plane.asked();
    provider.reap(&spec.session).await?;
    equal("a reap of nothing", plane.asked(), vec!["revoke"])
}

/// A token is taken back before a sandbox that died gets a successor without a gate; one that is destroyed keeps its token until a reap.
async fn revoked_without_a_successor(bed: Bed) -> Outcome {
    let Gated { plane, provider, spec } = open(&bed).await?;
    let sandbox = provider.provision(&spec).await?;
    sandbox.destroy().await?;
    equal("a sandbox that is destroyed", plane.asked(), vec!["generate", "persist"])?;
    let sandbox = provider.provision(&spec).await?;
    plane.asked();
    // Its first process ends on request.
    fails("a command that ends the sandbox", says(&sandbox, "kill -TERM 1; sleep 20").await)?;
    let mut plain = spec.clone().with_networking(Networking::Unrestricted);
    plain.gate = None;
    let again = provider.provision(&plain).await?;
    equal("it says so", again.recreated().map(|r| r.reason), Some(Death::Ended))?;
    equal("a dead one whose successor has none", plane.asked(), vec!["revoke"])?;
    reap(&provider, &spec.session).await
}
