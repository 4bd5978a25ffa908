//! What a handler works with.

use std::sync::atomic::Ordering;

use clock::Millis;
use keyspace::{
    Detached, Dropped, Found, Key, LockedSlots, NewValue, Place, SlotData, Str, Table, Usage, Value,
};
use resp::{Args, Writer};
use slot_routing::Slot;

use crate::command::{Command, Flags};
use crate::dispatch::Ahead;
use crate::engine::{Engine, Worker};
use crate::error::CommandError;
use crate::lookup::Registry;
use crate::session::{Mute, Origin, Session};
use crate::settings::Gate;
use crate::stats::add;

/// Commands on their way, one after another: the client, the slots that are locked, and of the one that runs
/// its arguments, its reply and its effects.
pub struct Context<'a> {
    pub engine: &'a Engine,
    pub session: &'a mut Session,
    /// The command's name first.
    pub args: Args<'a>,
    pub reply: Writer<'a>,
    /// The slots that the command's key specs name.
    pub slots: LockedSlots<'a>,
    /// The wall clock when the batch began.
    pub now: Millis,
    /// Whether `slots` are all there are.
    pub(crate) holds_all: bool,
    pub(crate) worker: &'a mut Worker,
    /// The command's number.
    pub(crate) index: usize,
    /// The key that was hashed when the batch was prepared, and its place.
    pub(crate) prepared: Option<&'a (usize, Key<'a>)>,
    /// What is locked for commands to come.
    pub(crate) ahead: Ahead<'a>,
    /// When the command before ended, by the worker's clock.
    pub(crate) clock: u64,
    /// How a key is that is used now, unless it matters how often (LFU).
    used_now: Usage,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("args", &self.args).finish_non_exhaustive()
    }
}

impl<'a> Context<'a> {
    /// For commands of which none is known yet.
    pub(crate) fn new(
        engine: &'a Engine,
        worker: &'a mut Worker,
        session: &'a mut Session,
        now: Millis,
        reply: Writer<'a>,
    ) -> Self {
        Self {
            engine,
            session,
            args: Args::default(),
            reply,
            slots: LockedSlots::default(),
            now,
            holds_all: false,
            clock: (worker.nanos)(),
            used_now: Usage::lru(now),
            worker,
            index: 0,
            prepared: None,
            ahead: Ahead::new(),
        }
    }

    /// Argument `index` as a key.
    #[inline]
    #[must_use]
    pub fn key(&self, index: usize) -> Key<'a> {
        match self.prepared {
            Some(&(place, key)) if place == index => key,
            _ => self.engine.keyspace.key(self.arg(index)),
        }
    }

    /// Argument `index`, which the arity promises.
    #[must_use]
    pub fn arg(&self, index: usize) -> &'a [u8] {
        self.args.get(index).expect("a handler asks only for arguments that its arity promises")
    }

    /// Argument `index` as a signed integer.
    pub fn integer(&self, index: usize) -> Result<i64, CommandError> {
        resp::parse_i64(self.arg(index)).ok_or(CommandError::NotInteger)
    }

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
    pub fn find(&mut self, key: &Key<'_>) -> Option<Place> {
        self.find_in(self.session.db, key)
    }

    /// [`Context::find`] for a command that looks at a key without using it.
    pub fn peek(&mut self, key: &Key<'_>) -> Option<Place> {
        self.look_in(self.session.db, key).map(|(place, _)| place)
    }

    /// [`Context::find`] in another database.
    pub fn find_in(&mut self, db: u16, key: &Key<'_>) -> Option<Place> {
        self.use_in(db, key)
    }

    #[inline(always)]
    fn use_in(&mut self, db: u16, key: &Key<'_>) -> Option<Place> {
        let (place, usage) = self.look_in(db, key)?;
        if !self.session.no_touch() {
            self.mark_used(db, key, place, usage);
        }
        Some(place)
    }

    /// The key at `place` is used; `before` is how it had been.
    #[inline(always)]
    pub(crate) fn mark_used(&mut self, db: u16, key: &Key<'_>, place: Place, before: Usage) {
        let usage = match self.engine.settings.lfu() {
            None => self.used_now,
            Some(settings) => before.used_lfu(self.now, settings, self.worker.random.next() as u32),
        };
        if usage != before {
            self.slots.slot_mut(key.slot()).table(db).set_usage(place, usage);
        }
    }

    #[inline(always)]
    fn look_in(&mut self, db: u16, key: &Key<'_>) -> Option<(Place, Usage)> {
        match self.slots.find(db, key, self.now) {
            (Found::Missing, _) => None,
            (Found::Live(place), usage) => Some((place, usage)),
            (Found::Expired(place), usage) => self.look_at_expired(db, key, place).then_some((place, usage)),
        }
    }

    /// Deals with a key whose time has come; says whether the command sees it all the same.
    #[cold]
    fn look_at_expired(&mut self, db: u16, key: &Key<'_>, place: Place) -> bool {
        if self.session.origin == Origin::Master {
            return true;
        }
        let settings = &self.engine.settings;
        let hides = settings.replica.load(Ordering::Relaxed) || settings.gate().intersects(Gate::PAUSED);
        // A replica that takes writes of its own: one must not come to lie beside the other.
        let replaces = || Registry::the().all()[self.index].command.flags.contains(Flags::WRITE);
        if !hides || replaces() {
            let dropped = self.slots.slot_mut(key.slot()).table(db).remove(place, key);
            self.discard(dropped);
        }
        if !hides {
            self.engine.key_gone(db, key.slot(), key.bytes());
            add(&self.worker.stats.expired_keys, 1);
        }
        false
    }

    /// [`Context::find`] for a command that reads: counts a hit or a miss.
    #[inline]
    pub fn read(&mut self, key: &Key<'_>) -> Option<Place> {
        let found = self.use_in(self.session.db, key);
        self.count_read(found)
    }

    /// [`Context::peek`] for a command that reads: counts a hit or a miss.
    pub fn glance(&mut self, key: &Key<'_>) -> Option<Place> {
        let found = self.peek(key);
        self.count_read(found)
    }

    #[inline]
    fn count_read(&mut self, found: Option<Place>) -> Option<Place> {
        let counter = if found.is_some() {
            &self.worker.stats.keyspace_hits
        } else {
            &self.worker.stats.keyspace_misses
        };
        add(counter, 1);
        found
    }

    /// The string at `place`.
    pub fn string(&self, key: &Key<'_>, place: Place) -> Result<Str<'_>, CommandError> {
        match self.view(key).value(place) {
            Value::String(string) => Ok(string),
            _ => Err(CommandError::WrongType),
        }
    }

    /// Puts a value and its expiry under `key`, which was found at `found`.
    pub fn put(&mut self, key: &Key<'_>, found: Option<Place>, value: NewValue<'_>, expiry: Option<Millis>) {
        self.put_in(self.session.db, key, found, value, expiry);
    }

    /// [`Context::put`] in another database.
    pub fn put_in(
        &mut self,
        db: u16,
        key: &Key<'_>,
        found: Option<Place>,
        value: NewValue<'_>,
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
    pub fn put_made(&mut self, key: &Key<'_>, found: Option<Place>, value: Detached, expiry: Option<Millis>) {
        if let Some(place) = found {
            let dropped = self.table(key).remove(place, key);
            self.discard(dropped);
        }
        self.table(key).attach(key, value, expiry);
        self.modified(key);
    }

    /// Takes out `key`, which lies at `place`.
    pub fn delete(&mut self, key: &Key<'_>, place: Place) {
        let dropped = self.table(key).remove(place, key);
        self.discard(dropped);
        self.modified(key);
    }

    /// Makes `key`, which lies at `place`, expire at `at`, and logs that. A time that has come deletes
    /// the key at once, except on a replica: its master says when keys go.
    pub fn expire_at(&mut self, key: &Key<'_>, place: Place, at: Millis) {
        if at <= self.now && self.deletes_expired() {
            self.delete(key, place);
            self.effect(&[b"DEL", key.bytes()]);
            return;
        }
        self.table(key).set_expiry(place, key, Some(at));
        self.modified(key);
        let mut digits = itoa::Buffer::new();
        self.effect(&[b"PEXPIREAT", key.bytes(), digits.format(at.0).as_bytes()]);
    }

    /// Makes `key`, which lies at `place`, stay, and logs that; says whether it would have expired.
    pub fn persist(&mut self, key: &Key<'_>, place: Place) -> bool {
        let table = self.table(key);
        if table.expiry(place).is_none() {
            return false;
        }
        table.set_expiry(place, key, None);
        self.modified(key);
        self.effect(&[b"PERSIST", key.bytes()]);
        true
    }

    /// Whether a key whose time has come is deleted here: not on a replica.
    pub(crate) fn deletes_expired(&self) -> bool {
        self.session.origin == Origin::Client && !self.engine.settings.replica.load(Ordering::Relaxed)
    }

    /// Says that `key` has another value or another expiry than before.
    pub fn modified(&mut self, key: &Key<'_>) {
        self.modified_in(self.session.db, key);
    }

    /// [`Context::modified`] in another database.
    pub fn modified_in(&mut self, db: u16, key: &Key<'_>) {
        self.engine.changed(db, key.slot(), key.bytes(), Some(self.session.id));
        self.changed(1);
    }

    /// Says that the command changed `count` things. Unless [`Context::effect`] says otherwise, it is
    /// appended to the log as the client sent it.
    pub fn changed(&mut self, count: u64) {
        self.worker.effects.changes += count;
    }

    /// Appends this to the log in place of what the client sent, where that would not give the same
    /// result on another node or at another time. May be called several times.
    pub fn effect(&mut self, args: &[&[u8]]) {
        self.worker.effects.rewritten = true;
        self.worker.effects.push(args.iter().copied());
    }

    /// Appends the command to the log as the client sent it, though it changes no key. A replica's log has
    /// what its master sends.
    pub fn replicate(&mut self) {
        if self.deletes_expired() {
            self.worker.effects.rewritten = true;
            self.worker.effects.push(self.args.iter());
        }
    }

    /// Appends what the command changed, in database `db`.
    pub(crate) fn append_effects(&mut self, db: u16) {
        let Worker { effects, stats, .. } = &mut *self.worker;
        add(&stats.changes, effects.total_changes);
        if effects.any {
            self.session.last_write = effects.append(&*self.engine.log, db);
        }
        effects.clear();
    }

    /// Replies with an error and counts it.
    pub(crate) fn refuse(&mut self, error: &CommandError) {
        let text = error.to_string();
        self.worker.stats.count_error(&text);
        self.reply.error(&text);
    }

    /// Takes back a reply that began at `start` if the client does not want it (CLIENT REPLY).
    pub(crate) fn keep_reply_from(&mut self, start: usize) {
        if matches!(self.session.mute, Mute::This | Mute::Everything) {
            self.reply.truncate(start);
        }
        if self.session.mute == Mute::This {
            self.session.mute = Mute::Nothing;
        }
    }

    /// Notes the keys that a client which tracks them has read.
    #[cold]
    pub(crate) fn note_reads(&mut self, command: &'static Command) {
        let client = &self.session.client;
        if !command.flags.contains(Flags::READONLY) || !client.notes_reads() {
            return;
        }
        let (engine, args) = (self.engine, self.args);
        command.visit_keys(args, &mut |index, _| {
            let key = &args[index];
            engine.tracking.note(&engine.clients, Slot::of_key(key), key, client.id);
        });
    }

    /// A uniform random number.
    pub fn random(&mut self) -> u64 {
        self.worker.random.next()
    }

    /// Visits every slot in rising order, each locked only while it is visited unless the command holds
    /// them all. Only for commands without keys.
    pub fn each_slot(&mut self, mut visit: impl FnMut(Slot, &mut SlotData)) {
        for slot in Slot::all() {
            self.with_slot(slot, |data| visit(slot, data));
        }
    }

    /// Visits one slot as [`Context::each_slot`] does.
    pub fn with_slot<R>(&mut self, slot: Slot, visit: impl FnOnce(&mut SlotData) -> R) -> R {
        if self.holds_all {
            visit(self.slots.slot_mut(slot))
        } else {
            visit(&mut self.engine.keyspace.lock(slot))
        }
    }

    /// How many keys the client's database has in `slot`.
    pub fn slot_len(&mut self, slot: Slot) -> usize {
        let db = self.session.db;
        if db == 0 && !self.holds_all {
            return self.engine.keyspace.slot_len(slot);
        }
        self.with_slot(slot, |data| data.table_if(db).map_or(0, Table::len))
    }

    /// Takes all keys out of one database, or of all, and says how many there were. The command must hold all
    /// slots. They are dropped when the slots are free again, by this thread if the client waits for that.
    pub fn clear(&mut self, only: Option<u16>, wait: bool) -> usize {
        for db in (0..self.engine.keyspace.databases()).filter(|db| only.is_none_or(|only| only == *db)) {
            self.touch_watched(&[db]);
        }
        let (mut removed, mut tables) = (0, Vec::new());
        for slot in self.slots.iter_mut() {
            for db in only.map_or_else(|| slot.databases(), |db| db..db + 1) {
                let taken = slot.take(db);
                removed += taken.keys;
                tables.extend(taken.table);
            }
        }
        if wait {
            self.worker.garbage.append(&mut tables);
        } else {
            self.worker.garbage.append(&mut self.engine.bin.discard_tables(tables));
        }
        removed
    }

    /// Whoever watches a key of these databases that is there in one of them sees it change.
    fn touch_watched(&mut self, dbs: &[u16]) {
        let (engine, slots) = (self.engine, &mut self.slots);
        for db in dbs {
            engine.watches.touch_where(*db, |bytes| {
                let key = engine.keyspace.key(bytes);
                let slot = slots.slot_mut(key.slot());
                dbs.iter().any(|db| slot.table(*db).find(&key, Millis(i64::MIN)) != Found::Missing)
            });
        }
    }

    /// Exchanges two databases. The command must hold all slots.
    pub fn swap(&mut self, a: u16, b: u16) {
        self.touch_watched(&[a, b]);
        for slot in self.slots.iter_mut() {
            slot.swap(a, b);
        }
    }

    /// Shows other clients that this command is what the client is doing.
    pub(crate) fn publish(&self) {
        self.session.publish(self.now, self.index);
    }

    /// Lets go of a value that left its table.
    pub fn discard(&self, dropped: Dropped) {
        self.engine.bin.discard(dropped);
    }
}
