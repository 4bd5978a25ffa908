//! Slot access for commands without keys, such as SCAN, FLUSHALL and SWAPDB.

use keyspace::{DatabaseSize, KeyLookup, RemovedValue, SlotData, SlotGuard, Table};
use slot_routing::Slot;

use super::Context;
use crate::error::CommandError;
use crate::notifications::EventClass;
use crate::settings::{LazyFreeReason, NodeFlags};
use crate::stats::add;
use crate::watch::KeyPresence;

/// Maximum number of slot locks of a command that matches keys; beyond it the command locks all slots at once.
/// Inserting into a long sorted list of locks would be slower.
const MAX_SLOT_LOCKS: usize = 512;

impl<'a> Context<'a> {
    /// Visits every slot in ascending order. Each slot is locked only during its visit, unless the command has locked
    /// all slots. This is only for commands without keys.
    pub fn each_slot(&mut self, mut visit: impl FnMut(Slot, &mut SlotData)) {
        for slot in self.engine.keyspace.slots() {
            self.with_slot(slot, |data| visit(slot, data));
        }
    }

    /// Visits one slot like [`Context::each_slot`].
    pub fn with_slot<R>(&mut self, slot: Slot, visit: impl FnOnce(&mut SlotData) -> R) -> R {
        if self.holds_all_slots { visit(self.slots.slot_mut(slot)) } else { visit(&mut self.lock_slot(slot)) }
    }

    /// Visits one slot like [`Context::with_slot`], unless another thread has locked it.
    pub fn try_with_slot<R>(&mut self, slot: Slot, visit: impl FnOnce(&SlotData) -> R) -> Option<R> {
        if self.holds_all_slots {
            return Some(visit(self.slots.slot(slot)));
        }
        self.engine.keyspace.try_lock(slot).map(|data| visit(&data))
    }

    /// Locks one slot, waiting even for a busy script, because a partial result would be useless. While this thread
    /// waits, another worker serves its other clients.
    fn lock_slot(&self, slot: Slot) -> SlotGuard<'a> {
        let (engine, slots) = (self.engine, [slot]);
        let wait = engine.start_slot_wait(self, &slots);
        engine
            .keyspace
            .lock_slot_while(slot, &|waited| wait.wait_or_offload(waited))
            .expect("it waits for as long as it takes")
    }

    /// Locks the slot of a key that the command did not declare ([`crate::command::LockScope::Patterns`]).
    ///
    /// # Errors
    /// The command is not allowed to lock further slots.
    pub fn lock_undeclared_slot(&mut self, slot: Slot) -> Result<(), CommandError> {
        if self.slots.is_locked(slot) {
            return Ok(());
        }
        let turn = self.global_lock.as_ref().ok_or(CommandError::CrossSlot)?;
        let wanted = [slot];
        let wait = self.engine.start_slot_wait(self, &wanted);
        if self.slots.len() < MAX_SLOT_LOCKS {
            self.slots.add_slot(turn, slot, &|waited| wait.wait_or_offload(waited));
        } else {
            self.slots.add_all(turn, &|waited| wait.wait_or_offload(waited));
        }
        Ok(())
    }

    /// Deletes expired keys that a scan of `slot` found, unless this node is a replica or writes are paused. Only for
    /// commands without keys.
    pub fn delete_expired_in(&mut self, slot: Slot, keys: &[Vec<u8>]) {
        let (engine, db, now) = (self.engine, self.session.db(), self.now);
        let hides = NodeFlags::REPLICA | NodeFlags::PAUSED | NodeFlags::IMPORTING;
        if keys.is_empty() || self.session.origin().is_stream() {
            return;
        }
        // First append what earlier commands did to the slot, so that the log preserves the execution order.
        self.append_effects(db);
        let deletion = engine.settings.lazy_free.deletion_command(LazyFreeReason::EXPIRE);
        let dropped: Vec<RemovedValue> = self.with_slot(slot, |data| {
            // Check while the slot is locked: a thread that starts a pause or a demotion sets the flag and then locks
            // each slot once.
            if engine.settings.node_flags().intersects(hides) {
                return Vec::new();
            }
            let table = data.table(db);
            let expire = |bytes: &Vec<u8>| {
                let key = engine.keyspace.key_in_slot(slot, bytes);
                let KeyLookup::Expired(place) = table.find(&key, now) else { return None };
                let dropped = table.remove(place, &key);
                engine.log_removed_key(db, slot, bytes, deletion);
                engine.notify(EventClass::EXPIRED, "expired", db, bytes);
                Some(dropped)
            };
            keys.iter().filter_map(expire).collect()
        });
        add(&self.worker.stats.expired_keys, dropped.len() as u64);
        let lazy = engine.settings.lazy_free.is_enabled(LazyFreeReason::EXPIRE);
        dropped.into_iter().for_each(|value| engine.memory.lazy_free.discard(value, lazy));
    }

    /// Returns the non-empty slots in ascending order from `first`. If the command has locked all slots, returns all of
    /// them, because its own changes are not yet visible in the shared counts.
    pub fn non_empty_slots(&self, first: usize) -> impl Iterator<Item = Slot> + use<'a> {
        let keyspace = &self.engine.keyspace;
        let (all, filled) = match self.holds_all_slots {
            true => (Some(keyspace.slots()), None),
            false => (None, Some(keyspace.non_empty_slots())),
        };
        all.into_iter()
            .flatten()
            .chain(filled.into_iter().flatten())
            .skip_while(move |slot| slot.index() < first)
    }

    /// Returns the number of keys of `slot` in the selected database.
    pub fn slot_key_count(&mut self, slot: Slot) -> usize {
        self.slot_key_count_in(self.session.db(), slot)
    }

    /// Returns the number of keys of `slot` in database `db`.
    pub fn slot_key_count_in(&mut self, db: u16, slot: Slot) -> usize {
        let len = |data: &SlotData| match data.is_hidden() {
            true => 0,
            false => data.existing_table(db).map_or(0, Table::len),
        };
        if self.holds_all_slots {
            return len(self.slots.slot(slot));
        }
        if db == 0 || !self.engine.keyspace.has_other_databases(slot) {
            return self.engine.keyspace.len_in_slot(db, slot);
        }
        len(&self.lock_slot(slot))
    }

    /// Returns the size of each database. Only for commands without keys.
    pub fn database_sizes(&mut self) -> Vec<DatabaseSize> {
        if !self.holds_all_slots {
            return self.engine.keyspace.sizes();
        }
        let mut sizes = vec![DatabaseSize::default(); usize::from(self.engine.keyspace.database_count())];
        for slot in self.slots.iter_mut() {
            for (db, table) in slot.tables() {
                sizes[usize::from(db)].add(table);
            }
        }
        sizes
    }

    /// Returns the memory of the hash tables of each database in bytes. Only for commands without keys.
    pub fn database_overheads(&mut self) -> Vec<usize> {
        let mut overheads = vec![0; usize::from(self.engine.keyspace.database_count())];
        self.each_slot(|_, data| {
            for (db, table) in data.tables() {
                overheads[usize::from(db)] += table.overhead_bytes();
            }
        });
        overheads
    }

    /// Frees the tables that a command removed, after its slot locks are released.
    #[inline]
    pub(crate) fn free_garbage(&mut self) {
        if !self.worker.removed_tables.is_empty() {
            assert!(self.slots.is_empty(), "nobody waits for tables to be dropped");
            self.worker.removed_tables.clear();
        }
    }

    /// Removes all keys of one or all databases; returns their number. The command must have locked all slots. The
    /// tables are freed after the locks are released, on this thread if `wait` is set.
    pub fn clear_databases(&mut self, only_db: Option<u16>, wait: bool) -> usize {
        for db in
            (0..self.engine.keyspace.database_count()).filter(|db| only_db.is_none_or(|only| only == *db))
        {
            self.mark_watched_changed(db, None);
            self.queue_all_ready_keys(db);
        }
        let (mut removed, mut tables) = (0, Vec::new());
        for slot in self.slots.iter_mut() {
            for db in only_db.map_or_else(|| slot.databases(), |db| std::iter::once(db).collect()) {
                let taken = slot.take_database(db);
                removed += taken.count;
                tables.extend(taken.table);
            }
        }
        self.free_tables(tables, wait);
        removed
    }

    /// Deletes all keys of `slot` in all databases and logs the command. The command must have locked the slot. If
    /// `wait` is set, the client waits until the tables are freed ([`Context::clear_databases`]).
    pub fn clear_slot(&mut self, slot: Slot, wait: bool) {
        let engine = self.engine;
        let is_from_stream = self.session.origin().is_stream();
        let mut tables = Vec::new();
        for db in self.slots.slot(slot).databases() {
            let mut keys: Vec<Vec<u8>> = Vec::new();
            let data = self.slots.slot_mut(slot);
            // Keys that are being imported are invisible to clients.
            let is_shown = is_from_stream || !data.is_hidden();
            let Some(table) = data.existing_table(db).filter(|_| is_shown) else { continue };
            let mut from = Some(0);
            while let Some(position) = from {
                from = table.scan(position, usize::MAX, &mut |item| keys.push(item.key.to_vec()));
            }
            tables.extend(data.take_database(db).table);
            for key in &keys {
                self.report_modified_in(db, &engine.keyspace.key_in_slot(slot, key));
                engine.notify(EventClass::GENERIC, "del", db, key);
            }
        }
        self.free_tables(tables, wait);
    }

    /// Frees tables after the locks are released: on this thread if `wait` is set, otherwise in the background.
    fn free_tables(&mut self, mut tables: Vec<Table>, wait: bool) {
        if wait {
            self.worker.removed_tables.append(&mut tables);
        } else {
            self.worker.removed_tables.append(&mut self.engine.memory.lazy_free.discard_tables(tables));
        }
    }

    /// Marks the watched keys of database `db` as changed if they change when the database is emptied or, with
    /// `replaced_by`, receives the content of that database.
    fn mark_watched_changed(&mut self, db: u16, replaced_by: Option<u16>) {
        let (engine, slots, now) = (self.engine, &self.slots, self.now);
        engine.notifications.watch_table.mark_replaced(db, |bytes| {
            let key = engine.keyspace.key(bytes);
            let presence = |db: u16| match slots.slot(key.slot()).table_ref(db).find(&key, now) {
                KeyLookup::Missing => KeyPresence::Missing,
                KeyLookup::Live(_) => KeyPresence::Live,
                KeyLookup::Expired(_) => KeyPresence::Expired,
            };
            (presence(db), replaced_by.map_or(KeyPresence::Missing, presence))
        });
    }

    /// Swaps two databases. The command must have locked all slots.
    pub fn swap_databases(&mut self, a: u16, b: u16) {
        self.mark_watched_changed(a, Some(b));
        self.mark_watched_changed(b, Some(a));
        for slot in self.slots.iter_mut() {
            slot.swap_databases(a, b);
        }
        for db in [a, b] {
            self.queue_all_ready_keys(db);
        }
    }

    /// Marks all awaited keys of a database as ready, since their existence may have changed.
    fn queue_all_ready_keys(&mut self, db: u16) {
        for key in self.engine.scheduling.wait_queues.awaited_keys(db) {
            self.queue_ready_key(db, Slot::of_key(&key), &key);
        }
    }
}
