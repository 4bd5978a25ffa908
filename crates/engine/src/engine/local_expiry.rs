//! Expiry of keys that clients wrote directly to a replica (`replica-read-only no`).
//!
//! A replica does not delete expired keys itself, but waits for the master's deletions. The master does not know of
//! keys written on the replica, so the replica tracks them. When a client's command sets an expiry on a replica, the
//! key is recorded with that time, and deleted then if it still has the same expiry. A key to which the master's stream
//! or a full resync gave another expiry is left to the master.
//!
//! The deletion is reported to this node's clients but not logged, like the write itself. A replica that becomes a
//! master drops these records, because from then on it deletes all expired keys in the usual way ([`super::expiry`]).
//!
//! At most [`MAX_RECORDED_KEYS`] keys are recorded. Further keys are hidden when they expire, and removed when they are
//! next written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clock::Millis;
use keyspace::KeyLookup;
use parking_lot::Mutex;

use super::{Engine, MemoryManagement, Worker};
use crate::notifications::EventClass;
use crate::settings::{LazyFreeReason, NodeFlags};
use crate::stats::add;

/// Maximum number of recorded keys: about 50 MB with names of 50 bytes.
const MAX_RECORDED_KEYS: usize = 1 << 18;

type DbKey = (u16, Arc<[u8]>);

/// The recorded keys, indexed by name and by time.
#[derive(Debug, Default)]
struct RecordedExpiries {
    by_name: BTreeMap<DbKey, Millis>,
    by_time: BTreeSet<(Millis, DbKey)>,
}

impl RecordedExpiries {
    fn set(&mut self, name: DbKey, time: Option<Millis>) {
        if let Some(before) = self.by_name.remove(&name) {
            self.by_time.remove(&(before, name.clone()));
        }
        if let Some(time) = time.filter(|_| self.by_name.len() < MAX_RECORDED_KEYS) {
            self.by_time.insert((time, name.clone()));
            self.by_name.insert(name, time);
        }
    }

    fn pop_due(&mut self, now: Millis) -> Option<(Millis, DbKey)> {
        if self.by_time.first()?.0 > now {
            return None;
        }
        let (time, name) = self.by_time.pop_first()?;
        self.by_name.remove(&name);
        Some((time, name))
    }
}

/// Keys to which clients of this replica gave an expiry.
#[derive(Debug, Default)]
pub(crate) struct LocalExpiries {
    /// Number of recorded keys, so that a single atomic load shows that there are none.
    count: AtomicUsize,
    /// The records; this mutex is locked after the slot lock, never before.
    expiries: Mutex<RecordedExpiries>,
}

impl LocalExpiries {
    fn update<R>(&self, change: impl FnOnce(&mut RecordedExpiries) -> R) -> R {
        let mut times = self.expiries.lock();
        let outcome = change(&mut times);
        self.count.store(times.by_name.len(), Ordering::Relaxed);
        outcome
    }

    fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl MemoryManagement {
    /// Records that a client of this replica set or removed a key's expiry.
    pub(crate) fn record_local_expiry(&self, db: u16, name: Vec<u8>, time: Option<Millis>) {
        self.local_expiry.update(|times| times.set((db, name.into()), time));
    }

    /// Returns the number of recorded keys.
    #[must_use]
    pub fn local_expiry_count(&self) -> usize {
        self.local_expiry.len()
    }
}

impl Engine {
    /// Deletes recorded keys that have expired, until `is_time_over` returns true; returns whether more are due.
    pub(crate) fn delete_locally_expired(
        &self,
        worker: &mut Worker,
        now: Millis,
        is_time_over: impl Fn(&Worker) -> bool,
    ) -> bool {
        if self.memory.local_expiry.len() == 0 {
            return false;
        }
        if !self.settings.is_replica() {
            self.memory.local_expiry.update(|times| *times = RecordedExpiries::default());
            return false;
        }
        while let Some((time, (db, name))) = self.memory.local_expiry.update(|times| times.pop_due(now)) {
            if self.expire_if_local(worker, db, &name, time).is_none() {
                self.memory.local_expiry.update(|times| times.set((db, name), Some(time)));
                return false;
            }
            if is_time_over(worker) {
                return true;
            }
        }
        false
    }

    /// Deletes a key if its expiry equals `time`. Returns `None` if its slot is locked or deletions are not allowed
    /// now.
    fn expire_if_local(&self, worker: &Worker, db: u16, name: &[u8], time: Millis) -> Option<()> {
        let key = self.keyspace.key(name);
        // Skip a locked slot: a script may hold the lock for long, and this thread must not block.
        let mut guard = self.keyspace.try_lock(key.slot())?;
        // Check again while the slot is locked: a thread that changes the role sets the flag and then locks each slot
        // once.
        if self.settings.node_flags().intersection(NodeFlags::NO_OWN_CHANGES) != NodeFlags::REPLICA {
            return None;
        }
        let table = guard.table(db);
        let (KeyLookup::Live(place) | KeyLookup::Expired(place)) = table.find(&key, Millis(i64::MIN)) else {
            return Some(());
        };
        if table.expiry(place) != Some(time) {
            return Some(());
        }
        let dropped = table.remove(place, &key);
        self.report_removed(db, key.slot(), name);
        self.notify(EventClass::EXPIRED, "expired", db, name);
        drop(guard);
        add(&worker.stats.expired_keys, 1);
        self.memory.lazy_free.discard(dropped, self.settings.lazy_free.is_enabled(LazyFreeReason::EXPIRE));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn db_key(name: &str) -> DbKey {
        (0, name.as_bytes().into())
    }

    #[test]
    fn recorded_keys_are_popped_once_in_expiry_order() {
        let mut times = RecordedExpiries::default();
        for (key, time) in [("a", 30), ("b", 20), ("a", 10), ("c", 40)] {
            times.set(db_key(key), Some(Millis(time)));
        }
        times.set(db_key("b"), None);
        assert_eq!(times.pop_due(Millis(9)), None);
        assert_eq!(times.pop_due(Millis(50)), Some((Millis(10), db_key("a"))));
        assert_eq!(times.pop_due(Millis(50)), Some((Millis(40), db_key("c"))));
        assert_eq!(times.pop_due(Millis(50)), None);
        assert!(times.by_name.is_empty());
    }

    #[test]
    fn number_of_recorded_keys_is_limited() {
        let mut times = RecordedExpiries::default();
        for number in 0..=MAX_RECORDED_KEYS {
            times.set(db_key(&number.to_string()), Some(Millis(1)));
        }
        assert_eq!((times.by_name.len(), times.by_time.len()), (MAX_RECORDED_KEYS, MAX_RECORDED_KEYS));
        times.set(db_key("0"), Some(Millis(2)));
        assert_eq!(times.by_name.get(&db_key("0")), Some(&Millis(2)), "one that is known keeps its place");
    }
}
