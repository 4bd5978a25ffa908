//! The keyspace operations of MIGRATE: capturing a key's value, and releasing the key if it is unchanged.
//!
//! No slot is locked while the target is contacted, so a key may change between the two operations. A migration
//! captures the key, restores it on the target, and releases it here; if it has changed, the migration starts again
//! with the new value. Whether this node may move the keys is checked at the start and again at each release, since a
//! failover may have happened in between.
//!
//! Keys left over in a slot with a new owner are deleted in small batches.
//!
//! [`MigrateArgs`] is the parsed command, and [`Migration`] the state machine that decides what to capture, send and
//! release.

mod machine;
mod order;

use clock::Millis;
use keyspace::{KeyLookup, LockedSlots};
use persistence::Dialect;
use slot_routing::{ClientTransport, Ownership, ReplOffset, RouteRequest, Slot};

use crate::engine::{Engine, Worker};
use crate::error::CommandError;
use crate::settings::NodeFlags;
use crate::stats::add;

pub use machine::{MigrateError, MigrateStep, MigrateStepResult, Migration};
pub use order::{Destination, MigrateArgs, migrate_key_positions};

/// Number of keys deleted before the slot lock is released: some tens of microseconds of work.
const KEYS_PER_LOCK: usize = 64;

/// A key's value and expiry at one point in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedKey {
    /// The value, serialized in the format of DUMP.
    pub payload: Vec<u8>,
    /// The server dialect in which the payload is encoded.
    pub dialect: Dialect,
    /// Time at which the key expires; `None` if it has no expiry.
    pub expiry: Option<Millis>,
}

/// The result of an attempt to release a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseResult {
    /// The key was deleted. Contains the log offset after the deletion, if the log has a reader.
    Deleted(Option<ReplOffset>),
    /// The key's value differs from the captured one, so the key was not deleted.
    Changed,
    /// Writes are paused, so the release must be tried again later.
    Paused,
}

/// What remains in a slot that this node gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemainingKeys {
    /// No key is left that this node may delete.
    None,
    /// There may be more keys to delete.
    MaybeMore,
    /// There are keys that cannot be deleted until a pause ends.
    Paused,
}

impl Engine {
    /// Checks whether a client may move `keys` away: they must be in one slot that this node serves, or that is
    /// migrating or importing.
    ///
    /// # Errors
    /// The keys are in different slots, or another node serves them.
    pub fn check_migratable(&self, keys: &[Vec<u8>]) -> Result<(), CommandError> {
        let mut slots = keys.iter().map(|key| Slot::of_key(key));
        let Some(slot) = slots.next().filter(|_| self.topology.is_some()) else {
            return self.check_releasable(&mut self.keyspace.lock_many(&[]), None);
        };
        if slots.any(|other| other != slot) {
            return Err(CommandError::CrossSlot);
        }
        self.check_releasable(&mut self.keyspace.lock_many(&[slot]), Some(slot))
    }

    fn check_releasable(&self, locked: &mut LockedSlots<'_>, slot: Option<Slot>) -> Result<(), CommandError> {
        let (Some(topology), Some(slot)) = (&self.topology, slot) else {
            let replica = self.settings.node_flags().contains(NodeFlags::READ_ONLY_REPLICA);
            return if replica { Err(CommandError::ReadOnlyReplica) } else { Ok(()) };
        };
        match locked.slot(slot).ownership() {
            // This node was demoted, but the slots are not updated yet.
            Ownership::Local | Ownership::Migrating | Ownership::Importing if self.settings.is_replica() => {
                Err(CommandError::ReadOnlyReplica)
            }
            Ownership::Local | Ownership::Migrating | Ownership::Importing => Ok(()),
            other => {
                let access = RouteRequest { key_count: 1, ..RouteRequest::default() };
                self.check_route(&topology.load(), slot, other, access, ClientTransport::default())
            }
        }
    }

    /// Captures a key; returns `None` if it does not exist.
    #[must_use]
    pub fn capture_key(&self, db: u16, key: &[u8], now: Millis, dialect: Dialect) -> Option<CapturedKey> {
        let slot = self.keyspace.key(key).slot();
        self.capture_locked(&mut self.keyspace.lock_many(&[slot]), db, key, now, dialect)
    }

    /// Deletes the key and logs the deletion, if the key is unchanged since its capture and this node may delete it.
    ///
    /// # Errors
    /// The redirection error if another node serves the slot now.
    pub fn release_key(
        &self,
        worker: &Worker,
        db: u16,
        key: &[u8],
        now: Millis,
        captured: &CapturedKey,
    ) -> Result<ReleaseResult, CommandError> {
        let handle = self.keyspace.key(key);
        let mut locked = self.keyspace.lock_many(&[handle.slot()]);
        let gate = self.settings.node_flags();
        if gate.intersects(NodeFlags::PAUSED) {
            return Ok(ReleaseResult::Paused);
        }
        if gate.contains(NodeFlags::LOADING) {
            return Err(CommandError::Loading);
        }
        self.check_releasable(&mut locked, self.topology.as_ref().map(|_| handle.slot()))?;
        if self.capture_locked(&mut locked, db, key, now, captured.dialect).as_ref() != Some(captured) {
            return Ok(ReleaseResult::Changed);
        }
        let table = locked.slot_mut(handle.slot()).table(db);
        let KeyLookup::Live(place) = table.find(&handle, now) else { return Ok(ReleaseResult::Changed) };
        let dropped = table.remove(place, &handle);
        add(&worker.stats.change_count, 1);
        let end = self.log_removed_key(db, handle.slot(), key, b"DEL");
        drop(locked);
        self.memory.lazy_free.discard(dropped, true);
        Ok(ReleaseResult::Deleted(end))
    }

    /// Pauses clients' writes to `slot` until [`Engine::resume_slot_writes`]. Returns `false` if this is impossible.
    pub fn pause_slot_writes(&self, slot: Slot) -> bool {
        // Set the flag first, so that every thread that locks the slot later checks for the pause.
        self.scheduling.pauses.count_paused_slot(&self.settings);
        let held = self.keyspace.lock(slot).pause_writes();
        if !held {
            self.scheduling.pauses.uncount_paused_slot(&self.settings);
        }
        held
    }

    /// Ends the pause of [`Engine::pause_slot_writes`].
    pub fn resume_slot_writes(&self, slot: Slot) {
        self.keyspace.lock(slot).resume_writes();
        self.scheduling.pauses.uncount_paused_slot(&self.settings);
    }

    /// Hides or shows the keys of `slot` ([`keyspace::SlotData::set_hidden`]).
    pub fn set_slot_hidden(&self, slot: Slot, is_hidden: bool) {
        self.keyspace.lock(slot).set_hidden(is_hidden);
    }

    /// Deletes some keys of a slot that another node serves now, and logs the deletions. Keys of slots that this node
    /// serves, imports or replicates are not deleted, nor are those of hidden slots, which are being imported.
    pub fn delete_unowned_keys(&self, slot: Slot) -> RemainingKeys {
        self.delete_key_batch(slot, false)
    }

    /// Deletes some keys of a hidden slot whose import has failed.
    pub fn delete_imported_keys(&self, slot: Slot) -> RemainingKeys {
        self.delete_key_batch(slot, true)
    }

    fn delete_key_batch(&self, slot: Slot, is_hidden: bool) -> RemainingKeys {
        let mut dropped = Vec::new();
        let mut guard = self.keyspace.lock(slot);
        let gate = self.settings.node_flags();
        let elsewhere = matches!(guard.ownership(), Ownership::Remote | Ownership::Unassigned);
        if gate.contains(NodeFlags::REPLICA) || !elsewhere || guard.is_hidden() != is_hidden {
            return RemainingKeys::None;
        }
        if gate.intersects(NodeFlags::PAUSED) {
            return RemainingKeys::Paused;
        }
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for db in guard.databases() {
            guard.table(db).scan(0, KEYS_PER_LOCK, &mut |item| keys.push(item.key.to_vec()));
            for key in &keys {
                let handle = self.keyspace.key(key);
                // Delete the key whether it is expired or not.
                if let KeyLookup::Live(place) = guard.table(db).find(&handle, Millis(i64::MIN)) {
                    dropped.push(guard.table(db).remove(place, &handle));
                    self.log_removed_key(db, slot, key, b"DEL");
                }
            }
            if !keys.is_empty() {
                break;
            }
        }
        drop(guard);
        dropped.into_iter().for_each(|value| self.memory.lazy_free.discard(value, true));
        if keys.is_empty() { RemainingKeys::None } else { RemainingKeys::MaybeMore }
    }

    /// Deletes all keys of a slot without logging, because the master has logged the same deletion.
    pub fn clear_slot_unlogged(&self, slot: Slot) {
        let mut guard = self.keyspace.lock(slot);
        let tables: Vec<_> =
            guard.databases().into_iter().filter_map(|db| guard.take_database(db).table).collect();
        drop(guard);
        drop(self.memory.lazy_free.discard_tables(tables));
    }

    /// Deletes all data without logging, for a node that leaves its cluster.
    pub fn clear_all_unlogged(&self) {
        let mut tables = Vec::new();
        for slot in Slot::all() {
            let mut guard = self.keyspace.lock(slot);
            for db in guard.databases() {
                tables.extend(guard.take_database(db).table);
            }
        }
        drop(self.memory.lazy_free.discard_tables(tables));
        self.invalidate_all_watches();
    }

    fn capture_locked(
        &self,
        locked: &mut LockedSlots<'_>,
        db: u16,
        key: &[u8],
        now: Millis,
        dialect: Dialect,
    ) -> Option<CapturedKey> {
        let handle = self.keyspace.key(key);
        let table = locked.slot_mut(handle.slot()).table(db);
        match table.find(&handle, now) {
            KeyLookup::Live(place) => {
                let payload = persistence::dump(&table.value(place), dialect, true);
                Some(CapturedKey { payload, dialect, expiry: table.expiry(place) })
            }
            _ => None,
        }
    }
}
