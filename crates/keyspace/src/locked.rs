//! The slots that one command holds.

use slot_routing::Slot;
use smallvec::SmallVec;

use crate::keyspace::Keyspace;
use crate::slot::{SlotData, SlotGuard};

/// Locked slots in rising order. Nearly always one.
#[derive(Debug, Default)]
pub struct LockedSlots<'k> {
    /// The only one, if it is.
    only: Option<SlotGuard<'k>>,
    several: Vec<SlotGuard<'k>>,
}

impl<'k> LockedSlots<'k> {
    #[inline]
    pub(crate) fn one(keyspace: &'k Keyspace, slot: Slot) -> Self {
        Self { only: Some(keyspace.lock(slot)), several: Vec::new() }
    }

    pub(crate) fn acquire(keyspace: &'k Keyspace, slots: &[Slot]) -> Self {
        if let &[only] = slots {
            return Self::one(keyspace, only);
        }
        let mut wanted: SmallVec<[Slot; 4]> = slots.into();
        wanted.sort_unstable();
        wanted.dedup();
        // Wait only with empty hands, for the slot that was busy; then try the others.
        let mut first = 0;
        'again: loop {
            let Some(&waited_for) = wanted.get(first) else { return Self::default() };
            let mut several = Vec::with_capacity(wanted.len());
            several.push(keyspace.lock(waited_for));
            for (index, &slot) in wanted.iter().enumerate().filter(|&(index, _)| index != first) {
                match keyspace.try_lock(slot) {
                    Some(guard) => several.push(guard),
                    None => {
                        first = index;
                        continue 'again;
                    }
                }
            }
            several.sort_unstable_by_key(SlotGuard::slot);
            return Self { only: None, several };
        }
    }

    /// Locks every slot in rising order. Only for the holder of the script turn.
    #[must_use]
    pub fn all(keyspace: &'k Keyspace) -> Self {
        Self { only: None, several: Slot::all().map(|slot| keyspace.lock(slot)).collect() }
    }

    /// The data of `slot`, which must be among the locked ones.
    #[inline]
    pub fn slot(&mut self, slot: Slot) -> &mut SlotData {
        match &mut self.only {
            Some(only) => {
                assert_eq!(only.slot(), slot, "a command touches only the slots it locked");
                only
            }
            None => Self::among(&mut self.several, slot),
        }
    }

    fn among<'s>(several: &'s mut [SlotGuard<'k>], slot: Slot) -> &'s mut SlotData {
        let index = several
            .binary_search_by_key(&slot, SlotGuard::slot)
            .expect("a command touches only the slots it locked");
        &mut several[index]
    }

    /// The locked slots in rising order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut SlotGuard<'k>> {
        self.only.iter_mut().chain(&mut self.several)
    }
}
