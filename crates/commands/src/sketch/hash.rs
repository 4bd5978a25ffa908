//! Hashes an element to a register and its value.

use super::INDEX_BITS;

/// Seed of the hash function, the same as in Redis.
const SEED: u64 = 0xadc8_3b19;
/// Multiplication constant of MurmurHash64A.
const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;

/// A register index and the minimum value that an element implies for this register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Observation {
    pub(crate) register: usize,
    /// The number of zeros after the bits that select the register, plus one: 1 to 51.
    pub(crate) value: u8,
}

impl Observation {
    /// The observation for an element.
    pub(crate) fn from_element(element: &[u8]) -> Self {
        let hash = murmur64a(element);
        let register = (hash & ((1 << INDEX_BITS) - 1)) as usize;
        // An additional bit above the highest one limits the length of the run of zeros.
        let rest = hash >> INDEX_BITS | 1 << (u64::BITS - INDEX_BITS);
        Self { register, value: rest.trailing_zeros() as u8 + 1 }
    }
}

/// MurmurHash2 for 64-bit platforms, version A, by A. Appleby (public domain). Reads little-endian on every platform.
fn murmur64a(bytes: &[u8]) -> u64 {
    let mixed = |word: u64| {
        let word = word.wrapping_mul(MULTIPLIER);
        (word ^ word >> 47).wrapping_mul(MULTIPLIER)
    };
    let mut hash = SEED ^ (bytes.len() as u64).wrapping_mul(MULTIPLIER);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hash = (hash ^ mixed(u64::from_le_bytes(*word))).wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(MULTIPLIER);
    }
    hash = (hash ^ hash >> 47).wrapping_mul(MULTIPLIER);
    hash ^ hash >> 47
}
