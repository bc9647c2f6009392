//! Shows a command's output line by line while it runs, and a progress count beside it.

use std::error::Error;
use std::io::{Write, stdout};
use std::time::Duration;

use sandbox::{Provider, Sandbox, SessionId, SpawnRequest, Spec};
use sandbox_local::{LocalConfig, LocalProvider};

const BUILD: &str = "for i in 1 2 3 4 5 6 7 8; do echo \"compiling part $i of 8\"; sleep 0.2; done";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let provider = LocalProvider::new(LocalConfig::default())?;
    let spec = Spec::new(SessionId::generate(), "host");
    let sandbox = provider.provision(&spec).await?;
    // Whatever comes of it, the sandbox is reaped: nothing between here and there returns or panics.
    let built = build(&*sandbox).await;
    provider.reap(&spec.session).await?;
    built
}

async fn build(sandbox: &dyn Sandbox) -> Result<(), Box<dyn Error>> {
    let request = SpawnRequest::shell(BUILD).with_limit(Duration::from_secs(30));
    let mut build = sandbox.spawn(request).await?;
    let mut bytes = 0;
    while let Some(piece) = build.stdout.next().await {
        let piece = piece?;
        bytes += piece.len();
        write!(stdout(), "[{bytes:>4} bytes] {}", String::from_utf8_lossy(&piece))?;
    }
    let exit = build.wait().await?;
    writeln!(stdout(), "ended with code {}", exit.code)?;
    Ok(())
}
