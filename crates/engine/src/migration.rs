//! The part of MIGRATE in the keyspace: capturing a key as it is now, and releasing it if it is still so.
//!
//! No slot is held while another server is spoken to, so a key may change between the two. A migration
//! captures the key, has it restored elsewhere, and releases it; if the key has changed by then, it begins
//! again with the present value. Whether the keys are this node's to move is asked before, and again before
//! each is released: a failover may have come between.
//!
//! The keys that are left in a slot that has another owner are deleted some at a time.
//!
//! [`Order`] is the command's words, and [`Migration`] the machine that says what is to be captured, sent and released.

mod machine;
mod order;

use clock::Millis;
use keyspace::{KeyLookup, LockedSlots};
use persistence::Dialect;
use slot_routing::{ClientTransport, Ownership, ReplOffset, RouteRequest, Slot};

use crate::engine::{Engine, Worker};
use crate::error::CommandError;
use crate::settings::Gate;
use crate::stats::add;

pub use machine::{Failure, Input, Migration, Step};
pub use order::{Destination, Order, keys_of_migrate};

/// About how many keys are deleted while their slot is held: some tens of microseconds.
const KEYS_PER_LOCK: usize = 64;

/// A key's value and time, taken at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedKey {
    /// As DUMP gives it, in this dialect.
    pub payload: Vec<u8>,
    /// The form of the payload.
    pub dialect: Dialect,
    /// When the key expires, if it does.
    pub expiry: Option<Millis>,
}

/// The outcome of releasing a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// It is gone; the offset at which that ends in the log, if the log has a reader.
    Gone(Option<ReplOffset>),
    /// It is not what was captured.
    Changed,
    /// Writes wait, so the release must wait too.
    Paused,
}

/// The keys that are left in a slot that this node gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nothing that this node may delete.
    Nothing,
    /// Perhaps more keys.
    Some,
    /// Keys that may not be deleted before a pause is over.
    Paused,
}

impl Engine {
    /// Whether a client may move `keys` away from here: they lie in one slot, which this node serves or
    /// which is on the move to or from it.
    ///
    /// # Errors
    /// Their slots differ, or another node serves them.
    pub fn may_migrate(&self, keys: &[Vec<u8>]) -> Result<(), CommandError> {
        let mut slots = keys.iter().map(|key| Slot::of_key(key));
        let Some(slot) = slots.next().filter(|_| self.topology.is_some()) else {
            return self.may_release(&mut self.keyspace.lock_many(&[]), None);
        };
        if slots.any(|other| other != slot) {
            return Err(CommandError::CrossSlot);
        }
        self.may_release(&mut self.keyspace.lock_many(&[slot]), Some(slot))
    }

    fn may_release(&self, locked: &mut LockedSlots<'_>, slot: Option<Slot>) -> Result<(), CommandError> {
        let (Some(topology), Some(slot)) = (&self.topology, slot) else {
            let replica = self.settings.gate().contains(Gate::READ_ONLY_REPLICA);
            return if replica { Err(CommandError::ReadOnlyReplica) } else { Ok(()) };
        };
        match locked.slot(slot).ownership() {
            // A demotion that is not published to the slots yet.
            Ownership::Mine | Ownership::Migrating | Ownership::Importing if self.settings.is_replica() => {
                Err(CommandError::ReadOnlyReplica)
            }
            Ownership::Mine | Ownership::Migrating | Ownership::Importing => Ok(()),
            other => {
                let access = RouteRequest { keys: 1, ..RouteRequest::default() };
                self.check_route(&topology.load(), slot, other, access, ClientTransport::default())
            }
        }
    }

    /// The key as it is now, if it is there.
    #[must_use]
    pub fn capture(&self, db: u16, key: &[u8], now: Millis, dialect: Dialect) -> Option<CapturedKey> {
        let slot = self.keyspace.key(key).slot();
        self.captured(&mut self.keyspace.lock_many(&[slot]), db, key, now, dialect)
    }

    /// Deletes the key, and logs that, if it is still as it was captured and this node's to delete.
    ///
    /// # Errors
    /// The slot is served elsewhere by now.
    pub fn release(
        &self,
        worker: &Worker,
        db: u16,
        key: &[u8],
        now: Millis,
        captured: &CapturedKey,
    ) -> Result<Release, CommandError> {
        let handle = self.keyspace.key(key);
        let mut locked = self.keyspace.lock_many(&[handle.slot()]);
        let gate = self.settings.gate();
        if gate.intersects(Gate::PAUSED) {
            return Ok(Release::Paused);
        }
        if gate.contains(Gate::LOADING) {
            return Err(CommandError::Loading);
        }
        self.may_release(&mut locked, self.topology.as_ref().map(|_| handle.slot()))?;
        if self.captured(&mut locked, db, key, now, captured.dialect).as_ref() != Some(captured) {
            return Ok(Release::Changed);
        }
        let table = locked.slot_mut(handle.slot()).table(db);
        let KeyLookup::Live(place) = table.find(&handle, now) else { return Ok(Release::Changed) };
        let dropped = table.remove(place, &handle);
        add(&worker.stats.changes, 1);
        let end = self.key_gone(db, handle.slot(), key, b"DEL");
        drop(locked);
        self.lazy_free.discard(dropped, true);
        Ok(Release::Gone(end))
    }

    /// Has clients' writes to `slot` wait from now on, until [`Engine::free_slot`]; `false` if that cannot be.
    pub fn hold_slot(&self, slot: Slot) -> bool {
        // First, so that each thread that locks the slot after this asks it.
        self.pauses.hold_slot(&self.settings);
        let held = self.keyspace.lock(slot).hold();
        if !held {
            self.pauses.free_slot(&self.settings);
        }
        held
    }

    /// Ends what [`Engine::hold_slot`] began.
    pub fn free_slot(&self, slot: Slot) {
        self.keyspace.lock(slot).free();
        self.pauses.free_slot(&self.settings);
    }

    /// Hides the keys of `slot` from now on ([`keyspace::SlotData::set_hidden`]), or shows them.
    pub fn hide_slot(&self, slot: Slot, is_hidden: bool) {
        self.keyspace.lock(slot).set_hidden(is_hidden);
    }

    /// Deletes some keys of a slot that another node serves now, and logs that. A slot that is served, imported or
    /// copied here (again) keeps what it has, and so does a replica; what is being imported (a slot that is hidden) is
    /// not meant.
    pub fn leave_slot(&self, slot: Slot) -> Left {
        self.delete_some(slot, false)
    }

    /// The same of a slot that is hidden, whose import has come to nothing.
    pub fn drop_imported(&self, slot: Slot) -> Left {
        self.delete_some(slot, true)
    }

    fn delete_some(&self, slot: Slot, is_hidden: bool) -> Left {
        let mut dropped = Vec::new();
        let mut guard = self.keyspace.lock(slot);
        let gate = self.settings.gate();
        let elsewhere = matches!(guard.ownership(), Ownership::Elsewhere | Ownership::Unassigned);
        if gate.contains(Gate::REPLICA) || !elsewhere || guard.is_hidden() != is_hidden {
            return Left::Nothing;
        }
        if gate.intersects(Gate::PAUSED) {
            return Left::Paused;
        }
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for db in guard.databases() {
            guard.table(db).scan(0, KEYS_PER_LOCK, &mut |item| keys.push(item.key.to_vec()));
            for key in &keys {
                let handle = self.keyspace.key(key);
                // Whatever the time: what is due goes, too.
                if let KeyLookup::Live(place) = guard.table(db).find(&handle, Millis(i64::MIN)) {
                    dropped.push(guard.table(db).remove(place, &handle));
                    self.key_gone(db, slot, key, b"DEL");
                }
            }
            if !keys.is_empty() {
                break;
            }
        }
        drop(guard);
        dropped.into_iter().for_each(|value| self.lazy_free.discard(value, true));
        if keys.is_empty() { Left::Nothing } else { Left::Some }
    }

    /// Deletes what a slot holds, and tells the log nothing: its master did so.
    pub fn forget_slot(&self, slot: Slot) {
        let mut guard = self.keyspace.lock(slot);
        let tables: Vec<_> = guard.databases().into_iter().filter_map(|db| guard.take(db).table).collect();
        drop(guard);
        drop(self.lazy_free.discard_tables(tables));
    }

    /// Deletes everything, and tells the log nothing: for a node that leaves its cluster.
    pub fn forget_everything(&self) {
        let mut tables = Vec::new();
        for slot in Slot::all() {
            let mut guard = self.keyspace.lock(slot);
            for db in guard.databases() {
                tables.extend(guard.take(db).table);
            }
        }
        drop(self.lazy_free.discard_tables(tables));
        self.touch_all_watched();
    }

    fn captured(
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
