//! Reset of the keys' usage data when `maxmemory-policy` switches between LRU and LFU.
//!
//! The two bytes of each key change their meaning, so they are reset to the value of a new key: if an LRU time were
//! read as an LFU counter, eviction would depend on the time of day. The values cannot be converted slot by slot:
//! commands already write the new kind, and the two kinds cannot be told apart.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use clock::Millis;
use keyspace::Usage;
use slot_routing::{SLOT_COUNT, Slot};

use super::{Engine, MemoryManagement};

/// The kind of usage data that the two bytes of each key contain at present.
#[derive(Debug)]
pub(crate) struct UsageKind {
    is_lfu_counter: AtomicBool,
    /// Slots from this index on may still contain usage data of the previous kind.
    first_unreset_slot: AtomicUsize,
}

impl Default for UsageKind {
    fn default() -> Self {
        Self { is_lfu_counter: AtomicBool::new(false), first_unreset_slot: AtomicUsize::new(SLOT_COUNT) }
    }
}

impl MemoryManagement {
    /// Returns the usage data of a key in `slot`, or that of a new key while the slot still contains the previous kind.
    #[must_use]
    pub fn interpret_usage(&self, slot: Slot, stored: Usage) -> Usage {
        if slot.index() < self.usage_kind.first_unreset_slot.load(Ordering::Relaxed) {
            stored
        } else {
            Usage::for_new_keys()
        }
    }
}

impl Engine {
    /// Sets the usage data with which new keys start.
    pub fn set_initial_usage(&self, now: Millis) {
        let usage = if self.settings.eviction.lfu().is_some() {
            Usage::new_lfu(now)
        } else {
            Usage::with_access_time(now)
        };
        usage.set_for_new_keys();
    }

    /// Resets the usage data of all keys if `maxmemory-policy` now needs another kind of data. Called after a settings
    /// change, by one thread at a time.
    pub fn reset_usage_after_kind_change(&self, now: Millis) {
        let counts_uses = self.settings.eviction.lfu().is_some();
        if self.memory.usage_kind.is_lfu_counter.swap(counts_uses, Ordering::Relaxed) == counts_uses {
            return;
        }
        self.set_initial_usage(now);
        self.memory.usage_kind.first_unreset_slot.store(0, Ordering::Relaxed);
        for slot in self.keyspace.slots() {
            self.keyspace.reset_usage(slot, Usage::for_new_keys());
            self.memory.usage_kind.first_unreset_slot.store(slot.index() + 1, Ordering::Relaxed);
        }
        self.memory.usage_kind.first_unreset_slot.store(SLOT_COUNT, Ordering::Relaxed);
    }
}
