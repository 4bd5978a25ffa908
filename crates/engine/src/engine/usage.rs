//! The usage of keys when `maxmemory-policy` changes between counting uses (LFU) and noting their times.
//!
//! The two bytes of a key mean something else then, so they all begin anew, as those of a new key: a time read as a
//! count would evict keys by the time of day. Carrying the old usage over is not worth it: commands write usage of the
//! new kind while the walk is under way, and it cannot tell which kind it finds.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use clock::Millis;
use keyspace::Usage;
use slot_routing::{SLOT_COUNT, Slot};

use super::Engine;

/// The kind of usage that keys have.
#[derive(Debug)]
pub(crate) struct UsageKind {
    counts_uses: AtomicBool,
    /// Slots from this one on may still have usage of the other kind.
    reset_below: AtomicUsize,
}

impl Default for UsageKind {
    fn default() -> Self {
        Self { counts_uses: AtomicBool::new(false), reset_below: AtomicUsize::new(SLOT_COUNT) }
    }
}

impl Engine {
    /// Sets the usage of keys that are made from now on.
    pub fn set_usage_of_new(&self, now: Millis) {
        let usage = if self.settings.lfu().is_some() { Usage::lfu(now) } else { Usage::lru(now) };
        usage.set_for_new_keys();
    }

    /// Lets all keys have usage of the kind that the policy asks for. To be called after a change of the settings, by
    /// one thread at a time.
    pub fn adopt_usage_kind(&self, now: Millis) {
        let counts_uses = self.settings.lfu().is_some();
        if self.usage_kind.counts_uses.swap(counts_uses, Ordering::Relaxed) == counts_uses {
            return;
        }
        self.set_usage_of_new(now);
        self.usage_kind.reset_below.store(0, Ordering::Relaxed);
        for slot in self.keyspace.slots() {
            self.keyspace.reset_usage(slot, Usage::for_new_keys());
            self.usage_kind.reset_below.store(slot.index() + 1, Ordering::Relaxed);
        }
        self.usage_kind.reset_below.store(SLOT_COUNT, Ordering::Relaxed);
    }

    /// The usage of a key of `slot` whose bytes are `stored`.
    #[must_use]
    pub fn usage_in(&self, slot: Slot, stored: Usage) -> Usage {
        if slot.index() < self.usage_kind.reset_below.load(Ordering::Relaxed) {
            stored
        } else {
            Usage::for_new_keys()
        }
    }
}
