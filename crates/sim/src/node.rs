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
use crate::{InjectedBug, InvariantName, RandomSource, RunPlan, RunResult, catch_panic, clients, executor};
use incarnation::{FoundData, RunningNode};
use invariants::{LoadedData, NamedInvariant, NodeObservation};
use model::ReferenceNode;
use saves::SimulatedSaves;

/// The wall-clock time at the beginning of a run, in milliseconds.
const WALL_CLOCK_START_MILLIS: i64 = 1_700_000_000_000;
/// The maximum number of events per incarnation.
const MAX_EVENTS_PER_INCARNATION: usize = 90;
/// The number of incarnations per run.
const INCARNATION_COUNT: usize = 4;
/// The maximum number of rounds after healing until all data is on the disk.
const MAX_HEALING_ROUNDS: usize = 200;

/// The state of a run that simulates one node.
struct NodeWorld {
    plan: RunPlan,
    random: RandomSource,
    disk: SimDisk,
    saves: SimulatedSaves,
    now: Instant,
    fsync_policy: FsyncPolicy,
    trace: Trace,
    invariants: Vec<NamedInvariant>,
    violation: Option<String>,
    reference_node: ReferenceNode,
    /// All bytes that the log has ever contained, without those that were lost.
    history: Vec<u8>,
    /// The number of distinct values that clients have written.
    issued_value_count: u64,
    start_count: usize,
    /// The increment that is created again by the bug [`InjectedBug::RecreatedIncrement`].
    repeated_operation: Option<String>,
}

pub(crate) fn run(plan: RunPlan, is_traced: bool) -> RunResult {
    let mut world = NodeWorld::new(plan, is_traced);
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
        promotion_count: world.start_count,
    }
}

impl NodeWorld {
    fn new(plan: RunPlan, is_traced: bool) -> Self {
        let mut random = RandomSource::new(plan.seed);
        let disk = SimDisk::new(RandomSource::new(random.random_number()), plan.injected_bug);
        let policy = random.pick_random(&[
            FsyncPolicy::Always,
            FsyncPolicy::Always,
            FsyncPolicy::EverySecond,
            FsyncPolicy::Never,
        ]);
        Self {
            plan,
            random,
            saves: SimulatedSaves::new(&disk),
            disk,
            now: START_TIME,
            fsync_policy: policy,
            trace: Trace::new(is_traced),
            invariants: invariants::all_invariants(),
            violation: None,
            reference_node: ReferenceNode::new(),
            history: Vec::new(),
            issued_value_count: 0,
            start_count: 0,
            repeated_operation: None,
        }
    }

    fn wall_time(&self) -> Millis {
        Millis(WALL_CLOCK_START_MILLIS + (micros_since_start(self.now) / 1000) as i64)
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
        for _ in 0..INCARNATION_COUNT {
            let Some(mut incarnation) = self.start(death) else { continue };
            let events = 10 + self.random.random_below(MAX_EVENTS_PER_INCARNATION);
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
    fn end_incarnation(&mut self, running_node: &RunningNode) -> ProcessDeath {
        let death = self.random.pick_random(&[ProcessDeath::Killed, ProcessDeath::PowerCut]);
        self.history.clone_from(&running_node.log.lock().history);
        self.trace(&format!("{death:?} at {}", self.history.len()));
        self.disk.restart(death);
        self.disk.set_failure_rate(0);
        self.disk.set_full(false);
        death
    }

    /// Starts the node. Returns `None` if the node dies during the start or cannot load its files.
    fn start(&mut self, death: ProcessDeath) -> Option<RunningNode> {
        self.check_save();
        let wall = self.wall_time();
        let dies = self.random.random_bool(15).then(|| self.random.random_below(12));
        self.disk.schedule_death(dies);
        self.repeated_operation = None;
        let started = RunningNode::start(
            &self.disk,
            &self.history,
            self.fsync_policy,
            self.now,
            wall,
            &mut self.random,
        );
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
                let issued = self.issued_value_count;
                self.check_invariants(&NodeObservation::NodeStarted {
                    death,
                    loaded: Err(error),
                    issued_value_count: issued,
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
                self.run_writer_step(&mut incarnation);
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
    fn check_data(&mut self, running_node: &mut RunningNode, death: ProcessDeath, found_data: &FoundData) {
        let reached = match found_data {
            FoundData::NoFiles => 0,
            FoundData::Loaded(position) => position.map_or(0, |position| position.offset.0),
        };
        let wall = self.wall_time();
        let digest = running_node.executor.digest(wall);
        let before = self.history.get(..reached as usize).map(<[u8]>::to_vec);
        let expected = before.as_ref().map(|history| self.reference_node.digest(history, wall));
        self.trace(&format!("starts at {reached}: {}", digest.escape_debug()));
        let plain = clients::plain_values(&mut running_node.executor);
        let loaded =
            LoadedData { claimed_offset: reached, digest, expected_digest: expected, plain_values: plain };
        let issued = self.issued_value_count;
        self.check_invariants(&NodeObservation::NodeStarted {
            death,
            loaded: Ok(loaded),
            issued_value_count: issued,
        });
        self.history = before.unwrap_or_default();
    }

    /// Performs a random event: a client's commands, file operations, a fault or the passing of time.
    fn run_random_event(&mut self, running_node: &mut RunningNode, may_rewrite: bool) {
        self.now += Duration::from_micros(1 + self.random.random_below(3000) as u64);
        match self.random.random_below(100) {
            0..30 => self.run_client_commands(running_node),
            30..40 => self.compare_read(running_node),
            40..45 => self.send_blocking_command(running_node),
            45..50 => self.run_watch_or_transaction(running_node),
            50..85 => self.run_writer_step(running_node),
            85..88 => {
                self.now += self.random.random_millis(1, 1500);
                running_node.executor.expire_keys(self.wall_time());
            }
            88..92 if may_rewrite => self.rewrite(running_node, true),
            92..93 => self.handle_event(running_node, AofDriverEvent::SyncRequested),
            93..95 => {
                let percent = self.random.pick_random(&[0, 0, 10, 40]);
                self.trace(&format!("{percent} of a hundred operations fail"));
                self.disk.set_failure_rate(percent);
            }
            95..96 => {
                let full = self.random.random_bool(50);
                self.trace(if full { "the disk is full" } else { "there is room" });
                self.disk.set_full(full);
            }
            96 => {
                let operations = self.random.random_below(10);
                self.disk.schedule_death(Some(operations));
            }
            97 => self.evict(running_node),
            98 if may_rewrite => self.save(running_node, true),
            _ => {}
        }
        self.record_progress_and_release_replies(running_node);
    }

    fn evict(&mut self, running_node: &mut RunningNode) {
        let before = running_node.log.end_offset();
        let policy = self.random.pick_random(&[
            EvictionPolicy::VolatileTtl,
            EvictionPolicy::VolatileLru,
            EvictionPolicy::AllKeysRandom,
            EvictionPolicy::NoEviction,
        ]);
        running_node.executor.evict_keys(self.wall_time(), policy);
        let end = running_node.log.end_offset();
        self.trace(&format!("memory is short, {policy:?}: {before} .. {end}"));
        self.on_written(running_node, before);
    }

    /// Executes a client's commands.
    fn run_client_commands(&mut self, running_node: &mut RunningNode) {
        let number = self.random.random_below(running_node.clients.len());
        let client = &mut running_node.clients[number];
        if !client.is_running() {
            let batch = clients::random_pipeline(&mut self.random, &mut self.issued_value_count);
            client.send(&batch);
            let lines: Vec<String> = batch.iter().map(|words| words.join(" ")).collect();
            self.trace(&format!("{number}: {}", lines.join("; ").escape_debug()));
        }
        let (before, wall) = (running_node.log.end_offset(), self.wall_time());
        let (alone, loses) = (
            self.random.random_bool(50),
            self.plan.injected_bug == Some(InjectedBug::LostBackgroundRequests),
        );
        let client = &mut running_node.clients[number];
        let answered = client.continue_requests(&mut running_node.executor, wall, alone, loses);
        let end = running_node.log.end_offset();
        self.trace(&format!("{number}: {before} .. {end}, {answered:?}"));
        if let Some(answered) = answered {
            self.check_invariants(&NodeObservation::PipelineAnswered(answered));
        }
        self.on_written(running_node, before);
    }

    /// Handles the end of a client's writes. They are acknowledged at once, or after the next sync.
    fn on_written(&mut self, running_node: &mut RunningNode, end_before: u64) {
        let end = running_node.log.end_offset();
        if end > end_before {
            let early = self.plan.injected_bug == Some(InjectedBug::EarlyReply);
            if running_node.delays_replies && !early {
                running_node.delayed_replies.push(end);
            } else {
                self.acknowledge(running_node, end);
            }
        }
    }

    /// Compares the reply to a client's read with that of a reference node, which replays the history and has no files.
    fn compare_read(&mut self, running_node: &mut RunningNode) {
        let (before, wall) = (running_node.log.end_offset(), self.wall_time());
        let db = self.random.random_below(DATABASE_COUNT.into()) as u16;
        for words in clients::read_commands(&mut self.random) {
            let got = running_node.executor.run_command(db, wall, &words);
            let shared = running_node.log.clone();
            let expected = self.reference_node.reply_to(&shared.lock().history, db, wall, &words);
            let asked = format!("{db}> {}", words.join(" "));
            let text = |reply: &[u8]| String::from_utf8_lossy(reply).into_owned();
            self.trace(&format!("{asked}: {}", text(&got).escape_debug()));
            self.check_invariants(&NodeObservation::CommandServed {
                command: asked,
                reply: text(&got),
                expected: text(&expected),
            });
        }
        self.on_written(running_node, before);
    }

    /// Sends a client's command that may block.
    fn send_blocking_command(&mut self, running_node: &mut RunningNode) {
        let (before, wall) = (running_node.log.end_offset(), self.wall_time());
        let client = self.random.random_below(running_node.waiters.len());
        if !running_node.waiters[client].awaits_reply() {
            let db = self.random.random_below(DATABASE_COUNT.into()) as u16;
            let (command, length) = clients::blocking_command("", &mut self.random);
            let waiter = &mut running_node.waiters[client];
            let told = waiter.send(&mut running_node.executor, db, wall, command, length);
            self.trace(&told.escape_debug().to_string());
        }
        self.on_written(running_node, before);
    }

    /// Lets a client watch a key, or execute the transaction of an earlier watch.
    fn run_watch_or_transaction(&mut self, running_node: &mut RunningNode) {
        let (before, wall) = (running_node.log.end_offset(), self.wall_time());
        let forgets = self.plan.injected_bug == Some(InjectedBug::IgnoredWatch);
        let executed = running_node.watcher.run_watch_or_transaction(
            &mut running_node.executor,
            wall,
            before,
            &mut self.random,
            forgets,
        );
        if let Some(executed) = executed {
            self.trace(&format!("{executed:?}"));
            self.check_invariants(&NodeObservation::TransactionExecuted(executed));
        }
        self.on_written(running_node, before);
    }

    /// Ends the waits of blocked clients whose reply is ready or whose timeout has passed.
    fn end_due_waits(&mut self, running_node: &mut RunningNode) {
        let (before, wall) = (running_node.log.end_offset(), self.wall_time());
        for number in 0..running_node.waiters.len() {
            let client = &mut running_node.waiters[number];
            if self.plan.injected_bug != Some(InjectedBug::MissedWakeups)
                && let Some(told) = client.end_wait_if_due(&mut running_node.executor, wall)
            {
                self.trace(&told.escape_debug().to_string());
            }
            if let Some(stuck) = running_node.waiters[number].check_stuck(&mut running_node.executor, wall) {
                self.check_invariants(&NodeObservation::ClientStuck(stuck));
            }
        }
        self.on_written(running_node, before);
    }

    fn acknowledge(&mut self, running_node: &RunningNode, end_offset: u64) {
        let file = running_node.aof_status();
        if file.fsync_policy == FsyncPolicy::Always && file.state == AofState::Complete {
            self.check_invariants(&NodeObservation::WritesAcknowledged(end_offset));
        }
    }

    /// Tells the invariants what the node claims to have synced and written, and sends delayed replies.
    fn record_progress_and_release_replies(&mut self, running_node: &mut RunningNode) {
        if self.disk.is_dead() {
            return;
        }
        self.end_due_waits(running_node);
        let committed = if running_node.delays_replies { running_node.committed_offset } else { u64::MAX };
        let done: Vec<u64> = running_node.delayed_replies.extract_if(.., |end| *end <= committed).collect();
        for end in done {
            self.acknowledge(running_node, end);
        }
        let file = running_node.aof_status();
        let synced = file.synced_offset.map_or(0, |synced| synced.0);
        // After an error the file is truncated to its synced part, so bytes after that part do not count as written.
        let is_well = !file.has_error && running_node.writer.operation().is_none();
        let is_whole = file.state == AofState::Complete;
        let written = file.written_offset.filter(|_| is_well && is_whole);
        self.check_invariants(&NodeObservation::LogSynced(synced));
        self.check_invariants(&NodeObservation::LogWritten(written.map_or(synced, |written| written.0)));
    }

    fn handle_event(&mut self, running_node: &mut RunningNode, event: AofDriverEvent<OpenFile>) {
        let (now, wall, mut actions) = (self.now, self.wall_time(), Vec::new());
        let shared = running_node.log.clone();
        running_node.aof.handle(&mut shared.lock().log, now, wall, event, &mut actions);
        self.perform_actions(running_node, actions);
    }

    fn perform_actions(&mut self, running_node: &mut RunningNode, actions: Vec<AofAction>) {
        for action in actions {
            self.trace(&format!("{action:?}"));
            match action {
                AofAction::PublishCommitPoint(_)
                    if self.plan.injected_bug == Some(InjectedBug::LostFileProgress) => {}
                AofAction::DeleteHistory(history) => {
                    match running_node.writer.directory().delete_files(&history) {
                        true => self.handle_event(running_node, AofDriverEvent::HistoryDeleted),
                        false => self.handle_event(running_node, AofDriverEvent::HistoryKept),
                    }
                }
                action => running_node.perform_action(&action),
            }
        }
    }

    /// Starts or finishes an operation of the file's writer thread.
    fn run_writer_step(&mut self, running_node: &mut RunningNode) {
        let mut actions = Vec::new();
        if running_node.writer.operation().is_some() {
            self.trace_operation(running_node);
            if let Some(completed) = running_node.writer.finish() {
                completed.error().into_iter().for_each(|error| self.trace(error));
                running_node.aof.complete(self.now, completed, &mut actions);
            }
        } else {
            let (shared, wall) = (running_node.log.clone(), self.wall_time());
            let step = running_node.aof.next_step(&mut shared.lock().log, self.now, wall, &mut actions);
            if let WriterStep::Run(pending) = step {
                running_node.writer.begin(pending);
            }
        }
        self.perform_actions(running_node, actions);
    }

    fn trace_operation(&mut self, running_node: &RunningNode) {
        let Some(operation) = running_node.writer.operation() else { return };
        self.trace(&format!("{operation:?}").escape_debug().to_string());
        if self.plan.injected_bug == Some(InjectedBug::RecreatedIncrement) {
            if let FileOperation::BeginIncrement { name, .. } = operation {
                self.repeated_operation = Some(name.clone());
            } else if *operation == FileOperation::Sync
                && let Some(name) = self.repeated_operation.take()
            {
                // The increment is created again, as if its first creation had seemed to fail.
                let _ = persistence::Disk::create(&running_node.writer.directory().disk, &name);
            }
        }
    }

    /// Rewrites the append-only file: takes a snapshot and writes it while other events happen.
    fn rewrite(&mut self, running_node: &mut RunningNode, serves_clients: bool) {
        let Ok(rewrite) = running_node.aof.begin_rewrite(self.now) else { return };
        let (state, position) = running_node.take_snapshot();
        self.trace(&format!("a rewrite is cut at {}", position.offset));
        let late = self.plan.injected_bug == Some(InjectedBug::LateIncrementStart);
        if !late {
            self.handle_event(running_node, AofDriverEvent::SnapshotTaken { rewrite, db: None });
        }
        let written = self.write_base(running_node, state, position, serves_clients);
        if self.disk.is_dead() {
            return;
        }
        if late {
            self.handle_event(running_node, AofDriverEvent::SnapshotTaken { rewrite, db: None });
        }
        match written {
            Ok(base) => {
                self.handle_event(running_node, AofDriverEvent::BaseWritten { rewrite, base, is_rdb: true });
            }
            Err(error) => {
                self.trace(&format!("the rewrite fails: {error}"));
                self.handle_event(running_node, AofDriverEvent::RewriteFailed(rewrite));
            }
        }
    }

    fn write_base(
        &mut self,
        running_node: &mut RunningNode,
        state: SnapshotState,
        position: ReplPosition,
        serves_clients: bool,
    ) -> io::Result<OpenFile> {
        let rdb = self.write_rdb(running_node, state, position, true, serves_clients)?;
        running_node.writer.write_base(&rdb)
    }

    /// Serializes a snapshot. With `serving`, clients are served between two slots.
    fn write_rdb(
        &mut self,
        running_node: &mut RunningNode,
        state: SnapshotState,
        position: ReplPosition,
        aof_base: bool,
        serving: bool,
    ) -> io::Result<Vec<u8>> {
        let wall = self.wall_time();
        let events = if serving { self.random.random_below(20) } else { 0 };
        let mut between =
            BackgroundEvents { simulation: self, incarnation: running_node, events_left: events };
        executor::write_rdb(state, position, wall, aof_base, "", &mut between)
    }

    /// Stops all faults, then checks that all written data reaches the disk and survives another start.
    fn check_recovery(&mut self, death: ProcessDeath) {
        self.trace("everything works");
        let Some(mut incarnation) = (0..4).find_map(|_| self.start(death)) else { return };
        self.run_client_commands(&mut incarnation);
        self.rewrite(&mut incarnation, false);
        self.save(&mut incarnation, false);
        self.run_client_commands(&mut incarnation);
        self.handle_event(&mut incarnation, AofDriverEvent::SyncRequested);
        for _ in 0..MAX_HEALING_ROUNDS {
            self.now += Duration::from_millis(100);
            self.run_writer_step(&mut incarnation);
            self.record_progress_and_release_replies(&mut incarnation);
        }
        self.check_invariants(&NodeObservation::DiskRecovered {
            delayed_reply_count: incarnation.delayed_replies.len(),
        });
        self.check_invariants(&NodeObservation::LogSynced(incarnation.log.end_offset()));
        let served = incarnation.executor.digest(self.wall_time());
        let end = incarnation.log.end_offset();
        self.end_incarnation(&incarnation);
        let Some(mut incarnation) = (0..4).find_map(|_| self.start(ProcessDeath::PowerCut)) else { return };
        let reached = incarnation.log.end_offset();
        let found = incarnation.executor.digest(self.wall_time());
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
        if self.events_left > 0 && self.simulation.random.random_below(3) == 0 {
            self.events_left -= 1;
            self.simulation.run_random_event(self.incarnation, false);
        }
        if self.simulation.disk.is_dead() { Err(io::Error::other("dead")) } else { Ok(()) }
    }
}
