//! An agent's step: a folder goes into a sandbox, an untrusted build runs there against a deadline, the result comes out again.

use std::error::Error;
use std::io::{Write, stdout};
use std::path::Path;
use std::time::Duration;

use sandbox::{ExecRequest, Provider, Sandbox, SandboxPath, SessionId, Spec};
use sandbox_local::{LocalConfig, LocalProvider};
use sandbox_transfer::{DownloadOptions, Limits, ProviderTransferExt, SandboxTransferExt, UploadOptions};

const BUILD: &str = "mkdir out && tr a-z A-Z < notes.txt > out/notes.txt && wc -c < notes.txt > out/size";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let here = tempfile::tempdir()?;
    let project = here.path().join("project");
    std::fs::create_dir_all(project.join("cache"))?;
    std::fs::write(project.join("notes.txt"), "made in a sandbox\n")?;
    std::os::unix::fs::symlink("/etc/passwd", project.join("elsewhere"))?;

    let provider = LocalProvider::new(LocalConfig::default())?;
    let spec = Spec::new(SessionId::generate(), "host");
    let sandbox = provider.provision(&spec).await?;
    // Whatever comes of it, the sandbox is reaped: nothing between here and there returns or panics.
    let built = build(&provider, &*sandbox, here.path()).await;
    provider.reap(&spec.session).await?;
    built
}

async fn build(provider: &dyn Provider, sandbox: &dyn Sandbox, here: &Path) -> Result<(), Box<dyn Error>> {
    let inside = SandboxPath::new("/workspace/project")?;
    let options = UploadOptions::default().with_filter(|item| !item.path.ends_with("cache"));
    let sent = sandbox.upload_dir(&here.join("project"), &inside, options).await?;
    writeln!(stdout(), "in: {} files, {} bytes; {} filtered", sent.files, sent.bytes, sent.filtered)?;
    for refused in &sent.left_out {
        writeln!(stdout(), "not sent: {refused}")?;
    }

    let build = ExecRequest::shell(BUILD).with_workdir(inside.clone()).with_limit(Duration::from_secs(10));
    let result = sandbox.exec(build).await?;
    writeln!(stdout(), "build: code {}, timed out: {}", result.exit_code, result.timed_out)?;

    let limits = Limits::default().with_entries(100).with_bytes(1 << 20);
    let target = here.join("result");
    let progress = |p: sandbox_transfer::Progress| {
        let _ = writeln!(stdout(), "out: {} bytes", p.bytes);
    };
    let options = DownloadOptions::default().with_limits(limits).with_progress(progress);
    let got = provider.download(sandbox.id(), &inside.join("out")?, &target, options).await?;
    let notes = std::fs::read_to_string(target.join("notes.txt"))?;
    writeln!(stdout(), "out: {} files: {}", got.files, notes.trim())?;
    Ok(())
}
