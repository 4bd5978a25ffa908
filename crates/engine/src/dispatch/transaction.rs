//! MULTI and EXEC: queues commands, then runs them with all their slots locked.
//!
//! The queue runs in one go, including commands of the server process (INFO, ROLE), and its changes are logged as one
//! transaction. A script in the queue may access undeclared keys but cannot restart, since other commands ran before
//! it; in that case the script lock is taken up front.
//!
//! Some commands wait for other events (REPLICAOF, CONFIG SET, MIGRATE), and nothing may wait while slots are locked.
//! If the queue needs slots, these commands and all later ones that the engine does not run itself are run last,
//! without locks, and their replies are put in their positions. If the queue needs no slots, all commands run in order.
//! In both cases the client's connection runs the waiting commands ([`NodeCommand::Exec`]) and then resumes the EXEC
//! ([`Dispatcher::resume_exec`]).

use std::ops::Range;

use clock::Millis;
use keyspace::{GlobalLock, KeyLookup, LockedSlots};
use resp::{Args, Request, Writer};
use slot_routing::{Ownership, RouteRequest, Slot};

use super::execution::LockedCommand;
use super::pipeline::Pipeline;
use super::{DispatchStatus, Dispatcher, Invocation, PrefetchedRequest};
use crate::command::{Caller, CommandRunner, CommandSet, Context, Flags, LockScope, RegisteredCommand};
use crate::engine::{Engine, Worker};
use crate::error::CommandError;
use crate::outcome::{CommandOutcome, OffloadReason};
use crate::session::{CommandOrigin, Session};
use crate::shell_commands::NodeCommand;
use crate::stats::add;
use crate::transaction::{DeferredCommand, DeferredExec, Transaction};

/// The locks that a running EXEC holds.
#[derive(Default)]
struct TransactionLocks<'a> {
    slots: LockedSlots<'a>,
    holds_all_slots: bool,
    /// The script lock, which EXEC holds if a queued command may need further slots.
    global_lock: Option<GlobalLock<'a>>,
}

enum QueueResult {
    /// All commands have replied.
    Complete,
    /// The total reply exceeds the client's limit.
    TooLong,
    /// The client's connection must still run some of the commands.
    Incomplete(Box<DeferredExec>),
}

impl TransactionLocks<'_> {
    fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.global_lock.is_none()
    }
}

impl Engine {
    /// Queues a request in a transaction; returns `None` for commands that run immediately.
    pub(super) fn queue_command<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &'r PrefetchedRequest<'r>,
        asking: bool,
    ) -> Option<Result<(), CommandOutcome>> {
        if request.command.is_some_and(|entry| entry.command.flags.contains(Flags::NOT_QUEUED)) {
            return None;
        }
        let admitted = self.admit(&pipeline.context, request);
        let queued = admitted.and_then(|entry| self.check_queued_command(pipeline, request, asking, entry));
        let session = &mut *pipeline.context.session;
        Some(match queued {
            Ok(entry) => {
                let selected = entry.command.selected_database(request.args, self.keyspace.database_count());
                session.queue_command(entry.index, request.args, selected);
                Ok(())
            }
            Err(outcome) => {
                // A deferred request starts again later, so the transaction has not failed.
                if !outcome.is_deferred() {
                    session.fail_transaction();
                }
                Err(outcome)
            }
        })
    }

    fn check_queued_command<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &'r PrefetchedRequest<'r>,
        asking: bool,
        entry: &'static RegisteredCommand,
    ) -> Result<&'static RegisteredCommand, CommandOutcome> {
        if entry.command.flags.contains(Flags::NO_MULTI) {
            let text = format!("ERR Command '{}' not allowed inside a transaction", entry.full_name);
            return Err(CommandError::Text(text.into()).into());
        }
        if self.topology.is_some() && !entry.command.keys.is_empty() {
            let served = self.lock_command_slots(pipeline, request, entry, asking);
            pipeline.context.slots.release();
            served?;
        }
        Ok(entry)
    }

    /// Runs the queue; commands that must wait are left for the connection.
    pub(super) fn exec<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        asking: bool,
    ) -> Result<DispatchStatus, CommandError> {
        let Pipeline { context, transactions, .. } = pipeline;
        let none = CommandError::text("ERR EXEC without MULTI");
        let transaction = context.session.take_transaction().ok_or(none)?;
        if transaction.has_failed {
            context.session.leave_transaction();
            self.notifications.unwatch(context.session);
            return Err(CommandError::text("EXECABORT Transaction discarded because of previous errors."));
        }
        let mut held = self.lock_transaction_slots(context, &transaction, asking);
        if let Some(status) = self.exec_deferral(context, &transaction, &held) {
            drop(held);
            context.session.restore_transaction(transaction);
            return Ok(status);
        }
        // The flags may have changed since admission, as for any command.
        let gate = self.settings.node_flags();
        let passed = match (context.session.origin(), &mut held) {
            (origin, Ok(held)) if origin.is_logged() && !gate.is_empty() => {
                let (flags, has_keys) =
                    self.effective_flags_of_exec(context, Flags::LOADING | Flags::STALE, &transaction);
                self.recheck_admission(context.session, gate, flags, has_keys, &mut held.slots)
            }
            _ => Ok(()),
        };
        let Context { session, reply, now, .. } = context;
        if let Err(CommandOutcome::Pause) = passed {
            drop(held);
            session.restore_transaction(transaction);
            return Ok(DispatchStatus::Paused);
        }
        session.leave_transaction();
        let passed = passed.map_err(|outcome| abort_error(outcome.into_error()));
        let held = passed.and(held.map_err(CommandOutcome::into_error)).map(|mut held| {
            let changed =
                session.watch_state().is_dirty() || self.has_expired_watch(session, &mut held.slots, *now);
            (!changed).then_some(held)
        });
        self.notifications.unwatch(session);
        let Some(held) = held? else {
            reply.null_array();
            return Ok(DispatchStatus::Done);
        };
        let logged = context.session.origin().is_logged() && self.are_changes_logged(gate);
        let start = context.reply.len();
        context.reply.array(transaction.queue.len());
        match self.run_queue(context, transactions.keep(*transaction), held, logged) {
            QueueResult::Complete => Ok(DispatchStatus::Done),
            QueueResult::TooLong => {
                context.session.client().close_for_output_limit();
                Ok(DispatchStatus::Close)
            }
            QueueResult::Incomplete(exec) => {
                context.reply.truncate(start);
                context.session.suspend_exec(exec);
                Ok(DispatchStatus::Node(NodeCommand::Exec))
            }
        }
    }

    /// Returns how an EXEC that cannot run here starts again, depending on the result of locking its slots.
    fn exec_deferral(
        &self,
        context: &Context<'_>,
        transaction: &Transaction,
        lock_result: &Result<TransactionLocks<'_>, CommandOutcome>,
    ) -> Option<DispatchStatus> {
        match lock_result {
            Ok(held) => self
                .transaction_must_move_to_background(context, &held.slots, transaction)
                .then_some(DispatchStatus::Offload(OffloadReason::SlowCommand)),
            Err(CommandOutcome::Offload(reason)) => Some(DispatchStatus::Offload(*reason)),
            Err(_) => None,
        }
    }

    /// Runs the queued commands while their slots are locked. If `is_logged` is set, logs their changes as one
    /// transaction.
    fn run_queue<'r>(
        &'r self,
        context: &mut Context<'r>,
        transaction: &'r Transaction,
        locks: TransactionLocks<'r>,
        is_logged: bool,
    ) -> QueueResult {
        let (holds_all, in_order) = (locks.holds_all_slots, locks.is_empty());
        let slot = self.transaction_slot(context.commands, transaction);
        context.begin_transaction(locks.slots, locks.global_lock, slot);
        let first_db = context.session.db();
        context.worker.effects.begin(is_logged);
        context.worker.frozen_wall_micros = None;
        let mut logged_db = first_db;
        let (mut waits, mut places) = (false, Vec::<Option<Range<usize>>>::new());
        for (entry, request) in queued_commands(context.commands, transaction) {
            if context.session.db() != logged_db {
                logged_db = context.session.db();
                context.worker.effects.add_select(logged_db);
            }
            // Once one of these commands has to wait, all later ones of this kind wait, to preserve their order.
            let follows = waits && is_shell_command(entry);
            if follows || waits && in_order {
                places.push(None);
                continue;
            }
            let start = context.reply.len();
            let call = LockedCommand { entry, args: request.args(), key: None, holds_all_slots: holds_all };
            let answered = self.run_queued_command(context, call).is_none();
            places.push(answered.then(|| start..context.reply.len()));
            waits |= !answered;
        }
        if logged_db != first_db && context.worker.effects.has_commands {
            // End with the database that the log had selected before.
            context.worker.effects.add_select(first_db);
        }
        context.finish_effects();
        context.append_effects(first_db);
        let ran = match (waits, context.reply.is_over_limit()) {
            (_, true) => QueueResult::TooLong,
            (false, false) => QueueResult::Complete,
            (true, false) => {
                let reply = context.reply.buffer();
                let commands =
                    places.into_iter().zip(&transaction.queue).map(|(place, queued)| match place {
                        Some(place) => DeferredCommand::Replied(reply[place].to_vec()),
                        None => DeferredCommand::Pending(queued.0, queued.1.clone()),
                    });
                QueueResult::Incomplete(Box::new(DeferredExec { commands: commands.collect() }))
            }
        };
        if !context.worker.ready_keys.is_empty() {
            self.serve_waiters(context);
        }
        context.end_transaction();
        ran
    }

    /// Returns the slot of the queued keys, if there are any. In cluster mode all of them have the same slot.
    pub(super) fn transaction_slot(&self, commands: &CommandSet, transaction: &Transaction) -> Option<Slot> {
        self.topology.as_ref()?;
        queued_commands(commands, transaction)
            .find_map(|(entry, request)| self.key_slots(entry, request.args()).first().copied())
    }

    /// Runs one queued command. If the client's connection must run the command later, returns it instead.
    fn run_queued_command<'r>(
        &self,
        context: &mut Context<'r>,
        call: LockedCommand<'r>,
    ) -> Option<NodeCommand> {
        context.begin_command(call.entry, call.args, None, call.holds_all_slots);
        if self.reply_if_denied(context, call.entry) {
            return None;
        }
        // A command that may be deferred is fed to MONITOR clients only when it runs.
        let is_shell_command = is_shell_command(call.entry);
        if !is_shell_command {
            context.feed_to_monitors(call.entry, call.args, false);
        }
        match self.execute_nested(context, call) {
            CommandOutcome::Done
            | CommandOutcome::Pause
            | CommandOutcome::Restart
            | CommandOutcome::Offload(_)
            | CommandOutcome::Fail(_) => {
                if is_shell_command {
                    context.feed_to_monitors(call.entry, call.args, false);
                }
                None
            }
            CommandOutcome::Block(wait) => {
                (wait.timeout_reply)(&mut context.reply);
                self.record_call(context, call.entry, call.args, context.reply.len(), 0);
                None
            }
            CommandOutcome::Defer(command) if context.session.origin() == CommandOrigin::Client => {
                Some(command)
            }
            CommandOutcome::Defer(_) => {
                context.reply_error(&CommandError::text("ERR Command not allowed inside a transaction"));
                None
            }
        }
    }

    /// Replies with an error if the client has lost the permission for a queued command since MULTI; returns whether it
    /// replied.
    fn reply_if_denied(&self, context: &mut Context<'_>, entry: &RegisteredCommand) -> bool {
        let Err(denied) = self.check_permissions(context.session, entry, context.args) else { return false };
        if let Some(exec) = context.commands.by_original_name().find(b"exec") {
            context.session.publish(context.now, exec.index);
        }
        self.record_denial(context.session, context.now, "multi", &denied);
        let text = denied.error_in_exec().to_string();
        add(&context.worker.stats.commands[entry.index].rejected_calls, 1);
        context.worker.stats.count_error(&text);
        context.reply.error(&text);
        context.record_failure(&text, false);
        true
    }

    /// Locks the slots of all queued commands and watched keys.
    fn lock_transaction_slots<'s>(
        &'s self,
        context: &Context<'_>,
        transaction: &Transaction,
        asking: bool,
    ) -> Result<TransactionLocks<'s>, CommandOutcome> {
        let (session, worker) = (&*context.session, &*context.worker);
        let mut slots: Vec<Slot> = Vec::new();
        let mut goes_beyond = false;
        for (entry, request) in queued_commands(context.commands, transaction) {
            // Commands of the server process and of the client's connection lock their slots themselves.
            if !is_shell_command(entry) {
                let of_one = self.key_slots(entry, request.args());
                goes_beyond |= self.may_access_undeclared_keys(worker, entry, request.args(), &of_one);
                slots.extend(of_one);
            }
        }
        let routes = self.topology.is_some() && session.origin() == CommandOrigin::Client;
        if routes && slots.iter().any(|slot| *slot != slots[0]) {
            return Err(CommandError::CrossSlot.into());
        }
        let routed = slots.first().copied();
        slots.extend(session.watch_state().keys.iter().map(|watched| Slot::of_key(&watched.key)));
        let mut held = self.acquire_locks(context, transaction, &slots, goes_beyond)?;
        if let Some(routed) = routed.filter(|_| routes) {
            self.check_queue_served(context, transaction, routed, asking, &mut held.slots)?;
        }
        Ok(held)
    }

    /// Locks these slots, or all slots if a command visits all. Also takes the script lock if a queued command may
    /// access undeclared keys.
    fn acquire_locks<'s>(
        &'s self,
        context: &Context<'_>,
        transaction: &Transaction,
        slots: &[Slot],
        needs_global_lock: bool,
    ) -> Result<TransactionLocks<'s>, CommandOutcome> {
        let mut held = TransactionLocks::default();
        let walks = |by: fn(CommandRunner) -> bool| {
            any_command_visits_all_slots(queued_commands(context.commands, transaction), by)
        };
        let shell_walks = walks(|run| matches!(run, CommandRunner::Shell(_)));
        if walks(|run| !matches!(run, CommandRunner::Shell(_)))
            || shell_walks && (needs_global_lock || !slots.is_empty())
        {
            held.slots = self.lock_all_slots(context)?;
            held.holds_all_slots = true;
        } else if needs_global_lock {
            held.global_lock = Some(self.lock_with_global_lock(context, &mut held.slots, slots)?);
        } else {
            held.slots = self.lock_slots(context, slots)?;
        }
        Ok(held)
    }

    /// Checks that this node serves the slot of the queued commands, which all share one slot in cluster mode.
    fn check_queue_served(
        &self,
        context: &Context<'_>,
        transaction: &Transaction,
        slot: Slot,
        asked: bool,
        locked: &mut LockedSlots<'_>,
    ) -> Result<(), CommandError> {
        let (session, ownership) = (&*context.session, locked.slot(slot).ownership());
        let Some(topology) = self.topology.as_ref().filter(|_| ownership != Ownership::Local) else {
            return Ok(());
        };
        let mut whole =
            RouteRequest { is_asking: asked, allows_replica_read: true, ..RouteRequest::default() };
        let mut db = session.db();
        for (entry, request) in queued_commands(context.commands, transaction) {
            let call = Invocation { entry, args: request.args(), asking: asked, db };
            let (flags, _) = self.effective_flags(context.worker, entry, request.args());
            let access = self.route_request(session, call, flags, locked, context.now);
            whole.allows_replica_read &= access.allows_replica_read || access.key_count == 0;
            whole.key_count += access.key_count;
            whole.missing_key_count += access.missing_key_count;
            whole.crosses_databases |= access.crosses_databases;
            db =
                entry.command.selected_database(request.args(), self.keyspace.database_count()).unwrap_or(db);
        }
        self.check_route(&topology.load(), slot, ownership, whole, session.client().connection.transport)
    }

    /// Returns whether a command may access undeclared keys. In cluster mode the undeclared keys of a script with
    /// declared keys are in the same slot as those.
    fn may_access_undeclared_keys(
        &self,
        worker: &Worker,
        entry: &RegisteredCommand,
        args: Args<'_>,
        slots: &[Slot],
    ) -> bool {
        match (entry.command.runner, &self.topology) {
            (CommandRunner::Script(_), None) => true,
            (CommandRunner::Script(_), Some(_)) => {
                slots.is_empty() || self.touches_undeclared_keys(worker, entry, args)
            }
            (_, None) => entry.command.has_key_patterns(args),
            (_, Some(_)) => false,
        }
    }

    /// Returns whether a watched key has expired since WATCH.
    fn has_expired_watch(&self, session: &Session, slots: &mut LockedSlots<'_>, now: Millis) -> bool {
        session.watch_state().keys.iter().any(|watched| {
            let key = self.keyspace.key(&watched.key);
            let found = slots.slot_mut(key.slot()).table(watched.db).find(&key, now);
            matches!(found, KeyLookup::Expired(_))
                && !self.notifications.watch_table.was_expired(watched, session.id())
        })
    }

    /// Refuses a whole EXEC, which ends the transaction; redirections keep their usual error. If the refused command is
    /// not EXEC, marks the transaction as failed.
    pub(super) fn refuse_exec(
        &self,
        session: &mut Session,
        request: &PrefetchedRequest<'_>,
        error: CommandError,
    ) -> CommandError {
        let is_exec =
            request.command.is_some_and(|entry| matches!(entry.command.runner, CommandRunner::Exec));
        if !is_exec {
            session.fail_transaction();
            return error;
        }
        self.discard_transaction(session);
        abort_error(error)
    }
}

impl Dispatcher<'_> {
    /// Resumes an EXEC with deferred commands. `reply` is the reply of the command that the last call returned, if any.
    /// Returns the next command to run; when no command is left, appends the whole reply to `out`.
    pub fn resume_exec(
        self,
        worker: &mut Worker,
        session: &mut Session,
        now: Millis,
        reply: Option<Vec<u8>>,
        out: &mut Vec<u8>,
    ) -> Option<(NodeCommand, Request)> {
        let mut unfinished = session.take_suspended_exec()?;
        if let (Some((answered, ..)), Some(reply)) = (unfinished.next_pending(), reply) {
            unfinished.commands[answered] = DeferredCommand::Replied(reply);
        }
        while let Some((next, number, request)) = unfinished.next_pending() {
            let entry = queued_command(self.commands, number, request);
            let mut reply = Vec::new();
            let call = LockedCommand { entry, args: request.args(), key: None, holds_all_slots: false };
            if let Some(command) = self.run_unlocked(worker, session, now, call, &mut reply) {
                let request = request.clone();
                session.suspend_exec(unfinished);
                return Some((command, request));
            }
            unfinished.commands[next] = DeferredCommand::Replied(reply);
        }
        let mut whole = Writer::new(out, session.protocol());
        whole.array(unfinished.commands.len());
        for command in &unfinished.commands {
            if let DeferredCommand::Replied(reply) = command {
                whole.raw(reply);
            }
        }
        None
    }

    /// Runs one command of a transaction that locks no slots.
    fn run_unlocked(
        self,
        worker: &mut Worker,
        session: &mut Session,
        now: Millis,
        call: LockedCommand<'_>,
        reply: &mut Vec<u8>,
    ) -> Option<NodeCommand> {
        let engine = self.engine;
        let (reply, db) = (Writer::new(reply, session.protocol()), session.db());
        let mut context = Context::new(engine, self.commands, worker, session, now, reply);
        context.caller = Caller::Exec;
        context.worker.effects.begin(engine.are_changes_logged(engine.settings.node_flags()));
        let handed_over = engine.run_queued_command(&mut context, call);
        if handed_over.is_some() {
            context.feed_to_monitors(call.entry, call.args, false);
        }
        context.finish_effects();
        context.append_effects(db);
        handed_over
    }
}

pub(super) fn queued_commands<'t>(
    commands: &'t CommandSet,
    transaction: &'t Transaction,
) -> impl Iterator<Item = (&'static RegisteredCommand, &'t Request)> {
    let queue = transaction.queue.iter();
    queue.map(|(number, request)| (queued_command(commands, *number, request), request))
}

fn queued_command(commands: &CommandSet, number: usize, request: &Request) -> &'static RegisteredCommand {
    commands.command_by_number(number).command_for_request(request.args())
}

/// Returns whether any of the commands selected by `filter` visits all slots.
fn any_command_visits_all_slots<'t>(
    queue: impl Iterator<Item = (&'static RegisteredCommand, &'t Request)>,
    filter: impl Fn(CommandRunner) -> bool,
) -> bool {
    let through_them =
        |reach| matches!(reach, LockScope::EachSlot | LockScope::AllSlots | LockScope::NamedSlot);
    let mut commands = queue.map(|(entry, _)| entry.command);
    commands.any(|command| through_them(command.lock_scope) && filter(command.runner))
}

/// Returns whether the server process or the client's connection runs the command, rather than the engine.
fn is_shell_command(entry: &RegisteredCommand) -> bool {
    matches!(entry.command.runner, CommandRunner::Shell(_) | CommandRunner::Node(_))
}

/// Converts the error of a queued command to the error that refuses the whole EXEC: EXECABORT, or an unchanged
/// redirection.
fn abort_error(error: CommandError) -> CommandError {
    if error.is_cluster_error() {
        return error;
    }
    let text = error.to_string();
    let reason = text.strip_prefix("ERR ").unwrap_or(&text);
    CommandError::Text(format!("EXECABORT Transaction discarded because of: {reason}").into())
}
