//! Sums by prefix, in bounded memory.
//!
//! A key counts for its pattern: its parts between separators, those that look like an id replaced by `*`, so that
//! `user:17:cart` and `user:18:cart` are both `user:*:cart`. Where there are too many patterns, all lose their last
//! parts (`user:*:*`, then `user:*`): there are never more than a bound, and what has the same begin stays together.

use std::collections::HashMap;

/// The most patterns that are kept.
const MOST: usize = 10_000;
/// The parts of a pattern that there are at first.
const DEPTH: usize = 6;
/// A part of hexadecimal digits that is so long is an id.
const LONG: usize = 8;
/// A pattern is no longer, whatever the key.
const LONGEST: usize = 256;
const ANY: &[u8] = b"*";

/// Sums over the keys of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) keys: u64,
    pub(crate) elements: u64,
    pub(crate) bytes: u64,
    pub(crate) expiring: u64,
}

impl Sum {
    pub(crate) fn add(&mut self, other: Self) {
        self.keys += other.keys;
        self.elements += other.elements;
        self.bytes += other.bytes;
        self.expiring += other.expiring;
    }
}

#[derive(Debug)]
pub(crate) struct Prefixes {
    separator: Vec<u8>,
    depth: usize,
    most: usize,
    sums: HashMap<Vec<u8>, Sum>,
}

impl Prefixes {
    pub(crate) fn new(separator: &[u8]) -> Self {
        Self { separator: separator.to_vec(), depth: DEPTH, most: MOST, sums: HashMap::new() }
    }

    pub(crate) fn add(&mut self, key: &[u8], sum: Sum) {
        let pattern = self.pattern(key);
        self.sums.entry(pattern).or_default().add(sum);
        while self.sums.len() > self.most && self.depth > 0 {
            self.depth -= 1;
            for (pattern, sum) in std::mem::take(&mut self.sums) {
                let shorter = self.pattern(&pattern);
                self.sums.entry(shorter).or_default().add(sum);
            }
        }
    }

    /// Those with the most bytes first.
    pub(crate) fn biggest(&self, count: usize) -> Vec<(&[u8], Sum)> {
        let mut all: Vec<(&[u8], Sum)> = self.sums.iter().map(|(name, sum)| (&name[..], *sum)).collect();
        all.sort_unstable_by(|one, other| other.1.bytes.cmp(&one.1.bytes).then(one.0.cmp(other.0)));
        all.truncate(count);
        all
    }

    /// The pattern that a key is counted under.
    pub(crate) fn pattern(&self, key: &[u8]) -> Vec<u8> {
        let mut pattern = Vec::new();
        for (index, part) in split(key, &self.separator).enumerate() {
            if index > 0 {
                pattern.extend_from_slice(&self.separator);
            }
            if index >= self.depth {
                pattern.extend_from_slice(ANY);
                return pattern;
            }
            general(part, &mut pattern);
            if pattern.len() > LONGEST {
                pattern.truncate(LONGEST);
                pattern.extend_from_slice(ANY);
                return pattern;
            }
        }
        pattern
    }
}

fn split<'a>(key: &'a [u8], separator: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
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

/// A part with `*` in place of an id in it: all of it, or the digits at its end.
fn general(part: &[u8], out: &mut Vec<u8>) {
    let is_id = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b'-';
    let has_digit = part.iter().any(u8::is_ascii_digit);
    if part.len() >= LONG && has_digit && part.iter().all(is_id) {
        return out.extend_from_slice(ANY);
    }
    let name = part.len() - part.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    out.extend_from_slice(&part[..name]);
    if name < part.len() {
        out.extend_from_slice(ANY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_left_out_of_patterns() {
        let prefixes = Prefixes::new(b":");
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
            assert_eq!(prefixes.pattern(key.as_bytes()), pattern.as_bytes(), "{key}");
        }
        assert_eq!(Prefixes::new(b"").pattern(b"a:1:b"), b"a:1:b");
        assert_eq!(prefixes.pattern(&[b'x'; 10_000]).len(), LONGEST + ANY.len());
    }

    #[test]
    fn too_many_patterns_become_fewer_and_no_key_is_lost() {
        let mut prefixes = Prefixes::new(b":");
        prefixes.most = 100;
        let one = Sum { keys: 1, elements: 1, bytes: 10, expiring: 0 };
        let letters = |number: u32| -> String {
            (0..4).map(|at| char::from(b'g' + ((number >> (at * 4)) & 15) as u8)).collect()
        };
        for number in 0..5000 {
            prefixes.add(format!("user:{}:x", letters(number)).as_bytes(), one);
            prefixes.add(b"config:main", one);
        }
        let biggest = prefixes.biggest(10);
        assert_eq!(biggest[0].0, b"config:*");
        assert_eq!(
            biggest[1],
            (&b"user:*"[..], Sum { keys: 5000, elements: 5000, bytes: 50_000, expiring: 0 })
        );
        assert_eq!(biggest.len(), 2);
    }
}
