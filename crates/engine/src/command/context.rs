//! The state that a handler works with: the client, the command's arguments and reply, the keys of its slots, and the
//! way to say what it changed.
//!
//! State that the dispatcher keeps from one command to the next is its own; handlers cannot reach the fields that it
//! sets here for each command.

mod keys;
pub(crate) mod names;
mod new_keys;
pub(crate) mod pinned;
mod slots;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use clock::Millis;
use keyspace::{GlobalLock, Key, LockedSlots, Usage};
use resp::{Args, Writer};
use slot_routing::Slot;

use super::{Caller, Command, Commands, Flags, Registered};
use crate::clients::Client;
use crate::engine::{Engine, Worker};
use crate::error::CommandError;
use crate::keys::KeyFlags;
use crate::long_commands::LongSlots;
use crate::notifications::Class;
use crate::session::{Origin, Session};
use crate::stats::add;
use crate::waiting::Ready;

/// A command on its way: the client, the slots that are locked, its arguments, its reply and its effects.
pub struct Context<'a> {
    /// The engine.
    pub engine: &'a Engine,
    /// The commands that there are.
    pub commands: &'a Commands,
    /// The client.
    pub session: &'a mut Session,
    /// The command's name first.
    pub args: Args<'a>,
    /// Where its reply goes.
    pub reply: Writer<'a>,
    /// The slots that the command's key specs name.
    pub slots: LockedSlots<'a>,
    /// The wall clock when the batch began.
    pub now: Millis,
    pub(crate) worker: &'a mut Worker,
    /// The command's number.
    pub(crate) index: usize,
    /// The key that was hashed when the batch was prepared, and its place.
    prepared: Option<&'a (usize, Key<'a>)>,
    /// The keys that were hashed when the slots of a command with several were locked, it or one before it.
    pub(crate) keys: Vec<Key<'a>>,
    /// Which of them is most likely asked for next.
    next_key: Cell<usize>,
    /// Whether `slots` are all there are.
    pub(crate) holds_all: bool,
    /// The right to wait for more slots, if the command has it.
    pub(crate) turn: Option<GlobalLock<'a>>,
    /// While it runs in the background: the slots that others are not to wait for elsewhere.
    pub(crate) long: Option<LongSlots<'a>>,
    /// The caller that the command runs for.
    pub(crate) caller: Caller,
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
        commands: &'a Commands,
        worker: &'a mut Worker,
        session: &'a mut Session,
        now: Millis,
        reply: Writer<'a>,
    ) -> Self {
        let caller = Caller::of(session);
        Self {
            engine,
            commands,
            session,
            args: Args::default(),
            reply,
            slots: LockedSlots::default(),
            now,
            worker,
            index: 0,
            prepared: None,
            keys: Vec::new(),
            next_key: Cell::new(0),
            holds_all: false,
            turn: None,
            long: None,
            caller,
            used_now: Usage::lru(now),
        }
    }

    /// A command begins whose slots are locked, all of them if `holds_all`; `key` is the one that was hashed
    /// when its batch was prepared.
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        entry: &Registered,
        args: Args<'a>,
        key: Option<&'a (usize, Key<'a>)>,
        holds_all: bool,
    ) {
        (self.index, self.args, self.prepared, self.holds_all) = (entry.index, args, key, holds_all);
    }

    /// Argument `index` as a key, whose slot is locked.
    ///
    /// # Errors
    /// The command did not declare that key ([`Command::visit_keys`]): a fault of the command, found before it does any
    /// harm.
    #[inline]
    pub fn key(&self, index: usize) -> Result<Key<'a>, CommandError> {
        match self.prepared {
            Some(&(place, key)) if place == index => Ok(key),
            _ => self.hashed(index),
        }
    }

    /// A word as a key, which most likely was hashed before: handlers ask for their keys in the order of their words.
    fn hashed(&self, index: usize) -> Result<Key<'a>, CommandError> {
        let Some(word) = self.args.get(index) else { return Err(self.undeclared()) };
        let next = self.next_key.get();
        for at in [next, 0] {
            if let Some(key) = self.keys.get(at)
                && std::ptr::eq(key.bytes(), word)
            {
                self.next_key.set(at + 1);
                return Ok(*key);
            }
        }
        let key = self.engine.keyspace.key(word);
        if self.slots.has(key.slot()) && self.is_declared(index) { Ok(key) } else { Err(self.undeclared()) }
    }

    /// Whether argument `index` is among the keys that the command declared. Where key specs say where keys stand, the
    /// lock of the slot is proof enough in a release build. So it is for a long request: to look for each of its keys
    /// among all of them would take quadratic time.
    #[inline]
    fn is_declared(&self, index: usize) -> bool {
        const MOST_WORDS_SEARCHED: usize = 256;
        let command = self.commands.entry(self.index).row_for(self.args).command;
        let is_exact =
            (cfg!(debug_assertions) || command.has_key_parser()) && self.args.len() <= MOST_WORDS_SEARCHED;
        !is_exact || command.declares(self.args, index)
    }

    /// Counts a key that a handler asked for and that the command did not declare.
    #[cold]
    fn undeclared(&self) -> CommandError {
        let name = &self.commands.entry(self.index).full_name;
        self.engine.undeclared_keys.note(name);
        CommandError::UndeclaredKey(name.clone())
    }

    /// Argument `index`, which the arity promises.
    #[must_use]
    #[inline]
    pub fn arg(&self, index: usize) -> &'a [u8] {
        self.args.get(index).expect("a handler asks only for arguments that its arity promises")
    }

    /// Argument `index` as a signed integer.
    ///
    /// # Errors
    /// It is none, or out of range.
    #[inline]
    pub fn integer(&self, index: usize) -> Result<i64, CommandError> {
        resp::parse_i64(self.arg(index)).ok_or(CommandError::NotInteger)
    }

    /// Argument `index` as a double.
    pub fn double(&self, index: usize) -> Option<f64> {
        self.double_of(self.arg(index))
    }

    /// `text` as a double. A master may be a Redis 7.0, which takes more for one than a client may say here.
    pub fn double_of(&self, text: &[u8]) -> Option<f64> {
        match self.session.origin {
            Origin::Client => resp::parse_double(text),
            Origin::Master | Origin::Source => resp::parse_strtod(text),
        }
    }

    /// Says that `key` has another value or another expiry than before.
    pub fn modified(&mut self, key: &Key<'_>) {
        self.modified_in(self.session.db, key);
    }

    /// [`Context::modified`] in another database.
    pub fn modified_in(&mut self, db: u16, key: &Key<'_>) {
        self.modified_uncounted(db, key);
        self.changed(1);
    }

    /// [`Context::modified`] by that many changes, as Valkey counts them (`rdb_changes_since_last_save`). 0 counts as
    /// one, since a key that was modified is logged.
    pub fn modified_times(&mut self, key: &Key<'_>, changes: usize) {
        self.modified_uncounted(self.session.db, key);
        self.changed(changes.max(1) as u64);
    }

    /// [`Context::modified_in`] where the change counts as one with that of another key.
    pub fn modified_uncounted(&mut self, db: u16, key: &Key<'_>) {
        self.engine.changed(db, key.slot(), key.bytes(), Some(self.session.id));
        if self.engine.waits.any(key.slot()) {
            self.note_ready(db, key.slot(), key.bytes());
        }
    }

    /// Tells subscribers what happened to `key` ([`crate::notifications`]). To be called after
    /// [`Context::modified`], with the event that Redis has for it.
    #[inline]
    pub fn notify(&self, class: Class, event: &str, key: &Key<'_>) {
        self.notify_in(self.session.db, class, event, key);
    }

    /// [`Context::notify`] of a key of another database.
    #[inline]
    pub fn notify_in(&self, db: u16, class: Class, event: &str, key: &Key<'_>) {
        if self.engine.settings.notified().contains(Class::NEW) {
            self.notify_new();
        }
        self.engine.notify(class, event, db, key.bytes());
    }

    /// Waiters for the key, if there are any, are served after the command.
    #[cold]
    pub(crate) fn note_ready(&mut self, db: u16, slot: Slot, key: &[u8]) {
        let ready = &mut self.worker.ready;
        // Noting a key twice does no harm; repeated notes of the last key are left out.
        let noted = ready.last().is_some_and(|last| last.db == db && last.key == key);
        if !noted && self.engine.waits.has(db, slot, key) {
            ready.push(Ready::new(db, key));
        }
    }

    /// Says that the command changed `count` things. Unless [`Context::effect`] says otherwise, it is
    /// appended to the log as the client sent it.
    #[inline]
    pub fn changed(&mut self, count: u64) {
        self.worker.effects.changes += count;
    }

    /// Counts changes of which only [`Context::effect`] tells the log, if they need telling at all.
    pub fn changed_apart(&mut self, count: u64) {
        self.changed(count);
        self.worker.effects.rewritten = true;
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
            self.worker.effects.push_request(self.args);
        }
    }

    /// The command is done: what it changed waits to be appended to the log.
    #[inline]
    pub(crate) fn seal_effects(&mut self) {
        let Worker { effects, stats, .. } = &mut *self.worker;
        add(&stats.changes, effects.seal());
    }

    /// Appends what commands changed in database `db`. Their slots are still locked.
    #[inline]
    pub(crate) fn append_effects(&mut self, db: u16) {
        let changes_data = self.worker.effects.changes_data();
        if let Some(end) = self.worker.effects.append(&*self.engine.log, db) {
            self.session.last_write = end;
            if changes_data {
                self.session.last_change = end;
            }
        }
    }

    /// Notes the keys that a client which tracks them has read.
    #[cold]
    pub(crate) fn note_reads(&mut self, command: &'static Command) {
        let client = &self.session.client;
        // The commands that a script calls have noted theirs: it need not have read the keys that it declares.
        let is_script = matches!(command.run, crate::command::Run::Script(_));
        if !command.flags.contains(Flags::READONLY) || is_script || !client.notes_reads() {
            return;
        }
        let (engine, args) = (self.engine, self.args);
        command.visit_keys(args, &mut |index, flags| {
            if flags.contains(KeyFlags::NOT_KEY) {
                return;
            }
            let key = &args[index];
            engine.tracking.note(&engine.clients, Slot::of_key(key), key, client.id);
        });
    }

    /// These clients were ended, or go by other rules from now on: the caller hears of it once they do, when the
    /// command's slots are free ([`Engine::await_revoked`]).
    pub fn revoke(&mut self, clients: impl IntoIterator<Item = Arc<Client>>) {
        self.worker.revoked.extend(clients);
    }

    /// Writes what is no reply, though it stands where one would: the client gets it also if it wants no replies.
    pub fn announce(&mut self, write: impl FnOnce(&mut Writer<'_>)) {
        if self.session.is_mute() {
            write(&mut Writer::new(&mut self.worker.pushes, self.session.protocol));
        } else {
            write(&mut self.reply);
        }
    }

    /// A uniform random number.
    pub fn random(&mut self) -> u64 {
        self.worker.random.number()
    }

    /// The worker's monotonic clock, in nanoseconds.
    #[inline]
    pub fn nanos(&self) -> u64 {
        (self.worker.nanos)()
    }

    /// The wall clock, in microseconds.
    pub fn wall_micros(&self) -> i64 {
        match self.engine.wall_base.load(Ordering::Relaxed) {
            // The difference of the clocks is not known: the time when the batch of this command was read.
            0 => self.now.0 * 1000,
            base => base + (self.nanos() / 1000) as i64,
        }
    }

    /// The time that TIME tells: for commands that are one of several, of a transaction or a script, it stands still.
    pub fn told_micros(&mut self) -> i64 {
        let micros = self.wall_micros();
        match self.caller {
            Caller::Exec | Caller::Script => *self.worker.time_of_several.get_or_insert(micros),
            Caller::Client | Caller::Waiter | Caller::Master | Caller::Source => micros,
        }
    }

    /// Whether the command may wait: only a client's, that is not one of several.
    #[inline]
    pub fn may_wait(&self) -> bool {
        match self.caller {
            Caller::Client | Caller::Waiter => true,
            Caller::Exec | Caller::Script | Caller::Master | Caller::Source => false,
        }
    }

    /// Replies with an error and counts it.
    pub(crate) fn refuse(&mut self, error: &CommandError) {
        let text = error.to_string();
        self.worker.stats.count_error(&text);
        self.reply.error(&text);
    }

    /// Whether a script calls the command: what it sees must not depend on how values lie in memory.
    pub fn is_called_by_script(&self) -> bool {
        self.caller == Caller::Script
    }

    /// Whether the command holds every slot.
    pub fn holds_all(&self) -> bool {
        self.holds_all
    }

    /// Shows other clients that this command is what the client is doing.
    pub fn publish(&self) {
        self.session.publish(self.now, self.index);
    }
}
