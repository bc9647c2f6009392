//! A journal in memory: bounded, filtered, followed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::{Cursor, LogEntry, LogFormat, LogOptions, LogStream, SlotName};

/// So many entries are kept for each slot.
const KEPT: usize = 10_000;

/// The longest line of an output that becomes one entry; a longer one becomes several.
const LINE: u64 = 4096;

/// The journals of a backend's slots where no journal daemon keeps them: in memory, and gone with the process.
///
/// It shows what [`LogOptions`] ask for, as [`Backend::logs`](crate::Backend::logs) has it: one unit or all, the last lines or
/// those behind a cursor, in every format, following or not. Of each slot the last 10,000 entries are kept. Clones are the same journal.
#[derive(Debug, Clone)]
pub struct Journal {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    slots: Mutex<HashMap<SlotName, VecDeque<(u64, LogEntry)>>>,
    /// The number of the newest entry.
    newest: watch::Sender<u64>,
}

impl Default for Journal {
    fn default() -> Self {
        Self { shared: Arc::new(Shared { slots: Mutex::default(), newest: watch::Sender::new(0) }) }
    }
}

impl Journal {
    fn slots(&self) -> MutexGuard<'_, HashMap<SlotName, VecDeque<(u64, LogEntry)>>> {
        self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line as `unit` of a slot's node stack.
    pub fn write(&self, slot: &SlotName, unit: &str, line: &str) {
        let mut slots = self.slots();
        let number = *self.shared.newest.borrow() + 1;
        let cursor = Cursor::new(&format!("entry={number}")).expect("a word and a number make a cursor");
        let mut entry = LogEntry::new(SystemTime::now(), line, cursor);
        entry.unit = Some(unit.to_owned());
        entry.priority = Some(6);
        let entries = slots.entry(slot.clone()).or_default();
        entries.push_back((number, entry));
        if entries.len() > KEPT {
            entries.pop_front();
        }
        self.shared.newest.send_replace(number);
    }

    /// Writes what comes from `output`, line by line, until it ends; at most 4 KiB of it are held. Dropping the future stops reading.
    pub async fn copy(&self, slot: &SlotName, unit: &str, output: impl AsyncRead + Unpin) {
        let (mut output, mut line) = (BufReader::new(output), Vec::new());
        while let Ok(1..) = (&mut output).take(LINE).read_until(b'\n', &mut line).await {
            self.write(slot, unit, String::from_utf8_lossy(&line).trim_end_matches('\n'));
            line.clear();
        }
    }

    /// Drops the entries of a slot.
    pub fn forget(&self, slot: &SlotName) {
        self.slots().remove(slot);
    }

    /// The entries behind `number` that fit, and the number of the newest that was looked at.
    fn behind(&self, slot: &SlotName, number: u64, options: &LogOptions) -> (Vec<LogEntry>, u64) {
        let slots = self.slots();
        let fits =
            |entry: &LogEntry| options.unit.as_ref().is_none_or(|unit| entry.unit.as_deref() == Some(unit.as_str()));
        let entries = slots.get(slot).into_iter().flatten().filter(|(at, entry)| *at > number && fits(entry));
        (entries.map(|(_, entry)| entry.clone()).collect(), *self.shared.newest.borrow())
    }

    /// Opens a slot's journal. It ends when the call is cancelled once it was given [`LogStream::with_cancel`]. A cursor of another journal is none. Needs a runtime; closing or dropping the stream ends its task.
    pub fn open(&self, slot: &SlotName, options: &LogOptions) -> LogStream {
        let mut newest = self.shared.newest.subscribe();
        let after = options.after.as_ref().and_then(|cursor| cursor.as_str().strip_prefix("entry=")?.parse().ok());
        let after = after.filter(|number| *number <= *newest.borrow()).unwrap_or(0);
        let (mut due, mut seen) = self.behind(slot, after, options);
        if let Some(lines) = options.lines {
            due.drain(..due.len().saturating_sub(lines.get() as usize));
        }
        let (reader, mut writer) = tokio::io::duplex(16 * 1024);
        let (journal, slot, options) = (self.clone(), slot.clone(), options.clone());
        let mut feeder = JoinSet::new();
        feeder.spawn(async move {
            loop {
                for entry in due {
                    if writer.write_all(line(&entry, options.format).as_bytes()).await.is_err() {
                        return;
                    }
                }
                if !options.follow || newest.wait_for(|newest| *newest > seen).await.is_err() {
                    return;
                }
                (due, seen) = journal.behind(&slot, seen, &options);
            }
        });
        LogStream::from_reader(reader, move |_| async move {
            drop(feeder);
            Ok(())
        })
    }
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
        journal.write(&slot, "b.service", "of another");
        let all = |options: LogOptions| {
            let stream = journal.open(&slot, &options.with_format(LogFormat::Cat));
            async { String::from_utf8(stream.read_all(1 << 20).await.unwrap()).unwrap() }
        };
        let cut = format!("{}\n{}\n", &long[..4096], &long[4096..]);
        assert_eq!(all(LogOptions::default()).await, format!("one\n\ntwo\n{cut}of another\n"));
        let unit = crate::UnitName::new("b.service").unwrap();
        assert_eq!(all(LogOptions::default().with_unit(unit)).await, "of another\n");
        for (cursor, lines) in [("entry=5", 1), ("entry=6", 0), ("entry=7", 6), ("s=1;i=2", 6)] {
            let after = LogOptions::default().with_after(Cursor::new(cursor).unwrap());
            assert_eq!(all(after).await.lines().count(), lines, "{cursor}");
        }
        journal.forget(&slot);
        assert_eq!(all(LogOptions::default()).await, "");
    }
}
