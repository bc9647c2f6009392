//! What becomes of a sandbox that died, where there is a way to kill one.

use sandbox::{ErrorKind, ExecRequest};

use super::super::Subject;
use super::super::bed::{refused, unexpected};
use super::super::setup::KILLER;
use super::{B, Case, secs, soon};
use crate::{Outcome, ensure, equal, within};

const REPLACED: &str = "A sandbox that is there but dead is replaced, and [`Sandbox::recreated`] says so.";
const SAYS_SO: &str = "Every handle of this sandbox says the same, in every process.";

pub(super) fn cases() -> Vec<Case> {
    let all = vec![
        Case::new("dead::is_replaced", REPLACED, is_replaced),
        Case::new("dead::every_handle_says_so", SAYS_SO, every_handle_says_so),
    ];
    all.into_iter().map(|case| case.needs(KILLER, |_| true)).collect()
}

/// Makes the case's sandbox, and kills it.
async fn dead(bed: &B) -> Outcome<Subject> {
    let sandbox = bed.sandbox().await?;
    equal("what a fresh sandbox says of an earlier one", sandbox.inner.recreated(), None)?;
    sandbox.ok("echo x > /tmp/f; echo x > f").await?;
    bed.kill(&bed.session).await?;
    let is_dead = || async {
        refused("attaching to a dead sandbox", bed.try_attach(&bed.session).await?, ErrorKind::NotFound).map(drop)
    };
    soon(secs(30), is_dead).await?;
    Ok(sandbox)
}

async fn is_replaced(bed: B) -> Outcome {
    let first = dead(&bed).await?;
    equal("times listed, dead", bed.times_owned(&bed.session).await?, 1)?;
    let second = bed.sandbox().await?;
    let told = second.inner.recreated();
    ensure(told.is_some(), "recreated(), of what replaced a dead sandbox", "why", || "None".to_owned())?;
    equal("files of the dead one", second.ok("ls -A /tmp; ls -A .").await?, "")?;
    refused("exec through the old handle", first.try_exec(ExecRequest::shell("true")).await?, ErrorKind::NotFound)?;
    equal("times listed", bed.times_owned(&bed.session).await?, 1)?;
    bed.reap(&bed.session).await?;
    equal("recreated() after a reap", bed.sandbox().await?.inner.recreated(), None)
}

async fn every_handle_says_so(bed: B) -> Outcome {
    dead(&bed).await?;
    let second = bed.sandbox().await?;
    let said = second.inner.recreated();
    ensure(said.is_some(), "recreated(), of what replaced a dead sandbox", "why", || "None".to_owned())?;
    let other = bed.other_provider().await?;
    let far = within("attach", secs(60), other.attach(&bed.session)).await?;
    let far = bed.subject(far.map_err(|e| unexpected("attaching from another process", "the sandbox", &e))?);
    let again = bed.provision_through(&other, &bed.spec()).await?;
    let again = again.map_err(|e| unexpected("provisioning from another process", "the sandbox", &e))?;
    for (what, handle) in [
        ("a handle of another provision", bed.sandbox().await?),
        ("an attached handle", bed.attach(&bed.session).await?),
        ("a handle of another process", far),
        ("a handle of another process's provision", again),
    ] {
        equal(&format!("recreated() of {what}"), handle.inner.recreated(), said)?;
    }
    Ok(())
}
