//! Finds a running session again from a second process, which knows nothing but the session's id.

use std::error::Error;
use std::io::{Write, stdout};

use sandbox::{Provider, Sandbox, SandboxExt, SessionId, Spec};
use sandbox_local::{LocalConfig, LocalProvider};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let provider = LocalProvider::new(LocalConfig::default())?;
    if let Some(session) = std::env::args().nth(1) {
        // The second process. The session is not its own to reap.
        let sandbox = provider.attach(&SessionId::new(session)?).await?;
        let greeting = sandbox.exec_str("cat greeting; echo 'and back' > answer").await?;
        write!(stdout(), "{}", greeting.stdout.to_string_lossy())?;
        return Ok(());
    }
    let session = SessionId::generate();
    let sandbox = provider.provision(&Spec::new(session.clone(), "host")).await?;
    // Whatever comes of it, the sandbox is reaped: nothing between here and there returns or panics.
    let greeted = greet(&*sandbox).await;
    provider.reap(&session).await?;
    greeted
}

async fn greet(sandbox: &dyn Sandbox) -> Result<(), Box<dyn Error>> {
    sandbox.exec_str("echo 'hello from the first process' > greeting").await?;
    let session = sandbox.id().to_string();
    let second = move || std::process::Command::new(std::env::current_exe()?).arg(session).status();
    let status = tokio::task::spawn_blocking(second).await??;
    write!(stdout(), "{}", sandbox.exec_str("cat answer").await?.stdout.to_string_lossy())?;
    if status.success() { Ok(()) } else { Err("the second process failed".into()) }
}
