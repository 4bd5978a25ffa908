//! A slot that was locked when a batch was prefetched, before the command that uses the slot runs.

use parking_lot::MutexGuard;

use crate::key::Key;
use crate::large::Collection;
use crate::slot::SlotData;

/// A slot that was locked to prefetch one of its keys and is still locked. A thread that has one must not wait for
/// another slot.
#[derive(Debug)]
pub struct PrefetchedSlot<'k> {
    pub(crate) data: MutexGuard<'k, SlotData>,
    pub(crate) probable_entry: Option<ProbableEntry>,
}

/// The entry that most likely belongs to a key, according to the index. The guess is nearly always right, and usable
/// until the slot changes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbableEntry {
    pub(crate) db: u16,
    pub(crate) reference: u32,
}

impl ProbableEntry {
    /// Prefetches the entry that most likely belongs to the key.
    #[inline]
    pub(crate) fn prefetch(data: &SlotData, db: u16, key: &Key<'_>) -> Option<Self> {
        let reference = data.existing_table(db)?.entries.prefetch_entry(key.hash)?;
        Some(Self { db, reference })
    }
}

impl PrefetchedSlot<'_> {
    /// Prefetches the key's entry (third pass of a batch).
    #[inline]
    pub fn prefetch_entry(&mut self, db: u16, key: &Key<'_>) {
        self.probable_entry = ProbableEntry::prefetch(&self.data, db, key);
    }

    /// Prefetches the index lines of the elements that a command names (fourth pass of a batch) if the value is large,
    /// and before that the segments that contain these lines. Returns whether the value is large.
    pub fn prefetch_element_indexes(
        &self,
        db: u16,
        key: &Key<'_>,
        hashes: impl Iterator<Item = u64> + Clone,
    ) -> bool {
        let large = self.large_collection(db, key);
        if let Some(large) = large {
            hashes.clone().for_each(|part| large.prefetch_segment(part));
            hashes.for_each(|part| large.prefetch_index(part));
        }
        large.is_some()
    }

    /// Prefetches the elements that a command names (fifth pass of a batch).
    pub fn prefetch_elements(&self, db: u16, key: &Key<'_>, hashes: impl Iterator<Item = u64>) {
        if let Some(large) = self.large_collection(db, key) {
            hashes.for_each(|part| {
                large.prefetch_element(part);
            });
        }
    }

    fn large_collection(&self, db: u16, key: &Key<'_>) -> Option<&dyn Collection> {
        self.data.existing_table(db)?.probable_collection(key.hash)
    }
}
