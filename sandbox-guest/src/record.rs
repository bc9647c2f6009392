//! Records in a stream of anything: the sans-IO core.
//!
//! A record is `nonce ‖ type ‖ length ‖ payload`: 32 hexadecimal digits that only the two ends know, one letter, four hexadecimal
//! digits, and that many bytes. What stands outside records is somebody else's: noise before the first, a command's output after it.

use std::fmt;

use bytes::{Bytes, BytesMut};
use memchr::memmem;
use sandbox::{Error, ErrorKind};

const NONCE: usize = 32;
const HEAD: usize = NONCE + 1 + 4;
/// The longest payload that is accepted. Records carry codes and short reasons, never data.
const MAX_PAYLOAD: usize = 4096;

/// A secret of one request: 128 bits in hexadecimal digits. It travels in requests and records only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonce([u8; NONCE]);

impl Nonce {
    pub(crate) fn new() -> Self {
        let mut bits = [0u8; NONCE / 2];
        getrandom::fill(&mut bits).expect("the operating system has a source of randomness");
        Self::from_bits(bits)
    }

    /// A nonce that is none: anybody who has the bits can say it.
    pub(crate) fn from_bits(bits: [u8; NONCE / 2]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut hex = [0u8; NONCE];
        for (i, byte) in bits.iter().enumerate() {
            hex[2 * i] = DIGITS[usize::from(byte >> 4)];
            hex[2 * i + 1] = DIGITS[usize::from(byte & 15)];
        }
        Self(hex)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hexadecimal digits are text")
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce")
    }
}

/// A record that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: u8,
    pub(crate) payload: Vec<u8>,
}

/// What comes next in a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Bytes outside records.
    Outside(Bytes),
    /// A record.
    Record(Record),
}

/// Looks for the next record with one nonce in bytes that arrive piece by piece.
pub(crate) struct Scanner {
    nonce: Nonce,
    held: BytesMut,
}

impl Scanner {
    pub(crate) fn new(nonce: Nonce) -> Self {
        Self { nonce, held: BytesMut::new() }
    }

    /// From here on looks for records with `nonce`, also in what is held already.
    pub(crate) fn expect(&mut self, nonce: Nonce) {
        self.nonce = nonce;
    }

    /// Takes more bytes.
    #[cfg(test)]
    fn feed(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Room to read into; what is put there counts as fed.
    pub(crate) fn room(&mut self) -> &mut BytesMut {
        self.held.reserve(64 * 1024);
        &mut self.held
    }

    /// Hands the bytes before the next record to `outside` and answers the record, or `None` if it has not arrived whole. Holds
    /// back no more than could be the beginning of a record.
    pub(crate) fn next(&mut self, mut outside: impl FnMut(&[u8])) -> Result<Option<Record>, Error> {
        let Some(at) = memmem::find(&self.held, self.nonce.as_bytes()) else {
            let keep = self.possible_prefix();
            let free = self.held.len() - keep;
            if free > 0 {
                outside(&self.held[..free]);
                let _ = self.held.split_to(free);
            }
            return Ok(None);
        };
        if at > 0 {
            outside(&self.held[..at]);
            let _ = self.held.split_to(at);
        }
        if self.held.len() < HEAD {
            return Ok(None);
        }
        let kind = self.held[NONCE];
        let digits = &self.held[NONCE + 1..HEAD];
        let length = std::str::from_utf8(digits).ok().and_then(|d| usize::from_str_radix(d, 16).ok());
        let length = length.filter(|n| *n <= MAX_PAYLOAD && digits.iter().all(u8::is_ascii_hexdigit));
        let length = length.ok_or_else(|| Error::new(ErrorKind::Protocol).because("a record of illegal length"))?;
        if self.held.len() < HEAD + length {
            return Ok(None);
        }
        let record = self.held.split_to(HEAD + length);
        Ok(Some(Record { kind, payload: record[HEAD..].to_vec() }))
    }

    /// As [`next`](Self::next), but hands out the bytes before the record without copying them, and they come first.
    pub(crate) fn piece(&mut self) -> Result<Option<Piece>, Error> {
        let at = memmem::find(&self.held, self.nonce.as_bytes());
        let free = at.unwrap_or_else(|| self.held.len() - self.possible_prefix());
        if free > 0 {
            return Ok(Some(Piece::Outside(self.held.split_to(free).freeze())));
        }
        Ok(self.next(|_| ())?.map(Piece::Record))
    }

    /// Takes what is held back because it could be the beginning of a record: where nothing comes any more, it was none.
    pub(crate) fn rest(&mut self) -> BytesMut {
        let at = self.held.len() - self.possible_prefix();
        self.held.split_off(at)
    }

    /// Forgets what is held back.
    pub(crate) fn discard(&mut self) {
        self.held.clear();
    }

    /// How many bytes are held back.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// How many bytes at the end could be the beginning of the nonce.
    fn possible_prefix(&self) -> usize {
        let nonce = self.nonce.as_bytes();
        (1..NONCE.min(self.held.len() + 1)).rev().find(|n| self.held.ends_with(&nonce[..*n])).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(nonce: Nonce, kind: char, payload: &str) -> Vec<u8> {
        format!("{}{kind}{:04x}{payload}", nonce.as_str(), payload.len()).into_bytes()
    }

    /// Feeds `bytes` in pieces of the given sizes; answers what stood outside before the first record, and the record.
    fn scan(nonce: Nonce, bytes: &[u8], sizes: &[usize]) -> (Vec<u8>, Option<Record>) {
        let (mut scanner, mut outside, mut at, mut turn) = (Scanner::new(nonce), Vec::new(), 0, 0);
        while at < bytes.len() {
            let n = sizes[turn % sizes.len()].clamp(1, bytes.len() - at);
            turn += 1;
            scanner.feed(&bytes[at..at + n]);
            at += n;
            if let Some(record) = scanner.next(|b| outside.extend_from_slice(b)).unwrap() {
                return (outside, Some(record));
            }
            assert!(scanner.held.len() <= HEAD + MAX_PAYLOAD);
        }
        (outside, None)
    }

    #[test]
    fn bytes_are_handed_on_at_once_unless_they_could_begin_a_record() {
        let nonce = Nonce::new();
        let mut scanner = Scanner::new(nonce);
        let mut outside = Vec::new();
        scanner.feed(b"progress 10%");
        assert_eq!(scanner.next(|b| outside.extend_from_slice(b)).unwrap(), None);
        assert_eq!(outside, b"progress 10%");
        assert_eq!(scanner.held(), 0);
    }

    #[test]
    fn an_illegal_length_is_an_error_before_anything_is_allocated() {
        for digits in ["1001", "ffff", "-001", "+001", " 001", "zzzz"] {
            let nonce = Nonce::new();
            let mut scanner = Scanner::new(nonce);
            scanner.feed(format!("{}E{digits}", nonce.as_str()).as_bytes());
            assert_eq!(scanner.next(|_| ()).unwrap_err().kind(), ErrorKind::Protocol, "{digits}");
        }
    }

    proptest! {
        #[test]
        fn a_record_is_found_wherever_it_is_cut(
            before in proptest::collection::vec(any::<u8>(), 0..300),
            payload in "[ -~]{0,40}",
            partial in 0usize..32,
            sizes in proptest::collection::vec(1usize..80, 1..8),
        ) {
            let nonce = Nonce::new();
            let mut bytes = before.clone();
            bytes.extend_from_slice(&nonce.as_bytes()[..partial]);
            let outside_wanted = bytes.clone();
            bytes.extend_from_slice(&record(nonce, 'E', &payload));
            // A nonce whose end is its beginning is completed by its own repetition; no tenant knows it to try that.
            prop_assume!(memmem::find(&bytes, nonce.as_bytes()) == Some(outside_wanted.len()));
            bytes.extend_from_slice(b"after");
            let (outside, found) = scan(nonce, &bytes, &sizes);
            prop_assert_eq!(outside, outside_wanted);
            prop_assert_eq!(found, Some(Record { kind: b'E', payload: payload.into_bytes() }));
        }

        #[test]
        fn hostile_bytes_never_make_a_record_nor_a_panic(
            before in proptest::collection::vec(any::<u8>(), 0..1000),
            known in 0usize..32,
            after in proptest::collection::vec(any::<u8>(), 0..1000),
            sizes in proptest::collection::vec(1usize..200, 1..4),
        ) {
            let nonce = Nonce::new();
            // All of a record but the last digits of its nonce.
            let bytes = [&before, &nonce.as_bytes()[..known], b"E0000", &after].concat();
            let (outside, found) = scan(nonce, &bytes, &sizes);
            prop_assert_eq!(found, None);
            prop_assert!(bytes.starts_with(&outside) && bytes.len() - outside.len() < NONCE);
        }
    }
}
