//! A journal in memory: bounded, filtered, followed.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::nonce::nonce;
use crate::{Cursor, LogEntry, LogFormat, LogOptions, LogStream, SlotName};

/// So many entries are kept for each slot.
const KEPT: usize = 10_000;

/// The longest line that becomes one entry; a longer one becomes several.
const LINE: usize = 4096;

/// So many entries are taken out at a time to be shown.
const BATCH: usize = 256;

/// The journals of a backend's slots where no journal daemon keeps them: in memory, and gone with the process.
///
/// It shows what [`LogOptions`] ask for, as [`Backend::logs`](crate::Backend::logs) has it: one unit or all, the last lines or
/// those behind a cursor, in every format, following or not. Of each slot the last 10,000 entries are kept, of at most 4 KiB each. Clones are the same journal.
#[derive(Debug, Clone)]
pub struct Journal {
    shared: Arc<Shared>,
}

/// By slot; those of the host have none.
type Entries = HashMap<Option<SlotName>, VecDeque<(u64, LogEntry)>>;

#[derive(Debug)]
struct Shared {
    slots: Mutex<Entries>,
    /// What cursors begin with, so that none of another journal is taken for one of this.
    id: String,
    /// The number of the newest entry.
    newest: watch::Sender<u64>,
}

impl Default for Journal {
    fn default() -> Self {
        let (slots, newest) = (Mutex::default(), watch::Sender::new(0));
        Self { shared: Arc::new(Shared { slots, id: format!("journal={};entry=", nonce()), newest }) }
    }
}

impl Journal {
    fn slots(&self) -> MutexGuard<'_, Entries> {
        self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line as `unit` of a slot's node stack. One of more than 4 KiB becomes several entries.
    pub fn write(&self, slot: &SlotName, unit: &str, line: &str) {
        self.put(Some(slot.clone()), unit, line);
    }

    /// Writes a line as `unit` of the host itself, which no slot's log shows.
    pub fn write_host(&self, unit: &str, line: &str) {
        self.put(None, unit, line);
    }

    fn put(&self, of: Option<SlotName>, unit: &str, mut line: &str) {
        let mut slots = self.slots();
        let entries = slots.entry(of).or_default();
        let mut number = *self.shared.newest.borrow();
        loop {
            let mut end = line.len().min(LINE);
            while !line.is_char_boundary(end) {
                end -= 1;
            }
            let (piece, rest) = line.split_at(end);
            number += 1;
            let cursor = Cursor::new(&format!("{}{number}", self.shared.id)).expect("words and a number make a cursor");
            let mut entry = LogEntry::new(SystemTime::now(), piece, cursor);
            entry.unit = Some(unit.to_owned());
            entry.priority = Some(6);
            entries.push_back((number, entry));
            if entries.len() > KEPT {
                entries.pop_front();
            }
            line = rest;
            if line.is_empty() {
                break;
            }
        }
        self.shared.newest.send_replace(number);
    }

    /// Writes what comes from `output`, line by line, until it ends; at most 4 KiB of it are held. Dropping the future stops reading.
    pub async fn copy(&self, slot: &SlotName, unit: &str, output: impl AsyncRead + Unpin) {
        let (mut output, mut line) = (BufReader::new(output), Vec::new());
        while let Ok(1..) = (&mut output).take(LINE as u64).read_until(b'\n', &mut line).await {
            self.write(slot, unit, String::from_utf8_lossy(&line).trim_end_matches('\n'));
            line.clear();
        }
    }

    /// Drops the entries of a slot.
    pub fn forget(&self, slot: &SlotName) {
        self.slots().remove(&Some(slot.clone()));
    }

    /// The first entries behind `number`, up to `last`, that fit, and the number to go on behind; whether that was all there is.
    fn behind(&self, slot: &SlotName, number: u64, last: u64, options: &LogOptions) -> (Vec<LogEntry>, u64, bool) {
        let slots = self.slots();
        let due = slots
            .get(&Some(slot.clone()))
            .into_iter()
            .flatten()
            .filter(|(at, entry)| (number + 1..=last).contains(at) && fits(entry, options));
        let due: Vec<_> = due.take(BATCH).collect();
        match due.last() {
            Some((at, _)) if due.len() == BATCH => (due.iter().map(|(_, entry)| entry.clone()).collect(), *at, false),
            _ => (due.iter().map(|(_, entry)| entry.clone()).collect(), *self.shared.newest.borrow(), true),
        }
    }

    /// The number behind which the last `lines` entries are that fit, or `number` if all behind that are no more.
    fn last(&self, slot: &SlotName, number: u64, lines: NonZeroU32, options: &LogOptions) -> u64 {
        let slots = self.slots();
        let due = slots.get(&Some(slot.clone())).into_iter().flatten().rev().filter(|(_, entry)| fits(entry, options));
        due.map(|(at, _)| *at).nth(lines.get() as usize - 1).map_or(number, |first| number.max(first - 1))
    }

    /// Opens a slot's journal. It ends when the call is cancelled once it was given [`LogStream::with_cancel`]. A cursor of another journal is
    /// none. Needs a runtime; closing or dropping the stream ends its task.
    pub fn open(&self, slot: &SlotName, options: &LogOptions) -> LogStream {
        let mut newest = self.shared.newest.subscribe();
        let now = *newest.borrow();
        let after =
            options.after.as_ref().and_then(|cursor| cursor.as_str().strip_prefix(&self.shared.id)?.parse().ok());
        let mut seen = after.filter(|number| *number <= now).unwrap_or(0);
        if let Some(lines) = options.lines {
            seen = self.last(slot, seen, lines, options);
        }
        let last = if options.follow { u64::MAX } else { now };
        let (reader, mut writer) = tokio::io::duplex(16 * 1024);
        let (journal, slot, options) = (self.clone(), slot.clone(), options.clone());
        let mut feeder = JoinSet::new();
        feeder.spawn(async move {
            loop {
                let (due, behind, all) = journal.behind(&slot, seen, last, &options);
                seen = behind;
                for entry in due {
                    if writer.write_all(line(&entry, options.format).as_bytes()).await.is_err() {
                        return;
                    }
                }
                if all && (!options.follow || newest.wait_for(|newest| *newest > seen).await.is_err()) {
                    return;
                }
            }
        });
        LogStream::from_reader(reader, move |_| async move {
            drop(feeder);
            Ok(())
        })
    }
}

fn fits(entry: &LogEntry, options: &LogOptions) -> bool {
    options.unit.as_ref().is_none_or(|unit| entry.unit.as_deref() == Some(unit.as_str()))
}

fn line(entry: &LogEntry, format: LogFormat) -> String {
    match format {
        LogFormat::Json => entry.to_json() + "\n",
        LogFormat::Cat => format!("{}\n", entry.message),
        LogFormat::ShortIsoPrecise => {
            let seconds = entry.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            format!("{seconds:.6} {}: {}\n", entry.unit.as_deref().unwrap_or("-"), entry.message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_output_becomes_entries_and_a_strange_cursor_hides_none() {
        let (journal, slot) = (Journal::default(), SlotName::new("kube1").unwrap());
        let long = "x".repeat(5000);
        journal.copy(&slot, "a.service", format!("one\n\ntwo\n{long}").as_bytes()).await;
        journal.write_host("b.service", "of the host");
        journal.write(&slot, "b.service", "of another");
        let all = |options: LogOptions| {
            let stream = journal.open(&slot, &options.with_format(LogFormat::Cat));
            async { String::from_utf8(stream.read_all(1 << 20).await.unwrap()).unwrap() }
        };
        let cut = format!("{}\n{}\n", &long[..4096], &long[4096..]);
        assert_eq!(all(LogOptions::default()).await, format!("one\n\ntwo\n{cut}of another\n"));
        let unit = crate::UnitName::new("b.service").unwrap();
        assert_eq!(all(LogOptions::default().with_unit(unit)).await, "of another\n");
        let other = Journal::default();
        other.write(&slot, "a.service", "of another journal");
        let strange = format!("{}1", other.shared.id);
        let own = |number: u64| format!("{}{number}", journal.shared.id);
        for (cursor, lines) in [(own(5), 1), (own(7), 0), (own(8), 6), ("entry=5".to_owned(), 6), (strange, 6)] {
            let after = LogOptions::default().with_after(Cursor::new(&cursor).unwrap());
            assert_eq!(all(after).await.lines().count(), lines, "{cursor}");
        }
        journal.forget(&slot);
        assert_eq!(all(LogOptions::default()).await, "");
    }
    #[tokio::test]
    async fn many_entries_come_in_order_and_a_long_line_is_cut() {
        let (journal, slot) = (Journal::default(), SlotName::new("kube1").unwrap());
        let count = 3 * BATCH as u32 + 7;
        for n in 0..count {
            journal.write(&slot, if n % 2 == 0 { "a.service" } else { "b.service" }, &n.to_string());
        }
        let (held, _, all) = journal.behind(&slot, 0, u64::MAX, &LogOptions::default());
        assert_eq!((held.len(), all), (BATCH, false));
        let unit = crate::UnitName::new("b.service").unwrap();
        for lines in [None, Some(1), Some(300), Some(count), Some(u32::MAX)] {
            for unit in [None, Some(unit.clone())] {
                let mut options = LogOptions::default().with_format(LogFormat::Cat);
                let fits = |n: &u32| unit.is_none() || n % 2 == 1;
                let want: Vec<_> = (0..count).filter(fits).map(|n| n.to_string()).collect();
                let want = &want[want.len().saturating_sub(lines.map_or(usize::MAX, |lines| lines as usize))..];
                (options.lines, options.unit) = (lines.and_then(NonZeroU32::new), unit);
                let read = journal.open(&slot, &options).read_all(1 << 20).await.unwrap();
                assert_eq!(String::from_utf8(read).unwrap().lines().collect::<Vec<_>>(), want);
            }
        }
        journal.forget(&slot);
        journal.write(&slot, "a.service", &"ü".repeat(LINE));
        journal.write(&slot, "a.service", "");
        let entries: Vec<_> = journal.slots()[&Some(slot)].iter().map(|(_, entry)| entry.message.len()).collect();
        assert_eq!(entries, [LINE, LINE, 0]);
    }
}
