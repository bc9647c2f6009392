//! Making sandboxes.

use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use sandbox::{Effect, Env, ErrorKind, Limit, Networking, SessionId, Spec};

use super::super::bed::{path, refused, unexpected};
use super::{B, Case, mark, millis, secs, soon};
use crate::{Failure, Outcome, ensure, equal, within};

const RUNS: &str = "Makes the session's sandbox, or finds the one that is there, and answers once it runs commands.";
const SAME: &str = "Provisioning a session again with the same spec answers the same sandbox, files included.";
const REFUSED: &str = "A spec that breaks a rule is refused before anything is made, and leaves nothing behind.";
const REMOVED: &str = "What was begun of a sandbox that cannot be made is removed.";
const BOUND: &str =
    "Variables are bound when the sandbox is made: a later provision with other values finds the first ones in force.";
const MISMATCH: &str = "A provision whose image, working directory or networking differs from the sandbox that is there \
     fails as `SpecMismatch`, and the sandbox stays as it is.";
const RACE: &str = "However many provision one session at once, they all end with the same sandbox.";
const BEGUN: &str =
    "What a dropped `provision` has begun is either nothing or something that `owned` shows and `reap` removes.";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("provision::twice_is_one", SAME, twice_is_one),
        Case::new("provision::answers_once_it_runs", RUNS, answers_once_it_runs).repeat(5),
        Case::new("provision::answers_a_hundred_times", RUNS, answers_a_hundred_times).slow().deadline(secs(900)),
        Case::new("reap::two_hundred", "Removes everything of the session, whoever made it, and waits until it is gone.", two_hundred)
            .slow()
            .deadline(secs(1200)),
        Case::new("provision::id_is_the_session", "A handle tells the very session that its sandbox was made for.", id_is_the_session),
        Case::new("provision::what_cannot_be_made", REMOVED, what_cannot_be_made).deadline(secs(300)),
        Case::new("provision::bad_spec_leaves_nothing", REFUSED, bad_spec_leaves_nothing),
        Case::new("provision::bad_spec_spares_what_is_there", REFUSED, bad_spec_spares_what_is_there),
        Case::new("provision::env_is_bound", BOUND, env_is_bound),
        Case::new("provision::image_mismatch", MISMATCH, image_mismatch),
        Case::new("provision::workdir_mismatch", MISMATCH, workdir_mismatch),
        Case::new("provision::networking_mismatch", MISMATCH, networking_mismatch)
            .needs("two kinds of networking", |c| [c.networking_none, c.networking_limited, c.networking_unrestricted].iter().filter(|claim| **claim).count() > 1),
        Case::new("provision::racers", RACE, racers).races().repeat(5),
        Case::new("provision::a_hundred_racers", RACE, a_hundred_racers).races(),
        Case::new("provision::dropped", BEGUN, dropped).races().repeat(3),
        Case::new("provision::unclaimed_is_unsupported", "A call that needs what is not claimed fails as [`Unsupported`](crate::ErrorKind::Unsupported) before anything was changed.", unclaimed_is_unsupported)
            .needs("claim that it does not make", |c| unclaimed(c).next().is_some()),
        Case::new("provision::recreated_is_none", "Whether an earlier sandbox of this session died, and its files with it.", recreated_is_none),
        Case::new("provision::capabilities_are_constant", "A provider's answer is constant: what must be looked up is looked up by its constructor.", capabilities_are_constant),
    ]
}

async fn twice_is_one(bed: B) -> Outcome {
    let first = bed.sandbox().await?;
    first.ok("echo mine > /tmp/f; echo here > g").await?;
    for _ in 0..2 {
        let again = bed.sandbox().await?;
        equal("the session", again.inner.id(), &bed.session)?;
        equal("its files", again.ok("cat /tmp/f g").await?, "mine\nhere\n")?;
    }
    first.ok("cat /tmp/f").await?;
    equal("times listed", bed.times_owned(&bed.session).await?, 1)
}

async fn answers_once_it_runs(bed: B) -> Outcome {
    for _ in 0..3 {
        let sandbox = bed.provision(&bed.spec_of(&bed.fresh_session())).await?;
        equal("the first command", sandbox.ok("echo ready").await?, "ready\n")?;
    }
    Ok(())
}

/// Makes `count` sandboxes, ten at a time, and hands each to `what`, which must leave nothing.
async fn tens<Fut: Future<Output = Outcome>>(bed: &B, count: usize, what: impl Fn(usize, SessionId) -> Fut) -> Outcome {
    let mut done = futures::stream::iter((0..count).map(|n| what(n, bed.fresh_session()))).buffer_unordered(10);
    while let Some(outcome) = done.next().await {
        outcome?;
    }
    Ok(())
}

async fn answers_a_hundred_times(bed: B) -> Outcome {
    tens(&bed, 100, |n, session| {
        let bed = Arc::clone(&bed);
        async move {
            let sandbox = bed.provision(&bed.spec_of(&session)).await?;
            equal("the first command", sandbox.ok(&format!("echo ready {n}")).await?, format!("ready {n}\n"))?;
            bed.reap(&session).await
        }
    })
    .await
}

/// Also such as were never made, and such as nobody waited for.
async fn two_hundred(bed: B) -> Outcome {
    let bad = &bad_specs(&bed.spec())?;
    tens(&bed, 200, |n, session| {
        let bed = Arc::clone(&bed);
        async move {
            let mut spec = bed.spec_of(&session);
            match n % 4 {
                0 => {
                    spec = bad[n / 4 % bad.len()].1.clone();
                    spec.session = session.clone();
                    refused("a bad spec", bed.try_provision(&spec).await?, ErrorKind::InvalidSpec)?;
                }
                1 => drop(tokio::time::timeout(millis(n as u64), bed.provider.provision(&spec)).await),
                _ => drop(bed.provision(&spec).await?.ok("echo x > /tmp/f; setsid sleep 300 & true").await?),
            }
            bed.reap(&session).await?;
            equal("times listed", bed.times_owned(&session).await?, 0)
        }
    })
    .await
}

async fn id_is_the_session(bed: B) -> Outcome {
    for id in ["a", "7", "sesn_0123456789abcdefghjkmnpq", "a__b", &"z".repeat(59)] {
        // The shortest ids can collide with somebody else's, so each gets a tail of its own where there is room.
        let tail = mark();
        let id: String =
            if id.len() < 40 { format!("{id}_{tail}") } else { format!("{}{tail}", &id[..59 - tail.len()]) };
        let session = SessionId::new(id).map_err(|e| unexpected("an id of the suite", "a legal one", &e))?;
        bed.adopt(&session);
        let sandbox = bed.provision(&bed.spec_of(&session)).await?;
        equal("the session", sandbox.inner.id(), &session)?;
        equal("times listed", bed.times_owned(&session).await?, 1)?;
        bed.reap(&session).await?;
    }
    Ok(())
}

/// Specs that break a rule, each with what is wrong about it.
fn bad_specs(good: &Spec) -> Outcome<Vec<(&'static str, Spec)>> {
    let with = |change: &dyn Fn(&mut Spec)| {
        let mut spec = good.clone();
        change(&mut spec);
        spec
    };
    let tmp = path("/tmp/x")?;
    let proc = path("/proc")?;
    Ok(vec![
        ("no image", with(&|s| s.image.clear())),
        ("an image with a space", with(&|s| s.image.push_str(" x"))),
        ("an image with a newline", with(&|s| s.image.push('\n'))),
        ("a working directory in /tmp", with(&|s| s.workdir = tmp.clone())),
        ("a working directory that is /proc", with(&|s| s.workdir = proc.clone())),
        ("a bound of 0 processes", with(&|s| s.hardening.pids = Limit::Preferred(0))),
        ("a user above the largest", with(&|s| s.hardening.run_as_user = Some(u32::MAX))),
        (
            "root that must not be root",
            with(&|s| (s.hardening.run_as_non_root, s.hardening.run_as_user) = (true, Some(0))),
        ),
    ])
}

async fn bad_spec_leaves_nothing(bed: B) -> Outcome {
    let env = |value: &str| Env::new().with("WHOSE", value.to_owned()).map_err(|e| unexpected("env", "legal", &e));
    for (what, mut spec) in bad_specs(&bed.spec())? {
        spec.env = env("first")?;
        refused(what, bed.try_provision(&spec).await?, ErrorKind::InvalidSpec)?;
        equal(&format!("times listed after {what}"), bed.times_owned(&bed.session).await?, 0)?;
    }
    let sandbox = bed.provision(&bed.spec().with_env(env("second")?)).await?;
    equal("whose variables", sandbox.ok("echo $WHOSE").await?, "second\n")
}

/// An image that is nowhere. A backend that makes its sandboxes of something else makes one, and that is reaped.
async fn what_cannot_be_made(bed: B) -> Outcome {
    for image in ["conformance.invalid/no/such/image:1", "/no/such/image"] {
        let mut spec = bed.spec_of(&bed.fresh_session());
        spec.image = image.to_owned();
        match bed.try_provision(&spec).await? {
            Err(e) if e.effect() != Effect::Unknown => {}
            _ => bed.reap(&spec.session).await?,
        }
        equal(&format!("times listed after the image {image}"), bed.times_owned(&spec.session).await?, 0)?;
        soon(secs(5), || bed.nothing_of(&spec.session, "a sandbox that cannot be made")).await?;
    }
    Ok(())
}

async fn bad_spec_spares_what_is_there(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("echo mine > /tmp/f").await?;
    for (what, spec) in bad_specs(&bed.spec())? {
        refused(what, bed.try_provision(&spec).await?, ErrorKind::InvalidSpec)?;
    }
    equal("its files", sandbox.ok("cat /tmp/f").await?, "mine\n")
}

async fn env_is_bound(bed: B) -> Outcome {
    let spec = |value: &str| {
        let env = Env::new().with("BOUND", value.to_owned()).map_err(|e| unexpected("env", "legal", &e))?;
        Ok::<_, Failure>(bed.spec().with_env(env))
    };
    let first = bed.provision(&spec("first")?).await?;
    first.ok("echo mine > /tmp/f").await?;
    let second = bed.provision(&spec("second")?).await?;
    for sandbox in [&second, &first, &bed.attach(&bed.session).await?] {
        equal("the variable", sandbox.ok("echo $BOUND").await?, "first\n")?;
        equal("the files", sandbox.ok("cat /tmp/f").await?, "mine\n")?;
    }
    // No handle that is there can answer for the next ones.
    drop((first, second));
    for (provider, value) in [(Arc::clone(&bed.provider), "third"), (bed.other_provider().await?, "fourth")] {
        let made = bed.provision_through(&provider, &spec(value)?).await?;
        let later = made.map_err(|e| unexpected("provision", "the sandbox that is there", &e))?;
        equal("the variable, once the first handles are gone", later.ok("echo $BOUND").await?, "first\n")?;
    }
    Ok(())
}

/// Wants `other` refused as a mismatch, and everything as it was.
async fn mismatch(bed: B, other: Spec) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("echo mine > /tmp/f").await?;
    let begun = Instant::now();
    for _ in 0..2 {
        refused("provisioning another spec", bed.try_provision(&other).await?, ErrorKind::SpecMismatch)?;
    }
    ensure(begun.elapsed() < secs(20), "provisioning another spec", "a refusal at once", || {
        format!("{:?}", begun.elapsed())
    })?;
    equal("the files through the old handle", sandbox.ok("cat /tmp/f").await?, "mine\n")?;
    equal("the files through the old spec", bed.sandbox().await?.ok("cat /tmp/f").await?, "mine\n")
}

async fn image_mismatch(bed: B) -> Outcome {
    let mut other = bed.spec();
    other.image = "/no/such/image".to_owned();
    mismatch(bed, other).await
}

async fn workdir_mismatch(bed: B) -> Outcome {
    let other = bed.spec().with_workdir(path("/elsewhere")?);
    mismatch(bed, other).await
}

async fn networking_mismatch(bed: B) -> Outcome {
    let (claims, now) = (bed.claims(), bed.spec().networking);
    let kinds = [
        (claims.networking_none, Networking::None),
        (claims.networking_limited, Networking::limited([])),
        (claims.networking_unrestricted, Networking::Unrestricted),
    ];
    for (_, kind) in kinds.into_iter().filter(|(claimed, kind)| *claimed && kind.name() != now.name()) {
        let other = bed.spec().with_networking(kind);
        mismatch(Arc::clone(&bed), other).await?;
    }
    Ok(())
}

/// Wants `count` provisions at once, through two providers, to end with one sandbox.
async fn race(bed: &B, count: usize) -> Outcome {
    let providers = [Arc::clone(&bed.provider), bed.other_provider().await?];
    let spec = bed.spec();
    let races = (0..count).map(|n| bed.provision_through(&providers[n % 2], &spec));
    let mut handles = Vec::new();
    for made in within("all racers", secs(110), futures::future::join_all(races)).await? {
        handles.push(made?.map_err(|e| unexpected("one of the racers", "the sandbox", &e))?);
    }
    handles[0].ok("echo one > /tmp/f").await?;
    for handle in handles.iter().step_by((count / 20).max(1)) {
        equal("a file, through each handle", handle.ok("cat /tmp/f").await?, "one\n")?;
    }
    equal("times listed", bed.times_owned(&bed.session).await?, 1)
}

async fn racers(bed: B) -> Outcome {
    race(&bed, 8).await
}

async fn a_hundred_racers(bed: B) -> Outcome {
    race(&bed, 100).await
}

async fn dropped(bed: B) -> Outcome {
    for moment in [0, 1, 3, 8, 20, 50, 120] {
        let session = bed.fresh_session();
        let spec = bed.spec_of(&session);
        let dropped = tokio::time::timeout(millis(moment), bed.provider.provision(&spec)).await;
        soon(secs(5), || async {
            let nothing = bed.nothing_of(&session, "a dropped provision that is not owned").await;
            // It may appear between two looks.
            if nothing.is_err() && bed.times_owned(&session).await? > 0 { Ok(()) } else { nothing }
        })
        .await?;
        bed.reap(&session).await?;
        equal("times listed after the reap", bed.times_owned(&session).await?, 0)?;
        drop(dropped);
        let half = tokio::time::timeout(millis(moment), bed.provider.provision(&spec)).await;
        drop(half);
        let sandbox = bed.provision(&spec).await?;
        equal("a command after a dropped provision", sandbox.ok("echo alive").await?, "alive\n")?;
        bed.reap(&session).await?;
    }
    Ok(())
}

/// What `claims` leave out, as a change to a spec that needs it.
fn unclaimed(c: &sandbox::Capabilities) -> impl Iterator<Item = (&'static str, fn(&mut Spec))> {
    type Change = fn(&mut Spec);
    let all: [(&'static str, bool, Change); 14] = [
        ("unrestricted networking", c.networking_unrestricted, |s| s.networking = Networking::Unrestricted),
        ("limited networking", c.networking_limited, |s| s.networking = Networking::limited([])),
        ("no networking", c.networking_none, |s| s.networking = Networking::None),
        ("a gate", c.gate, with_gate),
        ("pids", c.pids_limit, |s| s.hardening.pids = Limit::Required(64)),
        ("cpu_millis", c.cpu_limit, |s| s.hardening.cpu_millis = Limit::Required(500)),
        ("memory_bytes", c.memory_limit, |s| s.hardening.memory_bytes = Limit::Required(1 << 30)),
        ("disk_bytes", c.disk_limit, |s| s.hardening.disk_bytes = Limit::Required(1 << 30)),
        ("cap_drop", c.cap_drop, |s| s.hardening.cap_drop = sandbox::CapDrop::all()),
        ("read_only_root", c.read_only_root, |s| s.hardening.read_only_root = true),
        ("run_as_user", c.run_as_user, |s| s.hardening.run_as_user = Some(65534)),
        ("run_as_group", c.run_as_user, |s| s.hardening.run_as_group = Some(65534)),
        ("fs_group", c.run_as_user, |s| s.hardening.fs_group = Some(65534)),
        ("run_as_non_root", c.run_as_user, |s| s.hardening.run_as_non_root = true),
    ];
    all.into_iter().filter(|(_, claimed, _)| !claimed).map(|(name, _, change)| (name, change))
}

fn with_gate(spec: &mut Spec) {
    spec.gate = Some(sandbox::GateSpec::new("gate:1", "https://control.invalid"));
    if spec.networking == Networking::None {
        // That would break a rule by itself.
        spec.networking = Networking::limited([]);
    }
}

async fn unclaimed_is_unsupported(bed: B) -> Outcome {
    for (name, change) in unclaimed(&bed.claims()) {
        let mut spec = bed.spec();
        change(&mut spec);
        refused(&format!("a spec that requires {name}"), bed.try_provision(&spec).await?, ErrorKind::Unsupported)?;
        equal("times listed", bed.times_owned(&bed.session).await?, 0)?;
    }
    Ok(())
}

async fn recreated_is_none(bed: B) -> Outcome {
    for sandbox in [bed.sandbox().await?, bed.sandbox().await?, bed.attach(&bed.session).await?] {
        equal("what a fresh sandbox says of an earlier one", sandbox.inner.recreated(), None)?;
    }
    bed.reap(&bed.session).await?;
    equal("what it says after a reap", bed.sandbox().await?.inner.recreated(), None)
}

async fn capabilities_are_constant(bed: B) -> Outcome {
    let before = bed.provider.capabilities();
    bed.sandbox().await?;
    equal("capabilities", bed.provider.capabilities(), before)?;
    equal("capabilities of another process", bed.other_provider().await?.capabilities(), before)
}
