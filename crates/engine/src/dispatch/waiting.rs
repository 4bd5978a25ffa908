//! Blocking commands: how they block, are served, and time out.

use std::sync::Arc;

use clock::Millis;
use keyspace::{KeyLookup, LockedSlots};
use resp::{Request, Writer};
use slot_routing::{Ownership, Slot};

use super::admission::{AdmissionVerdict, admit};
use super::execution::LockedCommand;
use super::{DispatchStatus, Dispatcher, ExecutedCommand, Invocation};
use crate::clients::UnblockReason;
use crate::command::{Caller, CommandSet, Context, Flags};
use crate::engine::{Engine, Worker};
use crate::outcome::CommandOutcome;
use crate::session::{CommandOrigin, Session};
use crate::settings::NodeFlags;
use crate::waiting::{BlockedCommand, FETCH_BATCH_SIZE, KeyWait, ReadyKey, ServedReply, Waiter};

/// How a client continues after its wait has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
    /// The reply is written; continue with the next request.
    Replied,
    /// The command runs again before the next request ([`Dispatcher::retry`]), since its keys may have moved.
    Retry,
}

/// A waiter that may be served now.
struct WaiterCandidate {
    /// Index of the candidate's key among the ready keys.
    ready_key_index: usize,
    waiter: Arc<Waiter>,
}

impl Engine {
    /// Blocks the client, or replies as after a timeout if the caller may not block. The command's slots are locked.
    pub(super) fn block_client(
        &self,
        context: &mut Context<'_>,
        call: Invocation<'_>,
        mut wait: KeyWait,
    ) -> DispatchStatus {
        let session = &mut *context.session;
        if let Some(before) = session.waiter_to_retry() {
            wait.deadline = before.deadline();
        }
        let waiting = BlockedCommand {
            command_number: call.entry.index,
            request: wait.resolved_request.take().unwrap_or_else(|| Request::from(call.args)),
            slots: self.key_slots(call.entry, call.args).into_iter().collect(),
            db: session.db(),
            protocol: session.protocol(),
            asking: call.asking,
            reads_from_replicas: session.is_readonly() && call.entry.command.flags.contains(Flags::READONLY),
            users_version: session.users_version(),
        };
        session.block_on(self.scheduling.wait_queues.add(session.client(), waiting, wait));
        // A thread that sets the flag makes all blocked clients run their commands again, but it may have missed this
        // client, which is only now being blocked.
        if self.settings.node_flags().contains(NodeFlags::CLUSTER_DOWN) {
            session.client().unblock(UnblockReason::Retry);
        }
        DispatchStatus::Blocked
    }

    /// Serves the waiters of changed keys as far as possible, while the slots of the changed keys are still locked. A
    /// waiter that needs other slots, or that is far behind in the queue, is served after locking the slots anew. The
    /// caller must hold no locks except those of `context`, which are released first.
    #[cold]
    pub(super) fn serve_waiters<'r>(&'r self, context: &mut Context<'r>) {
        // The effects of waiters that are served while the command's slots are locked are logged if those of the
        // command are.
        let logged = context.worker.effects.has_readers;
        // A key may have expired while the command ran.
        let now = context.now.max(Millis(context.wall_micros() / 1000));
        let mut slots = std::mem::take(&mut context.slots);
        let mut ready = std::mem::take(&mut context.worker.ready_keys);
        while !ready.is_empty() {
            let (mut candidates, mut more) = (Vec::new(), Vec::new());
            for (number, key) in ready.iter_mut().enumerate() {
                let slot = Slot::of_key(&key.key);
                let waiters = self.scheduling.wait_queues.next_waiters(
                    key.db,
                    slot,
                    &key.key,
                    key.last_tried_waiter,
                    key.is_removed,
                );
                more.push(waiters.len() == FETCH_BATCH_SIZE);
                key.last_tried_waiter = waiters.last().map(|waiter| waiter.sequence());
                candidates.extend(
                    waiters.into_iter().map(|waiter| WaiterCandidate { ready_key_index: number, waiter }),
                );
            }
            let round = ServingRound {
                engine: self,
                commands: context.commands,
                now,
                is_logged: logged,
                ready_keys: &ready,
                candidates: &candidates,
            };
            let is_there = round.serve_all(context.worker, std::mem::take(&mut slots));
            let mut left = more.into_iter().zip(is_there);
            ready.retain_mut(|key| {
                let (more, is_there) = left.next().unwrap_or((false, false));
                key.is_removed |= !is_there;
                more
            });
            // Serving one waiter may change a key that another waiter needs.
            ready.append(&mut context.worker.ready_keys);
        }
    }
}

impl Dispatcher<'_> {
    /// Ends a client's wait and appends the reply: the stored reply if the command was served, otherwise the reply for
    /// `reason`.
    pub fn end_wait(
        &self,
        worker: &mut Worker,
        session: &mut Session,
        now: Millis,
        reason: UnblockReason,
        out: &mut Vec<u8>,
    ) -> WaitEnd {
        let Some(waiter) = session.take_waiter() else { return WaitEnd::Replied };
        let engine = self.engine;
        let served = engine.scheduling.remove_waiter(&waiter);
        session.client().set_blocked(false);
        if session.receives_messages() {
            session.client().release_postponed_messages();
        }
        let start = out.len();
        match (served, reason) {
            (Some(served), _) => {
                out.extend_from_slice(&served.reply);
                session.merge_progress(served.progress);
                return WaitEnd::Replied;
            }
            (None, UnblockReason::Retry) => {
                if waiter.command.asking {
                    session.set_asking();
                }
                session.schedule_retry(waiter);
                return WaitEnd::Retry;
            }
            (None, UnblockReason::Timeout) => {
                (waiter.key_wait.timeout_reply)(&mut Writer::new(out, session.protocol()));
            }
            (None, UnblockReason::Error | UnblockReason::RoleChanged) => {
                let text = reason.error().unwrap_or_default();
                worker.stats.count_rejection(waiter.command.command_number, text);
                Writer::new(out, session.protocol()).error(text);
                if reason == UnblockReason::RoleChanged {
                    session.close_after_reply();
                }
            }
        }
        let (args, reply_len) = (waiter.command.request.args(), out.len() - start);
        let entry = self.commands.command_by_number(waiter.command.command_number);
        engine.record_execution(
            &worker.stats,
            session,
            now,
            &ExecutedCommand { entry, args, nanos: 0, reply_len },
        );
        WaitEnd::Replied
    }
}

/// Creates a copy of the client's session, in which another thread runs the waiter's command.
fn session_for_waiter(waiter: &Waiter) -> Session {
    let mut session = Session::for_client(waiter.client.clone(), CommandOrigin::Client, true);
    session.select(waiter.command.db);
    session.adopt_protocol(waiter.command.protocol);
    session
}

/// A round of serving waiters, one after another.
struct ServingRound<'a> {
    engine: &'a Engine,
    commands: &'a CommandSet,
    now: Millis,
    /// Whether changes in the already locked slots are logged.
    is_logged: bool,
    ready_keys: &'a [ReadyKey],
    candidates: &'a [WaiterCandidate],
}

impl<'a> ServingRound<'a> {
    /// Serves all waiters that can be served; `slots` are locked already. Returns for each key whether it still exists.
    fn serve_all(&self, worker: &'a mut Worker, slots: LockedSlots<'a>) -> Vec<bool> {
        let mut is_there = vec![true; self.ready_keys.len()];
        let Some(first) = self.candidates.first() else { return is_there };
        let (mut session, mut reply) = (session_for_waiter(&first.waiter), Vec::new());
        let reply = Writer::new(&mut reply, session.protocol());
        let mut context = Context::new(self.engine, self.commands, worker, &mut session, self.now, reply);
        (context.slots, context.caller) = (slots, Caller::Waiter);
        let mut logged = self.is_logged;
        for candidate in self.candidates {
            let (waiter, there) = (&*candidate.waiter, &mut is_there[candidate.ready_key_index]);
            if (*there || waiter.key_wait.retries_on_removal)
                && self.lock_and_check_admission(&mut context, waiter, &mut logged)
            {
                context.worker.effects.begin(logged);
                *there = self.try_serving_waiter(
                    &mut context,
                    waiter,
                    &self.ready_keys[candidate.ready_key_index],
                );
            }
        }
        is_there
    }

    /// Locks all slots of a waiter's command and then checks its admission.
    fn lock_and_check_admission(
        &self,
        context: &mut Context<'a>,
        waiter: &Waiter,
        is_logged: &mut bool,
    ) -> bool {
        if !waiter.command.slots.iter().all(|slot| context.slots.is_locked(*slot)) {
            context.slots.release();
            context.slots = self.engine.keyspace.lock_many(&waiter.command.slots);
            // The flags and slot ownership may have changed since the key was changed.
            *is_logged = self.engine.are_changes_logged(self.engine.settings.node_flags());
            if !context.slots.iter_mut().all(|data| data.ownership() == Ownership::Local) {
                waiter.retry();
                return false;
            }
        }
        let may = self.is_admitted(context, waiter);
        if !may {
            // The client's connection runs the command again and gets the error.
            waiter.retry();
        }
        may
    }

    /// Returns whether a waiter's command may run now, by node state and permissions.
    fn is_admitted(&self, context: &Context<'_>, waiter: &Waiter) -> bool {
        let (engine, gate) = (self.engine, self.engine.settings.node_flags());
        let entry = self.commands.command_by_number(waiter.command.command_number);
        let session = session_for_waiter(waiter);
        if !gate.is_empty() {
            let (flags, keys) = engine.effective_flags(context.worker, entry, waiter.command.request.args());
            let need = engine.admission_input(&session, flags, keys);
            if admit(gate, Caller::Waiter, &need) != AdmissionVerdict::Run {
                return false;
            }
        }
        waiter.command.users_version == engine.access.users_version()
            || engine.check_permissions(&session, entry, waiter.command.request.args()).is_ok()
    }

    /// Runs a waiter's command if it can complete; returns whether the key still exists.
    fn try_serving_waiter(
        &self,
        context: &mut Context<'a>,
        waiter: &'a Waiter,
        ready_key: &ReadyKey,
    ) -> bool {
        let engine = self.engine;
        let key = engine.keyspace.key(&ready_key.key);
        if !context.slots.is_locked(key.slot()) {
            return true;
        }
        let table = context.slots.slot(key.slot()).table_ref(ready_key.db);
        let kind = match table.find(&key, self.now) {
            KeyLookup::Live(place) => Some(table.kind(place)),
            KeyLookup::Missing | KeyLookup::Expired(_) => None,
        };
        if kind != Some(waiter.key_wait.value_type) && !waiter.key_wait.retries_on_removal {
            return kind.is_some();
        }
        let mut served = waiter.served_reply.lock();
        if !waiter.is_waiting(served.as_ref()) {
            return true;
        }
        *context.session = session_for_waiter(waiter);
        context.reply.set_protocol(context.session.protocol());
        let entry = self.commands.command_by_number(waiter.command.command_number);
        let call =
            LockedCommand { entry, args: waiter.command.request.args(), key: None, holds_all_slots: false };
        waiter.client.postpone_messages();
        let part = engine.execute_nested(context, call);
        context.finish_effects();
        context.append_effects(waiter.command.db);
        match part {
            CommandOutcome::Block(_) | CommandOutcome::Defer(_) => {
                context.reply.truncate(0);
                waiter.client.release_postponed_messages();
                return true;
            }
            CommandOutcome::Done
            | CommandOutcome::Pause
            | CommandOutcome::Restart
            | CommandOutcome::Offload(_)
            | CommandOutcome::Fail(_) => {}
        }
        let reply = std::mem::take(context.reply.buffer());
        *served = Some(ServedReply { reply, progress: context.session.progress() });
        engine.scheduling.wait_queues.remove(waiter);
        drop(served);
        waiter.finish_wait();
        true
    }
}
