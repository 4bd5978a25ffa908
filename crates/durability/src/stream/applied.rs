//! How far the master's replication stream has been applied to the data set. Replication updates this state; snapshots
//! and loads read it.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use parking_lot::Mutex;
use replication::{Log, WriteMode};

use super::imports::SlotImports;

/// How far the master's replication stream has been applied to the data set.
#[derive(Debug, Default)]
pub struct AppliedStream {
    /// Held while the stream is applied or a full resync is loaded, and while a snapshot is taken.
    pub apply_lock: Mutex<()>,
    /// The database that the stream has selected. It changes only under the apply lock.
    selected_db: AtomicU16,
    /// The number of changes in the master's stream, since its last snapshot, that could not be applied. Only changes
    /// under the apply lock.
    missing_count: AtomicU64,
    /// The running slot imports of this node and of its master.
    pub imports: SlotImports,
}

impl AppliedStream {
    /// Returns the database that the stream has selected.
    pub fn selected_db(&self) -> u16 {
        self.selected_db.load(Ordering::Relaxed)
    }

    /// Records that the stream selects the database `db`.
    pub fn select_db(&self, db: u16) {
        self.selected_db.store(db, Ordering::Relaxed);
    }

    /// Returns the database that the master's stream has selected; `None` if the log contains no master's stream.
    /// Called while a snapshot is taken.
    pub fn selected_db_in_log(&self, log: &Log) -> Option<u16> {
        (log.authority().mode() == WriteMode::Replica).then(|| self.selected_db())
    }

    /// Returns how many of the master's changes could not be applied. If there are any, the data differs from the
    /// master's.
    pub fn missing_changes(&self) -> u64 {
        self.missing_count.load(Ordering::Relaxed)
    }

    /// Adds `count` changes that could not be applied.
    pub fn count_missing_changes(&self, count: u64) {
        self.missing_count.fetch_add(count, Ordering::Relaxed);
    }

    /// Resets the count, because the data was replaced. Returns the previous count.
    pub fn reset_missing_changes(&self) -> u64 {
        self.missing_count.swap(0, Ordering::Relaxed)
    }
}
