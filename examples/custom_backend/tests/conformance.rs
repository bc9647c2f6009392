//! Every rule of the contract, on a backend of one's own.

use std::any::Any;
use std::sync::Arc;

use conformance::isolation::{Caps, Fault, Footprint, Harness, Setup};
use custom_backend::Watched;
use isolation::fake::FakeBackend;
use isolation::{Backend, Mode, NodeSpec, SlotName, SlotPair, async_trait};

/// A directory of its own for each case. What is not claimed is listed as not applicable.
struct Mine {
    dir: tempfile::TempDir,
    inner: FakeBackend,
}

#[async_trait]
impl Harness for Mine {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(Watched::new(Arc::new(self.inner.clone()), self.dir.path().join("not-now")))
    }

    fn mode(&self) -> Mode {
        Mode::Nspawn
    }

    fn caps(&self) -> Caps {
        let mut caps = Caps::default();
        caps.exclusive = true;
        caps.stream_exec = true;
        caps.signal_status = true;
        caps.logs_when_stopped = true;
        caps.mounts_visible = true;
        caps.main_pid = true;
        caps
    }

    fn pair(&self) -> SlotPair {
        SlotPair::default()
    }

    fn spec(&self, slot: &SlotName) -> NodeSpec {
        NodeSpec::new(slot.clone())
    }

    async fn footprint(&self) -> Footprint {
        let mut footprint = Footprint::new();
        footprint.add_files(self.dir.path());
        footprint
    }

    async fn rendered(&self, slot: &SlotName) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("{slot}.conf"))).unwrap_or_default()
    }

    async fn emit_log(&self, slot: &SlotName, unit: &str, line: &str) {
        self.inner.emit(slot, unit, line);
    }

    fn executed(&self) -> Vec<String> {
        Vec::new()
    }

    async fn inject(&self, _: Fault<'_>) -> Option<Box<dyn Any + Send>> {
        None
    }
}

fn main() -> std::process::ExitCode {
    conformance::main(Setup::new("watched", || async {
        let dir = tempfile::tempdir().expect("a test machine has a temporary directory");
        let inner = FakeBackend::stateful(dir.path(), SlotPair::default());
        Ok(Arc::new(Mine { dir, inner }) as Arc<dyn Harness>)
    }))
}
