//! Counters of what goes through sockets, a set for each thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use process::pulse::Pulse;

/// The traffic of one thread's sockets. Written by that thread only.
#[derive(Debug)]
pub(crate) struct Traffic {
    pulse: Arc<Pulse>,
    pub(crate) input: AtomicU64,
    pub(crate) output: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
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

    pub(crate) fn count_read(&self, bytes: usize) {
        self.pulse.stir();
        add(&self.reads, 1);
        add(&self.input, bytes as u64);
    }

    pub(crate) fn count_write(&self, bytes: usize) {
        add(&self.writes, 1);
        add(&self.output, bytes as u64);
    }
}

/// Adds to a counter that only the calling thread writes.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}
