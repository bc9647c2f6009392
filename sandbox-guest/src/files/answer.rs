//! What the shell's last record says.

use sandbox::{Effect, Error, ErrorKind};

use crate::record::Record;

/// The longest reason that is passed on, in bytes. It comes from inside.
const MAX_REASON: usize = 4000;

/// The end of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Whether the shell has consumed all that belongs to the request.
    pub(crate) in_step: bool,
    pub(crate) outcome: Outcome,
}

/// How it went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// As asked, with a count.
    Done(u64),
    /// Given up because the client said so.
    Aborted,
    /// Not.
    Failed(ErrorKind, Option<String>),
}

impl Answer {
    /// Reads a record of kind `E`.
    pub(crate) fn parse(record: &Record) -> Result<Self, Error> {
        Self::parse_payload(record).ok_or_else(|| {
            Error::new(ErrorKind::Protocol).with_effect(Effect::Unknown).because("an end record that says nothing")
        })
    }

    fn parse_payload(record: &Record) -> Option<Self> {
        let (step, rest) = record.payload.split_first_chunk::<2>()?;
        let in_step = match step {
            b"+ " => true,
            b"- " => false,
            _ => return None,
        };
        let cut = rest.iter().position(|b| *b == b' ');
        let (class, detail) = cut.map_or((rest, None), |at| (&rest[..at], Some(&rest[at + 1..])));
        let kind = match (record.kind, class) {
            (b'E', b"ok") => {
                let count = std::str::from_utf8(detail?).ok()?;
                let digits = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
                return Some(Self { in_step, outcome: Outcome::Done(count.parse().ok().filter(|_| digits)?) });
            }
            (b'E', b"aborted") => return Some(Self { in_step, outcome: Outcome::Aborted }),
            (b'E', b"missing") => ErrorKind::FileNotFound,
            (b'E', b"dir") => ErrorKind::IsDirectory,
            (b'E', b"notdir") => ErrorKind::NotDirectory,
            (b'E', b"irregular") => ErrorKind::NotRegularFile,
            (b'E', b"large") => ErrorKind::FileTooLarge,
            (b'E', b"denied") => ErrorKind::Forbidden,
            (b'E', b"pinned") => ErrorKind::NotReplaceable,
            (b'E', b"unwritable") => ErrorKind::NotWritable,
            (b'E', b"exists") => ErrorKind::AlreadyExists,
            (b'E', b"short") => ErrorKind::ShortTransfer,
            (b'E', b"notool") => ErrorKind::Unsupported,
            (b'E', b"failed") => ErrorKind::Other,
            _ => return None,
        };
        let mut reason = detail.map(readable).filter(|text| !text.is_empty());
        if kind == ErrorKind::Unsupported {
            reason = reason.map(|tool| format!("the sandbox has no {tool}"));
        }
        Some(Self { in_step, outcome: Outcome::Failed(kind, reason) })
    }
}

impl Outcome {
    /// The count, or the error. An operation that failed by its own report changed nothing.
    pub(crate) fn into_result(self) -> Result<u64, Error> {
        match self {
            Self::Done(count) => Ok(count),
            Self::Aborted => Err(Error::new(ErrorKind::Protocol).because("it was given up without being told to")),
            Self::Failed(kind, reason) => {
                let error = Error::new(kind);
                Err(match reason {
                    Some(reason) => error.because(reason),
                    None => error,
                })
            }
        }
    }
}

/// Words from inside, fit to be shown: text, one line, not long.
pub(crate) fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_REASON)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &[u8]) -> Option<Answer> {
        Answer::parse(&Record { kind: b'E', payload: text.to_vec() }).ok()
    }

    #[test]
    fn answers() {
        let done = |n| Some(Answer { in_step: true, outcome: Outcome::Done(n) });
        assert_eq!(parse(b"+ ok 0"), done(0));
        assert_eq!(parse(b"+ ok 18446744073709551615"), done(u64::MAX));
        assert_eq!(parse(b"- aborted"), Some(Answer { in_step: false, outcome: Outcome::Aborted }));
        let failed = parse(b"- unwritable No space\nleft\x1b[0m on device").unwrap();
        let reason = Some("No space left [0m on device".to_owned());
        assert_eq!(failed, Answer { in_step: false, outcome: Outcome::Failed(ErrorKind::NotWritable, reason) });
        let long = parse(&[b"+ failed ".to_vec(), vec![b'x'; MAX_REASON + 1]].concat()).unwrap();
        assert_eq!(long.outcome, Outcome::Failed(ErrorKind::Other, Some("x".repeat(MAX_REASON))));
        let missing = parse(b"+ notool tar").unwrap().outcome.into_result().unwrap_err();
        assert_eq!((missing.kind(), missing.reason()), (ErrorKind::Unsupported, Some("the sandbox has no tar")));
        for bad in [
            "",
            "+",
            "+ ",
            "ok 1",
            "+ ok",
            "+ ok ",
            "+ ok +1",
            "+ ok -1",
            "+ ok 18446744073709551616",
            "* dir",
            "+ none",
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_payload_is_a_panic_nor_a_long_reason(payload in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'x')], 0..5000), class in "(failed|denied|ok) ") {
            let whole = [b"+ ", class.as_bytes(), &payload].concat();
            for bytes in [payload, whole] {
                if let Some(Answer { outcome: Outcome::Failed(_, Some(reason)), .. }) = parse(&bytes) {
                    prop_assert!(reason.chars().count() <= MAX_REASON);
                    prop_assert!(!reason.chars().any(char::is_control));
                }
            }
        }
    }
}
