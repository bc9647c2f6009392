//! A log as entries, with a cursor to go on from.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use crate::{Cursor, Error, ErrorKind, LogStream, Result};

/// The longest line that is read; a longer one is an error rather than a growing buffer.
const MAX_LINE: usize = 1024 * 1024;

/// One entry of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LogEntry {
    /// When it was written.
    pub at: SystemTime,
    /// The unit that wrote it.
    pub unit: Option<String>,
    /// From 0 (emergency) to 7 (debug).
    pub priority: Option<u8>,
    /// What it says.
    pub message: String,
    /// Where it stands: pass it to [`LogOptions::with_after`](crate::LogOptions::with_after) to go on behind it.
    pub cursor: Cursor,
}

impl LogEntry {
    /// An entry with a time, a text and a place.
    pub fn new(at: SystemTime, message: impl Into<String>, cursor: Cursor) -> Self {
        Self { at, unit: None, priority: None, message: message.into(), cursor }
    }

    /// Reads one line of a journal in JSON form.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if time or cursor are missing or the line is no JSON object.
    pub fn from_json(line: &[u8]) -> Result<Self> {
        let corrupt = |what: &'static str| Error::new(ErrorKind::Corrupt, "read a log entry").with_detail(what);
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(line).map_err(|cause| corrupt("no JSON object").because(cause))?;
        let text = |name: &str| fields.get(name).map(field_text);
        let micros: u64 =
            text("__REALTIME_TIMESTAMP").and_then(|micros| micros.parse().ok()).ok_or_else(|| corrupt("no time"))?;
        let cursor = text("__CURSOR").ok_or_else(|| corrupt("no cursor"))?;
        Ok(Self {
            at: SystemTime::UNIX_EPOCH + Duration::from_micros(micros),
            unit: text("_SYSTEMD_UNIT").or_else(|| text("UNIT")),
            priority: text("PRIORITY").and_then(|priority| priority.parse().ok()),
            message: text("MESSAGE").unwrap_or_default(),
            cursor: Cursor::new(&cursor)?,
        })
    }

    /// Writes the entry as a journal would, so that [`from_json`](Self::from_json) reads it.
    pub fn to_json(&self) -> String {
        let micros = self.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        let mut fields = serde_json::Map::new();
        let mut put = |name: &str, value: String| fields.insert(name.to_owned(), value.into());
        put("__CURSOR", self.cursor.as_str().to_owned());
        put("__REALTIME_TIMESTAMP", micros.to_string());
        put("MESSAGE", self.message.clone());
        if let Some(unit) = &self.unit {
            put("_SYSTEMD_UNIT", unit.clone());
        }
        if let Some(priority) = self.priority {
            put("PRIORITY", priority.to_string());
        }
        serde_json::Value::Object(fields).to_string()
    }
}

/// The journal writes a field that is no UTF-8 as a list of bytes, one that is there twice as a list of
/// texts, and one that is too long as null.
fn field_text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(items) if items.iter().all(serde_json::Value::is_u64) => {
            let bytes: Vec<u8> = items.iter().filter_map(|b| u8::try_from(b.as_u64()?).ok()).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        serde_json::Value::Array(items) => items.first().map(field_text).unwrap_or_default(),
        serde_json::Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Reads the entries of a stream that was opened with [`LogFormat::Json`](crate::LogFormat::Json).
#[derive(Debug)]
#[must_use = "entries have their verdict in `close`"]
pub struct LogEntries {
    stream: LogStream,
    pending: Vec<u8>,
    /// So much of `pending` holds no newline.
    searched: usize,
    /// The rest of a line that was too long is passed over.
    skipping: bool,
}

impl LogEntries {
    /// Reads from `stream`.
    pub fn new(stream: LogStream) -> Self {
        Self { stream, pending: Vec::new(), searched: 0, skipping: false }
    }

    /// The next entry; `None` at the end. Cancel-safe: a dropped call loses nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if reading fails, [`ErrorKind::Corrupt`] for a line that is no entry or longer
    /// than 1 MiB; the next call goes on behind that line.
    pub async fn next(&mut self) -> Result<Option<LogEntry>> {
        let mut chunk = [0; 8 * 1024];
        loop {
            if let Some(at) = self.pending[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=self.searched + at).collect();
                self.searched = 0;
                if !std::mem::take(&mut self.skipping) && line.len() > 1 {
                    return LogEntry::from_json(&line).map(Some);
                }
                continue;
            }
            if self.skipping {
                self.pending.clear();
            }
            self.searched = self.pending.len();
            if self.pending.len() > MAX_LINE {
                self.skipping = true;
                return Err(Error::new(ErrorKind::Corrupt, "read a log entry").with_detail("the line is too long"));
            }
            let read = self.stream.read(&mut chunk).await;
            match read.map_err(|cause| Error::new(ErrorKind::Io, "read a log").because(cause))? {
                0 if self.pending.is_empty() => return Ok(None),
                0 => {
                    let line = std::mem::take(&mut self.pending);
                    self.searched = 0;
                    return LogEntry::from_json(&line).map(Some);
                }
                read => self.pending.extend_from_slice(&chunk[..read]),
            }
        }
    }

    /// Ends the log and gives the verdict, as [`LogStream::close`].
    ///
    /// # Errors
    ///
    /// As [`LogStream::close`].
    pub async fn close(self) -> Result<()> {
        self.stream.close().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> LogEntries {
        let text = std::io::Cursor::new(text.as_bytes().to_vec());
        LogEntries::new(LogStream::from_reader(text, |_| async { Ok(()) }))
    }

    #[tokio::test]
    async fn lines_become_entries() {
        let text = r#"{"__CURSOR":"s=1;i=1","__REALTIME_TIMESTAMP":"1000000","MESSAGE":"a","PRIORITY":"6","_SYSTEMD_UNIT":"k.service"}

{"__CURSOR":"s=1;i=2","__REALTIME_TIMESTAMP":"2000000","MESSAGE":[104,105,255]}
{"__CURSOR":"s=1;i=3","__REALTIME_TIMESTAMP":"3","MESSAGE":null}"#;
        let mut entries = entries(text);
        let first = entries.next().await.unwrap().unwrap();
        assert_eq!((first.unit.as_deref(), first.priority, &*first.message), (Some("k.service"), Some(6), "a"));
        assert_eq!(LogEntry::from_json(first.to_json().as_bytes()).unwrap(), first);
        assert_eq!(entries.next().await.unwrap().unwrap().message, "hi\u{fffd}");
        assert_eq!(entries.next().await.unwrap().unwrap().message, "");
        assert_eq!(entries.next().await.unwrap(), None);
        entries.close().await.unwrap();
    }

    #[tokio::test]
    async fn what_is_no_entry_is_corrupt() {
        for line in ["x", "[]", r#"{"MESSAGE":"a"}"#, r#"{"__REALTIME_TIMESTAMP":"1"}"#, &"x".repeat(2 * MAX_LINE)] {
            assert_eq!(entries(line).next().await.unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    #[tokio::test]
    async fn what_stands_behind_a_corrupt_line_is_read() {
        let good = r#"{"__CURSOR":"s=1;i=1","__REALTIME_TIMESTAMP":"1","MESSAGE":"good"}"#;
        for bad in ["x".repeat(3 * MAX_LINE), "x".repeat(MAX_LINE + 1), "no entry".to_owned()] {
            let mut entries = entries(&format!("{bad}\n{good}\n{bad}\n{bad}\n{good}\n{bad}"));
            for wanted in [None, Some("good"), None, None, Some("good"), None] {
                let entry = entries.next().await;
                assert_eq!(entry.as_ref().ok().map(|entry| &*entry.as_ref().unwrap().message), wanted, "{entry:?}");
            }
            assert_eq!(entries.next().await.unwrap(), None);
            entries.close().await.unwrap();
        }
    }

    #[test]
    fn unknown_fields_are_errors() {
        let entry = LogEntry::new(SystemTime::UNIX_EPOCH, "a", Cursor::new("s=1").unwrap());
        let mut json = serde_json::to_value(&entry).unwrap();
        assert_eq!(serde_json::from_value::<LogEntry>(json.clone()).unwrap(), entry);
        json["more"] = 1.into();
        assert!(serde_json::from_value::<LogEntry>(json).is_err());
    }
}
