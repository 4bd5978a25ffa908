//! How long commands waited for slots that others held.

use std::sync::atomic::{AtomicU64, Ordering};

/// Waits for slots, of all threads. One that is shorter than the spinning before it is none.
#[derive(Debug, Default)]
pub struct SlotWaits {
    count: AtomicU64,
    longest: AtomicU64,
}

impl SlotWaits {
    pub(crate) fn note(&self, nanos: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.longest.fetch_max(nanos, Ordering::Relaxed);
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The longest of them, in microseconds.
    #[must_use]
    pub fn longest_micros(&self) -> u64 {
        self.longest.load(Ordering::Relaxed) / 1000
    }

    /// Forgets all.
    pub fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.longest.store(0, Ordering::Relaxed);
    }
}
