//! The source side of a migration job: performs the actions of [`migration::ExportDriver`].

use std::future::pending;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use config::keys;
use driver::Driver;
use durability::snapshot::{self, WriteProgress};
use durability::stream::logged_command_decoder;
use migration::{
    EstablishMessage, ExportConfig, ExportDriver, ExportDriverAction, ExportDriverEvent, ExportJob,
    ExportOutcome, JobName, SlotMove,
};
use net::dialer::Dialer;
use net::transport::Stream;
use process::time;
use replication::CursorId;
use slot_routing::{Slot, SlotSet};
use tokio::sync::mpsc;

use super::{MigrationLink, Migrations, auth_command, topology_if_master, wait_until_deadline};

/// The maximum number of log bytes read at once.
const LOG_CHUNK_BYTES: usize = 64 * 1024;
/// Lower bound for `slot-migration-max-failover-repl-bytes`, the number of unsent log bytes at which writes may be
/// paused. Fewer bytes are sent quickly anyway.
const MIN_PAUSE_THRESHOLD_BYTES: u64 = 64 * 1024;
/// The maximum number of snapshot parts queued for sending.
const MAX_QUEUED_CHUNKS: usize = 8;

/// State shared with the thread that writes the snapshot.
#[derive(Debug, Default)]
struct SnapshotProgress {
    /// Set to stop the thread that writes the snapshot.
    is_cancelled: AtomicBool,
    /// The number of keys written so far.
    written_keys: AtomicU64,
}

/// A message from the thread that writes the snapshot.
#[derive(Debug)]
enum SnapshotChunk {
    Failed,
    Started(CursorId),
    Bytes(Vec<u8>),
    End,
}

type ConnectFuture = Pin<Box<dyn Future<Output = Result<Stream, String>> + Send>>;

/// Runs the export job to its end.
pub(super) async fn run_export(migrations: Arc<Migrations>, name: JobName, slot_move: SlotMove) {
    migrations.replication.log.begin_migration();
    let outcome = match topology_if_master(&migrations) {
        Ok(topology) => {
            let establish = EstablishMessage {
                source: topology.myself,
                name,
                ranges: slot_move.ranges.clone(),
                is_resumable: false,
            };
            let job = ExportJob { establish_message: establish, target: slot_move.target };
            ExportTask::new(&migrations, job).run().await
        }
        Err(_) => ExportOutcome::Failed("A failover occurred during slot export".to_owned()),
    };
    migrations.replication.log.end_migration();
    let (state, message) = match &outcome {
        ExportOutcome::Success => ("success", ""),
        ExportOutcome::Cancelled => ("cancelled", ""),
        ExportOutcome::Failed(why) => ("failed", why.as_str()),
    };
    migrations.end_job(&name, state, message);
}

/// An export job with the connection, log cursor and snapshot that it uses.
struct ExportTask<'a> {
    migrations: &'a Arc<Migrations>,
    job: ExportJob,
    slots: SlotSet,
    link: Option<MigrationLink>,
    pending_connect: Option<ConnectFuture>,
    snapshot_chunks: Option<mpsc::Receiver<SnapshotChunk>>,
    progress: Arc<SnapshotProgress>,
    cursor: Option<CursorId>,
    held_slots: HeldSlots<'a>,
}

impl<'a> ExportTask<'a> {
    fn new(migrations: &'a Arc<Migrations>, job: ExportJob) -> Self {
        Self {
            held_slots: HeldSlots { migrations, slots: Vec::new() },
            migrations,
            slots: job.establish_message.slots(),
            job,
            link: None,
            pending_connect: None,
            snapshot_chunks: None,
            progress: Arc::default(),
            cursor: None,
        }
    }

    fn config(&self) -> ExportConfig {
        let config = &self.migrations.config;
        // A negative value (-1) means that there is no limit.
        let max_remaining = u64::try_from(config.get(keys::SLOT_MIGRATION_MAX_FAILOVER_REPL_BYTES));
        ExportConfig {
            connect_timeout: config.get(keys::CLUSTER_NODE_TIMEOUT),
            timeout: config.get(keys::REPL_TIMEOUT),
            requires_authentication: config.get(keys::MASTERAUTH).is_some(),
            max_remaining_bytes: max_remaining.map_or(u64::MAX, |bytes| bytes.max(MIN_PAUSE_THRESHOLD_BYTES)),
        }
    }

    async fn run(mut self) -> ExportOutcome {
        let name = self.job.establish_message.name;
        let cancelled = self.migrations.job_channels.lock().get(&name).map(|way| way.cancel_signal.clone());
        let cancelled = cancelled.unwrap_or_default();
        let commands = logged_command_decoder(&self.migrations.commands);
        let (mut driver, mut actions) =
            ExportDriver::new(time::monotonic_now(), self.job.clone(), self.config(), commands);
        let mut event = None;
        loop {
            // Registered before the topology is read, so that no change is missed.
            let rerouted = self.migrations.topology_changed.notified();
            tokio::pin!(rerouted);
            rerouted.as_mut().enable();
            let topology = self.topology_event();
            let mut events: Vec<ExportDriverEvent> = event.take().into_iter().chain(topology).collect();
            loop {
                for event in std::mem::take(&mut events) {
                    driver.handle(time::monotonic_now(), event, &mut actions);
                }
                if actions.is_empty() {
                    events.extend(self.remaining_event(&driver));
                    for event in std::mem::take(&mut events) {
                        driver.handle(time::monotonic_now(), event, &mut actions);
                    }
                }
                self.record_progress(&driver);
                if actions.is_empty() {
                    break;
                }
                for action in std::mem::take(&mut actions) {
                    match self.perform_action(action).await {
                        Ok(event) => events.extend(event),
                        Err(outcome) => return outcome,
                    }
                }
            }
            let accepts_data = driver.accepts_data();
            let cursor = self.cursor.filter(|_| driver.is_sending_log());
            event = tokio::select! {
                biased;
                () = cancelled.notified() => Some(ExportDriverEvent::Cancel),
                () = rerouted => None,
                dialed = wait_for_connect(&mut self.pending_connect) => Some(self.on_connect_result(dialed)),
                read = MigrationLink::read(&mut self.link) => Some(self.on_read(read)),
                () = wait_until_deadline(driver.next_deadline()) => Some(ExportDriverEvent::Deadline),
                chunk = next_chunk(&mut self.snapshot_chunks), if accepts_data => Some(self.on_chunk(chunk)),
                () = wait_for_log_growth(self.migrations, cursor), if accepts_data => self.read_log(),
            };
        }
    }

    /// Performs an action. Returns the resulting event, or the outcome if the job has ended.
    async fn perform_action(
        &mut self,
        action: ExportDriverAction,
    ) -> Result<Option<ExportDriverEvent>, ExportOutcome> {
        match action {
            ExportDriverAction::Connect(timeout) => {
                self.pending_connect = Some(self.start_connecting(timeout));
            }
            ExportDriverAction::SendCredentials => {
                let wire = auth_command(&self.migrations.config.values()).unwrap_or_default();
                return Ok(self.write(&wire).await);
            }
            ExportDriverAction::Send(bytes) => return Ok(self.write(&bytes).await),
            ExportDriverAction::ReportResumed => {
                tracing::info!(
                    "Slot migration {} goes on with another link",
                    self.job.establish_message.name
                );
            }
            ExportDriverAction::Close => (self.link, self.pending_connect) = (None, None),
            ExportDriverAction::TakeSnapshot => return Ok(self.start_snapshot()),
            ExportDriverAction::PauseWrites => return Ok(Some(self.hold_slots())),
            ExportDriverAction::End(outcome) => return Err(outcome),
        }
        Ok(None)
    }

    /// Records the job's state and progress for CLUSTER GETSLOTMIGRATIONS.
    fn record_progress(&self, driver: &ExportDriver) {
        let name = &self.job.establish_message.name;
        if let Some(state) = driver.state_name() {
            self.migrations.set_job_state(name, state);
        }
        let keys = self.progress.written_keys.load(Ordering::Relaxed);
        self.migrations.update_job(name, |job| {
            (job.progress.transferred_bytes, job.progress.transferred_keys) =
                (driver.sent_bytes(), Some(keys));
        });
    }

    fn topology_event(&self) -> Option<ExportDriverEvent> {
        let topology = self.migrations.engine.topology.as_ref()?.load_full();
        Some(ExportDriverEvent::Topology { topology, is_replica: self.migrations.replication.is_replica() })
    }

    /// Returns how many bytes of the log remain to be read; `None` before the snapshot is sent.
    fn remaining_event(&self, driver: &ExportDriver) -> Option<ExportDriverEvent> {
        let cursor = self.cursor.filter(|_| driver.is_sending_log())?;
        let remaining = self.migrations.replication.log.lock().unread_bytes(cursor).ok()?;
        self.migrations
            .update_job(&self.job.establish_message.name, |job| job.progress.remaining_bytes = remaining);
        // If DEBUG prevents the pause of writes, the log never seems nearly read. The next acknowledgement repeats this
        // check.
        let is_prevented =
            self.migrations.engine.settings.debug.prevent_migration_pause.load(Ordering::Relaxed);
        Some(ExportDriverEvent::UnreadLogBytes(if is_prevented { u64::MAX } else { remaining }))
    }

    fn on_connect_result(&mut self, result: Result<Stream, String>) -> ExportDriverEvent {
        self.pending_connect = None;
        match result {
            Ok(stream) => {
                self.link = Some(MigrationLink::new(stream));
                ExportDriverEvent::Connected
            }
            Err(why) => ExportDriverEvent::ConnectFailed(why),
        }
    }

    fn on_read(&mut self, result: io::Result<Vec<u8>>) -> ExportDriverEvent {
        match result {
            Ok(bytes) if !bytes.is_empty() => {
                self.migrations
                    .update_job(&self.job.establish_message.name, |job| job.last_heard_at = time::now());
                ExportDriverEvent::Received(bytes)
            }
            Ok(_) | Err(_) => {
                self.link = None;
                ExportDriverEvent::Closed
            }
        }
    }

    fn on_chunk(&mut self, chunk: Option<SnapshotChunk>) -> ExportDriverEvent {
        let name = &self.job.establish_message.name;
        match chunk {
            Some(SnapshotChunk::Failed) => ExportDriverEvent::SnapshotUnavailable,
            Some(SnapshotChunk::Started(cursor)) => {
                self.cursor = Some(cursor);
                let keys = self.migrations.count_keys(&self.slots);
                self.migrations.update_job(name, |job| job.progress.total_keys = Some(keys));
                ExportDriverEvent::SnapshotTaken
            }
            Some(SnapshotChunk::Bytes(bytes)) => ExportDriverEvent::SnapshotChunk(bytes),
            Some(SnapshotChunk::End) => {
                self.snapshot_chunks = None;
                // The keys were counted a moment after the snapshot was taken, so only the number of written keys is
                // exact.
                let keys = self.progress.written_keys.load(Ordering::Relaxed);
                self.migrations.update_job(name, |job| job.progress.total_keys = Some(keys));
                ExportDriverEvent::SnapshotEnd
            }
            None => {
                self.snapshot_chunks = None;
                ExportDriverEvent::Failed("The snapshot failed".to_owned())
            }
        }
    }

    fn read_log(&mut self) -> Option<ExportDriverEvent> {
        let mut chunk = Vec::with_capacity(LOG_CHUNK_BYTES);
        let read = self.migrations.replication.log.lock().read(self.cursor?, LOG_CHUNK_BYTES, &mut chunk);
        Some(match read {
            Ok(()) => ExportDriverEvent::LogChunk(chunk),
            Err(_) => {
                ExportDriverEvent::Failed("The changes of the slots were more than the log keeps".to_owned())
            }
        })
    }

    /// Connects to the target.
    fn start_connecting(&self, timeout: Duration) -> ConnectFuture {
        let dialer =
            Dialer::with_link_tls(&self.migrations.config, &self.migrations.network.tls, keys::TLS_CLUSTER);
        let tls = self.migrations.config.get(keys::TLS_CLUSTER);
        let address = topology_if_master(self.migrations).ok().and_then(|topology| {
            let endpoint = &topology.member(self.job.target)?.endpoint;
            Some((endpoint.ip.clone(), endpoint.node_port(tls)))
        });
        Box::pin(async move {
            let (host, port) = address.ok_or_else(|| "it is not known".to_owned())?;
            dialer.dial((host.as_str(), port), timeout).await.map_err(|error| error.to_string())
        })
    }

    /// Sends bytes. Closes the connection if it accepts nothing within the timeout.
    async fn write(&mut self, bytes: &[u8]) -> Option<ExportDriverEvent> {
        let timeout = self.migrations.config.get(keys::REPL_TIMEOUT);
        MigrationLink::write(&mut self.link, bytes, timeout).await.then_some(ExportDriverEvent::Closed)
    }

    /// Starts a thread that writes the snapshot, so that this thread is never blocked by slot locks.
    fn start_snapshot(&mut self) -> Option<ExportDriverEvent> {
        let (pieces, chunks) = mpsc::channel(MAX_QUEUED_CHUNKS);
        let (migrations, slots, progress) =
            (self.migrations.clone(), self.slots.clone(), self.progress.clone());
        let walk_on = move || write_snapshot(&migrations, &slots, &progress, &pieces);
        match std::thread::Builder::new().name("slot-snapshot".to_owned()).spawn(walk_on) {
            Ok(_) => {
                self.snapshot_chunks = Some(chunks);
                None
            }
            Err(error) => Some(ExportDriverEvent::Failed(format!("No thread for a snapshot: {error}"))),
        }
    }

    /// Pauses writes to the slots. Each slot is locked once, so every earlier write is in the log when this returns.
    fn hold_slots(&mut self) -> ExportDriverEvent {
        for slot in self.slots.iter() {
            if !self.held_slots.hold_slot(slot) {
                return ExportDriverEvent::Failed(format!("Writes to slot {slot} cannot be held"));
            }
        }
        let pending = self.cursor.map(|cursor| self.migrations.replication.log.lock().unread_bytes(cursor));
        match pending {
            Some(Ok(unread)) => ExportDriverEvent::WritesPaused { unread_bytes: unread },
            // An error is not reported here, because the next read of the log reports it.
            Some(Err(_)) | None => ExportDriverEvent::WritesPaused { unread_bytes: u64::MAX },
        }
    }
}

impl Drop for ExportTask<'_> {
    fn drop(&mut self) {
        self.progress.is_cancelled.store(true, Ordering::Relaxed);
        if let Some(cursor) = self.cursor.take() {
            self.migrations.replication.log.lock().remove_cursor(cursor);
        }
    }
}

/// Slots with paused writes. The writes resume on drop.
struct HeldSlots<'a> {
    migrations: &'a Migrations,
    slots: Vec<Slot>,
}

impl HeldSlots<'_> {
    fn hold_slot(&mut self, slot: Slot) -> bool {
        let held = self.migrations.pause_gate.pause_slot_writes(slot);
        self.slots.extend(held.then_some(slot));
        held
    }
}

impl Drop for HeldSlots<'_> {
    fn drop(&mut self) {
        self.slots.iter().for_each(|slot| self.migrations.pause_gate.resume_slot_writes(*slot));
    }
}

async fn wait_for_connect(dialing: &mut Option<ConnectFuture>) -> Result<Stream, String> {
    match dialing {
        Some(dialing) => dialing.await,
        None => pending().await,
    }
}

async fn next_chunk(chunks: &mut Option<mpsc::Receiver<SnapshotChunk>>) -> Option<SnapshotChunk> {
    match chunks {
        Some(chunks) => chunks.recv().await,
        None => pending().await,
    }
}

/// Waits until the cursor has something to read, or for ever if there is no cursor.
async fn wait_for_log_growth(migrations: &Migrations, cursor: Option<CursorId>) {
    let Some(cursor) = cursor else { return pending().await };
    let log = &migrations.replication.log;
    log.wait_for_growth(|| (log.lock().unread_bytes(cursor) != Ok(0)).then_some(())).await;
}

fn write_snapshot(
    migrations: &Migrations,
    slots: &SlotSet,
    progress: &SnapshotProgress,
    chunks: &mpsc::Sender<SnapshotChunk>,
) {
    let durability = &migrations.durability;
    let cut = snapshot::take_snapshot(durability, |log| {
        migrations.replication.log.open(log);
        // The snapshot does not record the selected database, so the next logged change must repeat SELECT.
        log.reset_selected_db();
        let end = log.position().offset;
        log.add_local_cursor(end)
    });
    let (state, cursor) = match cut {
        Ok(cut) => cut,
        Err(error) => {
            tracing::debug!("A snapshot of slots waits: {error:#}");
            let _ = chunks.blocking_send(SnapshotChunk::Failed);
            return;
        }
    };
    if chunks.blocking_send(SnapshotChunk::Started(cursor)).is_err() {
        return migrations.replication.log.lock().remove_cursor(cursor);
    }
    let is_cancelled = || progress.is_cancelled.load(Ordering::Relaxed);
    let progress = WriteProgress { written_keys: Some(&progress.written_keys), is_cancelled: &is_cancelled };
    let mut out = ChunkWriter(chunks);
    match snapshot::write_slots(durability, state, slots, progress, &mut out) {
        Ok(()) => drop(chunks.blocking_send(SnapshotChunk::End)),
        Err(error) => tracing::debug!("A snapshot of slots ended early: {error}"),
    }
}

/// A writer that queues the written parts for sending.
struct ChunkWriter<'a>(&'a mpsc::Sender<SnapshotChunk>);

impl Write for ChunkWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(SnapshotChunk::Bytes(bytes.to_vec()));
        sent.map(|()| bytes.len()).map_err(|_| io::Error::other("the job has ended"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
