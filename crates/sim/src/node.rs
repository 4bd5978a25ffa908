//! Simulates a node and its disk: the real engine, log, and append-only machine, with files that
//! are written, rewritten and loaded byte by byte on a disk that fails, fills up and tears writes.
//!
//! The node is killed or loses power at any moment, also within a file operation, and restarts from
//! what remains. Its data is then compared with the replayed history of its log. At the end all
//! faults stop, and nothing may be missing.
//!
//! The node's threads are simulated in one thread: commands run between the start and the end of a
//! file operation, and between two slots of a base file. In half of the incarnations every command
//! counts as slow: it runs in the background, and other clients' commands run before it.

mod invariants;
mod life;
mod model;
mod running;
mod saves;
mod watching;

use std::io;
use std::time::Duration;

use append_only::{AofEffect, AofEvent, AofState, FileOperation, FsyncPolicy, RewriteId};
use clock::{Instant, Millis};
use config::EvictionPolicy;
use replication::Position;
use snapshot_io::{SnapshotState, WriteObserver};

use crate::append_file::Rewrite;
use crate::clients::DATABASES;
use crate::disk::{Death, Opened, SimDisk};
use crate::trace::{START, Trace, micros};
use crate::{Chance, Outcome, Plan, Plant, Rule, caught, clients, executor};
use invariants::{Loaded, Named, Seen};
use life::{Found, Life};
use model::Model;
use saves::Saves;

/// The wall-clock time at the beginning of a run.
const WALL: i64 = 1_700_000_000_000;
/// The maximum number of events per incarnation.
const LONGEST_LIFE: usize = 90;
/// The number of incarnations per run.
const LIVES: usize = 4;
/// The maximum number of rounds after healing until everything is on the disk.
const ROUNDS: usize = 200;

/// A simulation of one node.
struct World {
    plan: Plan,
    chance: Chance,
    disk: SimDisk,
    saves: Saves,
    now: Instant,
    policy: FsyncPolicy,
    trace: Trace,
    invariants: Vec<Named>,
    violation: Option<String>,
    model: Model,
    /// All bytes of the log that are not lost.
    history: Vec<u8>,
    /// The number of values written by clients.
    issued: u64,
    starts: usize,
    /// The operation that [`Plant::TwiceBegun`] repeats.
    again: Option<String>,
}

/// Runs a simulation of one node.
pub(crate) fn run(plan: Plan, traced: bool) -> Outcome {
    let mut world = World::new(plan, traced);
    if let Err(panic) = caught(|| world.play())
        && plan.only.is_none()
    {
        let at = micros(world.now);
        world.violation.get_or_insert_with(|| format!("at {at} us: {panic}"));
    }
    Outcome {
        violation: world.violation.take(),
        digest: world.trace.digest,
        trace: world.trace.take_lines(),
        promotions: world.starts,
    }
}

impl World {
    fn new(plan: Plan, traced: bool) -> Self {
        let mut chance = Chance::new(plan.seed);
        let disk = SimDisk::new(Chance::new(chance.number()), plan.plant);
        let policy = chance.pick(&[
            FsyncPolicy::Always,
            FsyncPolicy::Always,
            FsyncPolicy::EverySecond,
            FsyncPolicy::Never,
        ]);
        Self {
            plan,
            chance,
            saves: Saves::new(&disk),
            disk,
            now: START,
            policy,
            trace: Trace::new(traced),
            invariants: invariants::all(),
            violation: None,
            model: Model::new(),
            history: Vec::new(),
            issued: 0,
            starts: 0,
            again: None,
        }
    }

    fn wall(&self) -> Millis {
        Millis(WALL + (micros(self.now) / 1000) as i64)
    }

    fn note(&mut self, text: &str) {
        self.trace.note(self.now, text);
    }

    fn see(&mut self, seen: &Seen) {
        for (rule, invariant) in &mut self.invariants {
            let Err(what) = invariant.check(seen) else { continue };
            if self.plan.only.is_none_or(|only| only == *rule) {
                let at = micros(self.now);
                self.violation.get_or_insert_with(|| format!("at {at} us: {}: {what}", rule.name()));
            }
        }
    }

    fn play(&mut self) {
        let mut death = Death::Killed;
        for _ in 0..LIVES {
            let Some(mut life) = self.start(death) else { continue };
            let events = 10 + self.chance.below(LONGEST_LIFE);
            for _ in 0..events {
                self.step(&mut life, true);
                if self.disk.is_dead() || self.violation.is_some() {
                    break;
                }
            }
            death = self.end(&life);
            if self.violation.is_some() {
                return;
            }
        }
        self.heal(death);
    }

    /// Kills the node if it still runs.
    fn end(&mut self, life: &Life) -> Death {
        let death = self.chance.pick(&[Death::Killed, Death::PowerCut]);
        self.history.clone_from(&life.log.lock().history);
        self.note(&format!("{death:?} at {}", self.history.len()));
        self.disk.start_again(death);
        self.disk.set_failing(0);
        self.disk.set_full(false);
        death
    }

    /// Starts the node, repeatedly if a start is interrupted.
    fn start(&mut self, death: Death) -> Option<Life> {
        self.check_save();
        let wall = self.wall();
        let dies = self.chance.percent(15).then(|| self.chance.below(12));
        self.disk.set_death(dies);
        self.again = None;
        let started = Life::start(&self.disk, &self.history, self.policy, (self.now, wall), &mut self.chance);
        if self.disk.is_dead() {
            self.note("it dies at its start");
            self.disk.start_again(death);
            return None;
        }
        self.disk.set_death(None);
        let (mut life, found) = match started {
            Ok(started) => started,
            Err(error) => {
                self.note(&format!("it does not start: {error}"));
                let issued = self.issued;
                self.see(&Seen::Started { death, loaded: Err(error), issued });
                return None;
            }
        };
        self.starts += 1;
        assert!(self.plan.plant != Some(Plant::Panic) || self.starts < 2, "planted");
        self.check_data(&mut life, death, &found);
        if matches!(found, Found::Nothing) {
            // Before the first client is served.
            self.rewrite(&mut life, false);
            for _ in 0..20 {
                self.now += Duration::from_millis(1);
                self.work(&mut life);
            }
            if life.file.machine.state() != AofState::Complete {
                self.note("there is no base");
                return None;
            }
            life.data.engine.settings.set_node_flag(engine::NodeFlags::LOADING, false);
        }
        Some(life)
    }

    /// Compares the data of a freshly started node with the history.
    fn check_data(&mut self, life: &mut Life, death: Death, found: &Found) {
        let reached = match found {
            Found::Nothing => 0,
            Found::Data(position) => position.map_or(0, |position| position.offset.0),
        };
        let wall = self.wall();
        let digest = life.data.digest(wall);
        let before = self.history.get(..reached as usize).map(<[u8]>::to_vec);
        let expected = before.as_ref().map(|history| self.model.digest(history, wall));
        self.note(&format!("starts at {reached}: {}", digest.escape_debug()));
        let plain = clients::plain(&mut life.data);
        let loaded = Loaded { reached, digest, expected, plain };
        let issued = self.issued;
        self.see(&Seen::Started { death, loaded: Ok(loaded), issued });
        self.history = before.unwrap_or_default();
    }

    /// Performs a random event.
    fn step(&mut self, life: &mut Life, rewrites: bool) {
        self.now += Duration::from_micros(1 + self.chance.below(3000) as u64);
        match self.chance.below(100) {
            0..30 => self.serve(life),
            30..40 => self.read(life),
            40..45 => self.wait(life),
            45..50 => self.watch(life),
            50..85 => self.work(life),
            85..88 => {
                self.now += self.chance.millis(1, 1500);
                life.data.expire(self.wall());
            }
            88..92 if rewrites => self.rewrite(life, true),
            92..93 => self.tell(life, AofEvent::SyncRequested),
            93..95 => {
                let percent = self.chance.pick(&[0, 0, 10, 40]);
                self.note(&format!("{percent} of a hundred operations fail"));
                self.disk.set_failing(percent);
            }
            95..96 => {
                let full = self.chance.percent(50);
                self.note(if full { "the disk is full" } else { "there is room" });
                self.disk.set_full(full);
            }
            96 => {
                let operations = self.chance.below(10);
                self.disk.set_death(Some(operations));
            }
            97 => self.evict(life),
            98 if rewrites => self.save(life, true),
            _ => {}
        }
        self.look(life);
    }

    fn evict(&mut self, life: &mut Life) {
        let before = life.log.end();
        let policy = self.chance.pick(&[
            EvictionPolicy::VolatileTtl,
            EvictionPolicy::VolatileLru,
            EvictionPolicy::AllKeysRandom,
            EvictionPolicy::NoEviction,
        ]);
        life.data.evict(self.wall(), policy);
        let end = life.log.end();
        self.note(&format!("memory is short, {policy:?}: {before} .. {end}"));
        self.on_written(life, before);
    }

    /// Executes a client's commands.
    fn serve(&mut self, life: &mut Life) {
        let number = self.chance.below(life.clients.len());
        let client = &mut life.clients[number];
        if !client.is_running() {
            let batch = clients::batch(&mut self.chance, &mut self.issued);
            client.send(&batch);
            let lines: Vec<String> = batch.iter().map(|words| words.join(" ")).collect();
            self.note(&format!("{number}: {}", lines.join("; ").escape_debug()));
        }
        let (before, wall) = (life.log.end(), self.wall());
        let how = (self.chance.percent(50), self.plan.plant == Some(Plant::LostHandovers));
        let answered = life.clients[number].go_on(&mut life.data, wall, how);
        let end = life.log.end();
        self.note(&format!("{number}: {before} .. {end}, {answered:?}"));
        if let Some(answered) = answered {
            self.see(&Seen::Answered(answered));
        }
        self.on_written(life, before);
    }

    /// Handles executed writes; they are acknowledged at once or after the sync.
    fn on_written(&mut self, life: &mut Life, before: u64) {
        let end = life.log.end();
        if end > before {
            let early = self.plan.plant == Some(Plant::AnsweredEarly);
            if life.holds && !early {
                life.waiting.push(end);
            } else {
                self.acknowledge(life, end);
            }
        }
    }

    /// Compares a client's read with a reference node that has only the history.
    fn read(&mut self, life: &mut Life) {
        let (before, wall) = (life.log.end(), self.wall());
        let db = self.chance.below(DATABASES.into()) as u16;
        for words in clients::reads(&mut self.chance) {
            let got = life.data.ask(db, wall, &words);
            let shared = life.log.clone();
            let expected = self.model.ask(&shared.lock().history, db, wall, &words);
            let asked = format!("{db}> {}", words.join(" "));
            let text = |reply: &[u8]| String::from_utf8_lossy(reply).into_owned();
            self.note(&format!("{asked}: {}", text(&got).escape_debug()));
            self.see(&Seen::Served { asked, got: text(&got), expected: text(&expected) });
        }
        self.on_written(life, before);
    }

    /// Sends a client command that may block.
    fn wait(&mut self, life: &mut Life) {
        let (before, wall) = (life.log.end(), self.wall());
        let client = self.chance.below(life.waiters.len());
        if !life.waiters[client].waits() {
            let db = self.chance.below(DATABASES.into()) as u16;
            let wait = clients::wait("", &mut self.chance);
            let told = life.waiters[client].send(&mut life.data, (db, wall), wait);
            self.note(&told.escape_debug().to_string());
        }
        self.on_written(life, before);
    }

    /// Lets a client watch a key or execute its transaction.
    fn watch(&mut self, life: &mut Life) {
        let (before, wall) = (life.log.end(), self.wall());
        let forgets = self.plan.plant == Some(Plant::ForgottenWatches);
        let executed = life.watcher.step(&mut life.data, (wall, before), &mut self.chance, forgets);
        if let Some(executed) = executed {
            self.note(&format!("{executed:?}"));
            self.see(&Seen::Executed(executed));
        }
        self.on_written(life, before);
    }

    /// Continues clients whose replies are ready or whose timeout has passed.
    fn end_waits(&mut self, life: &mut Life) {
        let (before, wall) = (life.log.end(), self.wall());
        for number in 0..life.waiters.len() {
            let client = &mut life.waiters[number];
            if self.plan.plant != Some(Plant::EndlessWaits)
                && let Some(told) = client.end(&mut life.data, wall)
            {
                self.note(&told.escape_debug().to_string());
            }
            if let Some(stuck) = life.waiters[number].stuck(&mut life.data, wall) {
                self.see(&Seen::Waits(stuck));
            }
        }
        self.on_written(life, before);
    }

    fn acknowledge(&mut self, life: &Life, end: u64) {
        let machine = &life.file.machine;
        if machine.policy() == FsyncPolicy::Always && machine.state() == AofState::Complete {
            self.see(&Seen::Acknowledged(end));
        }
    }

    /// Records the node's own claims and releases replies.
    fn look(&mut self, life: &mut Life) {
        if self.disk.is_dead() {
            return;
        }
        self.end_waits(life);
        let committed = if life.holds { life.committed } else { u64::MAX };
        let done: Vec<u64> = life.waiting.extract_if(.., |end| *end <= committed).collect();
        for end in done {
            self.acknowledge(life, end);
        }
        let machine = &life.file.machine;
        let synced = machine.synced().map_or(0, |synced| synced.0);
        // After an error the file is truncated to its synced part.
        let is_well = machine.error().is_none() && life.file.operation().is_none();
        let is_whole = machine.state() == AofState::Complete;
        let written = machine.written().filter(|_| is_well && is_whole);
        self.see(&Seen::Synced(synced));
        self.see(&Seen::Written(written.map_or(synced, |written| written.0)));
    }

    fn tell(&mut self, life: &mut Life, input: AofEvent) {
        let (wall, mut effects) = (self.wall(), Vec::new());
        let shared = life.log.clone();
        life.file.tell(&mut shared.lock().log, wall, Some(input), &mut effects);
        self.take(life, effects);
    }

    fn take(&mut self, life: &mut Life, effects: Vec<AofEffect>) {
        for effect in effects {
            self.note(&format!("{effect:?}"));
            match effect {
                AofEffect::PublishCommitPoint(_) if self.plan.plant == Some(Plant::UnheardCommits) => {}
                AofEffect::RewriteEnded { rewrite, outcome } => {
                    let ok = outcome.is_ok();
                    life.file.end_rewrite(self.now, rewrite, ok);
                    if outcome.is_ok_and(|history| life.file.folder().delete(&history)) {
                        self.tell(life, AofEvent::HistoryDeleted);
                    }
                }
                effect => life.take(&effect),
            }
        }
    }

    /// Starts or finishes an operation of the file's writer thread.
    fn work(&mut self, life: &mut Life) {
        let mut effects = Vec::new();
        if life.file.operation().is_some() {
            self.before_operation(life);
            if let Some(error) = life.file.end_operation(self.now, &mut effects) {
                self.note(&error);
            }
        } else {
            let (shared, wall) = (life.log.clone(), self.wall());
            life.file.begin_operation(&mut shared.lock().log, (self.now, wall), &mut effects);
        }
        self.take(life, effects);
    }

    fn before_operation(&mut self, life: &Life) {
        let Some(operation) = life.file.operation() else { return };
        self.note(&format!("{operation:?}").escape_debug().to_string());
        if self.plan.plant == Some(Plant::TwiceBegun) {
            if let FileOperation::BeginIncrement { name, .. } = operation {
                self.again = Some(name.clone());
            } else if *operation == FileOperation::Sync
                && let Some(name) = self.again.take()
            {
                // As if the first attempt had seemed to fail.
                let _ = persistence::Disk::create(&life.file.folder().disk, &name);
            }
        }
    }

    /// Takes a snapshot and writes it while other events happen.
    fn rewrite(&mut self, life: &mut Life, serving: bool) {
        let Ok(id) = life.file.rewrites.begin(self.now) else { return };
        life.file.rewrite = Some(Rewrite { id, base: None });
        let (state, position) = life.cut();
        self.note(&format!("a rewrite is cut at {}", position.offset));
        let late = self.plan.plant == Some(Plant::LateCut);
        if !late {
            self.tell(life, AofEvent::SnapshotTaken { rewrite: id, at: position, db: None });
        }
        let written = self.write_base(life, state, position, serving);
        if self.disk.is_dead() {
            return;
        }
        if late {
            let at = life.log.lock().log.position();
            self.tell(life, AofEvent::SnapshotTaken { rewrite: id, at, db: None });
        }
        match written {
            Ok(base) => {
                life.file.rewrite = Some(Rewrite { id, base: Some(base) });
                self.tell(life, AofEvent::BaseReady { rewrite: id, rdb: true });
            }
            Err(error) => {
                self.note(&format!("the rewrite fails: {error}"));
                self.fail(life, id);
            }
        }
    }

    fn fail(&mut self, life: &mut Life, id: RewriteId) {
        life.file.end_rewrite(self.now, id, false);
        self.tell(life, AofEvent::RewriteFailed(id));
    }

    fn write_base(
        &mut self,
        life: &mut Life,
        state: SnapshotState,
        position: Position,
        serving: bool,
    ) -> io::Result<Opened> {
        let rdb = self.write_rdb(life, state, position, (true, serving))?;
        life.file.write_base(&rdb)
    }

    /// Serializes a snapshot; clients may be served meanwhile.
    fn write_rdb(
        &mut self,
        life: &mut Life,
        state: SnapshotState,
        position: Position,
        (aof_base, serving): (bool, bool),
    ) -> io::Result<Vec<u8>> {
        let wall = self.wall();
        let events = if serving { self.chance.below(20) } else { 0 };
        let mut between = Between { world: self, life, events };
        executor::write_rdb(state, (position, wall), (aof_base, ""), &mut between)
    }

    /// Stops all faults: everything written must reach the disk and survive another start.
    fn heal(&mut self, death: Death) {
        self.note("everything works");
        let Some(mut life) = (0..4).find_map(|_| self.start(death)) else { return };
        self.serve(&mut life);
        self.rewrite(&mut life, false);
        self.save(&mut life, false);
        self.serve(&mut life);
        self.tell(&mut life, AofEvent::SyncRequested);
        for _ in 0..ROUNDS {
            self.now += Duration::from_millis(100);
            self.work(&mut life);
            self.look(&mut life);
        }
        self.see(&Seen::Rested { waiting: life.waiting.len() });
        self.see(&Seen::Synced(life.log.end()));
        let served = life.data.digest(self.wall());
        let end = life.log.end();
        self.end(&life);
        let Some(mut life) = (0..4).find_map(|_| self.start(Death::PowerCut)) else { return };
        let reached = life.log.end();
        let found = life.data.digest(self.wall());
        if self.violation.is_none() && (end, &served) != (reached, &found) && self.plan.only.is_none() {
            let what = format!("{end} was served, {served}, and {reached} is there, {found}");
            self.violation = Some(format!("at {} us: {}: {what}", micros(self.now), Rule::Prefix.name()));
        }
    }
}

/// The events of other threads while one writes a base file.
struct Between<'a> {
    world: &'a mut World,
    life: &'a mut Life,
    events: usize,
}

impl WriteObserver for Between<'_> {
    fn on_part_written(&mut self, _keys: u64) -> io::Result<()> {
        if self.events > 0 && self.world.chance.below(3) == 0 {
            self.events -= 1;
            self.world.step(self.life, false);
        }
        if self.world.disk.is_dead() { Err(io::Error::other("dead")) } else { Ok(()) }
    }
}
