//! Counters, one set for each thread that runs commands, summed when somebody asks.
//!
//! A counter is written by its own thread only, so it needs no locked instruction.

use std::sync::atomic::{AtomicU64, Ordering};

/// Adds to a counter that only the calling thread writes.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}

/// What `INFO commandstats` says of one command.
#[derive(Debug, Default)]
pub struct CommandStats {
    pub calls: AtomicU64,
    /// Time spent in it, in nanoseconds.
    pub nanos: AtomicU64,
    /// Refused before it ran.
    pub rejected: AtomicU64,
    /// Failed while it ran.
    pub failed: AtomicU64,
}

/// One thread's counters.
#[derive(Debug)]
pub struct WorkerStats {
    /// By [`crate::Engine::command_index`].
    pub commands: Box<[CommandStats]>,
    pub keyspace_hits: AtomicU64,
    pub keyspace_misses: AtomicU64,
    pub expired_keys: AtomicU64,
    pub error_replies: AtomicU64,
    /// Changes to the data, as `rdb_changes_since_last_save` counts them.
    pub changes: AtomicU64,
}

impl WorkerStats {
    /// How many commands have run.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.commands.iter().map(|command| command.calls.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn new(commands: usize) -> Self {
        Self {
            commands: (0..commands).map(|_| CommandStats::default()).collect(),
            keyspace_hits: AtomicU64::new(0),
            keyspace_misses: AtomicU64::new(0),
            expired_keys: AtomicU64::new(0),
            error_replies: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        }
    }
}
