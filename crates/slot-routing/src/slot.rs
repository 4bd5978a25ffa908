//! The slot: the unit of ownership, locking, migration and saving.

use std::fmt;

use memchr::memchr;

use crate::crc16::crc16;

/// How many slots there are; fixed by the cluster protocol.
pub const SLOT_COUNT: usize = 16384;

/// A hash slot, always below [`SLOT_COUNT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// The slot with this number, if there is one.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if (number as usize) < SLOT_COUNT { Some(Self(number)) } else { None }
    }

    /// The slot that `key` lies in.
    #[must_use]
    pub fn of_key(key: &[u8]) -> Self {
        Self(crc16(hash_tag(key)) & (SLOT_COUNT as u16 - 1))
    }

    /// All slots in rising order.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator {
        (0..SLOT_COUNT as u16).map(Self)
    }

    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The part of a key that decides its slot: what stands between the first `{` and the first `}`
/// after it, if that is not empty, else the whole key.
#[must_use]
pub fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = memchr(b'{', key) else { return key };
    let tail = &key[open + 1..];
    match memchr(b'}', tail) {
        None | Some(0) => key,
        Some(close) => &tail[..close],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_tags_follow_the_specification() {
        // key, the bytes that are hashed
        let table: &[(&[u8], &[u8])] = &[
            (b"user1000", b"user1000"),
            (b"{user1000}.following", b"user1000"),
            (b"foo{}{bar}", b"foo{}{bar}"),
            (b"foo{{bar}}zap", b"{bar"),
            (b"foo{bar}{zap}", b"bar"),
            (b"foo{bar", b"foo{bar"),
            (b"}{a}", b"a"),
            (b"", b""),
            (b"{}", b"{}"),
        ];
        for (key, hashed) in table {
            assert_eq!(hash_tag(key), *hashed, "{}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn known_slots() {
        // As CLUSTER KEYSLOT of a Redis node answers.
        for (key, slot) in [("foo", 12182), ("bar", 5061), ("hello", 866), ("", 0), ("{user1000}.x", 3443)] {
            assert_eq!(Slot::of_key(key.as_bytes()).number(), slot, "{key}");
        }
    }

    #[test]
    fn numbers_past_the_last_slot_are_refused() {
        assert!(Slot::new(16383).is_some());
        assert!(Slot::new(16384).is_none());
        assert_eq!(Slot::all().count(), SLOT_COUNT);
    }
}
