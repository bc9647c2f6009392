//! A Kubernetes API server inside the test process, for the failures that a real cluster does not show on cue.
//!
//! It speaks HTTP/1.1 on a port of the loopback interface, keeps pods, namespaces and nodes, leads pods through the
//! steps of their lives, and runs commands as processes of this machine. And it misbehaves on request: [`Rule`] says
//! which requests are dropped, delayed, answered wrongly or cut, [`ExecFault`] and [`WatchFault`] how a stream goes
//! wrong, [`Fate`] what becomes of a pod, [`Gate`] when.
//!
//! It is no proof that something works on Kubernetes. What a real cluster shows is to be shown on a real cluster; this
//! is for what can't be had there at the right moment: a create that is applied and answered 504, a stream that breaks
//! after byte 4096, a watch that lies.
//!
//! ```
//! use fake_apiserver::{FakeApi, On, Rule, Verb};
//! use k8s_openapi::api::core::v1::Pod;
//! use kube::api::{Api, PostParams};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = FakeApi::start().await;
//! server.rule(Rule::when(On::pods(Verb::Create)).nth(1).applied().answer(504));
//!
//! let pods: Api<Pod> = Api::namespaced(server.client(), "default");
//! let pod: Pod = serde_json::from_value(serde_json::json!({
//!     "metadata": {"name": "a"},
//!     "spec": {"containers": [{"name": "main", "image": "any"}]},
//! }))?;
//! assert!(pods.create(&PostParams::default(), &pod).await.is_err());
//! assert!(pods.get("a").await.is_ok());
//! assert_eq!(server.count(&On::pods(Verb::Create)), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # What it imitates faithfully
//!
//! * **Objects**: uid, `resourceVersion`, creation time; 409 on a taken name; preconditions on uid and version (409);
//!   `Status` bodies with the reasons that clients branch on. Merge patch.
//! * **Deletion**: `deletionTimestamp` and removal by the kubelet; at once for grace zero, a pod without a node and a
//!   pod that is finished.
//! * **Lists**: label and field selectors, `limit` and `continue` over one snapshot, exactly a version, 410 for one that is too old;
//!   metadata only when the client asks for that.
//! * **Watches**: from a version, or from now with what is there; what enters or leaves a selector is added or deleted;
//!   bookmarks, `timeoutSeconds`, `sendInitialEvents`; 410 as an error event.
//! * **Exec**: the WebSocket protocols v4 and v5, the status with its causes, back pressure in both directions, the end
//!   of input by channel 255. A closed stream does not end the process. A process that was killed is 128 and the signal.
//! * **Access**: what is forbidden is answered 403, and `SelfSubjectAccessReview` agrees.
//!
//! # What it does not imitate
//!
//! * Authentication, TLS, HTTP/2, compression, discovery, other kinds of objects, updates by PUT, JSON patch, server-side apply,
//!   `generateName`, finalizers, deleting collections, log, attach, port-forward, SPDY.
//! * Validation beyond names and the presence of a container; admission, Pod Security and quotas (a namespace only
//!   carries the labels). A namespace comes into being when it is first used, and its deletion deletes nothing else.
//! * A strategic merge patch is applied as a plain merge patch: lists are replaced.
//! * Containers. A command runs as this user on this machine, in a temporary directory per pod and with a clean
//!   environment, without any confinement; all containers of a pod share it. Nothing runs but what a test sends to exec.
//!   Terminals are not: `tty` is ignored.
//! * When a pod goes, what runs in it is found by the mark in its environment and by its working directory. A process
//!   that sheds both survives.
//! * A client that went away: the process keeps running, its input at an end, its output thrown away. Real runtimes differ.
//! * Bookmarks come when a test asks ([`FakeApi::send_bookmarks`]) and at the end of a watch, not by the clock.
//! * A pod that was asked to go goes on the next tick, not after its grace; nothing is sent SIGTERM.
//!
//! Linux only: processes are found through /proc and killed through pidfds.

#![cfg(target_os = "linux")]

mod api;
mod call;
mod exec;
mod fate;
mod gate;
mod kubelet;
mod log;
mod on;
mod options;
mod patch;
mod place;
mod refusal;
mod rest;
mod rule;
mod selector;
mod server;
mod shared;
mod store;
mod time;
mod watch;
mod wire;

pub use api::FakeApi;
pub use call::Verb;
pub use exec::{ExecFault, Trace};
pub use fate::Fate;
pub use gate::Gate;
pub use kubelet::Step;
pub use log::Logged;
pub use on::On;
pub use options::{NotRunning, Options, Protocol};
pub use rule::{Rule, RuleHandle};
pub use watch::WatchFault;
pub use wire::Cut;
