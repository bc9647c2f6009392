//! What there is, by whoever knows it without the provider, and what the provider says of it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, ObjectList};
use sandbox::{ErrorKind, ExportStream, Provider, Sandbox, SandboxPath, SessionId};
use sandbox_k8s::K8sProvider;

use crate::bed::{Bed, equal, holds, says};
use crate::{Any, Outcome};

/// How often to look again for what is to come.
const AGAIN: Duration = Duration::from_millis(50);
/// How long something that was mended may take to work as before.
const RECOVERY: Duration = Duration::from_secs(40);
/// The most that a test's working directory holds.
const MOST: usize = 256 << 20;

/// Session and uid.
pub(crate) type Known = BTreeSet<(String, String)>;

/// Waits until `is` holds.
pub(crate) async fn until(what: &str, most: Duration, is: impl AsyncFn() -> Result<bool, Any>) -> Outcome {
    let end = Instant::now() + most;
    while !is().await? {
        holds(what, Instant::now() < end, format!("not within {most:?}"))?;
        tokio::time::sleep(AGAIN).await;
    }
    Ok(())
}

/// The Pods of the deployment. Connections that a fault has broken cost another try.
async fn list(bed: &Bed) -> Result<ObjectList<Pod>, Any> {
    let end = Instant::now() + RECOVERY;
    loop {
        let params = ListParams::default().labels(&bed.selector());
        match tokio::time::timeout(Duration::from_secs(10), bed.pods.list(&params)).await {
            Ok(Ok(found)) => return Ok(found),
            other => holds("the API server lists", Instant::now() < end, other.map(|list| list.map(drop)))?,
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// What the API server has of the deployment.
pub(crate) async fn pods(bed: &Bed) -> Result<Known, Any> {
    let found = list(bed).await?.items.into_iter().map(|pod| {
        let session = pod.metadata.labels.and_then(|mut labels| labels.remove("sandbox-k8s/session"));
        (session.unwrap_or_default(), pod.metadata.uid.unwrap_or_default())
    });
    Ok(found.collect())
}

/// What the provider says that it has, each session once.
pub(crate) async fn owned(provider: &K8sProvider) -> Result<Known, Any> {
    let mut known = Known::new();
    let mut owned = provider.owned().await?;
    while let Some(entry) = owned.next().await {
        let entry = entry?;
        let is_new = known.insert((entry.session.as_str().to_owned(), entry.incarnation.clone()));
        holds("each session is owned once", is_new, entry)?;
    }
    Ok(known)
}

/// The provider owns exactly the Pods that there are.
pub(crate) async fn owned_is_true(bed: &Bed, provider: &K8sProvider) -> Outcome {
    let end = Instant::now() + RECOVERY;
    loop {
        let (before, owned, after) = (pods(bed).await?, owned(provider).await?, pods(bed).await?);
        if before == after {
            return equal("what is owned", owned, after);
        }
        // Something comes or goes at the moment.
        holds("the Pods come to rest", Instant::now() < end, (before, after))?;
    }
}

/// Reaps all that is owned; then nothing is left.
pub(crate) async fn reap_owned(bed: &Bed, provider: &K8sProvider) -> Outcome {
    owned_is_true(bed, provider).await?;
    let sessions: Vec<_> = owned(provider).await?.into_iter().map(|(session, _)| SessionId::new(session)).collect();
    let reaps = sessions.into_iter().map(|session| async {
        let session = session?;
        provider.reap(&session).await
    });
    for reaped in join_all(reaps).await {
        reaped?;
    }
    equal("Pods after all was reaped", pods(bed).await?, Known::new())?;
    equal("owned after all was reaped", owned(provider).await?, Known::new())
}

/// It runs commands, if need be after a while, in which it says no more than that it does not.
pub(crate) async fn works(what: &str, sandbox: &Arc<dyn Sandbox>) -> Outcome {
    let end = Instant::now() + RECOVERY;
    loop {
        match says(sandbox, "echo alive").await {
            Ok(said) => return equal(what, said, "alive".to_owned()),
            Err(error) => {
                use ErrorKind::{DeadlineExceeded, Lost, Unavailable};
                let patience = matches!(error.kind(), DeadlineExceeded | Lost | Unavailable);
                holds(what, patience && Instant::now() < end, error)?;
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Every file below `root`, by its name there.
pub(crate) async fn tree(
    provider: &K8sProvider,
    session: &SessionId,
    root: &str,
) -> Result<BTreeMap<String, Vec<u8>>, Any> {
    let archive = collect(provider.export(session, &SandboxPath::new(root)?).await?).await?;
    files(&archive)
}

pub(crate) async fn collect(stream: ExportStream) -> Result<Vec<u8>, sandbox::Error> {
    Ok(stream.collect(MOST).await?.into())
}

/// Every file of an archive, by its name below the entry at the top.
pub(crate) fn files(archive: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, Any> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_dir() {
            continue;
        }
        let name = String::from_utf8(entry.path_bytes().into_owned())?;
        let name = name.split_once('/').map_or(name.as_str(), |(_, below)| below).to_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        holds("each file once", files.insert(name.clone(), content).is_none(), name)?;
    }
    Ok(files)
}

/// What a transfer that was given up leaves beside its targets goes by itself.
pub(crate) async fn no_remains(sandbox: &Arc<dyn Sandbox>) -> Outcome {
    let none = async || Ok(says(sandbox, "find /workspace -name '.sbx-*'").await?.is_empty());
    until("the remains of transfers go", RECOVERY, none).await
}
