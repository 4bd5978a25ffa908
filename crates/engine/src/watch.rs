//! WATCH: marks transactions whose watched keys change.
//!
//! Tracking is exact per key and database. Both WATCH and changes hold the key's slot lock, so a change either precedes
//! the WATCH or marks the session. The table is sharded by slot; a shard without watched keys costs a write one load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use keyspace::Key;
use parking_lot::Mutex;
use slot_routing::Slot;

const SHARD_COUNT: usize = 64;

/// A flag shared with the session, set when one of its watched keys has changed.
pub(crate) type DirtyFlag = Arc<AtomicBool>;
/// The watchers of a database's keys.
type WatchersByKey = BTreeMap<Vec<u8>, Vec<Watcher>>;

/// A session that watches a key.
#[derive(Debug)]
pub(crate) struct Watcher {
    pub(crate) session_id: u64,
    pub(crate) dirty: DirtyFlag,
    /// Whether the key was already expired when it was watched, or is absent and has expired since. Removing the key is
    /// then no change for this watcher.
    pub(crate) was_expired: bool,
}

/// Whether a key exists in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyPresence {
    Missing,
    Live,
    /// The key has expired but is not removed yet.
    Expired,
}

impl Watcher {
    /// Marks the session if emptying or replacing the key's database changes the key.
    fn on_database_replaced(&mut self, before: KeyPresence, after: KeyPresence) {
        let changed = match (before, after) {
            (KeyPresence::Missing, KeyPresence::Missing) => false,
            (_, KeyPresence::Missing) if self.was_expired => {
                self.was_expired = false;
                false
            }
            (_, KeyPresence::Expired) if self.was_expired => false,
            (KeyPresence::Missing, KeyPresence::Expired) => {
                self.was_expired = true;
                false
            }
            _ => true,
        };
        if changed {
            self.dirty.store(true, Ordering::Release);
        }
    }
}

#[derive(Debug, Default)]
struct WatchShard {
    /// Number of watched keys in this shard; a key counts once per watcher.
    count: AtomicUsize,
    by_db: Mutex<BTreeMap<u16, WatchersByKey>>,
}

#[derive(Debug)]
pub(crate) struct WatchTable {
    shards: [WatchShard; SHARD_COUNT],
    /// Number of sessions that watch keys.
    client_count: AtomicUsize,
}

impl Default for WatchTable {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| WatchShard::default()), client_count: AtomicUsize::new(0) }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WatchedKey {
    pub(crate) db: u16,
    pub(crate) key: Vec<u8>,
}

impl WatchedKey {
    /// Returns the approximate memory that a watch uses in the session and in the table.
    pub(crate) fn memory_bytes(&self) -> usize {
        2 * (self.key.len() + size_of::<Self>()) + size_of::<Watcher>()
    }
}

impl WatchTable {
    fn shard(&self, slot: Slot) -> &WatchShard {
        &self.shards[slot.index() % SHARD_COUNT]
    }

    /// Counts a session that starts to watch keys.
    pub(crate) fn count_watching_client(&self) {
        self.client_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a session that stops watching keys.
    pub(crate) fn uncount_watching_client(&self) {
        self.client_count.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn client_count(&self) -> usize {
        self.client_count.load(Ordering::Relaxed)
    }

    pub(crate) fn key_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.count.load(Ordering::Relaxed)).sum()
    }

    /// Adds a watcher. The caller has locked the key's slot.
    pub(crate) fn watch(&self, db: u16, key: &Key<'_>, watcher: Watcher) {
        let shard = self.shard(key.slot());
        let mut by_db = shard.by_db.lock();
        let watchers = by_db.entry(db).or_default().entry(key.bytes().to_vec()).or_default();
        watchers.push(watcher);
        shard.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unwatch(&self, watched: &WatchedKey, session_id: u64) {
        let shard = self.shard(Slot::of_key(&watched.key));
        let mut by_db = shard.by_db.lock();
        let Some(keys) = by_db.get_mut(&watched.db) else { return };
        let Some(watchers) = keys.get_mut(watched.key.as_slice()) else { return };
        let before = watchers.len();
        watchers.retain(|watcher| watcher.session_id != session_id);
        shard.count.fetch_sub(before - watchers.len(), Ordering::Relaxed);
        if watchers.is_empty() {
            keys.remove(watched.key.as_slice());
        }
    }

    /// Marks the watchers of a changed key. The caller has locked its slot.
    #[inline]
    pub(crate) fn mark_changed(&self, db: u16, slot: Slot, key: &[u8]) {
        let shard = self.shard(slot);
        if shard.count.load(Ordering::Relaxed) > 0 {
            let by_db = shard.by_db.lock();
            for watcher in by_db.get(&db).and_then(|keys| keys.get(key)).into_iter().flatten() {
                watcher.dirty.store(true, Ordering::Release);
            }
        }
    }

    /// Reports a key that was removed outside of a command, by expiry or otherwise. The caller has locked its slot.
    #[inline]
    pub(crate) fn report_removed(&self, db: u16, slot: Slot, key: &[u8]) {
        let shard = self.shard(slot);
        if shard.count.load(Ordering::Relaxed) > 0 {
            let mut by_db = shard.by_db.lock();
            let watchers = by_db.get_mut(&db).and_then(|keys| keys.get_mut(key));
            watchers
                .into_iter()
                .flatten()
                .for_each(|watcher| watcher.on_database_replaced(KeyPresence::Live, KeyPresence::Missing));
        }
    }

    /// Returns whether the key was already expired when this session watched it.
    pub(crate) fn was_expired(&self, watched: &WatchedKey, session_id: u64) -> bool {
        let by_db = self.shard(Slot::of_key(&watched.key)).by_db.lock();
        let watchers = by_db.get(&watched.db).and_then(|keys| keys.get(watched.key.as_slice()));
        watchers.into_iter().flatten().any(|watcher| watcher.session_id == session_id && watcher.was_expired)
    }

    /// Marks watchers when a database's content is replaced; `presence` returns whether a key existed before and exists
    /// now. The caller has locked all slots.
    pub(crate) fn mark_replaced(
        &self,
        db: u16,
        mut presence: impl FnMut(&[u8]) -> (KeyPresence, KeyPresence),
    ) {
        for shard in self.shards.iter().filter(|shard| shard.count.load(Ordering::Relaxed) > 0) {
            for (key, watchers) in shard.by_db.lock().get_mut(&db).into_iter().flatten() {
                let (before, after) = presence(key);
                watchers.iter_mut().for_each(|watcher| watcher.on_database_replaced(before, after));
            }
        }
    }
}
