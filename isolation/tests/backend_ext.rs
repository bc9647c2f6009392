//! What callers get on top of every backend.
#![allow(clippy::unwrap_used)]

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolation::fake::FakeBackend;
use isolation::{
    Backend, BackendExt, ErrorKind, EventSink, ExecOutput, ExecSpec, ExecStatus, ExecStream, LogOptions, LogStream,
    Mode, NodeRoot, NodeSpec, OpCtx, Operation, Phase, PrepareReport, Ready, Requirements, Result, SlotName, SlotPair,
    SlotRef, SlotState, SlotStats, Status, UnitAction, UnitName, async_trait,
};

fn slot() -> SlotName {
    SlotName::new("kube1").unwrap()
}

fn ctx() -> OpCtx {
    OpCtx::new(Duration::from_secs(10))
}

fn kubelet() -> UnitName {
    UnitName::new("kubelet.service").unwrap()
}

/// One whose commands end with `status` and print `text`.
fn answering(status: i32, text: &'static str) -> FakeBackend {
    FakeBackend::new().with_exec(move |_, _| Ok(ExecOutput::new(ExecStatus::Exited(status)).with_stdout(text)))
}

fn words(spec: &ExecSpec) -> Vec<String> {
    spec.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

#[tokio::test]
async fn units_are_told_through_the_nodes_own_manager() {
    let fake = FakeBackend::new();
    let dynamic: Arc<dyn Backend> = Arc::new(fake.clone());
    let actions = [
        (UnitAction::Start, "start"),
        (UnitAction::Stop, "stop"),
        (UnitAction::Restart, "restart"),
        (UnitAction::Enable, "enable"),
        (UnitAction::Disable, "disable"),
    ];
    for (action, _) in actions {
        dynamic.unit(&ctx(), &slot(), &kubelet(), action).await.unwrap();
    }
    for (exec, (_, verb)) in fake.execs().iter().zip(actions) {
        assert_eq!(words(exec), ["systemctl", verb, "--", "kubelet.service"]);
    }
    let failed = answering(5, "").unit(&ctx(), &slot(), &kubelet(), UnitAction::Start).await.unwrap_err();
    assert_eq!((failed.kind(), failed.status()), (ErrorKind::Command, Some(ExecStatus::Exited(5))));
}

#[tokio::test]
async fn ready_is_asked_as_far_as_it_is_wanted() {
    for (ready, asked) in [
        (Ready::Booted, vec!["true"]),
        (Ready::SystemRunning, vec!["systemctl", "is-system-running"]),
        (Ready::Unit(kubelet()), vec!["systemctl", "is-active", "--", "kubelet.service"]),
    ] {
        let fake = answering(0, "running\n");
        fake.wait_ready(&ctx(), &slot(), &ready).await.unwrap();
        assert_eq!(words(&fake.execs()[0]), asked);
    }
    answering(1, "degraded\n").wait_ready(&ctx(), &slot(), &Ready::SystemRunning).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_at_the_deadline_or_when_it_is_hopeless() {
    let late = answering(3, "activating\n").wait_ready(&ctx(), &slot(), &Ready::Unit(kubelet())).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout);
    assert!(late.to_string().contains("activating"), "{late}");
    for (state, kind) in [
        (SlotState::Absent, ErrorKind::UnknownSlot),
        (SlotState::Prepared, ErrorKind::NotRunning),
        (SlotState::Stopped, ErrorKind::NotRunning),
        (SlotState::Failed, ErrorKind::NotRunning),
        (SlotState::Starting, ErrorKind::Timeout),
    ] {
        let fake = FakeBackend::new().with_status(Status::new(state));
        assert_eq!(fake.wait_ready(&ctx(), &slot(), &Ready::Booted).await.unwrap_err().kind(), kind, "{state}");
    }
}

#[tokio::test]
async fn a_log_as_text_never_follows() {
    let fake = FakeBackend::new().with_log("one\ntwo\n");
    let options = LogOptions::default().with_follow(true);
    assert_eq!(fake.logs_to_string(&ctx(), &slot(), &options, 100).await.unwrap(), "one\ntwo\n");
    assert_eq!(fake.logs_to_string(&ctx(), &slot(), &options, 3).await.unwrap(), "one");
}

#[tokio::test]
async fn a_slots_events_arrive_beside_the_callers_own() {
    let (fake, other) = (FakeBackend::new(), SlotName::new("kube2").unwrap());
    let heard = Arc::new(Mutex::new(0));
    let count = Arc::clone(&heard);
    let outer = ctx().with_events(EventSink::new(move |_| *count.lock().unwrap() += 1));
    let (inner, mut events) = fake.events(&outer, &slot(), 4);
    fake.start(&inner, &slot()).await.unwrap();
    fake.start(&inner, &other).await.unwrap();
    fake.start(&outer, &slot()).await.unwrap();
    let (first, second) = (events.try_recv().unwrap(), events.try_recv().unwrap());
    assert_eq!((first.operation, first.phase, second.phase), (Operation::Start, Phase::Started, Phase::Finished));
    assert_eq!((first.slot, first.op_id), (slot(), second.op_id));
    assert!(events.try_recv().is_err(), "neither the other slot's nor those of another context");
    assert_eq!(*heard.lock().unwrap(), 6);
    // Nobody reads: what does not fit is dropped, and no call waits for it.
    for _ in 0..10 {
        fake.stop(&inner, &slot()).await.unwrap();
    }
    assert_eq!(events.len(), 4);
}

#[tokio::test]
async fn what_a_slot_uses_is_that_of_its_main_process() {
    for (status, kind) in [
        (Status::default(), ErrorKind::UnknownSlot),
        (Status::new(SlotState::Stopped).with_main_pid(1), ErrorKind::NotRunning),
        (Status::new(SlotState::Running), ErrorKind::Unsupported),
    ] {
        let fake = FakeBackend::new().with_status(status);
        assert_eq!(fake.stats(&ctx(), &slot()).await.unwrap_err().kind(), kind);
    }
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeBackend::stateful(dir.path(), SlotPair::default());
    fake.prepare(&ctx(), &NodeSpec::new(slot())).await.unwrap();
    fake.start(&ctx(), &slot()).await.unwrap();
    let pid = fake.status(&ctx(), &slot()).await.unwrap().main_pid.unwrap();
    let kind = |stats: isolation::Result<SlotStats>| stats.map(drop).map_err(|error| error.kind());
    // Which of the two it is depends on this machine's control groups; it is the same for the process and for its slot.
    assert_eq!(kind(fake.stats(&ctx(), &slot()).await), kind(SlotStats::of_process(pid)));
}

/// A backend that answers nothing, and looks at no deadline.
#[derive(Debug)]
struct Silent;

#[async_trait]
impl Backend for Silent {
    fn mode(&self) -> Mode {
        Mode::default()
    }

    fn requirements(&self) -> Requirements {
        Requirements::default()
    }

    async fn prepare(&self, _: &OpCtx, _: &NodeSpec) -> Result<(Arc<dyn NodeRoot>, PrepareReport)> {
        pending().await
    }

    async fn start(&self, _: &OpCtx, _: &dyn SlotRef) -> Result<()> {
        pending().await
    }

    async fn stop(&self, _: &OpCtx, _: &dyn SlotRef) -> Result<()> {
        pending().await
    }

    async fn restart(&self, _: &OpCtx, _: &dyn SlotRef) -> Result<()> {
        pending().await
    }

    async fn destroy(&self, _: &OpCtx, _: &dyn SlotRef) -> Result<()> {
        pending().await
    }

    async fn status(&self, _: &OpCtx, _: &dyn SlotRef) -> Result<Status> {
        pending().await
    }

    async fn exec(&self, _: &OpCtx, _: &dyn SlotRef, _: &ExecSpec) -> Result<ExecOutput> {
        pending().await
    }

    async fn exec_stream(&self, _: &OpCtx, _: &dyn SlotRef, _: &ExecSpec) -> Result<ExecStream> {
        pending().await
    }

    async fn logs(&self, _: &OpCtx, _: &dyn SlotRef, _: &LogOptions) -> Result<LogStream> {
        pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_never_answers_keeps_nobody() {
    let slot = SlotName::new("kube1").unwrap();
    let ctx = || OpCtx::new(Duration::from_secs(5));
    let calls = async {
        [
            Silent.wait_ready(&ctx(), &slot, &Ready::Booted).await.unwrap_err(),
            Silent.logs_to_string(&ctx(), &slot, &LogOptions::default(), 100).await.unwrap_err(),
            Silent.stats(&ctx(), &slot).await.unwrap_err(),
        ]
    };
    for error in tokio::time::timeout(Duration::from_secs(60), calls).await.expect("each ends at its deadline") {
        assert_eq!(error.kind(), ErrorKind::Timeout);
    }
}
