//! The slots that one command holds.

use slot_routing::Slot;
use smallvec::SmallVec;

use crate::keyspace::Keyspace;
use crate::slot::{SlotData, SlotGuard};

/// Locked slots in rising order.
#[derive(Debug)]
pub enum LockedSlots<'k> {
    /// One that somebody else has locked and will unlock. Nearly always.
    Borrowed(Slot, &'k mut SlotData),
    Own(SmallVec<[SlotGuard<'k>; 1]>),
}

impl Default for LockedSlots<'_> {
    fn default() -> Self {
        Self::Own(SmallVec::new())
    }
}

impl<'k> LockedSlots<'k> {
    pub(crate) fn acquire(keyspace: &'k Keyspace, slots: &[Slot]) -> Self {
        if let &[only] = slots {
            return Self::Own([keyspace.lock(only)].into());
        }
        let mut wanted: SmallVec<[Slot; 4]> = slots.into();
        wanted.sort_unstable();
        wanted.dedup();
        // Wait only with empty hands, for the slot that was busy; then try the others.
        let mut first = 0;
        'again: loop {
            let Some(&waited_for) = wanted.get(first) else { return Self::default() };
            let mut several = SmallVec::with_capacity(wanted.len());
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
            return Self::Own(several);
        }
    }

    /// Locks every slot in rising order. Only for the holder of the script turn.
    #[must_use]
    pub fn all(keyspace: &'k Keyspace) -> Self {
        Self::Own(Slot::all().map(|slot| keyspace.lock(slot)).collect())
    }

    /// The data of `slot`, which must be among the locked ones.
    #[inline]
    pub fn slot(&mut self, slot: Slot) -> &mut SlotData {
        match self {
            Self::Borrowed(only, data) => {
                assert_eq!(*only, slot, "a command touches only the slots it locked");
                data
            }
            Self::Own(guards) => Self::among(guards, slot),
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
        let (borrowed, guards) = match self {
            Self::Borrowed(_, data) => (Some(&mut **data), &mut [][..]),
            Self::Own(guards) => (None, guards.as_mut_slice()),
        };
        borrowed.into_iter().chain(guards.iter_mut().map(|guard| &mut **guard))
    }
}
