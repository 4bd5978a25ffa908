//! Statistics about waits for slot locks.

use std::sync::atomic::{AtomicU64, Ordering};

/// Statistics about waits for slot locks, of all threads. Waits that end during the spin phase are not counted.
#[derive(Debug, Default)]
pub struct SlotWaits {
    count: AtomicU64,
    longest_nanos: AtomicU64,
}

impl SlotWaits {
    pub(crate) fn record_wait(&self, nanos: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
    }

    /// Returns the number of waits.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the longest wait in microseconds.
    #[must_use]
    pub fn longest_micros(&self) -> u64 {
        self.longest_nanos.load(Ordering::Relaxed) / 1000
    }

    /// Resets the statistics (CONFIG RESETSTAT).
    pub fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.longest_nanos.store(0, Ordering::Relaxed);
    }
}
