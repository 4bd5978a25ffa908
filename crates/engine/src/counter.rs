//! A single-writer counter that other threads may read, without atomic read-modify-write instructions.

use std::sync::atomic::{AtomicU64, Ordering};

/// Adds to a counter that only the calling thread writes.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}
