//! Socket traffic counters, one set per thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use process::adaptive_tick::AdaptiveTick;

/// Traffic counters of one thread. Only that thread writes them.
#[derive(Debug)]
pub struct Traffic {
    tick: Arc<AdaptiveTick>,
    /// Bytes read from the sockets of this thread.
    pub bytes_read: AtomicU64,
    /// Bytes written to the sockets of this thread.
    pub bytes_written: AtomicU64,
    /// Number of reads that returned data.
    pub reads: AtomicU64,
    /// Number of write calls, including partial ones.
    pub writes: AtomicU64,
}

impl Traffic {
    /// Creates zeroed counters. Reads wake `tick`.
    pub(crate) fn new(tick: Arc<AdaptiveTick>) -> Self {
        Self {
            tick,
            bytes_read: AtomicU64::default(),
            bytes_written: AtomicU64::default(),
            reads: AtomicU64::default(),
            writes: AtomicU64::default(),
        }
    }

    /// Counts a read, and wakes the periodic tasks, since new input may mean work for them.
    pub fn count_read(&self, bytes: usize) {
        self.tick.notify_input();
        increment(&self.reads, 1);
        increment(&self.bytes_read, bytes as u64);
    }

    /// Counts a write of `bytes` bytes.
    pub fn count_write(&self, bytes: usize) {
        increment(&self.writes, 1);
        increment(&self.bytes_written, bytes as u64);
    }
}

/// Increments a counter without an atomic read-modify-write: only the calling thread writes it.
fn increment(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}
