//! A journal in memory: bounded, filtered, followed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use isolation::{Cursor, LogEntry, LogFormat, LogOptions, LogStream, SlotName};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// So many entries of a slot are kept.
const KEPT: usize = 5000;

/// The journals of all slots; an entry's number is its cursor.
#[derive(Debug)]
pub(crate) struct Journal {
    slots: Mutex<HashMap<SlotName, VecDeque<(u64, LogEntry)>>>,
    newest: watch::Sender<u64>,
}

impl Default for Journal {
    fn default() -> Self {
        Self { slots: Mutex::default(), newest: watch::Sender::new(0) }
    }
}

impl Journal {
    fn slots(&self) -> MutexGuard<'_, HashMap<SlotName, VecDeque<(u64, LogEntry)>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self, slot: &SlotName, unit: &str, line: &str) {
        let mut slots = self.slots();
        let number = *self.newest.borrow() + 1;
        let cursor = Cursor::new(&number.to_string()).expect("a number is a cursor");
        let mut entry = LogEntry::new(SystemTime::now(), line, cursor);
        entry.unit = Some(unit.to_owned());
        let entries = slots.entry(slot.clone()).or_default();
        entries.push_back((number, entry));
        entries.drain(..entries.len().saturating_sub(KEPT));
        self.newest.send_replace(number);
    }

    pub(crate) fn forget(&self, slot: &SlotName) {
        self.slots().remove(slot);
    }

    /// The entries behind `seen` that are asked for, as lines, and the number of the last that was looked at.
    fn behind(&self, slot: &SlotName, seen: u64, options: &LogOptions) -> (Vec<String>, u64) {
        let slots = self.slots();
        let unit = options.unit.as_ref().map(|unit| unit.as_str());
        let fits = |entry: &LogEntry| unit.is_none() || entry.unit.as_deref() == unit;
        let new = slots.get(slot).into_iter().flatten().filter(|(number, entry)| *number > seen && fits(entry));
        let lines = new.map(|(_, entry)| match options.format {
            LogFormat::Json => entry.to_json() + "\n",
            LogFormat::Cat => format!("{}\n", entry.message),
            _ => format!("{:?} {}: {}\n", entry.at, entry.unit.as_deref().unwrap_or("-"), entry.message),
        });
        (lines.collect(), *self.newest.borrow())
    }

    pub(crate) fn open(self: &Arc<Self>, slot: &SlotName, options: &LogOptions) -> LogStream {
        let after = options.after.as_ref().and_then(|cursor| cursor.as_str().parse().ok()).unwrap_or(0);
        let mut newest = self.newest.subscribe();
        let (mut lines, mut seen) = self.behind(slot, after, options);
        let keep = options.lines.map_or(usize::MAX, |lines| lines.get() as usize);
        lines.drain(..lines.len().saturating_sub(keep));
        let (reader, mut writer) = tokio::io::duplex(16 * 1024);
        let (journal, slot, options) = (Arc::clone(self), slot.clone(), options.clone());
        let mut feeder = JoinSet::new();
        feeder.spawn(async move {
            loop {
                for line in lines {
                    if writer.write_all(line.as_bytes()).await.is_err() {
                        return;
                    }
                }
                if !options.follow || newest.wait_for(|newest| *newest > seen).await.is_err() {
                    return;
                }
                (lines, seen) = journal.behind(&slot, seen, &options);
            }
        });
        // Closed or dropped, the stream takes its feeder along.
        LogStream::from_reader(reader, move |_| async move {
            drop(feeder);
            Ok(())
        })
    }
}
