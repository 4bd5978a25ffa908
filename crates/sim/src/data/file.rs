//! Simulates the append-only file of a process: one file operation at a time, rewrites in the background and, under
//! `appendfsync always`, clients that wait for the sync.

use std::fmt::Debug;
use std::time::Duration;

use append_only::{
    AofAction, AofDriver, AofDriverEvent, AofSettings, AofSizes, AofStart, AofState, FileExecutor,
    FsyncPolicy, RewriteId, StartPosition, SyncTarget, WriterStep,
};
use clock::{Instant, Millis};
use engine::NodeFlags;
use persistence::aof::Manifest;
use replication::Log;
use slot_routing::ReplOffset;

use super::copies::CopyWaiters;
use super::store::ProcessState;
use super::{DataChange, DataEvent, KeyGroup};
use crate::append_file::{AOF_NAME, AofWriter, SimAofDriver, aof_directory};
use crate::disk::{OpenFile, ProcessDeath, SimDisk};
use crate::simulation::Simulation;
use crate::{InjectedBug, InvariantName, RandomSource};

/// Interval between checks whether a rewrite can begin.
const REWRITE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The file sizes of a process without append-only files.
const EMPTY_AOF_SIZES: AofSizes = AofSizes { base_bytes: 0, total_bytes: 0 };

/// A finished write whose client waits for the sync.
struct WriteAwaitingSync {
    end_offset: ReplOffset,
    key_group: KeyGroup,
    write_number: u64,
}

/// The append-only file of a process, and the clients that wait for its sync.
pub(super) struct DataFile {
    disk: SimDisk,
    settings: AofSettings,
    aof: SimAofDriver,
    writer: AofWriter,
    /// The serialized base file of a rewrite, before it is written.
    unwritten_base: Option<(RewriteId, Vec<u8>)>,
    delays_replies: bool,
    committed_offset: ReplOffset,
    unsynced_writes: Vec<WriteAwaitingSync>,
    next_run_at: Option<Instant>,
}

impl DataFile {
    /// Creates the state of a process whose disk is empty. The first rewrite will create the files.
    pub(super) fn without_file(
        disk: SimDisk,
        policy: FsyncPolicy,
        random: &mut RandomSource,
        log: &mut Log,
        now: Instant,
    ) -> (Self, Vec<AofAction>) {
        let settings = AofSettings {
            fsync_policy: policy,
            has_timestamps: random.random_bool(50),
            name: AOF_NAME.to_owned(),
            ..AofSettings::default()
        };
        let executor = FileExecutor::new(aof_directory(&disk));
        let position = StartPosition::NextSnapshot;
        let start = AofStart {
            settings,
            manifest: Manifest::default(),
            start_position: position,
            sizes: EMPTY_AOF_SIZES,
        };
        Self::new(disk, executor, start, log, now, Millis(0))
    }

    fn new(
        disk: SimDisk,
        executor: FileExecutor<SimDisk>,
        aof_start: AofStart,
        log: &mut Log,
        now: Instant,
        wall: Millis,
    ) -> (Self, Vec<AofAction>) {
        let (mut aof, mut actions, settings) = (AofDriver::default(), Vec::new(), aof_start.settings.clone());
        aof.start(aof_start, log, now, wall, &mut actions);
        let file = Self {
            disk,
            settings,
            aof,
            writer: AofWriter::new(executor),
            unwritten_base: None,
            delays_replies: false,
            committed_offset: ReplOffset(0),
            unsynced_writes: Vec::new(),
            next_run_at: None,
        };
        (file, actions)
    }

    /// Loads the files of a starting process and opens them for appending. If that fails, the process does not start.
    fn load_from_disk(
        self,
        process_state: &mut ProcessState,
        now: Instant,
        wall: Millis,
    ) -> Result<(Self, Vec<AofAction>), String> {
        let Self { disk, settings, .. } = self;
        let folder = aof_directory(&disk);
        let found = folder.find_manifest().map_err(|error| error.to_string())?;
        let (executor, manifest, position) = match found {
            None => (FileExecutor::new(folder), Manifest::default(), StartPosition::NextSnapshot),
            Some(manifest) => {
                let loaded =
                    process_state.data_store.load_files(&folder, &manifest, &process_state.imports)?;
                if let Some(position) = loaded.position {
                    process_state.log.adopt_history(position);
                }
                let (executor, position) = FileExecutor::open(folder, &manifest, loaded.selected_db)
                    .map_err(|error| error.to_string())?;
                (executor, manifest, position)
            }
        };
        let sizes = executor.directory().sizes(&manifest);
        let start = AofStart { settings, manifest, start_position: position, sizes };
        Ok(Self::new(disk, executor, start, &mut process_state.log, now, wall))
    }

    /// Returns the log offset up to which the file is synced.
    pub(super) fn synced_offset(&self) -> Option<ReplOffset> {
        self.aof.synced_offset()
    }

    /// Returns whether the files contain all data up to the target. `None` if the sync has not ended yet, or if the
    /// files are incomplete.
    pub(super) fn is_saved(&self, target: SyncTarget) -> Option<bool> {
        match self.aof.sync_result(target)? {
            Ok(()) => self.aof.is_complete().then_some(true),
            Err(_) => Some(false),
        }
    }

    /// Removes clients whose writes are not synced, because the history that contains their writes has ended.
    pub(super) fn drop_unsynced_writes(&mut self) {
        self.unsynced_writes.clear();
    }

    /// Returns whether writes that are acknowledged from now on survive a power failure.
    fn is_durable(&self) -> bool {
        let status = self.aof.status();
        status
            .is_some_and(|file| file.fsync_policy == FsyncPolicy::Always && file.state == AofState::Complete)
    }

    /// Returns when the file's thread runs next. `until` is the deadline of its driver, if there is one.
    fn next_run_time(
        &self,
        now: Instant,
        until: Option<Instant>,
        random: &mut RandomSource,
    ) -> Option<Instant> {
        if self.writer.operation().is_some() || self.unwritten_base.is_some() {
            return Some(now + Duration::from_micros(random.random_below(3000) as u64));
        }
        let look = self.aof.rewrites().is_scheduled.then_some(now + REWRITE_CHECK_INTERVAL);
        until.into_iter().chain(look).min()
    }
}

impl<E: Debug> Simulation<E> {
    /// Enables `appendonly` on a process, with a probability of 70 percent.
    pub(crate) fn enable_file_at_random(&mut self, host: usize) {
        let Some(policy) = self.data.settings.appendfsync else { return };
        if self.random.random_bool(70) {
            let (disk, now) = (self.new_disk(), self.clock_of(host));
            let log = &mut self.data.process_states[host].log;
            let (file, actions) = DataFile::without_file(disk, policy, &mut self.random, log, now);
            self.data.process_states[host].data_file = Some(file);
            self.perform_file_actions(host, actions);
        }
    }

    fn new_disk(&mut self) -> SimDisk {
        SimDisk::new(RandomSource::new(self.random.random_number()), self.plan.injected_bug)
    }

    /// Restarts a process, with its predecessor's files if `keeps_files` is set. With `keeps_power`, only the process
    /// died; otherwise its host lost power.
    pub(super) fn restart_file(
        &mut self,
        host: usize,
        mut old_file: DataFile,
        keeps_files: bool,
        keeps_power: bool,
    ) {
        if keeps_files {
            old_file.disk.restart(if keeps_power { ProcessDeath::Killed } else { ProcessDeath::PowerCut });
            old_file.disk.set_failure_rate(0);
            old_file.disk.set_full(false);
        } else {
            old_file.disk = self.new_disk();
        }
        let (now, wall) = (self.clock_of(host), self.wall_clock_of(host));
        let store = &mut self.data.process_states[host];
        match old_file.load_from_disk(store, now, wall) {
            Ok((file, actions)) => {
                store.data_file = Some(file);
                self.perform_file_actions(host, actions);
            }
            Err(error) => {
                self.record_violation(
                    InvariantName::Durable,
                    &format!("host {host} cannot read its file: {error}"),
                );
            }
        }
    }

    /// Passes an event to the file's driver.
    fn handle_file_event(&mut self, host: usize, event: AofDriverEvent<OpenFile>) {
        let (now, wall) = (self.clock_of(host), self.wall_clock_of(host));
        let ProcessState { data_file: file, log, .. } = &mut self.data.process_states[host];
        let Some(DataFile { aof, .. }) = file else { return };
        let mut actions = Vec::new();
        aof.handle(log, now, wall, event, &mut actions);
        self.perform_file_actions(host, actions);
        self.schedule_file_work(host);
    }

    /// Notifies the file's driver that the log has grown or was replaced.
    pub(super) fn notify_file_of_log(&mut self, host: usize) {
        self.handle_file_event(host, AofDriverEvent::LogChanged);
    }

    /// Requests that the file be synced; returns the target to wait for.
    pub(super) fn request_sync(&mut self, host: usize) -> Option<SyncTarget> {
        let (now, wall) = (self.clock_of(host), self.wall_clock_of(host));
        let ProcessState { data_file: file, log, .. } = &mut self.data.process_states[host];
        let mut actions = Vec::new();
        let target = file.as_mut()?.aof.request_sync(log, now, wall, &mut actions);
        self.perform_file_actions(host, actions);
        self.schedule_file_work(host);
        Some(target)
    }

    /// Wakes the file's thread after a short random delay.
    pub(super) fn schedule_file_work(&mut self, host: usize) {
        if self.data.process_states[host].data_file.is_some() {
            let soon = self.now + Duration::from_micros(self.random.random_below(1000) as u64);
            self.run_file_writer_at(host, soon);
        }
    }

    fn run_file_writer_at(&mut self, host: usize, due_at: Instant) {
        let (now, at) = (self.now, self.process_id(host));
        let Some(file) = &mut self.data.process_states[host].data_file else { return };
        if file.next_run_at.is_none_or(|planned| due_at < planned || planned < now) {
            file.next_run_at = Some(due_at);
            self.schedule_data(due_at, DataEvent::RunFileThread { process_id: at });
        }
    }

    /// Starts or finishes an operation of the file's thread and continues a rewrite if there is one.
    pub(super) fn run_file_writer(&mut self, host: usize) {
        let (now, wall) = (self.clock_of(host), self.wall_clock_of(host));
        let ProcessState { data_file: file, log, .. } = &mut self.data.process_states[host];
        let Some(DataFile { aof, writer, next_run_at: due, .. }) = file else { return };
        *due = None;
        let (mut actions, mut until) = (Vec::new(), None);
        if writer.operation().is_some() {
            let operation = format!("{:?}", writer.operation());
            let mut error = None;
            if let Some(completed) = writer.finish() {
                error = completed.error().map(str::to_owned);
                aof.complete(now, completed, &mut actions);
            }
            let synced = aof.synced_offset();
            self.trace_data(host, |_| format!("{}: {error:?}", operation.escape_debug()));
            if let Some(upto) = synced {
                self.check_invariants(host, DataChange::FileSynced { offset: upto });
            }
            until = Some(now);
        } else {
            match aof.next_step(log, now, wall, &mut actions) {
                WriterStep::Run(pending) => writer.begin(pending),
                WriterStep::Wait { until: next, .. } => until = next,
                WriterStep::Stop => {}
            }
        }
        self.perform_file_actions(host, actions);
        self.continue_rewrite(host);
        let skew = self.processes[host].clock_offset;
        let file = self.data.process_states[host].data_file.as_ref().expect("a process keeps its file");
        if let Some(due) = file.next_run_time(now, until, &mut self.random) {
            let due = (due - skew).max(self.now);
            self.run_file_writer_at(host, due);
        }
    }

    fn continue_rewrite(&mut self, host: usize) {
        let now = self.clock_of(host);
        let store = &mut self.data.process_states[host];
        // A replica's data is invalid after a failed synchronization and must not be saved.
        let may_cut = store.can_snapshot() && !store.is_loading() && !store.has_invalid_data();
        let Some(DataFile { aof, writer, unwritten_base: cut, .. }) = &mut store.data_file else { return };
        if let Some((rewrite, rdb)) = cut.take() {
            let event = match writer.write_base(&rdb) {
                Ok(base) => AofDriverEvent::BaseWritten { rewrite, base, is_rdb: true },
                Err(_) => AofDriverEvent::RewriteFailed(rewrite),
            };
            self.handle_file_event(host, event);
        } else if may_cut
            && aof.is_rewrite_due(now, 0, 0)
            && let Ok(rewrite) = aof.begin_rewrite(now)
        {
            self.serialize_base(host, rewrite);
        }
    }

    /// Serializes the current data as the base file of a rewrite.
    fn serialize_base(&mut self, host: usize, rewrite: RewriteId) {
        let fresh = self.new_history();
        let store = &mut self.data.process_states[host];
        store.log.open(fresh);
        // Only a replica records the database that its master has selected, which is always 0 in the simulation.
        let db = store.upstream().map(|_| 0);
        if db.is_none() {
            store.log.reset_selected_db();
        }
        let at = store.log.position();
        let rdb = store.data_store.write_base(at);
        if let Some(file) = &mut store.data_file {
            file.unwritten_base = Some((rewrite, rdb));
        }
        self.trace_data(host, |_| format!("the base of a rewrite is cut at {at:?}"));
        self.handle_file_event(host, AofDriverEvent::SnapshotTaken { rewrite, db });
        let store = &mut self.data.process_states[host];
        store.imports.repeat_running_imports_in_log(&mut store.log);
        self.wake_replica_connections(host);
    }

    fn perform_file_actions(&mut self, host: usize, actions: Vec<AofAction>) {
        for action in actions {
            let store = &mut self.data.process_states[host];
            let Some(file) = &mut store.data_file else { return };
            match action {
                AofAction::PublishCommitPoint(offset) => file.committed_offset = offset,
                AofAction::HoldReplies(holds) => file.delays_replies = holds,
                AofAction::WriteErrorChanged(error) => {
                    store.set_node_flag(NodeFlags::AOF_FAILED, error.is_some());
                }
                AofAction::DeleteHistory(history) => match file.writer.directory().delete_files(&history) {
                    true => self.handle_file_event(host, AofDriverEvent::HistoryDeleted),
                    false => self.handle_file_event(host, AofDriverEvent::HistoryKept),
                },
                AofAction::SyncDelayed | AofAction::RewriteEnded { .. } => {}
            }
        }
        self.reply_to_synced_writes(host);
        self.release_copy_waiters(host);
    }

    /// Replies to a client's finished write at once or after the sync.
    pub(super) fn reply_to_write(&mut self, host: usize, key_group: KeyGroup, write_number: u64) {
        let end = self.data.process_states[host].offset();
        let early = self.has_injected_bug(InjectedBug::EarlyReply);
        match &mut self.data.process_states[host].data_file {
            Some(file) if file.delays_replies && file.committed_offset < end && !early => {
                file.unsynced_writes.push(WriteAwaitingSync { end_offset: end, key_group, write_number });
            }
            _ => self.acknowledge_write(host, key_group, write_number, end),
        }
    }

    fn reply_to_synced_writes(&mut self, host: usize) {
        let Some(file) = &mut self.data.process_states[host].data_file else { return };
        let (holds, committed) = (file.delays_replies, file.committed_offset);
        let done: Vec<WriteAwaitingSync> = file
            .unsynced_writes
            .extract_if(.., |waiting| !holds || waiting.end_offset <= committed)
            .collect();
        for WriteAwaitingSync { end_offset: end, key_group: key, write_number: write } in done {
            self.acknowledge_write(host, key, write, end);
        }
    }

    fn acknowledge_write(
        &mut self,
        host: usize,
        key_group: KeyGroup,
        write_number: u64,
        end_offset: ReplOffset,
    ) {
        let durable = self.data.process_states[host].data_file.as_ref().is_some_and(DataFile::is_durable);
        self.check_invariants(
            host,
            DataChange::WriteAcknowledged { key_group, write_number, end_offset, is_durable: durable },
        );
        self.maybe_wait_for_copies(host, end_offset);
    }

    /// Removes a key whose slot moved to another node, and the clients that wait for the sync of writes to it.
    pub(crate) fn drop_unacknowledged_write(&mut self, host: usize, key_group: KeyGroup) {
        if let Some(file) = &mut self.data.process_states[host].data_file {
            file.unsynced_writes.retain(|waiting| waiting.key_group != key_group);
        }
        self.check_invariants(host, DataChange::KeyDropped { key_group });
    }

    /// Drops the clients that wait for a sync, because the node has become a replica.
    pub(super) fn drop_waiting_clients(&mut self, host: usize) {
        self.data.process_states[host].copy_waiters = CopyWaiters::default();
    }

    /// Occasionally makes the disk fail or run full, or requests a rewrite of the append-only file.
    pub(super) fn disturb_disk(&mut self, host: usize) {
        let healed = self.is_healed;
        let Some(DataFile { disk, aof, .. }) = &mut self.data.process_states[host].data_file else { return };
        if healed {
            disk.set_failure_rate(0);
            disk.set_full(false);
        } else if self.random.random_bool(3) {
            disk.set_failure_rate(self.random.pick_random(&[0, 0, 0, 10, 40]));
            disk.set_full(self.random.random_bool(10));
        } else if self.random.random_bool(2) {
            aof.schedule_rewrite();
        }
        self.notify_file_of_log(host);
    }
}
