//! An engine with a copy-on-access view of another engine's data, for script debugging ([`crate::DebuggedScript`]).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clock::Millis;
use keyspace::{KeyLookup, Keyspace, LockedSlots};
use parking_lot::Mutex;
use slot_routing::Slot;

use super::Engine;
use crate::effects::NoLog;

/// Maximum number of keys up to which the whole data set may be copied for a debugging session.
const MAX_COPIED_KEYS: usize = 100_000;

/// Copies keys from another engine when they are first accessed.
#[derive(Debug)]
pub(crate) struct CopyOnAccess {
    source: Arc<Engine>,
    copied_keys: Mutex<HashSet<Vec<u8>>>,
    is_complete: AtomicBool,
}

impl CopyOnAccess {
    /// Copies a key from all databases, unless it was copied before. The caller has locked its slot.
    pub(crate) fn copy_key(&self, keyspace: &Keyspace, slots: &mut LockedSlots<'_>, name: &[u8]) {
        if self.is_complete.load(Ordering::Relaxed) || !self.copied_keys.lock().insert(name.to_vec()) {
            return;
        }
        let key = self.source.keyspace.key(name);
        let mut found = Vec::new();
        let mut slot = self.source.keyspace.lock(key.slot());
        for db in 0..self.source.keyspace.database_count() {
            let table = slot.table(db);
            if let KeyLookup::Live(place) | KeyLookup::Expired(place) = table.find(&key, Millis(i64::MIN)) {
                found.push((db, table.copy(place), table.expiry(place)));
            }
        }
        drop(slot);
        let key = keyspace.key(name);
        for (db, value, expiry) in found {
            slots.slot_mut(key.slot()).table(db).attach(&key, value, expiry);
        }
    }

    /// Copies the whole data set; returns `false` if it is too large. The caller has locked all slots.
    pub(crate) fn copy_all(&self, keyspace: &Keyspace, slots: &mut LockedSlots<'_>) -> bool {
        let source = &self.source.keyspace;
        if self.is_complete.load(Ordering::Relaxed) {
            return true;
        }
        let (mut names, databases) = (Vec::new(), source.database_count());
        for number in Slot::all() {
            let mut slot = source.lock(number);
            for db in 0..databases {
                slot.table(db).scan(0, usize::MAX, &mut |item| names.push(item.key.to_vec()));
            }
            if names.len() > MAX_COPIED_KEYS {
                return false;
            }
        }
        names.iter().for_each(|name| self.copy_key(keyspace, slots, name));
        self.is_complete.store(true, Ordering::Relaxed);
        true
    }
}

impl Engine {
    /// Creates an engine with a copy-on-access view of this one, for a session at `users_version`.
    pub(crate) fn copy_on_access_view(self: &Arc<Self>, users_version: u64) -> Self {
        let keyspace = Keyspace::new(0, self.keyspace.database_count());
        let mut engine = Self::new(self.access.catalogue.clone(), keyspace, None, Box::new(NoLog));
        engine.scripting.hooks = self.scripting.hooks;
        engine.access.set_users_version(users_version);
        let (from, to) = (&self.settings, &engine.settings);
        to.value_limits.set_encoding_limits(&from.value_limits.encoding_limits());
        to.value_limits
            .proto_max_bulk_len
            .store(from.value_limits.proto_max_bulk_len.load(Ordering::Relaxed), Ordering::Relaxed);
        to.scripts
            .lua_deprecated_api
            .store(from.scripts.lua_deprecated_api.load(Ordering::Relaxed), Ordering::Relaxed);
        to.value_limits
            .hll_sparse_max_bytes
            .store(from.value_limits.hll_sparse_max_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        engine
            .wall_clock_offset_micros
            .store(self.wall_clock_offset_micros.load(Ordering::Relaxed), Ordering::Relaxed);
        let source = self.clone();
        engine.scripting.copy_on_access =
            Some(CopyOnAccess { source, copied_keys: Mutex::default(), is_complete: AtomicBool::new(false) });
        engine
    }
}
