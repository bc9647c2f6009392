//! Tenants that fight back.

use std::time::{Duration, Instant};

use sandbox::{Env, ExecRequest, FileWrite};

use super::super::Subject;
use super::super::bed::{path, unexpected};
use super::super::subject::told;
use super::limits::processes;
use super::{B, Case, mark, millis, secs, soon};
use crate::{Failure, Outcome, ensure, equal, same};

const ENV: &str = "Variables of the spec reach every command byte for byte.";
const USABLE: &str = "Whatever a command kills, stops, closes or leaves behind, later commands run, unless what it leaves \
     behind uses up a bound of the sandbox.";
const APART: &str = "Standard output and standard error are captured apart, byte for byte.";
const TRUTH: &str = "A tenant can make its own session lie to you; it cannot make a command that ran past its limit look \
     punctual, reach another session, or make a call hang or grow.";
const BACK: &str = "A file reads back as it was written, whatever its bytes and its name.";

pub(super) fn cases() -> Vec<Case> {
    let all = vec![
        Case::new("hostile::variables", ENV, variables),
        Case::new("hostile::kills_everything", USABLE, kills_everything).races(),
        Case::new("hostile::stops_everything", USABLE, stops_everything).races(),
        Case::new("hostile::leaves_junk", USABLE, leaves_junk),
        Case::new("hostile::exhausts_descriptors", USABLE, exhausts_descriptors),
        Case::new("hostile::orphans", USABLE, orphans),
        Case::new("hostile::forges_records", APART, forges_records),
        Case::new("hostile::writes_to_others_output", TRUTH, writes_to_others_output).races(),
        Case::new("hostile::hides_the_workdir", TRUTH, hides_the_workdir),
        Case::new("hostile::never_ending_output", TRUTH, never_ending_output),
        Case::new("hostile::shadowed_tools", BACK, shadowed_tools).needs("files", |c| c.files),
        Case::new("hostile::planted_names", BACK, planted_names).needs("files", |c| c.files),
        Case::new("hostile::file_that_becomes_a_fifo", TRUTH, file_that_becomes_a_fifo)
            .races()
            .needs("files", |c| c.files),
        Case::new("hostile::changes_clocks", TRUTH, changes_clocks),
    ];
    all.into_iter().map(|case| case.profile("hostile")).collect()
}

/// Wants an ordinary command to work.
async fn alive(sandbox: &Subject, after: &str) -> Outcome {
    let begun = Instant::now();
    let result = sandbox.timed("echo alive; echo err >&2; exit 4", secs(20)).await?;
    let right = result.exit_code == 4 && result.stdout.bytes == "alive\n" && result.stderr.bytes == "err\n";
    ensure(right, &format!("a command after {after}"), "alive, err and exit code 4", || told(&result))?;
    ensure(begun.elapsed() < secs(10), &format!("a command after {after}"), "an answer soon", || {
        format!("{:?}", begun.elapsed())
    })
}

async fn variables(bed: B) -> Outcome {
    let mut env = Env::new();
    let hostile = [
        ("PATH", "/nowhere"),
        ("BASH_ENV", "/tmp/evil"),
        ("ENV", "/tmp/evil"),
        ("SHELLOPTS", "xtrace:verbose"),
        ("BASHOPTS", "nullglob:extdebug"),
        ("PS4", "$(touch /tmp/ps4)"),
        ("IFS", "aeiou0123456789"),
        ("POSIXLY_CORRECT", "1"),
        ("GLOBIGNORE", "*"),
        ("CDPATH", "/"),
        ("LC_ALL", "xx_XX.nonsense"),
        ("LANG", "tr_TR.UTF-8"),
        ("TZ", ":/dev/zero"),
        ("TMPDIR", "/nowhere"),
        ("HOME", "/nowhere"),
        ("PROMPT_COMMAND", "exit 9"),
        ("TAR_OPTIONS", "--nonsense"),
        ("PYTHONSTARTUP", "/tmp/evil"),
    ];
    for (name, value) in hostile {
        env.set(name, value).map_err(|e| unexpected("env", "legal", &e))?;
    }
    let sandbox = bed.provision(&bed.spec().with_env(env)).await?;
    let seen = sandbox.exec(ExecRequest::args(["/usr/bin/env", "-0"])).await?;
    for (name, value) in hostile {
        let wanted = format!("{name}={value}");
        let there = seen.stdout.bytes.split(|b| *b == 0).any(|entry| entry == wanted.as_bytes());
        ensure(there, "the variables of a program", &wanted, || told(&seen))?;
    }
    let result = sandbox.exec(ExecRequest::args(["/usr/bin/printf", "%s", "out"]).with_limit(secs(10))).await?;
    same("the output of a program", &result.stdout.bytes, "out")?;
    equal("what the platform printed", result.stderr.total, 0)?;
    let evil = "echo 'echo EVIL; touch /tmp/ran' > /tmp/evil; unset SHELLOPTS 2>/dev/null; :";
    sandbox.sh(evil).await?;
    if bed.claims().files {
        sandbox.write("/tmp/d/f", "x\n").await?;
        same("a file", &sandbox.read("/tmp/d/f").await?, "x\n")?;
    }
    let result = sandbox.exec(ExecRequest::args(["/usr/bin/printf", "%s", "out"])).await?;
    same("the output of a program", &result.stdout.bytes, "out")
}

async fn kills_everything(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for text in [
        "kill -9 -1",
        "kill -9 0",
        "kill -9 $PPID",
        "for p in {2..2000}; do kill -9 $p; done 2>/dev/null",
        "kill -TERM -1; kill -HUP -1",
    ] {
        let begun = Instant::now();
        drop(sandbox.try_exec(ExecRequest::shell(text).with_limit(secs(5))).await?);
        ensure(begun.elapsed() < secs(9), text, "an answer", || format!("{:?}", begun.elapsed()))?;
        alive(&sandbox, text).await?;
    }
    Ok(())
}

async fn stops_everything(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for text in [
        "kill -STOP -1",
        // It goes on for as long as it takes whoever is stopped to be missed.
        "kill -STOP $PPID; sleep 0.3",
        "for p in {2..2000}; do [[ $p == $$ ]] || kill -STOP $p; done 2>/dev/null",
    ] {
        let begun = Instant::now();
        drop(sandbox.try_exec(ExecRequest::shell(text).with_limit(secs(2))).await?);
        ensure(begun.elapsed() < secs(8), text, "an answer", || format!("{:?}", begun.elapsed()))?;
        alive(&sandbox, text).await?;
    }
    Ok(())
}

async fn leaves_junk(bed: B) -> Outcome {
    let (sandbox, mark) = (bed.sandbox().await?, mark());
    let text = format!(
        "for i in {{1..60}}; do (setsid sleep {mark} &) ; done; for i in {{1..200}}; do : > /tmp/.junk-$i; done; echo out"
    );
    let result = sandbox.timed(text, secs(20)).await?;
    same("its output", &result.stdout.bytes, "out\n")?;
    for _ in 0..5 {
        alive(&sandbox, "60 processes and 200 files stayed").await?;
    }
    equal("its processes", sandbox.marked(&mark).await?, 60)
}

async fn exhausts_descriptors(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let text = "for i in {10..5000}; do eval \"exec $i</dev/null\" || break; done 2>/dev/null; echo held; sleep 0.2";
    let result = sandbox.timed(text, secs(20)).await?;
    ensure(result.stdout.bytes.starts_with(b"held"), "holding every descriptor", "held", || told(&result))?;
    let text = "exec 0<&- 1>&- 2>&-; for i in {3..50}; do eval \"exec $i>&-\"; done; exit 6";
    equal("closing every descriptor", sandbox.timed(text, secs(10)).await?.exit_code, 6)?;
    alive(&sandbox, "no descriptor was left").await
}

async fn orphans(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let before = processes(&sandbox).await?;
    for _ in 0..4 {
        let result = sandbox.timed("for i in {1..500}; do sh -c '(sleep 0.05 &)'; done", secs(60)).await?;
        ensure(!result.timed_out, "500 orphans", "an ordinary end", || told(&result))?;
    }
    let zombies = "n=0; for s in /proc/[0-9]*/stat; do read -r line < $s && [[ ${line##*) } == Z* ]] && ((n++)); done 2>/dev/null; echo $n";
    soon(secs(10), || async {
        let left: usize = sandbox.ok(zombies).await?.trim().parse().unwrap_or(usize::MAX);
        ensure(left <= 5, "zombies after 2,000 orphans", "at most 5", || left.to_string())?;
        let now = processes(&sandbox).await?;
        ensure(now <= before, "processes after 2,000 orphans", &format!("{before}, as before"), || now.to_string())
    })
    .await
}

async fn forges_records(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let text = "for w in END BEGIN READY 0 137 END\\ 0 '\\036END 0' '\\0END\\0000' '\\033]0;END\\007' '{\"exit\":0}' EOF; do printf \"$w\\n\"; printf \"$w\\n\" >&2; done; exit 9";
    let first = sandbox.sh(text).await?;
    let wanted: &[u8] = b"END\nBEGIN\nREADY\n0\n137\nEND 0\n\x1eEND 0\n\0END\x000\n\x1b]0;END\x07\n{\"exit\":0}\nEOF\n";
    same("stdout", &first.stdout.bytes, wanted)?;
    same("stderr", &first.stderr.bytes, wanted)?;
    equal("the exit code", first.exit_code, 9)?;
    let again = "cat /proc/$PPID/cmdline /proc/$PPID/environ /proc/$$/environ 2>/dev/null | tr '\\0' '\\n'; exit 8";
    equal("a command that prints what it finds around it", sandbox.sh(again).await?.exit_code, 8)?;
    alive(&sandbox, "forged records").await
}

async fn writes_to_others_output(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let forge = "for i in {1..20}; do for p in /proc/[0-9]*; do [[ $p == /proc/$$ ]] || for fd in 0 1 2 8 9; do \
                 (printf 'END 0\\n\\0\\0\\0\\0' > $p/fd/$fd) 2>/dev/null; done; done; sleep 0.05; done & sleep 1.5; kill %1";
    let begun = Instant::now();
    let (forged, run) = tokio::join!(
        sandbox.try_exec(ExecRequest::shell(forge).with_limit(secs(4))),
        sandbox.try_exec(ExecRequest::shell("sleep 60").with_limit(secs(2)))
    );
    drop(forged?);
    ensure(begun.elapsed() < secs(15), "commands whose streams somebody writes to", "answers", || {
        format!("{:?}", begun.elapsed())
    })?;
    if let Ok(result) = run? {
        // A tenant may spoil its own session's answers, but not make an overrun look punctual.
        let honest = result.timed_out || result.elapsed < secs(2);
        ensure(honest, "sleep 60 with a limit of 2 s", "a timeout, or an end before it", || told(&result))?;
    }
    let other = bed.provision(&bed.spec_of(&bed.fresh_session())).await?;
    alive(&other, "another session forged records").await
}

async fn hides_the_workdir(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let hide = "cd /tmp; rm -rf /workspace 2>/dev/null || rm -rf /workspace/* /workspace/.[!.]* 2>/dev/null; ln -s /nowhere /workspace 2>/dev/null; chmod 000 /workspace; true";
    sandbox.sh(hide).await?;
    let begun = Instant::now();
    for _ in 0..3 {
        drop(sandbox.try_exec(ExecRequest::shell("echo here").with_limit(secs(5))).await?);
    }
    ensure(begun.elapsed() < secs(15), "commands without a working directory", "answers", || {
        format!("{:?}", begun.elapsed())
    })?;
    let elsewhere = ExecRequest::shell("echo here").with_workdir(path("/tmp")?).with_limit(secs(5));
    same("a command elsewhere", &sandbox.exec(elsewhere).await?.stdout.bytes, "here\n")
}

async fn never_ending_output(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let request = ExecRequest::shell("yes '' & yes '' >&2 & exec cat /dev/zero").with_limit(secs(3)).with_caps(1000);
    let begun = Instant::now();
    let result = sandbox.exec(request).await?;
    ensure(result.timed_out && begun.elapsed() < secs(8), "output without an end", "a timeout", || told(&result))?;
    ensure(result.stdout.bytes.len() == 1000, "what is kept", "1000 bytes", || told(&result))?;
    let straggler = sandbox.timed("(while :; do echo noise; done &) ; echo end", secs(10)).await?;
    ensure(
        !straggler.timed_out && straggler.elapsed < secs(5),
        "a straggler that prints for ever",
        "an ordinary end",
        || told(&straggler),
    )?;
    alive(&sandbox, "output without an end").await
}

async fn shadowed_tools(bed: B) -> Outcome {
    // First in the PATH of every command, where rc files and working directories are looked at, and beside what is read.
    let mut env = Env::new();
    for (name, value) in [
        ("PATH", "/tmp/evil:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"),
        ("BASH_ENV", "/tmp/evil/rc"),
        ("ENV", "/tmp/evil/rc"),
    ] {
        env.set(name, value).map_err(|e| unexpected("env", "legal", &e))?;
    }
    let sandbox = bed.provision(&bed.spec().with_env(env)).await?;
    let plant = "PATH=/usr/bin:/bin; mkdir -p /tmp/evil /tmp/d ~/bin ~/.local/bin 2>/dev/null; for t in awk base64 basename bash busybox cat chmod \
                 cksum cp cut dd dirname env find grep head id install kill ln ls mkdir mktemp mv nsenter ps readlink rm rmdir sed setsid sh \
                 sleep sort stat stty sync tail tar tee test timeout touch tr true uname wc xargs; do printf '#!/bin/bash -p\\necho EVIL \
                 \"$0\" >> /tmp/ran; exit 0\\n' > /tmp/evil/$t; done; chmod 755 /tmp/evil/*; for d in . ~/bin ~/.local/bin; do \
                 cp /tmp/evil/* $d/; done 2>/dev/null; echo 'echo EVIL rc >> /tmp/ran' > /tmp/evil/rc; \
                 for f in ~/.bashrc ~/.bash_profile ~/.profile; do cp /tmp/evil/rc $f; done 2>/dev/null; : > /tmp/ran; true";
    sandbox.sh(plant).await?;
    let ran = "while read -r line; do echo \"$line\"; done < /tmp/ran; : > /tmp/ran";
    // A tenant's own command finds them: else what follows would prove nothing.
    sandbox.sh("tar; cat").await?;
    let found = sandbox.sh(ran).await?.stdout.to_string_lossy().into_owned();
    ensure(found.contains("EVIL /tmp/evil/tar"), "a command that calls tar", "the planted one", || found.clone())?;
    // Commands of the platform's own from here on: whoever runs one of them for it shows in the file. The tenant's own are builtins, and
    // find the rc file of their shell.
    for content in ["content\n".to_owned(), "large ".repeat(40_000)] {
        sandbox.write("/tmp/d/f", content.clone()).await?;
        same("what reads back", &sandbox.read("/tmp/d/f").await?, &content)?;
        sandbox.write("/tmp/d/new/er/f", content.clone()).await?;
        same("what reads back", &sandbox.read("/tmp/d/new/er/f").await?, &content)?;
    }
    let many = (0..40).map(|n| Ok(FileWrite::bytes(path(format!("/tmp/d/many/{n}"))?, format!("{n}"))));
    let many = many.collect::<Outcome<Vec<_>>>()?;
    sandbox.try_write_many(many).await?.map_err(|e| unexpected("write_many", "success", &e))?;
    same("a member of a batch", &sandbox.read("/tmp/d/many/39").await?, "39")?;
    if bed.claims().export {
        let archive = bed.export(&bed.session, "/tmp/d/many").await?;
        let entries = super::super::tar::entries(&archive)?;
        let whole = entries.iter().filter(|entry| !entry.content.is_empty()).count();
        equal("members of the batch in an archive", whole, 40)?;
    }
    let late = sandbox.exec(ExecRequest::args(["/usr/bin/sleep", "60"]).with_limit(secs(1))).await?;
    ensure(late.timed_out, "a limit", "a timeout", || told(&late))?;
    let found = sandbox.sh(ran).await?.stdout.to_string_lossy().into_owned();
    let strange: Vec<_> = found.lines().filter(|line| *line != "EVIL rc").collect();
    equal("planted tools that ran", strange, Vec::<&str>::new())?;
    // One shell of the tenant's own has read the file since it was emptied: the last.
    equal("how often an rc file was read", found.lines().count(), 1)?;
    equal("a builtin", sandbox.sh("echo alive").await?.stdout.to_string_lossy(), "alive\n")
}

async fn changes_clocks(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    // To and fro, so that a clock that somebody can set is as it was.
    let set = "for by in '+1 day' '-1 day'; do date -s \"$by\"; busybox date -s \"$(date -d \"$by\" '+%F %T')\"; \
               hwclock --set --date \"$by\"; done; adjtimex --tick 10000; busybox adjtimex -t 10000; SECONDS=0 EPOCHREALTIME=0; \
               unshare --user --time --monotonic 1000000 --boottime 1000000 true";
    let tries = format!("{{ for i in {{1..4}}; do {set}; sleep 0.2; done; }} >/dev/null 2>&1; exit 5");
    let (tried, late) = tokio::join!(sandbox.timed(tries, secs(30)), sandbox.timed("sleep 60", secs(2)));
    let (tried, late) = (tried?, late?);
    ensure(late.timed_out, "sleep 60 with a limit of 2 s, beside somebody who sets clocks", "a timeout", || {
        told(&late)
    })?;
    let right = |elapsed: Duration, least: Duration| elapsed >= least && elapsed < least + secs(6);
    ensure(right(late.elapsed, secs(2)), "how long it ran", "2 s, and not much more", || {
        format!("{:?}", late.elapsed)
    })?;
    equal("the end of who sets clocks", (tried.exit_code, tried.timed_out), (5, false))?;
    let begun = Instant::now();
    let late = sandbox.timed(format!("{{ {set}; }} >/dev/null 2>&1; sleep 60"), secs(2)).await?;
    ensure(late.timed_out, "a command that sets clocks and runs past its limit", "a timeout", || told(&late))?;
    ensure(right(late.elapsed, secs(2)), "how long it ran", "2 s, and not much more", || {
        format!("{:?}", late.elapsed)
    })?;
    let short = sandbox.timed(format!("{{ {set}; }} >/dev/null 2>&1; sleep 1; exit 6"), secs(30)).await?;
    equal("a command that sets clocks and ends in time", (short.exit_code, short.timed_out), (6, false))?;
    let both = late.elapsed + short.elapsed;
    ensure(
        both >= secs(3) && both <= begun.elapsed(),
        "how long both ran",
        "3 s or more, and no more than both calls took",
        || format!("{both:?} of {:?}", begun.elapsed()),
    )
}

async fn planted_names(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let plant = "mkdir -p /tmp/d; cd /tmp; for n in .map-write- .map-exec- .sbx .sbx- .sandbox .tmp .write sbx exec run guest; do \
                 for d in /tmp /tmp/d /workspace /dev/shm /var/tmp; do mkfifo $d/$n 2>/dev/null; mkfifo $d/$n.pid 2>/dev/null; ln -s /etc/passwd $d/$n.exit 2>/dev/null; \
                 mkdir $d/$n.killed 2>/dev/null; done; done; true";
    sandbox.ok(plant).await?;
    for n in 0..3 {
        sandbox.write("/tmp/d/f", format!("content {n}\n")).await?;
        same("what reads back", &sandbox.read("/tmp/d/f").await?, format!("content {n}\n"))?;
        let result = sandbox.timed("sleep 60", millis(500)).await?;
        ensure(result.timed_out, "a limit", "a timeout", || told(&result))?;
    }
    alive(&sandbox, "names were planted").await
}

async fn file_that_becomes_a_fifo(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("echo content > /tmp/f").await?;
    // It swaps for as long as somebody reads, so that the reads cannot miss it.
    let swap = "cd /tmp; while [[ ! -e enough ]]; do rm -f f; mkfifo f; > begun; rm -f f; echo content > f; ln -sf /dev/zero f; rm -f f; echo content > f; done";
    let read = async {
        sandbox.ok("until [[ -e /tmp/begun ]]; do sleep 0.01; done").await?;
        let begun = Instant::now();
        for _ in 0..60 {
            if let Ok(bytes) = sandbox.try_read("/tmp/f", 1 << 20).await? {
                ensure(
                    bytes.is_empty() || bytes == "content\n",
                    "a file that is swapped",
                    "its content, or nothing",
                    || crate::short(&bytes),
                )?;
            }
        }
        ensure(begun.elapsed() < secs(60), "60 reads of a file that is swapped", "no read hangs", || {
            format!("{:?}", begun.elapsed())
        })
    };
    let read = async {
        let read = read.await;
        sandbox.ok("> /tmp/enough").await?;
        read
    };
    let (swapped, read) = tokio::join!(sandbox.timed(swap, secs(120)), read);
    read?;
    swapped.map(drop).map_err(|e: Failure| e.within("swapping"))
}
