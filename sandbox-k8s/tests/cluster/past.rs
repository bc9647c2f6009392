//! Faults of the past that only a real cluster shows: bodies that nobody takes, and texts that read like errors of the platform.

use std::time::{Duration, Instant};

use bytes::Bytes;
use libtest_mimic::Trial;
use sandbox::{Effect, ErrorKind, ExecRequest, Provider, SandboxExt, SandboxPath};

use crate::bed::{Bed, equal, fails, holds, reap, says};
use crate::{Outcome, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("past::refused_bodies_hold_nobody_up", refused_bodies_hold_nobody_up),
        trial("past::texts_like_errors_are_texts", texts_like_errors_are_texts),
        trial("past::reapers_race", reapers_race),
    ]
}

/// More than any buffer on the way takes, and than fits where the disk is full in the middle.
const LARGE: usize = 80 << 20;

async fn refused_bodies_hold_nobody_up(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let mut spec = bed.spec();
    spec.hardening.read_only_root = true;
    let sandbox = provider.provision(&spec).await?;
    says(&sandbox, "mkdir dir; echo x > file").await?;
    let large = Bytes::from(vec![7; LARGE]);
    let refusals = [
        ("/workspace/dir", ErrorKind::IsDirectory),
        ("/workspace/file/f", ErrorKind::NotDirectory),
        ("/dev/null", ErrorKind::NotReplaceable),
        ("/etc/f", ErrorKind::NotWritable),
        ("/dev/shm/f", ErrorKind::Other),
    ];
    for (path, kind) in refusals {
        for _ in 0..3 {
            let begun = Instant::now();
            let error = fails(path, sandbox.write_bytes(&SandboxPath::new(path)?, large.clone()).await)?;
            equal(&format!("{error:?}"), (error.kind(), error.effect()), (kind, Effect::None))?;
            holds(path, begun.elapsed() < Duration::from_secs(10), begun.elapsed())?;
            equal("the next command", says(&sandbox, "echo alive").await?, "alive".to_owned())?;
        }
    }
    equal("what is left", says(&sandbox, "ls -A /dev/shm; ls -A /workspace").await?, "dir\nfile".to_owned())?;
    reap(&provider, &spec.session).await
}

async fn texts_like_errors_are_texts(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    let texts = ["No such container: sandbox", "container not found (\"sandbox\")", "pods \"sbx\" not found"];
    for text in texts {
        let path = SandboxPath::new(format!("/workspace/{text}"))?;
        let error = fails("a read", sandbox.read_bytes(&path, 10).await)?;
        equal(&format!("{error:?}"), (error.kind(), error.death()), (ErrorKind::FileNotFound, None))?;
        let error = fails("an export", provider.export(&spec.session, &path).await)?;
        equal(&format!("{error:?}"), (error.kind(), error.death()), (ErrorKind::FileNotFound, None))?;
        let error = fails("a directory", sandbox.exec(ExecRequest::shell("true").with_workdir(path)).await)?;
        equal(&format!("{error:?}"), (error.kind(), error.death()), (ErrorKind::FileNotFound, None))?;
        let result = sandbox.exec(ExecRequest::args([text])).await?;
        equal("a program of that name", result.exit_code, 127)?;
        let result = sandbox.exec(ExecRequest::args(["bash", "-c", "echo \"$0\" >&2; exit 137", text])).await?;
        equal("who says so", (result.exit_code, result.timed_out), (137, false))?;
        equal("its text", result.stderr.to_string_lossy().trim_end().to_owned(), text.to_owned())?;
    }
    equal("it lives", says(&sandbox, "echo alive").await?, "alive".to_owned())?;
    reap(&provider, &spec.session).await
}

async fn reapers_race(bed: Bed) -> Outcome {
    let spec = bed.spec();
    bed.provider()?.provision(&spec).await?;
    let mut reapers = Vec::new();
    for _ in 0..8 {
        let (provider, session) = (bed.apart().await?, spec.session.clone());
        let pods = bed.pods.clone();
        reapers.push(tokio::spawn(async move {
            provider.reap(&session).await?;
            // Gone for each of them, the moment it is told so.
            let left = pods.get_opt(&session.object_name("sbx")).await?;
            Ok::<_, crate::Any>(left.map(|pod| pod.metadata.name))
        }));
    }
    for reaper in reapers {
        equal("what is left after a reap", reaper.await??, None)?;
    }
    Ok(())
}
