//! Listing sandboxes.

use std::time::{Duration, SystemTime};

use sandbox::{Owned, OwnedState, SessionId};

use super::super::bed::unexpected;
use super::lifetime::{DROPPED, HARMLESS};
use super::{B, Case, secs};
use crate::{Failure, Outcome, ensure, equal, within};

const OWNED: &str = "A session is owned from its provision until it is reaped or destroyed.";
const RUNNING: &str = "A sandbox that runs commands is listed as [`Running`](crate::OwnedState::Running).";
const INCARNATION: &str =
    "A later sandbox of a session has another incarnation than an earlier one, and one sandbox has the same each time.";
const CREATED: &str = "A sandbox is listed as made when it was made, to the second, where that is known.";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("owned::lists_it", OWNED, owned_lists_it),
        Case::new("owned::once", "Lists the sandboxes of this provider, dead or alive, each session once.", owned_once),
        Case::new("owned::state", RUNNING, owned_state),
        Case::new("owned::incarnation", INCARNATION, owned_incarnation),
        Case::new("owned::created", CREATED, owned_created),
        Case::new("owned::dropped", HARMLESS, owned_dropped).races().repeat(3),
    ]
}

/// What is listed of `session`, which must be.
async fn listed(bed: &B, session: &SessionId) -> Outcome<Owned> {
    let list = async {
        let mut owned = bed.provider.owned().await?;
        while let Some(entry) = owned.next().await {
            let entry = entry?;
            if entry.session == *session {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    };
    let found = within("owned", secs(60), list).await?.map_err(|e| unexpected("owned", "a list", &e))?;
    found.ok_or_else(|| Failure::new("owned", format!("an entry of {session}"), "none"))
}

async fn owned_lists_it(bed: B) -> Outcome {
    equal("times listed before", bed.times_owned(&bed.session).await?, 0)?;
    let sandbox = bed.sandbox().await?;
    equal("times listed", bed.times_owned(&bed.session).await?, 1)?;
    drop(sandbox);
    equal("times listed after its handle is gone", bed.times_owned(&bed.session).await?, 1)?;
    bed.sandbox().await?.destroy().await?;
    equal("times listed after destroy", bed.times_owned(&bed.session).await?, 0)
}

async fn owned_once(bed: B) -> Outcome {
    let sessions = [bed.fresh_session(), bed.fresh_session(), bed.fresh_session()];
    for session in &sessions {
        bed.provision(&bed.spec_of(session)).await?;
        bed.provision(&bed.spec_of(session)).await?;
    }
    for session in &sessions {
        equal("times listed", bed.times_owned(session).await?, 1)?;
    }
    Ok(())
}

async fn owned_state(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for _ in 0..2 {
        equal("its state", listed(&bed, &bed.session).await?.state, OwnedState::Running)?;
        equal("a command", sandbox.ok("echo runs").await?, "runs\n")?;
    }
    Ok(())
}

async fn owned_incarnation(bed: B) -> Outcome {
    let mut seen = Vec::new();
    for round in 0..3 {
        bed.sandbox().await?;
        let incarnation = listed(&bed, &bed.session).await?.incarnation;
        ensure(!incarnation.is_empty(), "its incarnation", "something that tells it from others", || {
            "nothing".to_owned()
        })?;
        bed.sandbox().await?.ok("true").await?;
        bed.attach(&bed.session).await?;
        equal("the incarnation of the same sandbox", &listed(&bed, &bed.session).await?.incarnation, &incarnation)?;
        ensure(!seen.contains(&incarnation), &format!("the incarnation of sandbox {round}"), "another", || {
            format!("{incarnation}, as one of {seen:?}")
        })?;
        seen.push(incarnation);
        bed.reap(&bed.session).await?;
    }
    Ok(())
}

async fn owned_created(bed: B) -> Outcome {
    // A place may tell the time to the second alone, and its clock may be another.
    const SLACK: Duration = secs(2);
    let before = SystemTime::now() - SLACK;
    bed.sandbox().await?;
    let after = SystemTime::now() + SLACK;
    // Not when it was listed.
    tokio::time::sleep(2 * SLACK).await;
    for _ in 0..2 {
        if let Some(created) = listed(&bed, &bed.session).await?.created {
            ensure((before..=after).contains(&created), "when it was made", "between the call and its answer", || {
                format!("{created:?}, not from {before:?} to {after:?}")
            })?;
        }
        bed.sandbox().await?;
    }
    Ok(())
}

async fn owned_dropped(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("echo mine > /tmp/f").await?;
    for moment in DROPPED {
        let list = async {
            let mut owned = bed.provider.owned().await?;
            while let Some(entry) = owned.next().await {
                entry?;
            }
            Ok::<_, sandbox::Error>(())
        };
        drop(tokio::time::timeout(moment, list).await);
        // Also one that is there and not read to its end.
        drop(within("owned", secs(60), bed.provider.owned()).await?);
        equal("times listed", bed.times_owned(&bed.session).await?, 1)?;
        equal("its file", sandbox.ok("cat /tmp/f").await?, "mine\n")?;
    }
    bed.reap(&bed.session).await
}
