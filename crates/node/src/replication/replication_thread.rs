//! The replication thread: performs the actions of [`replication::MasterDriver`], and owns the task that follows a
//! master.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use config::keys;
use durability::Durability;
use durability::stream::SharedLog;
use engine::{Client, ClientFlags, ConnectionInfo};
use net::context::NetworkContext;
use net::transport::Socket;
use persistence::Dialect;
use process::stop_signal::StopSignal;
use replication::master::{AwaitedSnapshot, CloseReason, PeerId, TransferId};
use replication::master_driver::{
    self, MasterDriverAction, MasterDriverEvent, NextPendingCheck, PsyncAnswer,
};
use replication::{FullSyncReason, PeerProfile, PsyncRequest, SnapshotFormat, StreamEpoch};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::replica_task::{self, PeerOutput};
use super::transfer::{
    self, MAX_QUEUED_PARTS, PartSender, SnapshotDestination, SnapshotPart, SnapshotRequest,
};
use super::{Replication, follower};

/// How often the admission of commands is updated even without an event, because it depends on the age of
/// acknowledgements.
const GATE_UPDATE_PERIOD: Duration = Duration::from_secs(1);

/// A connection that requested to become a replica (PSYNC or SYNC).
#[derive(Debug)]
pub(crate) struct JoiningReplica {
    pub(crate) id: u64,
    /// The connection's addresses for CLIENT LIST.
    pub(crate) connection_info: ConnectionInfo,
    pub(crate) socket: Socket,
    /// The source address of the connection, to identify the replica.
    pub(crate) source_address: String,
    /// Bytes that were received after the request and not executed.
    pub(crate) unprocessed_input: Vec<u8>,
    pub(crate) unsent_output: Vec<u8>,
    pub(crate) profile: PeerProfile,
    /// The arguments of PSYNC; `None` for SYNC.
    pub(crate) psync_request: Option<PsyncRequest>,
}

/// A message to the replication thread.
#[derive(Debug)]
pub(crate) enum ReplicationEvent {
    ReplicaJoined(Box<JoiningReplica>),
    /// An event for the driver of the master side.
    MasterEvent(MasterDriverEvent),
    /// The node follows its current master with this stream.
    FollowMaster(StreamEpoch),
    StopFollowing,
    /// A client waits until the log is on the disk of this node.
    DiskWaitStarted,
    /// Settings of replication have changed, so deadlines must be computed again.
    SettingsChanged,
    /// DEBUG SLEEP: stop serving the links to replicas and to the master for this long.
    Sleep(Duration),
}

/// Starts the replication thread.
pub(crate) fn spawn_replication_thread(
    replication: Arc<Replication>,
    durability: Arc<Durability>,
    network: &Arc<NetworkContext>,
    stop_signal: StopSignal,
) -> std::io::Result<JoinHandle<()>> {
    let (engine, network) = (replication.engine.clone(), network.clone());
    std::thread::Builder::new().name("replication".to_owned()).spawn(move || {
        net::scratch::install_scratch(&engine, &network);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a thread that cannot get its event loop cannot serve anybody");
        runtime.block_on(run_replication(replication, durability, network, stop_signal));
        // A snapshot may still be written although nobody receives it, so the thread does not wait for it.
        runtime.shutdown_background();
    })
}

async fn run_replication(
    replication: Arc<Replication>,
    durability: Arc<Durability>,
    network: Arc<NetworkContext>,
    stop_signal: StopSignal,
) {
    let inbox = replication.event_receiver.lock().take();
    let mut inbox = inbox.expect("there is one replication thread");
    let (peers, transfers) = (HashMap::new(), HashMap::new());
    let mut thread = ReplicationThread {
        replication: replication.clone(),
        durability,
        network,
        replica_tasks: peers,
        transfers,
        follower_task: None,
    };
    let stopped = stop_signal.wait_until_stopped();
    tokio::pin!(stopped);
    let mut on_disk = replication.synced_log.subscribe();
    loop {
        let (deadline, look) = {
            let serving = replication.master_driver.lock();
            (serving.next_deadline(), serving.next_pending_check())
        };
        let wait =
            deadline.map_or(GATE_UPDATE_PERIOD, |deadline| deadline.since(process::time::monotonic_now()));
        tokio::select! {
            event = inbox.recv() => {
                let Some(event) = event else { return };
                thread.on_event(event);
                // Gates and waiters are updated once for all events that have arrived.
                while let Ok(event) = inbox.try_recv() {
                    thread.on_event(event);
                }
            }
            () = tokio::time::sleep(wait) => thread.process_event(MasterDriverEvent::Deadline),
            () = wait_for_pending_check(look, &replication.log) => thread.check_replicas(),
            () = replication.log.wait_for_trimmed_cursor() => thread.check_replicas(),
            _ = on_disk.changed(), if replication.has_disk_waiter() => {}
            () = &mut stopped => return,
        }
        replication.wake_waiters();
        replication.update_gates();
    }
}

/// Waits until the next check of pending bytes is due, or for ever if none is planned.
async fn wait_for_pending_check(next_check: Option<NextPendingCheck>, log: &SharedLog) {
    let Some(NextPendingCheck { log_end: past, earliest_check_at: at }) = next_check else {
        return std::future::pending().await;
    };
    if let Some(end) = past {
        log.wait_for_growth(|| (log.lock().position().offset != end).then_some(())).await;
    }
    tokio::time::sleep(at.since(process::time::monotonic_now())).await;
}

#[derive(Debug)]
struct ReplicaTask {
    address: String,
    /// The connection's entry in CLIENT LIST.
    client: Arc<Client>,
    output_sender: mpsc::UnboundedSender<PeerOutput>,
    task: AbortHandle,
    /// The parts of a snapshot that are being prepared for this replica.
    snapshot_parts: Option<mpsc::Receiver<SnapshotPart>>,
}

/// A snapshot that is being taken or sent.
#[derive(Debug)]
struct SnapshotTransfer {
    /// Set to cancel the snapshot.
    is_cancelled: Arc<AtomicBool>,
    /// Passes the receivers to a snapshot that is written to a file first. `None` for a streamed snapshot.
    receivers: Option<std::sync::mpsc::Sender<Vec<PartSender>>>,
}

struct ReplicationThread {
    replication: Arc<Replication>,
    durability: Arc<Durability>,
    network: Arc<NetworkContext>,
    replica_tasks: HashMap<PeerId, ReplicaTask>,
    transfers: HashMap<TransferId, SnapshotTransfer>,
    follower_task: Option<AbortHandle>,
}

impl ReplicationThread {
    fn on_event(&mut self, event: ReplicationEvent) {
        match event {
            ReplicationEvent::ReplicaJoined(newcomer) => {
                if let Err(error) = self.add_replica(*newcomer) {
                    tracing::warn!("A replica was lost before it was served: {error}");
                }
            }
            ReplicationEvent::MasterEvent(input) => self.handle_master_event(input),
            ReplicationEvent::FollowMaster(stream) => {
                self.stop_following();
                self.process_event(MasterDriverEvent::Demoted);
                let following =
                    follower::run_follower(self.replication.clone(), self.durability.clone(), stream);
                self.follower_task = Some(tokio::spawn(following).abort_handle());
            }
            ReplicationEvent::StopFollowing => {
                self.stop_following();
                self.process_event(MasterDriverEvent::Promoted);
            }
            ReplicationEvent::Sleep(duration) => std::thread::sleep(duration),
            // These events only wake the loop, which then reads the new deadlines.
            ReplicationEvent::DiskWaitStarted | ReplicationEvent::SettingsChanged => {}
        }
    }

    fn handle_master_event(&mut self, event: MasterDriverEvent) {
        let acknowledged = matches!(event, MasterDriverEvent::Acknowledged { .. });
        match &event {
            MasterDriverEvent::Closed(peer) => {
                if let Some(gone) = self.remove_peer(*peer) {
                    tracing::info!("Connection with replica {} lost.", gone.address);
                }
            }
            MasterDriverEvent::SnapshotSent(peer) => {
                let is_streamed = self.replication.master_driver.lock().master().is_streaming_snapshot();
                if let Some(there) = self.replica_tasks.get(peer).filter(|_| is_streamed) {
                    tracing::info!(
                        "Streamed RDB transfer with replica {} succeeded (socket). Waiting for REPLCONF ACK from \
                         replica to enable streaming",
                        there.address
                    );
                }
            }
            MasterDriverEvent::TransferFailed(transfer) => drop(self.transfers.remove(transfer)),
            _ => {}
        }
        self.process_event(event);
        if acknowledged {
            self.replication.acknowledgements.notify_waiters();
        }
    }

    fn stop_following(&mut self) {
        if let Some(task) = self.follower_task.take() {
            task.abort();
        }
    }

    fn add_replica(&mut self, replica: JoiningReplica) -> std::io::Result<()> {
        let JoiningReplica {
            id,
            connection_info: link,
            socket,
            source_address: address,
            unprocessed_input: input,
            unsent_output: unsent,
            profile,
            psync_request: request,
        } = replica;
        let peer = PeerId(id);
        let host = profile.ip_address.as_ref().unwrap_or(&address);
        let name = format!("{host}:{}", profile.listening_port);
        tracing::info!("Replica {name} asks for synchronization");
        let (orders, sends) = mpsc::unbounded_channel();
        let stream = replica_task::open_stream(&self.replication.config, socket)?;
        let _ = orders.send(PeerOutput::Bytes(unsent));
        let seen = replica_task::register_client(&self.replication.engine, link, ClientFlags::REPLICA);
        let client = seen.client.clone();
        let task =
            tokio::spawn(replica_task::run_peer(self.replication.clone(), peer, seen, stream, input, sends));
        let task = task.abort_handle();
        self.replica_tasks.insert(
            peer,
            ReplicaTask { address: name, client, output_sender: orders, task, snapshot_parts: None },
        );
        self.replication.replica_addresses.lock().insert(peer, address);
        self.process_event(MasterDriverEvent::PsyncReceived { peer, profile, request });
        let awaited = self.replication.master_driver.lock().master().awaited_snapshot(peer);
        match awaited {
            None => {}
            Some(AwaitedSnapshot::Delayed) => tracing::info!("Delay next BGSAVE for diskless SYNC"),
            Some(AwaitedSnapshot::NextAfterStreamed) => {
                tracing::info!("Current BGSAVE has socket target. Waiting for next BGSAVE for SYNC");
            }
            Some(AwaitedSnapshot::NextAfterFile) => tracing::info!(
                "Can't attach the replica to the current BGSAVE. Waiting for next BGSAVE for SYNC"
            ),
            Some(AwaitedSnapshot::JoinedOpenFile) => tracing::info!("Waiting for end of BGSAVE for SYNC"),
        }
        self.replication.replica_connected.notify_one();
        Ok(())
    }

    /// Counts the answer to PSYNC in the statistics, and logs its reason.
    fn record_psync_answer(&self, peer: PeerId, answer: PsyncAnswer) {
        let stats = &self.replication.stats;
        let name = self.replica_tasks.get(&peer).map_or("", |peer| &peer.address);
        match answer {
            PsyncAnswer::Partial { from, missing_bytes: missing } => {
                stats.partial_syncs_accepted.fetch_add(1, Ordering::Relaxed);
                tracing::info!(
                    "Partial resynchronization request from {name} accepted. Sending {missing} bytes of backlog \
                     starting from offset {}.",
                    from.0 + 1
                );
            }
            PsyncAnswer::Full(refusal) => {
                stats.full_syncs.fetch_add(1, Ordering::Relaxed);
                match refusal {
                    None => {}
                    Some(FullSyncReason::Requested) => {
                        tracing::info!("Full resync requested by replica {name}");
                    }
                    Some(refusal) => {
                        stats.partial_syncs_refused.fetch_add(1, Ordering::Relaxed);
                        tracing::info!("Partial resynchronization not accepted from {name}: {refusal}");
                    }
                }
            }
        }
    }

    /// Lets the driver check how many bytes each replica is behind, and throttles writers accordingly.
    fn check_replicas(&mut self) {
        let mut orders = Vec::new();
        let replication = self.replication.clone();
        let now = process::time::monotonic_now();
        let delay = replication.master_driver.lock().check_pending(now, &mut &*replication.log, &mut orders);
        for (id, replica) in replication.master_driver.lock().master().peers() {
            if let Some(peer) = self.replica_tasks.get(&id) {
                peer.client.set_unsent_log_bytes(replica.pending_bytes());
            }
        }
        self.perform_actions(orders);
        let micros = u32::try_from(delay.as_micros()).unwrap_or(u32::MAX);
        let before = replication.write_delay_micros.swap(micros, Ordering::Relaxed);
        if (before == 0) != (micros == 0) {
            let what = if micros == 0 { "no longer slowed down" } else { "slowed down" };
            tracing::warn!("Writers are {what} for a replica that cannot keep up");
        }
    }

    fn process_event(&mut self, event: MasterDriverEvent) {
        let mut orders = Vec::new();
        let Replication { master_driver: serving, log, .. } = &*self.replication;
        let mut machine = serving.lock();
        machine.handle(process::time::monotonic_now(), event, &mut &**log, &mut orders);
        log.set_replica_count(machine.master().peers().len());
        drop(machine);
        self.perform_actions(orders);
    }

    fn perform_actions(&mut self, actions: Vec<MasterDriverAction>) {
        for order in actions {
            self.perform_action(order);
        }
    }

    fn perform_action(&mut self, action: MasterDriverAction) {
        let log = &self.replication.log;
        match action {
            MasterDriverAction::CountPsyncAnswer(peer, answer) => self.record_psync_answer(peer, answer),
            MasterDriverAction::TakeSnapshot { transfer, peers, uses_end_mark: eof, format: form } => {
                self.start_snapshot(transfer, &peers, eof, form);
            }
            MasterDriverAction::CancelSnapshot(transfer) => {
                if let Some(transfer) = self.transfers.remove(&transfer) {
                    transfer.is_cancelled.store(true, Ordering::Relaxed);
                }
            }
            MasterDriverAction::Send(peer, bytes) => self.queue_output(peer, PeerOutput::Bytes(bytes)),
            MasterDriverAction::SendContinue { peer, id } => {
                let states = self.replication.cluster_stream.format_slot_states(&self.replication.engine);
                self.queue_output(peer, PeerOutput::Bytes(master_driver::continue_line(id, &states)));
            }
            MasterDriverAction::SendSnapshot(peer) => {
                if let Some(pieces) =
                    self.replica_tasks.get_mut(&peer).and_then(|peer| peer.snapshot_parts.take())
                {
                    self.queue_output(peer, PeerOutput::Snapshot(pieces));
                }
            }
            MasterDriverAction::SendFile { transfer, peers } => self.send_file(transfer, &peers),
            MasterDriverAction::SendStream(peer, cursor) => {
                if let Some(there) = self.replica_tasks.get(&peer) {
                    tracing::info!("Synchronization with replica {} succeeded", there.address);
                }
                self.queue_output(peer, PeerOutput::Stream(cursor));
            }
            MasterDriverAction::AppendToLog(bytes) => drop(log.append_control(bytes)),
            MasterDriverAction::Close(peer, reason) => self.close_peer(peer, reason),
            MasterDriverAction::CloseLog if log.is_kept_open() => {}
            MasterDriverAction::CloseLog => {
                let seconds = self.replication.config.get(keys::REPL_BACKLOG_TTL).as_secs();
                tracing::info!(
                    "Replication backlog freed after {seconds} seconds without connected replicas."
                );
                log.close();
            }
        }
    }

    fn start_snapshot(
        &mut self,
        transfer: TransferId,
        peers: &[PeerId],
        uses_end_mark: bool,
        format: SnapshotFormat,
    ) {
        let cancelled = Arc::new(AtomicBool::new(false));
        let (to, receivers) = if uses_end_mark {
            let mut receivers = Vec::new();
            for id in peers {
                if let Some(peer) = self.replica_tasks.get_mut(id) {
                    let (sender, pieces) = mpsc::channel(MAX_QUEUED_PARTS);
                    peer.snapshot_parts = Some(pieces);
                    receivers.push(sender);
                }
            }
            (SnapshotDestination::Replicas(receivers), None)
        } else {
            let (sender, receivers) = std::sync::mpsc::channel();
            (SnapshotDestination::File(receivers), Some(sender))
        };
        // Only one snapshot is in progress at a time.
        self.transfers.clear();
        self.transfers.insert(transfer, SnapshotTransfer { is_cancelled: cancelled.clone(), receivers });
        let dialect = match format {
            SnapshotFormat { uses_valkey_format: true, .. } => Dialect::Valkey,
            SnapshotFormat { includes_active_times: true, .. } => Dialect::Redoubt,
            SnapshotFormat { .. } => Dialect::Redis,
        };
        let (contents, peers) = (format.contents, peers.to_vec());
        let target =
            SnapshotRequest { transfer, dialect, contents, peers, destination: to, is_cancelled: cancelled };
        let (replication, durability) = (self.replication.clone(), self.durability.clone());
        // The snapshot needs its own thread, because the thread's scheduling priority is changed.
        let work = move || transfer::run_transfer(&durability, &replication, target);
        if let Err(error) = std::thread::Builder::new().name("sync".to_owned()).spawn(work) {
            tracing::warn!("Can't start a thread for a snapshot: {error}");
            self.replication
                .send_event(ReplicationEvent::MasterEvent(MasterDriverEvent::TransferFailed(transfer)));
        }
    }

    /// Starts sending a completed snapshot file to these replicas.
    fn send_file(&mut self, transfer: TransferId, peers: &[PeerId]) {
        let there = self.transfers.get_mut(&transfer).and_then(|transfer| transfer.receivers.take());
        let Some(there) = there else { return };
        let mut receivers = Vec::new();
        for id in peers {
            let (sender, pieces) = mpsc::channel(MAX_QUEUED_PARTS);
            self.queue_output(*id, PeerOutput::Snapshot(pieces));
            receivers.push(sender);
        }
        // A send error means that the snapshot's thread has failed and has reported that.
        let _ = there.send(receivers);
    }

    /// Queues output for a replica. The replica's task may have ended already; its end is then reported by a queued
    /// event.
    fn queue_output(&self, peer: PeerId, output: PeerOutput) {
        if let Some(peer) = self.replica_tasks.get(&peer) {
            let _ = peer.output_sender.send(output);
        }
    }

    fn close_peer(&mut self, peer: PeerId, reason: CloseReason) {
        if let Some(gone) = self.remove_peer(peer) {
            if reason == CloseReason::TimedOut {
                tracing::warn!("Disconnecting timedout replica (streaming sync): {}", gone.address);
            }
            if reason == CloseReason::TooFarBehind && !gone.client.exceeded_output_limit() {
                self.network.stats.output_limit_disconnections.fetch_add(1, Ordering::Relaxed);
            }
            tracing::warn!("Closing the connection with replica {}: {reason}", gone.address);
            gone.task.abort();
        }
    }

    fn remove_peer(&mut self, id: PeerId) -> Option<ReplicaTask> {
        let peer = self.replica_tasks.remove(&id)?;
        self.replication.replica_addresses.lock().remove(&id);
        self.replication.engine.clients.disconnect(peer.client.id);
        if peer.client.exceeded_output_limit() {
            self.network.stats.output_limit_disconnections.fetch_add(1, Ordering::Relaxed);
        }
        Some(peer)
    }
}
