//! Giving memory back to the system.
//!
//! Removals tidy a table as they go, but they leave free pages scattered over the pool, and the system takes
//! back only whole pages of its own. A purge visits every slot: it gets dead bytes back, and, if much of the
//! pool lies free, moves pages and index lines to lower chunks; then what is whole and free is given back.
//! [`Keyspace::purge_step`] does a share of that in well under a millisecond; a driver that calls it with rising
//! steps forty times a second has been everywhere twice within 30 seconds.

use slot_routing::{SLOT_COUNT, Slot};

use crate::keyspace::Keyspace;
use crate::memory::{begin_round, is_sinking, pool_use, purge_pool};
use crate::overflow::outside_bytes;
use crate::slot::SlotData;
use crate::usage::Usage;

/// Pages or segments that are moved under one lock.
pub(crate) const A_PART: usize = 64;
/// How many pages are tidied under one lock.
const TIDY_AT_ONCE: usize = 16;

impl Keyspace {
    /// How many steps a purge of everything has.
    pub const PURGE_STEPS: usize = 512;
    /// How many steps it takes to bring all usage up to date.
    pub const AGE_STEPS: usize = 2048;

    /// Bytes that all data takes, counted as they are taken: pages and index lines from the pool, what lies
    /// outside, and the slots themselves. The pool and what is outside are counted for the whole process.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        const SLOT: usize = 128 + size_of::<u32>() + size_of::<u64>();
        pool_use().taken + outside_bytes() + SLOT_COUNT * SLOT
    }

    /// Lets `age` bring the usage of every key of a share of the slots up to date (see [`Usage`]). A driver
    /// that comes to every step within two hours is often enough.
    pub fn age_step(&self, step: usize, age: &mut dyn FnMut(Usage) -> Usage) {
        for slot in share(step, Self::AGE_STEPS) {
            let mut part = 0;
            while self.try_lock(slot).is_some_and(|mut data| data.age(part, age)) {
                part += 1;
            }
        }
    }

    /// Gives every key of `slot` this usage: bytes that were written for one eviction policy mean something else to
    /// another.
    pub fn reset_usage(&self, slot: Slot, usage: Usage) {
        let mut guard = self.lock(slot);
        let mut part = 0;
        while guard.age(part, &mut |_| usage) {
            part += 1;
            self.let_others(&mut guard);
        }
    }

    /// Does step `step`, counted round and round, of a purge. Returns how many bytes went back to the
    /// system.
    pub fn purge_step(&self, step: usize) -> usize {
        let step = step % Self::PURGE_STEPS;
        let sinking = if step == 0 { begin_round() } else { is_sinking() };
        for slot in share(step, Self::PURGE_STEPS) {
            while self.try_lock(slot).is_some_and(|mut data| data.tidy(TIDY_AT_ONCE)) {}
            if sinking {
                let mut part = 0;
                while self.try_lock(slot).is_some_and(|mut data| data.sink(part)) {
                    part += 1;
                }
            }
        }
        purge_pool(step, Self::PURGE_STEPS)
    }
}

/// The slots of step `step`, counted round and round, of `steps`.
fn share(step: usize, steps: usize) -> impl Iterator<Item = Slot> {
    let share = SLOT_COUNT / steps;
    Slot::all().skip(step % steps * share).take(share)
}

impl SlotData {
    /// Gets the dead bytes of up to `pages` pages back; says whether there is more to do.
    fn tidy(&mut self, pages: usize) -> bool {
        let mut left = pages;
        for (_, table) in self.tables() {
            left = table.tidy(left);
        }
        left == 0
    }

    fn age(&mut self, part: usize, age: &mut dyn FnMut(Usage) -> Usage) -> bool {
        self.tables().fold(false, |more, (_, table)| table.entries.age(part, age) | more)
    }

    /// Moves a part of the slot's pages and lines to where the pool is fuller; says whether there are
    /// further parts.
    fn sink(&mut self, part: usize) -> bool {
        self.tables().fold(false, |more, (_, table)| table.entries.sink(part) | more)
    }
}
