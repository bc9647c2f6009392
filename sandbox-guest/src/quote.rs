//! Bytes as words of shell text.

/// Appends `word` to `text` as one word, whatever its bytes (NUL excepted, which callers refuse).
pub(crate) fn push_word(text: &mut Vec<u8>, word: &[u8]) {
    text.extend_from_slice(b" '");
    for piece in word.split_inclusive(|b| *b == b'\'') {
        match piece.strip_suffix(b"'") {
            Some(head) => {
                text.extend_from_slice(head);
                text.extend_from_slice(b"'\\''");
            }
            None => text.extend_from_slice(piece),
        }
    }
    text.push(b'\'');
}

/// A request as it goes over the wire: its length, a newline, its bytes.
pub(crate) fn frame(text: &[u8]) -> Vec<u8> {
    let mut framed = format!("{}\n", text.len()).into_bytes();
    framed.extend_from_slice(text);
    framed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bash_sees(word: &[u8]) -> Vec<u8> {
        let mut text = b"printf %s".to_vec();
        push_word(&mut text, word);
        std::process::Command::new("/bin/bash")
            .env("LC_ALL", "C")
            .arg("-c")
            .arg(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&text))
            .output()
            .unwrap()
            .stdout
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_bytes_come_back(word in proptest::collection::vec(1u8.., 0..200)) {
            prop_assert_eq!(bash_sees(&word), word);
        }
    }

    #[test]
    fn awkward_words() {
        for word in ["", "'", "''", "a'b", "\\", "'\\''", "$(id)`id`\"*?[!", "a\nb\n", "-n"] {
            assert_eq!(bash_sees(word.as_bytes()), word.as_bytes());
        }
    }
}
