//! The stateful fake, as the suite takes it.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use conformance::isolation::{Caps, Fault, Footprint, Harness, Setup};
use isolation::fake::FakeBackend;
use isolation::{
    Backend, ExecOutput, ExecStream, HostCommand, HostRunner, LogStream, Mode, NodeSpec, OpCtx, Result, SlotLocks,
    SlotName, SlotPair, Supervisor, SystemRunner, async_trait,
};

/// Runs programs and remembers which; can pretend that none is there.
#[derive(Debug, Default)]
struct Recorder {
    system: SystemRunner,
    ran: Mutex<Vec<String>>,
    hidden: AtomicBool,
}

impl Recorder {
    fn note(&self, command: &HostCommand) {
        self.ran.lock().unwrap_or_else(PoisonError::into_inner).push(command.program.clone());
    }
}

#[async_trait]
impl HostRunner for Recorder {
    fn resolve(&self, program: &str) -> Option<PathBuf> {
        if self.hidden.load(Ordering::Relaxed) { None } else { self.system.resolve(program) }
    }

    async fn run(&self, ctx: &OpCtx, command: HostCommand) -> Result<ExecOutput> {
        self.note(&command);
        self.system.run(ctx, command).await
    }

    fn log(&self, command: HostCommand) -> Result<LogStream> {
        self.note(&command);
        self.system.log(command)
    }

    fn stream(&self, command: HostCommand) -> Result<ExecStream> {
        self.note(&command);
        self.system.stream(command)
    }
}

struct Fake {
    dir: tempfile::TempDir,
    /// Whether the directory has a file system of its own.
    has_room: AtomicBool,
    backend: FakeBackend,
    runner: Arc<Recorder>,
}

impl Fake {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a test machine has a temporary directory");
        let runner = Arc::new(Recorder::default());
        let backend = FakeBackend::stateful(dir.path(), SlotPair::default());
        let backend = backend.with_runner(Arc::<Recorder>::clone(&runner));
        Self { dir, has_room: AtomicBool::new(false), backend, runner }
    }

    fn file(&self, slot: &SlotName, suffix: &str) -> PathBuf {
        self.dir.path().join(format!("{slot}.{suffix}"))
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if self.has_room.load(Ordering::Relaxed) {
            unbind(self.dir.path());
        }
    }
}

/// Ends a fault when it is dropped.
struct Undo<F: FnMut()>(F);

impl<F: FnMut()> Drop for Undo<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn undo(end: impl FnMut() + Send + 'static) -> Option<Box<dyn Any + Send>> {
    Some(Box::new(Undo(end)))
}

fn bind(source: &Path, target: &Path) -> bool {
    let mount = std::process::Command::new("mount").arg("--bind").arg(source).arg(target).output();
    mount.is_ok_and(|output| output.status.success())
}

fn unbind(target: &Path) -> bool {
    let umount = std::process::Command::new("umount").arg(target).output();
    umount.is_ok_and(|output| output.status.success())
}

/// Gives the files below `dir` so much room, on a file system of their own.
fn set_room(dir: &Path, options: &str) -> bool {
    let mount = std::process::Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(dir).output();
    mount.is_ok_and(|output| output.status.success())
}

/// Whether commands can run as somebody else.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Whether this test may mount.
fn can_mount() -> bool {
    static CAN: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
        let (a, b) = (tempfile::tempdir(), tempfile::tempdir());
        matches!((&a, &b), (Ok(a), Ok(b)) if bind(a.path(), b.path()) && unbind(b.path()))
    });
    *CAN
}

/// The files below `dir` and the processes that carry its mark.
fn footprint(dir: &Path) -> Footprint {
    let mut footprint = Footprint::new();
    footprint.add_files(dir);
    let Ok(secret) = std::fs::read_to_string(dir.join(Supervisor::MARK)) else { return footprint };
    let mark = format!("ISOLATION_SLOT={secret}:").into_bytes();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environ.split(|byte| *byte == 0).any(|variable| variable.starts_with(&mark)) {
            footprint.add(format!("process {}", entry.file_name().to_string_lossy()), "running");
        }
    }
    footprint
}

#[async_trait]
impl Harness for Fake {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.backend.clone())
    }

    fn mode(&self) -> Mode {
        Mode::default()
    }

    fn caps(&self) -> Caps {
        let mut caps = Caps::default();
        caps.exclusive = true;
        caps.stream_exec = true;
        caps.signal_status = true;
        caps.logs_when_stopped = true;
        caps.mounts = true;
        caps.devices = true;
        caps.mounts_visible = true;
        caps.main_pid = true;
        caps.executed = true;
        caps.fault_hide_command = true;
        caps.fault_hold_lock = true;
        caps.fault_break_log = true;
        caps.fault_host_line = true;
        caps.fault_manager_away = true;
        caps.fault_half_root = true;
        caps.fault_stale_registration = true;
        caps.fault_reboot = true;
        // Some of what the fake does only root may do.
        caps.exec_user = is_root();
        caps.devices_usable = std::fs::File::open("/dev/kmsg").is_ok();
        caps.fault_foreign_mount = can_mount();
        caps.fault_no_space = can_mount();
        caps
    }

    fn pair(&self) -> SlotPair {
        SlotPair::default()
    }

    fn spec(&self, slot: &SlotName) -> NodeSpec {
        NodeSpec::new(slot.clone())
    }

    async fn footprint(&self) -> Footprint {
        let dir = self.dir.path().to_path_buf();
        tokio::task::spawn_blocking(move || footprint(&dir)).await.expect("looking at files does not panic")
    }

    async fn rendered(&self, slot: &SlotName) -> String {
        std::fs::read_to_string(self.file(slot, "conf")).unwrap_or_default()
    }

    async fn emit_log(&self, slot: &SlotName, unit: &str, line: &str) {
        self.backend.emit(slot, unit, line);
    }

    fn executed(&self) -> Vec<String> {
        self.runner.ran.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn inject(&self, fault: Fault<'_>) -> Option<Box<dyn Any + Send>> {
        match fault {
            Fault::HideCommand => {
                let runner = Arc::clone(&self.runner);
                runner.hidden.store(true, Ordering::Relaxed);
                undo(move || runner.hidden.store(false, Ordering::Relaxed))
            }
            Fault::HoldLock(slot) => {
                // Locks of its own are as good as another process: the kernel tells open files apart, not processes.
                let ctx = OpCtx::new(Duration::from_secs(5));
                let guard = SlotLocks::new(self.dir.path()).acquire(&ctx, slot).await.ok()?;
                Some(Box::new(guard))
            }
            Fault::BreakLog(stderr) => {
                self.backend.break_next_log(stderr);
                undo(|| {})
            }
            Fault::HostLine { unit, line } => {
                self.backend.emit_host(unit, line);
                undo(|| {})
            }
            Fault::ManagerAway => {
                let backend = self.backend.clone();
                backend.set_manager_away(true);
                undo(move || backend.set_manager_away(false))
            }
            Fault::HalfRoot(slot) => {
                let etc = self.dir.path().join(slot.as_str()).join("etc");
                std::fs::create_dir_all(&etc).ok()?;
                std::fs::write(self.dir.path().join(slot.as_str()).join("half-done"), "").ok()?;
                undo(|| {})
            }
            Fault::StaleRegistration(slot) => {
                std::fs::write(self.file(slot, "pid"), "4194304").ok()?;
                undo(|| {})
            }
            Fault::Reboot => {
                self.backend.reboot().await.ok()?;
                undo(|| {})
            }
            Fault::ForeignMount { source, target } if bind(source, target) => {
                let target = target.to_path_buf();
                undo(move || {
                    unbind(&target);
                })
            }
            // Two pages: enough for a lock and the first file of a root, and for nothing more.
            Fault::NoSpace if set_room(self.dir.path(), "size=8k,mode=700") => {
                self.has_room.store(true, Ordering::Relaxed);
                let dir = self.dir.path().to_path_buf();
                // What did not fit stays there half-done.
                undo(move || {
                    set_room(&dir, "remount,size=64m");
                })
            }
            _ => None,
        }
    }
}

/// A fake of its own for each case.
#[allow(dead_code, reason = "not every test takes the harness as it is")]
pub(crate) fn setup() -> Setup {
    Setup::new("fake", || async { Ok(harness()) })
}

pub(crate) fn harness() -> Arc<dyn Harness> {
    Arc::new(Fake::new())
}
