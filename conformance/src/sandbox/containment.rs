//! Whether commands run beside this very test: some cases kill all that they can reach.

use std::sync::Arc;
use std::time::Duration;

use sandbox::{ExecRequest, Provider, SessionId};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);
/// The number of a first pid namespace is the same on every machine, so the kernel's own start says which one it is.
const ASK: &str = "readlink /proc/self/ns/pid; cat /proc/sys/kernel/random/boot_id";

/// Whether the commands of `session` share a pid namespace with this process. What cannot be told is left to the cases.
pub(super) async fn is_missing(provider: &Arc<dyn Provider>, session: &SessionId) -> bool {
    let namespace = std::fs::read_link("/proc/self/ns/pid");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let (Ok(namespace), Ok(boot)) = (namespace, boot) else { return false };
    let answer = async {
        let sandbox = provider.attach(session).await.ok()?;
        sandbox.exec(ExecRequest::shell(ASK).with_limit(PATIENCE / 2)).await.ok()
    };
    let here = format!("{}\n{}\n", namespace.display(), boot.trim());
    matches!(timeout(PATIENCE, answer).await, Ok(Some(result)) if result.stdout.bytes == here)
}
