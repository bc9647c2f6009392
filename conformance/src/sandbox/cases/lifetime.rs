//! Finding and removing sandboxes, and what a handle is bound to.

use std::time::Duration;

use sandbox::{ErrorKind, ExecRequest};

use super::super::Subject;
use super::super::bed::{path, refused, unexpected};
use super::super::subject::told;
use super::{B, Case, mark, millis, secs};
use crate::{Failure, Outcome, ensure, equal, within};

const ATTACH: &str =
    "Attaching answers the sandbox that is there: what is written through one handle is seen through the other.";
const ABSENT: &str = "Attaching to a session that has no sandbox fails as `NotFound`, and makes nothing.";
const REAPED: &str = "After a reap the sandbox is gone: a handle that was made before fails as `NotFound`, and the session is not owned.";
const STATELESS: &str =
    "A provider keeps no state of its own about a sandbox: the session id alone finds it again, from any process.";
const DESTROY: &str = "Destroying twice succeeds, and every other operation then fails as `NotFound`.";
const BOUND_HANDLE: &str =
    "Once that one is gone, everything fails as `NotFound`, also when the session has another by then.";
const REPEATED: &str = "A dropped `reap` or `destroy` can be repeated.";
pub(super) const HARMLESS: &str = "A dropped `attach` or `owned` changes nothing and holds nobody up.";
const ENDS: &str =
    "A command that runs when its sandbox is removed fails as `NotFound` or `Lost`, with `Effect::Unknown`.";
const REACH: &str = "A tenant can make its own session lie to you; it cannot make a command that ran past its limit look \
     punctual, reach another session, or make a call hang or grow.";

/// When a future is dropped.
pub(super) const DROPPED: [Duration; 6] = [millis(0), millis(1), millis(3), millis(8), millis(20), millis(50)];

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("attach::finds_it", ATTACH, finds_it),
        Case::new("attach::unknown_session", ABSENT, attach_unknown),
        Case::new(
            "attach::after_reap",
            "After a reap, attaching fails as `NotFound`, and the session is not owned.",
            attach_after_reap,
        ),
        Case::new("attach::from_another_process", STATELESS, from_another_process),
        Case::new(
            "attach::changes_nothing",
            "It never waits, starts, heals or removes anything, so that it is safe beside a running session.",
            attach_changes_nothing,
        )
        .races(),
        Case::new("attach::dropped", HARMLESS, attach_dropped).races().repeat(3),
        Case::new("reap::removes", REAPED, reap_removes),
        Case::new("reap::then_provision_is_fresh", REAPED, reap_then_provision_is_fresh),
        Case::new("reap::twice", "Reaping a session again succeeds.", reap_twice),
        Case::new("reap::unknown_session", "Reaping a session that never was succeeds.", reap_unknown),
        Case::new(
            "reap::whoever_made_it",
            "Removes everything of the session, whoever made it, and waits until it is gone.",
            reap_whoever_made_it,
        ),
        Case::new("reap::against_exec", ENDS, reap_against_exec).races().repeat(5),
        Case::new("reap::dropped", REPEATED, reap_dropped).races().repeat(3),
        Case::new("reap::at_once", "Reaping a session again succeeds.", reap_at_once).races().repeat(5),
        Case::new("reap::hostile_files", REAPED, reap_hostile_files),
        Case::new("destroy::twice", DESTROY, destroy_twice),
        Case::new(
            "destroy::spares_a_later_one",
            "Removes this sandbox and waits until it is gone; never a later one of the same session.",
            destroy_spares_a_later_one,
        ),
        Case::new("destroy::dropped", REPEATED, destroy_dropped).races().repeat(3),
        Case::new("handle::is_bound_to_its_sandbox", BOUND_HANDLE, handle_is_bound),
        Case::new("handle::dropping_removes_nothing", "Dropping a handle removes nothing.", dropping_removes_nothing),
        Case::new("session::files_are_its_own", REACH, files_are_its_own).profile("hostile"),
        Case::new("session::processes_are_its_own", REACH, processes_are_its_own).profile("hostile").races(),
    ]
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
        bed.nothing_of(&bed.session, "attaching").await?;
    }
    equal("times listed", bed.times_owned(&bed.session).await?, 0)
}

async fn attach_after_reap(bed: B) -> Outcome {
    bed.sandbox().await?;
    bed.reap(&bed.session).await?;
    refused("attaching", bed.try_attach(&bed.session).await?, ErrorKind::NotFound)?;
    equal("times listed", bed.times_owned(&bed.session).await?, 0)
}

async fn attach_dropped(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let mark = mark();
    sandbox.ok(&format!("echo mine > /tmp/f; setsid sleep {mark} >/dev/null 2>&1 & true")).await?;
    let nobody = bed.fresh_session();
    for moment in DROPPED {
        for session in [&bed.session, &nobody] {
            drop(tokio::time::timeout(moment, bed.provider.attach(session)).await);
        }
        let found = bed.attach(&bed.session).await?;
        equal("its file", found.ok("cat /tmp/f").await?, "mine\n")?;
        equal("times listed", (bed.times_owned(&bed.session).await?, bed.times_owned(&nobody).await?), (1, 0))?;
    }
    equal("its background process", sandbox.marked(&mark).await?, 1)
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
    let run = sandbox.sh("echo 1; > /tmp/begun; until [[ -e /tmp/enough ]]; do sleep 0.02; done; echo 2; exit 5");
    let look = async {
        sandbox.ok("until [[ -e /tmp/begun ]]; do sleep 0.02; done").await?;
        for _ in 0..10 {
            bed.attach(&bed.session).await?;
        }
        sandbox.ok("> /tmp/enough").await
    };
    let (result, looked) = tokio::join!(run, look);
    looked?;
    let result = result?;
    ensure(
        result.exit_code == 5 && result.stdout.bytes == "1\n2\n",
        "a command beside ten attaches",
        "code 5, whole",
        || told(&result),
    )
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
    let mark = mark();
    let spawned = match bed.claims().spawn {
        true => Some(sandbox.spawn(sandbox::SpawnRequest::shell(format!("sleep {mark}"))).await?),
        false => None,
    };
    let commands = 8 + usize::from(spawned.is_some());
    let runs = (0..8).map(|_| sandbox.inner.exec(ExecRequest::shell(format!("sleep {mark}"))));
    let reap = async {
        // One that has not begun fails too, but then its effect is known.
        sandbox.all_marked(&mark, commands, secs(60)).await?;
        bed.reap(&bed.session).await
    };
    let both = futures::future::join(futures::future::join_all(runs), reap);
    let (mut results, reaped) = within("running commands to end when their sandbox is reaped", secs(60), both).await?;
    reaped?;
    if let Some(mut process) = spawned {
        let ended = within("a spawned command to end when its sandbox is reaped", secs(60), process.wait()).await?;
        let as_result = |exit: sandbox::Exit| {
            let nothing = sandbox::Output::default;
            sandbox::ExecResult::new(exit.code, exit.timed_out, nothing(), nothing(), Duration::ZERO)
        };
        results.push(ended.map(as_result));
    }
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
    for moment in DROPPED {
        let sandbox = bed.sandbox().await?;
        sandbox.ok("sleep 300 & mkdir -p a/b/c; touch a/b/c/d").await?;
        drop(tokio::time::timeout(moment, bed.provider.reap(&bed.session)).await);
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

/// Wants every operation of a handle to find that its sandbox is gone.
async fn is_gone(bed: &B, handle: &Subject) -> Outcome {
    let claims = bed.claims();
    refused("exec", handle.try_exec(ExecRequest::shell("touch /tmp/by_the_old")).await?, ErrorKind::NotFound)?;
    if claims.files {
        let file = || Ok::<_, Failure>(sandbox::FileWrite::bytes(path("/tmp/by_the_old")?, "x"));
        refused("read", handle.try_read("/etc/passwd", 1 << 20).await?, ErrorKind::NotFound)?;
        refused("write", handle.try_write(file()?).await?, ErrorKind::NotFound)?;
        refused("write_many", handle.try_write_many(vec![file()?]).await?, ErrorKind::NotFound)?;
    }
    if claims.spawn {
        let touch = sandbox::SpawnRequest::shell("touch /tmp/by_the_old");
        let spawned = within("spawn", secs(60), handle.inner.spawn(touch)).await?;
        refused("spawn", spawned.map(drop), ErrorKind::NotFound)?;
    }
    Ok(())
}

async fn destroy_twice(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let second = bed.attach(&bed.session).await?;
    sandbox.destroy().await?;
    sandbox.destroy().await?;
    second.destroy().await?;
    for handle in [&sandbox, &second] {
        is_gone(&bed, handle).await?;
    }
    if bed.claims().export {
        refused("export", bed.try_export(&bed.session, "/tmp").await?, ErrorKind::NotFound)?;
    }
    refused("attach", bed.try_attach(&bed.session).await?, ErrorKind::NotFound)?;
    equal("times listed", bed.times_owned(&bed.session).await?, 0)
}

async fn destroy_dropped(bed: B) -> Outcome {
    for moment in DROPPED {
        let sandbox = bed.sandbox().await?;
        sandbox.ok("sleep 300 & mkdir -p a/b/c; touch a/b/c/d").await?;
        drop(tokio::time::timeout(moment, sandbox.inner.destroy()).await);
        sandbox.destroy().await?;
        equal("times listed", bed.times_owned(&bed.session).await?, 0)?;
        refused("attach", bed.try_attach(&bed.session).await?, ErrorKind::NotFound)?;
    }
    equal("a sandbox after them", bed.sandbox().await?.ok("ls -A /tmp; ls -A .").await?, "")
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
    is_gone(&bed, &old).await?;
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
    // Who removes it may take a moment for that.
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
    let run = one.sh("> /tmp/begun; until [[ -e /tmp/enough ]]; do sleep 0.05; done; echo whole");
    let attack = async {
        one.ok("until [[ -e /tmp/begun ]]; do sleep 0.02; done").await?;
        let text = "kill -9 -1; for p in {1..40000}; do kill -9 $p; done 2>/dev/null";
        let attacked = two.try_exec(ExecRequest::shell(text).with_limit(secs(5))).await;
        one.ok("> /tmp/enough").await?;
        attacked
    };
    let (whole, attacked) = tokio::join!(run, attack);
    let whole = whole?;
    ensure(whole.success(), "a command beside somebody who kills everything", "an ordinary end", || {
        format!("{} ({attacked:?})", told(&whole))
    })?;
    equal("its process", one.marked(&mark).await?, 1)
}
