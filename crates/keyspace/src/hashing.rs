//! The hash function for keys.
//!
//! A single hash value locates a key. Its top 48 bits are the position in hash order, which the index and SCAN use; its
//! lowest byte is the tag that the index compares first.

use std::sync::OnceLock;

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

/// Secrets of the hash function, which prevent clients from constructing colliding keys. Set once per process.
static HASH_SECRETS: OnceLock<RapidSecrets> = OnceLock::new();

/// Mask for the position part of a hash. The low 16 bits stay free, so that a cursor can hold a slot number there.
pub(crate) const POSITION_MASK: u64 = !0xffff;

/// Sets the secrets of this process unless they are already set.
pub(crate) fn set_seed(seed: u64) {
    HASH_SECRETS.get_or_init(|| RapidSecrets::seed(seed));
}

/// Derives a seed from `text`; equal texts give equal seeds on every machine.
pub(crate) fn seed_from_text(text: &[u8]) -> u64 {
    rapidhash_v3_seeded(text, &RapidSecrets::seed(0))
}

#[inline]
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    rapidhash_v3_seeded(bytes, HASH_SECRETS.get_or_init(|| RapidSecrets::seed(0)))
}
