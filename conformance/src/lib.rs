//! The public suite that holds a backend to the contract.
//!
//! You wrote a [`Provider`](::sandbox::Provider). Does it keep its word? This crate asks it, rule by rule: each case has an id,
//! the sentence of the contract that it quotes, and a body that finds out. And each case was itself tested: a
//! [mutant](sandbox::mutants) that breaks its rule makes it fail.
//!
//! You wrote a [`Backend`](::isolation::Backend) for a Kubernetes node stack? Its half of the suite is [`isolation`], its manual the docs of the
//! crate [`isolation`](::isolation); what follows about wiring, failures and reports holds for both.
//!
//! # 1. Write your backend
//!
//! Implement [`Provider`](::sandbox::Provider) and [`Sandbox`](::sandbox::Sandbox); `sandbox-guest` does what happens inside, over a carrier
//! of bytes that you bring. For sandboxes on one machine, its `DirProvider` needs no more than how they are made, entered and ended: the example
//! `custom_provider` of this repository is one from end to end, in one short file, and `custom_carrier` reaches its sandboxes over a WebSocket to an
//! agent in each. Put [`Checked`](::sandbox::Checked) around it: it validates, and refuses what you do not claim. Begin with
//! the one kind of networking that your sandboxes have, and no other claim; the cases of the profile `core` are then what is asked.
//!
//! **Some cases kill all that they can reach.** The suite asks the first sandbox of a run where its commands run, and refuses a backend
//! whose commands share a pid namespace with the test itself, before anything else is run.
//!
//! # 2. Wire the suite
//!
//! One file, `tests/conformance.rs`, and in `Cargo.toml` a `[[test]]` of that name with `harness = false`:
//!
//! ```no_run
//! # use sandbox::{Error, Provider};
//! # struct MyProvider;
//! # impl MyProvider { async fn connect(_: &str) -> Result<std::sync::Arc<dyn Provider>, Error> { todo!() } }
//! use conformance::sandbox::{NoBackend, Setup};
//!
//! fn main() -> std::process::ExitCode {
//!     let setup = Setup::new("mine", || async {
//!         let Ok(url) = std::env::var("MINE_URL") else {
//!             return Err(NoBackend::absent("no server", "set MINE_URL to one"));
//!         };
//!         Ok(MyProvider::connect(&url).await?)
//!     });
//!     conformance::main(setup.with_image("debian:stable-slim"))
//! }
//! ```
//!
//! `cargo test --test conformance` runs it; one filter, `--list`, `--exact`, `--skip`, `--test-threads` (here twice the cores unless
//! said otherwise, since a case waits for most of its time) and `cargo nextest` work as with any test. The image needs bash and an
//! ordinary userland. Tell [`Setup::with_leak_check`](sandbox::Setup::with_leak_check) how to look for what a session left in your
//! place: objects, processes, files. It is asked after every case, and where nothing may be made. For sandboxes that live in directories of the
//! machine of the test, [`traces_of`](sandbox::traces_of) looks.
//!
//! - A case that needs what you do not claim is shown as `[n/a: no export]` when it is listed, and ignored. One that applies to no backend of
//!   this family either is marked `unproved`, in lists and reports: yours may be the first that shows its rule to hold.
//! - A backend that is not here is one ignored entry that says what to do; with `CONFORMANCE_REQUIRE=mine` it is a failure.
//! - A case that must wait long is ignored unless `CONFORMANCE_SLOW=1`, with which those that race also run twenty times each;
//!   `CONFORMANCE_SLOW=only` runs these two kinds and nothing else, for a run of their own.
//! - `--include-ignored` and `--ignored` run those that wait long, never what does not apply.
//! - A filter that no case matches says so, `0 of 230 cases are there for "no_such"`, and is exit code 0, since one filter goes to every test
//!   binary of a `cargo test`. It is a failure where the name was spelled out with `--exact`, where `CONFORMANCE_REQUIRE` names the backend,
//!   and where nothing of what was chosen is run; a suite without any case is always one.
//!
//! For JUnit there is `cargo nextest run --profile ci --test conformance` with these lines in `.config/nextest.toml`, as this repository has
//! them; the file is `target/nextest/ci/junit.xml`, and what is ignored is not in it:
//!
//! ```toml
//! [profile.ci]
//! fail-fast = false
//!
//! [profile.ci.junit]
//! path = "junit.xml"
//! ```
//!
//! `tests/k8s.rs` of this crate, with `tests/cluster`, is such a file for a backend that is a service somewhere: nothing is made where no variable names the place. In
//! the repository of this family it runs on a cluster of yours:
//!
//! ```sh
//! CONFORMANCE_K8S=<context> CONFORMANCE_K8S_NAMESPACE=sandboxes CONFORMANCE_REQUIRE=k8s cargo test -p conformance --test k8s
//! ```
//!
//! The namespace must allow Pods that run as root, and an init container with `NET_ADMIN`; `CONTRIBUTING.md` tells the rights, the images and
//! the other variables. `-- --test-threads=2` spares a small cluster. `CONFORMANCE_K8S=<context> cargo test -p conformance` runs that test and
//! all others of this crate.
//!
//! # 3. Read a failure
//!
//! ```text
//! rule  Reaping a session again succeeds.       the sentence that does not hold
//! step  reap                                    what the case did, or waited for
//! want  success
//! got   Error { kind: NotFound, .. }
//! --- what it did last
//! provision sesn_…: ok (41ms)                   the last calls, with the end of what a command wrote to stderr
//! reap sesn_…: ok (12ms)
//! ```
//!
//! Every wait has a deadline, so nothing hangs. A failure that begins with `after the case` is a leak. One with a `note` did not come to its
//! rule, since its sandbox did not come up: look at the error, not at the rule. Once three provisions have failed and none has succeeded, no case
//! is run any more, and the others say so in one line, `not run`, with the first error.
//!
//! # 4. Claim a capability
//!
//! Set its field in [`Capabilities`](::sandbox::Capabilities). The cases that need it are no longer ignored; the claim stands
//! when they pass. What you do not claim must fail as `Unsupported` before anything is made, and there is a case for that too.
//! A gate is a program of yours, so its case also needs one to try: [`Setup::with_gate`](sandbox::Setup::with_gate). What becomes of a sandbox that
//! died is asked where [`Setup::with_killer`](sandbox::Setup::with_killer) says how one is killed.
//!
//! # 5. Publish a report
//!
//! `CONFORMANCE_REPORT=target/conformance cargo test --test conformance` leaves `report.json`, `report.md`, `report.html` (one page,
//! without scripts) and `badge.txt` (one line). From a program, [`run`] answers the [`Report`].
//! What stands in it about the place comes from [`Setup::with_fact`](sandbox::Setup::with_fact) and, for what must be looked up,
//! [`Setup::with_facts`](sandbox::Setup::with_facts): a server's version, a kernel, how processes are grouped.
//! [`Report::changes_since`] tells what changed since an older one, as `cargo run -p conformance -- diff OLD NEW` does on the command
//! line, with exit code 1 if something that passed does not any more. Under nextest each case is a process of its own: make the
//! report with `cargo test`.
//!
//! # 6. Believe it
//!
//! Run [the mutants](sandbox::mutants) around your own backend: each breaks one rule, and the case that quotes the rule must
//! notice. [`sandbox::faulty`] is the other way round: it makes calls fail on cue, for whoever uses a provider.
//!
//! # Another contract
//!
//! The runner knows nothing of sandboxes: a [`Factory`] makes what a case gets, and decides what applies.

mod case;
mod factory;
mod failure;
#[cfg(target_os = "linux")]
pub mod isolation;
mod options;
mod report;
mod runner;
pub mod sandbox;

use std::process::ExitCode;

pub use case::{Case, Need};
pub use factory::{Factory, Probe};
pub use failure::{Failure, Outcome, ensure, equal, same, short};
pub use options::Options;
pub use report::{CaseReport, Counts, Report, Verdict};
pub use runner::within;

/// The whole `main` of a test file: reads the arguments of a test binary and the variables of [`Options::from_vars`], runs
/// what they ask for, and answers the exit code.
pub fn main<F: Factory>(factory: F) -> ExitCode {
    let mut args = libtest_mimic::Arguments::from_args();
    let options = Options::from_vars(|name| std::env::var(name).ok());
    args.test_threads = args.test_threads.or(Some(options.threads));
    runner::run_as_test_binary(factory, options, args)
}

/// Runs the suite from a program and answers what it found. Prints nothing.
pub async fn run<F: Factory>(factory: F, options: Options) -> Report {
    runner::Suite::new(factory, options).await.run().await
}
