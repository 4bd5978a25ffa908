//! How a master's stream stands in the data. Replication changes it; a cut or a load of the data goes by it.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use parking_lot::Mutex;
use replication::{Log, Mode};

use super::imports::Imports;

/// The place in a master's stream up to which it is applied.
#[derive(Debug, Default)]
pub(crate) struct AppliedStream {
    /// Held while the master's stream is applied or its snapshot loaded, and while a cut is made.
    pub(crate) turn: Mutex<()>,
    /// The database that the stream has selected. Changes with the turn.
    db: AtomicU16,
    /// How much of what the master did since its last snapshot could not be done here. Changes with the turn.
    missing: AtomicU64,
    /// The slots that are being imported, here or at the master.
    pub(crate) imports: Imports,
}

impl AppliedStream {
    /// The database that the stream has selected.
    pub(crate) fn db(&self) -> u16 {
        self.db.load(Ordering::Relaxed)
    }

    pub(crate) fn select(&self, db: u16) {
        self.db.store(db, Ordering::Relaxed);
    }

    /// The database that the stream in this log has selected, if it is a master's. To be asked at a cut.
    pub(crate) fn db_in(&self, log: &Log) -> Option<u16> {
        (log.authority().mode() == Mode::Replica).then(|| self.db())
    }

    /// How many changes of the master are missing.
    pub(crate) fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    pub(crate) fn count_missing(&self, count: u64) {
        self.missing.fetch_add(count, Ordering::Relaxed);
    }

    /// The data is what it is from now on. Says how many changes were missing.
    pub(crate) fn forget_missing(&self) -> u64 {
        self.missing.swap(0, Ordering::Relaxed)
    }
}
