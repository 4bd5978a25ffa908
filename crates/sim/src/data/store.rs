//! The data and replication state of one process.

use std::cell::Ref;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use clock::{Instant, Millis};
use durability::stream::imports::SlotImports;
use engine::{CapturedKey, CommandError, Engine, NodeFlags, ReleaseResult, Session};
use gossip::ReplicaAdmission;
use replication::master::{self, OutputLimit, PeerId};
use replication::master_driver::NextPendingCheck;
use replication::replica::Replica;
use replication::wait::DiskProgress;
use replication::{Log, MasterDriver, ReplId, ReplPosition, ReplicaDriver};
use resp::Value;
use slot_routing::{NodeId, ReplOffset, Slot, SlotSet, SlotsToEmpty};

use super::DataSettings;
use super::copies::CopyWaiters;
use super::data_store::DataStore;
use super::file::DataFile;
use super::following::{Follower, SnapshotLoad, StreamSegment};
use super::requests::{self, ClientRequest, NextAttempt};
use super::roles::RoleChange;
use super::serving::{ReplicaConnection, ReplicationMessage};
use super::slot_moves::AnnouncedSlotChanges;
use super::stopping::SimulatedShutdown;
use super::waits::BlockingClient;
use crate::RandomSource;
use crate::clients::CommandWords;
use crate::delivery_queue::DeliveryQueue;

/// A group of keys that share a slot, identified by the number of that slot.
pub(crate) type KeyGroup = u16;

/// Commands that have been executed, but whose slot is still locked.
#[derive(Debug)]
pub(super) struct UnfinishedWrite {
    pub(super) key_group: KeyGroup,
    /// The effects to log: those of the last command, and before them those of all other commands.
    pub(super) effects: [Vec<u8>; 2],
    /// The unique number that the commands wrote; `None` if they did not get that far.
    pub(super) write_number: Option<u64>,
    /// The value of `ProcessState::history_number` when the commands began.
    pub(super) history_number_at_start: u64,
    /// The rest of the client's request and its next step, if the request is not finished.
    pub(super) rest_of_request: Option<(Box<ClientRequest>, NextAttempt)>,
}

/// The data, the log and the replication state of one process.
pub(crate) struct ProcessState {
    pub(super) data_store: DataStore,
    pub(super) log: Log,
    /// Slots that moved to another node and are being emptied here.
    pub(super) slots_to_empty: SlotsToEmpty,
    /// Slots that this process or its master is importing.
    pub(super) imports: SlotImports,
    pub(super) unfinished_writes: BTreeMap<u64, UnfinishedWrite>,
    pub(super) blocking_client: Option<BlockingClient>,
    pub(super) copy_waiters: CopyWaiters,
    pub(super) shutdown: Option<SimulatedShutdown>,
    pub(super) role_changes: VecDeque<RoleChange>,
    /// A role change that has taken effect in the log but is not published yet.
    pub(super) unpublished_change: Option<ReplicationMessage>,
    pub(super) replica_driver: ReplicaDriver<usize>,
    pub(super) follower: Option<Follower>,
    /// The stream segment that is being applied. Until it is finished, the stream is locked.
    pub(super) applying_segment: Option<StreamSegment>,
    pub(super) snapshot_load: Option<SnapshotLoad>,
    /// A snapshot for replicas that is still being written.
    pub(super) snapshot_file: Option<Vec<u8>>,
    pub(super) master_driver: MasterDriver,
    pub(super) peers: BTreeMap<PeerId, ReplicaConnection>,
    pub(super) inbox: DeliveryQueue<ReplicationMessage>,
    pub(crate) slot_changes: AnnouncedSlotChanges,
    /// Which replicas this process accepts.
    pub(crate) replica_admission: ReplicaAdmission,
    /// Changes whenever a history ends or begins. It is odd between two histories, when writes must not be logged
    /// (`CommitPoint`).
    pub(super) history_number: u64,
    /// Whether the node took over at the request of its master.
    pub(crate) has_taken_over: bool,
    /// The RDB file on disk, and the position in the history that it contains.
    saved_rdb: Option<(Vec<u8>, ReplPosition)>,
    /// The append-only file; `None` without `appendonly yes`.
    pub(super) data_file: Option<DataFile>,
    pub(super) next_tick_at: Option<Instant>,
}

impl ProcessState {
    pub(super) fn new(
        random: &mut RandomSource,
        settings: &DataSettings,
        slots: &SlotSet,
        now: Instant,
    ) -> Self {
        let mut log = Log::new(random.random_replication_id(), settings.backlog_size);
        log.set_cursor_bound(settings.max_lag);
        Self {
            data_store: DataStore::new_empty(slots, settings.is_cluster_enabled),
            log,
            slots_to_empty: SlotsToEmpty::default(),
            imports: SlotImports::default(),
            unfinished_writes: BTreeMap::new(),
            blocking_client: None,
            copy_waiters: CopyWaiters::default(),
            shutdown: None,
            role_changes: VecDeque::new(),
            unpublished_change: None,
            replica_driver: ReplicaDriver::default(),
            follower: None,
            applying_segment: None,
            snapshot_load: None,
            snapshot_file: None,
            master_driver: MasterDriver::new(master_config(settings), now),
            peers: BTreeMap::new(),
            inbox: DeliveryQueue::default(),
            slot_changes: AnnouncedSlotChanges::default(),
            replica_admission: ReplicaAdmission::All,
            history_number: 0,
            has_taken_over: false,
            saved_rdb: None,
            data_file: None,
            next_tick_at: None,
        }
    }

    /// Returns the state of the process after a restart. With `keeps_files`, it keeps the files of this process.
    pub(super) fn state_after_restart(&self, mut new_state: Self, keeps_files: bool) -> Self {
        new_state.saved_rdb = self.saved_rdb.clone().filter(|_| keeps_files);
        if let Some((snapshot, position)) = &new_state.saved_rdb {
            new_state.data_store.load_snapshot(snapshot);
            new_state.log.adopt_history(*position);
        }
        new_state
    }

    /// Returns whether the history has not changed since `history_number`, so that a write that began then is logged.
    pub(super) fn is_logged_since(&self, history_number: u64) -> bool {
        history_number == self.history_number && history_number.is_multiple_of(2)
    }

    /// Saves the RDB file, unless the process has an append-only file or the data is not in a consistent state.
    pub(super) fn save_rdb(&mut self) {
        if self.data_file.is_none() && self.can_snapshot() && self.log.is_open() {
            let position = self.log.position();
            self.saved_rdb = Some((self.data_store.rdb_snapshot(position, ""), position));
        }
    }

    /// Returns whether the RDB file covers the log up to `end_offset`.
    pub(super) fn is_saved_at(&self, end_offset: ReplOffset) -> bool {
        self.saved_rdb.as_ref().is_some_and(|(_, position)| position.offset >= end_offset)
    }

    /// Returns whether a snapshot can be taken: no slot is locked, no stream segment is being applied and nothing is
    /// being loaded.
    pub(super) fn can_snapshot(&self) -> bool {
        self.unfinished_writes.is_empty() && self.applying_segment.is_none() && self.snapshot_load.is_none()
    }

    /// Returns when replica lag must be checked next, by the process's clock; `None` if nothing was logged since the
    /// last check.
    pub(super) fn next_pending_check_at(&self) -> Option<Instant> {
        let NextPendingCheck { log_end: past, earliest_check_at: at } =
            self.master_driver.next_pending_check()?;
        past.is_none_or(|end| self.offset() != end).then_some(at)
    }

    pub(super) fn position(&self) -> ReplPosition {
        self.log.position()
    }

    pub(crate) fn offset(&self) -> ReplOffset {
        self.position().offset
    }

    /// Returns the offset up to which the log is stored on the process's disk.
    pub(super) fn disk_progress(&self) -> DiskProgress {
        let synced = |file: &DataFile| {
            file.synced_offset().map_or(DiskProgress::NothingSynced, DiskProgress::SyncedUpTo)
        };
        self.data_file.as_ref().map_or(DiskProgress::Disabled, synced)
    }

    /// Returns the offset that the process reports to other nodes.
    pub(crate) fn failover_offset(&self) -> ReplOffset {
        self.replica_driver.failover_offset(&self.log)
    }

    /// Returns whether this is a replica whose data is no valid state of its master.
    pub(crate) fn has_invalid_data(&self) -> bool {
        self.upstream().is_some() && !self.log.is_open()
    }

    /// Returns whether a role change has been requested but not published yet.
    pub(crate) fn is_changing_role(&self) -> bool {
        !self.role_changes.is_empty() || self.unpublished_change.is_some()
    }

    /// Returns the host of the master that this replica follows; `None` on a master.
    pub(crate) fn upstream(&self) -> Option<usize> {
        self.replica_driver.master().copied()
    }

    /// Returns whether the master's stream is connected.
    pub(crate) fn is_in_sync(&self) -> bool {
        self.upstream().is_some() && self.replica_driver.is_in_sync()
    }

    /// Returns since when the link to the master has been down, by the process's clock. `None` if the link is up or the
    /// process is a master.
    pub(crate) fn link_down_since(&self) -> Option<Instant> {
        self.replica_driver.replica()?.down_since()
    }

    /// Returns the replica's state machine; `None` on a master.
    pub(crate) fn replica(&self) -> Option<&Replica> {
        self.replica_driver.replica()
    }

    /// Returns the state of the replication link as the `gossip` state machine needs it: when the last data from the
    /// master arrived, or since when the link has been down.
    pub(crate) fn replication_source(&self) -> gossip::ReplicationSource {
        let Some(machine) = self.replica_driver.replica() else {
            return gossip::ReplicationSource::NeverSynchronized;
        };
        match machine.down_since() {
            None => gossip::ReplicationSource::Streaming { last_heard_at: machine.last_heard_at() },
            Some(since) if self.replica_driver.has_data(&self.log) => {
                gossip::ReplicationSource::Lost { since }
            }
            Some(_) => gossip::ReplicationSource::NeverSynchronized,
        }
    }

    /// Returns the replicas that receive the stream, with their acknowledged offsets. For a replica that reconnected,
    /// only its newest connection counts.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = (usize, ReplOffset)> + '_ {
        let mut each = BTreeMap::new();
        for (id, peer) in self.master_driver.master().peers() {
            if let Some(replica) = self.peers.get(&id) {
                each.insert(replica.host, peer.acknowledged_offset.filter(|_| peer.is_online()));
            }
        }
        each.into_iter().filter_map(|(host, acknowledged)| Some((host, acknowledged?)))
    }

    /// Returns all connected replicas, including those that are still synchronizing.
    pub(crate) fn connected_replicas(&self) -> impl Iterator<Item = usize> + '_ {
        self.master_driver.master().peers().filter_map(|(id, _)| Some(self.peers.get(&id)?.host))
    }

    /// Returns the engine, whose node flags and slots decide which commands may run.
    pub(crate) fn engine(&self) -> Ref<'_, Engine> {
        self.data_store.engine()
    }

    /// Returns the process's node id; `None` without a cluster.
    pub(super) fn node_id(&self) -> Option<NodeId> {
        self.engine().topology.as_ref().map(|topology| topology.load().myself)
    }

    /// Sets or clears a flag of the node.
    pub(crate) fn set_node_flag(&self, flag: NodeFlags, is_set: bool) {
        self.engine().settings.set_node_flag(flag, is_set);
    }

    pub(super) fn is_loading(&self) -> bool {
        self.engine().settings.node_flags().contains(NodeFlags::LOADING)
    }

    /// Returns whether the process is a standalone replica that accepts client writes.
    pub(super) fn allows_local_writes(&self) -> bool {
        let engine = self.engine();
        let gate = engine.settings.node_flags();
        engine.topology.is_none()
            && gate.contains(NodeFlags::REPLICA)
            && !gate.contains(NodeFlags::READ_ONLY_REPLICA)
    }

    /// Executes a client's pipeline, after ASKING if `is_asking` is set. Returns the client's next step if the pipeline
    /// was not served, and the effects.
    pub(super) fn serve(
        &mut self,
        session: &mut Session,
        wall_time: Millis,
        transaction: &[CommandWords],
        is_asking: bool,
    ) -> (Option<NextAttempt>, Vec<u8>) {
        let asking = is_asking.then(|| vec!["ASKING".to_owned()]);
        let sent: Vec<CommandWords> = asking.into_iter().chain(transaction.iter().cloned()).collect();
        let (replies, effects) = self.data_store.serve(session, wall_time, &sent);
        (requests::next_attempt(&replies, sent.len()), effects)
    }

    /// Returns the names of a slot's keys.
    pub(crate) fn key_names(&self, slot: Slot) -> Vec<Vec<u8>> {
        self.data_store.key_names(slot.number())
    }

    pub(crate) fn keys_in_slot(&self, slot: Slot) -> u64 {
        self.engine().keyspace.keys_in_slot(slot) as u64
    }

    pub(crate) fn is_paused(&self, wall_time: Millis) -> bool {
        let engine = self.engine();
        engine.scheduling.pauses.end_expired(&engine.settings, wall_time).is_some()
    }

    /// Executes requests that another node sends as a client. Returns the replies and the effects.
    pub(crate) fn execute_requests(&mut self, wall_time: Millis, requests: Vec<u8>) -> (Vec<Value>, Vec<u8>) {
        self.data_store.execute_requests(wall_time, requests)
    }

    /// Deletes a migrated key. Returns the result and the effects.
    pub(crate) fn delete_migrated_key(
        &mut self,
        name: &[u8],
        wall_time: Millis,
        captured_key: &CapturedKey,
    ) -> (Result<ReleaseResult, CommandError>, Vec<u8>) {
        self.data_store.delete_migrated_key(name, wall_time, captured_key)
    }

    /// Returns whether a command has locked the slot.
    pub(crate) fn is_locked(&self, key_group: KeyGroup) -> bool {
        self.unfinished_writes.values().any(|running| running.key_group == key_group)
    }

    /// Returns the replication id of the current history.
    pub(crate) fn history(&self) -> ReplId {
        self.position().id
    }

    /// Returns the history of the snapshot that is being loaded, if any.
    pub(crate) fn loading_history(&self) -> Option<ReplId> {
        self.snapshot_load.as_ref().map(|load| load.position.id)
    }

    /// Returns the commands that have a slot locked now. After they have ended, every slot has been unlocked at least
    /// once.
    pub(crate) fn running_commands(&self) -> BTreeSet<u64> {
        self.unfinished_writes.keys().copied().collect()
    }

    pub(crate) fn have_commands_ended(&self, commands: &BTreeSet<u64>) -> bool {
        !commands.iter().any(|write| self.unfinished_writes.contains_key(write))
    }
}

fn master_config(settings: &DataSettings) -> master::MasterConfig {
    master::MasterConfig {
        ping_period: Duration::from_secs(1),
        timeout: Duration::from_secs(4),
        is_diskless: settings.is_diskless,
        diskless_delay: Duration::from_millis(20),
        diskless_max_replicas: 0,
        dual_channel: settings.dual_channel,
        backlog_ttl: Duration::from_secs(3600),
        max_lag: Duration::from_secs(10),
        output_limit: OutputLimit {
            hard_bytes: settings.max_lag,
            soft_bytes: 0,
            soft_duration: Duration::ZERO,
        },
        backlog_size: settings.backlog_size,
    }
}
