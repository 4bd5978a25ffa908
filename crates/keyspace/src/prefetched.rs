//! A slot that a batch has locked ahead of the command that works on it.

use parking_lot::MutexGuard;

use crate::key::Key;
use crate::large::Collection;
use crate::slot::SlotData;

/// A slot that is locked since one of its keys was touched. A thread that has one must not wait for any other slot.
#[derive(Debug)]
pub struct Touched<'k> {
    pub(crate) data: MutexGuard<'k, SlotData>,
    pub(crate) likely: Option<Likely>,
}

/// The entry that the index has for a key by all that was looked at: right nearly always. Good until the slot
/// changes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Likely {
    pub(crate) db: u16,
    pub(crate) reference: u32,
}

impl Likely {
    /// Asks the processor for the entry that a key most likely has.
    #[inline]
    pub(crate) fn touch(data: &SlotData, db: u16, key: &Key<'_>) -> Option<Self> {
        let reference = data.table_if(db)?.entries.prefetch_entry(key.hash)?;
        Some(Self { db, reference })
    }
}

impl Touched<'_> {
    /// Third sweep: asks for the key's entry.
    #[inline]
    pub fn touch_entry(&mut self, db: u16, key: &Key<'_>) {
        self.likely = Likely::touch(&self.data, db, key);
    }

    /// Fourth sweep, where commands name parts of a value: asks for the index lines of these, if the value is
    /// large, and before that for what leads to them. Says whether it is.
    pub fn touch_part_indexes(
        &self,
        db: u16,
        key: &Key<'_>,
        parts: impl Iterator<Item = u64> + Clone,
    ) -> bool {
        let large = self.large(db, key);
        if let Some(large) = large {
            parts.clone().for_each(|part| large.prefetch_segment(part));
            parts.for_each(|part| large.prefetch_index(part));
        }
        large.is_some()
    }

    /// Fifth sweep: asks for the parts.
    pub fn touch_parts(&self, db: u16, key: &Key<'_>, parts: impl Iterator<Item = u64>) {
        if let Some(large) = self.large(db, key) {
            parts.for_each(|part| {
                large.prefetch_element(part);
            });
        }
    }

    fn large(&self, db: u16, key: &Key<'_>) -> Option<&dyn Collection> {
        self.data.table_if(db)?.likely_collection(key.hash)
    }
}
