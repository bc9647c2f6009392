//! Reading journals.

use std::collections::BTreeSet;

use isolation::{Cancel, ErrorKind, LogEntries, LogFormat, LogOptions, LogStream, SlotName, UnitName};
use tokio::io::AsyncReadExt;

use super::super::Fault;
use super::super::bed::{ok, refused, until};
use super::{B, Case, secs};
use crate::{Failure, Outcome, ensure, equal, within};

const EARLY: &str = "A log that is closed or cancelled early is no error.";
const LINES: &str = "A line limit of N gives the last N lines; without a limit all of them come, following or not.";
const UNITS: &str =
    "A unit gives only that unit's lines; without one come all units of the node stack and none of the host.";
const KUBELET: &str = "kubelet.service";
const CONTAINERD: &str = "containerd.service";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "logs::follow_sees_new_lines",
            "Lines written after a following log was opened arrive in it.",
            follow_sees_new_lines,
        ),
        Case::new("logs::closed_early", EARLY, closed_early),
        Case::new("logs::cancelled", EARLY, cancelled),
        Case::new(
            "logs::failure_is_told",
            "A log that ended by itself with a failure says so when it is closed.",
            failure_is_told,
        )
        .needs("break log", |c| c.fault_break_log),
        Case::new("logs::dropped", "A log that is dropped leaves no process.", dropped),
        Case::new("logs::last_lines", LINES, last_lines),
        Case::new("logs::all_lines", LINES, all_lines),
        Case::new("logs::all_lines_following", LINES, all_lines_following),
        Case::new("logs::one_unit", UNITS, one_unit),
        Case::new("logs::all_units", UNITS, all_units),
        Case::new("logs::not_the_other_slots", UNITS, not_the_other_slots),
        Case::new("logs::beside_the_other", "Work on one slot leaves the other slot as it is.", beside_the_other),
        Case::new("logs::not_the_hosts", UNITS, not_the_hosts).needs("host line", |c| c.fault_host_line),
        Case::new("logs::cursor", "Entries carry a cursor, and a log opened after it goes on behind it.", cursor),
        Case::new("logs::stopped_slot", "A stopped slot's log can still be read.", stopped_slot)
            .needs("logs when stopped", |c| c.logs_when_stopped),
        Case::new(
            "logs::unknown_slot",
            "The log of a slot that was never prepared fails as `UnknownSlot`.",
            unknown_slot,
        ),
        Case::new(
            "logs::many_at_once",
            "Many logs can be open at once, and none is left when they are closed.",
            many_at_once,
        ),
    ]
}

fn unit(name: &str) -> Outcome<UnitName> {
    ok("naming a unit", UnitName::new(name))
}

fn cat() -> LogOptions {
    LogOptions::default().with_format(LogFormat::Cat)
}

async fn open(bed: &B, slot: &SlotName, options: &LogOptions) -> Outcome<LogStream> {
    ok("opening a log", bed.backend().logs(&bed.ctx(), slot, options).await)
}

/// The lines of a log that does not follow, those with `word` in them.
async fn lines(bed: &B, slot: &SlotName, options: &LogOptions, word: &str) -> Outcome<Vec<String>> {
    let log = open(bed, slot, options).await?;
    let content = within("reading a log to its end", secs(20), log.read_all(1 << 20)).await?;
    let content = ok("reading a log to its end", content)?;
    let text = String::from_utf8_lossy(&content).into_owned();
    Ok(text.lines().filter(|line| line.contains(word)).map(str::to_owned).collect())
}

/// Reads until `word` came.
async fn read_until(log: &mut LogStream, word: &str) -> Outcome<String> {
    let mut text = String::new();
    let read = async {
        let mut chunk = [0; 4096];
        while !text.contains(word) {
            match log.read(&mut chunk).await {
                Ok(0) => return Err("the end of the log".to_owned()),
                Ok(read) => text.push_str(&String::from_utf8_lossy(&chunk[..read])),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    };
    let step = format!("waiting for {word} in a log");
    within(&step, secs(5), read).await?.map_err(|got| Failure::new(&step, "the line", got))?;
    Ok(text)
}

async fn emit(bed: &B, slot: &SlotName, unit: &str, lines: impl IntoIterator<Item = String>) {
    for line in lines {
        bed.harness().emit_log(slot, unit, &line).await;
    }
}

async fn follow_sees_new_lines(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let mut log = open(&bed, &slot, &cat().with_follow(true)).await?;
    for line in ["first-new-line", "second-new-line"] {
        emit(&bed, &slot, KUBELET, [line.to_owned()]).await;
        read_until(&mut log, line).await?;
    }
    ok("closing it", log.close().await)
}

async fn closed_early(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    emit(&bed, &slot, KUBELET, (0..500).map(|n| format!("a-line-{n}-{}", "x".repeat(200)))).await;
    for follow in [true, false] {
        let mut log = open(&bed, &slot, &cat().with_follow(follow)).await?;
        read_until(&mut log, "a-line-0").await?;
        let closed = within("closing a log midway", secs(10), log.close()).await?;
        ok("closing a log midway", closed)?;
    }
    Ok(())
}

async fn cancelled(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let cancel = Cancel::new();
    emit(&bed, &slot, KUBELET, ["a-line".to_owned()]).await;
    let ctx = bed.ctx().with_cancel(cancel.clone());
    let opened = bed.backend().logs(&ctx, &slot, &cat().with_follow(true)).await;
    let mut log = ok("opening a log", opened)?;
    read_until(&mut log, "a-line").await?;
    cancel.cancel();
    let rest = within("the end of a cancelled log", secs(5), async {
        let mut rest = Vec::new();
        log.read_to_end(&mut rest).await
    });
    ensure(rest.await?.is_ok(), "reading a cancelled log", "its end", || "an error".to_owned())?;
    ok("closing it", within("closing a cancelled log", secs(10), log.close()).await?)
}

async fn failure_is_told(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let said = "the journal is broken";
    let fault = bed.inject(Fault::BreakLog(said)).await?;
    let read = match bed.backend().logs(&bed.ctx(), &slot, &LogOptions::default()).await {
        Ok(log) => within("reading a broken log", secs(20), log.read_all(1 << 20)).await?,
        Err(error) => Err(error),
    };
    drop(fault);
    let error = refused("closing a broken log", read, ErrorKind::Command)?;
    let tail = error.stderr_tail().unwrap_or_default();
    ensure(tail.contains(said) && tail.len() <= 4096, "what the error tells", said, || tail.to_owned())
}

/// The children of this process.
fn children() -> BTreeSet<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

async fn dropped(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let mut new = BTreeSet::new();
    for _ in 0..4 {
        let before = children();
        let log = open(&bed, &slot, &cat().with_follow(true)).await?;
        new.extend(children().difference(&before).copied());
        drop(log);
    }
    let gone = until(secs(20), || async { Ok(new.is_disjoint(&children()).then_some(())) }).await?;
    let left = || format!("{:?}", new.intersection(&children()).collect::<Vec<_>>());
    ensure(gone.is_some(), "20 s after four logs were dropped", "no process of theirs, not even a zombie", left)
}

async fn last_lines(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    for n in 0..30 {
        emit(&bed, &slot, KUBELET, [format!("line-{n}.")]).await;
        // Whoever counts lines of other units, too, comes to another end.
        emit(&bed, &slot, CONTAINERD, [format!("other-{n}.")]).await;
    }
    let options = cat().with_unit(unit(KUBELET)?).with_lines(3);
    let got = lines(&bed, &slot, &options, "").await?;
    equal("the last three lines", got, vec!["line-27.".to_owned(), "line-28.".to_owned(), "line-29.".to_owned()])
}

async fn all_lines(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    emit(&bed, &slot, KUBELET, (0..40).map(|n| format!("line-{n}."))).await;
    equal("the number of lines", lines(&bed, &slot, &cat(), "line-").await?.len(), 40)
}

async fn all_lines_following(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    emit(&bed, &slot, KUBELET, (0..40).map(|n| format!("line-{n}."))).await;
    let mut log = open(&bed, &slot, &cat().with_follow(true)).await?;
    let text = read_until(&mut log, "line-39.").await?;
    ok("closing it", log.close().await)?;
    equal("the number of lines", text.lines().filter(|line| line.contains("line-")).count(), 40)
}

async fn one_unit(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    emit(&bed, &slot, KUBELET, ["word-mine".to_owned()]).await;
    emit(&bed, &slot, CONTAINERD, ["word-theirs".to_owned()]).await;
    let got = lines(&bed, &slot, &cat().with_unit(unit(KUBELET)?), "word-").await?;
    equal("one unit's lines", got, vec!["word-mine".to_owned()])?;
    let mut log = open(&bed, &slot, &cat().with_unit(unit(KUBELET)?).with_follow(true)).await?;
    emit(&bed, &slot, CONTAINERD, ["word-theirs-again".to_owned()]).await;
    emit(&bed, &slot, KUBELET, ["word-end".to_owned()]).await;
    let text = read_until(&mut log, "word-end").await?;
    ok("closing it", log.close().await)?;
    ensure(!text.contains("word-theirs"), "one unit's lines, following", "none of another unit", || text.clone())
}

async fn all_units(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    emit(&bed, &slot, KUBELET, ["word-mine".to_owned()]).await;
    emit(&bed, &slot, CONTAINERD, ["word-theirs".to_owned()]).await;
    let got = lines(&bed, &slot, &cat(), "word-").await?;
    equal("all units' lines", got, vec!["word-mine".to_owned(), "word-theirs".to_owned()])
}

async fn not_the_other_slots(bed: B) -> Outcome {
    let (a, b) = (bed.a(), bed.b());
    bed.prepare(&b).await?;
    bed.up().await?;
    emit(&bed, &a, KUBELET, ["word-first".to_owned()]).await;
    let of_one = cat().with_unit(unit(KUBELET)?);
    equal("the log of the slot that runs", lines(&bed, &a, &cat(), "word-").await?, vec!["word-first".to_owned()])?;
    bed.stop(&a).await?;
    bed.start(&b).await?;
    emit(&bed, &b, KUBELET, ["word-second".to_owned()]).await;
    emit(&bed, &b, CONTAINERD, ["word-third".to_owned()]).await;
    let both = vec!["word-second".to_owned(), "word-third".to_owned()];
    equal("the log of the slot that was started then", lines(&bed, &b, &cat(), "word-").await?, both)?;
    let got = lines(&bed, &b, &of_one, "word-").await?;
    equal("that of one of its units", got, vec!["word-second".to_owned()])?;
    if !bed.harness().caps().logs_when_stopped {
        // What an earlier run has written need not be there any more, but nothing of the other slot may be.
        bed.stop(&b).await?;
        bed.start(&a).await?;
        emit(&bed, &a, KUBELET, ["word-last".to_owned()]).await;
        let got = lines(&bed, &a, &cat(), "word-").await?;
        let own = |line: &String| line == "word-first" || line == "word-last";
        let complete = got.last().is_some_and(|line| line == "word-last") && got.iter().all(own);
        return ensure(complete, "the log of the first slot, started again", "its own lines", || got.join(", "));
    }
    let first = vec!["word-first".to_owned()];
    equal("the log of the slot that was stopped", lines(&bed, &a, &cat(), "word-").await?, first.clone())?;
    equal("that of one of its units", lines(&bed, &a, &of_one, "word-").await?, first)
}

async fn beside_the_other(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    emit(&bed, &slot, KUBELET, ["word-before".to_owned()]).await;
    bed.prepare(&bed.b()).await?;
    bed.destroy(&bed.b()).await?;
    emit(&bed, &slot, KUBELET, ["word-after".to_owned()]).await;
    let want = vec!["word-before".to_owned(), "word-after".to_owned()];
    equal("the log of a slot beside which the other was destroyed", lines(&bed, &slot, &cat(), "word-").await?, want)
}

async fn not_the_hosts(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let by_host = |line: &'static str| bed.inject(Fault::HostLine { unit: KUBELET, line });
    by_host("word-of-the-host").await?;
    emit(&bed, &slot, KUBELET, ["word-own".to_owned()]).await;
    by_host("word-of-the-host-again").await?;
    let own = vec!["word-own".to_owned()];
    let of_one = cat().with_unit(unit(KUBELET)?);
    equal("the log of all units", lines(&bed, &slot, &cat(), "word-").await?, own.clone())?;
    equal("that of a unit whose name one of the host has", lines(&bed, &slot, &of_one, "word-").await?, own.clone())?;
    let last = lines(&bed, &slot, &of_one.clone().with_lines(1), "").await?;
    equal("its last line", last, own)?;
    for (n, options) in [cat(), of_one].into_iter().enumerate() {
        let mut log = open(&bed, &slot, &options.with_follow(true)).await?;
        by_host("word-of-the-host-meanwhile").await?;
        let end = format!("word-end-{n}");
        emit(&bed, &slot, KUBELET, [end.clone()]).await;
        let text = read_until(&mut log, &end).await?;
        ok("closing it", log.close().await)?;
        ensure(!text.contains("of-the-host"), "a following log", "no line of the host", || text.clone())?;
    }
    Ok(())
}

async fn cursor(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    emit(&bed, &slot, KUBELET, (0..6).map(|n| format!("line-{n}."))).await;
    let options = LogOptions::default().with_format(LogFormat::Json).with_unit(unit(KUBELET)?);
    let mut entries = LogEntries::new(open(&bed, &slot, &options).await?);
    let mut third = None;
    for _ in 0..3 {
        third = ok("reading an entry", within("an entry", secs(10), entries.next()).await?)?;
    }
    ok("closing the entries", entries.close().await)?;
    let Some(third) = third else { return Err(Failure::new("the third entry", "one", "the end")) };
    let options = options.with_after(third.cursor.clone());
    equal("the third entry", (third.message.as_str(), third.unit.as_deref()), ("line-2.", Some(KUBELET)))?;
    let mut entries = LogEntries::new(open(&bed, &slot, &options).await?);
    let next = ok("reading an entry", within("an entry", secs(10), entries.next()).await?)?;
    equal("the entry behind the third", next.map(|entry| entry.message), Some("line-3.".to_owned()))?;
    ok("closing the entries", entries.close().await)?;
    let mut entries = LogEntries::new(open(&bed, &slot, &options.with_follow(true)).await?);
    for want in ["line-3.", "line-4.", "line-5."] {
        let next = ok("reading an entry", within("an entry", secs(10), entries.next()).await?)?;
        equal("an entry behind the third, following", next.map(|entry| entry.message), Some(want.to_owned()))?;
    }
    ok("closing the entries", entries.close().await)
}

async fn stopped_slot(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    emit(&bed, &slot, KUBELET, ["word-before".to_owned()]).await;
    bed.stop(&slot).await?;
    let got = lines(&bed, &slot, &cat(), "word-").await?;
    equal("the lines of a stopped slot", got, vec!["word-before".to_owned()])
}

async fn unknown_slot(bed: B) -> Outcome {
    let opened = bed.backend().logs(&bed.ctx(), &bed.a(), &LogOptions::default()).await;
    refused("opening the log of a slot that was never prepared", opened, ErrorKind::UnknownSlot).map(drop)
}

async fn many_at_once(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    emit(&bed, &slot, KUBELET, ["word-0".to_owned()]).await;
    let before = bed.footprint().await;
    let mut logs = Vec::new();
    for n in 0..16 {
        let mut log =
            open(&bed, &slot, &cat().with_follow(true)).await.map_err(|f| f.within(format!("log {n} of 16")))?;
        read_until(&mut log, "word-0").await?;
        logs.push(log);
    }
    // In an order that is neither the first nor the last first.
    while !logs.is_empty() {
        let log = logs.swap_remove((logs.len() * 7) % 5 % logs.len());
        ok("closing one of many", within("closing one of many", secs(10), log.close()).await?)?;
    }
    super::super::bed::none("after 16 logs", "no change", &before.changes(&bed.footprint().await))
}
