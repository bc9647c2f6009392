//! Text that nobody can guess.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// 32 hexadecimal digits: 128 bits of a keyed hash, whose key comes from the system's random source.
pub(crate) fn nonce() -> String {
    let keyed = RandomState::new();
    format!("{:016x}{:016x}", keyed.hash_one(0), keyed.hash_one(1))
}

/// Whether `text` can be a nonce.
pub(crate) fn is_nonce(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same() {
        let (one, other) = (nonce(), nonce());
        assert!(is_nonce(&one) && is_nonce(&other) && one != other, "{one} {other}");
        assert!(!is_nonce(&one[1..]) && !is_nonce(&format!("{}:", &one[1..])));
    }
}
