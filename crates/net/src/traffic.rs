//! Counters of what goes through sockets, a set for each thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use process::pulse::Pulse;

/// The traffic of one thread's sockets. Written by that thread only.
#[derive(Debug)]
pub struct Traffic {
    pulse: Arc<Pulse>,
    /// Bytes that were read.
    pub input: AtomicU64,
    /// Bytes that were written.
    pub output: AtomicU64,
    /// Reads that brought something.
    pub reads: AtomicU64,
    /// Writes, whatever they took.
    pub writes: AtomicU64,
}

impl Traffic {
    /// Counters of a server with that pulse.
    pub(crate) fn new(pulse: Arc<Pulse>) -> Self {
        Self {
            pulse,
            input: AtomicU64::default(),
            output: AtomicU64::default(),
            reads: AtomicU64::default(),
            writes: AtomicU64::default(),
        }
    }

    /// So many bytes were read: something has come that there may be work after.
    pub fn count_read(&self, bytes: usize) {
        self.pulse.stir();
        add(&self.reads, 1);
        add(&self.input, bytes as u64);
    }

    /// So many bytes were written.
    pub fn count_write(&self, bytes: usize) {
        add(&self.writes, 1);
        add(&self.output, bytes as u64);
    }
}

/// Adds to a counter that only the calling thread writes.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}
