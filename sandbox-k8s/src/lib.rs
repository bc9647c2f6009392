//! Sandboxes on Kubernetes: one hardened Pod per session.
//!
//! ```no_run
//! use std::time::Duration;
//! use sandbox::{ExecRequest, Provider, SessionId, Spec};
//! use sandbox_k8s::K8sConfig;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), sandbox::Error> {
//! let provider = K8sConfig::default().with_namespace("sandboxes").with_deployment("my-service").connect().await?;
//! let spec = Spec::new(SessionId::generate(), "debian:stable-slim");
//! let found = provider.preflight(&spec).await?;
//! assert!(found.is_ready(), "{:?}", found.findings);
//!
//! let sandbox = provider.provision(&spec).await?;
//! let result = sandbox.exec(ExecRequest::shell("echo $((6 * 7))").with_limit(Duration::from_secs(5))).await?;
//! assert_eq!(result.stdout.bytes.as_ref(), b"42\n");
//! provider.reap(&spec.session).await
//! # }
//! ```
//!
//! # The cluster
//!
//! Kubernetes 1.29 or later, and a namespace for sandboxes alone. `deploy/rbac.yaml` in this crate's folder makes one, with the rights that a
//! service needs; [`K8sProvider::preflight`] names those that are missing. Nothing is installed in the cluster, and nothing but Pods is made.
//!
//! [`K8sConfig::connect`] makes a client from a kubeconfig or from within a cluster; [`K8sProvider::new`] takes a [`kube::Client`] of yours, with
//! its own proxies, credentials and retries, so that kube's major version is this crate's too. Choose a version of the Kubernetes API types
//! in your application, by a feature of `k8s-openapi` such as `latest`; this crate uses what all of them have.
//!
//! # The image
//!
//! `/bin/bash` at that very path, and the ordinary tools that `sandbox-guest` lists; [`K8sProvider::probe_image`] tells. A tool without which no
//! command runs is named by the first provision of an image. Where `run_as_user` is another than 0 or the root is read-only, the working
//! directory, `/tmp` and `/mnt` are empty volumes; otherwise the image's own user must be able to write to the working directory.
//!
//! # How a sandbox is found
//!
//! A session's Pod is `sbx-` and the session id, with `_` as `-`. Its labels and annotations begin with [`K8sConfig::domain`]:
//!
//! | key | what |
//! |---|---|
//! | label `session`, label `deployment` | whose it is; a Pod of that name without these very values is `NotOurs` |
//! | label `networking` | for network policies |
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
//! | runs | answers it, if the spec is the same | answers it |
//! | is starting | waits, at most [`K8sConfig::ready_timeout`] | `NotFound` |
//! | is being removed | waits until it is gone, at most 15 seconds beyond its grace, and makes another | `NotFound` |
//! | has ended: evicted, out of memory, its node shut down, its first process gone | removes it and makes another, which says so in `recreated()` | `NotFound`, with the cause |
//! | finds no node for [`K8sConfig::unschedulable_grace`] | `Unschedulable`; removed if this call has made it | `NotFound` |
//! | has an image that cannot be pulled for [`K8sConfig::image_pull_grace`], or never | `ImagePull`; removed likewise | `NotFound` |
//! | cannot make its container, or cut its network off | `Unavailable`; removed likewise | `NotFound` |
//! | has a gate that ends again and again | `Unavailable`; removed whoever has made it, and to whatever spec | `NotFound` |
//! | is in phase `Unknown` | waits, at most [`K8sConfig::ready_timeout`]; never removed | `NotFound` |
//! | is removed while somebody waits, or was found and dies then | begins again, three times; then `Busy` | `NotFound` |
//! | was made by this call, and dies before it runs a command | `Unavailable`, with the cause; its remains are removed | `NotFound`, with the cause |
//!
//! A Pod that is removed is looked at once more, and goes only in that very state: one that has become ready meanwhile stays, since others
//! can be at work in it, unless it is of no use to anybody: it lacks a tool, its shells are refused, or its gate's token is recorded nowhere.
//! Where what was begun is not known to be gone, the error has `Effect::Unknown`: the Pod may be there, and the next provision takes it up.
//!
//! If files of an earlier sandbox went with a Pod that ended, or that this call removed, the next one says so in `recreated()`, however many
//! provisions fail in between; this provider and its clones remember it. An error of a provision that removed one says so too: by
//! [`Error::death`](sandbox::Error::death), and `Effect::Partial`. That somebody asked for a Pod to be removed is no such loss, unless the
//! cluster was that somebody: a drain, a taint, a lost node.
//!
//! An error of the API server says nothing about the Pod: reads and removals are repeated until their deadline, and nothing is removed because
//! of it. What a server says of `Retry-After` is heeded, up to ten seconds. A command is never repeated.
//!
//! # Time
//!
//! Every request has a deadline of its own, also through a client that waits longer. A command goes down a WebSocket that is open already;
//! idle ones close after a minute. A connection that is silent is pinged every 10 seconds, and given up after 45 without an answer, unless
//! something inside does not read its input; then it is given up once the API server has not answered for as long. While streams are open the Pod is looked at every 5 seconds, so that a command whose Pod was
//! removed ends even if the connection does not.
//!
//! # What it cannot do
//!
//! Bound the number of processes: set the kubelet's `podPidsLimit`. Without a gate `limited` networking reaches nothing, whatever hosts it
//! lists.
//!
//! # Gates
//!
//! With [`K8sProvider::with_gates`] a spec may have a [gate](sandbox::GateSpec): a native sidecar that starts before the sandbox, and through which
//! all its traffic goes. Its image's `/gate` gets `CONTROLPLANE_URL`, `GATE_TOKEN` and `GATE_UID` (65532); it starts as root with `NET_ADMIN`,
//! `SETUID` and `SETGID` alone, lets only that user send, becomes it, and listens on `127.0.0.1:15080`; `/gate -healthcheck` succeeds once it
//! does. The sandbox starts after that, with the proxy variables set and without `NET_RAW`, `SETUID` and `SETGID`; it must name its user, another
//! than the gate's.
//!
//! A token is made before the Pod and recorded after it, by whoever made the Pod and nobody else; if that fails, the Pod is removed. A
//! sandbox whose gate ends again and again, as with a token that nobody has recorded, is removed by the provision that finds it. A
//! session that is provisioned without its gate, or with one for the first time, gets a new sandbox; the old token is revoked before the old
//! one is removed, as in a reap.

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
