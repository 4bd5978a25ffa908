//! The context of a command handler: client, arguments, reply, locked keys, and the reporting of changes.
//!
//! State that the dispatcher keeps across commands is private to it; handlers cannot access the fields that it sets for
//! each command.

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

use super::{Caller, Command, CommandSet, Flags, RegisteredCommand};
use crate::clients::Client;
use crate::engine::{CommandFailure, Engine, Worker};
use crate::error::CommandError;
use crate::keys::KeyFlags;
use crate::long_commands::LongCommandSlots;
use crate::notifications::EventClass;
use crate::session::{CommandOrigin, Session};
use crate::stats::add;
use crate::waiting::ReadyKey;

/// The context of a running command. The commands of one batch of requests share a context, including those of its
/// transactions; only a call of a script has its own.
pub struct Context<'a> {
    /// The engine, with the state shared by all connections.
    pub engine: &'a Engine,
    /// The command set, by names and numbers.
    pub commands: &'a CommandSet,
    /// The client's session.
    pub session: &'a mut Session,
    /// The arguments, with the command's name first.
    pub args: Args<'a>,
    /// The reply buffer.
    pub reply: Writer<'a>,
    /// The slots that are locked for the command.
    pub slots: LockedSlots<'a>,
    /// Wall clock at the start of the batch.
    pub now: Millis,
    pub(crate) worker: &'a mut Worker,
    pub(crate) command_index: usize,
    /// The key that was hashed when the batch was prefetched, with its argument index.
    prefetched_key: Option<&'a (usize, Key<'a>)>,
    /// Keys hashed while the slots of this or an earlier command were locked.
    pub(crate) keys: Vec<Key<'a>>,
    /// Index in `keys` of the key that is likely to be requested next.
    next_key: Cell<usize>,
    pub(crate) holds_all_slots: bool,
    /// The permission to lock further slots, if the command has it.
    pub(crate) global_lock: Option<GlobalLock<'a>>,
    /// The slots of a command that runs in the background. Workers that serve other clients should not wait for these
    /// slots.
    pub(crate) long_slots: Option<LongCommandSlots<'a>>,
    /// On whose behalf the command runs.
    pub(crate) caller: Caller,
    /// The slot of the running transaction's keys, in cluster mode.
    pub(crate) transaction_slot: Option<Slot>,
    /// The usage data stored in each key that the command accesses. LFU also needs the key's previous counter.
    access_stamp: Usage,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("args", &self.args).finish_non_exhaustive()
    }
}

impl<'a> Context<'a> {
    /// Creates a context; [`Context::begin_command`] then prepares it for each command.
    pub(crate) fn new(
        engine: &'a Engine,
        commands: &'a CommandSet,
        worker: &'a mut Worker,
        session: &'a mut Session,
        now: Millis,
        reply: Writer<'a>,
    ) -> Self {
        let caller = Caller::of_session(session);
        Self {
            engine,
            commands,
            session,
            args: Args::default(),
            reply,
            slots: LockedSlots::default(),
            now,
            worker,
            command_index: 0,
            prefetched_key: None,
            keys: Vec::new(),
            next_key: Cell::new(0),
            holds_all_slots: false,
            global_lock: None,
            long_slots: None,
            caller,
            transaction_slot: None,
            access_stamp: Usage::with_access_time(now),
        }
    }

    /// Starts a command whose slots are locked (all slots if `holds_all_slots`). `key` is the key that was hashed
    /// during prefetching.
    #[inline(always)]
    pub(crate) fn begin_command(
        &mut self,
        entry: &RegisteredCommand,
        args: Args<'a>,
        key: Option<&'a (usize, Key<'a>)>,
        holds_all_slots: bool,
    ) {
        (self.command_index, self.args, self.prefetched_key, self.holds_all_slots) =
            (entry.index, args, key, holds_all_slots);
    }

    /// Prepares the context for the commands of a transaction, with the locks that EXEC has taken for all of them.
    /// `slot` is the slot of their keys, in cluster mode.
    pub(crate) fn begin_transaction(
        &mut self,
        slots: LockedSlots<'a>,
        global_lock: Option<GlobalLock<'a>>,
        slot: Option<Slot>,
    ) {
        (self.slots, self.global_lock, self.transaction_slot) = (slots, global_lock, slot);
        self.caller = Caller::Exec;
    }

    /// Releases the locks of a transaction, after which the context serves the client's further commands.
    pub(crate) fn end_transaction(&mut self) {
        self.slots.release();
        (self.global_lock, self.transaction_slot, self.holds_all_slots) = (None, None, false);
        self.caller = Caller::of_session(self.session);
    }

    /// Creates the context of a command that the running script calls, which may use these locked slots, or all if
    /// `None`. It borrows this context until the call ends, because the arguments and the reply of a call live only
    /// until the script's next call.
    pub(crate) fn for_script_call<'c>(
        &'c mut self,
        slots: Option<&[Slot]>,
        reply: Writer<'c>,
    ) -> Context<'c> {
        let slots = match slots {
            None => self.slots.lend_all(),
            Some(slots) => self.slots.lend(slots),
        };
        let Self { engine, commands, worker, session, now, .. } = self;
        let mut context = Context::new(engine, commands, worker, session, *now, reply);
        (context.slots, context.caller) = (slots, Caller::Script);
        context
    }

    /// Returns argument `index` as a key whose slot is locked.
    ///
    /// # Errors
    /// The command did not declare this key ([`Command::visit_keys`]). This is a bug in the command, detected before it
    /// can do harm.
    #[inline]
    pub fn key(&self, index: usize) -> Result<Key<'a>, CommandError> {
        match self.prefetched_key {
            Some(&(place, key)) if place == index => Ok(key),
            _ => self.hashed_key(index),
        }
    }

    /// Returns an argument as a key. Handlers request keys in argument order, so the hash is usually known already.
    fn hashed_key(&self, index: usize) -> Result<Key<'a>, CommandError> {
        let Some(word) = self.args.get(index) else { return Err(self.undeclared_key_error()) };
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
        if self.slots.is_locked(key.slot()) && self.is_declared(index) {
            Ok(key)
        } else {
            Err(self.undeclared_key_error())
        }
    }

    /// Returns whether argument `index` is a declared key. For commands with plain key specs, release builds skip the
    /// search and rely on the slot being locked. So do all builds for requests with many arguments, because searching
    /// all keys for each key would take quadratic time.
    #[inline]
    fn is_declared(&self, index: usize) -> bool {
        const MAX_WORDS_SEARCHED: usize = 256;
        let command =
            self.commands.command_by_number(self.command_index).command_for_request(self.args).command;
        let is_exact =
            (cfg!(debug_assertions) || command.has_key_parser()) && self.args.len() <= MAX_WORDS_SEARCHED;
        !is_exact || command.declares_key(self.args, index)
    }

    /// Counts an access to an undeclared key and returns the error for it.
    #[cold]
    fn undeclared_key_error(&self) -> CommandError {
        let name = &self.commands.command_by_number(self.command_index).full_name;
        self.engine.diagnostics.undeclared_keys.record_access(name);
        CommandError::UndeclaredKey(name.clone())
    }

    /// Returns argument `index`, which must exist by the command's arity.
    #[must_use]
    #[inline]
    pub fn arg(&self, index: usize) -> &'a [u8] {
        self.args.get(index).expect("a handler asks only for arguments that its arity promises")
    }

    /// Parses argument `index` as a signed integer.
    ///
    /// # Errors
    /// The argument is not an integer, or is out of range.
    #[inline]
    pub fn integer_arg(&self, index: usize) -> Result<i64, CommandError> {
        resp::parse_i64(self.arg(index)).ok_or(CommandError::NotInteger)
    }

    /// Parses argument `index` as a double.
    pub fn double_arg(&self, index: usize) -> Option<f64> {
        self.parse_double(self.arg(index))
    }

    /// Parses a double. A master may be a Redis 7.0, which accepts more formats than clients may use here.
    pub fn parse_double(&self, text: &[u8]) -> Option<f64> {
        match self.session.origin() {
            CommandOrigin::Client => resp::parse_double(text),
            CommandOrigin::Master | CommandOrigin::SlotMigrationSource => resp::parse_strtod(text),
        }
    }

    /// Reports a changed value or expiry of `key`.
    pub fn report_modified(&mut self, key: &Key<'_>) {
        self.report_modified_in(self.session.db(), key);
    }

    /// Reports a changed key in another database.
    pub fn report_modified_in(&mut self, db: u16, key: &Key<'_>) {
        self.report_modified_without_counting_change(db, key);
        self.count_changes(1);
    }

    /// Reports a changed key that counts as several changes in `rdb_changes_since_last_save`, as in Valkey. A count of
    /// 0 is taken as one, since a modified key is logged.
    pub fn report_changes(&mut self, key: &Key<'_>, changes: usize) {
        self.report_modified_without_counting_change(self.session.db(), key);
        self.count_changes(changes.max(1) as u64);
    }

    /// Reports a changed key whose change was already counted together with that of another key.
    pub fn report_modified_without_counting_change(&mut self, db: u16, key: &Key<'_>) {
        self.engine.report_changed(db, key.slot(), key.bytes(), Some(self.session.id()));
        if self.engine.scheduling.wait_queues.may_have_waiters(key.slot()) {
            self.queue_ready_key(db, key.slot(), key.bytes());
        }
    }

    /// Publishes a keyspace event of `key` ([`crate::notifications`]), with the event's name in Redis. Called after
    /// [`Context::report_modified`].
    #[inline]
    pub fn notify(&self, class: EventClass, event: &str, key: &Key<'_>) {
        self.notify_in(self.session.db(), class, event, key);
    }

    /// Publishes a keyspace event of a key in another database.
    #[inline]
    pub fn notify_in(&self, db: u16, class: EventClass, event: &str, key: &Key<'_>) {
        if self.engine.settings.notified_event_classes().contains(EventClass::NEW) {
            self.publish_new_keys();
        }
        self.engine.notify(class, event, db, key.bytes());
    }

    /// Marks a key as ready if clients wait for it; they are served after the command.
    #[cold]
    pub(crate) fn queue_ready_key(&mut self, db: u16, slot: Slot, key: &[u8]) {
        let ready = &mut self.worker.ready_keys;
        // Duplicates are harmless; only repeats of the last key are skipped.
        let noted = ready.last().is_some_and(|last| last.db == db && last.key == key);
        if !noted && self.engine.scheduling.wait_queues.has_waiters(db, slot, key) {
            ready.push(ReadyKey::new(db, key));
        }
    }

    /// Adds `count` to the number of changes. The command is logged as the client sent it unless
    /// [`Context::log_effect`] replaces it.
    #[inline]
    pub fn count_changes(&mut self, count: u64) {
        self.worker.effects.change_count += count;
    }

    /// Counts changes that are logged only through [`Context::log_effect`], if at all.
    pub fn count_unlogged_changes(&mut self, count: u64) {
        self.count_changes(count);
        self.worker.effects.is_rewritten = true;
    }

    /// Logs this command in place of the client's, for commands that would give another result on another node or at
    /// another time. Several calls log several commands.
    pub fn log_effect(&mut self, args: &[&[u8]]) {
        self.worker.effects.is_rewritten = true;
        self.worker.effects.push(args.iter().copied());
    }

    /// Logs the command as sent although it changes no key. On a replica this does nothing, since the log contains only
    /// the master's stream.
    pub fn replicate(&mut self) {
        if self.deletes_expired() {
            self.worker.effects.is_rewritten = true;
            self.worker.effects.push_request(self.args);
        }
    }

    /// Completes the effects of a command; they stay queued for the log.
    #[inline]
    pub(crate) fn finish_effects(&mut self) {
        let Worker { effects, stats, .. } = &mut *self.worker;
        add(&stats.change_count, effects.finish_group());
    }

    /// Appends the queued effects to the log, for database `db`, while the slots are still locked.
    #[inline]
    pub(crate) fn append_effects(&mut self, db: u16) {
        let changes_data = self.worker.effects.changes_data();
        if let Some(end) = self.worker.effects.append(&*self.engine.log, db) {
            self.session.record_write(end, changes_data);
        }
    }

    /// Records the keys read by a client with tracking.
    #[cold]
    pub(crate) fn record_reads(&mut self, command: &'static Command) {
        let client = self.session.client();
        // Commands called by a script record their own keys, and the script need not read all keys that it declares.
        let is_script = matches!(command.runner, crate::command::CommandRunner::Script(_));
        if !command.flags.contains(Flags::READONLY) || is_script || !client.records_reads() {
            return;
        }
        let (engine, args) = (self.engine, self.args);
        command.visit_keys(args, &mut |index, flags| {
            if flags.contains(KeyFlags::NOT_KEY) {
                return;
            }
            let key = &args[index];
            engine.notifications.tracking.record_read(&engine.clients, Slot::of_key(key), key, client.id);
        });
    }

    /// Registers clients that the command closed or whose permissions it changed. The command's reply is sent once
    /// those clients have stopped, after the slot locks are released ([`Engine::await_revoked_clients`]).
    pub fn register_revoked(&mut self, clients: impl IntoIterator<Item = Arc<Client>>) {
        self.worker.revoked_clients.extend(clients);
    }

    /// Writes a push message in the reply's position; it is sent even if replies are suppressed.
    pub fn write_push_message(&mut self, write: impl FnOnce(&mut Writer<'_>)) {
        if self.session.is_reply_suppressed() {
            write(&mut Writer::new(&mut self.worker.push_messages, self.session.protocol()));
        } else {
            write(&mut self.reply);
        }
    }

    /// Returns a uniform random number.
    pub fn random_u64(&mut self) -> u64 {
        self.worker.random.next_u64()
    }

    /// Returns the worker's monotonic clock in nanoseconds.
    #[inline]
    pub fn monotonic_nanos(&self) -> u64 {
        (self.worker.clock_nanos)()
    }

    /// Returns the wall clock in microseconds.
    pub fn wall_micros(&self) -> i64 {
        match self.engine.wall_clock_offset_micros.load(Ordering::Relaxed) {
            // While the clock offset is unknown, use the time at which the batch was read.
            0 => self.now.0 * 1000,
            base => base + (self.monotonic_nanos() / 1000) as i64,
        }
    }

    /// Returns the time for TIME, which is frozen during a transaction or script.
    pub fn frozen_wall_micros(&mut self) -> i64 {
        let micros = self.wall_micros();
        match self.caller {
            Caller::Exec | Caller::Script => *self.worker.frozen_wall_micros.get_or_insert(micros),
            Caller::Client | Caller::Waiter | Caller::Master | Caller::SlotMigrationSource => micros,
        }
    }

    /// Returns whether the command may block: only for a client, outside of transactions and scripts.
    #[inline]
    pub fn can_block(&self) -> bool {
        match self.caller {
            Caller::Client | Caller::Waiter => true,
            Caller::Exec | Caller::Script | Caller::Master | Caller::SlotMigrationSource => false,
        }
    }

    pub(crate) fn reply_error(&mut self, error: &CommandError) {
        let text = error.to_string();
        self.worker.stats.count_error(&text);
        self.reply.error(&text);
        self.record_failure(&text, matches!(error, CommandError::NoEffect(_)));
    }

    /// Records an error for the process, because nobody reads the replies to another node's stream.
    pub(crate) fn record_failure(&mut self, error: &str, is_harmless: bool) {
        if self.session.origin().is_stream() {
            let request_index = self.worker.request_index;
            let failure = CommandFailure { request_index, error: error.to_owned(), is_harmless };
            self.worker.failures.push(failure);
        }
    }

    /// Returns whether a script runs the command. Results for scripts must not depend on the memory layout.
    pub fn is_called_by_script(&self) -> bool {
        self.caller == Caller::Script
    }

    /// Returns whether the command has locked all slots.
    pub fn holds_all_slots(&self) -> bool {
        self.holds_all_slots
    }

    /// Publishes this command as the client's last one, for CLIENT LIST.
    pub fn publish_last_command(&self) {
        self.session.publish(self.now, self.command_index);
    }
}
