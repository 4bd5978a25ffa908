//! A key together with its hash and slot, computed once.

use slot_routing::Slot;

/// A key's bytes, slot and hash. Created by [`crate::Keyspace::key`].
#[derive(Debug, Clone, Copy)]
pub struct Key<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) slot: Slot,
    /// The key's hash, seeded per process so that clients cannot construct colliding keys.
    pub(crate) hash: u64,
}

impl<'a> Key<'a> {
    /// Returns the key's name as bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the hash slot that the key belongs to.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Returns a key for another copy of the name `bytes` without hashing it again; `None` if the names differ.
    #[must_use]
    #[inline]
    pub fn rebind<'b>(&self, bytes: &'b [u8]) -> Option<Key<'b>> {
        bytes_equal(self.bytes, bytes).then_some(Key { bytes, slot: self.slot, hash: self.hash })
    }

    /// Returns the key's hash, which is not related to its slot number.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// Compares two byte strings. Most keys are so short that calling `memcmp` would cost more than comparing them inline.
#[inline]
pub(crate) fn bytes_equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    match one.len() {
        8..=16 => {
            one.first_chunk::<8>() == other.first_chunk() && one.last_chunk::<8>() == other.last_chunk()
        }
        17..=32 => {
            one.first_chunk::<16>() == other.first_chunk() && one.last_chunk::<16>() == other.last_chunk()
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_comparison_covers_every_byte() {
        for len in 0..50 {
            let key: Vec<u8> = (0..len).collect();
            assert!(bytes_equal(&key, &key.clone()));
            assert!(!bytes_equal(&key, &[&key[..], b"x"].concat()));
            for at in 0..key.len() {
                let mut other = key.clone();
                other[at] ^= 0x80;
                assert!(!bytes_equal(&key, &other), "byte {at} of {len}");
            }
        }
    }
}
