//! State of a master's stream as applied to the data. Replication updates it; snapshots and loads read it.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use parking_lot::Mutex;
use replication::{Log, WriteMode};

use super::imports::SlotImports;

/// Position up to which a master's stream has been applied.
#[derive(Debug, Default)]
pub struct AppliedStream {
    /// Held while the stream is applied or a full resync is loaded, and while a snapshot is taken.
    pub apply_lock: Mutex<()>,
    /// The database selected by the stream. Only changes under the lock.
    selected_db: AtomicU16,
    /// Number of the master's changes since its last snapshot that could not be applied. Only changes under the lock.
    missing_count: AtomicU64,
    /// The slots being imported, here or by the master.
    pub imports: SlotImports,
}

impl AppliedStream {
    /// The database selected by the stream.
    pub fn selected_db(&self) -> u16 {
        self.selected_db.load(Ordering::Relaxed)
    }

    /// Records a SELECT in the stream.
    pub fn select_db(&self, db: u16) {
        self.selected_db.store(db, Ordering::Relaxed);
    }

    /// The database selected by the master's stream, if the log has one. Called while a snapshot is taken.
    pub fn db_in(&self, log: &Log) -> Option<u16> {
        (log.authority().mode() == WriteMode::Replica).then(|| self.selected_db())
    }

    /// Number of the master's changes that could not be applied.
    pub fn missing_changes(&self) -> u64 {
        self.missing_count.load(Ordering::Relaxed)
    }

    /// Counts changes that could not be applied.
    pub fn count_missing(&self, count: u64) {
        self.missing_count.fetch_add(count, Ordering::Relaxed);
    }

    /// Resets the count, because the data was replaced. Returns the previous count.
    pub fn reset_missing(&self) -> u64 {
        self.missing_count.swap(0, Ordering::Relaxed)
    }
}
