//! An agent's loop: a folder goes into a sandbox; there it is tried, looked at and tried again, each time against a deadline; the result
//! comes out.

use std::error::Error;
use std::io::{Write, stdout};
use std::path::Path;
use std::time::Duration;

use sandbox::{ExecRequest, ExecResult, Provider, Sandbox, SandboxExt, SandboxPath, SessionId, Spec};
use sandbox_local::{LocalConfig, LocalProvider};
use sandbox_transfer::{DownloadOptions, ProviderTransferExt, SandboxTransferExt, UploadOptions};

/// What is to pass: `add.sh` of the folder adds up the numbers that it reads.
const TEST: &str = "mkdir -p out && seq 100 | bash add.sh > out/sum && grep -qx 5050 out/sum";

/// Where a model would be asked: what to do next, from what came of the last attempt.
fn decide(last: Option<&ExecResult>) -> Option<&'static str> {
    match last {
        None => Some("while true; do read -r n; sum=$((sum + n)); done; echo $sum"),
        Some(tried) if tried.timed_out => Some("while read -r n; do sum=$n; done; echo $sum"),
        Some(tried) if !tried.success() => Some("while read -r n; do sum=$((sum + n)); done; echo $sum"),
        Some(_) => None,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let here = tempfile::tempdir()?;
    std::fs::create_dir(here.path().join("project"))?;
    std::fs::write(here.path().join("project/add.sh"), "echo not written yet\n")?;
    let provider = LocalProvider::new(LocalConfig::default())?;
    let spec = Spec::new(SessionId::generate(), "host");
    let sandbox = provider.provision(&spec).await?;
    // Whatever comes of it, the sandbox is reaped: nothing between here and there returns or panics.
    let done = work(&provider, &*sandbox, here.path()).await;
    provider.reap(&spec.session).await?;
    done
}

async fn work(provider: &dyn Provider, sandbox: &dyn Sandbox, here: &Path) -> Result<(), Box<dyn Error>> {
    let inside = SandboxPath::new("/workspace/project")?;
    let sent = sandbox.upload_dir(here.join("project"), &inside, UploadOptions::default()).await?;
    writeln!(stdout(), "in: {} file", sent.files)?;

    let mut last = None;
    while let Some(attempt) = decide(last.as_ref()) {
        sandbox.write_bytes(&inside.join("add.sh")?, attempt).await?;
        let test = ExecRequest::shell(TEST).with_workdir(inside.clone()).with_limit(Duration::from_secs(1));
        let tried = sandbox.exec(test).await?;
        let said = match tried.exit_code {
            _ if tried.timed_out => "over its deadline, and killed".to_owned(),
            0 => "passed".to_owned(),
            code => format!("failed with code {code}"),
        };
        writeln!(stdout(), "{attempt}\n  {said}")?;
        last = Some(tried);
    }

    let result = here.join("result");
    provider.download(sandbox.id(), &inside.join("out")?, &result, DownloadOptions::default()).await?;
    writeln!(stdout(), "out: {}", std::fs::read_to_string(result.join("sum"))?.trim())?;
    Ok(())
}
