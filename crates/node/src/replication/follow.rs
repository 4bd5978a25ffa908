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
use replication::{Position, Replica, StreamEpoch, master_driver};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::Replication;
use super::apply::{Applier, ApplyError};
use super::intake::{Intake, IntakeError, LoadOutcome};
use super::peer;
use super::serve::Event;

/// The maximum number of stream bytes read at once.
const READ_SIZE: usize = 64 * 1024;

/// How often a paused stream checks whether the pause is over.
const PAUSE_LOOK: Duration = Duration::from_millis(20);
const MOST_PAUSED: usize = 16 << 20;

/// Follows the master of this stream until the task is aborted, which is safe wherever it waits.
pub(super) async fn run(replication: Arc<Replication>, durability: Arc<Durability>, stream: StreamEpoch) {
    // The role has changed again: this task is about to be aborted.
    let Some(master) = replication.master_of(stream) else { return };
    tracing::info!("Connecting to PRIMARY {}:{}", master.host, master.port);
    // Waits for a load started by an earlier master's follower, which determines what the data is.
    let loading = replication.loading.clone();
    drop(loading.lock().await);
    // After this, every write admitted as a master is in the log.
    replication.engine.wait_for_admitted_commands();
    if !replication.is_handing_over() {
        // Blocked clients are only disconnected once a failover has succeeded.
        replication.engine.unblock_all();
    }
    let applier = Applier::new(replication.clone(), stream);
    let (link, rdb, snapshot, loading) = (None, None, None, None);
    let paused = PausedStream::default();
    let mut follower =
        Follower { replication, durability, master, stream, applier, link, rdb, snapshot, loading, paused };
    let mut inputs = vec![ReplicaDriverEvent::Drained];
    loop {
        while let Some(input) = inputs.pop() {
            let Some(came) = follower.give(input).await else { return };
            // The stack returns the last event first.
            inputs.extend(came.into_iter().rev().map(ReplicaDriverEvent::Link));
        }
        let applied = follower.apply_unpaused();
        if applied.is_empty() {
            inputs.push(ReplicaDriverEvent::Link(follower.next_input().await));
        }
        inputs.extend(applied.into_iter().rev().map(ReplicaDriverEvent::Link));
    }
}

/// The part of the stream received while CLIENT PAUSE is active, which also pauses the master's writes.
#[derive(Default)]
struct PausedStream {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
}

struct Follower {
    replication: Arc<Replication>,
    durability: Arc<Durability>,
    master: MasterAddress,
    stream: StreamEpoch,
    applier: Applier,
    link: Option<MasterLink>,
    /// The connection that transfers the snapshot, for dual-channel replication.
    rdb: Option<MasterLink>,
    /// The destination of the snapshot.
    snapshot: Option<Intake>,
    /// A complete snapshot that is being loaded on a helper thread.
    loading: Option<JoinHandle<LoadOutcome>>,
    paused: PausedStream,
}

/// The connection to the master, which is listed in CLIENT LIST while it exists.
struct MasterLink {
    engine: Arc<Engine>,
    stream: Stream,
    seen: peer::Seen,
}

impl MasterLink {
    fn new(engine: &Arc<Engine>, stream: Stream) -> std::io::Result<Self> {
        let seen = peer::register(engine, stream.link()?, ClientFlags::MASTER);
        Ok(Self { engine: engine.clone(), stream, seen })
    }

    /// Reads available bytes; `None` if the connection is closed.
    async fn read(&mut self) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(READ_SIZE);
        tokio::select! {
            read = self.stream.read_buf(&mut bytes) => match read {
                Ok(0) | Err(_) => {
                    tracing::warn!("Connection with primary lost.");
                    None
                }
                Ok(_) => Some(bytes),
            },
            () = self.seen.killed() => {
                tracing::warn!("Connection with primary closed by a client.");
                None
            }
        }
    }
}

/// Returns whether the master's error reports a wrong password, rather than a missing one.
fn is_about_passwords(text: &str) -> bool {
    ["WRONGPASS", "ERR AUTH", "ERR invalid password"].iter().any(|beginning| text.starts_with(beginning))
}

/// Reads from a connection; waits for ever if there is none or it must not be read now.
async fn read_from(link: &mut Option<MasterLink>, reads: bool) -> Option<Vec<u8>> {
    match link {
        Some(link) if reads => link.read().await,
        Some(link) => {
            link.seen.killed().await;
            None
        }
        None => std::future::pending().await,
    }
}

/// Waits until the snapshot is loaded; for ever if none is being loaded.
async fn loaded(loading: &mut Option<JoinHandle<LoadOutcome>>) -> ReplicaEvent {
    let Some(running) = loading else { return std::future::pending().await };
    let outcome = running.await.unwrap_or(LoadOutcome::DataLost);
    *loading = None;
    match outcome {
        LoadOutcome::Loaded => ReplicaEvent::Loaded,
        LoadOutcome::Rejected => ReplicaEvent::LoadRejected,
        LoadOutcome::DataLost => ReplicaEvent::LoadFailed,
    }
}

/// Returns whether the disk fails and the replica must not continue without it (`replica-ignore-disk-write-errors no`).
fn cannot_keep_what_comes(replication: &Replication) -> bool {
    let failed = NodeFlags::MISCONF.union(NodeFlags::AOF_FAILED);
    replication.engine.settings.node_flags().intersects(failed)
        && !replication.config.get(keys::REPLICA_IGNORE_DISK_WRITE_ERRORS)
}

impl Drop for MasterLink {
    fn drop(&mut self) {
        self.engine.clients.disconnect(self.seen.client.id);
    }
}

impl Follower {
    /// Waits for the next event.
    async fn next_input(&mut self) -> ReplicaEvent {
        // The stream stops while the disk cannot be written.
        let (replication, stream) = (self.replication.clone(), self.stream);
        let log = &replication.log;
        let applies = || log.lock().authority().accepts_stream(stream).then_some(());
        if applies().is_none() {
            log.wait_for_growth(applies).await;
        }
        if self.loading.is_none() && cannot_keep_what_comes(&replication) {
            if self.link.is_some() {
                tracing::warn!("Leaving the master: what it sends cannot be written to the disk");
                return self.lose();
            }
            log.wait_for_growth(|| (!cannot_keep_what_comes(&replication)).then_some(())).await;
        }
        let (deadline, reads) = {
            let role = replication.role.lock();
            (role.next_deadline(stream), [role.should_read(stream), role.should_read_rdb_channel(stream)])
        };
        let now = process::time::instant();
        let mut wait = deadline.map_or(Duration::from_secs(1), |deadline| deadline.since(now));
        if !self.paused.pieces.is_empty() {
            wait = wait.min(PAUSE_LOOK);
        }
        let reads = [reads[0] && self.paused.bytes < MOST_PAUSED, reads[1]];
        tokio::select! {
            loaded = loaded(&mut self.loading) => {
                self.applier.restarted();
                loaded
            }
            read = read_from(&mut self.link, reads[0]) => self.on_read(read),
            read = read_from(&mut self.rdb, reads[1]) => ReplicaEvent::RdbChannel(match read {
                Some(bytes) => {
                    self.count_input(&bytes);
                    RdbChannelEvent::Received(bytes)
                }
                None => {
                    self.rdb = None;
                    RdbChannelEvent::Closed
                }
            }),
            () = tokio::time::sleep(wait) => ReplicaEvent::Deadline,
            // The deadline may have changed.
            () = replication.reconfigured.notified() => ReplicaEvent::Deadline,
        }
    }

    fn on_read(&mut self, read: Option<Vec<u8>>) -> ReplicaEvent {
        match read {
            Some(bytes) => {
                self.count_input(&bytes);
                ReplicaEvent::Received(bytes)
            }
            None => {
                self.link = None;
                self.paused = PausedStream::default();
                if self.replication.log.lock().is_open() {
                    tracing::info!("Caching the disconnected primary state.");
                }
                tracing::info!("Reconnecting to PRIMARY {}:{}", self.master.host, self.master.port);
                ReplicaEvent::Closed
            }
        }
    }

    fn count_input(&self, bytes: &[u8]) {
        if let Some(link) = &self.link {
            link.seen.client.count_input(bytes.len());
        }
        self.replication.stats.input_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.replication.tick.notify_input();
    }

    /// Closes the connections to the master.
    fn lose(&mut self) -> ReplicaEvent {
        (self.link, self.rdb) = (None, None);
        self.snapshot = None;
        self.paused = PausedStream::default();
        ReplicaEvent::Closed
    }

    /// Passes an event to the driver and performs its actions. Returns the events that result; `None` if the stream is
    /// superseded.
    async fn give(&mut self, input: ReplicaDriverEvent) -> Option<Vec<ReplicaEvent>> {
        if input == ReplicaDriverEvent::Link(ReplicaEvent::Closed) {
            // Tells the loader that no more bytes will come.
            self.snapshot = None;
        }
        let mut orders = Vec::new();
        let synced = self.durability.append_only.on_disk().end();
        let held = {
            let (mut role, input) = (self.replication.role.lock(), (self.stream, input));
            role.set_fsynced_offset(synced);
            role.handle(process::time::instant(), input, &mut &*self.replication.log, &mut orders);
            role.replica().map_or(0, Replica::buffered_bytes)
        };
        if held > 0 {
            self.replication.stats.held_peak.fetch_max(held, Ordering::Relaxed);
            // Many batches may be applied in a row, and this thread also serves replicas.
            tokio::task::yield_now().await;
        }
        let mut inputs = Vec::new();
        for order in orders {
            match order {
                ReplicaDriverAction::StreamSuperseded => return None,
                ReplicaDriverAction::HistoryReplaced => {
                    self.replication.tell(Event::Serve(master_driver::MasterDriverEvent::HistoryReplaced));
                }
                ReplicaDriverAction::LinkAction(action) => inputs.extend(self.act(action).await),
            }
        }
        self.replication.update_gates();
        Some(inputs)
    }

    async fn act(&mut self, action: ReplicaAction) -> Vec<ReplicaEvent> {
        match action {
            ReplicaAction::Connect => vec![self.connect().await],
            ReplicaAction::Close(reason) => {
                self.tell_reason(&reason);
                self.lose();
                vec![]
            }
            ReplicaAction::RdbChannel(action) => {
                self.act_on_rdb_channel(action).await.map(ReplicaEvent::RdbChannel).into_iter().collect()
            }
            ReplicaAction::Send(bytes) => self.send(&bytes).await.into_iter().collect(),
            ReplicaAction::BeginTransfer { position, len } => {
                tracing::info!("Full resync from primary: {}:{}", position.id, position.offset);
                self.begin_transfer(position, len).await.into_iter().collect()
            }
            ReplicaAction::Snapshot(bytes) => self.take_in(bytes).await.into_iter().collect(),
            ReplicaAction::Load { position } => self.load(position).await.into_iter().collect(),
            ReplicaAction::Resume { slot_states, .. } => {
                if let Some(states) = slot_states {
                    self.replication.cluster_stream.on_states(&states);
                }
                tracing::info!("Successful partial resynchronization with primary.");
                tracing::info!("PRIMARY <-> REPLICA sync: Primary accepted a Partial Resynchronization.");
                vec![]
            }
            ReplicaAction::LinkUp => {
                tracing::info!("PRIMARY <-> REPLICA sync: the link is up");
                vec![]
            }
            ReplicaAction::Stream(bytes) => self.apply(bytes),
        }
    }

    /// Logs why the link is closed, in Valkey's words where the master refused, since operators search for them.
    fn tell_reason(&self, reason: &LinkError) {
        match reason {
            LinkError::Refused(text) if is_about_passwords(text) => {
                tracing::warn!("Unable to AUTH to PRIMARY: -{text}");
            }
            LinkError::Refused(text) => {
                tracing::warn!("PRIMARY aborted replication with an error: {text}");
            }
            LinkError::TimedOut => tracing::warn!("{}", self.silence()),
            LinkError::MalformedReply(_) | LinkError::LoadFailed | LinkError::RdbChannelLost => {}
        }
        tracing::warn!("Leaving the master {}:{}: {reason}", self.master.host, self.master.port);
    }

    /// Returns Valkey's log message for a timeout of the master.
    fn silence(&self) -> &'static str {
        match (&self.link, &self.snapshot) {
            (None, _) => "Timeout connecting to the PRIMARY...",
            (Some(_), Some(_)) => {
                "Timeout receiving bulk data from PRIMARY... If the problem persists try to set the 'repl-timeout' \
                 parameter to a larger value."
            }
            (Some(_), None) => "PRIMARY timeout: no data nor PING received...",
        }
    }

    async fn connect(&mut self) -> ReplicaEvent {
        self.link = None;
        tracing::info!("PRIMARY <-> REPLICA sync started");
        match self.dial().await {
            Ok(link) => {
                tracing::info!("Non blocking connect for SYNC fired the event.");
                self.applier.reconnected(link.seen.client.connection.clone());
                self.paused = PausedStream::default();
                self.link = Some(link);
                self.tell_request();
                ReplicaEvent::Connected
            }
            Err(error) => {
                tracing::warn!("Error condition on socket for SYNC: {error}");
                ReplicaEvent::ConnectFailed { refused: error.is_refused() }
            }
        }
    }

    /// Logs the position from which the stream is requested.
    fn tell_request(&self) {
        let log = self.replication.log.lock();
        if log.is_open() {
            let Position { id, offset } = log.position();
            tracing::info!("Trying a partial resynchronization (request {id}:{}).", offset.0 + 1);
        } else {
            tracing::info!("Partial resynchronization not possible (no cached primary)");
        }
    }

    async fn dial(&self) -> Result<MasterLink, DialError> {
        let address = (self.master.host.as_str(), self.master.port);
        let replication = &self.replication;
        let dialer = Dialer::for_links(&replication.config, &replication.tls, keys::TLS_REPLICATION);
        let stream = dialer.dial(address, self.timeout()).await?;
        Ok(MasterLink::new(&replication.engine, stream)?)
    }

    fn timeout(&self) -> Duration {
        self.replication.config.get(keys::REPL_TIMEOUT)
    }

    async fn act_on_rdb_channel(&mut self, action: RdbChannelAction) -> Option<RdbChannelEvent> {
        match action {
            RdbChannelAction::Connect => match self.dial().await {
                Ok(link) => {
                    tracing::info!("PRIMARY <-> REPLICA sync: the snapshot comes over a second connection");
                    self.rdb = Some(link);
                    Some(RdbChannelEvent::Connected)
                }
                Err(error) => {
                    tracing::warn!("No second connection to the master: {error}");
                    Some(RdbChannelEvent::Closed)
                }
            },
            RdbChannelAction::Send(bytes) => {
                let timeout = self.timeout();
                let sent = write_all(&mut self.rdb.as_mut()?.stream, &bytes, timeout).await;
                if !sent {
                    self.rdb = None;
                }
                (!sent).then_some(RdbChannelEvent::Closed)
            }
            RdbChannelAction::Close => {
                self.rdb = None;
                None
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Option<ReplicaEvent> {
        let timeout = self.timeout();
        if write_all(&mut self.link.as_mut()?.stream, bytes, timeout).await {
            return None;
        }
        self.link = None;
        Some(ReplicaEvent::Closed)
    }

    async fn begin_transfer(&mut self, position: Position, len: Option<u64>) -> Option<ReplicaEvent> {
        match Intake::begin(&self.replication, &self.durability, position, len).await {
            Ok(intake) => {
                let into = intake.destination();
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
                let replaces = intake.replaces();
                self.snapshot = Some(intake);
                replaces.then_some(ReplicaEvent::ReplacingData)
            }
            Err(error) => self.give_up(&error.to_string()),
        }
    }

    async fn take_in(&mut self, bytes: Vec<u8>) -> Option<ReplicaEvent> {
        let error = self.snapshot.as_mut()?.add(bytes).await.err()?;
        Some(self.drop_snapshot(error).await)
    }

    /// Discards a snapshot that cannot be loaded, and closes the link.
    async fn drop_snapshot(&mut self, error: IntakeError) -> ReplicaEvent {
        let mut loading = self.snapshot.take().and_then(Intake::give_up);
        self.give_up(&error.to_string());
        match &mut loading {
            Some(_) => loaded(&mut loading).await,
            None => ReplicaEvent::LoadRejected,
        }
    }

    fn give_up(&mut self, why: &str) -> Option<ReplicaEvent> {
        tracing::warn!("{why}");
        Some(self.lose())
    }

    /// Replaces the data by the snapshot, on a helper thread.
    async fn load(&mut self, position: Position) -> Option<ReplicaEvent> {
        let Some(intake) = self.snapshot.take() else { return Some(ReplicaEvent::LoadRejected) };
        match intake.finish(&self.replication, &self.durability, position).await {
            Ok(loading) => {
                self.loading = Some(loading);
                None
            }
            Err(error) => Some(self.drop_snapshot(error).await),
        }
    }

    /// Returns whether client writes are paused on this node.
    fn is_paused(&self) -> bool {
        let engine = &self.replication.engine;
        engine.settings.node_flags().intersects(NodeFlags::PAUSED)
            && engine.pauses.is_active(PausePurpose::Client, process::time::now())
    }

    /// Applies the next batch that was held by a pause, once the pause is over.
    fn apply_unpaused(&mut self) -> Vec<ReplicaEvent> {
        if self.paused.pieces.is_empty() || self.is_paused() {
            return Vec::new();
        }
        let Some(piece) = self.paused.pieces.pop_front() else { return Vec::new() };
        self.paused.bytes -= piece.len();
        self.apply_now(piece)
    }

    fn apply(&mut self, bytes: Vec<u8>) -> Vec<ReplicaEvent> {
        if self.paused.pieces.is_empty() && !self.is_paused() {
            return self.apply_now(bytes);
        }
        self.paused.bytes += bytes.len();
        self.paused.pieces.push_back(bytes);
        Vec::new()
    }

    fn apply_now(&mut self, bytes: Vec<u8>) -> Vec<ReplicaEvent> {
        match self.applier.apply(bytes) {
            Ok(applied) => {
                if let Some(link) = &self.link {
                    link.seen.client.count_commands(applied.commands);
                }
                let mut inputs = vec![ReplicaEvent::Applied { bytes: applied.bytes }];
                if applied.ack_wanted {
                    inputs.push(ReplicaEvent::AckRequested);
                }
                inputs
            }
            Err(ApplyError::Nonsense(error)) => vec![ReplicaEvent::InvalidStream(error.to_string())],
            Err(ApplyError::Over(over)) => {
                self.give_up(&format!("Not applying more: {over}")).into_iter().collect()
            }
        }
    }
}

/// Writes all bytes within the timeout. Returns false on failure.
async fn write_all(stream: &mut Stream, bytes: &[u8], timeout: Duration) -> bool {
    matches!(tokio::time::timeout(timeout, stream.write_all(bytes)).await, Ok(Ok(())))
}
