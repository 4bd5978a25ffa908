//! Returns free memory to the kernel.
//!
//! Removals compact tables as they go, but leave free blocks scattered over the pool, and the kernel takes
//! back only whole system pages. A purge visits every slot, compacts pages, and, if much of the pool is free,
//! moves pages and index lines to lower chunks; then whole free system pages are released.
//! [`Keyspace::purge_step`] does a share of that in well under a millisecond; called 40 times a second with
//! ascending steps, it covers everything twice within 30 seconds.

use slot_routing::{SLOT_COUNT, Slot};

use crate::keyspace::Keyspace;
use crate::memory::{begin_purge_round, is_moving_lower, pool_usage, purge_pool};
use crate::overflow::overflow_bytes;
use crate::slot::SlotData;
use crate::usage::Usage;

/// Number of pages or index segments that are moved under one lock.
pub(crate) const PAGES_PER_LOCK: usize = 64;
/// Number of pages that are compacted under one lock.
const COMPACTED_PER_LOCK: usize = 16;

impl Keyspace {
    /// Number of steps of a full purge.
    pub const PURGE_STEPS: usize = 512;
    /// Number of steps to age the usage counters of all keys.
    pub const AGE_STEPS: usize = 2048;

    /// Returns the memory used by all data, as counted on allocation: pages and index lines of the pool, overflow
    /// values, and the slots. The pool and overflow counts include all keyspaces of the process.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        const SLOT_BYTES: usize = 128 + size_of::<u32>() + size_of::<u64>();
        pool_usage().used_bytes + overflow_bytes() + SLOT_COUNT * SLOT_BYTES
    }

    /// Ages the usage counters of a share of the slots with `age` (see [`Usage`]). Calling every step within
    /// two hours is sufficient.
    pub fn age_usage_step(&self, step: usize, age: &mut dyn FnMut(Usage) -> Usage) {
        for slot in slots_of_step(step, Self::AGE_STEPS) {
            let mut part = 0;
            while self.try_lock(slot).is_some_and(|mut data| data.age_pages(part, age)) {
                part += 1;
            }
        }
    }

    /// Sets the usage of every key of `slot`. This is needed when the eviction policy changes, because the two bytes
    /// then have another meaning.
    pub fn reset_usage(&self, slot: Slot, usage: Usage) {
        let mut guard = self.lock(slot);
        let mut part = 0;
        while guard.age_pages(part, &mut |_| usage) {
            part += 1;
            self.yield_to_waiters(&mut guard);
        }
    }

    /// Runs purge step `step`, modulo [`Self::PURGE_STEPS`]. Returns the number of bytes returned to the kernel.
    pub fn purge_step(&self, step: usize) -> usize {
        let step = step % Self::PURGE_STEPS;
        let sinking = if step == 0 { begin_purge_round() } else { is_moving_lower() };
        for slot in slots_of_step(step, Self::PURGE_STEPS) {
            while self.try_lock(slot).is_some_and(|mut data| data.compact(COMPACTED_PER_LOCK)) {}
            if sinking {
                let mut part = 0;
                while self.try_lock(slot).is_some_and(|mut data| data.move_lower(part)) {
                    part += 1;
                }
            }
        }
        purge_pool(step, Self::PURGE_STEPS)
    }
}

/// Returns the slots of step `step` (wrapping around) of `steps`.
fn slots_of_step(step: usize, steps: usize) -> impl Iterator<Item = Slot> {
    let slots_of_step = SLOT_COUNT / steps;
    Slot::all().skip(step % steps * slots_of_step).take(slots_of_step)
}

impl SlotData {
    /// Compacts up to `pages` pages. Returns whether more remain.
    fn compact(&mut self, pages: usize) -> bool {
        let mut left = pages;
        for (_, table) in self.tables() {
            left = table.compact(left);
        }
        left == 0
    }

    fn age_pages(&mut self, part: usize, age: &mut dyn FnMut(Usage) -> Usage) -> bool {
        self.tables().fold(false, |more, (_, table)| table.entries.age(part, age) | more)
    }

    /// Moves one chunk of the slot's pages and index lines to lower pool addresses. Returns whether more
    /// chunks follow.
    fn move_lower(&mut self, part: usize) -> bool {
        self.tables().fold(false, |more, (_, table)| table.entries.move_lower(part) | more)
    }
}
