//! A way to the cluster that misbehaves: a proxy between client and API server that cuts, swallows and mends on cue.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use sandbox::{Effect, ErrorKind, ExecRequest, Provider, SandboxExt, SandboxPath};
use sandbox_k8s::K8sProvider;
use testbed::{Misbehaviour, Proxy};

use crate::bed::{Bed, equal, fails, holds, reap, says};
use crate::proxied::Proxied;
use crate::{Outcome, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("way::silent_connections_are_kept", silent_connections_are_kept),
        trial("way::swallowed_with_a_limit", swallowed_with_a_limit),
        trial("way::swallowed_without_a_limit", swallowed_without_a_limit),
        trial("way::cut_under_a_command", cut_under_a_command),
        trial("way::cut_under_a_transfer", cut_under_a_transfer),
    ]
}

/// A provider whose every byte goes through the proxy.
async fn through(bed: &Bed, misbehaviour: Misbehaviour) -> Result<(K8sProvider, Proxy), crate::Any> {
    let way = Proxied::open(bed, misbehaviour).await?;
    Ok((way.provider()?, way.proxy))
}

fn black_hole() -> Misbehaviour {
    Misbehaviour { black_hole: true, ..Misbehaviour::default() }
}

async fn silent_connections_are_kept(bed: Bed) -> Outcome {
    let impatient = Misbehaviour { idle_cut: Some(Duration::from_secs(15)), ..Misbehaviour::default() };
    let (provider, _proxy) = through(&bed, impatient).await?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    let result = sandbox.exec(ExecRequest::shell("sleep 35; echo ok").with_limit(Duration::from_secs(60))).await?;
    equal("a command that is silent for long", result.stdout.to_string_lossy().into_owned(), "ok\n".to_owned())?;
    reap(&provider, &spec.session).await
}

async fn swallowed_with_a_limit(bed: Bed) -> Outcome {
    let (provider, proxy) = through(&bed, Misbehaviour::default()).await?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    let limit = Duration::from_secs(4);
    let begun = Instant::now();
    let running = {
        let sandbox = std::sync::Arc::clone(&sandbox);
        let request = ExecRequest::shell("echo x > /tmp/began; sleep 60; echo x > /tmp/ended").with_limit(limit);
        tokio::spawn(async move { sandbox.exec(request).await })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.set(black_hole());
    let result = running.await??;
    holds("it is timed out", result.timed_out, &result)?;
    holds("in time", begun.elapsed() < limit + Duration::from_secs(3), begun.elapsed())?;
    proxy.set(Misbehaviour::default());
    // What the client could not kill, the watchdog inside does.
    let other = bed.provider()?.attach(&spec.session).await?;
    let look = "cat /tmp/began; for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null | grep -c '^sleep 60'; ls /tmp/ended 2>&1 | grep -c cannot";
    let until = Instant::now() + Duration::from_secs(30);
    while says(&other, look).await? != "x\n0\n1" {
        holds("the command is killed", Instant::now() < until, says(&other, look).await?)?;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    reap(&bed.provider()?, &spec.session).await
}

async fn swallowed_without_a_limit(bed: Bed) -> Outcome {
    let (provider, proxy) = through(&bed, Misbehaviour::default()).await?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    let running = {
        let sandbox = std::sync::Arc::clone(&sandbox);
        tokio::spawn(async move { sandbox.exec(ExecRequest::shell("sleep 600")).await })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.set(black_hole());
    let begun = Instant::now();
    let error = fails("a command on a dead connection", running.await?)?;
    equal(&format!("{error:?}"), (error.kind(), error.effect()), (ErrorKind::Lost, Effect::Unknown))?;
    holds("in time", begun.elapsed() < Duration::from_secs(90), begun.elapsed())?;
    reap(&bed.provider()?, &spec.session).await
}

async fn cut_under_a_command(bed: Bed) -> Outcome {
    let (provider, proxy) = through(&bed, Misbehaviour::default()).await?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    let running = {
        let sandbox = std::sync::Arc::clone(&sandbox);
        let text = "echo x >> /tmp/runs; while :; do echo line; sleep 0.1; done";
        tokio::spawn(async move { sandbox.exec(ExecRequest::shell(text).with_limit(Duration::from_secs(60))).await })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.set(Misbehaviour { cut_after: Some(1), ..Misbehaviour::default() });
    let error = fails("the command", running.await?)?;
    equal(&format!("{error:?}"), (error.kind(), error.effect()), (ErrorKind::Lost, Effect::Unknown))?;
    proxy.set(Misbehaviour::default());
    equal("times it ran", says(&sandbox, "wc -l < /tmp/runs").await?, "1".to_owned())?;
    reap(&provider, &spec.session).await
}

async fn cut_under_a_transfer(bed: Bed) -> Outcome {
    let (provider, proxy) = through(&bed, Misbehaviour::default()).await?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    let path = SandboxPath::new("/workspace/f")?;
    let (old, new) = (vec![1u8; 8 << 20], vec![2u8; 8 << 20]);
    sandbox.write_bytes(&path, old.clone()).await?;
    for at in [1u64, 100_000, 3 << 20] {
        proxy.set(Misbehaviour { cut_after: Some(at), ..Misbehaviour::default() });
        let outcome = sandbox.write_bytes(&path, new.clone()).await;
        proxy.set(Misbehaviour::default());
        let there = sandbox.read_bytes(&path, 16 << 20).await?;
        match outcome {
            Ok(()) => holds("all of the new content", there == new, there.len())?,
            Err(error) => {
                holds("an old or a new file, whole", there == old || there == new, (there.len(), error))?;
            }
        }
        sandbox.write_bytes(&path, old.clone()).await?;
        let mut stream = sandbox.read(&path, 16 << 20).await?;
        proxy.set(Misbehaviour { cut_after: Some(at), ..Misbehaviour::default() });
        let (mut total, mut failed) = (0, None);
        while let Some(piece) = stream.next().await {
            match piece {
                Ok(piece) => total += piece.len(),
                Err(error) => failed = Some(error),
            }
        }
        proxy.set(Misbehaviour::default());
        holds("a short read says so", total == old.len() || failed.is_some(), (total, &failed))?;
    }
    let left = says(&sandbox, "ls -A /workspace").await?;
    holds(
        "nothing but the file, or what a lost connection may leave",
        left.starts_with('f') || left.contains("\nf"),
        left,
    )?;
    reap(&provider, &spec.session).await
}
