//! Returns free memory to the kernel.
//!
//! Removing keys compacts tables, but leaves free blocks scattered over the pool, and the kernel takes back only whole
//! system pages. A purge visits every slot, compacts pages, and, if much of the pool is free, moves pages and index
//! lines to lower chunks; then it releases whole free system pages. [`Keyspace::purge_step`] does a share of that in
//! well under a millisecond. If it is called 40 times a second with ascending steps, two complete purges take less than
//! 30 seconds.

use slot_routing::{SLOT_COUNT, Slot};

use crate::keyspace::Keyspace;
use crate::memory::{begin_purge_round, is_moving_to_lower_addresses, pool_usage, purge_pool};
use crate::overflow::overflow_bytes;
use crate::slot::SlotData;
use crate::usage::Usage;

/// Number of pages or index segments that are moved while a slot is locked once.
pub(crate) const PAGES_PER_LOCK: usize = 64;
/// Number of pages that are compacted while a slot is locked once.
const PAGES_COMPACTED_PER_LOCK: usize = 16;

impl Keyspace {
    /// Number of steps of a full purge.
    pub const PURGE_STEPS: usize = 512;
    /// Number of steps in which the usage counters of all keys are aged once.
    pub const AGE_STEPS: usize = 2048;

    /// Returns the memory used by all data: pages and index lines of the pool, overflow values, and the slots. The pool
    /// and overflow values of all keyspaces of the process are included.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        const SLOT_BYTES: usize = 128 + size_of::<u32>() + size_of::<u64>();
        pool_usage().used_bytes + overflow_bytes() + SLOT_COUNT * SLOT_BYTES
    }

    /// Ages the usage counters of one share of the slots by `age` (see [`Usage`]). Every step must be called at least
    /// once in two hours.
    pub fn age_usage_step(&self, step: usize, age: &mut dyn FnMut(Usage) -> Usage) {
        for slot in slots_of_step(step, Self::AGE_STEPS) {
            let mut part = 0;
            while self.try_lock(slot).is_some_and(|mut data| data.age_pages(part, age)) {
                part += 1;
            }
        }
    }

    /// Sets the usage of every key of `slot`. Needed when the eviction policy changes, because it defines the meaning
    /// of the usage counters.
    pub fn reset_usage(&self, slot: Slot, usage: Usage) {
        let mut guard = self.lock(slot);
        let mut part = 0;
        while guard.age_pages(part, &mut |_| usage) {
            part += 1;
            self.yield_to_waiters(&mut guard);
        }
    }

    /// Runs purge step `step`, modulo [`Self::PURGE_STEPS`]. Returns the number of bytes released to the kernel.
    pub fn purge_step(&self, step: usize) -> usize {
        let step = step % Self::PURGE_STEPS;
        let sinking = if step == 0 { begin_purge_round() } else { is_moving_to_lower_addresses() };
        for slot in slots_of_step(step, Self::PURGE_STEPS) {
            while self.try_lock(slot).is_some_and(|mut data| data.compact(PAGES_COMPACTED_PER_LOCK)) {}
            if sinking {
                let mut part = 0;
                while self.try_lock(slot).is_some_and(|mut data| data.move_to_lower_addresses(part)) {
                    part += 1;
                }
            }
        }
        purge_pool(step, Self::PURGE_STEPS)
    }
}

/// Returns the slots that belong to step `step` if all slots are divided into `steps` steps. `step` wraps around.
fn slots_of_step(step: usize, steps: usize) -> impl Iterator<Item = Slot> {
    let slots_of_step = SLOT_COUNT / steps;
    Slot::all().skip(step % steps * slots_of_step).take(slots_of_step)
}

impl SlotData {
    /// Compacts up to `pages` pages of the slot. Returns whether more pages remain.
    fn compact(&mut self, pages: usize) -> bool {
        let mut left = pages;
        for (_, table) in self.tables() {
            left = table.compact(left);
        }
        left == 0
    }

    fn age_pages(&mut self, part: usize, age: &mut dyn FnMut(Usage) -> Usage) -> bool {
        self.tables().fold(false, |more, (_, table)| table.entries.age_usage(part, age) | more)
    }

    /// Moves the slot's pages and index lines in chunk `part` to lower pool addresses. Returns whether more chunks
    /// follow.
    fn move_to_lower_addresses(&mut self, part: usize) -> bool {
        self.tables().fold(false, |more, (_, table)| table.entries.move_to_lower_addresses(part) | more)
    }
}
