//! How a sandbox ends, and what is said of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::{DeleteParams, EvictParams};
use libtest_mimic::Trial;
use sandbox::{
    Death, Effect, Error, ErrorKind, ExecRequest, FileBatch, FileWrite, Limit, Provider, Sandbox, SandboxPath,
    SpawnRequest,
};

use crate::bed::{Bed, equal, fails, holds, reap, says};
use crate::{Outcome, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("death::ended_and_replaced", ended_and_replaced),
        trial("death::deleted_under_a_command", deleted_under_a_command),
        trial("death::evicted_by_the_api", evicted_by_the_api),
        trial("death::replaced", replaced),
        trial("death::over_its_disk", over_its_disk),
        trial("death::over_its_lifetime", over_its_lifetime),
        trial("death::shells_are_not_the_sandbox", shells_are_not_the_sandbox),
    ]
}

/// The death that a command is told, once it is told one.
async fn told(sandbox: &Arc<dyn Sandbox>, patience: Duration) -> Result<Error, crate::Any> {
    let until = Instant::now() + patience;
    loop {
        match says(sandbox, "true").await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(error),
            other => holds("the death is told in time", Instant::now() < until, &other)?,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn ended_and_replaced(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    equal("the first", sandbox.recreated().cloned(), None)?;
    says(&sandbox, "touch /workspace/mark").await?;
    let first = bed.uid(&spec.session).await?;
    // The first process ends on request; whoever ran the request goes down with it.
    let error = fails("a command that ends the sandbox", says(&sandbox, "kill -TERM 1; sleep 20").await)?;
    equal(&format!("{error:?}"), (error.kind(), error.death()), (ErrorKind::NotFound, Some(Death::Ended)))?;
    let error = fails("attach", provider.attach(&spec.session).await)?;
    equal("attach", (error.kind(), error.death()), (ErrorKind::NotFound, Some(Death::Ended)))?;
    // However many notice it, one replaces it and all say so.
    let other = bed.provider()?;
    let (one, two) = tokio::join!(provider.provision(&spec), other.provision(&spec));
    let (one, two) = (one?, two?);
    let second = bed.uid(&spec.session).await?;
    holds("another Pod", second.is_some() && second != first, &second)?;
    equal("files", says(&one, "ls /workspace").await?, String::new())?;
    let attached = bed.provider()?.attach(&spec.session).await?;
    for (what, handle) in [("one", &one), ("two", &two), ("attached", &attached)] {
        equal(what, handle.recreated().map(|r| r.reason), Some(Death::Ended))?;
    }
    let error = fails("the old handle", says(&sandbox, "true").await)?;
    holds("the old handle", error.kind() == ErrorKind::NotFound && error.death().is_some(), &error)?;
    reap(&provider, &spec.session).await?;
    let fresh = provider.provision(&spec).await?;
    equal("after a reap", fresh.recreated().cloned(), None)?;
    reap(&provider, &spec.session).await
}

async fn deleted_under_a_command(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    for grace in [0, 1] {
        let spec = bed.spec();
        let sandbox = provider.provision(&spec).await?;
        let running = {
            let sandbox = Arc::clone(&sandbox);
            tokio::spawn(async move { sandbox.exec(ExecRequest::shell("sleep 300")).await })
        };
        // It has begun once somebody sees it.
        while says(&sandbox, "pgrep -x sleep || ls -l /proc/[0-9]*/exe 2>/dev/null | grep -c sleep").await? == "0" {}
        let name = spec.session.object_name("sbx");
        bed.pods.delete(&name, &DeleteParams::default().grace_period(grace)).await?;
        let begun = Instant::now();
        let error = fails("the command", running.await?)?;
        holds("in time", begun.elapsed() < Duration::from_secs(10), begun.elapsed())?;
        equal(&format!("{error:?}"), (error.kind(), error.effect()), (ErrorKind::NotFound, Effect::Unknown))?;
        equal("why", error.death(), Some(Death::Deleted))?;
        reap(&provider, &spec.session).await?;
    }
    Ok(())
}

async fn evicted_by_the_api(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    says(&sandbox, "true").await?;
    bed.pods.evict(&spec.session.object_name("sbx"), &EvictParams::default()).await?;
    let error = told(&sandbox, Duration::from_secs(20)).await?;
    holds("why", matches!(error.death(), Some(Death::Evicted | Death::Deleted)), &error)?;
    reap(&provider, &spec.session).await
}

/// What each operation of a handle fails with, once its sandbox is no more.
async fn each(sandbox: &Arc<dyn Sandbox>) -> Result<Vec<(&'static str, Error)>, crate::Any> {
    let path = SandboxPath::new("/workspace/f")?;
    let write = || FileWrite::bytes(path.clone(), "x");
    Ok(vec![
        ("exec", fails("exec", says(sandbox, "true").await)?),
        ("spawn", fails("spawn", sandbox.spawn(SpawnRequest::shell("true")).await.map(drop))?),
        ("read", fails("read", sandbox.read(&path, 10).await.map(drop))?),
        ("write", fails("write", sandbox.write(write()).await)?),
        ("bulk", fails("bulk", sandbox.write_many(FileBatch::new([write()])).await)?),
    ])
}

/// Nobody sees that it is gone before another one has its name.
async fn replaced(bed: Bed) -> Outcome {
    let (maker, provider) = (bed.provider()?, bed.apart().await?);
    let spec = bed.spec();
    maker.provision(&spec).await?;
    let old = provider.attach(&spec.session).await?;
    maker.reap(&spec.session).await?;
    let new = maker.provision(&spec).await?;
    for (what, error) in each(&old).await? {
        let got = (error.kind(), error.death(), error.effect());
        equal(&format!("{what}: {error:?}"), got, (ErrorKind::NotFound, Some(Death::Replaced), Effect::None))?;
    }
    old.destroy().await?;
    equal("the new one", says(&new, "echo alive").await?, "alive".to_owned())?;
    reap(&maker, &spec.session).await?;
    for (what, error) in each(&new).await? {
        let got = (error.kind(), error.death(), error.effect());
        equal(&format!("{what}: {error:?}"), got, (ErrorKind::NotFound, Some(Death::Deleted), Effect::None))?;
    }
    Ok(())
}

async fn over_its_disk(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let mut spec = bed.spec();
    spec.hardening.disk_bytes = Limit::Required(32 << 20);
    spec.hardening.read_only_root = true;
    let sandbox = provider.provision(&spec).await?;
    let _ = says(&sandbox, "head -c 256M /dev/zero > /workspace/fill").await;
    let error = told(&sandbox, Duration::from_secs(120)).await?;
    equal(&format!("{error:?}"), error.death(), Some(Death::Evicted))?;
    let again = provider.provision(&spec).await?;
    equal("its successor says", again.recreated().map(|r| r.reason), Some(Death::Evicted))?;
    reap(&provider, &spec.session).await
}

async fn over_its_lifetime(bed: Bed) -> Outcome {
    let provider = bed.provider_with(|config| config.max_lifetime = Some(Duration::from_secs(4)))?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    let error = told(&sandbox, Duration::from_secs(30)).await?;
    equal(&format!("{error:?}"), error.death(), Some(Death::Ended))?;
    reap(&provider, &spec.session).await
}

async fn shells_are_not_the_sandbox(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    let begun = Instant::now();
    let error = fails("a command that kills its shell", says(&sandbox, "kill -9 $PPID; sleep 2").await)?;
    equal(&format!("{error:?}"), (error.kind(), error.death()), (ErrorKind::Lost, None))?;
    // The runtime tells that a shell is gone once nobody holds its output any more.
    holds("in time", begun.elapsed() < Duration::from_secs(8), begun.elapsed())?;
    equal("the next one", says(&sandbox, "echo alive").await?, "alive".to_owned())?;
    reap(&provider, &spec.session).await
}
