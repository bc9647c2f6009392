//! Many at once, and much.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use kube::api::{ListParams, WatchEvent, WatchParams};
use libtest_mimic::Trial;
use sandbox::{Provider, Sandbox, SandboxExt, SandboxPath};

use crate::bed::{Bed, equal, reap, says};
use crate::look::pods;
use crate::numbers::{Drawn, count, noise};
use crate::{Any, Outcome, trial};

const RACERS: usize = 100;
const SIZE: usize = 64 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("many::racers_end_with_one_pod", racers_end_with_one_pod),
        trial("many::large_uploads_are_right", large_uploads_are_right),
    ]
}

/// The uids of all Pods of the deployment that ever were, from now on until the sender is dropped.
async fn every_uid(
    bed: &Bed,
    mut over: tokio::sync::oneshot::Receiver<()>,
) -> Result<impl Future<Output = Result<BTreeSet<String>, Any>> + use<>, Any> {
    let version = bed.pods.list(&ListParams::default().labels(&bed.selector())).await?.metadata.resource_version;
    let params = WatchParams::default().labels(&bed.selector());
    let mut events = bed.pods.watch(&params, &version.unwrap_or_default()).await?.boxed();
    Ok(async move {
        let mut uids = BTreeSet::new();
        loop {
            let event = tokio::select! {
                biased;
                event = events.next() => event.ok_or("the watch ended")??,
                _ = &mut over => return Ok(uids),
            };
            if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) | WatchEvent::Deleted(pod) = event {
                uids.extend(pod.metadata.uid);
            }
        }
    })
}

async fn racers_end_with_one_pod(bed: Bed) -> Outcome {
    let providers = [bed.apart().await?, bed.apart().await?];
    let spec = bed.spec();
    let (over, told) = tokio::sync::oneshot::channel();
    let watching = tokio::spawn(every_uid(&bed, told).await?);
    let racers = (0..RACERS).map(|at| {
        let (provider, spec) = (providers[at % providers.len()].clone(), spec.clone());
        tokio::spawn(async move { provider.provision(&spec).await })
    });
    let mut handles: Vec<Arc<dyn Sandbox>> = Vec::new();
    for racer in join_all(racers).await {
        handles.push(racer??);
    }
    let uid = bed.uid(&spec.session).await?.ok_or("there is no Pod")?;
    equal("Pods", pods(&bed).await?, [(spec.session.as_str().to_owned(), uid.clone())].into())?;
    says(&handles[0], "echo here > mark").await?;
    for said in join_all(handles.iter().map(|handle| says(handle, "cat mark"))).await {
        equal("what a handle sees", said?, "here".to_owned())?;
    }
    reap(&providers[0], &spec.session).await?;
    drop(over);
    equal("Pods that ever were", watching.await??, [uid].into())
}

/// By a program of this machine, as by one inside.
fn digest(content: &[u8]) -> Result<String, Any> {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("it takes no input")?.write_all(content)?;
    let output = child.wait_with_output()?;
    Ok(String::from_utf8(output.stdout)?.split(' ').next().unwrap_or_default().to_owned())
}

async fn large_uploads_are_right(bed: Bed) -> Outcome {
    let uploads = count("FIRE_UPLOADS", 3, 200);
    let mut drawn = Drawn::new("content");
    let provider = bed.provider()?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    let path = SandboxPath::new("/workspace/upload")?;
    for at in 0..uploads {
        let content = Bytes::from(noise(drawn.below(1 << 30), SIZE));
        sandbox.write_bytes(&path, content.clone()).await?;
        let wanted = tokio::task::spawn_blocking(move || digest(&content)).await??;
        equal(&format!("upload {at}"), says(&sandbox, "sha256sum < upload | cut -d' ' -f1").await?, wanted)?;
    }
    reap(&provider, &spec.session).await
}
