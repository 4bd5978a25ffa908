//! The path of a command: found, touched ahead, checked, run, logged, counted.
//!
//! A read brings many requests. They are prepared together, [`AHEAD`] at a time: three sweeps ask the
//! processor for each key's slot, its index line, its entry (and two more for a field of a large hash), so
//! that the cache misses of a batch overlap. Then each runs to its end under the locks of its slots.

mod admission;
mod transaction;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use acl::Users;
use arc_swap::ArcSwap;
use clock::Millis;
use keyspace::{Found, Key, Keyspace, LockedSlots, SlotGuard, Table};
use parking_lot::{Mutex, RwLock};
use resp::{Args, Batch, Writer};
use slot_routing::{Access, Member, Ownership, ReplOffset, Slot, Topology, Verdict, route};
use smallvec::SmallVec;

use crate::bin::Bin;
use crate::clients::Clients;
use crate::command::{Flags, Handler, NodeCommand, Reach, Run};
use crate::command_log::CommandLogs;
use crate::context::Context;
use crate::effects::{EffectLog, Effects, NoLog};
use crate::error::CommandError;
use crate::expiry::ExpiryCursor;
use crate::histogram::Distribution;
use crate::latency::LatencyMonitor;
use crate::lookup::{Registered, Registry};
use crate::pause::Pauses;
use crate::pubsub::PubSub;
use crate::random::Random;
use crate::session::{Mute, Origin, Session};
use crate::settings::Settings;
use crate::stats::{WorkerStats, add};
use crate::tracking::TrackingTable;
use crate::watch::Watches;
use admission::paused;

/// How many requests are prepared together: enough to hide memory latency, few enough to stay in the
/// first-level cache.
const AHEAD: usize = 32;

/// What every connection of a server shares.
#[derive(Debug)]
pub struct Engine {
    pub keyspace: Arc<Keyspace>,
    pub settings: Settings,
    /// Who serves which slot; `None` without cluster mode.
    pub topology: Option<ArcSwap<Topology>>,
    pub log: Box<dyn EffectLog>,
    pub clients: Clients,
    pub pauses: Pauses,
    /// Large values that the shell is to drop.
    pub bin: Bin,
    pub logs: CommandLogs,
    pub latency: LatencyMonitor,
    pub pubsub: PubSub,
    pub tracking: TrackingTable,
    /// Who may log in, and as whom.
    pub users: RwLock<Users>,
    /// Held by whoever waits for a slot while holding another (DESIGN: "Locks", rules 2 and 3).
    pub script_turn: Mutex<()>,
    pub(crate) expiry_cursor: ExpiryCursor,
    pub(crate) watches: Watches,
    /// What makes the threads' monotonic clock the wall clock, in microseconds.
    pub(crate) wall_base: AtomicI64,
    pub(crate) registry: &'static Registry,
    workers: Mutex<Vec<Arc<WorkerStats>>>,
}

/// What one thread needs to run commands.
#[derive(Debug)]
pub struct Worker {
    pub stats: Arc<WorkerStats>,
    pub(crate) effects: Effects,
    random: Random,
    /// Memory for one key, and for the name of a part of its value.
    pub(crate) key: Vec<u8>,
    pub(crate) name: Vec<u8>,
    /// Tables that a command emptied, until its slots are free again.
    garbage: Vec<Table>,
    /// A monotonic clock in nanoseconds, read once a command for the statistics.
    pub(crate) nanos: fn() -> u64,
}

/// Why [`Engine::run`] stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// All requests have run.
    Done,
    /// The shell must carry out this request, then go on with the next.
    Node(NodeCommand),
    /// This request must wait until the pause ends.
    Paused,
    /// The connection is to be closed after what has been written.
    Close,
}

/// What the requests of one batch work with, each another owner's state.
struct Turn<'r> {
    worker: &'r mut Worker,
    session: &'r mut Session,
    now: Millis,
    out: &'r mut Vec<u8>,
    /// When the command before ended.
    clock: u64,
    /// The slot of the command before, if this one is about it too: then it is not unlocked in between.
    held: Option<SlotGuard<'r>>,
}

/// A command that has run: what it cost.
#[derive(Debug)]
pub struct Ran<'a> {
    pub entry: &'static Registered,
    pub args: Args<'a>,
    pub nanos: u64,
    /// Bytes of its reply.
    pub reply_len: usize,
}

/// A request that may run, or must be handed over or put off.
struct Admitted {
    entry: &'static Registered,
    flow: Flow,
}

#[derive(Clone, Copy)]
struct Prepared<'a> {
    args: Args<'a>,
    found: Option<&'static Registered>,
    key: Option<(usize, Key<'a>)>,
    /// The next request's key lies in the same slot.
    holds_on: bool,
}

impl Engine {
    #[must_use]
    pub fn new(keyspace: Keyspace, topology: Option<Topology>, log: Box<dyn EffectLog>) -> Self {
        Self::with(Registry::the(), keyspace, topology, log)
    }

    /// What a sentinel's connections share: no data, and a sentinel's commands. Of these the engine runs
    /// what concerns only connections.
    #[must_use]
    pub fn of_sentinel(seed: u64) -> Self {
        Self::with(Registry::of_sentinel(), Keyspace::new(seed, 1), None, Box::new(NoLog))
    }

    fn with(
        registry: &'static Registry,
        keyspace: Keyspace,
        topology: Option<Topology>,
        log: Box<dyn EffectLog>,
    ) -> Self {
        Self {
            keyspace: Arc::new(keyspace),
            settings: Settings::default(),
            topology: topology.map(ArcSwap::from_pointee),
            log,
            clients: Clients::default(),
            pauses: Pauses::default(),
            bin: Bin::default(),
            logs: CommandLogs::default(),
            latency: LatencyMonitor::default(),
            pubsub: PubSub::default(),
            tracking: TrackingTable::default(),
            script_turn: Mutex::new(()),
            expiry_cursor: ExpiryCursor::default(),
            watches: Watches::default(),
            wall_base: AtomicI64::new(0),
            users: RwLock::new(Users::new(registry.catalogue())),
            registry,
            workers: Mutex::new(Vec::new()),
        }
    }

    /// The state for one more thread that runs commands. `nanos` reads a monotonic clock.
    #[must_use]
    pub fn worker(&self, nanos: fn() -> u64) -> Worker {
        let stats = Arc::new(WorkerStats::new(self.registry.all().len()));
        let mut workers = self.workers.lock();
        workers.push(stats.clone());
        // Hashes are seeded by chance, so this one is as good as a random number.
        let seed = self.keyspace.key(&workers.len().to_le_bytes()).hash();
        let (effects, random) = (Effects::default(), Random::new(seed));
        Worker { stats, effects, random, key: Vec::new(), name: Vec::new(), garbage: Vec::new(), nanos }
    }

    /// Says that a worker's monotonic clock showed `nanos` when it was `micros` since the epoch. To be said
    /// again at times: the wall clock may be set.
    pub fn set_wall_clock(&self, nanos: u64, micros: i64) {
        self.wall_base.store(micros - (nanos / 1000) as i64, Ordering::Relaxed);
    }

    /// Every thread's counters.
    #[must_use]
    pub fn worker_stats(&self) -> Vec<Arc<WorkerStats>> {
        self.workers.lock().clone()
    }

    /// Runs the requests of `batch` from number `from` on and appends their replies to `out`. Returns
    /// why it stopped and the number of the request that it stopped at (`Node`, `Paused`) or of the next.
    #[allow(clippy::too_many_arguments, reason = "the one entry point; each is another owner's state")]
    pub fn run(
        &self,
        worker: &mut Worker,
        session: &mut Session,
        now: Millis,
        buffer: &[u8],
        batch: &Batch,
        from: usize,
        out: &mut Vec<u8>,
    ) -> (usize, Flow) {
        let mut next = from;
        let mut last = None;
        let clock = (worker.nanos)();
        let mut turn = Turn { worker, session, now, out, clock, held: None };
        while next < batch.len() {
            let end = batch.len().min(next + AHEAD);
            let mut prepared: SmallVec<[Prepared<'_>; AHEAD]> = SmallVec::new();
            self.prepare(turn.session.db, buffer, batch, next..end, &mut prepared);
            for request in &prepared {
                last = request.found.or(last);
                let flow = self.step(&mut turn, request);
                if turn.session.tracks && matches!(flow, Flow::Done) {
                    turn.session.end_exception(request.found);
                }
                if turn.session.subscriber {
                    turn.session.client.take_messages(turn.out);
                }
                match flow {
                    Flow::Done => next += 1,
                    flow @ (Flow::Node(_) | Flow::Paused) => {
                        publish(turn.session, now, last);
                        return (next, flow);
                    }
                    Flow::Close => return (next + 1, Flow::Close),
                }
            }
        }
        publish(turn.session, now, last);
        (next, Flow::Done)
    }

    /// Finds the commands, hashes their first keys, and touches ahead what they will need.
    fn prepare<'a>(
        &self,
        db: u16,
        buffer: &'a [u8],
        batch: &'a Batch,
        range: std::ops::Range<usize>,
        prepared: &mut SmallVec<[Prepared<'a>; AHEAD]>,
    ) {
        let mut parts = false;
        for index in range {
            let args = batch.args(index, buffer);
            let found = self.registry.lookup(args);
            parts |= found.is_some_and(|entry| entry.part.is_some());
            let place = found.and_then(|entry| entry.single_key);
            let key = place.and_then(|place| Some((place, self.keyspace.key(args.get(place)?))));
            if let Some((_, key)) = &key {
                match prepared.last_mut() {
                    Some(before) if before.key.is_some_and(|(_, before)| before.slot() == key.slot()) => {
                        before.holds_on = true;
                    }
                    _ => self.keyspace.touch_slot(key),
                }
            }
            prepared.push(Prepared { args, found, key, holds_on: false });
        }
        if prepared.len() > 1 {
            let keys = prepared.iter().filter_map(|request| request.key.as_ref().map(|(_, key)| key));
            self.keyspace.touch_entries(db, keys);
            if parts {
                self.touch_parts(db, prepared);
            }
        }
    }

    /// Touches ahead the parts of large values that requests are about.
    fn touch_parts(&self, db: u16, prepared: &[Prepared<'_>]) {
        let parts: SmallVec<[(Key<'_>, u64); AHEAD]> = prepared
            .iter()
            .filter_map(|request| {
                let part = request.args.get(request.found?.part?)?;
                Some((request.key?.1, self.keyspace.hash_part(part)))
            })
            .collect();
        self.keyspace.touch_parts(db, &parts);
    }

    /// Runs one request, or says why it cannot run here and now.
    fn step<'r>(&'r self, turn: &mut Turn<'r>, request: &Prepared<'_>) -> Flow {
        if turn.session.mute != Mute::Nothing {
            return self.muted_step(turn, request);
        }
        self.audible_step(turn, request)
    }

    /// Runs a request whose reply, or the next one's, the client does not want (CLIENT REPLY).
    fn muted_step<'r>(&'r self, turn: &mut Turn<'r>, request: &Prepared<'_>) -> Flow {
        if turn.session.mute == Mute::Next {
            turn.session.mute = Mute::This;
        }
        let start = turn.out.len();
        let flow = self.audible_step(turn, request);
        if matches!(flow, Flow::Done | Flow::Close) {
            if matches!(turn.session.mute, Mute::This | Mute::Everything) {
                turn.out.truncate(start);
            }
            if turn.session.mute == Mute::This {
                turn.session.mute = Mute::Nothing;
            }
        }
        flow
    }

    fn audible_step<'r>(&'r self, turn: &mut Turn<'r>, request: &Prepared<'_>) -> Flow {
        // ASKING holds for one command.
        let asked = std::mem::take(&mut turn.session.asking);
        // Nearly always neither command nor client nor server asks for a closer look.
        let plain = request.found.and_then(|entry| Some((entry, entry.plain(request.args)?)));
        let (entry, run) = match plain {
            Some((entry, handler)) if turn.session.is_plain() && self.settings.gate().is_empty() => {
                (entry, Run::Here(handler))
            }
            _ => {
                turn.held = None;
                match self.examine(turn, request, asked) {
                    Ok(entry) => (entry, entry.command.run),
                    Err(flow) => return flow,
                }
            }
        };
        let start = turn.out.len();
        let outcome = match run {
            Run::Here(handler) => self.execute(turn, request, entry, handler, asked),
            Run::Exec => self.exec(turn.worker, turn.session, turn.now, asked, turn.out),
            Run::Node(_) | Run::Container => {
                unreachable!("the shell's commands and containers are sorted out on admission")
            }
        };
        if !request.holds_on {
            turn.held = None;
        }
        if !turn.worker.garbage.is_empty() {
            turn.worker.garbage.clear();
        }
        match outcome {
            Ok(Flow::Done) | Err(_) => {}
            Ok(flow) => {
                turn.session.asking = asked && flow == Flow::Paused;
                return flow;
            }
        }
        let end = (turn.worker.nanos)();
        let (nanos, reply_len) = (end.saturating_sub(turn.clock), turn.out.len().saturating_sub(start));
        turn.clock = end;
        let ran = Ran { entry, args: request.args, nanos, reply_len };
        self.account(&turn.worker.stats, turn.session, turn.now, &ran);
        if let Err(error) = outcome {
            turn.out.truncate(start);
            let stats = &turn.worker.stats.commands[entry.index];
            // A redirection is not the command's failure.
            let counter = if error.is_refusal() { &stats.rejected } else { &stats.failed };
            add(counter, 1);
            self.refuse(turn.worker, turn.session, &error, turn.out);
        }
        if turn.session.closing { Flow::Close } else { Flow::Done }
    }

    /// Queues the request if its client said MULTI, or asks everything that may keep it from running here and
    /// now: then the flow says what is to be done instead.
    fn examine(
        &self,
        turn: &mut Turn<'_>,
        request: &Prepared<'_>,
        asked: bool,
    ) -> Result<&'static Registered, Flow> {
        if turn.session.transaction.is_some()
            && let Some(queued) = self.queue(turn.session, turn.now, request, asked)
        {
            match queued {
                Ok(()) => Writer::new(turn.out, turn.session.protocol).simple("QUEUED"),
                Err(error) => self.refuse(turn.worker, turn.session, &error, turn.out),
            }
            return Err(if turn.session.closing { Flow::Close } else { Flow::Done });
        }
        match self.admit(turn.session, request, turn.now) {
            Ok(Admitted { entry, flow: Flow::Done }) => Ok(entry),
            Ok(Admitted { flow, .. }) => {
                turn.session.asking = asked;
                Err(flow)
            }
            // A browser made to talk to this port: its next line may be a command of somebody's choosing.
            Err(CommandError::UnknownCommand { name, .. }) if is_http(&name) => Err(Flow::Close),
            Err(error) => {
                let error = self.refused_exec(turn.session, request, error);
                if let Some(entry) = request.found {
                    add(&turn.worker.stats.commands[entry.index].rejected, 1);
                }
                self.refuse(turn.worker, turn.session, &error, turn.out);
                Err(Flow::Done)
            }
        }
    }

    /// Takes a command that has run into the statistics, and into the logs if it was slow or large.
    #[inline]
    pub fn account(&self, stats: &WorkerStats, session: &Session, now: Millis, ran: &Ran<'_>) {
        let command = &stats.commands[ran.entry.index];
        add(&command.calls, 1);
        add(&command.nanos, ran.nanos);
        if self.settings.latency_tracking.load(Ordering::Relaxed) {
            command.times.count(ran.nanos);
        }
        let flags = ran.entry.command.flags;
        let event = if flags.contains(Flags::FAST) { "fast-command" } else { "command" };
        self.latency.sample(event, now, ran.nanos);
        let measures = [
            (&self.logs.slow, ran.nanos / 1000),
            (&self.logs.large_request, ran.args.span() as u64),
            (&self.logs.large_reply, ran.reply_len as u64),
        ];
        for (log, measure) in measures {
            if log.wants(measure) && !flags.contains(Flags::SKIP_COMMANDLOG) {
                log.add(session, now, measure, ran.args);
            }
        }
    }

    /// How long a command has taken, on all threads.
    #[must_use]
    pub fn latency_of(&self, index: usize) -> Distribution {
        let mut all = Distribution::default();
        for worker in self.workers.lock().iter() {
            all.add(&worker.commands[index].times);
        }
        all
    }

    /// Locks the command's slots, asks whether it may run on them, runs it, and appends its effects
    /// before the slots are unlocked. A pause that began since the command was admitted stops it here: who
    /// pauses need only see each slot free once to know that nothing more will happen.
    fn execute<'r>(
        &'r self,
        turn: &mut Turn<'r>,
        request: &Prepared<'_>,
        entry: &'static Registered,
        handler: Handler,
        asked: bool,
    ) -> Result<Flow, CommandError> {
        let Turn { worker, session, now, out, held, .. } = turn;
        let now = *now;
        let (db, origin) = (session.db, session.origin);
        let slots = self.lock(held, session, request, entry, asked, now)?;
        if origin == Origin::Client && paused(self.settings.gate(), entry.command.flags) {
            return Ok(Flow::Paused);
        }
        // Asked under the locks: the log is opened at a cut, while every slot is held.
        worker.effects.start(origin == Origin::Client && self.log.wanted());
        let mut context = Context {
            engine: self,
            reply: Writer::new(out, session.protocol),
            session,
            args: request.args,
            slots,
            now,
            holds_all: entry.command.reach == Reach::AllSlots,
            garbage: &mut worker.garbage,
            stats: &worker.stats,
            random: &mut worker.random,
            effects: &mut worker.effects,
            index: entry.index,
            prepared: request.key,
            nanos: worker.nanos,
        };
        let outcome = handler(&mut context);
        if context.session.tracks {
            context.note_reads(entry.command);
        }
        context.effects.end_command(request.args);
        add(&context.stats.changes, context.effects.total_changes);
        if context.effects.any {
            context.session.last_write = context.effects.append(&*self.log, db);
        }
        outcome.map(|()| Flow::Done)
    }

    /// Locks the slots of the command's keys and decides, under their locks, whether they are served here.
    #[inline]
    fn lock<'t, 'r: 't>(
        &'r self,
        held: &'t mut Option<SlotGuard<'r>>,
        session: &Session,
        request: &Prepared<'_>,
        entry: &Registered,
        asked: bool,
        now: Millis,
    ) -> Result<LockedSlots<'t>, CommandError> {
        let (first, mut locked) = match &request.key {
            Some((_, key)) => (Some(key.slot()), self.lock_one(held, key.slot())),
            None => {
                *held = None;
                self.lock_found(entry, request.args)?
            }
        };
        if let (Some(topology), Some(slot), Origin::Client) = (&self.topology, first, session.origin) {
            let ownership = locked.slot(slot).ownership();
            if ownership != Ownership::Mine {
                let access = self.access(session, request.args, entry, asked, &mut locked, now);
                self.check_route(&topology.load(), slot, ownership, access)?;
            }
        }
        Ok(locked)
    }

    /// Locks one slot, unless it is held already.
    #[inline]
    fn lock_one<'t, 'r: 't>(&'r self, held: &'t mut Option<SlotGuard<'r>>, slot: Slot) -> LockedSlots<'t> {
        if held.as_ref().is_none_or(|held| held.slot() != slot) {
            // Nobody waits for one while holding another.
            *held = None;
            *held = Some(self.keyspace.lock(slot));
        }
        let guard = held.as_mut().expect("it is held now");
        LockedSlots::Borrowed(slot, guard)
    }

    /// Locks the slots of a command that has not one key at a fixed place; says which of them it is routed by.
    fn lock_found(
        &self,
        entry: &Registered,
        args: Args<'_>,
    ) -> Result<(Option<Slot>, LockedSlots<'_>), CommandError> {
        if entry.command.reach == Reach::AllSlots {
            let _turn = self.script_turn.lock();
            return Ok((None, LockedSlots::all(&self.keyspace)));
        }
        if entry.command.keys.is_empty() && entry.command.reach != Reach::FirstArgument {
            return Ok((None, LockedSlots::default()));
        }
        let slots = self.slots_of(entry, args);
        if self.topology.is_some() && slots.iter().any(|slot| *slot != slots[0]) {
            return Err(CommandError::CrossSlot);
        }
        Ok((slots.first().copied(), self.keyspace.lock_many(&slots)))
    }

    fn slots_of(&self, entry: &Registered, args: Args<'_>) -> SmallVec<[Slot; 4]> {
        let mut slots = SmallVec::new();
        entry.command.visit_keys(args, &mut |index, _| slots.push(Slot::of_key(&args[index])));
        if entry.command.reach == Reach::FirstArgument && self.topology.is_none() {
            slots.extend(args.get(1).map(Slot::of_key));
        }
        slots
    }

    /// What the routing decision needs to know of the command. Looks for its keys only in a slot that
    /// is on the move.
    fn access(
        &self,
        session: &Session,
        args: Args<'_>,
        entry: &Registered,
        asked: bool,
        locked: &mut LockedSlots<'_>,
        now: Millis,
    ) -> Access {
        let flags = entry.command.flags;
        // A channel is heard on replicas too, and it does not lie in the slot.
        let channels = flags.contains(Flags::PUBSUB);
        let mut access = Access {
            asking: asked || flags.contains(Flags::ASKING),
            replica_read: channels || (session.readonly && flags.contains(Flags::READONLY)),
            keys: 0,
            missing: 0,
        };
        if channels {
            return access;
        }
        entry.command.visit_keys(args, &mut |index, _| {
            let key = self.keyspace.key(&args[index]);
            let found = locked.slot(key.slot()).table(session.db).find(&key, now);
            access.keys += 1;
            access.missing += usize::from(!matches!(found, Found::Live(_)));
        });
        access
    }

    pub(crate) fn check_route(
        &self,
        topology: &Topology,
        slot: Slot,
        ownership: Ownership,
        access: Access,
    ) -> Result<(), CommandError> {
        let redirect = |ask: bool, target: Option<&Member>| match target {
            Some(target) => {
                let endpoint = &target.endpoint;
                Err(CommandError::Redirect { ask, slot, host: endpoint.ip.clone(), port: endpoint.port })
            }
            None => Err(CommandError::SlotNotServed),
        };
        match route(ownership, access) {
            Verdict::Serve => Ok(()),
            Verdict::Moved => redirect(false, topology.owner(slot)),
            Verdict::Ask => {
                redirect(true, topology.migrating().get(&slot).and_then(|id| topology.member(*id)))
            }
            Verdict::TryAgain => Err(CommandError::TryAgain),
            Verdict::Unserved => Err(CommandError::SlotNotServed),
        }
    }

    /// Tells those who watch a key or may have a copy of it that it has changed; `by` is the session that
    /// did it. The caller holds its slot.
    #[inline]
    pub(crate) fn changed(&self, db: u16, slot: Slot, key: &[u8], by: Option<u64>) {
        self.watches.touch(db, slot, key);
        self.tracking.changed(&self.clients, slot, key, by);
    }

    /// Tells the log, and whoever watches it, that a key is gone without a command: its time came, or it
    /// lives elsewhere now. The caller holds its slot. Says where that ends in the log, if anybody reads it.
    pub fn key_gone(&self, db: u16, slot: Slot, key: &[u8]) -> Option<ReplOffset> {
        self.changed(db, slot, key, None);
        if !self.log.wanted() {
            return None;
        }
        let mut wire = Vec::with_capacity(key.len() + 32);
        resp::encode_request(&mut wire, [&b"DEL"[..], key]);
        Some(self.log.append(db, &wire))
    }

    fn refuse(&self, worker: &Worker, session: &Session, error: &CommandError, out: &mut Vec<u8>) {
        let text = error.to_string();
        worker.stats.count_error(&text);
        Writer::new(out, session.protocol).error(&text);
    }
}

/// The words by which Redis knows a cross-protocol request of HTTP.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

fn publish(session: &Session, now: Millis, last: Option<&'static Registered>) {
    if let Some(entry) = last {
        session.publish(now, entry.index);
    }
}

#[cfg(test)]
mod tests;
