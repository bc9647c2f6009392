//! Finds a running session again from a second process, which knows nothing but the session's id.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;

use sandbox::{Provider, SandboxExt, SessionId, Spec};
use sandbox_local::{LocalConfig, LocalProvider};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let provider = LocalProvider::new(LocalConfig::default())?;
    if let Some(session) = std::env::args().nth(1) {
        // The second process.
        let sandbox = provider.attach(&SessionId::new(session)?).await?;
        print!("{}", sandbox.exec_str("cat greeting; echo 'and back' > answer").await?.stdout.to_string_lossy());
        return Ok(());
    }
    let session = SessionId::generate();
    let sandbox = provider.provision(&Spec::new(session.clone(), "host")).await?;
    sandbox.exec_str("echo 'hello from the first process' > greeting").await?;
    let status = tokio::task::spawn_blocking({
        let session = session.to_string();
        move || std::process::Command::new(std::env::current_exe()?).arg(session).status()
    });
    let status = status.await??;
    print!("{}", sandbox.exec_str("cat answer").await?.stdout.to_string_lossy());
    provider.reap(&session).await?;
    if status.success() { Ok(()) } else { Err("the second process failed".into()) }
}
