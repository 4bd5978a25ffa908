//! Socket traffic counters, one set per thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use process::adaptive_tick::AdaptiveTick;

/// Socket traffic of one thread. Only that thread writes the counters; others read them for INFO.
#[derive(Debug)]
pub struct Traffic {
    tick: Arc<AdaptiveTick>,
    /// Number of bytes read from this thread's sockets.
    pub bytes_read: AtomicU64,
    /// Number of bytes written to this thread's sockets.
    pub bytes_written: AtomicU64,
    /// Number of reads that returned data.
    pub reads: AtomicU64,
    /// Number of successful write calls, including partial writes.
    pub writes: AtomicU64,
}

impl Traffic {
    /// Creates counters at zero. Each counted read wakes `tick`.
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

    /// Counts one write call of `bytes` bytes.
    pub fn count_write(&self, bytes: usize) {
        increment(&self.writes, 1);
        increment(&self.bytes_written, bytes as u64);
    }
}

/// Increments a counter without an atomic read-modify-write, which is safe because only the calling thread writes it.
fn increment(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}
