//! The journal of a stateful fake: in memory, bounded, followed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

use crate::{Cursor, LogEntry, LogFormat, LogOptions, LogStream, SlotName};

/// So many entries are kept for each slot.
const KEPT: usize = 10_000;

/// The journals of all slots.
#[derive(Debug)]
pub(super) struct Journal {
    slots: Mutex<HashMap<SlotName, VecDeque<(u64, LogEntry)>>>,
    /// The number of the newest entry.
    newest: watch::Sender<u64>,
}

impl Default for Journal {
    fn default() -> Self {
        Self { slots: Mutex::default(), newest: watch::Sender::new(0) }
    }
}

impl Journal {
    pub(super) fn emit(&self, slot: &SlotName, unit: &str, line: &str) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let number = *self.newest.borrow() + 1;
        let cursor = Cursor::new(&format!("fake={number}")).expect("a word and a number make a cursor");
        let mut entry = LogEntry::new(SystemTime::now(), line, cursor);
        entry.unit = Some(unit.to_owned());
        entry.priority = Some(6);
        let entries = slots.entry(slot.clone()).or_default();
        entries.push_back((number, entry));
        if entries.len() > KEPT {
            entries.pop_front();
        }
        self.newest.send_replace(number);
    }

    pub(super) fn forget(&self, slot: &SlotName) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).remove(slot);
    }

    /// The entries behind `number` that fit.
    fn behind(&self, slot: &SlotName, number: u64, options: &LogOptions) -> Vec<(u64, LogEntry)> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let fits =
            |entry: &LogEntry| options.unit.as_ref().is_none_or(|unit| entry.unit.as_deref() == Some(unit.as_str()));
        let entries = slots.get(slot).into_iter().flatten();
        entries.filter(|(at, entry)| *at > number && fits(entry)).cloned().collect()
    }

    pub(super) fn open(self: &Arc<Self>, slot: &SlotName, options: &LogOptions) -> LogStream {
        let start = options.after.as_ref().and_then(|cursor| cursor.as_str().strip_prefix("fake=")?.parse().ok());
        let mut seen: u64 = start.unwrap_or(0);
        let mut wait = self.newest.subscribe();
        let mut due = self.behind(slot, seen, options);
        if let Some(lines) = options.lines {
            let skip = due.len().saturating_sub(lines.get() as usize);
            due.drain(..skip);
        }
        let (reader, mut writer) = tokio::io::duplex(16 * 1024);
        let (journal, slot, options) = (Arc::clone(self), slot.clone(), options.clone());
        let feeder = tokio::spawn(async move {
            loop {
                for (number, entry) in due {
                    seen = number;
                    if writer.write_all(line(&entry, options.format).as_bytes()).await.is_err() {
                        return;
                    }
                }
                if !options.follow || wait.wait_for(|newest| *newest > seen).await.is_err() {
                    return;
                }
                // The next entry may be another unit's: what was looked at is not looked at again.
                let newest = *wait.borrow();
                due = journal.behind(&slot, seen, &options);
                seen = newest;
            }
        });
        let feeder = AbortOnDrop(feeder);
        LogStream::from_reader(reader, move |_| async move {
            drop(feeder);
            Ok(())
        })
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
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
