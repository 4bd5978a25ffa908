//! Key access for handlers: lookup, reading, writing, deletion and expiry.

use clock::Millis;
use keyspace::{
    DetachedValue, EntryRef, Key, KeyLookup, Kind, PackedValue, RemovedValue, StringRef, Table, TypedView,
    Usage,
};
use resp::Writer;

use super::Context;
use crate::command::Flags;
use crate::error::CommandError;
use crate::lazy_free::LazyFreeQueue;
use crate::notifications::EventClass;
use crate::session::CommandOrigin;
use crate::settings::{LazyFreeReason, NodeFlags, UsageMeaning};
use crate::stats::add;

impl<'a> Context<'a> {
    /// Returns the table of `key`'s slot in the selected database.
    #[inline]
    pub fn table(&mut self, key: &Key<'_>) -> &mut Table {
        self.slots.slot_mut(key.slot()).table(self.session.db())
    }

    /// Returns the table of `key`'s slot in the selected database, read-only.
    #[inline]
    pub fn table_ref(&self, key: &Key<'_>) -> &Table {
        self.slots.slot(key.slot()).table_ref(self.session.db())
    }

    /// Returns the table and the reply writer together, to write values without copying them.
    #[inline]
    pub fn table_and_reply(&mut self, key: &Key<'_>) -> (&Table, &mut Writer<'a>) {
        (self.slots.slot(key.slot()).table_ref(self.session.db()), &mut self.reply)
    }

    /// Finds a live key and updates its usage data. An expired key is deleted and the deletion logged, unless this node
    /// is a replica or writes are paused: then the key is only hidden.
    #[inline]
    pub fn find(&mut self, key: &Key<'_>) -> Option<EntryRef> {
        self.find_in(self.session.db(), key)
    }

    /// Finds a key like [`Context::find`], without updating its usage data.
    #[inline]
    pub fn peek(&mut self, key: &Key<'_>) -> Option<EntryRef> {
        self.find_without_touch(self.session.db(), key).map(|(place, _)| place)
    }

    /// Finds a key like [`Context::find`], in another database.
    #[inline]
    pub fn find_in(&mut self, db: u16, key: &Key<'_>) -> Option<EntryRef> {
        self.find_and_touch(db, key)
    }

    #[inline(always)]
    fn find_and_touch(&mut self, db: u16, key: &Key<'_>) -> Option<EntryRef> {
        let (place, usage) = self.find_without_touch(db, key)?;
        if !self.session.is_no_touch() {
            self.mark_used(db, key, place, usage);
        }
        Some(place)
    }

    /// Updates the usage data of the key at `entry_ref`; `previous` is the usage before this access.
    #[inline(always)]
    pub fn mark_used(&mut self, db: u16, key: &Key<'_>, entry_ref: EntryRef, previous: Usage) {
        let usage = match self.engine.settings.eviction.usage_meaning() {
            UsageMeaning::LastAccess => self.access_stamp,
            UsageMeaning::AccessFrequency => {
                let settings = self.engine.settings.eviction.lfu_settings();
                previous.incremented_lfu(self.now, settings, self.worker.random.next_u64() as u32)
            }
            UsageMeaning::LastWrite if self.is_write_command() => self.access_stamp,
            UsageMeaning::LastWrite => previous,
        };
        if usage != previous {
            self.slots.slot_mut(key.slot()).table(db).set_usage(entry_ref, usage);
        }
    }

    #[inline(always)]
    fn find_without_touch(&mut self, db: u16, key: &Key<'_>) -> Option<(EntryRef, Usage)> {
        match self.slots.find(db, key, self.now) {
            (KeyLookup::Missing, _) => None,
            (KeyLookup::Live(place), usage) => Some((place, usage)),
            (KeyLookup::Expired(place), usage) => {
                self.handle_expired(db, key, place).then_some((place, usage))
            }
        }
    }

    /// Returns whether the client sees expired keys and fields. The master's stream does, because the master decides
    /// about expiry; so does an import source in import mode (CLIENT IMPORT-SOURCE).
    #[inline]
    pub fn can_see_expired(&self) -> bool {
        let session = &self.session;
        session.origin().is_stream()
            || session.is_import_source() && self.engine.settings.node_flags().contains(NodeFlags::IMPORTING)
    }

    /// Returns the time before which a key's expiry hides it from the client.
    #[inline]
    pub fn expiry_cutoff(&self) -> Millis {
        if self.can_see_expired() { Millis(i64::MIN) } else { self.now }
    }

    fn is_write_command(&self) -> bool {
        self.commands.command_by_number(self.command_index).command.flags.contains(Flags::WRITE)
    }

    /// Handles an expired key; returns whether the command sees the key in spite of its expiry.
    #[cold]
    fn handle_expired(&mut self, db: u16, key: &Key<'_>, entry_ref: EntryRef) -> bool {
        let settings = &self.engine.settings;
        let gate = settings.node_flags();
        if self.can_see_expired() {
            return true;
        }
        let hides = gate.intersects(NodeFlags::REPLICA | NodeFlags::PAUSED | NodeFlags::IMPORTING);
        // A writable replica must delete the expired key before it writes the new one.
        if !hides || self.is_write_command() {
            let dropped = self.slots.slot_mut(key.slot()).table(db).remove(entry_ref, key);
            self.engine
                .memory
                .lazy_free
                .discard(dropped, settings.lazy_free.is_enabled(LazyFreeReason::EXPIRE));
        }
        if !hides {
            // First append what earlier commands did to the slot, so that the log preserves the execution order.
            self.append_effects(self.session.db());
            self.engine.log_removed_key(
                db,
                key.slot(),
                key.bytes(),
                settings.lazy_free.deletion_command(LazyFreeReason::EXPIRE),
            );
            self.engine.notify(EventClass::EXPIRED, "expired", db, key.bytes());
            add(&self.worker.stats.expired_keys, 1);
        }
        false
    }

    /// Finds a key for a read, and counts a keyspace hit or miss.
    #[inline]
    pub fn find_for_read(&mut self, key: &Key<'_>) -> Option<EntryRef> {
        let found = self.find_and_touch(self.session.db(), key);
        self.count_keyspace_read(key, found)
    }

    /// Like [`Context::find_for_read`], without updating the usage data.
    pub fn find_for_read_without_touch(&mut self, key: &Key<'_>) -> Option<EntryRef> {
        let found = self.peek(key);
        self.count_keyspace_read(key, found)
    }

    /// Adds `count` deleted fields to the statistics of expired hash fields.
    pub fn count_expired_fields(&self, count: usize) {
        if count > 0 {
            add(&self.worker.stats.expired_fields, count as u64);
        }
    }

    #[inline]
    fn count_keyspace_read(&mut self, key: &Key<'_>, found: Option<EntryRef>) -> Option<EntryRef> {
        if found.is_some() {
            add(&self.worker.stats.keyspace_hits, 1);
        } else {
            add(&self.worker.stats.keyspace_misses, 1);
            self.notify(EventClass::MISS, "keymiss", key);
        }
        found
    }

    /// Returns the value at `entry_ref` as the expected type.
    ///
    /// # Errors
    /// WRONGTYPE if the value has another type.
    #[inline]
    pub fn typed_value<T: TypedView>(
        &self,
        key: &Key<'_>,
        entry_ref: EntryRef,
    ) -> Result<T::View<'_>, CommandError> {
        let Some(value) = self.table_ref(key).typed_value::<T>(entry_ref) else {
            return Err(CommandError::WrongType);
        };
        Ok(value)
    }

    /// Finds a key like [`Context::find`] and checks its type.
    ///
    /// # Errors
    /// WRONGTYPE if the value has another type.
    #[inline]
    pub fn find_typed<T: TypedView>(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError> {
        let found = self.find(key);
        self.check_type(key, found, T::KIND)
    }

    /// Reads a key like [`Context::find_for_read`] and checks its type.
    ///
    /// # Errors
    /// WRONGTYPE if the value has another type.
    #[inline]
    pub fn read_typed<T: TypedView>(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError> {
        let found = self.find_for_read(key);
        self.check_type(key, found, T::KIND)
    }

    /// Returns the entry, or an error if the value has another type.
    #[inline]
    fn check_type(
        &self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        kind: Kind,
    ) -> Result<Option<EntryRef>, CommandError> {
        match found {
            Some(place) if self.table_ref(key).kind(place) != kind => Err(CommandError::WrongType),
            found => Ok(found),
        }
    }

    /// Returns the string at `entry_ref`.
    ///
    /// # Errors
    /// WRONGTYPE if the value is not a string.
    #[inline]
    pub fn string_value(&self, key: &Key<'_>, entry_ref: EntryRef) -> Result<StringRef<'_>, CommandError> {
        self.typed_value::<StringRef<'_>>(key, entry_ref)
    }

    /// Stores a value and its expiry under `key`; `found` is the existing entry.
    pub fn put(
        &mut self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        value: PackedValue<'_>,
        expiry: Option<Millis>,
    ) {
        self.put_in(self.session.db(), key, found, value, expiry);
    }

    /// Like [`Context::put`], in another database.
    pub fn put_in(
        &mut self,
        db: u16,
        key: &Key<'_>,
        found: Option<EntryRef>,
        value: PackedValue<'_>,
        expiry: Option<Millis>,
    ) {
        let table = self.slots.slot_mut(key.slot()).table(db);
        match found {
            None => {
                table.insert(key, value, expiry);
            }
            Some(place) => {
                let (_, dropped) = table.replace(place, key, value, expiry);
                self.discard(dropped);
            }
        }
        self.report_modified_in(db, key);
    }

    /// Like [`Context::put`], with an already allocated value.
    pub fn put_value(
        &mut self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        value: DetachedValue,
        expiry: Option<Millis>,
    ) {
        self.put_value_in(self.session.db(), key, found, value, expiry);
    }

    /// Like [`Context::put_value`], in another database.
    pub fn put_value_in(
        &mut self,
        db: u16,
        key: &Key<'_>,
        found: Option<EntryRef>,
        value: DetachedValue,
        expiry: Option<Millis>,
    ) {
        let table = self.slots.slot_mut(key.slot()).table(db);
        let dropped = found.map(|place| table.remove(place, key));
        table.attach(key, value, expiry);
        dropped.into_iter().for_each(|dropped| self.discard(dropped));
        self.report_modified_in(db, key);
    }

    /// Deletes `key`, whose entry is at `entry_ref`.
    pub fn delete(&mut self, key: &Key<'_>, entry_ref: EntryRef) {
        let dropped = self.table(key).remove(entry_ref, key);
        self.discard(dropped);
        self.report_modified(key);
    }

    /// Sets the expiry of the key at `entry_ref` and logs the change. A time in the past deletes the key immediately,
    /// except on a replica, which waits for its master to delete the key.
    pub fn expire_at(&mut self, key: &Key<'_>, entry_ref: EntryRef, at: Millis) {
        if at <= self.now && self.deletes_expired() {
            self.expire_now(key, entry_ref);
            return;
        }
        self.table(key).set_expiry(entry_ref, key, Some(at));
        self.report_modified(key);
        self.notify(EventClass::GENERIC, "expire", key);
        let mut digits = itoa::Buffer::new();
        self.log_effect(&[b"PEXPIREAT", key.bytes(), digits.format(at.0).as_bytes()]);
    }

    /// Deletes the key at `entry_ref` as expired and logs the deletion.
    pub fn expire_now(&mut self, key: &Key<'_>, entry_ref: EntryRef) {
        self.delete(key, entry_ref);
        self.notify(EventClass::EXPIRED, "expired", key);
        add(&self.worker.stats.expired_keys, 1);
        self.log_effect(&[
            self.engine.settings.lazy_free.deletion_command(LazyFreeReason::EXPIRE),
            key.bytes(),
        ]);
    }

    /// Removes the expiry of the key at `entry_ref` and logs the change; returns whether the key had an expiry.
    pub fn persist(&mut self, key: &Key<'_>, entry_ref: EntryRef) -> bool {
        let table = self.table(key);
        if table.expiry(entry_ref).is_none() {
            return false;
        }
        table.set_expiry(entry_ref, key, None);
        self.report_modified(key);
        self.notify(EventClass::GENERIC, "persist", key);
        self.log_effect(&[b"PERSIST", key.bytes()]);
        true
    }

    /// Returns whether expired keys are deleted here, which replicas do not do.
    #[inline]
    pub fn deletes_expired(&self) -> bool {
        let stays = NodeFlags::REPLICA | NodeFlags::IMPORTING;
        self.session.origin() == CommandOrigin::Client && !self.engine.settings.node_flags().intersects(stays)
    }

    /// Frees a removed value; large values are freed in the background.
    pub fn discard(&self, removed: RemovedValue) {
        if LazyFreeQueue::is_large(&removed) {
            self.discard_large(removed);
        }
    }

    #[cold]
    fn discard_large(&self, removed: RemovedValue) {
        let lazy = match self.commands.command_by_number(self.command_index).command.name {
            "unlink" => true,
            "del" => self.engine.settings.lazy_free.is_enabled(LazyFreeReason::USER_DEL),
            _ => self.engine.settings.lazy_free.is_enabled(LazyFreeReason::SERVER_DEL),
        };
        self.engine.memory.lazy_free.discard(removed, lazy);
    }
}
