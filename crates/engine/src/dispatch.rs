//! The path of a command: found, touched ahead, checked, run, logged, counted.
//!
//! A read brings many requests. They are prepared together, [`AHEAD`] at a time: three sweeps ask the
//! processor for each key's slot, its index line, its entry (and three more for an element of a large collection), so
//! that the cache misses of a batch overlap. Then each runs to its end under the locks of its slots.
//!
//! A slot that was locked to be touched stays so until its command has run: it is locked once, and what was found
//! there on the way still holds. A thread that has slots locked ahead must not wait for another, so they are let go of
//! before anything waits, and before a command that may take long.

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

use crate::command::{Commands, Context, Flags, Reach, Registered, Run};
use crate::engine::{Engine, Worker};
use crate::error::CommandError;
use crate::session::{Background, Mute, Origin, Session};
use crate::settings::{Gate, Measures};
use crate::shell_commands::NodeCommand;
use crate::stats::{WorkerStats, add};
use crate::waiting::Outcome;
use admission::is_cross_protocol;
use background::NOTED_NANOS;
pub(crate) use execution::Again;
use execution::{Call, Ending, Restartable, execute};
use pipeline::Pipeline;
pub use waiting::Resumed;

/// How many requests are prepared together: enough to hide memory latency, few enough to stay in the
/// first-level cache.
const AHEAD: usize = 32;
/// With more bytes of requests than this, no slot stays locked for a command behind others: they take too long.
const LONG: usize = 64 << 10;

/// Why [`Dispatcher::run`] stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// All requests have run.
    Done,
    /// The shell must carry out this request, then go on with the next.
    Node(NodeCommand),
    /// This request must wait until the pause ends.
    Paused,
    /// This request waits: until it is served ([`crate::Waiter::is_served`]) or something else ends that, then
    /// [`Dispatcher::end_wait`] is to be called.
    Blocked,
    /// This request, which has not run, takes long: the connection goes with it to a background worker.
    Long,
    /// This request, which has not run, wants what another thread has had for some time: the connection goes with it to
    /// the background worker where such requests wait, so that they do not wait for long commands that they are not about.
    Held,
    /// The session's turn is over ([`Session::turn_ends`]): this request is the first of its next one.
    TurnOver,
    /// The connection is to be closed after what has been written.
    Close,
}

/// Requests that were read together.
#[derive(Debug, Clone, Copy)]
pub struct Requests<'a> {
    /// The bytes that were read.
    pub buffer: &'a [u8],
    /// Where the requests lie in it.
    pub batch: &'a Batch,
    /// The first that has not run yet.
    pub from: usize,
}

/// A command with its words.
#[derive(Clone, Copy)]
pub(crate) struct Invocation<'a> {
    pub(crate) entry: &'static Registered,
    pub(crate) args: Args<'a>,
    /// The client said ASKING before it.
    pub(crate) asked: bool,
    /// The database in which it runs.
    pub(crate) db: u16,
}

/// A command that has run: what it cost.
#[derive(Debug)]
pub struct Ran<'a> {
    /// The command.
    pub entry: &'static Registered,
    /// Its words.
    pub args: Args<'a>,
    /// Nanoseconds it took.
    pub nanos: u64,
    /// Bytes of its reply.
    pub reply_len: usize,
}

#[derive(Clone, Copy)]
struct Prepared<'a> {
    /// Its number among those that are prepared together.
    number: usize,
    args: Args<'a>,
    found: Option<&'static Registered>,
    key: Option<(usize, Key<'a>)>,
}

impl Prepared<'_> {
    /// The slot of its one key.
    fn slot(&self) -> Option<Slot> {
        self.key.as_ref().map(|(_, key)| key.slot())
    }
}

/// The slots of the requests that are prepared together, those that were locked ahead: by the request's number.
type Ahead<'a> = SmallVec<[Option<PrefetchedSlot<'a>>; AHEAD]>;

/// The outcome of a request under the locks of its slots.
enum Performed<A> {
    /// It has ended, or waits, or another part of the program is to carry it out.
    Flow(Flow),
    /// It begins again.
    Again(A),
}

/// A part of a large value that a request is about.
struct Part<'a> {
    key: Key<'a>,
    hash: u64,
    /// The number of the request that holds the slot.
    holder: usize,
}

/// A server's commands, as they are run on its state.
#[derive(Debug, Clone, Copy)]
pub struct Dispatcher<'a> {
    engine: &'a Engine,
    commands: &'a Commands,
}

impl Commands {
    /// These commands, to be run on the state of this engine.
    #[must_use]
    pub fn on<'a>(&'a self, engine: &'a Engine) -> Dispatcher<'a> {
        Dispatcher { engine, commands: self }
    }
}

impl Dispatcher<'_> {
    /// Runs requests and appends their replies to `out`. Returns why it stopped and the number of the request that it
    /// stopped at (`Node`, `Paused`, `Blocked`, `Long`, `TurnOver`) or of the next.
    pub fn run(
        self,
        worker: &mut Worker,
        session: &mut Session,
        now: Millis,
        requests: Requests<'_>,
        out: &mut Vec<u8>,
    ) -> (usize, Flow) {
        session.begin_turn();
        session.replied_from = out.len();
        let ran = if self.engine.may_go_on(session) {
            self.run_batch(worker, session, now, requests, out)
        } else {
            (requests.from, Flow::Close)
        };
        session.end_turn();
        if self.engine.budget.is_watched() {
            // Before the client hears of it: it may have given up what others are evicted for.
            self.engine.clients.recount(&session.client);
        }
        self.engine.tell_of_changes();
        ran
    }

    fn run_batch(
        self,
        worker: &mut Worker,
        session: &mut Session,
        now: Millis,
        requests: Requests<'_>,
        out: &mut Vec<u8>,
    ) -> (usize, Flow) {
        let Self { engine, commands } = self;
        let Requests { buffer, batch, from } = requests;
        let mut next = from;
        let mut last = None;
        while next < batch.len() {
            let end = batch.len().min(next + AHEAD);
            let mut prepared: SmallVec<[Prepared<'_>; AHEAD]> = SmallVec::new();
            let reply = Writer::new(out, session.protocol).with_limit(session.reply_limit);
            let context = Context::new(engine, commands, worker, session, now, reply);
            let mut pipeline = Pipeline::new(context);
            if next > from && pipeline.is_turn_over() {
                drop(pipeline);
                publish(session, now, last);
                return (next, Flow::TurnOver);
            }
            engine.prepare(&mut pipeline, batch.requests(next..end, buffer), &mut prepared);
            if buffer.len() > LONG {
                pipeline.ahead.clear();
            }
            match engine.run_prepared(&mut pipeline, &prepared, next) {
                None => {}
                Some((stopped, Flow::Close)) => return (stopped, Flow::Close),
                Some((stopped, flow)) => {
                    let session = &*pipeline.context.session;
                    publish(session, now, last_found(&prepared[..=stopped - next]).or(last));
                    return (stopped, flow);
                }
            }
            last = last_found(&prepared).or(last);
            next = end;
        }
        publish(session, now, last);
        (next, Flow::Done)
    }
}

impl Engine {
    /// Runs requests that are prepared, the first of which is number `first` of its batch; says where and why it
    /// stopped if it did.
    #[inline(always)]
    fn run_prepared<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        prepared: &'r [Prepared<'r>],
        first: usize,
    ) -> Option<(usize, Flow)> {
        let mut plain = pipeline.context.session.is_plain();
        for (index, request) in prepared.iter().enumerate() {
            let number = first + index;
            pipeline.context.worker.running = number;
            if self.settings.gate().contains(Gate::REVOKING) {
                pipeline.release_all();
                if !self.look_up_from_work(pipeline.context.session) {
                    return Some((number, Flow::Close));
                }
                plain = pipeline.context.session.is_plain();
            }
            let mut flow = self.step(pipeline, request, plain);
            // The slot stays locked if the next command is about it too.
            let same = |next: &Prepared<'_>| next.slot().is_some() && next.slot() == request.slot();
            if !prepared.get(index + 1).is_some_and(same) {
                pipeline.leave_slots();
            }
            if !plain || request.key.is_none() {
                pipeline.context.drop_garbage();
                if !pipeline.context.worker.revoked.is_empty() && !pipeline.await_revoked() {
                    return Some((number + 1, Flow::Close));
                }
                plain = pipeline.context.session.is_plain();
                if !plain {
                    let Context { session, reply, .. } = &mut pipeline.context;
                    flow = session.after(request.found, flow, reply.buffer());
                }
            }
            match flow {
                Flow::Done if !pipeline.context.reply.is_over_limit() => {
                    let is_last = index + 1 == prepared.len();
                    if !is_last && pipeline.is_turn_over() {
                        return Some((number + 1, Flow::TurnOver));
                    }
                }
                Flow::Done => {
                    pipeline.context.session.client.overflow();
                    return Some((number + 1, Flow::Close));
                }
                Flow::Node(_) | Flow::Paused | Flow::Blocked | Flow::Long | Flow::Held | Flow::TurnOver => {
                    return Some((number, flow));
                }
                Flow::Close => return Some((number + 1, flow)),
            }
        }
        None
    }

    /// Finds the commands, hashes their first keys, and touches ahead what they will need. The keys' slots, those
    /// that no other thread holds, are locked from then on until their commands have run.
    fn prepare<'a, 'p>(
        &'a self,
        pipeline: &mut Pipeline<'a>,
        requests: impl Iterator<Item = Args<'p>>,
        prepared: &mut SmallVec<[Prepared<'p>; AHEAD]>,
    ) {
        let (mut keys, mut parts) = (0, false);
        let mut of_scripts: SmallVec<[Key<'p>; AHEAD]> = SmallVec::new();
        let registry = pipeline.context.commands.registry();
        prepared.extend(requests.enumerate().map(|(number, args)| {
            let found = registry.lookup(args).or_else(|| known_to_masters(&pipeline.context, args));
            parts |= found.is_some_and(|entry| entry.part.is_some());
            let place = found.and_then(|entry| entry.single_key);
            let key = place.and_then(|place| Some((place, self.keyspace.key(args.get(place)?))));
            if let Some((_, key)) = &key {
                keys += 1;
                self.keyspace.prefetch_slot(key);
            } else if let Some(key) = found.and_then(|entry| self.key_of_script(entry, args)) {
                self.keyspace.prefetch_slot(&key);
                of_scripts.push(key);
            }
            Prepared { number, args, found, key }
        }));
        if of_scripts.len() > 1 {
            self.keyspace.prefetch_entries(pipeline.context.session.db, of_scripts.iter());
        }
        if keys > 1 {
            let db = pipeline.context.session.db;
            let prefetch_index = |request: &Prepared<'_>| self.keyspace.prefetch_index(db, &request.key?.1);
            pipeline.ahead.extend(prepared.iter().map(prefetch_index));
            for (touched, request) in pipeline.ahead.iter_mut().zip(prepared.iter()) {
                if let (Some(touched), Some((_, key))) = (touched, &request.key) {
                    touched.prefetch_entry(db, key);
                }
            }
            if parts {
                self.prefetch_elements(db, prepared, &pipeline.ahead);
            }
        }
    }

    /// The key of a script that names one. Asked of every command.
    #[inline]
    fn key_of_script<'p>(&self, entry: &Registered, args: Args<'p>) -> Option<Key<'p>> {
        if !matches!(entry.command.run, Run::Script(_)) || args.get(2) != Some(b"1") {
            return None;
        }
        args.get(3).map(|key| self.keyspace.key(key))
    }

    /// Touches ahead the parts of large values that requests are about.
    fn prefetch_elements(&self, db: u16, prepared: &[Prepared<'_>], ahead: &Ahead<'_>) {
        let mut parts: SmallVec<[Part<'_>; AHEAD]> = SmallVec::new();
        for request in prepared {
            let (Some(entry), Some((_, key))) = (request.found, request.key) else { continue };
            let Some(part) = entry.part.and_then(|part| request.args.get(part)) else { continue };
            // Many in a row are often about one value.
            let same = parts.last().filter(|last| last.key.slot() == key.slot()).map(|last| last.holder);
            let holds =
                |other: &Prepared<'_>| other.slot() == Some(key.slot()) && ahead[other.number].is_some();
            if let Some(holder) = same.or_else(|| prepared.iter().position(holds)) {
                parts.push(Part { key, hash: self.keyspace.hash_element_name(part), holder });
            }
        }
        let of_one = |one: &Part<'_>, other: &Part<'_>| {
            (one.key.slot(), one.key.hash()) == (other.key.slot(), other.key.hash())
        };
        let mut large = false;
        for some in parts.chunk_by(of_one) {
            if let Some(touched) = &ahead[some[0].holder] {
                large |=
                    touched.prefetch_element_indexes(db, &some[0].key, some.iter().map(|part| part.hash));
            }
        }
        for some in parts.chunk_by(of_one).filter(|_| large) {
            if let Some(touched) = &ahead[some[0].holder] {
                touched.prefetch_elements(db, &some[0].key, some.iter().map(|part| part.hash));
            }
        }
    }

    /// Runs one request, or says why it cannot run here and now. Nearly always neither command nor client nor
    /// server asks for a closer look: `plain` says so of the client.
    #[inline]
    fn step<'r>(&'r self, pipeline: &mut Pipeline<'r>, request: &'r Prepared<'r>, plain: bool) -> Flow {
        if self.budget.is_watched() && !self.keep_within_budget(pipeline) {
            return Flow::Close;
        }
        if plain
            && let Some(entry) = request.found
            && let Some(handler) = entry.plain(request.args)
            && self.settings.gate().is_empty()
        {
            let Performed::Flow(flow) = self.perform(pipeline, request, entry, handler, false);
            return flow;
        }
        pipeline.release_all();
        // The command that asks for silence (CLIENT REPLY) is not itself silenced.
        let muted = pipeline.context.session.mute != Mute::Nothing;
        if pipeline.context.session.mute == Mute::Next {
            pipeline.context.session.mute = Mute::This;
        }
        let start = pipeline.context.reply.len();
        let flow = self.careful_step(pipeline, request);
        if muted && matches!(flow, Flow::Done | Flow::Close) {
            pipeline.keep_reply_from(start);
        }
        flow
    }

    /// Makes room before a client's command, if more memory is in use than may be. With a limit this is asked before
    /// every command, so what the command before did counts. Says whether the client is still to be served.
    #[inline(never)]
    fn keep_within_budget(&self, pipeline: &mut Pipeline<'_>) -> bool {
        if pipeline.context.session.origin == Origin::Client
            && self.clients.memory_limit().is_some()
            && !self.keep_client_within_budget(pipeline)
        {
            return false;
        }
        if !self.budget.is_limited() {
            return true;
        }
        self.budget.tell(&mut pipeline.context.worker.told);
        let over = self.excess() > 0;
        let was_over = self.settings.gate().contains(Gate::OUT_OF_MEMORY);
        if (over || was_over) && pipeline.context.session.origin == Origin::Client {
            pipeline.release_all();
            self.make_room(pipeline.context.worker, pipeline.context.now);
        }
        !pipeline.context.session.client.is_evicted()
    }

    /// Counts what the client takes with the replies of this batch, and evicts clients if all take more than they may.
    /// Says whether this one stays.
    fn keep_client_within_budget(&self, pipeline: &mut Pipeline<'_>) -> bool {
        let Context { session, reply, .. } = &pipeline.context;
        let replies = reply.len().saturating_sub(session.replied_from);
        session.client.footprint.replies.store(replies, Ordering::Relaxed);
        self.clients.recount(&session.client);
        if self.clients.are_over_limit() {
            pipeline.release_all();
            self.clients.evict();
        }
        !pipeline.context.session.client.is_evicted()
    }

    /// Runs a request that something may keep from running.
    fn careful_step<'r>(&'r self, pipeline: &mut Pipeline<'r>, request: &'r Prepared<'r>) -> Flow {
        pipeline.shown = false;
        // ASKING holds for one command, or for the transaction that begins with it.
        let asked = std::mem::take(&mut pipeline.context.session.asking);
        let here = pipeline.context.session.background == Background::Here;
        pipeline.context.long = here.then(|| self.begin_in_background(&pipeline.context, request));
        let flow = match self.examine(pipeline, request, asked) {
            Ok(entry) => self.run_admitted(pipeline, request, entry, asked),
            Err(flow) => flow,
        };
        pipeline.context.long = None;
        let session = &mut *pipeline.context.session;
        session.asking |= asked && (flow.is_put_off() || session.in_transaction());
        pipeline.context.session.forget_resumed(flow);
        flow
    }

    /// Runs a request that may run, by whatever way its command does.
    fn run_admitted<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &'r Prepared<'r>,
        entry: &'static Registered,
        asked: bool,
    ) -> Flow {
        match entry.command.run {
            Run::Script(_)
                if pipeline.context.session.debug_mode.is_some() && entry.command.name == "eval" =>
            {
                Flow::Node(NodeCommand::DebugScript)
            }
            Run::Exec => {
                let (start, begun) = (pipeline.context.reply.len(), pipeline.clock);
                let counted = self.slot_of_queue(&pipeline.context);
                let done = self.exec(&mut pipeline.context, asked);
                // As in Redis, behind what it ran.
                if !done.as_ref().is_ok_and(|flow| flow.is_put_off()) {
                    pipeline.context.show(entry, request.args, false);
                }
                match done {
                    Ok(Flow::Done) => {
                        let flow = self.end(pipeline, entry, request.args, start);
                        if let Some(slot) = counted {
                            let nanos = pipeline.clock.saturating_sub(begun);
                            self.count_exec(&mut pipeline.context, (slot, request.args), start, nanos);
                        }
                        flow
                    }
                    Ok(flow) => flow,
                    Err(error) => self.fail(pipeline, entry, request.args, start, &error),
                }
            }
            Run::Here(_)
            | Run::MayBlock(_)
            | Run::Script(_)
            | Run::Shell(_)
            | Run::Node(_)
            | Run::Container => loop {
                let run = |context: &mut Context<'r>| context.invoke::<Restartable>(entry);
                match self.perform(pipeline, request, entry, run, asked) {
                    Performed::Flow(flow) => return flow,
                    Performed::Again(Again) => pipeline.context.slots.release(),
                }
            },
        }
    }

    /// Locks the command's slots, asks whether it may run on them, runs it, and appends its effects
    /// before the slots are unlocked. A pause, another role, a load that began since the command was admitted stops
    /// it here: the thread that begins one need only see each slot free once to know that nothing more will happen.
    #[inline]
    fn perform<'r, E: Ending>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &'r Prepared<'r>,
        entry: &'static Registered,
        handler: impl FnOnce(&mut Context<'r>) -> Result<E, CommandError>,
        asked: bool,
    ) -> Performed<E::Again> {
        let start = pipeline.context.reply.len();
        let brief = entry.command.flags.intersects(Flags::BRIEF.union(Flags::FAST));
        if !brief {
            pipeline.ahead.clear();
            pipeline.release_ended();
        }
        if let Err(error) = self.lock(pipeline, request, entry, asked) {
            return Performed::Flow(self.fail(pipeline, entry, request.args, start, &error));
        }
        let gate = self.settings.gate();
        if !brief && self.goes_to_background(&pipeline.context, entry, request.args, gate) {
            return Performed::Flow(Flow::Long);
        }
        let is_logged = pipeline.context.session.origin.is_logged();
        if gate.contains(Gate::MONITORED) && !is_logged {
            pipeline.context.show(entry, request.args, false);
        }
        if !gate.is_empty() && is_logged {
            match self.ask_again(pipeline, request, entry, gate) {
                Ok(Flow::Done) => {}
                Ok(flow) => return Performed::Flow(flow),
                Err(error) => {
                    return Performed::Flow(self.fail(pipeline, entry, request.args, start, &error));
                }
            }
        }
        let context = &mut pipeline.context;
        // Asked under the locks: the log is opened at a cut, while every slot is held.
        context.worker.effects.start(is_logged && self.logs_under(gate));
        let holds_all = entry.command.reach == Reach::AllSlots;
        let call = Call { entry, args: request.args, key: request.key.as_ref(), holds_all };
        let outcome = execute(context, call, handler);
        context.turn = None;
        if context.worker.effects.has_begun() {
            context.seal_effects();
            pipeline.changed |= context.worker.effects.pending() > 0;
            if !context.worker.ready.is_empty() {
                pipeline.release_ended();
                pipeline.ahead.clear();
                self.serve_waiters(&mut pipeline.context);
            }
        }
        if outcome.as_ref().is_ok_and(E::is_done) {
            return Performed::Flow(self.end(pipeline, entry, request.args, start));
        }
        let call = Invocation { entry, args: request.args, asked, db: pipeline.context.session.db };
        self.end_otherwise(pipeline, call, start, outcome.map(E::into_outcome))
    }

    /// Ends a command that has not just replied: it failed, waits, begins again, or is for its connection.
    #[cold]
    fn end_otherwise<'r, A>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        call: Invocation<'_>,
        start: usize,
        outcome: Result<Outcome<A>, CommandError>,
    ) -> Performed<A> {
        match outcome {
            Ok(Outcome::Again(again)) => return Performed::Again(again),
            Ok(Outcome::HandOver(command)) => return Performed::Flow(Flow::Node(command)),
            Ok(Outcome::Block(wait)) if pipeline.context.may_wait() => {
                return Performed::Flow(self.block(&mut pipeline.context, call, wait));
            }
            Ok(Outcome::Block(wait)) => (wait.nothing)(&mut pipeline.context.reply),
            Ok(Outcome::Done) => {}
            Err(error) => return Performed::Flow(self.fail(pipeline, call.entry, call.args, start, &error)),
        }
        Performed::Flow(self.end(pipeline, call.entry, call.args, start))
    }

    /// Asks about a client's command under the locks of its slots, and shows it to the monitors.
    #[cold]
    fn ask_again(
        &self,
        pipeline: &mut Pipeline<'_>,
        request: &Prepared<'_>,
        entry: &'static Registered,
        gate: Gate,
    ) -> Result<Flow, CommandError> {
        let context = &mut pipeline.context;
        if gate.contains(Gate::BACKGROUND) && self.goes_to_background(context, entry, request.args, gate) {
            return Ok(Flow::Long);
        }
        let nature = self.nature(context.worker, entry, request.args);
        let flow = self.pass_locked(context.session, gate, nature, &mut context.slots)?;
        if flow == Flow::Done && !std::mem::replace(&mut pipeline.shown, true) {
            context.show(entry, request.args, false);
        }
        Ok(flow)
    }

    /// Ends a command whose reply began at `start`.
    #[inline(always)]
    fn end(
        &self,
        pipeline: &mut Pipeline<'_>,
        entry: &'static Registered,
        args: Args<'_>,
        start: usize,
    ) -> Flow {
        let nanos = pipeline.lap();
        let measures = self.count(&mut pipeline.context, (entry, args), start, nanos);
        if measures.contains(Measures::SLOTS) {
            self.count_slot(&mut pipeline.context, (entry, args), start, nanos);
        }
        if nanos >= NOTED_NANOS {
            self.note_time(pipeline.context.worker, (entry, args), pipeline.clock, nanos);
        }
        Flow::Done
    }

    /// The same of one that failed, if it is not to be run elsewhere.
    #[cold]
    fn fail(
        &self,
        pipeline: &mut Pipeline<'_>,
        entry: &'static Registered,
        args: Args<'_>,
        start: usize,
        error: &CommandError,
    ) -> Flow {
        if let Some(flow) = error.put_off() {
            pipeline.context.reply.truncate(start);
            return flow;
        }
        let nanos = pipeline.lap();
        if error.is_refusal() {
            // It is not called, and its time is nobody's.
            pipeline.context.fail(entry, start, error);
            return Flow::Done;
        }
        let measures = self.count(&mut pipeline.context, (entry, args), start, nanos);
        pipeline.context.fail(entry, start, error);
        if measures.contains(Measures::SLOTS) {
            self.count_slot(&mut pipeline.context, (entry, args), start, nanos);
        }
        Flow::Done
    }

    /// Queues the request if its client said MULTI, or asks everything that may keep it from running here and
    /// now: then the flow says what is to be done instead.
    fn examine<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &'r Prepared<'r>,
        asked: bool,
    ) -> Result<&'static Registered, Flow> {
        if is_cross_protocol(request) {
            pipeline.context.session.closing = true;
            return Err(Flow::Close);
        }
        if pipeline.context.session.transaction.is_some()
            && let Some(queued) = self.queue(pipeline, request, asked)
        {
            match queued {
                Err(error) if error.put_off().is_some() => return Err(error.put_off().unwrap_or(Flow::Long)),
                Ok(()) => {
                    pipeline.context.reply.simple("QUEUED");
                    let start = pipeline.context.reply.len();
                    if self.settings.measures().contains(Measures::SLOTS)
                        && let Some(entry) = request.found
                    {
                        self.count_slot(&mut pipeline.context, (entry, request.args), start, 0);
                    }
                }
                Err(error) => pipeline.context.reject(request.found, &error),
            }
            return Err(Flow::Done);
        }
        match self.admit(&pipeline.context, request) {
            Ok((entry, Flow::Done)) => Ok(entry),
            Ok((_, flow)) => Err(flow),
            Err(error) => {
                let error = self.refused_exec(pipeline.context.session, request, error);
                pipeline.context.reject(request.found, &error);
                Err(Flow::Done)
            }
        }
    }

    /// Takes a command that has run into the statistics, and into the logs if it was slow or large. Says what is
    /// measured besides.
    #[inline(always)]
    pub fn account(&self, stats: &WorkerStats, session: &Session, now: Millis, ran: &Ran<'_>) -> Measures {
        let command = &stats.commands[ran.entry.index];
        add(&command.calls, 1);
        add(&command.nanos, ran.nanos);
        session.client.count_command();
        let measured = self.settings.measures();
        if measured.contains(Measures::TIMES) {
            command.times.count(ran.nanos);
        }
        let flags = ran.entry.command.flags;
        if self.latency.wants(ran.nanos) {
            let event = if flags.contains(Flags::FAST) { "fast-command" } else { "command" };
            self.latency.sample(event, now, ran.nanos);
            if matches!(session.background, Background::Here | Background::Waiting) {
                self.latency.sample("background-command", now, ran.nanos);
            }
        }
        let measures = [
            (&self.logs.slow, ran.nanos / 1000),
            (&self.logs.large_request, ran.args.span_len() as u64),
            (&self.logs.large_reply, ran.reply_len as u64),
        ];
        for (log, measure) in measures {
            if log.wants(measure) && !flags.contains(Flags::SKIP_COMMANDLOG) {
                log.add(&session.client, now, measure, ran.args);
            }
        }
        if measured.contains(Measures::KEYS) && session.origin == Origin::Client {
            self.count_keys(session.db, now, ran);
        }
        measured
    }
}

impl Session {
    /// Forgets the deadline of a command that was to run again after a wait, unless it is put off once more.
    #[inline]
    fn forget_resumed(&mut self, flow: Flow) {
        if !flow.is_put_off() {
            self.resumes = None;
        }
    }

    /// Ends a command of a session that is not plain: appends its messages; closes it if that was asked for.
    fn after(&mut self, command: Option<&'static Registered>, flow: Flow, out: &mut Vec<u8>) -> Flow {
        if self.tracks && flow == Flow::Done {
            self.end_exception(command);
        }
        self.take_short_messages(out);
        if self.closing && flow == Flow::Done { Flow::Close } else { flow }
    }

    /// CLIENT CACHING holds for the command after it, or for the transaction that begins with it.
    #[cold]
    fn end_exception(&self, ran: Option<&'static Registered>) {
        let is_client = ran.is_some_and(|entry| entry.full_name.starts_with("client|"));
        if !self.in_transaction()
            && !is_client
            && let Some(tracking) = &mut *self.client.tracking.lock()
        {
            tracking.caching = false;
        }
    }
}

/// A master says what it does of its own accord by the commands' own names, whatever clients call them here.
#[cold]
fn known_to_masters(context: &Context<'_>, args: Args<'_>) -> Option<&'static Registered> {
    context.commands.own_names().lookup(args).filter(|_| context.session.origin.is_stream())
}

/// The words by which Redis knows a cross-protocol request of HTTP.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

fn last_found(prepared: &[Prepared<'_>]) -> Option<&'static Registered> {
    prepared.iter().rev().find_map(|request| request.found)
}

fn publish(session: &Session, now: Millis, last: Option<&'static Registered>) {
    if let Some(entry) = last {
        session.publish(now, entry.index);
    }
}

#[cfg(test)]
mod tests;
