//! Slot sets shared between threads. One set contains the slots that had keys when they were last unlocked, so that
//! loops over all keys skip empty slots; others contain the slots that a snapshot has pinned.
//!
//! A slot is added and removed by the thread that has locked it. Changes are counted: if the count is the same before
//! and after a thread reads a set, the thread has read it consistently.

use std::sync::atomic::{AtomicU64, Ordering};

use slot_routing::{SLOT_COUNT, Slot};

/// Number of words per group. A group and its change counter fill one cache line.
const WORDS_PER_GROUP: usize = 7;
const SLOTS_PER_GROUP: usize = WORDS_PER_GROUP * 64;

/// A set of slots that threads can read while others change it.
pub(crate) struct AtomicSlotSet(Box<[SlotGroup]>);

#[derive(Default)]
#[repr(align(64))]
struct SlotGroup {
    change_count: AtomicU64,
    words: [AtomicU64; WORDS_PER_GROUP],
}

impl std::fmt::Debug for AtomicSlotSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Default for AtomicSlotSet {
    fn default() -> Self {
        Self((0..SLOT_COUNT.div_ceil(SLOTS_PER_GROUP)).map(|_| SlotGroup::default()).collect())
    }
}

impl AtomicSlotSet {
    #[cold]
    pub(crate) fn set(&self, slot: Slot, is_member: bool) {
        let (group, place) = (&self.0[slot.index() / SLOTS_PER_GROUP], slot.index() % SLOTS_PER_GROUP);
        let (word, bit) = (&group.words[place / 64], 1 << (place % 64));
        // Release ordering: a thread that sees a later write of the current thread also sees the changed bit.
        if is_member {
            word.fetch_or(bit, Ordering::Release);
        } else {
            word.fetch_and(!bit, Ordering::Release);
        }
        group.change_count.fetch_add(1, Ordering::Release);
    }

    /// Returns the slots of the set in ascending order. Each word is read when the iterator reaches it, so concurrent
    /// changes may be visible.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        let words = self.0.iter().flat_map(|group| &group.words).enumerate();
        words.flat_map(|(number, word)| {
            let mut left = word.load(Ordering::Acquire);
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Slot::new((number * 64 + bit) as u16)
            })
        })
    }

    /// Returns the number of changes so far.
    pub(crate) fn change_count(&self) -> u64 {
        self.0.iter().map(|group| group.change_count.load(Ordering::Acquire)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_slots_iterate_in_order_and_count_changes() {
        let slots = AtomicSlotSet::default();
        let wanted = [0, 1, 63, 64, 447, 448, 9000, 16383].map(|number| Slot::new(number).unwrap());
        wanted.iter().rev().for_each(|slot| slots.set(*slot, true));
        assert!(slots.iter().eq(wanted));
        assert_eq!(slots.change_count(), 8);
        slots.set(wanted[4], false);
        assert!(slots.iter().eq(wanted.into_iter().filter(|slot| *slot != wanted[4])));
        assert_eq!(slots.change_count(), 9);
    }
}
