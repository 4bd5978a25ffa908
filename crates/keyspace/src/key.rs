//! A key with what is computed from it once.

use slot_routing::Slot;

/// A key's bytes, its slot and its hash. Made by [`crate::Keyspace::key`].
#[derive(Debug, Clone, Copy)]
pub struct Key<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) slot: Slot,
    /// Seeded per process, so that nobody outside can choose keys that collide.
    pub(crate) hash: u64,
}

impl<'a> Key<'a> {
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }
}
