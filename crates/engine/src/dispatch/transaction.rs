//! MULTI and EXEC: commands are queued, then run together while all their slots are held.
//!
//! A queue of the engine's own commands runs at once, and what it changed is logged as one transaction.
//! If the shell must carry out one of them (REPLICAOF, CONFIG SET), the queue is handed to the shell
//! ([`crate::NodeCommand::Exec`]), which runs it one after another: such commands wait for other things,
//! and nothing may wait while it holds slots.

use std::sync::atomic::Ordering;

use clock::Millis;
use keyspace::{Found, LockedSlots};
use slot_routing::{Access, Ownership, Slot};

use super::pipeline::Pipeline;
use super::slots::handle;
use super::{Admitted, Context, Flow, Invocation, Prepared, Ran};
use crate::clients::{Client, ClientFlags};
use crate::command::{Flags, NodeCommand, Run};
use crate::engine::Engine;
use crate::error::CommandError;
use crate::lookup::Registered;
use crate::session::{Origin, Session};
use crate::stats::add;
use crate::transaction::{MAX_QUEUED_BYTES, Transaction};
use crate::waiting::Outcome;

impl Engine {
    /// Queues a request of a session that said MULTI; `None` if it is one that runs at once.
    pub(super) fn queue<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &'r Prepared<'r>,
        asked: bool,
    ) -> Option<Result<(), CommandError>> {
        if request.found.is_some_and(|entry| entry.command.flags.contains(Flags::AT_ONCE)) {
            return None;
        }
        let admitted = self.admit(pipeline.context.session, request, pipeline.context.now);
        let queued = admitted.and_then(|admitted| self.check_queued(pipeline, request, asked, &admitted));
        let session = &mut *pipeline.context.session;
        let transaction = session.transaction.as_mut()?;
        let result = match queued {
            Ok(entry) => {
                transaction.push(entry, request.args);
                if transaction.bytes > MAX_QUEUED_BYTES && session.origin == Origin::Client {
                    session.closing = true;
                }
                let queued = transaction.queue.len() as i32;
                session.client.queued.store(queued, Ordering::Relaxed);
                session.client.queued_bytes.store(transaction.bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                transaction.failed = true;
                Err(error)
            }
        };
        Some(result)
    }

    fn check_queued<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &'r Prepared<'r>,
        asked: bool,
        admitted: &Admitted,
    ) -> Result<&'static Registered, CommandError> {
        let entry = admitted.entry;
        if entry.command.flags.contains(Flags::NO_MULTI) {
            let text = format!("ERR Command '{}' not allowed inside a transaction", entry.full_name);
            return Err(CommandError::Text(text.into()));
        }
        if self.topology.is_some() && !entry.command.keys.is_empty() {
            let served = self.lock(pipeline, request, entry, asked);
            pipeline.context.slots.release();
            served?;
        }
        Ok(entry)
    }

    /// Runs what was queued. Says whether the shell must do it instead.
    pub(super) fn exec(&self, context: &mut Context<'_>, asked: bool) -> Result<Flow, CommandError> {
        let Context { session, reply, now, .. } = context;
        let transaction = session.transaction.take().ok_or(CommandError::text("ERR EXEC without MULTI"))?;
        if transaction.failed {
            session.leave_transaction();
            self.unwatch(session);
            return Err(CommandError::text("EXECABORT Transaction discarded because of previous errors."));
        }
        let mut slots = self.lock_transaction(session, &transaction, asked, *now);
        // As for any command: what holds may be another since this was admitted.
        let flags = transaction.flags_of_exec(Flags::LOADING | Flags::STALE);
        let gate = self.settings.gate();
        let passed = match (session.origin, &mut slots) {
            (Origin::Client, Ok(slots)) => match self.is_slot_held(gate, flags, slots) {
                true => Ok(Flow::Paused),
                false => self.pass_held(session, gate, flags, transaction.has_keys()),
            },
            _ => Ok(Flow::Done),
        };
        if passed == Ok(Flow::Paused) {
            drop(slots);
            session.transaction = Some(transaction);
            return Ok(Flow::Paused);
        }
        session.leave_transaction();
        let slots = passed.map_err(aborted).and(slots).map(|mut slots| {
            let changed = session.watching.is_dirty() || self.has_expired_watch(session, &mut slots, *now);
            (!changed).then_some(slots)
        });
        self.unwatch(session);
        let Some(slots) = slots? else {
            reply.null_array();
            return Ok(Flow::Done);
        };
        if transaction.queue.iter().any(|(entry, _)| matches!(entry.command.run, Run::Node(_))) {
            drop(slots);
            for (_, request) in &transaction.queue {
                resp::encode_request(&mut session.replay, request.args().iter());
            }
            return Ok(Flow::Node(NodeCommand::Exec));
        }
        reply.array(transaction.queue.len());
        let logged = context.session.origin == Origin::Client && self.logs_under(gate);
        let is_whole = self.run_queue(context, &transaction, slots, logged);
        // HELLO among them holds for what follows, too.
        context.reply.set_protocol(context.session.protocol);
        if is_whole {
            return Ok(Flow::Done);
        }
        context.session.client.overflow();
        Ok(Flow::Close)
    }

    /// Runs queued commands under slots that are held already, and logs what they did as one, if it is `logged`. Says
    /// whether the client may have such a long reply.
    fn run_queue<'a>(
        &'a self,
        outer: &'a mut Context<'_>,
        transaction: &'a Transaction,
        slots: LockedSlots<'a>,
        logged: bool,
    ) -> bool {
        let reply = outer.reply.reborrow();
        let mut context = Context::new(self, outer.worker, outer.session, outer.now, reply);
        let holds_all = transaction.holds_all();
        (context.slots, context.is_one_of_many) = (slots, true);
        let (nanos, first_db) = (context.worker.nanos, context.session.db);
        context.worker.effects.start(logged);
        let mut logged_db = first_db;
        for (entry, request) in &transaction.queue {
            if context.session.db != logged_db {
                logged_db = context.session.db;
                context.worker.effects.select(logged_db);
            }
            context.begin(entry, request.args(), None, holds_all);
            let (start, begin) = (context.reply.len(), nanos());
            if self.is_denied(&mut context, entry) {
                continue;
            }
            context.show(entry, request.args(), false);
            let outcome = match entry.command.run {
                Run::Here(handler) => handle(&mut context, entry.command, handler),
                Run::MayBlock(handler) | Run::Script(handler) => handle(&mut context, entry.command, handler)
                    .map(|outcome| match outcome {
                        Outcome::Done | Outcome::Again => {}
                        Outcome::Block(wait) => (wait.nothing)(&mut context.reply),
                    }),
                Run::Node(_) | Run::Exec | Run::Container => {
                    unreachable!("the shell's commands make the shell run the queue")
                }
            };
            if context.session.tracks {
                context.note_reads(entry.command);
            }
            context.worker.effects.end_command(context.args);
            let (nanos, reply_len) =
                (nanos().saturating_sub(begin), context.reply.len().saturating_sub(start));
            let ran = Ran { entry, args: context.args, nanos, reply_len };
            self.account(&context.worker.stats, context.session, context.now, &ran);
            if let Err(error) = outcome {
                let text = error.to_string();
                context.worker.stats.count_failure(entry.index, &text);
                context.reply.truncate(start);
                context.reply.error(&text);
            }
        }
        if logged_db != first_db && context.worker.effects.any {
            // The log goes on as if nothing had been selected in between.
            context.worker.effects.select(first_db);
        }
        context.seal_effects();
        context.append_effects(first_db);
        let is_full = context.reply.is_full();
        if !context.worker.ready.is_empty() {
            self.serve_waiters(&mut context);
        }
        !is_full
    }

    /// Replies to a queued command that its client may no longer run; says whether it is one.
    fn is_denied(&self, context: &mut Context<'_>, entry: &Registered) -> bool {
        let Err(denied) = self.permits(context.session, entry, context.args) else { return false };
        self.note_denial(context.session, context.now, "multi", &denied);
        let text = denied.error_in_exec().to_string();
        add(&context.worker.stats.commands[entry.index].rejected, 1);
        context.worker.stats.count_error(&text);
        context.reply.error(&text);
        true
    }

    /// Locks everything that the queued commands touch and the session watches.
    fn lock_transaction(
        &self,
        session: &Session,
        transaction: &Transaction,
        asked: bool,
        now: Millis,
    ) -> Result<LockedSlots<'_>, CommandError> {
        let mut slots: Vec<Slot> = Vec::new();
        for (entry, request) in &transaction.queue {
            slots.extend(self.slots_of(entry, request.args()));
        }
        let routes = self.topology.is_some() && session.origin == Origin::Client;
        if routes && slots.iter().any(|slot| *slot != slots[0]) {
            return Err(CommandError::CrossSlot);
        }
        let routed = slots.first().copied();
        let goes_beyond = self.topology.is_none() && transaction.names_keys_later();
        let mut locked = if transaction.holds_all() || goes_beyond {
            self.lock_all(session)?
        } else {
            slots.extend(session.watching.keys.keys().map(|watched| Slot::of_key(&watched.key)));
            self.lock_these(session, &slots)?
        };
        let (Some(topology), Some(slot), Origin::Client) = (&self.topology, routed, session.origin) else {
            return Ok(locked);
        };
        let ownership = locked.slot(slot).ownership();
        if ownership != Ownership::Mine {
            let mut whole = Access { asking: asked, replica_read: true, keys: 0, missing: 0 };
            for (entry, request) in &transaction.queue {
                let call = Invocation { entry, args: request.args(), asked };
                let access = self.access(session, call, &mut locked, now);
                whole.replica_read &= access.replica_read || access.keys == 0;
                whole.keys += access.keys;
                whole.missing += access.missing;
            }
            self.check_route(&topology.load(), slot, ownership, whole, session.client.link.tls)?;
        }
        Ok(locked)
    }

    /// Whether a watched key's time has come since.
    fn has_expired_watch(&self, session: &Session, slots: &mut LockedSlots<'_>, now: Millis) -> bool {
        session.watching.keys.iter().filter(|(_, was_expired)| !**was_expired).any(|(watched, _)| {
            let key = self.keyspace.key(&watched.key);
            matches!(slots.slot_mut(key.slot()).table(watched.db).find(&key, now), Found::Expired(_))
        })
    }

    /// An EXEC that is refused as a whole ends its transaction, and says so; except that where the keys
    /// are served is told as for any other command. Any other command that is refused makes EXEC fail.
    pub(super) fn refused_exec(
        &self,
        session: &mut Session,
        request: &Prepared<'_>,
        error: CommandError,
    ) -> CommandError {
        let is_exec = request.found.is_some_and(|entry| matches!(entry.command.run, Run::Exec));
        if !is_exec {
            if let Some(transaction) = &mut session.transaction {
                transaction.failed = true;
            }
            return error;
        }
        self.discard(session);
        aborted(error)
    }

    /// UNWATCH
    pub(crate) fn unwatch(&self, session: &mut Session) {
        if session.watching.keys.is_empty() {
            return;
        }
        self.watches.stopped();
        session.client.watched.store(0, Ordering::Relaxed);
        session.client.watched_bytes.store(0, Ordering::Relaxed);
        for watched in session.watching.take().keys() {
            self.watches.unwatch(watched, session.id);
        }
    }

    /// DISCARD, without the question whether there is a transaction.
    pub fn discard(&self, session: &mut Session) {
        session.transaction = None;
        session.leave_transaction();
        self.unwatch(session);
    }

    /// How many clients watch keys.
    pub fn watching_clients(&self) -> usize {
        self.watches.clients()
    }

    /// How many keys are watched, each as often as it is.
    pub fn watched_keys(&self) -> usize {
        self.watches.keys()
    }

    /// Marks every transaction whose watched keys may have changed: all of them. For whoever replaces the
    /// whole data without running commands (a full synchronisation).
    pub fn touch_all_watched(&self) {
        self.tracking.all_changed(&self.clients);
        for db in 0..self.keyspace.databases() {
            self.watches.touch_where(db, |_| true);
        }
    }

    /// Forgets a session: what it watches, subscribes to, and that it is there. To be called when its
    /// connection is closed.
    pub fn disconnect(&self, session: &mut Session) {
        self.discard(session);
        self.forget_wait(session);
        self.stop_telling(&session.client);
        self.clients.disconnect(session.id);
    }

    /// A client is gone: it is told nothing any more.
    pub(crate) fn stop_telling(&self, client: &Client) {
        self.pubsub.unsubscribe_all(client);
        self.tracking.stop(client);
        self.stop_monitor(client);
    }
}

/// What EXEC replies if it is refused as a whole.
fn aborted(error: CommandError) -> CommandError {
    if error.is_about_cluster() {
        return error;
    }
    let text = error.to_string();
    let reason = text.strip_prefix("ERR ").unwrap_or(&text);
    CommandError::Text(format!("EXECABORT Transaction discarded because of: {reason}").into())
}

impl Session {
    fn leave_transaction(&self) {
        self.client.set_flag(ClientFlags::MULTI, false);
        self.client.queued.store(-1, Ordering::Relaxed);
        self.client.queued_bytes.store(0, Ordering::Relaxed);
    }
}
