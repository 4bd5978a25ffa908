//! The slots that one command holds.

use slot_routing::Slot;
use smallvec::SmallVec;

use crate::keyspace::Keyspace;
use crate::slot::{SlotData, SlotGuard};

/// Locked slots in rising order.
#[derive(Debug, Default)]
pub struct LockedSlots<'k> {
    /// Nearly always the only one.
    one: Option<SlotGuard<'k>>,
    /// All of them, if there are several.
    several: Vec<SlotGuard<'k>>,
}

impl<'k> LockedSlots<'k> {
    pub(crate) fn acquire(keyspace: &'k Keyspace, slots: &[Slot]) -> Self {
        if let &[only] = slots {
            return Self { one: Some(keyspace.lock(only)), several: Vec::new() };
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
            return Self { one: None, several };
        }
    }

    /// Locks every slot in rising order. Only for the holder of the script turn.
    #[must_use]
    pub fn all(keyspace: &'k Keyspace) -> Self {
        Self { one: None, several: Slot::all().map(|slot| keyspace.lock(slot)).collect() }
    }

    /// Unlocks them.
    #[inline]
    pub fn release(&mut self) {
        self.one = None;
        self.several.clear();
    }

    /// Makes `slot` the only one that is locked, which it may have been before.
    #[inline]
    pub fn lock_only(&mut self, keyspace: &'k Keyspace, slot: Slot) {
        if self.one.as_ref().is_some_and(|guard| guard.slot() == slot) {
            return;
        }
        // Nobody waits for one while holding another.
        self.release();
        self.one = Some(keyspace.lock(slot));
    }

    /// The data of `slot`, which must be among the locked ones.
    #[inline]
    pub fn slot(&mut self, slot: Slot) -> &mut SlotData {
        match &mut self.one {
            Some(guard) => {
                assert_eq!(guard.slot(), slot, "a command touches only the slots it locked");
                guard
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
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut SlotData> {
        self.one.iter_mut().chain(&mut self.several).map(|guard| &mut **guard)
    }
}
