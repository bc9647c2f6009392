//! What is logged: in a process of its own, since what threads log is decided once for all of them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};

use common::{Bare, everything, spec};
use sandbox::*;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Where spans are written to.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[test]
fn every_operation_is_a_span_without_commands_values_or_paths() {
    let log = Log::default();
    let subscriber =
        tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).with_span_events(FmtSpan::CLOSE);
    tracing::subscriber::with_default(subscriber.finish(), || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let provider = Bare { claims: everything(), ..Bare::default() }.checked();
            let env = || Env::new().with("TOKEN", "hush-value").unwrap();
            let sandbox = provider.provision(&spec(|s| s.env = env())).await.unwrap();
            drop(sandbox.exec(ExecRequest::shell("hush-command").with_env(env())).await);
            let (path, content) = (SandboxPath::new("/hush-path").unwrap(), "hush-content");
            drop(sandbox.read(&path, 1).await);
            drop(sandbox.write(FileWrite::bytes(path.clone(), content)).await);
            drop(sandbox.write_many(FileBatch::new(vec![FileWrite::bytes(path.clone(), content)])).await);
            drop(sandbox.spawn(SpawnRequest::shell("hush-command").with_env(env())).await);
            drop(sandbox.destroy().await);
            drop(provider.attach(sandbox.id()).await);
            drop(provider.export(sandbox.id(), &path).await);
            drop(provider.reap(sandbox.id()).await);
            drop(provider.owned().await);
            // A future that is dropped half-way ends its span, too.
            let endless = ExecRequest::shell("hush").with_limit(std::time::Duration::from_secs(9));
            assert!(futures::FutureExt::now_or_never(sandbox.exec(endless)).is_none());
        });
    });
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for operation in "provision attach export reap exec spawn read write write_many destroy".split(' ') {
        let part = format!("operation=\"{operation}\" session=\"s1\"");
        assert!(text.lines().any(|line| line.contains(&part)), "{part} in {text}");
    }
    for part in [
        r#"operation="list the sandboxes""#,
        r#"outcome="ok""#,
        "outcome=Unavailable",
        r#"outcome="dropped""#,
        "duration_us=",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("hush"), "{text}");
}
