//! Command dispatch: lookup, prefetching, admission, execution, logging and accounting.
//!
//! One read may contain many requests. They are prefetched together, [`PREFETCH_BATCH`] at a time: successive passes
//! prefetch each key's slot, its index bucket, its entry, and for large collections the element, so that the cache
//! misses of a batch overlap. Then each request runs to completion while its slots are locked.
//!
//! A slot that was locked for prefetching stays locked until its command has run, so the slot is locked only once and
//! the lookups stay valid. A thread that holds such locks must not wait for another lock, so it releases them before
//! anything that waits and before a command that may be slow.

mod admission;
mod background;
mod execution;
mod key_times;
mod monitoring;
mod pipeline;
mod script;
mod slot_costs;
mod slots;
mod transaction;
mod waiting;

use std::sync::atomic::Ordering;

use clock::Millis;
use keyspace::{Key, PrefetchedSlot};
use resp::{Args, Batch, Writer};
use slot_routing::Slot;
use smallvec::SmallVec;

use crate::command::{CommandRunner, CommandSet, Context, Flags, LockScope, RegisteredCommand};
use crate::engine::{Engine, Worker};
use crate::error::CommandError;
use crate::outcome::{CommandOutcome, OffloadReason};
use crate::session::{BackgroundMode, CommandOrigin, ReplySuppression, Session};
use crate::settings::{Measurements, NodeFlags};
use crate::shell_commands::NodeCommand;
use crate::stats::{WorkerStats, add};
use crate::transaction::BatchTransactions;
use crate::waiting::Waiter;
use admission::is_cross_protocol_attack;
use background::MIN_RECORDED_NANOS;
use execution::{HandlerResult, LockedCommand, execute};
use pipeline::Pipeline;
pub use waiting::WaitEnd;

/// Number of requests prefetched together: enough to hide memory latency, few enough for the first-level cache.
const PREFETCH_BATCH: usize = 32;
/// If a batch has more bytes of requests than this, no slot stays locked between prefetching and execution: the earlier
/// requests would hold the lock too long.
const MAX_BATCH_BYTES_WITH_PREFETCH_LOCKS: usize = 64 << 10;

/// Why [`Dispatcher::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DispatchStatus {
    /// All requests have run.
    Done,
    /// The connection must run this request itself, then continue with the next.
    Node(NodeCommand),
    /// This request must wait until a pause ends.
    Paused,
    /// This request has blocked its client. [`Dispatcher::end_wait`] must be called once the request is served
    /// ([`crate::Waiter::is_served`]) or its wait ends for another reason.
    Blocked,
    /// This request has not run, and its connection must move to the background worker for this reason. A connection
    /// that is on that worker already retries after the worker's other connections.
    Offload(OffloadReason),
    /// The session's time slice is over ([`Session::time_slice_end`]); the next slice starts with this request.
    TimeSliceOver,
    /// The connection must be closed after the output has been sent.
    Close,
}

/// The requests of one read.
#[derive(Debug, Clone, Copy)]
pub struct PipelinedRequests<'a> {
    /// The bytes that were read.
    pub buffer: &'a [u8],
    /// The positions of the parsed requests in the buffer.
    pub batch: &'a Batch,
    /// Index of the first request that has not run.
    pub first_pending: usize,
}

/// A command with its arguments.
#[derive(Clone, Copy)]
pub(crate) struct Invocation<'a> {
    pub(crate) entry: &'static RegisteredCommand,
    pub(crate) args: Args<'a>,
    /// Whether ASKING preceded the command.
    pub(crate) asking: bool,
    /// The database in which the command runs.
    pub(crate) db: u16,
}

/// An executed command with its cost.
#[derive(Debug)]
pub struct ExecutedCommand<'a> {
    /// The command.
    pub entry: &'static RegisteredCommand,
    /// The arguments, with the command's name first.
    pub args: Args<'a>,
    /// Execution time in nanoseconds.
    pub nanos: u64,
    /// Length of the reply in bytes.
    pub reply_len: usize,
}

#[derive(Clone, Copy)]
struct PrefetchedRequest<'a> {
    /// Index among the requests prefetched together.
    index: usize,
    args: Args<'a>,
    command: Option<&'static RegisteredCommand>,
    key: Option<(usize, Key<'a>)>,
}

impl PrefetchedRequest<'_> {
    /// Returns the slot of the request's key, if a key was hashed.
    fn slot(&self) -> Option<Slot> {
        self.key.as_ref().map(|(_, key)| key.slot())
    }
}

/// Slots that stay locked between prefetching and execution, by index of the prefetched request.
type PrefetchedSlots<'a> = SmallVec<[Option<PrefetchedSlot<'a>>; PREFETCH_BATCH]>;

/// Signals that a command must start again with permission to lock undeclared slots ([`CommandOutcome::Restart`]).
struct RestartRequired;

/// An element of a large value that a request will access.
struct ElementHint<'a> {
    key: Key<'a>,
    hash: u64,
    /// Index of the request that holds the lock of the value's slot.
    holder_index: usize,
}

/// Runs a server's commands on an engine.
#[derive(Debug, Clone, Copy)]
pub struct Dispatcher<'a> {
    engine: &'a Engine,
    commands: &'a CommandSet,
}

impl CommandSet {
    /// Creates a dispatcher for an engine's state.
    #[must_use]
    pub fn dispatcher<'a>(&'a self, engine: &'a Engine) -> Dispatcher<'a> {
        Dispatcher { engine, commands: self }
    }
}

impl Dispatcher<'_> {
    /// Runs requests and appends their replies to `out`. Returns why it stopped, and an index: that of the request at
    /// which it stopped (`Node`, `Paused`, `Blocked`, `Offload`, `TimeSliceOver`), otherwise that of the next
    /// request.
    pub fn run(
        self,
        worker: &mut Worker,
        session: &mut Session,
        now: Millis,
        requests: PipelinedRequests<'_>,
        out: &mut Vec<u8>,
    ) -> (usize, DispatchStatus) {
        worker.failures.clear();
        self.begin_batch(session, out);
        let ran = if self.engine.check_session(session) {
            self.run_batch(worker, session, now, requests, out)
        } else {
            (requests.first_pending, DispatchStatus::Close)
        };
        self.end_batch(session);
        ran
    }

    /// Runs a command again whose wait has ended without a reply ([`WaitEnd::Retry`]), and appends its reply to
    /// `out`. While this returns `Paused` or `Offload`, the command is not complete and no other
    /// request of the client may run.
    pub fn retry(
        self,
        worker: &mut Worker,
        session: &mut Session,
        now: Millis,
        out: &mut Vec<u8>,
    ) -> DispatchStatus {
        let Some(waiter) = session.waiter_to_retry().cloned() else { return DispatchStatus::Done };
        self.begin_batch(session, out);
        let status = if self.engine.check_session(session) {
            self.run_waiter(worker, session, now, &waiter, out)
        } else {
            DispatchStatus::Close
        };
        if !status.is_deferred() {
            session.end_retry();
        }
        self.end_batch(session);
        status
    }

    #[inline]
    fn begin_batch(self, session: &mut Session, out: &[u8]) {
        session.begin_requests();
        session.begin_replies(out.len());
    }

    #[inline]
    fn end_batch(self, session: &Session) {
        session.end_requests();
        if self.engine.memory.budget.is_checked_per_command() {
            // Count memory before the reply is sent: this client may have freed memory for which others would be
            // evicted.
            self.engine.clients.update_memory(session.client());
        }
        self.engine.send_invalidations();
    }

    /// Runs a waiter's command for its own client.
    fn run_waiter(
        self,
        worker: &mut Worker,
        session: &mut Session,
        now: Millis,
        waiter: &Waiter,
        out: &mut Vec<u8>,
    ) -> DispatchStatus {
        let Self { engine, commands } = self;
        let mut prepared: SmallVec<[PrefetchedRequest<'_>; PREFETCH_BATCH]> = SmallVec::new();
        let transactions = BatchTransactions::default();
        let reply = Writer::new(out, session.protocol()).with_limit(session.reply_limit());
        let context = Context::new(engine, commands, worker, session, now, reply);
        let mut pipeline = Pipeline::new(context, &transactions);
        engine.prepare(&mut pipeline, std::iter::once(waiter.request().args()), &mut prepared);
        let stopped = engine.run_prepared(&mut pipeline, &prepared, 0);
        let status = stopped.map_or(DispatchStatus::Done, |(_, status)| status);
        if status != DispatchStatus::Close {
            publish_session(pipeline.context.session, now, last_command(&prepared));
        }
        status
    }

    fn run_batch(
        self,
        worker: &mut Worker,
        session: &mut Session,
        now: Millis,
        requests: PipelinedRequests<'_>,
        out: &mut Vec<u8>,
    ) -> (usize, DispatchStatus) {
        let Self { engine, commands } = self;
        let PipelinedRequests { buffer, batch, first_pending: from } = requests;
        let mut next = from;
        let mut last = None;
        while next < batch.len() {
            let end = batch.len().min(next + PREFETCH_BATCH);
            let mut prepared: SmallVec<[PrefetchedRequest<'_>; PREFETCH_BATCH]> = SmallVec::new();
            let transactions = BatchTransactions::default();
            let reply = Writer::new(out, session.protocol()).with_limit(session.reply_limit());
            let context = Context::new(engine, commands, worker, session, now, reply);
            let mut pipeline = Pipeline::new(context, &transactions);
            if next > from && pipeline.is_time_slice_over() {
                drop(pipeline);
                publish_session(session, now, last);
                return (next, DispatchStatus::TimeSliceOver);
            }
            engine.prepare(&mut pipeline, batch.requests(next..end, buffer), &mut prepared);
            if buffer.len() > MAX_BATCH_BYTES_WITH_PREFETCH_LOCKS {
                pipeline.prefetched_slots.clear();
            }
            match engine.run_prepared(&mut pipeline, &prepared, next) {
                None => {}
                Some((stopped, DispatchStatus::Close)) => return (stopped, DispatchStatus::Close),
                Some((stopped, flow)) => {
                    let session = &*pipeline.context.session;
                    publish_session(session, now, last_command(&prepared[..=stopped - next]).or(last));
                    return (stopped, flow);
                }
            }
            last = last_command(&prepared).or(last);
            next = end;
        }
        publish_session(session, now, last);
        (next, DispatchStatus::Done)
    }
}

impl Engine {
    /// Runs prefetched requests, starting at index `first` of the batch. If it stops early, returns the index of the
    /// request and the reason.
    #[inline(always)]
    fn run_prepared<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        prepared: &'r [PrefetchedRequest<'r>],
        first: usize,
    ) -> Option<(usize, DispatchStatus)> {
        let mut plain = pipeline.context.session.needs_no_special_handling();
        for (index, request) in prepared.iter().enumerate() {
            let number = first + index;
            pipeline.context.worker.request_index = number;
            if self.settings.node_flags().contains(NodeFlags::REVOKING) {
                pipeline.release_all();
                if !self.check_revocation(pipeline.context.session) {
                    return Some((number, DispatchStatus::Close));
                }
                plain = pipeline.context.session.needs_no_special_handling();
            }
            let mut flow = self.run_request(pipeline, request, plain);
            // Keep the slot locked if the next command also uses it.
            let same = |next: &PrefetchedRequest<'_>| next.slot().is_some() && next.slot() == request.slot();
            if !prepared.get(index + 1).is_some_and(same) {
                pipeline.release_or_retain_slots();
            }
            if !plain || request.key.is_none() {
                pipeline.context.free_garbage();
                if !pipeline.context.worker.revoked_clients.is_empty() && !pipeline.await_revoked_clients() {
                    return Some((number + 1, DispatchStatus::Close));
                }
                plain = pipeline.context.session.needs_no_special_handling();
                if !plain {
                    let Context { session, reply, .. } = &mut pipeline.context;
                    flow = session.finish_request(request.command, flow, reply.buffer());
                }
            }
            match flow {
                DispatchStatus::Done if !pipeline.context.reply.is_over_limit() => {
                    let is_last = index + 1 == prepared.len();
                    if !is_last && pipeline.is_time_slice_over() {
                        return Some((number + 1, DispatchStatus::TimeSliceOver));
                    }
                }
                DispatchStatus::Done => {
                    pipeline.context.session.client().close_for_output_limit();
                    return Some((number + 1, DispatchStatus::Close));
                }
                DispatchStatus::Node(_)
                | DispatchStatus::Paused
                | DispatchStatus::Blocked
                | DispatchStatus::Offload(_)
                | DispatchStatus::TimeSliceOver => {
                    return Some((number, flow));
                }
                DispatchStatus::Close => return Some((number + 1, flow)),
            }
        }
        None
    }

    /// Looks up the commands, hashes their first keys, and prefetches what they will access. Uncontended slots of those
    /// keys stay locked until their commands have run.
    fn prepare<'a, 'p>(
        &'a self,
        pipeline: &mut Pipeline<'a>,
        requests: impl Iterator<Item = Args<'p>>,
        prepared: &mut SmallVec<[PrefetchedRequest<'p>; PREFETCH_BATCH]>,
    ) {
        let (mut keys, mut parts) = (0, false);
        let mut of_scripts: SmallVec<[Key<'p>; PREFETCH_BATCH]> = SmallVec::new();
        let registry = pipeline.context.commands.registry();
        prepared.extend(requests.enumerate().map(|(number, args)| {
            let found = registry.lookup(args).or_else(|| find_by_original_name(&pipeline.context, args));
            parts |= found.is_some_and(|entry| entry.element_position.is_some());
            let place = found.and_then(|entry| entry.single_key);
            let key = place.and_then(|place| Some((place, self.keyspace.key(args.get(place)?))));
            if let Some((_, key)) = &key {
                keys += 1;
                self.keyspace.prefetch_slot(key);
            } else if let Some(key) = found.and_then(|entry| self.single_script_key(entry, args)) {
                self.keyspace.prefetch_slot(&key);
                of_scripts.push(key);
            }
            PrefetchedRequest { index: number, args, command: found, key }
        }));
        if of_scripts.len() > 1 {
            self.keyspace.prefetch_entries(pipeline.context.session.db(), of_scripts.iter());
        }
        if keys > 1 {
            let db = pipeline.context.session.db();
            let prefetch_index =
                |request: &PrefetchedRequest<'_>| self.keyspace.prefetch_index(db, &request.key?.1);
            pipeline.prefetched_slots.extend(prepared.iter().map(prefetch_index));
            for (touched, request) in pipeline.prefetched_slots.iter_mut().zip(prepared.iter()) {
                if let (Some(touched), Some((_, key))) = (touched, &request.key) {
                    touched.prefetch_entry(db, key);
                }
            }
            if parts {
                self.prefetch_elements(db, prepared, &pipeline.prefetched_slots);
            }
        }
    }

    /// Returns the only declared key of a script, if the command is one.
    #[inline]
    fn single_script_key<'p>(&self, entry: &RegisteredCommand, args: Args<'p>) -> Option<Key<'p>> {
        if !matches!(entry.command.runner, CommandRunner::Script(_)) || args.get(2) != Some(b"1") {
            return None;
        }
        args.get(3).map(|key| self.keyspace.key(key))
    }

    /// Prefetches the elements of large values that requests will access.
    fn prefetch_elements(
        &self,
        db: u16,
        prepared: &[PrefetchedRequest<'_>],
        prefetched_slots: &PrefetchedSlots<'_>,
    ) {
        let mut parts: SmallVec<[ElementHint<'_>; PREFETCH_BATCH]> = SmallVec::new();
        for request in prepared {
            let (Some(entry), Some((_, key))) = (request.command, request.key) else { continue };
            let Some(part) = entry.element_position.and_then(|part| request.args.get(part)) else { continue };
            // Consecutive requests often access the same value.
            let same =
                parts.last().filter(|last| last.key.slot() == key.slot()).map(|last| last.holder_index);
            let holds = |other: &PrefetchedRequest<'_>| {
                other.slot() == Some(key.slot()) && prefetched_slots[other.index].is_some()
            };
            if let Some(holder) = same.or_else(|| prepared.iter().position(holds)) {
                parts.push(ElementHint {
                    key,
                    hash: self.keyspace.hash_element_name(part),
                    holder_index: holder,
                });
            }
        }
        let of_one = |one: &ElementHint<'_>, other: &ElementHint<'_>| {
            (one.key.slot(), one.key.hash()) == (other.key.slot(), other.key.hash())
        };
        let mut large = false;
        for some in parts.chunk_by(of_one) {
            if let Some(touched) = &prefetched_slots[some[0].holder_index] {
                large |=
                    touched.prefetch_element_indexes(db, &some[0].key, some.iter().map(|part| part.hash));
            }
        }
        for some in parts.chunk_by(of_one).filter(|_| large) {
            if let Some(touched) = &prefetched_slots[some[0].holder_index] {
                touched.prefetch_elements(db, &some[0].key, some.iter().map(|part| part.hash));
            }
        }
    }

    /// Runs one request, or returns why it cannot run here. `is_plain` means that the client's session needs no special
    /// handling, which is nearly always the case.
    #[inline]
    fn run_request<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &'r PrefetchedRequest<'r>,
        needs_no_special_handling: bool,
    ) -> DispatchStatus {
        if self.memory.budget.is_checked_per_command() && !self.evict_keys_if_needed(pipeline) {
            return DispatchStatus::Close;
        }
        if needs_no_special_handling
            && let Some(entry) = request.command
            && let Some(handler) = entry.unrestricted_handler(request.args)
            && self.settings.node_flags().is_empty()
        {
            // Handlers of this type never request a restart.
            let performed = self.lock_and_run(pipeline, request, entry, handler, false);
            return performed.unwrap_or(DispatchStatus::Done);
        }
        pipeline.release_all();
        // The reply of CLIENT REPLY itself is not suppressed.
        let muted = pipeline.context.session.reply_suppression() != ReplySuppression::None;
        pipeline.context.session.begin_suppression();
        let start = pipeline.context.reply.len();
        let flow = self.run_on_slow_path(pipeline, request);
        if muted && matches!(flow, DispatchStatus::Done | DispatchStatus::Close) {
            pipeline.apply_reply_suppression(start);
        }
        flow
    }

    /// Evicts keys before a client's command if memory use exceeds the limit. This runs before every command, so that
    /// the memory used by the previous command counts. Returns whether the client stays connected.
    #[inline(never)]
    fn evict_keys_if_needed(&self, pipeline: &mut Pipeline<'_>) -> bool {
        if pipeline.context.session.origin() == CommandOrigin::Client
            && self.clients.memory_limit().is_some()
            && !self.evict_clients_if_needed(pipeline)
        {
            return false;
        }
        if !self.memory.budget.is_limited() {
            return true;
        }
        self.memory.budget.report_allocations(&mut pipeline.context.worker.reported_allocations);
        let over = self.excess_bytes() > 0;
        let was_over = self.settings.node_flags().contains(NodeFlags::OUT_OF_MEMORY);
        if (over || was_over) && pipeline.context.session.origin() == CommandOrigin::Client {
            pipeline.release_all();
            self.evict_if_over_limit(pipeline.context.worker, pipeline.context.now);
        }
        !pipeline.context.session.client().is_evicted()
    }

    /// Counts the client's memory including the replies of this batch, and evicts clients above `maxmemory-clients`.
    /// Returns whether this client stays connected.
    fn evict_clients_if_needed(&self, pipeline: &mut Pipeline<'_>) -> bool {
        let Context { session, reply, .. } = &pipeline.context;
        let replies = reply.len().saturating_sub(session.replies_start());
        session.client().counted_memory.reply_bytes.store(replies, Ordering::Relaxed);
        self.clients.update_memory(session.client());
        if self.clients.is_over_limit() {
            pipeline.release_all();
            self.clients.evict_over_limit();
        }
        !pipeline.context.session.client().is_evicted()
    }

    fn run_on_slow_path<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &'r PrefetchedRequest<'r>,
    ) -> DispatchStatus {
        pipeline.was_fed_to_monitors = false;
        // ASKING applies to one command, or to the transaction that starts with it.
        let asked = pipeline.context.session.take_asking();
        let here = pipeline.context.session.background().is_on_slow_worker();
        pipeline.context.long_slots = here.then(|| self.begin_in_background(&pipeline.context, request));
        let flow = match self.check_or_queue(pipeline, request, asked) {
            Ok(entry) => self.run_admitted(pipeline, request, entry, asked),
            Err(flow) => flow,
        };
        pipeline.context.long_slots = None;
        let session = &mut *pipeline.context.session;
        if asked && (flow.is_deferred() || session.in_transaction()) {
            session.set_asking();
        }
        flow
    }

    fn run_admitted<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &'r PrefetchedRequest<'r>,
        entry: &'static RegisteredCommand,
        asking: bool,
    ) -> DispatchStatus {
        match entry.command.runner {
            CommandRunner::Script(_)
                if pipeline.context.session.is_debugging() && entry.command.name == "eval" =>
            {
                DispatchStatus::Node(NodeCommand::DebugScript)
            }
            CommandRunner::Exec => {
                let (start, begun) = (pipeline.context.reply.len(), pipeline.last_finish_nanos);
                let counted = self.charged_slot_of_exec(&pipeline.context);
                let done = self.exec(pipeline, asking);
                // As in Redis, EXEC is added to the command logs after the commands of its transaction.
                if !done.as_ref().is_ok_and(|flow| flow.is_deferred()) {
                    pipeline.context.feed_to_monitors(entry, request.args, false);
                }
                match done {
                    Ok(DispatchStatus::Done) => {
                        let flow = self.complete(pipeline, entry, request.args, start);
                        if let Some(slot) = counted {
                            let nanos = pipeline.last_finish_nanos.saturating_sub(begun);
                            self.charge_exec(&mut pipeline.context, slot, request.args, start, nanos);
                        }
                        flow
                    }
                    Ok(flow) => flow,
                    Err(error) => self.complete_failed(pipeline, entry, request.args, start, &error),
                }
            }
            CommandRunner::Engine(_)
            | CommandRunner::MayBlock(_)
            | CommandRunner::Script(_)
            | CommandRunner::Shell(_)
            | CommandRunner::Node(_)
            | CommandRunner::Container => loop {
                let run = |context: &mut Context<'r>| context.invoke(entry);
                match self.lock_and_run(pipeline, request, entry, run, asking) {
                    Ok(status) => return status,
                    Err(RestartRequired) => pipeline.context.slots.release(),
                }
            },
        }
    }

    /// Locks the command's slots, checks admission again while they are locked, runs the command, and appends its
    /// effects before the locks are released. The second check catches a pause, role change or load that began after
    /// admission. The thread that starts one locks each slot once; after that, no command admitted earlier is still
    /// running.
    #[inline]
    fn lock_and_run<'r, E: HandlerResult>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &'r PrefetchedRequest<'r>,
        entry: &'static RegisteredCommand,
        handler: impl FnOnce(&mut Context<'r>) -> Result<E, CommandError>,
        asked: bool,
    ) -> Result<DispatchStatus, RestartRequired> {
        let start = pipeline.context.reply.len();
        let call =
            |session: &Session| Invocation { entry, args: request.args, asking: asked, db: session.db() };
        let brief = entry.command.flags.intersects(Flags::LINEAR_IN_ARGS.union(Flags::FAST));
        if !brief {
            pipeline.prefetched_slots.clear();
            pipeline.release_completed();
        }
        if let Err(outcome) = self.lock_command_slots(pipeline, request, entry, asked) {
            let call = call(pipeline.context.session);
            return self.finish_without_reply(pipeline, call, start, outcome);
        }
        let gate = self.settings.node_flags();
        if !brief && self.must_move_to_background(&pipeline.context, entry, request.args, gate) {
            return Ok(DispatchStatus::Offload(OffloadReason::SlowCommand));
        }
        let is_logged = pipeline.context.session.origin().is_logged();
        if gate.contains(NodeFlags::MONITORED) && !is_logged {
            pipeline.context.feed_to_monitors(entry, request.args, false);
        }
        if !gate.is_empty()
            && is_logged
            && let Err(outcome) = self.check_admission_again(pipeline, request, entry, gate)
        {
            let call = call(pipeline.context.session);
            return self.finish_without_reply(pipeline, call, start, outcome);
        }
        let context = &mut pipeline.context;
        // Check while the slots are locked: the log only gets readers while all slots are locked, so whether it has
        // readers cannot change now.
        context.worker.effects.begin(is_logged && self.are_changes_logged(gate));
        let holds_all = entry.command.lock_scope == LockScope::AllSlots;
        let locked = LockedCommand {
            entry,
            args: request.args,
            key: request.key.as_ref(),
            holds_all_slots: holds_all,
        };
        let outcome = execute(context, locked, handler);
        context.global_lock = None;
        if context.worker.effects.has_begun() {
            context.finish_effects();
            pipeline.has_changed_slots |= context.worker.effects.completed_len() > 0;
            if !context.worker.ready_keys.is_empty() {
                pipeline.release_completed();
                pipeline.prefetched_slots.clear();
                self.serve_waiters(&mut pipeline.context);
            }
        }
        if outcome.as_ref().is_ok_and(E::is_done) {
            return Ok(self.complete(pipeline, entry, request.args, start));
        }
        let call = call(pipeline.context.session);
        let outcome = outcome.map_or_else(CommandOutcome::Fail, E::into_outcome);
        self.finish_without_reply(pipeline, call, start, outcome)
    }

    /// Handles a command that blocked, was deferred or must run elsewhere instead of replying. Only this function tells
    /// the connection how such a command continues.
    #[cold]
    fn finish_without_reply<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        call: Invocation<'_>,
        reply_start: usize,
        outcome: CommandOutcome,
    ) -> Result<DispatchStatus, RestartRequired> {
        match outcome {
            CommandOutcome::Restart => return Err(RestartRequired),
            CommandOutcome::Pause => return Ok(DispatchStatus::Paused),
            CommandOutcome::Offload(reason) => {
                pipeline.context.reply.truncate(reply_start);
                return Ok(DispatchStatus::Offload(reason));
            }
            CommandOutcome::Defer(command) => return Ok(DispatchStatus::Node(command)),
            CommandOutcome::Block(wait) if pipeline.context.can_block() => {
                return Ok(self.block_client(&mut pipeline.context, call, wait));
            }
            CommandOutcome::Fail(error) => {
                return Ok(self.complete_failed(pipeline, call.entry, call.args, reply_start, &error));
            }
            CommandOutcome::Block(wait) => (wait.timeout_reply)(&mut pipeline.context.reply),
            CommandOutcome::Done => {}
        }
        Ok(self.complete(pipeline, call.entry, call.args, reply_start))
    }

    /// Repeats the admission check of a client's command while its slots are locked, and feeds the command to MONITOR
    /// clients.
    #[cold]
    fn check_admission_again(
        &self,
        pipeline: &mut Pipeline<'_>,
        request: &PrefetchedRequest<'_>,
        entry: &'static RegisteredCommand,
        node_flags: NodeFlags,
    ) -> Result<(), CommandOutcome> {
        let context = &mut pipeline.context;
        if node_flags.contains(NodeFlags::BACKGROUND)
            && self.must_move_to_background(context, entry, request.args, node_flags)
        {
            return Err(CommandOutcome::Offload(OffloadReason::SlowCommand));
        }
        let (flags, has_keys) = self.effective_flags(context.worker, entry, request.args);
        self.recheck_admission(context.session, node_flags, flags, has_keys, &mut context.slots)?;
        if !std::mem::replace(&mut pipeline.was_fed_to_monitors, true) {
            context.feed_to_monitors(entry, request.args, false);
        }
        Ok(())
    }

    /// Completes a command whose reply begins at `reply_start`.
    #[inline(always)]
    fn complete(
        &self,
        pipeline: &mut Pipeline<'_>,
        entry: &'static RegisteredCommand,
        args: Args<'_>,
        reply_start: usize,
    ) -> DispatchStatus {
        let nanos = pipeline.nanos_since_last_command();
        let measures = self.record_call(&mut pipeline.context, entry, args, reply_start, nanos);
        if measures.contains(Measurements::SLOTS) {
            self.charge_command(&mut pipeline.context, entry, args, reply_start, nanos);
        }
        if nanos >= MIN_RECORDED_NANOS {
            self.record_script_time(pipeline.context.worker, entry, args, pipeline.last_finish_nanos, nanos);
        }
        DispatchStatus::Done
    }

    #[cold]
    fn complete_failed(
        &self,
        pipeline: &mut Pipeline<'_>,
        entry: &'static RegisteredCommand,
        args: Args<'_>,
        reply_start: usize,
        error: &CommandError,
    ) -> DispatchStatus {
        let nanos = pipeline.nanos_since_last_command();
        if error.is_refusal() {
            // The command was not executed, so count neither a call nor its execution time.
            pipeline.context.reply_failure(entry, reply_start, error);
            return DispatchStatus::Done;
        }
        let measures = self.record_call(&mut pipeline.context, entry, args, reply_start, nanos);
        pipeline.context.reply_failure(entry, reply_start, error);
        if measures.contains(Measurements::SLOTS) {
            self.charge_command(&mut pipeline.context, entry, args, reply_start, nanos);
        }
        DispatchStatus::Done
    }

    /// Queues the request in a transaction, or checks everything that may prevent it from running here. Returns the
    /// command to run, or the status with which the request ends or must wait.
    fn check_or_queue<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &'r PrefetchedRequest<'r>,
        asking: bool,
    ) -> Result<&'static RegisteredCommand, DispatchStatus> {
        if is_cross_protocol_attack(request) {
            pipeline.context.session.close_after_reply();
            return Err(DispatchStatus::Close);
        }
        if pipeline.context.session.in_transaction()
            && let Some(queued) = self.queue_command(pipeline, request, asking)
        {
            match queued {
                Ok(()) => {
                    pipeline.context.reply.simple("QUEUED");
                    let start = pipeline.context.reply.len();
                    if self.settings.measurements().contains(Measurements::SLOTS)
                        && let Some(entry) = request.command
                    {
                        self.charge_command(&mut pipeline.context, entry, request.args, start, 0);
                    }
                }
                Err(CommandOutcome::Pause) => return Err(DispatchStatus::Paused),
                Err(CommandOutcome::Offload(reason)) => return Err(DispatchStatus::Offload(reason)),
                Err(outcome) => pipeline.context.reply_rejection(request.command, &outcome.into_error()),
            }
            return Err(DispatchStatus::Done);
        }
        match self.admit(&pipeline.context, request) {
            Ok(entry) => Ok(entry),
            Err(CommandOutcome::Pause) => Err(DispatchStatus::Paused),
            Err(outcome) => {
                let error = outcome.into_error();
                let error = self.refuse_exec(pipeline.context.session, request, error);
                pipeline.context.reply_rejection(request.command, &error);
                Err(DispatchStatus::Done)
            }
        }
    }

    /// Records an executed command in the statistics, and in the command logs if it was slow or large. Returns the
    /// enabled optional measurements.
    #[inline(always)]
    pub fn record_execution(
        &self,
        stats: &WorkerStats,
        session: &Session,
        now: Millis,
        executed: &ExecutedCommand<'_>,
    ) -> Measurements {
        let command = &stats.commands[executed.entry.index];
        add(&command.calls, 1);
        add(&command.nanos, executed.nanos);
        session.client().count_command();
        let measured = self.settings.measurements();
        if measured.contains(Measurements::LATENCY) {
            command.latency.count(executed.nanos);
        }
        let flags = executed.entry.command.flags;
        if self.diagnostics.latency.reaches_threshold(executed.nanos) {
            let event = if flags.contains(Flags::FAST) { "fast-command" } else { "command" };
            self.diagnostics.latency.record_if_slow(event, now, executed.nanos);
            if let BackgroundMode::Offloaded(_) = session.background() {
                self.diagnostics.latency.record_if_slow("background-command", now, executed.nanos);
            }
        }
        let measures = [
            (&self.diagnostics.command_logs.slow_commands, executed.nanos / 1000),
            (&self.diagnostics.command_logs.large_requests, executed.args.span_len() as u64),
            (&self.diagnostics.command_logs.large_replies, executed.reply_len as u64),
        ];
        for (log, measure) in measures {
            if log.reaches_threshold(measure) && !flags.contains(Flags::SKIP_COMMANDLOG) {
                log.add(session.client(), now, measure, executed.args);
            }
        }
        if measured.contains(Measurements::KEYS) && session.origin() == CommandOrigin::Client {
            self.charge_keys(session.db(), now, executed);
        }
        measured
    }
}

impl Session {
    /// Completes a command of a session that is not plain: appends queued messages, and closes the session if
    /// requested.
    fn finish_request(
        &mut self,
        command: Option<&'static RegisteredCommand>,
        status: DispatchStatus,
        out: &mut Vec<u8>,
    ) -> DispatchStatus {
        if self.tracks_reads() && status == DispatchStatus::Done {
            self.end_caching_exception(command);
        }
        self.take_short_messages(out);
        if self.is_closing() && status == DispatchStatus::Done { DispatchStatus::Close } else { status }
    }

    /// Ends the effect of CLIENT CACHING, which applies to the next command or to the transaction that starts with it.
    #[cold]
    fn end_caching_exception(&self, executed: Option<&'static RegisteredCommand>) {
        let is_client = executed.is_some_and(|entry| entry.full_name.starts_with("client|"));
        if !self.in_transaction()
            && !is_client
            && let Some(tracking) = &mut *self.client().tracking.lock()
        {
            tracking.caching_exception = false;
        }
    }
}

/// Looks up a command by its original name, which masters use for their own commands regardless of renaming here.
#[cold]
fn find_by_original_name(context: &Context<'_>, args: Args<'_>) -> Option<&'static RegisteredCommand> {
    context.commands.by_original_name().lookup(args).filter(|_| context.session.origin().is_stream())
}

/// Detects HTTP requests by the same words as Redis.
fn is_http_word(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

fn last_command(prepared: &[PrefetchedRequest<'_>]) -> Option<&'static RegisteredCommand> {
    prepared.iter().rev().find_map(|request| request.command)
}

fn publish_session(session: &Session, now: Millis, command: Option<&'static RegisteredCommand>) {
    if let Some(entry) = command {
        session.publish(now, entry.index);
    }
}

#[cfg(test)]
mod tests;
