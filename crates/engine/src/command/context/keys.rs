//! Keys as handlers use them: found, read, put, deleted, made to expire.

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
use crate::notifications::Class;
use crate::session::Origin;
use crate::settings::{Gate, Lazy, UsageMeaning};
use crate::stats::add;

impl<'a> Context<'a> {
    /// The keys of `key`'s slot in the client's database.
    #[inline]
    pub fn table(&mut self, key: &Key<'_>) -> &mut Table {
        self.slots.slot_mut(key.slot()).table(self.session.db)
    }

    /// The same, only to be looked at.
    #[inline]
    pub fn view(&self, key: &Key<'_>) -> &Table {
        self.slots.slot(key.slot()).view(self.session.db)
    }

    /// The same together with the reply, to write what the table holds without copying it.
    #[inline]
    pub fn view_and_reply(&mut self, key: &Key<'_>) -> (&Table, &mut Writer<'a>) {
        (self.slots.slot(key.slot()).view(self.session.db), &mut self.reply)
    }

    /// Where `key` lies, if it is there and has not expired. An expired key is deleted on the way, and
    /// the log told, unless this node is a replica or writes are paused: then it is only hidden.
    /// The key is used by that.
    #[inline]
    pub fn find(&mut self, key: &Key<'_>) -> Option<EntryRef> {
        self.find_in(self.session.db, key)
    }

    /// [`Context::find`] for a command that looks at a key without using it.
    #[inline]
    pub fn peek(&mut self, key: &Key<'_>) -> Option<EntryRef> {
        self.look_in(self.session.db, key).map(|(place, _)| place)
    }

    /// [`Context::find`] in another database.
    #[inline]
    pub fn find_in(&mut self, db: u16, key: &Key<'_>) -> Option<EntryRef> {
        self.use_in(db, key)
    }

    #[inline(always)]
    fn use_in(&mut self, db: u16, key: &Key<'_>) -> Option<EntryRef> {
        let (place, usage) = self.look_in(db, key)?;
        if !self.session.no_touch() {
            self.mark_used(db, key, place, usage);
        }
        Some(place)
    }

    /// The key at `place` is used; `before` is how it had been.
    #[inline(always)]
    pub fn mark_used(&mut self, db: u16, key: &Key<'_>, place: EntryRef, before: Usage) {
        let usage = match self.engine.settings.usage_meaning() {
            UsageMeaning::Accesses => self.used_now,
            UsageMeaning::Counts => {
                let settings = self.engine.settings.lfu_settings();
                before.used_lfu(self.now, settings, self.worker.random.number() as u32)
            }
            UsageMeaning::Changes if self.writes() => self.used_now,
            UsageMeaning::Changes => before,
        };
        if usage != before {
            self.slots.slot_mut(key.slot()).table(db).set_usage(place, usage);
        }
    }

    #[inline(always)]
    fn look_in(&mut self, db: u16, key: &Key<'_>) -> Option<(EntryRef, Usage)> {
        match self.slots.find(db, key, self.now) {
            (KeyLookup::Missing, _) => None,
            (KeyLookup::Live(place), usage) => Some((place, usage)),
            (KeyLookup::Expired(place), usage) => {
                self.look_at_expired(db, key, place).then_some((place, usage))
            }
        }
    }

    /// Whether keys and fields whose time has come are there for the client: for a master's stream, since the master has
    /// decided already, and in import mode for an import source (CLIENT IMPORT-SOURCE).
    #[inline]
    pub fn sees_expired(&self) -> bool {
        let session = &self.session;
        session.origin.is_stream() || session.imports && self.engine.settings.gate().contains(Gate::IMPORTING)
    }

    /// The client sees nothing that expires up to this time.
    #[inline]
    pub fn expired_until(&self) -> Millis {
        if self.sees_expired() { Millis(i64::MIN) } else { self.now }
    }

    /// Whether the command may write.
    fn writes(&self) -> bool {
        self.commands.entry(self.index).command.flags.contains(Flags::WRITE)
    }

    /// Deals with a key whose time has come; says whether the command sees it all the same.
    #[cold]
    fn look_at_expired(&mut self, db: u16, key: &Key<'_>, place: EntryRef) -> bool {
        let settings = &self.engine.settings;
        let gate = settings.gate();
        if self.sees_expired() {
            return true;
        }
        let hides = gate.intersects(Gate::REPLICA | Gate::PAUSED | Gate::IMPORTING);
        // A replica that takes writes of its own: one must not come to lie beside the other.
        if !hides || self.writes() {
            let dropped = self.slots.slot_mut(key.slot()).table(db).remove(place, key);
            self.engine.lazy_free.discard(dropped, settings.is_lazy(Lazy::EXPIRE));
        }
        if !hides {
            // In the order in which it happened: what earlier commands did to the slot comes first.
            self.append_effects(self.session.db);
            self.engine.key_gone(db, key.slot(), key.bytes(), settings.deletion(Lazy::EXPIRE));
            self.engine.notify(Class::EXPIRED, "expired", db, key.bytes());
            add(&self.worker.stats.expired_keys, 1);
        }
        false
    }

    /// [`Context::find`] for a command that reads: counts a hit or a miss.
    #[inline]
    pub fn read(&mut self, key: &Key<'_>) -> Option<EntryRef> {
        let found = self.use_in(self.session.db, key);
        self.count_read(key, found)
    }

    /// [`Context::peek`] for a command that reads: counts a hit or a miss.
    pub fn glance(&mut self, key: &Key<'_>) -> Option<EntryRef> {
        let found = self.peek(key);
        self.count_read(key, found)
    }

    /// So many elements of a value went because their time had come.
    pub fn count_expired_fields(&self, count: usize) {
        if count > 0 {
            add(&self.worker.stats.expired_fields, count as u64);
        }
    }

    #[inline]
    fn count_read(&mut self, key: &Key<'_>, found: Option<EntryRef>) -> Option<EntryRef> {
        if found.is_some() {
            add(&self.worker.stats.keyspace_hits, 1);
        } else {
            add(&self.worker.stats.keyspace_misses, 1);
            self.notify(Class::MISS, "keymiss", key);
        }
        found
    }

    /// The value at `place`, if it is of the kind that the command is about.
    ///
    /// # Errors
    /// WRONGTYPE.
    #[inline]
    pub fn typed<T: TypedView>(&self, key: &Key<'_>, place: EntryRef) -> Result<T::At<'_>, CommandError> {
        let Some(value) = self.view(key).typed::<T>(place) else { return Err(CommandError::WrongType) };
        Ok(value)
    }

    /// [`Context::find`] for a command that changes values of one kind.
    ///
    /// # Errors
    /// WRONGTYPE.
    #[inline]
    pub fn find_typed<T: TypedView>(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError> {
        let found = self.find(key);
        self.check_kind(key, found, T::KIND)
    }

    /// [`Context::read`] for a command that reads values of one kind.
    ///
    /// # Errors
    /// WRONGTYPE.
    #[inline]
    pub fn read_typed<T: TypedView>(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError> {
        let found = self.read(key);
        self.check_kind(key, found, T::KIND)
    }

    /// Returns what was found, or an error if it is of another kind.
    #[inline]
    fn check_kind(
        &self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        kind: Kind,
    ) -> Result<Option<EntryRef>, CommandError> {
        match found {
            Some(place) if self.view(key).kind(place) != kind => Err(CommandError::WrongType),
            found => Ok(found),
        }
    }

    /// The string at `place`.
    ///
    /// # Errors
    /// WRONGTYPE.
    #[inline]
    pub fn string(&self, key: &Key<'_>, place: EntryRef) -> Result<StringRef<'_>, CommandError> {
        self.typed::<StringRef<'_>>(key, place)
    }

    /// Puts a value and its expiry under `key`, which was found at `found`.
    pub fn put(
        &mut self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        value: PackedValue<'_>,
        expiry: Option<Millis>,
    ) {
        self.put_in(self.session.db, key, found, value, expiry);
    }

    /// [`Context::put`] in another database.
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
        self.modified_in(db, key);
    }

    /// [`Context::put`] of a value that was made before.
    pub fn put_made(
        &mut self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        value: DetachedValue,
        expiry: Option<Millis>,
    ) {
        self.put_made_in(self.session.db, key, found, value, expiry);
    }

    /// [`Context::put_made`] in another database.
    pub fn put_made_in(
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
        self.modified_in(db, key);
    }

    /// Takes out `key`, which lies at `place`.
    pub fn delete(&mut self, key: &Key<'_>, place: EntryRef) {
        let dropped = self.table(key).remove(place, key);
        self.discard(dropped);
        self.modified(key);
    }

    /// Makes `key`, which lies at `place`, expire at `at`, and logs that. A time that has come deletes
    /// the key at once, except on a replica: its master says when keys go.
    pub fn expire_at(&mut self, key: &Key<'_>, place: EntryRef, at: Millis) {
        if at <= self.now && self.deletes_expired() {
            self.expire_now(key, place);
            return;
        }
        self.table(key).set_expiry(place, key, Some(at));
        self.modified(key);
        self.notify(Class::GENERIC, "expire", key);
        let mut digits = itoa::Buffer::new();
        self.effect(&[b"PEXPIREAT", key.bytes(), digits.format(at.0).as_bytes()]);
    }

    /// Deletes `key`, which lies at `place`, as one whose time has come, and logs that.
    pub fn expire_now(&mut self, key: &Key<'_>, place: EntryRef) {
        self.delete(key, place);
        self.notify(Class::EXPIRED, "expired", key);
        add(&self.worker.stats.expired_keys, 1);
        self.effect(&[self.engine.settings.deletion(Lazy::EXPIRE), key.bytes()]);
    }

    /// Makes `key`, which lies at `place`, stay, and logs that; says whether it would have expired.
    pub fn persist(&mut self, key: &Key<'_>, place: EntryRef) -> bool {
        let table = self.table(key);
        if table.expiry(place).is_none() {
            return false;
        }
        table.set_expiry(place, key, None);
        self.modified(key);
        self.notify(Class::GENERIC, "persist", key);
        self.effect(&[b"PERSIST", key.bytes()]);
        true
    }

    /// Whether a key whose time has come is deleted here: not on a replica.
    #[inline]
    pub fn deletes_expired(&self) -> bool {
        let stays = Gate::REPLICA | Gate::IMPORTING;
        self.session.origin == Origin::Client && !self.engine.settings.gate().intersects(stays)
    }

    /// Lets go of a value that left its table.
    pub fn discard(&self, dropped: RemovedValue) {
        if LazyFreeQueue::is_large(&dropped) {
            self.discard_large(dropped);
        }
    }

    #[cold]
    fn discard_large(&self, dropped: RemovedValue) {
        let lazy = match self.commands.entry(self.index).command.name {
            "unlink" => true,
            "del" => self.engine.settings.is_lazy(Lazy::USER_DEL),
            _ => self.engine.settings.is_lazy(Lazy::SERVER_DEL),
        };
        self.engine.lazy_free.discard(dropped, lazy);
    }
}
