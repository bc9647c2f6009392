//! Making, finding, listing and removing sandboxes.

use std::sync::Arc;
use std::time::Instant;

use sandbox::{Env, ErrorKind, ExecRequest, Hardening, Limit, Networking, Spec};

use super::super::bed::{path, refused, unexpected};
use super::super::subject::told;
use super::{B, Case, mark, millis, secs};
use crate::{Failure, Outcome, ensure, equal, within};

const SAME: &str = "Provisioning a session again with the same spec answers the same sandbox, files included.";
const REFUSED: &str = "A spec that breaks a rule is refused before anything is made, and leaves nothing behind.";
const BOUND: &str =
    "Variables are bound when the sandbox is made: a later provision with other values finds the first ones in force.";
const MISMATCH: &str = "A provision whose image, working directory or networking differs from the sandbox that is there \
     fails as `SpecMismatch`, and the sandbox stays as it is.";
const RACE: &str = "However many provision one session at once, they all end with the same sandbox.";
const ATTACH: &str =
    "Attaching answers the sandbox that is there: what is written through one handle is seen through the other.";
const ABSENT: &str = "Attaching to a session that has no sandbox fails as `NotFound`, and makes nothing.";
const REAPED: &str = "After a reap the sandbox is gone: a handle that was made before fails as `NotFound`, and the session is not owned.";
const STATELESS: &str =
    "A provider keeps no state of its own about a sandbox: the session id alone finds it again, from any process.";
const OWNED: &str = "A session is owned from its provision until it is reaped or destroyed.";
const BEGUN: &str =
    "what a dropped `provision` has begun is either nothing or something that `owned` shows and `reap` removes";
const DESTROY: &str = "Destroying twice succeeds, and every other operation then fails as `NotFound`.";
const BOUND_HANDLE: &str =
    "once that one is gone, everything fails as `NotFound`, also when the session has another by then.";
const ENDS: &str =
    "A command that runs when its sandbox is removed fails as `NotFound` or `Lost`, with `Effect::Unknown`.";
const REACH: &str = "A tenant can make its own session lie to you; it cannot make a command that ran past its limit look \
     punctual, reach another session, or make a call hang or grow.";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("provision::twice_is_one", SAME, twice_is_one),
        Case::new("provision::answers_once_it_runs", "Makes the session's sandbox, or finds the one that is there, and answers once it runs commands.", answers_once_it_runs).repeat(5),
        Case::new("provision::id_is_the_session", "The session.", id_is_the_session),
        Case::new("provision::bad_spec_leaves_nothing", REFUSED, bad_spec_leaves_nothing),
        Case::new("provision::bad_spec_spares_what_is_there", REFUSED, bad_spec_spares_what_is_there),
        Case::new("provision::env_is_bound", BOUND, env_is_bound),
        Case::new("provision::image_mismatch", MISMATCH, image_mismatch),
        Case::new("provision::workdir_mismatch", MISMATCH, workdir_mismatch),
        Case::new("provision::networking_mismatch", MISMATCH, networking_mismatch)
            .needs("two kinds of networking", |c| [c.networking_none, c.networking_limited, c.networking_unrestricted].iter().filter(|claim| **claim).count() > 1),
        Case::new("provision::racers", RACE, racers).repeat(5),
        Case::new("provision::a_hundred_racers", RACE, a_hundred_racers),
        Case::new("provision::dropped", BEGUN, dropped).repeat(3),
        Case::new("provision::unclaimed_is_unsupported", "A call that needs what is not claimed fails as [`Unsupported`](crate::ErrorKind::Unsupported) before anything was changed.", unclaimed_is_unsupported)
            .needs("claim that it does not make", |c| unclaimed(c).next().is_some()),
        Case::new("provision::recreated_is_none", "Whether an earlier sandbox of this session died, and its files with it.", recreated_is_none),
        Case::new("provision::capabilities_are_constant", "A provider's answer is constant: what must be looked up is looked up by its constructor.", capabilities_are_constant),
        Case::new("attach::finds_it", ATTACH, finds_it),
        Case::new("attach::unknown_session", ABSENT, attach_unknown),
        Case::new("attach::after_reap", "After a reap, attaching fails as `NotFound`, and the session is not owned.", attach_after_reap),
        Case::new("attach::from_another_process", STATELESS, from_another_process),
        Case::new("attach::changes_nothing", "It never waits, starts, heals or removes anything, so that it is safe beside a running session.", attach_changes_nothing),
        Case::new("owned::lists_it", OWNED, owned_lists_it),
        Case::new("owned::once", "Lists the sandboxes of this provider, dead or alive, each session once.", owned_once),
        Case::new("reap::removes", REAPED, reap_removes),
        Case::new("reap::then_provision_is_fresh", REAPED, reap_then_provision_is_fresh),
        Case::new("reap::twice", "Reaping a session again succeeds.", reap_twice),
        Case::new("reap::unknown_session", "Reaping a session that never was succeeds.", reap_unknown),
        Case::new("reap::whoever_made_it", "Removes everything of the session, whoever made it, and waits until it is gone.", reap_whoever_made_it),
        Case::new("reap::against_exec", ENDS, reap_against_exec).repeat(5),
        Case::new("reap::dropped", "a dropped `reap` can be repeated", reap_dropped).repeat(3),
        Case::new("reap::at_once", "Reaping a session again succeeds.", reap_at_once).repeat(5),
        Case::new("reap::hostile_files", REAPED, reap_hostile_files),
        Case::new("destroy::twice", DESTROY, destroy_twice),
        Case::new("destroy::spares_a_later_one", "Removes this sandbox and waits until it is gone; never a later one of the same session.", destroy_spares_a_later_one),
        Case::new("handle::is_bound_to_its_sandbox", BOUND_HANDLE, handle_is_bound),
        Case::new("handle::dropping_removes_nothing", "Dropping a handle removes nothing.", dropping_removes_nothing),
        Case::new("session::files_are_its_own", REACH, files_are_its_own).profile("hostile"),
        Case::new("session::processes_are_its_own", REACH, processes_are_its_own).profile("hostile"),
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

async fn id_is_the_session(bed: B) -> Outcome {
    for id in ["a", "7", "sesn_0123456789abcdefghjkmnpq", "a__b", &"z".repeat(59)] {
        // The shortest ids can collide with somebody else's, so each gets a tail of its own where there is room.
        let tail = mark();
        let id: String =
            if id.len() < 40 { format!("{id}_{tail}") } else { format!("{}{tail}", &id[..59 - tail.len()]) };
        let session = sandbox::SessionId::new(id).map_err(|e| unexpected("an id of the suite", "a legal one", &e))?;
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
fn unclaimed(claims: &sandbox::Capabilities) -> impl Iterator<Item = (&'static str, fn(&mut Hardening))> {
    type Change = fn(&mut Hardening);
    let all: [(&'static str, bool, Change); 8] = [
        ("pids", claims.pids_limit, |h| h.pids = Limit::Required(64)),
        ("cpu_millis", claims.cpu_limit, |h| h.cpu_millis = Limit::Required(500)),
        ("memory_bytes", claims.memory_limit, |h| h.memory_bytes = Limit::Required(1 << 30)),
        ("disk_bytes", claims.disk_limit, |h| h.disk_bytes = Limit::Required(1 << 30)),
        ("cap_drop", claims.cap_drop, |h| h.cap_drop = sandbox::CapDrop::all()),
        ("read_only_root", claims.read_only_root, |h| h.read_only_root = true),
        ("run_as_user", claims.run_as_user, |h| h.run_as_user = Some(65534)),
        ("run_as_group", claims.run_as_user, |h| h.run_as_group = Some(65534)),
    ];
    all.into_iter().filter(|(_, claimed, _)| !claimed).map(|(name, _, change)| (name, change))
}

async fn unclaimed_is_unsupported(bed: B) -> Outcome {
    for (name, change) in unclaimed(&bed.claims()) {
        let mut spec = bed.spec();
        change(&mut spec.hardening);
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

async fn finds_it(bed: B) -> Outcome {
    let first = bed.sandbox().await?;
    first.ok("echo one > /tmp/one").await?;
    let second = bed.attach(&bed.session).await?;
    equal("the session", second.inner.id(), &bed.session)?;
    equal("its file", second.ok("cat /tmp/one").await?, "one\n")?;
    second.ok("echo two > /tmp/two").await?;
    equal("the other's file", first.ok("cat /tmp/two").await?, "two\n")
}

async fn attach_unknown(bed: B) -> Outcome {
    for _ in 0..2 {
        refused("attaching", bed.try_attach(&bed.session).await?, ErrorKind::NotFound)?;
    }
    equal("times listed", bed.times_owned(&bed.session).await?, 0)
}

async fn attach_after_reap(bed: B) -> Outcome {
    bed.sandbox().await?;
    bed.reap(&bed.session).await?;
    refused("attaching", bed.try_attach(&bed.session).await?, ErrorKind::NotFound)?;
    equal("times listed", bed.times_owned(&bed.session).await?, 0)
}

async fn from_another_process(bed: B) -> Outcome {
    bed.sandbox().await?.ok("echo mine > /tmp/f").await?;
    let other = bed.other_provider().await?;
    let found = within("attach", secs(60), other.attach(&bed.session)).await?;
    let found = bed.subject(found.map_err(|e| unexpected("attaching from another process", "the sandbox", &e))?);
    equal("its file", found.ok("cat /tmp/f").await?, "mine\n")?;
    let again = bed.provision_through(&other, &bed.spec()).await?;
    let again = again.map_err(|e| unexpected("provisioning from another process", "the sandbox", &e))?;
    equal("its file", again.ok("cat /tmp/f").await?, "mine\n")
}

async fn attach_changes_nothing(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let run = sandbox.sh("for i in 1 2 3 4; do echo $i; sleep 0.3; done; exit 5");
    let look = async {
        for _ in 0..10 {
            bed.attach(&bed.session).await?;
            tokio::time::sleep(millis(50)).await;
        }
        Ok::<_, Failure>(())
    };
    let (result, looked) = tokio::join!(run, look);
    looked?;
    let result = result?;
    ensure(
        result.exit_code == 5 && result.stdout.bytes == "1\n2\n3\n4\n",
        "a command beside ten attaches",
        "code 5, whole",
        || told(&result),
    )
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

async fn reap_removes(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("sleep 300 & setsid sleep 300 & echo x > /tmp/f").await?;
    bed.reap(&bed.session).await?;
    refused("exec through the old handle", sandbox.try_exec(ExecRequest::shell("true")).await?, ErrorKind::NotFound)?;
    equal("times listed", bed.times_owned(&bed.session).await?, 0)
}

async fn reap_then_provision_is_fresh(bed: B) -> Outcome {
    for _ in 0..3 {
        let sandbox = bed.sandbox().await?;
        equal("files of an earlier sandbox", sandbox.ok("ls -A /tmp; ls -A .").await?, "")?;
        sandbox.ok("echo x > /tmp/f; echo y > g").await?;
        bed.reap(&bed.session).await?;
    }
    Ok(())
}

async fn reap_twice(bed: B) -> Outcome {
    bed.sandbox().await?;
    bed.reap(&bed.session).await?;
    bed.reap(&bed.session).await
}

async fn reap_unknown(bed: B) -> Outcome {
    bed.reap(&bed.session).await?;
    bed.reap(&bed.session).await
}

async fn reap_whoever_made_it(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let other = bed.other_provider().await?;
    let reaped = within("reap", secs(60), other.reap(&bed.session)).await?;
    reaped.map_err(|e| unexpected("reaping from another process", "success", &e))?;
    refused("exec", sandbox.try_exec(ExecRequest::shell("true")).await?, ErrorKind::NotFound)?;
    equal("times listed", bed.times_owned(&bed.session).await?, 0)
}

async fn reap_against_exec(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let runs = (0..8).map(|_| sandbox.inner.exec(ExecRequest::shell("sleep 300")));
    let reap = async {
        tokio::time::sleep(millis(300)).await;
        bed.reap(&bed.session).await
    };
    let both = futures::future::join(futures::future::join_all(runs), reap);
    let (results, reaped) = within("running commands to end when their sandbox is reaped", secs(20), both).await?;
    reaped?;
    for result in results {
        let error = match result {
            Err(error) => error,
            Ok(result) => return Err(Failure::new("a command in a reaped sandbox", "an error", told(&result))),
        };
        let right = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Lost);
        ensure(
            right && error.effect() == sandbox::Effect::Unknown,
            "a command in a reaped sandbox",
            "NotFound or Lost, with an unknown effect",
            || crate::short(&error),
        )?;
    }
    Ok(())
}

async fn reap_dropped(bed: B) -> Outcome {
    for moment in [0, 1, 3, 8, 20, 50] {
        let sandbox = bed.sandbox().await?;
        sandbox.ok("sleep 300 & mkdir -p a/b/c; touch a/b/c/d").await?;
        drop(tokio::time::timeout(millis(moment), bed.provider.reap(&bed.session)).await);
        bed.reap(&bed.session).await?;
        equal("times listed", bed.times_owned(&bed.session).await?, 0)?;
    }
    Ok(())
}

async fn reap_at_once(bed: B) -> Outcome {
    bed.sandbox().await?;
    let other = bed.other_provider().await?;
    let reaps = (0..10).map(|n| if n % 2 == 0 { bed.provider.reap(&bed.session) } else { other.reap(&bed.session) });
    for reaped in within("ten reaps at once", secs(60), futures::future::join_all(reaps)).await? {
        reaped.map_err(|e| unexpected("one of ten reaps", "success", &e))?;
    }
    equal("times listed", bed.times_owned(&bed.session).await?, 0)
}

async fn reap_hostile_files(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let plant = "mkdir -p a/b && touch a/b/f && ln -s / a/root && ln -s loop loop && mkfifo fifo && chmod 000 a/b && chmod 000 a; \
                 touch -- '-rf' ' ' $'new\\nline' $'\\xff'; d=deep; for i in {1..300}; do mkdir -p \"$d\" && cd \"$d\" || break; done; true";
    sandbox.ok(plant).await?;
    bed.reap(&bed.session).await?;
    let fresh = bed.sandbox().await?;
    equal("files of the reaped one", fresh.ok("ls -A").await?, "")
}

async fn destroy_twice(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let second = bed.attach(&bed.session).await?;
    sandbox.destroy().await?;
    sandbox.destroy().await?;
    second.destroy().await?;
    for handle in [&sandbox, &second] {
        refused("exec", handle.try_exec(ExecRequest::shell("true")).await?, ErrorKind::NotFound)?;
        if bed.claims().files {
            refused("read", handle.try_read("/tmp/f", 1).await?, ErrorKind::NotFound)?;
            let file = || Ok::<_, Failure>(sandbox::FileWrite::bytes(path("/tmp/f")?, "x"));
            refused("write", handle.try_write(file()?).await?, ErrorKind::NotFound)?;
            refused("write_many", handle.try_write_many(vec![file()?]).await?, ErrorKind::NotFound)?;
        }
    }
    refused("attach", bed.try_attach(&bed.session).await?, ErrorKind::NotFound)?;
    equal("times listed", bed.times_owned(&bed.session).await?, 0)
}

async fn destroy_spares_a_later_one(bed: B) -> Outcome {
    let old = bed.sandbox().await?;
    bed.reap(&bed.session).await?;
    let new = bed.sandbox().await?;
    new.ok("echo new > /tmp/f").await?;
    old.destroy().await?;
    equal("the later sandbox's file", new.ok("cat /tmp/f").await?, "new\n")?;
    equal("times listed", bed.times_owned(&bed.session).await?, 1)
}

async fn handle_is_bound(bed: B) -> Outcome {
    let old = bed.sandbox().await?;
    old.ok("true").await?;
    bed.reap(&bed.session).await?;
    let new = bed.sandbox().await?;
    let touched = old.try_exec(ExecRequest::shell("touch /tmp/by_the_old")).await?;
    refused("exec through the old handle", touched, ErrorKind::NotFound)?;
    if bed.claims().files {
        let file = sandbox::FileWrite::bytes(path("/tmp/by_the_old")?, "x");
        refused("write through the old handle", old.try_write(file).await?, ErrorKind::NotFound)?;
    }
    equal("what the old handle did to the new sandbox", new.ok("ls -A /tmp").await?, "")
}

async fn dropping_removes_nothing(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let mark = mark();
    sandbox.ok(&format!("echo mine > /tmp/f; setsid sleep {mark} >/dev/null 2>&1 & true")).await?;
    let second = bed.attach(&bed.session).await?;
    drop(sandbox);
    equal("files through the other handle", second.ok("cat /tmp/f").await?, "mine\n")?;
    drop(second);
    tokio::time::sleep(millis(500)).await;
    let third = bed.attach(&bed.session).await?;
    equal("files through a later handle", third.ok("cat /tmp/f").await?, "mine\n")?;
    equal("its background process", third.marked(&mark).await?, 1)
}

async fn files_are_its_own(bed: B) -> Outcome {
    let one = bed.sandbox().await?;
    let two = bed.provision(&bed.spec_of(&bed.fresh_session())).await?;
    one.ok("echo one > /tmp/f; echo one > f; echo one > /dev/shm/f 2>/dev/null; mkdir -p /mnt/session && echo one > /mnt/session/f || true").await?;
    equal("the other's files", two.ok("cat /tmp/f f /dev/shm/f /mnt/session/f 2>/dev/null; true").await?, "")?;
    two.ok("echo two > /tmp/f; echo two > f").await?;
    equal("its own files", one.ok("cat /tmp/f f").await?, "one\none\n")?;
    bed.reap(two.inner.id()).await?;
    equal("its own files after the other's reap", one.ok("cat /tmp/f f").await?, "one\none\n")
}

async fn processes_are_its_own(bed: B) -> Outcome {
    let (one, mark) = (bed.sandbox().await?, mark());
    let two = bed.provision(&bed.spec_of(&bed.fresh_session())).await?;
    one.ok(&format!("setsid sleep {mark} >/dev/null 2>&1 & true")).await?;
    equal("its process as the other sees it", two.marked(&mark).await?, 0)?;
    let run = one.sh("sleep 2; echo whole");
    let attack = async {
        tokio::time::sleep(millis(500)).await;
        two.try_exec(
            ExecRequest::shell("kill -9 -1; for p in {1..40000}; do kill -9 $p; done 2>/dev/null").with_limit(secs(5)),
        )
        .await
    };
    let (whole, attacked) = tokio::join!(run, attack);
    let whole = whole?;
    ensure(whole.success(), "a command beside somebody who kills everything", "an ordinary end", || {
        format!("{} ({attacked:?})", told(&whole))
    })?;
    equal("its process", one.marked(&mark).await?, 1)
}
