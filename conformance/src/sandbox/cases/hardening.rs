//! How a sandbox is contained.

use std::time::{Duration, Instant};

use sandbox::{CapDrop, Capability, ErrorKind, ExecRequest, FileWrite, Hardening, Limit};

use super::super::Subject;
use super::super::bed::{path, refused};
use super::super::subject::told;
use super::{B, Case, filler, secs};
use crate::{Failure, Outcome, ensure, equal};

const CAPS: &str = "No process of the sandbox can have one of these capabilities.";
const GAIN: &str = "If there is one, no process can gain privileges either.";
const ROOT: &str = "Only the working directory, `/tmp` and `/mnt` can be written.";
const USER: &str = "Commands run as this numeric user; `None` is the image's own.";
const PREFERRED: &str = "This bound holds where the backend can impose one, and is never a reason to refuse a spec.";

pub(super) fn cases() -> Vec<Case> {
    let all = vec![
        Case::new("hardening::pids", "A sandbox never has more processes and threads at once than this.", pids).needs("pids_limit", |c| c.pids_limit),
        Case::new("hardening::cpu", "A sandbox gets no more processor time than this, in thousandths of a core.", cpu)
            .needs("cpu_limit", |c| c.cpu_limit),
        Case::new("hardening::memory", "A sandbox takes no more memory than this, in bytes; who wants more fails or is killed, and did not time out.", memory).needs("memory_limit", |c| c.memory_limit),
        Case::new("hardening::disk", "The sandbox's own files take no more disk than this, in bytes.", disk)
            .needs("disk_limit", |c| c.disk_limit)
            .deadline(secs(180)),
        Case::new("hardening::preferred_bounds", PREFERRED, preferred),
        Case::new("hardening::dropped_capabilities", CAPS, dropped_capabilities).needs("cap_drop", |c| c.cap_drop),
        Case::new("hardening::dropped_chown", CAPS, dropped_chown)
            .needs("cap_drop and root_by_default", |c| c.cap_drop && c.root_by_default),
        Case::new("hardening::no_new_privileges", GAIN, no_new_privileges).needs("cap_drop", |c| c.cap_drop),
        Case::new("hardening::read_only_root", ROOT, read_only_root).needs("read_only_root", |c| c.read_only_root),
        Case::new("hardening::read_only_root_and_files", ROOT, read_only_root_and_files)
            .needs("read_only_root and files", |c| c.read_only_root && c.files),
        Case::new("hardening::user_and_group", USER, user_and_group).needs("run_as_user", |c| c.run_as_user),
        Case::new("hardening::user_and_files", USER, user_and_files)
            .needs("run_as_user and files", |c| c.run_as_user && c.files),
        Case::new("hardening::user_and_read_only_root", USER, user_and_read_only_root).needs(
            "run_as_user, read_only_root, files and export",
            |c| c.run_as_user && c.read_only_root && c.files && c.export,
        ),
        Case::new(
            "hardening::kept_as_created",
            "`env` and `hardening` stay as they were at its creation.",
            kept_as_created,
        )
        .needs("cap_drop", |c| c.cap_drop),
    ];
    all.into_iter().map(|case| case.profile("hardening")).collect()
}

/// The case's sandbox, hardened as `change` says on top of the plain spec.
async fn hardened(bed: &B, change: impl FnOnce(&mut Hardening)) -> Outcome<Subject> {
    let mut spec = bed.spec();
    change(&mut spec.hardening);
    bed.provision(&spec).await
}

async fn pids(bed: B) -> Outcome {
    let sandbox = hardened(&bed, |h| h.pids = Limit::Required(64)).await?;
    // Counted by builtins alone: at the bound nothing else can be started, perhaps not even what the platform needs.
    let bomb = "for i in {1..200}; do sleep 10 & set -- /proc/[0-9]*; echo $# >> /tmp/counts; done 2>/dev/null";
    drop(sandbox.try_exec(ExecRequest::shell(bomb).with_limit(secs(5))).await?);
    let begun = Instant::now();
    let counts = loop {
        match sandbox.try_exec(ExecRequest::shell("cat /tmp/counts").with_limit(secs(5))).await? {
            Ok(result) if result.success() => break result.stdout.to_string_lossy().into_owned(),
            other => {
                let late = begun.elapsed() > secs(30);
                ensure(!late, "a command after a fork bomb", "that it runs again", || crate::short(&other))?;
                tokio::time::sleep(secs(1)).await;
            }
        }
    };
    let most = counts.lines().filter_map(|line| line.trim().parse::<usize>().ok()).max().unwrap_or(0);
    ensure((20..=66).contains(&most), "processes at once under a bound of 64", "at most 64", || format!("{most}"))
}

async fn cpu(bed: B) -> Outcome {
    let sandbox = hardened(&bed, |h| h.cpu_millis = Limit::Required(200)).await?;
    let begun = Instant::now();
    // Many at once: on a machine that is busy with other things, one alone would get little even without a bound.
    let busy = "TIMEFORMAT='%U %S'; time (end=$((SECONDS + 4)); for i in {1..16}; do while ((SECONDS < end)); do :; done & done; wait)";
    let result = sandbox.timed(busy, secs(30)).await?;
    let text = result.stderr.to_string_lossy().into_owned();
    let used: f64 = text.split_whitespace().filter_map(|n| n.parse::<f64>().ok()).sum();
    let share = used / begun.elapsed().as_secs_f64();
    ensure(share < 0.35, "the share of a core under a bound of 0.2", "at most 0.35", || {
        format!("{share:.2} ({})", told(&result))
    })
}

async fn memory(bed: B) -> Outcome {
    let sandbox = hardened(&bed, |h| h.memory_bytes = Limit::Required(128 << 20)).await?;
    equal("a small command", sandbox.ok("echo alive").await?, "alive\n")?;
    let result = sandbox
        .try_exec(ExecRequest::shell("head -c 1G /dev/zero | tail; exit ${PIPESTATUS[1]}").with_limit(secs(60)))
        .await?;
    match result {
        Ok(result) => ensure(
            !result.success() && !result.timed_out,
            "1 GiB under a bound of 128 MiB",
            "a failure that is no timeout",
            || told(&result),
        ),
        Err(error) => ensure(
            error.kind() == ErrorKind::NotFound || error.death().is_some(),
            "1 GiB under a bound of 128 MiB",
            "the cause of death",
            || crate::short(&error),
        ),
    }
}

async fn disk(bed: B) -> Outcome {
    let sandbox = hardened(&bed, |h| h.disk_bytes = Limit::Required(64 << 20)).await?;
    let result = sandbox
        .try_exec(ExecRequest::shell("head -c 512M /dev/zero > fill; sync; stat -c %s fill").with_limit(secs(60)))
        .await?;
    match result {
        Ok(result) => {
            let size: u64 = result.stdout.to_string_lossy().trim().parse().unwrap_or(0);
            // Some backends count now and then, and then end the sandbox.
            ensure(
                size <= 80 << 20 || ends(&sandbox, secs(100)).await,
                "512 MiB under a bound of 64 MiB",
                "at most 80 MiB, or the end of the sandbox within 100 seconds",
                || told(&result),
            )
        }
        Err(error) => {
            ensure(error.kind() == ErrorKind::NotFound, "512 MiB under a bound of 64 MiB", "a failure", || {
                crate::short(&error)
            })
        }
    }
}

/// Whether the sandbox is gone within `patience`.
async fn ends(sandbox: &Subject, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while Instant::now() < until {
        tokio::time::sleep(secs(1)).await;
        let alive = sandbox.try_exec(ExecRequest::shell("true").with_limit(secs(10))).await;
        if matches!(alive, Ok(Err(error)) if error.kind() == ErrorKind::NotFound) {
            return true;
        }
    }
    false
}

async fn preferred(bed: B) -> Outcome {
    let sandbox = hardened(&bed, |h| {
        h.pids = Limit::Preferred(256);
        h.cpu_millis = Limit::Preferred(1000);
        h.memory_bytes = Limit::Preferred(1 << 30);
        h.disk_bytes = Limit::Preferred(1 << 30);
    })
    .await?;
    equal("a command", sandbox.ok("echo alive").await?, "alive\n")
}

/// The value of `field` in the status of a fresh process.
async fn status(sandbox: &Subject, field: &str) -> Outcome<String> {
    let printed = sandbox.ok("cat /proc/self/status").await?;
    let line = printed.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.map(|value| value.trim().to_owned())
        .ok_or_else(|| Failure::new("the status of a process", field, printed.clone()))
}

async fn dropped_capabilities(bed: B) -> Outcome {
    let sandbox = hardened(&bed, |h| h.cap_drop = CapDrop::only([Capability::NET_RAW, Capability::CHOWN])).await?;
    for field in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        let text = status(&sandbox, field).await?;
        let set =
            u64::from_str_radix(&text, 16).map_err(|_| Failure::new(field, "a hexadecimal number", text.clone()))?;
        ensure(set & (1 << 13 | 1) == 0, field, "neither NET_RAW nor CHOWN", || text.clone())?;
    }
    let other = bed.fresh_session();
    let mut spec = bed.spec_of(&other);
    spec.hardening.cap_drop = CapDrop::all();
    let sandbox = bed.provision(&spec).await?;
    for field in ["CapEff", "CapPrm"] {
        equal(field, u64::from_str_radix(&status(&sandbox, field).await?, 16).unwrap_or(u64::MAX), 0)?;
    }
    Ok(())
}

async fn dropped_chown(bed: B) -> Outcome {
    let mut spec = bed.spec();
    spec.hardening.cap_drop = CapDrop::none();
    let plain = bed.provision(&spec).await?;
    let chown = "touch /tmp/f; chown 1:1 /tmp/f && echo changed";
    let before = plain.sh(chown).await?;
    ensure(before.success(), "chown where it is not dropped", "success", || told(&before))?;
    spec.session = bed.fresh_session();
    spec.hardening.cap_drop = CapDrop::only([Capability::CHOWN]);
    let dropped = bed.provision(&spec).await?;
    let after = dropped.sh(chown).await?;
    ensure(after.stdout.total == 0 && !after.success(), "chown where it is dropped", "a failure", || told(&after))
}

async fn no_new_privileges(bed: B) -> Outcome {
    let sandbox = hardened(&bed, |h| h.cap_drop = CapDrop::only([Capability::NET_RAW])).await?;
    equal("NoNewPrivs", status(&sandbox, "NoNewPrivs").await?, "1")?;
    if bed.claims().spawn {
        let mut process =
            sandbox.spawn(sandbox::SpawnRequest::shell("grep -q 'NoNewPrivs:.*1' /proc/self/status")).await?;
        let exit = crate::within("the end of a spawned command", secs(20), process.wait()).await?;
        ensure(exit.as_ref().is_ok_and(|exit| exit.success()), "NoNewPrivs of a spawned command", "1", || {
            crate::short(&exit)
        })?;
    }
    Ok(())
}

async fn read_only_root(bed: B) -> Outcome {
    let sandbox = hardened(&bed, |h| h.read_only_root = true).await?;
    let text = "for d in /workspace /tmp /mnt /mnt/session; do mkdir -p $d/x/y && touch $d/x/y/f && rm -r $d/x || echo closed $d; done; \
                for d in / /etc /usr /usr/bin /var /home /root /opt /lib; do [[ -d $d ]] && (: > $d/x) 2>/dev/null && echo open $d; done; true";
    equal("directories with the wrong answer", sandbox.ok(text).await?, "")
}

async fn read_only_root_and_files(bed: B) -> Outcome {
    let sandbox = hardened(&bed, |h| h.read_only_root = true).await?;
    sandbox.write("/workspace/f", "x").await?;
    sandbox.write("/tmp/a/f", "x").await?;
    sandbox.write("/mnt/session/f", "x").await?;
    for name in ["/etc/conformance", "/usr/new/f", "/newdir/f", "/conformance"] {
        for size in [256 << 10, 3] {
            let file = FileWrite::bytes(path(name)?, filler(size));
            let error = refused(name, sandbox.try_write(file).await?, ErrorKind::NotWritable)?;
            ensure(error.reason().is_some_and(|r| !r.is_empty()), name, "a reason", || crate::short(&error))?;
        }
    }
    for size in [1, 256 << 10] {
        let file = FileWrite::bytes(path("/dev/null")?, filler(size));
        refused("a device under a read-only root", sandbox.try_write(file).await?, ErrorKind::NotReplaceable)?;
    }
    nothing_replaces_hosts(&sandbox).await
}

/// What is mounted is refused as that before anybody finds out that nothing can be made beside it.
async fn nothing_replaces_hosts(sandbox: &Subject) -> Outcome {
    let mounted = sandbox.ok("while read -r _ _ _ _ at _; do echo \"$at\"; done < /proc/self/mountinfo").await?;
    let pinned = mounted.lines().any(|at| at == "/etc/hosts");
    let before = sandbox.ok("cat /etc/hosts; ls -A /etc").await?;
    for size in [1, 256 << 10] {
        let file = FileWrite::bytes(path("/etc/hosts")?, filler(size));
        let kind = if pinned { ErrorKind::NotReplaceable } else { ErrorKind::NotWritable };
        refused("/etc/hosts under a read-only root", sandbox.try_write(file).await?, kind)?;
    }
    equal("/etc/hosts, and what stands beside it", sandbox.ok("cat /etc/hosts; ls -A /etc").await?, before)
}

async fn user_and_group(bed: B) -> Outcome {
    let sandbox = hardened(&bed, |h| (h.run_as_user, h.run_as_group) = (Some(65534), Some(65533))).await?;
    equal("user and group", sandbox.ok("id -u; id -g").await?, "65534\n65533\n")?;
    equal("the working directory", sandbox.ok("touch f && ls").await?, "f\n")?;
    equal("/tmp", sandbox.ok("touch /tmp/f && ls /tmp").await?, "f\n")
}

async fn user_and_files(bed: B) -> Outcome {
    let sandbox = hardened(&bed, |h| (h.run_as_user, h.run_as_group) = (Some(65534), Some(65534))).await?;
    sandbox.write("/workspace/d/f", "x").await?;
    equal("who owns it", sandbox.ok("stat -c '%u %a' d/f && echo y >> d/f").await?, "65534 644\n")?;
    let file = FileWrite::bytes(path("/dev/null")?, "x");
    refused("a write onto a device", sandbox.try_write(file).await?, ErrorKind::NotReplaceable).map(drop)
}

async fn user_and_read_only_root(bed: B) -> Outcome {
    let sandbox = hardened(&bed, |h| {
        (h.run_as_user, h.run_as_group, h.read_only_root) = (Some(65534), Some(65534), true);
    })
    .await?;
    let opened = sandbox.ok("umask 022; id -u; pwd; mkdir d && echo x > d/f && cat d/f; touch /tmp/f; (: > /etc/f) 2>/dev/null || echo closed").await?;
    equal("user, working directory and root", opened, "65534\n/workspace\nx\nclosed\n")?;
    sandbox.write("/workspace/d/written", "w").await?;
    let batch = (0..40).map(|n| Ok(FileWrite::bytes(path(format!("/workspace/b/{}/{n}", n % 3))?, format!("{n}"))));
    let batch = batch.collect::<Outcome<Vec<_>>>()?;
    sandbox.try_write_many(batch).await?.map_err(|e| super::super::bed::unexpected("write_many", "success", &e))?;
    equal(
        "whose they are",
        sandbox.ok("find b d -type f -exec stat -c '%u %a' {} + | sort | uniq -c | tr -s ' '").await?,
        " 42 65534 644\n",
    )?;
    let archive = bed.export(&bed.session, "/workspace").await?;
    let entries = super::super::tar::entries(&archive)?;
    let there =
        entries.iter().filter(|entry| entry.name.starts_with(b"workspace/b/") && !entry.name.ends_with(b"/")).count();
    equal("members of the batch in the archive", there, 40)?;
    for size in [1, 256 << 10] {
        let file = FileWrite::bytes(path("/dev/null")?, filler(size));
        refused("a write onto a device", sandbox.try_write(file).await?, ErrorKind::NotReplaceable)?;
    }
    nothing_replaces_hosts(&sandbox).await
}

async fn kept_as_created(bed: B) -> Outcome {
    let first = hardened(&bed, |h| h.cap_drop = CapDrop::all()).await?;
    let before = status(&first, "CapBnd").await?;
    first.ok("echo mine > /tmp/f").await?;
    let second = hardened(&bed, |h| h.cap_drop = CapDrop::none()).await?;
    equal("its files", second.ok("cat /tmp/f").await?, "mine\n")?;
    equal("capabilities of the sandbox that is there", status(&second, "CapBnd").await?, before)
}
