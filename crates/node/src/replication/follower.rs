//! Follows a master: performs the actions of [`replication::ReplicaDriver`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use config::{MasterAddress, keys};
use durability::Durability;
use engine::{ClientFlags, Engine, NodeFlags, PausePurpose};
use net::dialer::{DialError, Dialer};
use net::transport::Stream;
use replication::replica::{LinkError, RdbChannelAction, RdbChannelEvent, ReplicaAction, ReplicaEvent};
use replication::replica_driver::{ReplicaDriverAction, ReplicaDriverEvent};
use replication::{ReplPosition, Replica, StreamEpoch, master_driver};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::Replication;
use super::apply::{ApplyError, StreamApplier};
use super::replica_task;
use super::replication_thread::ReplicationEvent;
use super::snapshot_receiver::{LoadOutcome, ReceiveError, SnapshotReceiver};

/// The maximum number of stream bytes read at once.
const READ_CHUNK_BYTES: usize = 64 * 1024;

/// How often a paused stream checks whether CLIENT PAUSE has ended.
const PAUSE_CHECK_PERIOD: Duration = Duration::from_millis(20);
const MAX_PAUSED_BYTES: usize = 16 << 20;

/// Follows the master of `stream` until the task is aborted, which is safe at every await point.
pub(super) async fn run_follower(
    replication: Arc<Replication>,
    durability: Arc<Durability>,
    stream_epoch: StreamEpoch,
) {
    // The role has changed again, so this task is about to be aborted.
    let Some(master) = replication.master_of_stream(stream_epoch) else { return };
    tracing::info!("Connecting to PRIMARY {}:{}", master.host, master.port);
    // An earlier follower may still be loading a snapshot. Its result determines the position of the data, so wait for
    // it.
    let loading = replication.snapshot_load_lock.clone();
    drop(loading.lock().await);
    // Every write that was admitted while this node was a master is in the log after this call.
    replication.engine.wait_for_admitted_commands();
    if !replication.is_handing_over() {
        // During a handover, blocked clients are only disconnected once the handover has succeeded.
        replication.engine.unblock_all_waiters();
    }
    let applier = StreamApplier::new(replication.clone(), stream_epoch);
    let (link, rdb, snapshot, loading) = (None, None, None, None);
    let paused = PausedStream::default();
    let mut follower = Follower {
        replication,
        durability,
        master,
        stream: stream_epoch,
        applier,
        link,
        rdb_link: rdb,
        snapshot_receiver: snapshot,
        running_load: loading,
        paused_stream: paused,
    };
    let mut inputs = vec![ReplicaDriverEvent::WritesDrained];
    loop {
        while let Some(input) = inputs.pop() {
            let Some(came) = follower.process_event(input).await else { return };
            // `inputs` is a stack, so events are pushed in reverse order.
            inputs.extend(came.into_iter().rev().map(ReplicaDriverEvent::LinkEvent));
        }
        let applied = follower.apply_paused_batch();
        if applied.is_empty() {
            inputs.push(ReplicaDriverEvent::LinkEvent(follower.next_event().await));
        }
        inputs.extend(applied.into_iter().rev().map(ReplicaDriverEvent::LinkEvent));
    }
}

/// The part of the stream received while CLIENT PAUSE is active. The pause also delays the master's writes.
#[derive(Default)]
struct PausedStream {
    batches: VecDeque<Vec<u8>>,
    byte_count: usize,
}

struct Follower {
    replication: Arc<Replication>,
    durability: Arc<Durability>,
    master: MasterAddress,
    stream: StreamEpoch,
    applier: StreamApplier,
    link: Option<MasterLink>,
    /// The connection that transfers the snapshot, for dual-channel replication.
    rdb_link: Option<MasterLink>,
    /// Receives the snapshot during a full synchronization.
    snapshot_receiver: Option<SnapshotReceiver>,
    /// The helper thread that loads a complete snapshot.
    running_load: Option<JoinHandle<LoadOutcome>>,
    paused_stream: PausedStream,
}

/// The connection to the master. It is listed in CLIENT LIST while it exists.
struct MasterLink {
    engine: Arc<Engine>,
    stream: Stream,
    registration: replica_task::ClientRegistration,
}

impl MasterLink {
    fn new(engine: &Arc<Engine>, stream: Stream) -> std::io::Result<Self> {
        let seen = replica_task::register_client(engine, stream.connection_info()?, ClientFlags::MASTER);
        Ok(Self { engine: engine.clone(), stream, registration: seen })
    }

    /// Reads available bytes. Returns `None` if the connection is closed.
    async fn read_available(&mut self) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(READ_CHUNK_BYTES);
        tokio::select! {
            read = self.stream.read_buf(&mut bytes) => match read {
                Ok(0) | Err(_) => {
                    tracing::warn!("Connection with primary lost.");
                    None
                }
                Ok(_) => Some(bytes),
            },
            () = self.registration.wait_until_killed() => {
                tracing::warn!("Connection with primary closed by a client.");
                None
            }
        }
    }
}

/// Returns whether the master's error reports a wrong password rather than a missing one.
fn is_wrong_password_error(text: &str) -> bool {
    ["WRONGPASS", "ERR AUTH", "ERR invalid password"].iter().any(|beginning| text.starts_with(beginning))
}

/// Reads from a connection. Waits for ever if there is none or `is_allowed` is false.
async fn read_if_allowed(link: &mut Option<MasterLink>, is_allowed: bool) -> Option<Vec<u8>> {
    match link {
        Some(link) if is_allowed => link.read_available().await,
        Some(link) => {
            link.registration.wait_until_killed().await;
            None
        }
        None => std::future::pending().await,
    }
}

/// Waits until the snapshot is loaded, or for ever if no load is running.
async fn wait_for_load(load: &mut Option<JoinHandle<LoadOutcome>>) -> ReplicaEvent {
    let Some(running) = load else { return std::future::pending().await };
    let outcome = running.await.unwrap_or(LoadOutcome::DataLost);
    *load = None;
    match outcome {
        LoadOutcome::Loaded => ReplicaEvent::Loaded,
        LoadOutcome::Rejected => ReplicaEvent::LoadRejected,
        LoadOutcome::DataLost => ReplicaEvent::LoadFailed,
    }
}

/// Returns whether writes to disk fail and the replica must therefore stop (`replica-ignore-disk-write-errors no`).
fn is_disk_failing(replication: &Replication) -> bool {
    let failed = NodeFlags::MISCONF.union(NodeFlags::AOF_FAILED);
    replication.engine.settings.node_flags().intersects(failed)
        && !replication.config.get(keys::REPLICA_IGNORE_DISK_WRITE_ERRORS)
}

impl Drop for MasterLink {
    fn drop(&mut self) {
        self.engine.clients.disconnect(self.registration.client.id);
    }
}

impl Follower {
    async fn next_event(&mut self) -> ReplicaEvent {
        // While the disk cannot be written, the stream is not read.
        let (replication, stream) = (self.replication.clone(), self.stream);
        let log = &replication.log;
        let applies = || log.lock().authority().accepts_stream(stream).then_some(());
        if applies().is_none() {
            log.wait_for_growth(applies).await;
        }
        if self.running_load.is_none() && is_disk_failing(&replication) {
            if self.link.is_some() {
                tracing::warn!("Leaving the master: what it sends cannot be written to the disk");
                return self.close_links();
            }
            log.wait_for_growth(|| (!is_disk_failing(&replication)).then_some(())).await;
        }
        let (deadline, reads) = {
            let role = replication.role.lock();
            (role.next_deadline(stream), [role.should_read(stream), role.should_read_rdb_channel(stream)])
        };
        let now = process::time::monotonic_now();
        let mut wait = deadline.map_or(Duration::from_secs(1), |deadline| deadline.since(now));
        if !self.paused_stream.batches.is_empty() {
            wait = wait.min(PAUSE_CHECK_PERIOD);
        }
        let reads = [reads[0] && self.paused_stream.byte_count < MAX_PAUSED_BYTES, reads[1]];
        tokio::select! {
            loaded = wait_for_load(&mut self.running_load) => {
                self.applier.reset_after_snapshot();
                loaded
            }
            read = read_if_allowed(&mut self.link, reads[0]) => self.on_read(read),
            read = read_if_allowed(&mut self.rdb_link, reads[1]) => ReplicaEvent::RdbChannel(match read {
                Some(bytes) => {
                    self.count_received_bytes(&bytes);
                    RdbChannelEvent::Received(bytes)
                }
                None => {
                    self.rdb_link = None;
                    RdbChannelEvent::Closed
                }
            }),
            () = tokio::time::sleep(wait) => ReplicaEvent::Deadline,
            // A changed setting may have moved the deadline.
            () = replication.link_config_changed.notified() => ReplicaEvent::Deadline,
        }
    }

    fn on_read(&mut self, received: Option<Vec<u8>>) -> ReplicaEvent {
        match received {
            Some(bytes) => {
                self.count_received_bytes(&bytes);
                ReplicaEvent::Received(bytes)
            }
            None => {
                self.link = None;
                self.paused_stream = PausedStream::default();
                if self.replication.log.lock().is_open() {
                    tracing::info!("Caching the disconnected primary state.");
                }
                tracing::info!("Reconnecting to PRIMARY {}:{}", self.master.host, self.master.port);
                ReplicaEvent::Closed
            }
        }
    }

    fn count_received_bytes(&self, bytes: &[u8]) {
        if let Some(link) = &self.link {
            link.registration.client.count_input_bytes(bytes.len());
        }
        self.replication.stats.input_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.replication.tick.notify_input();
    }

    fn close_links(&mut self) -> ReplicaEvent {
        (self.link, self.rdb_link) = (None, None);
        self.snapshot_receiver = None;
        self.paused_stream = PausedStream::default();
        ReplicaEvent::Closed
    }

    /// Passes an event to the driver and performs the resulting actions. Returns the events that result from them;
    /// `None` if another stream has replaced this one.
    async fn process_event(&mut self, event: ReplicaDriverEvent) -> Option<Vec<ReplicaEvent>> {
        if event == ReplicaDriverEvent::LinkEvent(ReplicaEvent::Closed) {
            // Dropping the receiver tells the loader that no more bytes will come.
            self.snapshot_receiver = None;
        }
        let mut orders = Vec::new();
        let synced = self.durability.append_only.disk_progress().end_offset();
        let held = {
            let mut role = self.replication.role.lock();
            role.set_fsynced_offset(synced);
            let log = &mut &*self.replication.log;
            role.handle(process::time::monotonic_now(), self.stream, event, log, &mut orders);
            role.replica().map_or(0, Replica::buffered_bytes)
        };
        if held > 0 {
            self.replication.stats.peak_buffered_bytes.fetch_max(held, Ordering::Relaxed);
            // This thread also serves replicas, so it yields between batches.
            tokio::task::yield_now().await;
        }
        let mut inputs = Vec::new();
        for order in orders {
            match order {
                ReplicaDriverAction::StreamSuperseded => return None,
                ReplicaDriverAction::HistoryReplaced => {
                    self.replication.send_event(ReplicationEvent::MasterEvent(
                        master_driver::MasterDriverEvent::HistoryReplaced,
                    ));
                }
                ReplicaDriverAction::LinkAction(action) => inputs.extend(self.perform_action(action).await),
            }
        }
        self.replication.update_gates();
        Some(inputs)
    }

    async fn perform_action(&mut self, action: ReplicaAction) -> Vec<ReplicaEvent> {
        match action {
            ReplicaAction::Connect => vec![self.connect_to_master().await],
            ReplicaAction::Close(reason) => {
                self.log_link_error(&reason);
                self.close_links();
                vec![]
            }
            ReplicaAction::RdbChannel(action) => self
                .perform_rdb_channel_action(action)
                .await
                .map(ReplicaEvent::RdbChannel)
                .into_iter()
                .collect(),
            ReplicaAction::Send(bytes) => self.send_to_master(&bytes).await.into_iter().collect(),
            ReplicaAction::BeginTransfer { position, len } => {
                tracing::info!("Full resync from primary: {}:{}", position.id, position.offset);
                self.start_transfer(position, len).await.into_iter().collect()
            }
            ReplicaAction::SnapshotBytes(bytes) => {
                self.receive_snapshot_bytes(bytes).await.into_iter().collect()
            }
            ReplicaAction::LoadSnapshot { position } => {
                self.load_snapshot(position).await.into_iter().collect()
            }
            ReplicaAction::Resume { slot_states, .. } => {
                if let Some(states) = slot_states {
                    self.replication.cluster_stream.replace_slot_states(&states);
                }
                tracing::info!("Successful partial resynchronization with primary.");
                tracing::info!("PRIMARY <-> REPLICA sync: Primary accepted a Partial Resynchronization.");
                vec![]
            }
            ReplicaAction::LinkUp => {
                tracing::info!("PRIMARY <-> REPLICA sync: the link is up");
                vec![]
            }
            ReplicaAction::StreamBytes(bytes) => self.apply_or_postpone(bytes),
        }
    }

    /// Logs why the link is closed. If the master refused this node, the text is Valkey's, because operators search for
    /// it.
    fn log_link_error(&self, reason: &LinkError) {
        match reason {
            LinkError::Refused(text) if is_wrong_password_error(text) => {
                tracing::warn!("Unable to AUTH to PRIMARY: -{text}");
            }
            LinkError::Refused(text) => {
                tracing::warn!("PRIMARY aborted replication with an error: {text}");
            }
            LinkError::TimedOut => tracing::warn!("{}", self.timeout_message()),
            LinkError::MalformedReply(_) | LinkError::LoadFailed | LinkError::RdbChannelLost => {}
        }
        tracing::warn!("Leaving the master {}:{}: {reason}", self.master.host, self.master.port);
    }

    /// Returns Valkey's log message for a timeout in the current phase.
    fn timeout_message(&self) -> &'static str {
        match (&self.link, &self.snapshot_receiver) {
            (None, _) => "Timeout connecting to the PRIMARY...",
            (Some(_), Some(_)) => {
                "Timeout receiving bulk data from PRIMARY... If the problem persists try to set the 'repl-timeout' \
                 parameter to a larger value."
            }
            (Some(_), None) => "PRIMARY timeout: no data nor PING received...",
        }
    }

    async fn connect_to_master(&mut self) -> ReplicaEvent {
        self.link = None;
        tracing::info!("PRIMARY <-> REPLICA sync started");
        match self.dial_master().await {
            Ok(link) => {
                tracing::info!("Non blocking connect for SYNC fired the event.");
                self.applier.on_reconnect(link.registration.client.connection.clone());
                self.paused_stream = PausedStream::default();
                self.link = Some(link);
                self.log_sync_request();
                ReplicaEvent::Connected
            }
            Err(error) => {
                tracing::warn!("Error condition on socket for SYNC: {error}");
                ReplicaEvent::ConnectFailed { is_refused: error.is_refused() }
            }
        }
    }

    /// Logs from which position the stream is requested.
    fn log_sync_request(&self) {
        let log = self.replication.log.lock();
        if log.is_open() {
            let ReplPosition { id, offset } = log.position();
            tracing::info!("Trying a partial resynchronization (request {id}:{}).", offset.0 + 1);
        } else {
            tracing::info!("Partial resynchronization not possible (no cached primary)");
        }
    }

    async fn dial_master(&self) -> Result<MasterLink, DialError> {
        let address = (self.master.host.as_str(), self.master.port);
        let replication = &self.replication;
        let dialer = Dialer::with_link_tls(&replication.config, &replication.tls, keys::TLS_REPLICATION);
        let stream = dialer.dial(address, self.link_timeout()).await?;
        Ok(MasterLink::new(&replication.engine, stream)?)
    }

    fn link_timeout(&self) -> Duration {
        self.replication.config.get(keys::REPL_TIMEOUT)
    }

    async fn perform_rdb_channel_action(&mut self, action: RdbChannelAction) -> Option<RdbChannelEvent> {
        match action {
            RdbChannelAction::Connect => match self.dial_master().await {
                Ok(link) => {
                    tracing::info!("PRIMARY <-> REPLICA sync: the snapshot comes over a second connection");
                    self.rdb_link = Some(link);
                    Some(RdbChannelEvent::Connected)
                }
                Err(error) => {
                    tracing::warn!("No second connection to the master: {error}");
                    Some(RdbChannelEvent::Closed)
                }
            },
            RdbChannelAction::Send(bytes) => {
                let timeout = self.link_timeout();
                let sent = write_all(&mut self.rdb_link.as_mut()?.stream, &bytes, timeout).await;
                if !sent {
                    self.rdb_link = None;
                }
                (!sent).then_some(RdbChannelEvent::Closed)
            }
            RdbChannelAction::Close => {
                self.rdb_link = None;
                None
            }
        }
    }

    async fn send_to_master(&mut self, bytes: &[u8]) -> Option<ReplicaEvent> {
        let timeout = self.link_timeout();
        if write_all(&mut self.link.as_mut()?.stream, bytes, timeout).await {
            return None;
        }
        self.link = None;
        Some(ReplicaEvent::Closed)
    }

    async fn start_transfer(&mut self, position: ReplPosition, len: Option<u64>) -> Option<ReplicaEvent> {
        match SnapshotReceiver::start(&self.replication, &self.durability, position, len).await {
            Ok(intake) => {
                let into = intake.log_name();
                match len {
                    Some(len) => {
                        tracing::info!(
                            "PRIMARY <-> REPLICA sync: receiving {len} bytes from primary to {into}"
                        );
                    }
                    None => tracing::info!(
                        "PRIMARY <-> REPLICA sync: receiving streamed RDB from primary with EOF to {into}"
                    ),
                }
                let replaces = intake.drops_old_data();
                self.snapshot_receiver = Some(intake);
                replaces.then_some(ReplicaEvent::ReplacingData)
            }
            Err(error) => self.abort_transfer(&error.to_string()),
        }
    }

    async fn receive_snapshot_bytes(&mut self, bytes: Vec<u8>) -> Option<ReplicaEvent> {
        let error = self.snapshot_receiver.as_mut()?.receive(bytes).await.err()?;
        Some(self.discard_snapshot(error).await)
    }

    /// Discards a snapshot that cannot be loaded, and closes the link.
    async fn discard_snapshot(&mut self, error: ReceiveError) -> ReplicaEvent {
        let mut loading = self.snapshot_receiver.take().and_then(SnapshotReceiver::abort);
        self.abort_transfer(&error.to_string());
        match &mut loading {
            Some(_) => wait_for_load(&mut loading).await,
            None => ReplicaEvent::LoadRejected,
        }
    }

    fn abort_transfer(&mut self, reason: &str) -> Option<ReplicaEvent> {
        tracing::warn!("{reason}");
        Some(self.close_links())
    }

    /// Starts a helper thread that replaces the data by the received snapshot.
    async fn load_snapshot(&mut self, position: ReplPosition) -> Option<ReplicaEvent> {
        let Some(intake) = self.snapshot_receiver.take() else { return Some(ReplicaEvent::LoadRejected) };
        match intake.finish(&self.replication, &self.durability, position).await {
            Ok(loading) => {
                self.running_load = Some(loading);
                None
            }
            Err(error) => Some(self.discard_snapshot(error).await),
        }
    }

    /// Returns whether client writes are paused on this node.
    fn is_paused(&self) -> bool {
        let engine = &self.replication.engine;
        engine.settings.node_flags().intersects(NodeFlags::PAUSED)
            && engine.scheduling.pauses.is_active(PausePurpose::Client, process::time::now())
    }

    /// Applies the next batch that was received during a pause, once the pause is over.
    fn apply_paused_batch(&mut self) -> Vec<ReplicaEvent> {
        if self.paused_stream.batches.is_empty() || self.is_paused() {
            return Vec::new();
        }
        let Some(piece) = self.paused_stream.batches.pop_front() else { return Vec::new() };
        self.paused_stream.byte_count -= piece.len();
        self.apply_batch(piece)
    }

    fn apply_or_postpone(&mut self, bytes: Vec<u8>) -> Vec<ReplicaEvent> {
        if self.paused_stream.batches.is_empty() && !self.is_paused() {
            return self.apply_batch(bytes);
        }
        self.paused_stream.byte_count += bytes.len();
        self.paused_stream.batches.push_back(bytes);
        Vec::new()
    }

    fn apply_batch(&mut self, bytes: Vec<u8>) -> Vec<ReplicaEvent> {
        match self.applier.apply(bytes) {
            Ok(applied) => {
                if let Some(link) = &self.link {
                    link.registration.client.count_commands(applied.command_count);
                }
                let mut inputs = vec![ReplicaEvent::Applied { bytes: applied.byte_count }];
                if applied.is_ack_requested {
                    inputs.push(ReplicaEvent::AckRequested);
                }
                inputs
            }
            Err(ApplyError::InvalidStream(error)) => vec![ReplicaEvent::InvalidStream(error.to_string())],
            Err(ApplyError::StreamEnded(over)) => {
                self.abort_transfer(&format!("Not applying more: {over}")).into_iter().collect()
            }
        }
    }
}

/// Writes all bytes within the timeout. Returns false on failure.
async fn write_all(stream: &mut Stream, bytes: &[u8], timeout: Duration) -> bool {
    matches!(tokio::time::timeout(timeout, stream.write_all(bytes)).await, Ok(Ok(())))
}
