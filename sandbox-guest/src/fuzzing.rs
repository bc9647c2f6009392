//! What must hold for any bytes that come out of a sandbox: asked by proptest in every test run, and by the fuzzer for as long as one
//! likes.

use crate::files::answer::{Answer, Outcome};
use crate::record::{Nonce, Piece, Record, Scanner};

/// Finds records among anything, however it is cut: the scanner that copies and the one that does not say the same, nothing is
/// lost or invented, and no more is held back than one record. In `bytes` a 0xff begins a record: the next byte is its kind, and
/// so many bytes after it are its payload.
pub fn records(bytes: &[u8], sizes: &[u8]) {
    let nonce = Nonce::from_bits(*b"\x00\x01sixteen bytes.");
    let (mut sent, mut outside, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if let (0xff, Some((&kind, payload))) = (first, rest.split_first()) {
            let payload = &payload[..payload.len().min(usize::from(kind))];
            sent.extend_from_slice(nonce.as_bytes());
            sent.extend_from_slice(format!("{}{:04x}", char::from(kind & 0x7f), payload.len()).as_bytes());
            sent.extend_from_slice(payload);
            wanted.push(Record { kind: kind & 0x7f, payload: payload.to_vec() });
            rest = &rest[1 + payload.len()..];
        } else {
            sent.push(first);
            outside.push(first);
        }
    }
    let (mut copying, mut cutting) = (Scanner::new(nonce), Scanner::new(nonce));
    let (mut copied, mut cut) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    let mut sizes = sizes.iter().cycle();
    let mut rest = sent.as_slice();
    while !rest.is_empty() {
        let size = sizes.next().map_or(1, |n| usize::from(*n) + 1).min(rest.len());
        let (piece, after) = rest.split_at(size);
        rest = after;
        copying.room().extend_from_slice(piece);
        cutting.room().extend_from_slice(piece);
        while let Some(record) = copying.next(|b| copied.0.extend_from_slice(b)).expect("its records are legal") {
            copied.1.push(record);
        }
        while let Some(piece) = cutting.piece().expect("its records are legal") {
            match piece {
                Piece::Outside(bytes) => cut.0.extend_from_slice(&bytes),
                Piece::Record(record) => cut.1.push(record),
            }
        }
        assert!(copying.held() < 5000 && cutting.held() < 5000, "more is held back than one record");
    }
    // What could still begin a record is held back.
    let tail = copying.held();
    assert_eq!(tail, cutting.held());
    assert!(tail < nonce.as_bytes().len() && sent.ends_with(&nonce.as_bytes()[..tail]));
    outside.truncate(outside.len() - tail);
    assert_eq!(copied, cut);
    assert_eq!(copied, (outside, wanted));
}

/// Any payload is an answer or a refusal; a reason is text that can be shown.
pub fn answers(payload: &[u8]) {
    for kind in *b"EB" {
        let record = Record { kind, payload: payload.to_vec() };
        if let Ok(Answer { outcome: Outcome::Failed(_, Some(reason)), .. }) = Answer::parse(&record) {
            assert!(!reason.is_empty() && reason.len() <= 3 * 4096);
            assert!(!reason.chars().any(char::is_control));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0xff), Just(b'0')], 0..2000),
            sizes in proptest::collection::vec(any::<u8>(), 0..6),
        ) {
            super::records(&bytes, &sizes);
        }

        #[test]
        fn answers(payload in proptest::collection::vec(any::<u8>(), 0..5000), class in "([+-] (failed|denied|ok|notool) )?") {
            super::answers(&[class.as_bytes(), &payload].concat());
        }
    }
}
