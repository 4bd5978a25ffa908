//! The hash of a key.
//!
//! One number decides where a key lies: its top 48 bits are the key's position in hash order, by which the
//! index finds it and SCAN walks; its lowest byte is the tag that the index compares first.

use std::sync::OnceLock;

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

/// Chosen once per process, so that nobody outside can choose keys that collide.
static SECRETS: OnceLock<RapidSecrets> = OnceLock::new();

/// The part of a hash that is a position. The low 16 bits are left free, with room for the number of a slot.
pub(crate) const POSITION: u64 = !0xffff;

/// Chooses the secrets of this process, unless they are chosen.
pub(crate) fn seed(seed: u64) {
    SECRETS.get_or_init(|| RapidSecrets::seed(seed));
}

/// A seed that is the same wherever this text is.
pub(crate) fn seed_of(text: &[u8]) -> u64 {
    rapidhash_v3_seeded(text, &RapidSecrets::seed(0))
}

#[inline]
pub(crate) fn of(bytes: &[u8]) -> u64 {
    rapidhash_v3_seeded(bytes, SECRETS.get_or_init(|| RapidSecrets::seed(0)))
}
