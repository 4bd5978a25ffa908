//! The slots that one command holds.

use slot_routing::Slot;
use smallvec::SmallVec;

use crate::keyspace::Keyspace;
use crate::slot::{SlotData, SlotGuard};

/// Locked slots in rising order. Nearly always one.
#[derive(Debug, Default)]
pub struct LockedSlots<'k> {
    guards: SmallVec<[SlotGuard<'k>; 1]>,
}

impl<'k> LockedSlots<'k> {
    pub(crate) fn acquire(keyspace: &'k Keyspace, slots: &[Slot]) -> Self {
        if let &[only] = slots {
            let mut guards = SmallVec::new();
            guards.push(keyspace.lock(only));
            return Self { guards };
        }
        let mut wanted: SmallVec<[Slot; 4]> = slots.into();
        wanted.sort_unstable();
        wanted.dedup();
        // Wait only with empty hands, for the slot that was busy; then try the others.
        let mut first = 0;
        'again: loop {
            let mut guards: SmallVec<[SlotGuard<'k>; 1]> = SmallVec::new();
            let Some(&waited_for) = wanted.get(first) else { return Self { guards } };
            guards.push(keyspace.lock(waited_for));
            for (index, &slot) in wanted.iter().enumerate().filter(|&(index, _)| index != first) {
                match keyspace.try_lock(slot) {
                    Some(guard) => guards.push(guard),
                    None => {
                        first = index;
                        continue 'again;
                    }
                }
            }
            guards.sort_unstable_by_key(SlotGuard::slot);
            return Self { guards };
        }
    }

    /// Locks every slot in rising order. Only for the holder of the script turn.
    #[must_use]
    pub fn all(keyspace: &'k Keyspace) -> Self {
        Self { guards: Slot::all().map(|slot| keyspace.lock(slot)).collect() }
    }

    /// The data of `slot`, which must be among the locked ones.
    pub fn slot(&mut self, slot: Slot) -> &mut SlotData {
        let index = match self.guards.as_slice() {
            [only] => {
                assert_eq!(only.slot(), slot, "a command touches only the slots it locked");
                0
            }
            guards => guards
                .binary_search_by_key(&slot, SlotGuard::slot)
                .expect("a command touches only the slots it locked"),
        };
        &mut self.guards[index]
    }

    /// The locked slots in rising order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut SlotGuard<'k>> {
        self.guards.iter_mut()
    }
}
