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
/// The watchers of a database's keys: number of the session, and its mark.
type Keys = BTreeMap<Vec<u8>, Vec<(u64, Dirty)>>;

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
        2 * (self.key.len() + size_of::<Self>()) + size_of::<(u64, Dirty)>()
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
    pub(crate) fn watch(&self, db: u16, key: &Key<'_>, session: u64, dirty: &Dirty) {
        let shard = self.shard(key.slot());
        let mut by_db = shard.by_db.lock();
        let watchers = by_db.entry(db).or_default().entry(key.bytes().to_vec()).or_default();
        watchers.push((session, dirty.clone()));
        shard.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unwatch(&self, watched: &Watched, session: u64) {
        let shard = self.shard(Slot::of_key(&watched.key));
        let mut by_db = shard.by_db.lock();
        let Some(keys) = by_db.get_mut(&watched.db) else { return };
        let Some(watchers) = keys.get_mut(watched.key.as_slice()) else { return };
        let before = watchers.len();
        watchers.retain(|(id, _)| *id != session);
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
            mark(shard.by_db.lock().get(&db).and_then(|keys| keys.get(key)));
        }
    }

    /// Marks the watchers of those keys of a database for which `changed` says so. The caller holds all
    /// slots.
    pub(crate) fn touch_where(&self, db: u16, mut changed: impl FnMut(&[u8]) -> bool) {
        for shard in self.shards.iter().filter(|shard| shard.count.load(Ordering::Relaxed) > 0) {
            for (key, watchers) in shard.by_db.lock().get(&db).into_iter().flatten() {
                if changed(key) {
                    mark(Some(watchers));
                }
            }
        }
    }
}

fn mark(watchers: Option<&Vec<(u64, Dirty)>>) {
    for (_, dirty) in watchers.into_iter().flatten() {
        dirty.store(true, Ordering::Release);
    }
}
