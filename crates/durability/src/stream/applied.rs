//! How a master's stream stands in the data. Replication changes it; a cut or a load of the data goes by it.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use parking_lot::Mutex;
use replication::{Log, Mode};

use super::imports::Imports;

/// The place in a master's stream up to which it is applied.
#[derive(Debug, Default)]
pub struct AppliedStream {
    /// Held while the master's stream is applied or its snapshot loaded, and while a cut is made.
    pub turn: Mutex<()>,
    /// The database that the stream has selected. Changes with the turn.
    db: AtomicU16,
    /// How much of what the master did since its last snapshot could not be done here. Changes with the turn.
    missing: AtomicU64,
    /// The slots that are being imported, here or at the master.
    pub imports: Imports,
}

impl AppliedStream {
    /// The database that the stream has selected.
    pub fn db(&self) -> u16 {
        self.db.load(Ordering::Relaxed)
    }

    /// The stream selects this database.
    pub fn select(&self, db: u16) {
        self.db.store(db, Ordering::Relaxed);
    }

    /// The database that the stream in this log has selected, if it is a master's. To be asked at a cut.
    pub fn db_in(&self, log: &Log) -> Option<u16> {
        (log.authority().mode() == Mode::Replica).then(|| self.db())
    }

    /// How many changes of the master are missing.
    pub fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    /// So many changes of the master could not be done here.
    pub fn count_missing(&self, count: u64) {
        self.missing.fetch_add(count, Ordering::Relaxed);
    }

    /// The data is what it is from now on. Says how many changes were missing.
    pub fn forget_missing(&self) -> u64 {
        self.missing.swap(0, Ordering::Relaxed)
    }
}
