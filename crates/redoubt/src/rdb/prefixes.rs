//! Sums up keys by pattern in bounded memory.
//!
//! The pattern of a key consists of its parts between separators, with ids replaced by `*`: `user:17:cart` and
//! `user:18:cart` are both `user:*:cart`. If there are too many patterns, all of them are shortened (`user:*:*`, then
//! `user:*`), so their number is bounded and keys with the same beginning stay together.

use std::collections::HashMap;

/// If there are more patterns than this, all of them are shortened.
const MAX_PATTERNS: usize = 10_000;
/// Initial maximum number of parts in a pattern.
const INITIAL_DEPTH: usize = 6;
/// Minimum length of a hexadecimal part that is treated as an id.
const MIN_ID_LENGTH: usize = 8;
/// Maximum length of a pattern in bytes.
const MAX_PATTERN_LENGTH: usize = 256;
const WILDCARD: &[u8] = b"*";

/// Sums over the keys of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KeySums {
    pub(crate) key_count: u64,
    pub(crate) element_count: u64,
    pub(crate) bytes: u64,
    pub(crate) expiring_keys: u64,
}

impl KeySums {
    pub(crate) fn add(&mut self, other: Self) {
        self.key_count += other.key_count;
        self.element_count += other.element_count;
        self.bytes += other.bytes;
        self.expiring_keys += other.expiring_keys;
    }
}

#[derive(Debug)]
pub(crate) struct PatternSums {
    separator: Vec<u8>,
    depth: usize,
    max_patterns: usize,
    sums_by_pattern: HashMap<Vec<u8>, KeySums>,
}

impl PatternSums {
    pub(crate) fn new(separator: &[u8]) -> Self {
        Self {
            separator: separator.to_vec(),
            depth: INITIAL_DEPTH,
            max_patterns: MAX_PATTERNS,
            sums_by_pattern: HashMap::new(),
        }
    }

    pub(crate) fn add(&mut self, key: &[u8], sums: KeySums) {
        let pattern = self.pattern_of_key(key);
        self.sums_by_pattern.entry(pattern).or_default().add(sums);
        while self.sums_by_pattern.len() > self.max_patterns && self.depth > 0 {
            self.depth -= 1;
            for (pattern, sum) in std::mem::take(&mut self.sums_by_pattern) {
                let shorter = self.pattern_of_key(&pattern);
                self.sums_by_pattern.entry(shorter).or_default().add(sum);
            }
        }
    }

    /// Returns the patterns with the most bytes, largest first.
    pub(crate) fn largest_patterns(&self, count: usize) -> Vec<(&[u8], KeySums)> {
        let mut all: Vec<(&[u8], KeySums)> =
            self.sums_by_pattern.iter().map(|(name, sum)| (&name[..], *sum)).collect();
        all.sort_unstable_by(|one, other| other.1.bytes.cmp(&one.1.bytes).then(one.0.cmp(other.0)));
        all.truncate(count);
        all
    }

    pub(crate) fn pattern_of_key(&self, key: &[u8]) -> Vec<u8> {
        let mut pattern = Vec::new();
        for (index, part) in split_parts(key, &self.separator).enumerate() {
            if index > 0 {
                pattern.extend_from_slice(&self.separator);
            }
            if index >= self.depth {
                pattern.extend_from_slice(WILDCARD);
                return pattern;
            }
            replace_id(part, &mut pattern);
            if pattern.len() > MAX_PATTERN_LENGTH {
                pattern.truncate(MAX_PATTERN_LENGTH);
                pattern.extend_from_slice(WILDCARD);
                return pattern;
            }
        }
        pattern
    }
}

fn split_parts<'a>(key: &'a [u8], separator: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = Some(key);
    std::iter::from_fn(move || {
        let left = rest?;
        let found = (!separator.is_empty())
            .then(|| left.windows(separator.len()).position(|window| window == separator))
            .flatten();
        rest = found.map(|at| &left[at + separator.len()..]);
        Some(&left[..found.unwrap_or(left.len())])
    })
}

/// Appends a part of a key in which the id is replaced by `*`. The id is the whole part or its trailing digits.
fn replace_id(part: &[u8], out: &mut Vec<u8>) {
    let is_id = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b'-';
    let has_digit = part.iter().any(u8::is_ascii_digit);
    if part.len() >= MIN_ID_LENGTH && has_digit && part.iter().all(is_id) {
        return out.extend_from_slice(WILDCARD);
    }
    let name = part.len() - part.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    out.extend_from_slice(&part[..name]);
    if name < part.len() {
        out.extend_from_slice(WILDCARD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_replaced_in_patterns() {
        let prefixes = PatternSums::new(b":");
        for (key, pattern) in [
            ("user:17:cart", "user:*:cart"),
            ("user:bob", "user:bob"),
            ("key17", "key*"),
            ("17", "*"),
            ("session:9f86d081-884c-4d63", "session:*"),
            ("decade", "decade"),
            ("a:b:c:d:e:f:g:h", "a:b:c:d:e:f:*"),
            ("", ""),
        ] {
            assert_eq!(prefixes.pattern_of_key(key.as_bytes()), pattern.as_bytes(), "{key}");
        }
        assert_eq!(PatternSums::new(b"").pattern_of_key(b"a:1:b"), b"a:1:b");
        assert_eq!(prefixes.pattern_of_key(&[b'x'; 10_000]).len(), MAX_PATTERN_LENGTH + WILDCARD.len());
    }

    #[test]
    fn excess_patterns_are_shortened_and_all_keys_count() {
        let mut prefixes = PatternSums::new(b":");
        prefixes.max_patterns = 100;
        let one = KeySums { key_count: 1, element_count: 1, bytes: 10, expiring_keys: 0 };
        let letters = |number: u32| -> String {
            (0..4).map(|at| char::from(b'g' + ((number >> (at * 4)) & 15) as u8)).collect()
        };
        for number in 0..5000 {
            prefixes.add(format!("user:{}:x", letters(number)).as_bytes(), one);
            prefixes.add(b"config:main", one);
        }
        let biggest = prefixes.largest_patterns(10);
        assert_eq!(biggest[0].0, b"config:*");
        assert_eq!(
            biggest[1],
            (
                &b"user:*"[..],
                KeySums { key_count: 5000, element_count: 5000, bytes: 50_000, expiring_keys: 0 }
            )
        );
        assert_eq!(biggest.len(), 2);
    }
}
