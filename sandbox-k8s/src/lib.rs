//! Sandboxes on Kubernetes: one hardened Pod per session.
//!
//! ```no_run
//! use std::time::Duration;
//! use sandbox::{Error, ExecRequest, ExecResult, Provider, Sandbox, SessionId, Spec};
//! use sandbox_k8s::K8sConfig;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let provider = K8sConfig::default().with_namespace("sandboxes").with_deployment("my-service").connect().await?;
//! let spec = Spec::new(SessionId::generate(), "debian:stable-slim");
//! let found = provider.preflight(&spec).await?;
//! assert!(found.is_ready(), "{:?}", found.findings);
//!
//! let sandbox = provider.provision(&spec).await?;
//! let result = work(&*sandbox).await; // Whatever came of it, the Pod is reaped: it outlives handles, and this process.
//! provider.reap(&spec.session).await?;
//! assert_eq!(result?.stdout.bytes, "42\n");
//! # Ok(())
//! # }
//!
//! async fn work(sandbox: &dyn Sandbox) -> Result<ExecResult, Error> {
//!     sandbox.exec(ExecRequest::shell("echo $((6 * 7))").with_limit(Duration::from_secs(5))).await
//! }
//! ```
//!
//! # How to depend on it
//!
//! ```toml
//! [dependencies]
//! sandbox = { git = "…" }       # the repository of this family; the same for each crate of it, with one `rev`
//! sandbox-k8s = { git = "…" }   # with rustls and ring; for aws-lc-rs: default-features = false, features = ["rustls-aws-lc-rs"]
//! k8s-openapi = { version = "0.29", features = ["latest"] }   # the version of the Kubernetes API types: one for the whole program
//! tokio = { version = "1", features = ["macros", "rt-multi-thread", "time"] }
//! # Only for a `kube::Client` of your own, with the TLS that you choose: then `default-features = false` for sandbox-k8s.
//! kube = { version = "5", default-features = false, features = ["client", "ws", "rustls-tls", "ring"] }
//! ```
//!
//! Of `k8s-openapi` an application chooses the version, by a feature such as `latest` or by `K8S_OPENAPI_ENABLED_VERSION` in the environment of
//! the build; this crate uses what all of them have. What it takes and answers of `kube` is [`kube::Client`] alone, so that kube's major
//! version is this crate's too.
//!
//! # The cluster
//!
//! Kubernetes 1.29 or later, and a namespace for sandboxes alone. `deploy/rbac.yaml` in this crate's folder makes one, and another one for the
//! service, whose ServiceAccount gets the rights that it needs; [`K8sProvider::preflight`] names those that are missing.
//! `deploy/networkpolicy.yaml` is a second wall where the cluster's network plugin keeps policies. Nothing is installed in the cluster, and
//! nothing but Pods is made.
//!
//! [`K8sConfig::connect`] makes a client from a kubeconfig or from within a cluster; [`K8sProvider::new`] takes a [`kube::Client`] of yours, with
//! its own proxies, credentials and retries.
//!
//! A [`Spec`](sandbox::Spec) bounds neither memory nor disk unless its [`Hardening`](sandbox::Hardening) does: then the node's do. A namespace
//! with Pod Security `restricted` takes [`Hardening::restricted`](sandbox::Hardening::restricted) with `unrestricted` networking.
//!
//! # The image
//!
//! `/bin/bash` at that very path, 4.4 or later, and the ordinary tools that `sandbox-guest` lists; [`K8sProvider::probe_image`] tells. A tool
//! without which no command runs is named by the first provision of an image. Where `run_as_user` is another than 0 or the root is read-only,
//! the working directory, `/tmp` and `/mnt` are empty volumes; otherwise the image's own user must be able to write to the working directory.
//!
//! # How a sandbox is found
//!
//! A session's Pod is `sbx-` and the session id, with `_` as `-`, so that a session id is unique in its namespace, over all deployments. Its
//! labels and annotations begin with [`K8sConfig::domain`]:
//!
//! | key | what |
//! |---|---|
//! | label `session`, label `deployment` | whose it is; a Pod of that name without these very values is `NotOurs` |
//! | label `networking` | for network policies: `unrestricted`, `limited`, `none`, or, whatever it asks for, `gated` with a gate |
//! | `fingerprint` | a digest of image, directory and networking: another one is `SpecMismatch` |
//! | `bound` | a digest of variables and hardening, which stay as they were; a difference is logged |
//! | `nonce` | which call has made it, so that a repeated request knows its own |
//! | `recreated` | why an earlier sandbox of the session is no more |
//! | `env` | variables that are not UTF-8 |
//! | `schema` | the version of all this |
//!
//! # What a provision makes of what it finds
//!
//! | the Pod | a provision | attach |
//! |---|---|---|
//! | runs | answers it, if the spec is the same; else `SpecMismatch` | answers it |
//! | is starting | waits, at most [`K8sConfig::ready_timeout`]; then `DeadlineExceeded` | `NotFound` |
//! | is being removed | waits until it is gone, at most 15 seconds beyond its grace, and makes another; else `DeadlineExceeded` | `NotFound` |
//! | has ended: evicted, out of memory, its node shut down, its first process gone | removes it and makes another, which says so in `recreated()` | `NotFound`, with the cause |
//! | finds no node for [`K8sConfig::unschedulable_grace`] | `Unschedulable`; removed if this call has made it | `NotFound` |
//! | has an image that cannot be pulled for [`K8sConfig::image_pull_grace`], or never | `ImagePull`; removed likewise | `NotFound` |
//! | cannot make its container, or cut its network off | `Unavailable`; removed likewise | `NotFound` |
//! | has a gate that ends again and again, or had its minute and never listened | `Unavailable`; removed whoever has made it, and to whatever spec | `NotFound` |
//! | is on a node that nobody hears from | waits, at most [`K8sConfig::ready_timeout`], then `DeadlineExceeded`; never removed | `NotFound`, with [`NodeLost`](sandbox::Death::NodeLost) |
//! | is removed while somebody waits, or was found and dies then | begins again, three times; then `Busy` | `NotFound` |
//! | was made by this call, and dies before it runs a command | `Unavailable`, with the cause; its remains are removed | `NotFound`, with the cause |
//!
//! Nobody hears from a node once the Pod's phase is `Unknown`, or its condition `Ready` was taken away although its containers are ready by
//! their own word. What is then asked of a handle fails as `NotFound` with `NodeLost` if no shell starts there either. The node may come back,
//! and the handle works again.
//!
//! A Pod that is removed is looked at once more, and goes only in that very state: one that has become ready meanwhile stays, since others
//! can be at work in it, unless it is of no use to anybody: it lacks a tool, its shells are refused, or its gate's token is valid no longer.
//! Where what was begun is not known to be gone, the error has `Effect::Unknown`: the Pod may be there, and the next provision takes it up.
//!
//! If files of an earlier sandbox went with a Pod that ended, or that this call removed, the next one says so in `recreated()`, however many
//! provisions fail in between; this provider and its clones remember it. An error of a provision that removed one says so too: by
//! [`Error::death`](sandbox::Error::death), and `Effect::Partial`. That somebody asked for a Pod to be removed is no such loss, unless the
//! cluster was that somebody: a drain, a taint, a lost node.
//!
//! # Errors
//!
//! What the kinds of [`sandbox::ErrorKind`] mean here, beside what they mean everywhere:
//!
//! | kind | from | what to do |
//! |---|---|---|
//! | `Forbidden` | a right that is missing (401, 403), credentials that cannot be had, and what admission refuses, which is a 403 as well: Pod Security, a quota, a RuntimeClass that is not there, a webhook | read [`Error::reason`](sandbox::Error::reason), which has the server's words; [`K8sProvider::preflight`] tells them apart |
//! | `InvalidSpec` | a field of spec or configuration, before anything is asked; what the server finds invalid in the Pod, or too large (413, 422) | mend the spec |
//! | `Unsupported` | a gate without [`K8sProvider::with_gates`]; a required bound of processes | |
//! | `NotOurs` | a Pod with the session's name, of another deployment or of nobody; it is left alone | another session id, deployment or namespace |
//! | `SpecMismatch` | another image, directory, networking or [`K8sConfig::runtime_class`] than the Pod has | the old spec, or reap |
//! | `Busy` | another call, or another process, changes the session's sandbox; a conflict (409) | repeat it later |
//! | `ImagePull`, `Unschedulable` | what the kubelet or the scheduler says, for longer than its grace | read the reason |
//! | `Unavailable` | no answer but one of 408, 429 or 5xx, or no connection, until the deadline; a namespace that is not there; a Pod that cannot be started; an image that lacks a tool | read the reason: a server's is over by itself |
//! | `DeadlineExceeded` | no answer within [`K8sConfig::request_timeout`], not ready within [`K8sConfig::ready_timeout`], not gone within [`K8sConfig::stop_timeout`] | see [`Error::effect`](sandbox::Error::effect), and repeat it |
//! | `NotFound` | no Pod, or one that is not ready, or dead: [`Error::death`](sandbox::Error::death) says why, where that is known | provision again |
//! | `Lost`, `Protocol` | the way into the Pod broke, or what answers there is no shell of ours | see the effect |
//! | `Other` | any other answer of the server | |
//!
//! An error of the API server says nothing about the Pod: reads and removals are repeated until their deadline, and nothing is removed because
//! of it. Where it says how long to wait, in its `Status` (`retryAfterSeconds`) or in `Retry-After`, that is heeded, up to ten seconds; else
//! pauses grow by themselves, up to some two seconds. That something is not there counts only in the API server's own words: any other 404,
//! of a proxy on the way say, is as 502 is. A command is never repeated.
//!
//! # Time
//!
//! Every request has a deadline of its own, also through a client that waits longer. A command goes down a WebSocket that is open already;
//! idle ones close after a minute, but for the one that ends commands, and that one with the last handle. A connection that is silent is
//! pinged every 10 seconds, and given up after 45 without an answer, unless something inside does not read its input; then it is given up once
//! the API server has not answered for as long. While streams are open the Pod is looked at every 5 seconds, so that a command whose Pod was
//! removed, or whose node is lost and takes no shell any more, ends even if the connection does not.
//!
//! If this process dies, a command with a limit is killed at it, inside; one without runs on unheard until it ends or its Pod goes, which
//! [`K8sConfig::max_lifetime`] sees to if nobody else does.
//!
//! # On your own cluster
//!
//! The conformance suite, which holds every backend to the contract, runs there from this family's repository, and makes and removes Pods:
//!
//! ```sh
//! CONFORMANCE_K8S=<context> CONFORMANCE_K8S_NAMESPACE=sandboxes CONFORMANCE_REQUIRE=k8s cargo test -p conformance --test k8s
//! ```
//!
//! `CONTRIBUTING.md` says what the namespace must allow, which images are pulled, and how to run this crate's own tests there.
//!
//! # What it cannot do
//!
//! Bound the number of processes: set the kubelet's `podPidsLimit`. Without a gate `limited` networking reaches nothing, whatever hosts it
//! lists.
//!
//! # Gates
//!
//! With [`K8sProvider::with_gates`] a spec may have a [gate](sandbox::GateSpec): a native sidecar that starts before the sandbox, and through which
//! all its traffic goes. Its image is yours:
//!
//! - The kubelet runs its `ENTRYPOINT`, without arguments of ours, as root on a read-only root, with `NET_ADMIN`, `SETUID` and `SETGID` alone.
//!   It lets only the user `GATE_UID` send, becomes that user, and listens on `127.0.0.1:15080`.
//! - In its environment are `CONTROLPLANE_URL`, `GATE_TOKEN`, `GATE_UID` (65532) and, where the spec has telemetry,
//!   `OTEL_EXPORTER_OTLP_ENDPOINT` and, without TLS, `OTEL_EXPORTER_OTLP_INSECURE=true`.
//! - `/gate -healthcheck` serves the probes alone: it succeeds once the gate listens. It is run once a second, 60 times at most, until it does;
//!   a gate that does not listen by then is started anew. After that it is run every 5 seconds, and three failures in a row make the sandbox
//!   one that is not ready.
//! - The `allowed_hosts` of `limited` networking are not handed to the gate: its control plane must know them by the token.
//!
//! The sandbox starts after that, with the proxy variables set and without `NET_RAW`, `SETUID` and `SETGID`; it must name its user, another
//! than the gate's.
//!
//! A token is made before the Pod and recorded after it, by whoever made the Pod and nobody else; if that fails, the Pod is removed. A
//! sandbox whose gate ends again and again, as with a token that nobody has recorded, or never listens, is removed by the provision that
//! finds it; so is one whose provision is dropped before its token is recorded, at once. A
//! session that is provisioned without its gate, or with one for the first time, gets a new sandbox.
//!
//! A token is taken back before its sandbox is removed: by a reap, also of a session that has none; by a provision without a gate that
//! finds one with a gate, alive or dead; and by a provision that removes what it has made. A `destroy` takes nothing back: the session may
//! go on, and whoever ends it reaps it. Where a token cannot be taken back the Pod stays, so that the next one who removes it tries again;
//! only a Pod whose token could not be recorded goes all the same. A dead sandbox whose successor has a gate as well keeps its token until
//! the successor's is recorded. A process without [`with_gates`](K8sProvider::with_gates) removes such Pods and takes nothing back: give
//! every process that reaps the same two.

mod api;
mod carrier;
mod config;
mod connect;
mod error;
mod gate;
mod grammar;
mod handle;
mod image;
mod listing;
mod make;
mod names;
mod pod;
mod preflight;
mod provider;
mod pump;
mod reclaim;
mod request;
mod sessions;
mod stamp;
mod state;
mod toleration;
mod wait;

pub use config::{ImagePullPolicy, K8sConfig};
pub use grammar::{parse_image_pull_secrets, parse_node_selector};
pub use image::ImageReport;
pub use preflight::{Finding, FindingKind, Preflight};
pub use provider::K8sProvider;
pub use toleration::{TaintEffect, Toleration, TolerationOperator, parse_tolerations};
