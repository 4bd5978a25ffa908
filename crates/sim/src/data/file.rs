//! Simulates the append-only file of a process: one operation at a time, rewrites beside it and,
//! under `always`, clients that wait for the sync.

use std::fmt::Debug;
use std::time::Duration;

use append_only::{
    AofEffect, AofEvent, AofSettings, AofState, AppendOnly, FsyncPolicy, LogEnd, RewriteId, RewriteThresholds,
};
use clock::{Instant, Millis};
use engine::NodeFlags;
use persistence::aof::Manifest;
use slot_routing::ReplOffset;

use super::copies::CopyWaiters;
use super::store::ReplicaState;
use super::{DataChange, DataEvent, Key};
use crate::append_file::{AOF_NAME, AppendFile, Rewrite, folder};
use crate::disk::{ProcessDeath, SimDisk};
use crate::simulation::Simulation;
use crate::{InjectedBug, InvariantName, RandomSource};

/// Interval between checks whether a rewrite can begin.
const REWRITE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A finished write whose client waits for the sync.
struct WriteAwaitingSync {
    end: ReplOffset,
    key: Key,
    write: u64,
}

/// The append-only file of a process, and the clients that wait for it.
pub(super) struct DataFile {
    disk: SimDisk,
    settings: AofSettings,
    file: AppendFile,
    /// The serialized base of a rewrite that is not on the disk yet.
    cut: Option<(RewriteId, Vec<u8>)>,
    holds: bool,
    committed: ReplOffset,
    waiting: Vec<WriteAwaitingSync>,
    due: Option<Instant>,
}

impl DataFile {
    /// Starts on an empty disk.
    pub(super) fn nothing(
        disk: SimDisk,
        policy: FsyncPolicy,
        random: &mut RandomSource,
        now: Instant,
    ) -> Self {
        let settings = AofSettings {
            policy,
            timestamps: random.percent(50),
            name: AOF_NAME.to_owned(),
            ..AofSettings::default()
        };
        Self::fresh(disk, settings, now)
    }

    /// Starts without files; the first rewrite creates them.
    fn fresh(disk: SimDisk, settings: AofSettings, now: Instant) -> Self {
        let machine = AppendOnly::without_base(settings.clone(), Manifest::default(), now);
        let mut file = AppendFile::new(machine, folder(&disk), None);
        file.rewrites.scheduled = true;
        Self::with(disk, settings, file)
    }

    fn with(disk: SimDisk, settings: AofSettings, file: AppendFile) -> Self {
        let (cut, waiting, due) = (None, Vec::new(), None);
        Self { disk, settings, file, cut, holds: false, committed: ReplOffset(0), waiting, due }
    }

    /// Loads the files into a starting process and continues them. An error means that the process
    /// does not start.
    fn found(self, store: &mut ReplicaState, (now, wall): (Instant, Millis)) -> Result<Self, String> {
        let Self { disk, settings, .. } = self;
        let folder = folder(&disk);
        let manifest = folder.find().map_err(|error| error.to_string())?;
        let Some(manifest) = manifest else { return Ok(Self::fresh(disk, settings, now)) };
        let loaded = store.data_store.load_files(&folder, &manifest, &store.imports)?;
        if let Some(position) = loaded.position {
            store.log.adopt_history(position);
        }
        let last = folder.last_increment(&manifest).map_err(|error| error.to_string())?;
        let end = LogEnd::of(&store.log, wall);
        let (machine, open) = match last {
            Some(open) => (
                AppendOnly::continue_increment(settings.clone(), manifest, open.bytes, end, now),
                Some(open.file),
            ),
            None => (AppendOnly::after_base(settings.clone(), manifest, end, loaded.db, now), None),
        };
        Ok(Self::with(disk, settings, AppendFile::new(machine, folder, open)))
    }

    /// Returns the log offset up to which the file is synced.
    pub(super) fn synced(&self) -> Option<ReplOffset> {
        self.file.machine.synced()
    }

    /// Returns the number of disk failures.
    pub(super) fn failures(&self) -> u64 {
        self.file.machine.failures()
    }

    /// Returns whether writes acknowledged now survive a power failure.
    fn is_durable(&self) -> bool {
        let machine = &self.file.machine;
        machine.policy() == FsyncPolicy::Always && machine.state() == AofState::Complete
    }

    /// Returns when the file's thread has work if nothing else happens.
    fn next_step(&self, now: Instant, random: &mut RandomSource) -> Option<Instant> {
        if self.file.operation().is_some() || self.cut.is_some() {
            return Some(now + Duration::from_micros(random.below(3000) as u64));
        }
        let look = self.file.rewrites.scheduled.then_some(now + REWRITE_CHECK_INTERVAL);
        self.file.machine.next_deadline(now).into_iter().chain(look).min()
    }
}

impl<E: Debug> Simulation<E> {
    /// Enables `appendonly` on some processes.
    pub(crate) fn choose_file(&mut self, host: usize) {
        let Some(policy) = self.data.settings.appendfsync else { return };
        if self.random.percent(70) {
            let (disk, now) = (self.new_disk(), self.clock_of(host));
            self.data.stores[host].file = Some(DataFile::nothing(disk, policy, &mut self.random, now));
        }
    }

    fn new_disk(&mut self) -> SimDisk {
        SimDisk::new(RandomSource::new(self.random.number()), self.plan.injected_bug)
    }

    /// Starts a process with its predecessor's files if they are kept. `told`: only the process
    /// died.
    pub(super) fn find_file(&mut self, host: usize, mut old: DataFile, kept: bool, told: bool) {
        if kept {
            old.disk.start_again(if told { ProcessDeath::Killed } else { ProcessDeath::PowerCut });
            old.disk.set_failing(0);
            old.disk.set_full(false);
        } else {
            old.disk = self.new_disk();
        }
        let times = (self.clock_of(host), self.wall_of(host));
        let store = &mut self.data.stores[host];
        match old.found(store, times) {
            Ok(file) => store.file = Some(file),
            Err(error) => {
                self.record_violation(
                    InvariantName::Durable,
                    &format!("host {host} cannot read its file: {error}"),
                );
            }
        }
    }

    /// Notifies the file of a longer or replaced log.
    pub(super) fn tell_file(&mut self, host: usize, input: Option<AofEvent>) {
        let wall = self.wall_of(host);
        let ReplicaState { file, log, .. } = &mut self.data.stores[host];
        let Some(DataFile { file, .. }) = file else { return };
        let mut effects = Vec::new();
        file.tell(log, wall, input, &mut effects);
        self.take_effects(host, effects);
        self.wake_file(host);
    }

    /// Wakes the file's thread soon.
    pub(super) fn wake_file(&mut self, host: usize) {
        if self.data.stores[host].file.is_some() {
            let soon = self.now + Duration::from_micros(self.random.below(1000) as u64);
            self.work_on_file_at(host, soon);
        }
    }

    fn work_on_file_at(&mut self, host: usize, due: Instant) {
        let (now, at) = (self.now, self.process(host));
        let Some(file) = &mut self.data.stores[host].file else { return };
        if file.due.is_none_or(|planned| due < planned || planned < now) {
            file.due = Some(due);
            self.data_at(due, DataEvent::File { at });
        }
    }

    /// Starts or finishes an operation of the file's thread and continues a rewrite.
    pub(super) fn work_on_file(&mut self, host: usize) {
        let (now, wall) = (self.clock_of(host), self.wall_of(host));
        let ReplicaState { file, log, .. } = &mut self.data.stores[host];
        let Some(DataFile { file, due, .. }) = file else { return };
        *due = None;
        let mut effects = Vec::new();
        if file.operation().is_some() {
            let operation = format!("{:?}", file.operation());
            let error = file.end_operation(now, &mut effects);
            let synced = file.machine.synced();
            self.note_data(host, |_| format!("{}: {error:?}", operation.escape_debug()));
            if let Some(upto) = synced {
                self.see(host, DataChange::Synced { upto });
            }
        } else {
            file.begin_operation(log, (now, wall), &mut effects);
        }
        self.take_effects(host, effects);
        self.go_on_rewriting(host);
        let skew = self.processes[host].skew;
        let file = self.data.stores[host].file.as_ref().expect("a process keeps its file");
        if let Some(due) = file.next_step(now, &mut self.random) {
            let due = (due - skew).max(self.now);
            self.work_on_file_at(host, due);
        }
    }

    fn go_on_rewriting(&mut self, host: usize) {
        let now = self.clock_of(host);
        let store = &mut self.data.stores[host];
        // A replica's data after a failed synchronization must not be saved.
        let may_cut = store.is_whole() && !store.is_loading() && !store.is_void();
        let Some(DataFile { file, cut, .. }) = &mut store.file else { return };
        let growth = RewriteThresholds { size: 0, percentage: 0, min_size: 0 };
        if let Some((rewrite, rdb)) = cut.take() {
            let input = match file.write_base(&rdb) {
                Ok(base) => {
                    file.rewrite = Some(Rewrite { id: rewrite, base: Some(base) });
                    AofEvent::BaseReady { rewrite, rdb: true }
                }
                Err(_) => {
                    file.end_rewrite(now, rewrite, false);
                    AofEvent::RewriteFailed(rewrite)
                }
            };
            self.tell_file(host, Some(input));
        } else if may_cut
            && file.rewrites.is_due(now, growth)
            && let Ok(rewrite) = file.rewrites.begin(now)
        {
            self.cut_base(host, rewrite);
        }
    }

    /// Serializes the current data as the base of a rewrite.
    fn cut_base(&mut self, host: usize, rewrite: RewriteId) {
        let fresh = self.new_history();
        let store = &mut self.data.stores[host];
        store.log.open(fresh);
        // All keys are in one database, which a replica knows from its master.
        let db = store.upstream().map(|_| 0);
        if db.is_none() {
            store.log.forget_db();
        }
        let at = store.log.position();
        let rdb = store.data_store.base(at);
        if let Some(file) = &mut store.file {
            file.cut = Some((rewrite, rdb));
        }
        self.note_data(host, |_| format!("the base of a rewrite is cut at {at:?}"));
        self.tell_file(host, Some(AofEvent::SnapshotTaken { rewrite, at, db }));
        let store = &mut self.data.stores[host];
        store.imports.repeat_in_log(&mut store.log);
        self.log_grew(host);
    }

    fn take_effects(&mut self, host: usize, effects: Vec<AofEffect>) {
        let now = self.clock_of(host);
        for effect in effects {
            let store = &mut self.data.stores[host];
            let Some(data_file) = &mut store.file else { return };
            match effect {
                AofEffect::PublishCommitPoint(offset) => data_file.committed = offset,
                AofEffect::HoldReplies(holds) => data_file.holds = holds,
                AofEffect::WriteErrorChanged(error) => {
                    store.set_node_flag(NodeFlags::AOF_FAILED, error.is_some());
                }
                AofEffect::BaseNeeded => data_file.file.rewrites.scheduled = true,
                AofEffect::RewriteEnded { rewrite, outcome } => {
                    data_file.file.end_rewrite(now, rewrite, outcome.is_ok());
                    if outcome.is_ok_and(|history| data_file.file.folder().delete(&history)) {
                        self.tell_file(host, Some(AofEvent::HistoryDeleted));
                    }
                }
            }
        }
        self.answer_waiting(host);
        self.release_copies(host);
    }

    /// Replies to a client's finished write at once or after the sync.
    pub(super) fn answer_client(&mut self, host: usize, key: Key, write: u64) {
        let end = self.data.stores[host].offset();
        let early = self.is_injected(InjectedBug::EarlyReply);
        match &mut self.data.stores[host].file {
            Some(file) if file.holds && file.committed < end && !early => {
                file.waiting.push(WriteAwaitingSync { end, key, write });
            }
            _ => self.acknowledge(host, key, write, end),
        }
    }

    fn answer_waiting(&mut self, host: usize) {
        let Some(file) = &mut self.data.stores[host].file else { return };
        let (holds, committed) = (file.holds, file.committed);
        let done: Vec<WriteAwaitingSync> =
            file.waiting.extract_if(.., |waiting| !holds || waiting.end <= committed).collect();
        for WriteAwaitingSync { end, key, write } in done {
            self.acknowledge(host, key, write, end);
        }
    }

    fn acknowledge(&mut self, host: usize, key: Key, write: u64, end: ReplOffset) {
        let durable = self.data.stores[host].file.as_ref().is_some_and(DataFile::is_durable);
        self.see(host, DataChange::Acknowledged { key, write, end, durable });
        self.want_copies(host, end);
    }

    /// Removes a key whose slot moved away. Its unsynced writes moved with it.
    pub(crate) fn drop_key(&mut self, host: usize, key: Key) {
        if let Some(file) = &mut self.data.stores[host].file {
            file.waiting.retain(|waiting| waiting.key != key);
        }
        self.see(host, DataChange::Dropped { key });
    }

    /// Drops waiting clients when a node becomes a replica.
    pub(super) fn drop_waiting(&mut self, host: usize) {
        self.data.stores[host].copies_wanted = CopyWaiters::default();
        if let Some(file) = &mut self.data.stores[host].file {
            file.waiting.clear();
        }
    }

    /// Occasionally makes the disk fail or fill up, or starts a rewrite.
    pub(super) fn try_disk(&mut self, host: usize) {
        let healed = self.healed;
        let Some(DataFile { disk, file, .. }) = &mut self.data.stores[host].file else { return };
        if healed {
            disk.set_failing(0);
            disk.set_full(false);
        } else if self.random.percent(3) {
            disk.set_failing(self.random.pick(&[0, 0, 0, 10, 40]));
            disk.set_full(self.random.percent(10));
        } else if self.random.percent(2) {
            file.rewrites.scheduled = true;
        }
        self.tell_file(host, None);
    }
}
