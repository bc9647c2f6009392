//! Every rule of the contract, on a backend of one's own.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use conformance::isolation::{Caps, Fault, Footprint, Harness, Setup};
use custom_backend::Bays;
use isolation::{Backend, HostCommand, Mode, NodeSpec, OpCtx, SlotLocks, SlotName, SlotPair, async_trait};
use rustix::process::{Pid, Signal, kill_process_group};

/// A directory of its own for each case.
struct Mine {
    dir: tempfile::TempDir,
    bays: Arc<Bays>,
}

#[async_trait]
impl Harness for Mine {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::<Bays>::clone(&self.bays)
    }

    fn mode(&self) -> Mode {
        Mode::None
    }

    /// What is not claimed is listed as not applicable: commands as another user, mounts and devices of its own, and the
    /// faults that this harness can't bring about.
    fn caps(&self) -> Caps {
        let mut caps = Caps::default();
        caps.exclusive = true;
        caps.stream_exec = true;
        caps.signal_status = true;
        caps.logs_when_stopped = true;
        caps.mounts = true;
        caps.devices = true;
        caps.main_pid = true;
        caps.fault_hold_lock = true;
        caps.fault_half_root = true;
        caps.fault_reboot = true;
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
        let look = move || {
            let mut footprint = Footprint::new();
            footprint.add_files(&dir);
            footprint
        };
        tokio::task::spawn_blocking(look).await.expect("looking at files does not panic")
    }

    async fn rendered(&self, slot: &SlotName) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("{slot}.json"))).unwrap_or_default()
    }

    async fn emit_log(&self, slot: &SlotName, unit: &str, line: &str) {
        self.bays.write_log(slot, unit, line);
    }

    fn executed(&self) -> Vec<String> {
        Vec::new()
    }

    async fn inject(&self, fault: Fault<'_>) -> Option<Box<dyn Any + Send>> {
        match fault {
            Fault::HoldLock(slot) => {
                let ctx = OpCtx::new(Duration::from_secs(5));
                Some(Box::new(SlotLocks::new(self.dir.path()).acquire(&ctx, slot).await.ok()?))
            }
            Fault::HalfRoot(slot) => {
                let root = self.dir.path().join(slot.as_str());
                std::fs::create_dir_all(root.join("etc")).ok()?;
                std::fs::write(root.join("half-done"), "").ok()?;
                Some(Box::new(()))
            }
            Fault::Reboot => {
                let ctx = OpCtx::new(Duration::from_secs(60));
                for slot in self.pair().both() {
                    // As when the host goes down: nobody is told.
                    let main = self.bays.status(&ctx, slot).await.ok()?.main_pid;
                    if let Some(main) = main.and_then(|pid| Pid::from_raw(pid.try_into().ok()?)) {
                        kill_process_group(main, Signal::KILL).ok()?;
                    }
                    while self.bays.status(&ctx, slot).await.ok()?.running() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
                self.bays.boot(&ctx).await.ok()?;
                Some(Box::new(()))
            }
            _ => None,
        }
    }
}

fn main() -> std::process::ExitCode {
    conformance::main(Setup::new("bays", || async {
        let dir = tempfile::tempdir().expect("a test machine has a temporary directory");
        let main = HostCommand::new("sh", ["-c", "echo up; exec sleep infinity"]);
        let bays = Arc::new(Bays::new(dir.path(), SlotPair::default(), main));
        Ok(Arc::new(Mine { dir, bays }) as Arc<dyn Harness>)
    }))
}
