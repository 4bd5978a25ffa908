//! Simulates a node and its disk. The engine, the log and the append-only file's state machine are the production code.
//! The files are written, rewritten and loaded byte by byte on a disk that fails, runs full and tears writes.
//!
//! The node is killed or loses power at any moment, also during a file operation, and restarts from the remaining
//! files. Its data is then compared with the replayed history of its log. At the end all faults stop, and no data may
//! be missing.
//!
//! All threads of the node are simulated in one thread: commands run between the start and the end of a file operation,
//! and while a base file is written, between two slots. In half of the incarnations every command counts as slow, so it
//! runs in the background while other clients' commands are executed.

mod incarnation;
mod invariants;
mod model;
mod running;
mod saves;
mod watching;

use std::io;
use std::time::Duration;

use append_only::{AofAction, AofDriverEvent, AofState, FileOperation, FsyncPolicy, WriterStep};
use clock::{Instant, Millis};
use config::EvictionPolicy;
use replication::ReplPosition;
use snapshot_io::{SnapshotState, WriteObserver};

use crate::clients::DATABASE_COUNT;
use crate::disk::{OpenFile, ProcessDeath, SimDisk};
use crate::trace::{START_TIME, Trace, micros_since_start};
use crate::{InjectedBug, InvariantName, Plan, RandomSource, RunResult, catch_panic, clients, executor};
use incarnation::{FoundData, RunningNode};
use invariants::{LoadedData, NamedInvariant, NodeObservation};
use model::ReferenceNode;
use saves::Saves;

/// The wall-clock time at the beginning of a run, in milliseconds.
const WALL_CLOCK_START: i64 = 1_700_000_000_000;
/// The maximum number of events per incarnation.
const MAX_EVENTS_PER_INCARNATION: usize = 90;
/// The number of incarnations per run.
const INCARNATIONS: usize = 4;
/// The maximum number of rounds after healing until all data is on the disk.
const MAX_HEALING_ROUNDS: usize = 200;

/// The state of a run that simulates one node.
struct NodeWorld {
    plan: Plan,
    random: RandomSource,
    disk: SimDisk,
    saves: Saves,
    now: Instant,
    policy: FsyncPolicy,
    trace: Trace,
    invariants: Vec<NamedInvariant>,
    violation: Option<String>,
    model: ReferenceNode,
    /// All bytes that the log has ever contained, without those that were lost.
    history: Vec<u8>,
    /// The number of distinct values that clients have written.
    values_issued: u64,
    start_count: usize,
    /// The increment that is created again by the bug [`InjectedBug::RecreatedIncrement`].
    repeated_operation: Option<String>,
}

pub(crate) fn run(plan: Plan, traced: bool) -> RunResult {
    let mut world = NodeWorld::new(plan, traced);
    if let Err(panic) = catch_panic(|| world.run_incarnations())
        && plan.only_invariant.is_none()
    {
        let at = micros_since_start(world.now);
        world.violation.get_or_insert_with(|| format!("at {at} us: {panic}"));
    }
    RunResult {
        violation: world.violation.take(),
        digest: world.trace.digest,
        trace: world.trace.take_lines(),
        promotions: world.start_count,
    }
}

impl NodeWorld {
    fn new(plan: Plan, traced: bool) -> Self {
        let mut random = RandomSource::new(plan.seed);
        let disk = SimDisk::new(RandomSource::new(random.number()), plan.injected_bug);
        let policy = random.pick(&[
            FsyncPolicy::Always,
            FsyncPolicy::Always,
            FsyncPolicy::EverySecond,
            FsyncPolicy::Never,
        ]);
        Self {
            plan,
            random,
            saves: Saves::new(&disk),
            disk,
            now: START_TIME,
            policy,
            trace: Trace::new(traced),
            invariants: invariants::all_invariants(),
            violation: None,
            model: ReferenceNode::new(),
            history: Vec::new(),
            values_issued: 0,
            start_count: 0,
            repeated_operation: None,
        }
    }

    fn wall(&self) -> Millis {
        Millis(WALL_CLOCK_START + (micros_since_start(self.now) / 1000) as i64)
    }

    fn trace(&mut self, text: &str) {
        self.trace.record(self.now, text);
    }

    fn check_invariants(&mut self, observation: &NodeObservation) {
        for (rule, invariant) in &mut self.invariants {
            let Err(what) = invariant.check(observation) else { continue };
            if self.plan.only_invariant.is_none_or(|only| only == *rule) {
                let at = micros_since_start(self.now);
                self.violation.get_or_insert_with(|| format!("at {at} us: {}: {what}", rule.name()));
            }
        }
    }

    fn run_incarnations(&mut self) {
        let mut death = ProcessDeath::Killed;
        for _ in 0..INCARNATIONS {
            let Some(mut incarnation) = self.start(death) else { continue };
            let events = 10 + self.random.below(MAX_EVENTS_PER_INCARNATION);
            for _ in 0..events {
                self.run_random_event(&mut incarnation, true);
                if self.disk.is_dead() || self.violation.is_some() {
                    break;
                }
            }
            death = self.end_incarnation(&incarnation);
            if self.violation.is_some() {
                return;
            }
        }
        self.check_recovery(death);
    }

    /// Ends an incarnation with a kill or a power failure, unless the node has already died.
    fn end_incarnation(&mut self, incarnation: &RunningNode) -> ProcessDeath {
        let death = self.random.pick(&[ProcessDeath::Killed, ProcessDeath::PowerCut]);
        self.history.clone_from(&incarnation.log.lock().history);
        self.trace(&format!("{death:?} at {}", self.history.len()));
        self.disk.restart(death);
        self.disk.set_failure_rate(0);
        self.disk.set_full(false);
        death
    }

    /// Starts the node. Returns `None` if the node dies during the start or cannot load its files.
    fn start(&mut self, death: ProcessDeath) -> Option<RunningNode> {
        self.check_save();
        let wall = self.wall();
        let dies = self.random.chance(15).then(|| self.random.below(12));
        self.disk.schedule_death(dies);
        self.repeated_operation = None;
        let started =
            RunningNode::start(&self.disk, &self.history, self.policy, self.now, wall, &mut self.random);
        if self.disk.is_dead() {
            self.trace("it dies at its start");
            self.disk.restart(death);
            return None;
        }
        self.disk.schedule_death(None);
        let (mut incarnation, found) = match started {
            Ok(started) => started,
            Err(error) => {
                self.trace(&format!("it does not start: {error}"));
                let issued = self.values_issued;
                self.check_invariants(&NodeObservation::NodeStarted {
                    death,
                    loaded: Err(error),
                    values_issued: issued,
                });
                return None;
            }
        };
        self.start_count += 1;
        assert!(self.plan.injected_bug != Some(InjectedBug::Panic) || self.start_count < 2, "injected panic");
        self.check_data(&mut incarnation, death, &found);
        if matches!(found, FoundData::NoFiles) {
            // The first rewrite happens before any client is served.
            self.rewrite(&mut incarnation, false);
            for _ in 0..20 {
                self.now += Duration::from_millis(1);
                self.work_on_file(&mut incarnation);
            }
            if !incarnation.aof.is_complete() {
                self.trace("there is no base");
                return None;
            }
            incarnation.executor.engine.settings.set_node_flag(engine::NodeFlags::LOADING, false);
        }
        Some(incarnation)
    }

    /// Compares the data of a node that has just started with the history.
    fn check_data(&mut self, incarnation: &mut RunningNode, death: ProcessDeath, found: &FoundData) {
        let reached = match found {
            FoundData::NoFiles => 0,
            FoundData::Loaded(position) => position.map_or(0, |position| position.offset.0),
        };
        let wall = self.wall();
        let digest = incarnation.executor.digest(wall);
        let before = self.history.get(..reached as usize).map(<[u8]>::to_vec);
        let expected = before.as_ref().map(|history| self.model.digest(history, wall));
        self.trace(&format!("starts at {reached}: {}", digest.escape_debug()));
        let plain = clients::plain_values(&mut incarnation.executor);
        let loaded =
            LoadedData { claimed_offset: reached, digest, expected_digest: expected, plain_values: plain };
        let issued = self.values_issued;
        self.check_invariants(&NodeObservation::NodeStarted {
            death,
            loaded: Ok(loaded),
            values_issued: issued,
        });
        self.history = before.unwrap_or_default();
    }

    /// Performs a random event: a client's commands, file operations, a fault or the passing of time.
    fn run_random_event(&mut self, incarnation: &mut RunningNode, may_rewrite: bool) {
        self.now += Duration::from_micros(1 + self.random.below(3000) as u64);
        match self.random.below(100) {
            0..30 => self.serve(incarnation),
            30..40 => self.compare_read(incarnation),
            40..45 => self.send_blocking_command(incarnation),
            45..50 => self.watch_or_execute(incarnation),
            50..85 => self.work_on_file(incarnation),
            85..88 => {
                self.now += self.random.millis(1, 1500);
                incarnation.executor.expire(self.wall());
            }
            88..92 if may_rewrite => self.rewrite(incarnation, true),
            92..93 => self.handle_event(incarnation, AofDriverEvent::SyncRequested),
            93..95 => {
                let percent = self.random.pick(&[0, 0, 10, 40]);
                self.trace(&format!("{percent} of a hundred operations fail"));
                self.disk.set_failure_rate(percent);
            }
            95..96 => {
                let full = self.random.chance(50);
                self.trace(if full { "the disk is full" } else { "there is room" });
                self.disk.set_full(full);
            }
            96 => {
                let operations = self.random.below(10);
                self.disk.schedule_death(Some(operations));
            }
            97 => self.evict(incarnation),
            98 if may_rewrite => self.save(incarnation, true),
            _ => {}
        }
        self.record_progress_and_release_replies(incarnation);
    }

    fn evict(&mut self, incarnation: &mut RunningNode) {
        let before = incarnation.log.end_offset();
        let policy = self.random.pick(&[
            EvictionPolicy::VolatileTtl,
            EvictionPolicy::VolatileLru,
            EvictionPolicy::AllKeysRandom,
            EvictionPolicy::NoEviction,
        ]);
        incarnation.executor.evict(self.wall(), policy);
        let end = incarnation.log.end_offset();
        self.trace(&format!("memory is short, {policy:?}: {before} .. {end}"));
        self.on_written(incarnation, before);
    }

    /// Executes a client's commands.
    fn serve(&mut self, incarnation: &mut RunningNode) {
        let number = self.random.below(incarnation.clients.len());
        let client = &mut incarnation.clients[number];
        if !client.is_running() {
            let batch = clients::pipeline(&mut self.random, &mut self.values_issued);
            client.send(&batch);
            let lines: Vec<String> = batch.iter().map(|words| words.join(" ")).collect();
            self.trace(&format!("{number}: {}", lines.join("; ").escape_debug()));
        }
        let (before, wall) = (incarnation.log.end_offset(), self.wall());
        let (alone, loses) =
            (self.random.chance(50), self.plan.injected_bug == Some(InjectedBug::LostBackgroundRequests));
        let client = &mut incarnation.clients[number];
        let answered = client.continue_requests(&mut incarnation.executor, wall, alone, loses);
        let end = incarnation.log.end_offset();
        self.trace(&format!("{number}: {before} .. {end}, {answered:?}"));
        if let Some(answered) = answered {
            self.check_invariants(&NodeObservation::PipelineAnswered(answered));
        }
        self.on_written(incarnation, before);
    }

    /// Handles the end of a client's writes. They are acknowledged at once, or after the next sync.
    fn on_written(&mut self, incarnation: &mut RunningNode, before: u64) {
        let end = incarnation.log.end_offset();
        if end > before {
            let early = self.plan.injected_bug == Some(InjectedBug::EarlyReply);
            if incarnation.delays_replies && !early {
                incarnation.delayed_replies.push(end);
            } else {
                self.acknowledge(incarnation, end);
            }
        }
    }

    /// Compares the reply to a client's read with that of a reference node, which replays the history and has no files.
    fn compare_read(&mut self, incarnation: &mut RunningNode) {
        let (before, wall) = (incarnation.log.end_offset(), self.wall());
        let db = self.random.below(DATABASE_COUNT.into()) as u16;
        for words in clients::read_commands(&mut self.random) {
            let got = incarnation.executor.run_command(db, wall, &words);
            let shared = incarnation.log.clone();
            let expected = self.model.reply_to(&shared.lock().history, db, wall, &words);
            let asked = format!("{db}> {}", words.join(" "));
            let text = |reply: &[u8]| String::from_utf8_lossy(reply).into_owned();
            self.trace(&format!("{asked}: {}", text(&got).escape_debug()));
            self.check_invariants(&NodeObservation::CommandServed {
                command: asked,
                reply: text(&got),
                expected: text(&expected),
            });
        }
        self.on_written(incarnation, before);
    }

    /// Sends a client's command that may block.
    fn send_blocking_command(&mut self, incarnation: &mut RunningNode) {
        let (before, wall) = (incarnation.log.end_offset(), self.wall());
        let client = self.random.below(incarnation.waiters.len());
        if !incarnation.waiters[client].awaits_reply() {
            let db = self.random.below(DATABASE_COUNT.into()) as u16;
            let (command, length) = clients::blocking_command("", &mut self.random);
            let waiter = &mut incarnation.waiters[client];
            let told = waiter.send(&mut incarnation.executor, db, wall, command, length);
            self.trace(&told.escape_debug().to_string());
        }
        self.on_written(incarnation, before);
    }

    /// Lets a client watch a key, or execute the transaction of an earlier watch.
    fn watch_or_execute(&mut self, incarnation: &mut RunningNode) {
        let (before, wall) = (incarnation.log.end_offset(), self.wall());
        let forgets = self.plan.injected_bug == Some(InjectedBug::IgnoredWatch);
        let executed = incarnation.watcher.watch_or_execute(
            &mut incarnation.executor,
            wall,
            before,
            &mut self.random,
            forgets,
        );
        if let Some(executed) = executed {
            self.trace(&format!("{executed:?}"));
            self.check_invariants(&NodeObservation::TransactionExecuted(executed));
        }
        self.on_written(incarnation, before);
    }

    /// Ends the waits of blocked clients whose reply is ready or whose timeout has passed.
    fn end_waits(&mut self, incarnation: &mut RunningNode) {
        let (before, wall) = (incarnation.log.end_offset(), self.wall());
        for number in 0..incarnation.waiters.len() {
            let client = &mut incarnation.waiters[number];
            if self.plan.injected_bug != Some(InjectedBug::MissedWakeups)
                && let Some(told) = client.end_wait_if_due(&mut incarnation.executor, wall)
            {
                self.trace(&told.escape_debug().to_string());
            }
            if let Some(stuck) = incarnation.waiters[number].check_stuck(&mut incarnation.executor, wall) {
                self.check_invariants(&NodeObservation::ClientStuck(stuck));
            }
        }
        self.on_written(incarnation, before);
    }

    fn acknowledge(&mut self, incarnation: &RunningNode, end_offset: u64) {
        let file = incarnation.aof_status();
        if file.fsync_policy == FsyncPolicy::Always && file.state == AofState::Complete {
            self.check_invariants(&NodeObservation::WritesAcknowledged(end_offset));
        }
    }

    /// Tells the invariants what the node claims to have synced and written, and sends delayed replies.
    fn record_progress_and_release_replies(&mut self, incarnation: &mut RunningNode) {
        if self.disk.is_dead() {
            return;
        }
        self.end_waits(incarnation);
        let committed = if incarnation.delays_replies { incarnation.committed_offset } else { u64::MAX };
        let done: Vec<u64> = incarnation.delayed_replies.extract_if(.., |end| *end <= committed).collect();
        for end in done {
            self.acknowledge(incarnation, end);
        }
        let file = incarnation.aof_status();
        let synced = file.synced_offset.map_or(0, |synced| synced.0);
        // After an error the file is truncated to its synced part, so bytes after that part do not count as written.
        let is_well = !file.has_error && incarnation.writer.operation().is_none();
        let is_whole = file.state == AofState::Complete;
        let written = file.written_offset.filter(|_| is_well && is_whole);
        self.check_invariants(&NodeObservation::LogSynced(synced));
        self.check_invariants(&NodeObservation::LogWritten(written.map_or(synced, |written| written.0)));
    }

    fn handle_event(&mut self, incarnation: &mut RunningNode, event: AofDriverEvent<OpenFile>) {
        let (now, wall, mut actions) = (self.now, self.wall(), Vec::new());
        let shared = incarnation.log.clone();
        incarnation.aof.handle(&mut shared.lock().log, now, wall, event, &mut actions);
        self.perform_actions(incarnation, actions);
    }

    fn perform_actions(&mut self, incarnation: &mut RunningNode, actions: Vec<AofAction>) {
        for action in actions {
            self.trace(&format!("{action:?}"));
            match action {
                AofAction::PublishCommitPoint(_)
                    if self.plan.injected_bug == Some(InjectedBug::LostFileProgress) => {}
                AofAction::DeleteHistory(history) => match incarnation.writer.folder().delete_files(&history)
                {
                    true => self.handle_event(incarnation, AofDriverEvent::HistoryDeleted),
                    false => self.handle_event(incarnation, AofDriverEvent::HistoryKept),
                },
                action => incarnation.perform_action(&action),
            }
        }
    }

    /// Starts or finishes an operation of the file's writer thread.
    fn work_on_file(&mut self, incarnation: &mut RunningNode) {
        let mut actions = Vec::new();
        if incarnation.writer.operation().is_some() {
            self.before_operation(incarnation);
            if let Some(completed) = incarnation.writer.finish() {
                completed.error().into_iter().for_each(|error| self.trace(error));
                incarnation.aof.complete(self.now, completed, &mut actions);
            }
        } else {
            let (shared, wall) = (incarnation.log.clone(), self.wall());
            let step = incarnation.aof.next_step(&mut shared.lock().log, self.now, wall, &mut actions);
            if let WriterStep::Run(pending) = step {
                incarnation.writer.begin(pending);
            }
        }
        self.perform_actions(incarnation, actions);
    }

    fn before_operation(&mut self, incarnation: &RunningNode) {
        let Some(operation) = incarnation.writer.operation() else { return };
        self.trace(&format!("{operation:?}").escape_debug().to_string());
        if self.plan.injected_bug == Some(InjectedBug::RecreatedIncrement) {
            if let FileOperation::BeginIncrement { name, .. } = operation {
                self.repeated_operation = Some(name.clone());
            } else if *operation == FileOperation::Sync
                && let Some(name) = self.repeated_operation.take()
            {
                // The increment is created again, as if its first creation had seemed to fail.
                let _ = persistence::Disk::create(&incarnation.writer.folder().disk, &name);
            }
        }
    }

    /// Rewrites the append-only file: takes a snapshot and writes it while other events happen.
    fn rewrite(&mut self, incarnation: &mut RunningNode, serves_clients: bool) {
        let Ok(rewrite) = incarnation.aof.begin_rewrite(self.now) else { return };
        let (state, position) = incarnation.take_snapshot();
        self.trace(&format!("a rewrite is cut at {}", position.offset));
        let late = self.plan.injected_bug == Some(InjectedBug::LateIncrementStart);
        if !late {
            self.handle_event(incarnation, AofDriverEvent::SnapshotTaken { rewrite, db: None });
        }
        let written = self.write_base(incarnation, state, position, serves_clients);
        if self.disk.is_dead() {
            return;
        }
        if late {
            self.handle_event(incarnation, AofDriverEvent::SnapshotTaken { rewrite, db: None });
        }
        match written {
            Ok(base) => {
                self.handle_event(incarnation, AofDriverEvent::BaseWritten { rewrite, base, rdb: true });
            }
            Err(error) => {
                self.trace(&format!("the rewrite fails: {error}"));
                self.handle_event(incarnation, AofDriverEvent::RewriteFailed(rewrite));
            }
        }
    }

    fn write_base(
        &mut self,
        incarnation: &mut RunningNode,
        state: SnapshotState,
        position: ReplPosition,
        serves_clients: bool,
    ) -> io::Result<OpenFile> {
        let rdb = self.write_rdb(incarnation, state, position, true, serves_clients)?;
        incarnation.writer.write_base(&rdb)
    }

    /// Serializes a snapshot. With `serving`, clients are served between two slots.
    fn write_rdb(
        &mut self,
        incarnation: &mut RunningNode,
        state: SnapshotState,
        position: ReplPosition,
        aof_base: bool,
        serving: bool,
    ) -> io::Result<Vec<u8>> {
        let wall = self.wall();
        let events = if serving { self.random.below(20) } else { 0 };
        let mut between = BackgroundEvents { simulation: self, incarnation, events_left: events };
        executor::write_rdb(state, position, wall, aof_base, "", &mut between)
    }

    /// Stops all faults, then checks that all written data reaches the disk and survives another start.
    fn check_recovery(&mut self, death: ProcessDeath) {
        self.trace("everything works");
        let Some(mut incarnation) = (0..4).find_map(|_| self.start(death)) else { return };
        self.serve(&mut incarnation);
        self.rewrite(&mut incarnation, false);
        self.save(&mut incarnation, false);
        self.serve(&mut incarnation);
        self.handle_event(&mut incarnation, AofDriverEvent::SyncRequested);
        for _ in 0..MAX_HEALING_ROUNDS {
            self.now += Duration::from_millis(100);
            self.work_on_file(&mut incarnation);
            self.record_progress_and_release_replies(&mut incarnation);
        }
        self.check_invariants(&NodeObservation::DiskRecovered {
            delayed_reply_count: incarnation.delayed_replies.len(),
        });
        self.check_invariants(&NodeObservation::LogSynced(incarnation.log.end_offset()));
        let served = incarnation.executor.digest(self.wall());
        let end = incarnation.log.end_offset();
        self.end_incarnation(&incarnation);
        let Some(mut incarnation) = (0..4).find_map(|_| self.start(ProcessDeath::PowerCut)) else { return };
        let reached = incarnation.log.end_offset();
        let found = incarnation.executor.digest(self.wall());
        if self.violation.is_none()
            && (end, &served) != (reached, &found)
            && self.plan.only_invariant.is_none()
        {
            let what = format!("{end} was served, {served}, and {reached} is there, {found}");
            self.violation = Some(format!(
                "at {} us: {}: {what}",
                micros_since_start(self.now),
                InvariantName::Prefix.name()
            ));
        }
    }
}

/// Runs other events of the node while a base file is being written.
struct BackgroundEvents<'a> {
    simulation: &'a mut NodeWorld,
    incarnation: &'a mut RunningNode,
    events_left: usize,
}

impl WriteObserver for BackgroundEvents<'_> {
    fn on_keys_written(&mut self, _keys: u64) -> io::Result<()> {
        if self.events_left > 0 && self.simulation.random.below(3) == 0 {
            self.events_left -= 1;
            self.simulation.run_random_event(self.incarnation, false);
        }
        if self.simulation.disk.is_dead() { Err(io::Error::other("dead")) } else { Ok(()) }
    }
}
