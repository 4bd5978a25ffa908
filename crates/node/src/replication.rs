//! Runs the state machines of the `replication` crate with real connections, threads and files.
//!
//! One thread with its own event loop does all replication work. A connection that sends PSYNC leaves its worker and
//! becomes a task of this thread ([`replica_task`]). [`replication_thread`] drives the master side and takes snapshots
//! ([`durability::snapshot`]) on helper threads. [`follower`] drives the replica side: it loads the master's snapshots
//! ([`durability::loading`]) and applies its stream ([`apply`]). [`failover`] implements FAILOVER, [`empty_master`] a master
//! that restarted without its data, and [`copy_waiters`] the clients that wait for copies. The log itself is in
//! [`durability::stream`].
//!
//! Role changes go through the log's [`replication::WriteAuthority`]. They are published as gates under the role's
//! lock, in the same order for all threads.
//!
//! Invariant: no snapshot separates an effect from its bytes in the log. Commands append under the locks of their
//! slots. The applier, which logs the master's bytes unchanged, holds the apply lock; a snapshot takes that lock first,
//! then the script lock, then the slots.

pub(crate) mod apply;
mod cluster_stream;
pub(crate) mod copy_waiters;
mod empty_master;
pub(crate) mod failover;
mod follower;
mod info_fields;
mod master_imports;
mod replica_task;
mod replication_thread;
mod snapshot_receiver;
mod transfer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use engine::{CommandSet, Engine, NodeFlags};
use gossip::ReplicaAdmission;
use parking_lot::Mutex;
use replication::master::PeerId;
use replication::master_driver::MasterDriverEvent;
use replication::wait::DiskProgress;
use replication::{
    EmptyMaster, MasterDriver, PeerProfile, PsyncRequest, ReplPosition, ReplconfError, Replica, StreamEpoch,
    master, replica,
};
use slot_routing::ReplOffset;
use snapshot_io::SkippedKeyDeletions;
use tokio::sync::{Notify, mpsc, watch};

use config::{Config, Key, MasterAddress, Text, Values, keys};
use durability::stream::applied::AppliedStream;
use durability::stream::commit_point::CommitPoint;
use durability::stream::{SharedLog, random_repl_id};
use net::context::NetworkContext;
use net::tls::Tls;
use process::adaptive_tick::AdaptiveTick;

use cluster_stream::ClusterStream;
pub(crate) use empty_master::run_replica_recorder as watch_followers;
pub(crate) use info_fields::{write_replication_info, write_role, write_sync_stats};
use master_imports::MasterImports;
pub(crate) use replication_thread::{JoiningReplica, ReplicationEvent, spawn_replication_thread};

#[derive(Debug, Default)]
pub(crate) struct SyncStats {
    pub(crate) full_syncs: AtomicU64,
    pub(crate) partial_syncs_accepted: AtomicU64,
    pub(crate) partial_syncs_refused: AtomicU64,
    /// The number of the master's commands that this replica could not execute.
    pub(crate) unexpected_errors: AtomicU64,
    /// The peak number of stream bytes buffered while a snapshot was being received.
    pub(crate) peak_buffered_bytes: AtomicU64,
    /// Bytes received from the master's stream.
    pub(crate) input_bytes: AtomicU64,
    pub(crate) output_bytes: AtomicU64,
}

impl SyncStats {
    /// Resets the counters (CONFIG RESETSTAT).
    pub(crate) fn reset(&self) {
        let counters = [
            &self.full_syncs,
            &self.partial_syncs_accepted,
            &self.partial_syncs_refused,
            &self.unexpected_errors,
            &self.input_bytes,
            &self.output_bytes,
        ];
        counters.into_iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
}

/// The role of this node and the link to its master.
type NodeRole = replication::ReplicaDriver<MasterAddress>;

/// The state of the link to the master, which FAILOVER watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LinkStatus {
    /// There is no master, or its stream is not being received yet.
    #[default]
    Down,
    /// The master's stream is being received.
    Streaming,
    /// The master refused to serve this node.
    Refused,
}

/// Replication state shared by all threads.
#[derive(Debug)]
pub(crate) struct Replication {
    engine: Arc<Engine>,
    commands: Arc<CommandSet>,
    config: Arc<Config>,
    tls: Arc<Tls>,
    /// The housekeeping tick, which is triggered early when data arrives.
    tick: Arc<AdaptiveTick>,
    pub(crate) log: Arc<SharedLog>,
    pub(crate) commit_point: Arc<CommitPoint>,
    pub(crate) stats: SyncStats,
    /// The part of the replication log that is synced to disk.
    pub(crate) synced_log: watch::Sender<DiskProgress>,
    /// Signalled when a replica has acknowledged a larger offset.
    acknowledgements: Notify,
    pub(crate) link_status: watch::Sender<LinkStatus>,
    master_driver: Mutex<MasterDriver>,
    /// The source address of each replica's connection, by the connection's id.
    replica_addresses: Mutex<std::collections::HashMap<master::PeerId, String>>,
    /// Signalled when a replica connects that the replica list file must include.
    replica_connected: Notify,
    role: Mutex<NodeRole>,
    copy_waiters: Mutex<copy_waiters::CopyWaiters>,
    pub(crate) applied_stream: Arc<AppliedStream>,
    pub(crate) cluster_stream: ClusterStream,
    pub(crate) master_imports: MasterImports,
    /// Whether this node is handing over: it follows one of its replicas, which it has asked to take over.
    is_in_handover: AtomicBool,
    /// Signalled when settings of the link to the master have changed.
    link_config_changed: Notify,
    /// Held while a master's snapshot is being loaded.
    snapshot_load_lock: Arc<tokio::sync::Mutex<()>>,
    /// Held while a batch of the stream is applied, and while one stream replaces another. It may be taken after the
    /// apply lock, and must be taken before the role's lock: a command that reads the role may hold slots that the
    /// batch waits for.
    stream_lock: Mutex<()>,
    /// The replicas that may synchronise from this node.
    pub(crate) replica_admission: ArcSwap<ReplicaAdmission>,
    /// How many microseconds a client waits after each batch with writes, while a replica is too slow.
    pub(crate) write_delay_micros: AtomicU32,
    /// The state of a master that restarted without its data and waits until another node is promoted.
    empty_master: Mutex<Option<EmptyMaster>>,
    /// Whether this node was promoted since the greetings of sentinels were last evaluated.
    was_promoted: AtomicBool,
    event_sender: mpsc::UnboundedSender<ReplicationEvent>,
    event_receiver: Mutex<Option<mpsc::UnboundedReceiver<ReplicationEvent>>>,
}

impl Replication {
    pub(crate) fn new(
        engine: Arc<Engine>,
        commands: Arc<CommandSet>,
        config: Arc<Config>,
        network: &NetworkContext,
        log: Arc<SharedLog>,
    ) -> Self {
        let (tls, tick) = (network.tls.clone(), network.tick.clone());
        let (events, inbox) = mpsc::unbounded_channel();
        Self {
            engine,
            commands,
            tls,
            tick,
            log,
            commit_point: Arc::default(),
            stats: SyncStats::default(),
            synced_log: watch::Sender::default(),
            acknowledgements: Notify::new(),
            link_status: watch::Sender::default(),
            master_driver: Mutex::new(MasterDriver::new(
                read_master_config(&config.values()),
                process::time::monotonic_now(),
            )),
            replica_addresses: Mutex::default(),
            replica_connected: Notify::new(),
            role: Mutex::default(),
            copy_waiters: Mutex::default(),
            applied_stream: Arc::default(),
            cluster_stream: ClusterStream::default(),
            master_imports: MasterImports::default(),
            is_in_handover: AtomicBool::new(false),
            link_config_changed: Notify::new(),
            snapshot_load_lock: Arc::default(),
            stream_lock: Mutex::new(()),
            replica_admission: ArcSwap::default(),
            empty_master: Mutex::default(),
            was_promoted: AtomicBool::new(false),
            write_delay_micros: AtomicU32::new(0),
            event_sender: events,
            event_receiver: Mutex::new(Some(inbox)),
            config,
        }
    }

    /// Replicates the start or end of a slot import to replicas and to the append-only file.
    pub(crate) fn replicate_import(&self, command: &[u8]) {
        self.log.append_control(command);
    }

    /// Sends an event to the replication thread. Events sent after the thread has ended are dropped.
    pub(crate) fn send_event(&self, event: ReplicationEvent) {
        let _ = self.event_sender.send(event);
    }

    /// Prevents this node from following a master and loading its snapshot while the guard is held.
    pub(crate) async fn block_snapshot_loading(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.snapshot_load_lock.clone().lock_owned().await
    }

    /// Starts the replication history after startup. A replica requests the stream from the end of its file on. A
    /// master takes a new replication id, because writes after the end of the file may be lost. Replicas whose offset
    /// is not past the end of the file can continue, and receive the deletions of keys that were not loaded.
    pub(crate) fn begin_history(&self, skipped_keys: &SkippedKeyDeletions) {
        if !self.is_replica() {
            self.rename_history();
            self.log_skipped_keys(skipped_keys);
        }
    }

    /// Logs the deletion of keys that were skipped during the load. If these deletions exceed the backlog, no replica
    /// can continue from an older position.
    pub(crate) fn log_skipped_keys(&self, skipped_keys: &SkippedKeyDeletions) {
        match skipped_keys.commands_by_database() {
            Some(commands) => commands.iter().for_each(|(db, commands)| self.log.append(*db, commands)),
            None => {
                self.log.lock().start_new_history(random_repl_id());
                self.send_event(ReplicationEvent::MasterEvent(MasterDriverEvent::HistoryReplaced));
            }
        }
    }

    /// Passes changed settings to the state machines of both roles.
    pub(crate) fn apply_config(&self) {
        let config = &self.config;
        let master = read_master_config(&config.values());
        {
            let mut log = self.log.lock();
            log.set_capacity(config.get(keys::REPL_BACKLOG_SIZE));
            log.set_cursor_bound(master.output_limit.hard_bytes);
        }
        self.master_driver.lock().set_config(master);
        self.role.lock().set_config(self.current_replica_config());
        self.link_config_changed.notify_one();
        self.send_event(ReplicationEvent::SettingsChanged);
        self.log.wake_readers();
        self.update_gates();
    }

    /// Returns the offset of this node: the end of the log on a master, the applied part of the stream on a replica.
    pub(crate) fn current_offset(&self) -> ReplOffset {
        self.log.lock().position().offset
    }

    /// Waits until the offset of this node has reached `offset`, or for ever if `offset` is `None`.
    pub(crate) async fn wait_for_offset(&self, offset: Option<ReplOffset>) {
        match offset {
            Some(offset) => {
                self.log.wait_for_growth(|| (self.current_offset() >= offset).then_some(())).await;
            }
            None => std::future::pending().await,
        }
    }

    pub(crate) fn is_replica(&self) -> bool {
        self.role.lock().master().is_some()
    }

    /// Returns the master of `stream`; `None` if another stream has replaced it.
    fn master_of_stream(&self, stream_epoch: StreamEpoch) -> Option<MasterAddress> {
        let role = self.role.lock();
        role.master().filter(|_| role.stream() == Some(stream_epoch)).cloned()
    }

    /// Returns whether this node receives every change of its master. True for a master.
    pub(crate) fn is_in_sync(&self) -> bool {
        self.role.lock().is_in_sync()
    }

    /// Returns how many bytes of the stream wait for a snapshot to be loaded.
    pub(crate) fn buffered_bytes(&self) -> u64 {
        self.role.lock().replica().map_or(0, Replica::buffered_bytes)
    }

    /// Returns when the link to the master went down. `None` while the link is up, and on a master.
    pub(crate) fn link_down_since(&self) -> Option<clock::Instant> {
        self.role.lock().replica()?.down_since()
    }

    /// Returns when data was last received from the master; `None` on a master.
    pub(crate) fn last_master_contact(&self) -> Option<clock::Instant> {
        self.role.lock().replica().map(Replica::last_heard_at)
    }

    /// Counts commands that this replica could not execute, because the master runs different software or a newer
    /// version.
    fn count_unapplied_commands(&self, count: u64) {
        self.stats.unexpected_errors.fetch_add(count, Ordering::Relaxed);
        self.applied_stream.count_missing_changes(count);
    }

    /// Returns how many of its master's commands this replica could not execute. If there are any, the data may differ,
    /// and the replica takes over only when forced.
    pub(crate) fn unapplied_commands(&self) -> u64 {
        self.applied_stream.missing_changes()
    }

    /// Returns whether this node is a replica that has loaded its master's data, however old that data is.
    pub(crate) fn has_data(&self) -> bool {
        self.role.lock().has_data(&self.log.lock())
    }

    /// Returns the offset by which replicas are ranked in a failover.
    pub(crate) fn failover_offset(&self) -> ReplOffset {
        self.role.lock().failover_offset(&self.log.lock())
    }

    /// Returns whether this node can serve the replica that sends this request. Its data must belong to a history, and
    /// must not end before the replica's.
    pub(crate) fn can_serve_replica(&self, psync_request: Option<&PsyncRequest>) -> bool {
        let may = match **self.replica_admission.load() {
            ReplicaAdmission::All => true,
            ReplicaAdmission::OnlyEmpty => !psync_request.is_some_and(PsyncRequest::has_data),
            ReplicaAdmission::None => false,
        };
        may && self.is_in_sync()
    }

    /// Returns whether a replica with this request must fetch its snapshot over a second connection. The requesting
    /// connection then stays a normal client.
    pub(crate) fn needs_rdb_channel(&self, psync_request: &PsyncRequest, profile: &PeerProfile) -> bool {
        let refusal = self.master_driver.lock().needs_rdb_channel(&mut &*self.log, psync_request, profile);
        let Some(refusal) = refusal else { return false };
        if refusal != replication::FullSyncReason::Requested {
            self.stats.partial_syncs_refused.fetch_add(1, Ordering::Relaxed);
        }
        tracing::info!(
            "A replica with port {} can take a full resync over two channels, and needs one: {refusal}",
            profile.listening_port
        );
        true
    }

    /// Marks a connection as the stream connection of a replica that receives its snapshot over `rdb_connection`.
    pub(crate) fn link_channels(
        &self,
        profile: &mut PeerProfile,
        rdb_connection: PeerId,
    ) -> Result<(), ReplconfError> {
        self.master_driver.lock().link_channels(profile, rdb_connection)
    }

    /// Starts to follow `master`. Returns false if this node already follows that master.
    pub(crate) fn become_replica_of(&self, master: MasterAddress) -> bool {
        self.set_master(master, false, false)
    }

    /// Like [`Self::become_replica_of`], for a node whose data does not come from that master's history.
    pub(crate) fn become_foreign_replica_of(&self, master: MasterAddress) -> bool {
        self.set_master(master, false, true)
    }

    /// Follows the master that `replicaof` in the configuration names, if there is one.
    pub(crate) fn follow_configured_master(&self) {
        if let Some(master) = self.config.get(keys::REPLICAOF) {
            self.become_replica_of(master);
        }
    }

    /// Follows a replica of this node and asks it to take over. [`Self::complete_handover`] completes the handover.
    pub(crate) fn hand_over_to(&self, replica: MasterAddress) {
        self.set_master(replica, true, false);
    }

    /// Completes a handover after the replica has become the master.
    pub(crate) fn complete_handover(&self) {
        self.is_in_handover.store(false, Ordering::Relaxed);
        self.apply_config();
        self.engine.unblock_all_waiters();
    }

    fn is_handing_over(&self) -> bool {
        self.is_in_handover.load(Ordering::Relaxed)
    }

    fn current_replica_config(&self) -> replica::ReplicaConfig {
        replica::ReplicaConfig {
            requests_takeover: self.is_handing_over(),
            ..read_replica_config(&self.config.values(), &self.engine)
        }
    }

    fn set_master(&self, master: MasterAddress, is_failover: bool, is_foreign: bool) -> bool {
        let _stream_turn = self.stream_lock.lock();
        let mut role = self.role.lock();
        let before = self.is_in_handover.swap(is_failover, Ordering::Relaxed);
        let keeps_history = role.master().is_none() && self.log.lock().is_open();
        // Until the role is published, a write may be executed without being logged, so its reply must not be sent.
        self.commit_point.end_history();
        let stream = role.follow(
            process::time::monotonic_now(),
            master,
            self.current_replica_config(),
            &mut &*self.log,
        );
        if stream.is_none() {
            self.is_in_handover.store(before, Ordering::Relaxed);
            self.commit_point.begin_history();
        }
        let Some(stream) = stream else { return false };
        if keeps_history {
            tracing::info!(
                "Before turning into a replica, using my own primary parameters to synthesize a cached primary: I may \
                 be able to synchronize with the new primary with just a partial transfer."
            );
        }
        if is_foreign {
            role.mark_data_foreign();
        }
        self.stop_empty_wait();
        self.publish_role(&role);
        self.commit_point.begin_history();
        self.send_event(ReplicationEvent::FollowMaster(stream));
        true
    }

    /// Makes this node a master. The old master's stream ends before the first write. The history continues under a new
    /// id, and replicas of the old master can continue here up to the position of this node. Returns false if this node
    /// was a master already.
    pub(crate) fn become_master(&self) -> bool {
        let _stream_turn = self.stream_lock.lock();
        let mut role = self.role.lock();
        let ReplPosition { id, offset } = self.log.lock().position();
        if !role.promote(random_repl_id(), &mut &*self.log) {
            return false;
        }
        self.is_in_handover.store(false, Ordering::Relaxed);
        let log = self.log.lock();
        if log.is_open() {
            tracing::info!(
                "Setting secondary replication ID to {id}, valid up to offset: {}. New replication ID is {}",
                offset.0 + 1,
                log.position().id
            );
        }
        drop(log);
        tracing::info!("Discarding previously cached primary state.");
        let unapplied = self.applied_stream.reset_missing_changes();
        if unapplied > 0 {
            tracing::error!("== CRITICAL == A master now, without {unapplied} changes that its master made");
        }
        self.publish_role(&role);
        self.send_event(ReplicationEvent::StopFollowing);
        true
    }

    /// Changes the replication id (DEBUG CHANGE-REPL-ID).
    pub(crate) fn change_replication_id(&self) {
        tracing::info!("Changing replication IDs after receiving DEBUG change-repl-id");
        self.rename_history();
    }

    /// Gives the history a new id. Replicas reconnect and continue with a partial synchronization.
    fn rename_history(&self) {
        let mut log = self.log.lock();
        if log.is_open() {
            log.change_id(random_repl_id());
            drop(log);
            self.send_event(ReplicationEvent::MasterEvent(MasterDriverEvent::HistoryReplaced));
        }
    }

    /// Starts a new history after data was deleted without being logged. All replicas then need a full synchronization,
    /// and the append-only file is rewritten.
    pub(crate) fn start_new_history(&self) {
        self.log.close();
    }

    /// Publishes to the engine the role of this node, and the commands that replication requires the engine to refuse.
    pub(crate) fn update_gates(&self) {
        self.publish_role(&self.role.lock());
    }

    /// Publishes `role`. The caller holds the role's lock, so that concurrent changes are published in order.
    fn publish_role(&self, role: &NodeRole) {
        let (config, settings) = (&self.config, &self.engine.settings);
        let (replica, up, following) = match role.followed_master() {
            None => (false, true, LinkStatus::Down),
            Some((MasterAddress { host, port }, machine)) => {
                // The address is stored first, because a command reads it after it has seen the gate.
                settings.routing.redirect_to.store(Arc::new(format!("{host}:{port}")));
                match machine.link_state() {
                    replica::LinkState::Connected => (true, true, LinkStatus::Streaming),
                    _ if machine.is_psync_refused() => (true, false, LinkStatus::Refused),
                    _ => (true, false, LinkStatus::Down),
                }
            }
        };
        self.link_status.send_if_modified(|was| std::mem::replace(was, following) != following);
        process::log::set_role_letter(if replica { b'S' } else { b'M' });
        let values = config.values();
        let wanted = values[keys::MIN_REPLICAS_TO_WRITE];
        let short = wanted > 0
            && !values[keys::MIN_REPLICAS_MAX_LAG].is_zero()
            && !replica
            && self.master_driver.lock().master().good_replica_count(process::time::monotonic_now()) < wanted;
        let states = [
            (NodeFlags::REPLICA, replica),
            (NodeFlags::REDIRECTS, replica && self.engine.topology.is_none()),
            (NodeFlags::READ_ONLY_REPLICA, replica && values[keys::REPLICA_READ_ONLY]),
            (NodeFlags::MASTER_DOWN, replica && !up && !values[keys::REPLICA_SERVE_STALE_DATA]),
            (NodeFlags::NO_REPLICAS, short),
            (NodeFlags::EMPTY_MASTER, !replica && self.empty_master.lock().is_some()),
        ];
        let holding = states.iter().filter(|(_, holds)| *holds).map(|(gate, _)| *gate).collect();
        settings.set_node_flags(states.iter().map(|(gate, _)| *gate).collect(), holding);
    }

    /// Returns the address of each replica, and whether the replica is online.
    pub(crate) fn list_replicas(&self) -> Vec<(MasterAddress, bool)> {
        self.select_replicas(|peer| peer.is_online())
    }

    /// Returns the replicas that have acknowledged the whole log.
    pub(crate) fn replicas_in_sync(&self) -> Vec<MasterAddress> {
        let offset = self.current_offset();
        let all = self.select_replicas(|peer| peer.is_online() && peer.has_acknowledged(offset));
        all.into_iter().filter(|(_, synced)| *synced).map(|(address, _)| address).collect()
    }

    fn select_replicas(
        &self,
        is_included: impl Fn(&master::ConnectedReplica) -> bool,
    ) -> Vec<(MasterAddress, bool)> {
        let addresses = self.replica_addresses.lock();
        let serving = self.master_driver.lock();
        let mut each: Vec<(MasterAddress, bool)> = Vec::new();
        for (id, peer) in serving.master().peers() {
            let host = peer.profile.ip_address.as_ref().or(addresses.get(&id)).cloned().unwrap_or_default();
            let address = MasterAddress { host, port: peer.profile.listening_port };
            // A replica may reconnect before its old connection times out, so only its last connection counts.
            match each.iter_mut().find(|(known, _)| *known == address) {
                Some((_, former)) => *former = is_included(peer),
                None => each.push((address, is_included(peer))),
            }
        }
        each
    }

    pub(crate) fn request_acknowledgements(&self) {
        self.log.request_acknowledgements();
    }

    /// Returns the number of replicas that can acknowledge writes.
    pub(crate) fn count_acknowledging_replicas(&self) -> usize {
        self.master_driver.lock().master().online_replicas().count()
    }

    /// Returns the number of replicas that a shutdown waits for.
    pub(crate) fn count_shutdown_replicas(&self) -> usize {
        self.master_driver.lock().master().replicas_awaited_at_shutdown()
    }
}

fn read_master_config(values: &Values) -> master::MasterConfig {
    let limit = values[keys::CLIENT_OUTPUT_BUFFER_LIMIT].replica;
    master::MasterConfig {
        ping_period: values[keys::REPL_PING_REPLICA_PERIOD],
        timeout: values[keys::REPL_TIMEOUT],
        is_diskless: values[keys::REPL_DISKLESS_SYNC],
        diskless_delay: values[keys::REPL_DISKLESS_SYNC_DELAY],
        dual_channel: values[keys::DUAL_CHANNEL_REPLICATION_ENABLED],
        diskless_max_replicas: values[keys::REPL_DISKLESS_SYNC_MAX_REPLICAS],
        backlog_ttl: values[keys::REPL_BACKLOG_TTL],
        max_lag: values[keys::MIN_REPLICAS_MAX_LAG],
        output_limit: master::OutputLimit {
            hard_bytes: limit.hard_limit as u64,
            soft_bytes: limit.soft_limit as u64,
            soft_duration: limit.soft_duration,
        },
        backlog_size: values[keys::REPL_BACKLOG_SIZE],
    }
}

fn read_replica_config(values: &Values, engine: &Engine) -> replica::ReplicaConfig {
    let tls = values[keys::TLS_REPLICATION] && values[keys::TLS_PORT] != 0;
    let listening = values[if tls { keys::TLS_PORT } else { keys::PORT }];
    let bytes = |key: Key<Option<Text>>| values[key].as_ref().map(|text| text.as_bytes().to_vec());
    replica::ReplicaConfig {
        listening_port: values[keys::REPLICA_ANNOUNCE_PORT].unwrap_or(listening),
        announce_ip: values[keys::REPLICA_ANNOUNCE_IP].as_ref().map(Text::to_string),
        node_id: engine.topology.as_ref().map(|topology| topology.load().myself),
        user: bytes(keys::MASTERUSER),
        password: bytes(keys::MASTERAUTH),
        timeout: values[keys::REPL_TIMEOUT],
        requests_takeover: false,
        dual_channel: values[keys::DUAL_CHANNEL_REPLICATION_ENABLED],
        buffer_limit: values[keys::CLIENT_OUTPUT_BUFFER_LIMIT].replica.hard_limit as u64,
    }
}

/// The properties that a connection has announced by REPLCONF. Most connections never send any.
pub(crate) type SessionProfile = Option<Box<PeerProfile>>;
