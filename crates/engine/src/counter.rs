//! A counter that one thread writes and others may read: it needs no locked instruction.

use std::sync::atomic::{AtomicU64, Ordering};

/// Adds to a counter that only the calling thread writes.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}
