//! WATCH: the sessions that want to know that a key changes.
//!
//! Exact per key: a change marks those sessions, and only those, that watch this key in this database.
//! Both sides hold the key's slot, so a change either comes before the WATCH or marks it. Spread over
//! shards by slot; a shard without watched keys costs a write one load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use keyspace::Key;
use parking_lot::Mutex;
use slot_routing::Slot;

const SHARDS: usize = 64;

/// Set when a watched key has changed.
pub(crate) type Dirty = Arc<AtomicBool>;
/// The watchers of a database's keys.
type Keys = BTreeMap<Vec<u8>, Vec<Watcher>>;

/// A session that watches a key.
#[derive(Debug)]
pub(crate) struct Watcher {
    /// The number of the session.
    pub(crate) session: u64,
    pub(crate) dirty: Dirty,
    /// The key was past its time already when it was watched, or has become so without having been there: that it is
    /// removed is no change.
    pub(crate) was_expired: bool,
}

/// Whether a key is in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    Missing,
    Live,
    /// Past its time, and not removed yet.
    Expired,
}

impl Watcher {
    /// The key's database is emptied, or its content replaced by another's: marks the session if that changes the key.
    fn replace(&mut self, before: Presence, after: Presence) {
        let changed = match (before, after) {
            (Presence::Missing, Presence::Missing) => false,
            (_, Presence::Missing) if self.was_expired => {
                self.was_expired = false;
                false
            }
            (_, Presence::Expired) if self.was_expired => false,
            (Presence::Missing, Presence::Expired) => {
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
struct Shard {
    /// Watched keys, each as often as it is watched.
    count: AtomicUsize,
    by_db: Mutex<BTreeMap<u16, Keys>>,
}

#[derive(Debug)]
pub(crate) struct Watches {
    shards: [Shard; SHARDS],
    /// Sessions that watch anything.
    clients: AtomicUsize,
}

impl Default for Watches {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Shard::default()), clients: AtomicUsize::new(0) }
    }
}

/// A key that a session watches.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Watched {
    pub(crate) db: u16,
    pub(crate) key: Vec<u8>,
}

impl Watched {
    /// Roughly what is kept of it: in the session and beside the keys, each with its place there.
    pub(crate) fn bytes(&self) -> usize {
        2 * (self.key.len() + size_of::<Self>()) + size_of::<Watcher>()
    }
}

impl Watches {
    fn shard(&self, slot: Slot) -> &Shard {
        &self.shards[slot.index() % SHARDS]
    }

    /// A session that watched nothing begins to.
    pub(crate) fn started(&self) {
        self.clients.fetch_add(1, Ordering::Relaxed);
    }

    /// A session stops watching.
    pub(crate) fn stopped(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    pub(crate) fn keys(&self) -> usize {
        self.shards.iter().map(|shard| shard.count.load(Ordering::Relaxed)).sum()
    }

    /// The caller holds the key's slot.
    pub(crate) fn watch(&self, db: u16, key: &Key<'_>, watcher: Watcher) {
        let shard = self.shard(key.slot());
        let mut by_db = shard.by_db.lock();
        let watchers = by_db.entry(db).or_default().entry(key.bytes().to_vec()).or_default();
        watchers.push(watcher);
        shard.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unwatch(&self, watched: &Watched, session: u64) {
        let shard = self.shard(Slot::of_key(&watched.key));
        let mut by_db = shard.by_db.lock();
        let Some(keys) = by_db.get_mut(&watched.db) else { return };
        let Some(watchers) = keys.get_mut(watched.key.as_slice()) else { return };
        let before = watchers.len();
        watchers.retain(|watcher| watcher.session != session);
        shard.count.fetch_sub(before - watchers.len(), Ordering::Relaxed);
        if watchers.is_empty() {
            keys.remove(watched.key.as_slice());
        }
    }

    /// A key has changed. The caller holds its slot.
    #[inline]
    pub(crate) fn touch(&self, db: u16, slot: Slot, key: &[u8]) {
        let shard = self.shard(slot);
        if shard.count.load(Ordering::Relaxed) > 0 {
            let by_db = shard.by_db.lock();
            for watcher in by_db.get(&db).and_then(|keys| keys.get(key)).into_iter().flatten() {
                watcher.dirty.store(true, Ordering::Release);
            }
        }
    }

    /// A key was removed without a command, since its time has come or for another reason. The caller holds its slot.
    #[inline]
    pub(crate) fn lost(&self, db: u16, slot: Slot, key: &[u8]) {
        let shard = self.shard(slot);
        if shard.count.load(Ordering::Relaxed) > 0 {
            let mut by_db = shard.by_db.lock();
            let watchers = by_db.get_mut(&db).and_then(|keys| keys.get_mut(key));
            watchers
                .into_iter()
                .flatten()
                .for_each(|watcher| watcher.replace(Presence::Live, Presence::Missing));
        }
    }

    /// Whether the key was past its time already when this session began to watch it.
    pub(crate) fn was_expired(&self, watched: &Watched, session: u64) -> bool {
        let by_db = self.shard(Slot::of_key(&watched.key)).by_db.lock();
        let watchers = by_db.get(&watched.db).and_then(|keys| keys.get(watched.key.as_slice()));
        watchers.into_iter().flatten().any(|watcher| watcher.session == session && watcher.was_expired)
    }

    /// The content of a database is replaced: `presence` says of a key whether it was there and whether it is now. The
    /// caller holds all slots.
    pub(crate) fn replaced(&self, db: u16, mut presence: impl FnMut(&[u8]) -> (Presence, Presence)) {
        for shard in self.shards.iter().filter(|shard| shard.count.load(Ordering::Relaxed) > 0) {
            for (key, watchers) in shard.by_db.lock().get_mut(&db).into_iter().flatten() {
                let (before, after) = presence(key);
                watchers.iter_mut().for_each(|watcher| watcher.replace(before, after));
            }
        }
    }
}
