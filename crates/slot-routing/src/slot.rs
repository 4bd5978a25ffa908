//! Hash slots: the unit of ownership, locking, migration and snapshots.

use std::fmt;

use memchr::memchr;

use crate::crc16::crc16;

/// The number of hash slots, fixed by the cluster protocol.
pub const SLOT_COUNT: usize = 16384;

/// A hash slot, always below [`SLOT_COUNT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// Creates a slot from its number; `None` if `number` is 16384 or more.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if (number as usize) < SLOT_COUNT { Some(Self(number)) } else { None }
    }

    /// Returns the slot of `key`, by the hash of its hash tag if it has one.
    #[must_use]
    pub fn of_key(key: &[u8]) -> Self {
        // Most keys have no hash tag, and searching for `{` is faster than `hash_tag`.
        let hashed = if has_brace(key) { hash_tag(key) } else { key };
        Self(crc16(hashed) & (SLOT_COUNT as u16 - 1))
    }

    /// Returns all slots in ascending order.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator {
        (0..SLOT_COUNT as u16).map(Self)
    }

    /// Returns the slot number, 0 to 16383.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Returns the slot number as an array index.
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

/// Returns the part of a key that is hashed: the text between the first `{` and the next `}` if it is not empty,
/// otherwise the whole key.
#[must_use]
pub fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = memchr(b'{', key) else { return key };
    let tail = &key[open + 1..];
    match memchr(b'}', tail) {
        None | Some(0) => key,
        Some(close) => &tail[..close],
    }
}

/// Returns whether `key` contains `{`, checked eight bytes at a time. The last chunk may overlap the one before.
#[inline]
fn has_brace(key: &[u8]) -> bool {
    const LOW_BITS: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH_BITS: u64 = u64::from_ne_bytes([0x80; 8]);
    // Test all eight bytes at once: XOR turns each `{` into a zero byte, and subtracting 1 from a zero byte sets its
    // high bit.
    let brace_in = |eight: &[u8; 8]| {
        let zero = u64::from_ne_bytes(*eight) ^ u64::from_ne_bytes([b'{'; 8]);
        zero.wrapping_sub(LOW_BITS) & !zero & HIGH_BITS
    };
    match (key.first_chunk(), key.last_chunk()) {
        (Some(first), Some(last)) if key.len() <= 16 => brace_in(first) | brace_in(last) != 0,
        (Some(_), Some(last)) => key.as_chunks().0.iter().chain([last]).any(|eight| brace_in(eight) != 0),
        _ => key.contains(&b'{'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_tags_follow_the_specification() {
        // Columns: key, hashed part
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
    fn has_brace_finds_a_brace_at_any_position_and_length() {
        for len in 0..40 {
            // Bytes next to `{` in value, and bytes with the high bit set, must not match.
            for other in [b'z', b'|', 0, 0xfb, 0xff] {
                let mut key = vec![other; len];
                assert!(!has_brace(&key), "{key:?}");
                for at in 0..len {
                    key[at] = b'{';
                    assert!(has_brace(&key), "{key:?}");
                    key[at] = other;
                }
            }
        }
    }

    #[test]
    fn slots_match_cluster_keyslot_of_redis() {
        // Expected values come from CLUSTER KEYSLOT on a Redis node.
        for (key, slot) in [("foo", 12182), ("bar", 5061), ("hello", 866), ("", 0), ("{user1000}.x", 3443)] {
            assert_eq!(Slot::of_key(key.as_bytes()).number(), slot, "{key}");
        }
    }

    #[test]
    fn slot_new_rejects_numbers_past_the_last_slot() {
        assert!(Slot::new(16383).is_some());
        assert!(Slot::new(16384).is_none());
        assert_eq!(Slot::all().count(), SLOT_COUNT);
    }
}
