//! The source side of a migration job.

use std::collections::VecDeque;
use std::future::pending;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clock::Instant;
use config::keys;
use durability::snapshot::{self, WriteProgress};
use migration::export::{ExportAction, ExportConfig, ExportEvent, ExportOutcome};
use migration::{
    Establish, Export, Finish, JobName, Message, ResendWindow, SlotMove, SyncSlots, TargetReplies,
    TargetReply,
};
use net::dialer::Dialer;
use net::transport::Stream;
use process::time;
use replication::CursorId;
use slot_routing::{Slot, SlotSet};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use super::filter::{Filter, Seen};
use super::{Migrations, credentials, serves, topology};

/// The maximum number of log bytes read at once.
const CHUNK: usize = 64 * 1024;
/// Writes may be paused once no more of the log than this remains, since it is sent within moments.
const NEARLY_ALL: u64 = 64 * 1024;
/// How long a reconnect may take before it is retried.
const RECONNECT_WITHIN: Duration = Duration::from_secs(1);
/// The maximum number of snapshot parts queued for sending.
const PIECES_AHEAD: usize = 8;

/// Shared with the thread that writes the snapshot.
#[derive(Debug, Default)]
struct SnapshotProgress {
    /// Set to cancel the thread.
    cancelled_flag: AtomicBool,
    /// The number of keys written.
    keys: AtomicU64,
}

/// Progress of writing the snapshot.
#[derive(Debug)]
enum SnapshotChunk {
    Failed,
    Started(CursorId),
    Bytes(Vec<u8>),
    End,
}

/// Runs the job to its end.
pub(super) async fn run(migrations: Arc<Migrations>, name: JobName, order: SlotMove) {
    migrations.replication.log.begin_migration();
    let outcome = Source::new(&migrations, name, order).run().await;
    migrations.replication.log.end_migration();
    let (state, message) = match &outcome {
        ExportOutcome::Success => ("success", ""),
        ExportOutcome::Cancelled => ("cancelled", ""),
        ExportOutcome::Failed(why) => ("failed", why.as_str()),
    };
    migrations.end(&name, state, message);
}

struct Source<'a> {
    migrations: &'a Arc<Migrations>,
    name: JobName,
    order: SlotMove,
    slots: SlotSet,
    machine: Export,
    inputs: VecDeque<ExportEvent>,
    link: Option<(ReadHalf<Stream>, WriteHalf<Stream>)>,
    from_target: TargetReplies,
    /// Sent bytes that a new connection would repeat, if the job can resume.
    window: Option<ResendWindow>,
    chunks: Option<mpsc::Receiver<SnapshotChunk>>,
    progress: Arc<SnapshotProgress>,
    cursor: Option<CursorId>,
    /// Whether the snapshot was sent and the log follows.
    streams: bool,
    filter: Filter,
    held: HeldSlots<'a>,
}

/// An event for the job.
enum ExportWakeup {
    Link(io::Result<usize>),
    Snapshot(Option<SnapshotChunk>),
    Log,
    Deadline,
    Cancel,
    Rerouted,
}

impl<'a> Source<'a> {
    fn new(migrations: &'a Arc<Migrations>, name: JobName, order: SlotMove) -> Self {
        let config = &migrations.config;
        let timeout = config.get(keys::REPL_TIMEOUT);
        let authenticate = config.get(keys::MASTERAUTH).is_some();
        // -1 means no limit.
        let max_remaining = u64::try_from(config.get(keys::SLOT_MIGRATION_MAX_FAILOVER_REPL_BYTES));
        let max_remaining = max_remaining.map_or(u64::MAX, |bytes| bytes.max(NEARLY_ALL));
        let slots = order.slots();
        Self {
            filter: Filter::new(slots.clone(), migrations.commands.clone()),
            held: HeldSlots { migrations, slots: Vec::new() },
            machine: Export::new(time::instant(), ExportConfig { timeout, authenticate, max_remaining }),
            migrations,
            name,
            order,
            slots,
            inputs: VecDeque::new(),
            link: None,
            from_target: TargetReplies::default(),
            window: None,
            chunks: None,
            progress: Arc::default(),
            cursor: None,
            streams: false,
        }
    }

    async fn run(mut self) -> ExportOutcome {
        let cancelled = self.migrations.ways.lock().get(&self.name).map(|way| way.cancelled.clone());
        let cancelled = cancelled.unwrap_or_default();
        let first = self.connect().await;
        self.inputs.push_back(first);
        loop {
            // No change of the topology is missed from here on.
            let rerouted = self.migrations.rerouted.notified();
            tokio::pin!(rerouted);
            rerouted.as_mut().enable();
            self.look_at_topology();
            if let Some(outcome) = self.handle_all().await {
                self.say_end(&outcome).await;
                self.finish();
                return outcome;
            }
            let (deadline, may_send) = (self.machine.next_deadline(), self.may_send());
            let wakeup = tokio::select! {
                biased;
                () = cancelled.notified() => ExportWakeup::Cancel,
                () = rerouted => ExportWakeup::Rerouted,
                read = read(&mut self.link, self.from_target.buffer()) => ExportWakeup::Link(read),
                chunk = next_chunk(&mut self.chunks), if may_send => ExportWakeup::Snapshot(chunk),
                () = log_grown(self.migrations, self.cursor.filter(|_| self.streams)), if may_send => {
                    ExportWakeup::Log
                }
                () = until(deadline) => ExportWakeup::Deadline,
            };
            self.on_wakeup(wakeup).await;
        }
    }

    async fn on_wakeup(&mut self, wakeup: ExportWakeup) {
        let input = match wakeup {
            ExportWakeup::Cancel => ExportEvent::Cancel,
            ExportWakeup::Deadline => ExportEvent::Deadline,
            ExportWakeup::Rerouted => return,
            ExportWakeup::Link(Ok(read)) if read > 0 => return self.on_received(),
            ExportWakeup::Link(_) => {
                self.link = None;
                ExportEvent::Closed
            }
            ExportWakeup::Snapshot(Some(chunk)) => match chunk {
                SnapshotChunk::Failed => ExportEvent::SnapshotFailed,
                SnapshotChunk::Started(cursor) => {
                    self.cursor = Some(cursor);
                    let keys = self.migrations.keys_in(&self.slots);
                    self.migrations.note(&self.name, |job| job.progress.all_keys = Some(keys));
                    ExportEvent::SnapshotTaken
                }
                SnapshotChunk::Bytes(bytes) => return self.write(&bytes).await,
                SnapshotChunk::End => {
                    self.chunks = None;
                    self.streams = true;
                    // Keys may have been added or removed between the snapshot and the count.
                    self.migrations.note(&self.name, |job| job.progress.all_keys = job.progress.keys);
                    ExportEvent::SnapshotSent
                }
            },
            ExportWakeup::Snapshot(None) => {
                self.chunks = None;
                ExportEvent::Failed("The snapshot failed".to_owned())
            }
            ExportWakeup::Log => return self.send_log().await,
        };
        self.inputs.push_back(input);
    }

    /// Handles replies of the target, and then its own messages.
    fn on_received(&mut self) {
        self.migrations.note(&self.name, |job| job.heard = time::now());
        loop {
            let input = match self.from_target.next_reply() {
                Ok(Some(said)) => self.on_said(said),
                Ok(None) => return,
                Err(error) => return self.inputs.push_back(ExportEvent::Failed(error.to_string())),
            };
            self.inputs.extend(input);
        }
    }

    fn on_said(&mut self, said: TargetReply) -> Option<ExportEvent> {
        match said {
            TargetReply::Accepted => Some(ExportEvent::Accepted),
            TargetReply::Refused(text) => Some(ExportEvent::Refused(text)),
            // A reply to RESUME, which only starts a new connection.
            TargetReply::Applied(_) => None,
            TargetReply::Command(SyncSlots::Finish(_)) => Some(ExportEvent::EndedByPeer),
            TargetReply::Command(SyncSlots::Message(message)) => Some(ExportEvent::Received(message)),
            TargetReply::Command(SyncSlots::Applied(count)) => {
                let is_possible = self.window.as_mut().is_none_or(|window| window.acknowledge(count));
                Some(if is_possible { ExportEvent::Received(Message::Ack) } else { applied_too_much() })
            }
            // Commands of a source.
            TargetReply::Command(_) => None,
        }
    }

    /// Returns whether more can be sent. Without a connection, or with too many unacknowledged bytes, data is kept
    /// back.
    fn may_send(&self) -> bool {
        self.window.as_ref().is_none_or(|window| window.is_open() && self.link.is_some())
    }

    /// Passes all pending events to the state machine and performs its actions, until there are none or the job has
    /// ended.
    async fn handle_all(&mut self) -> Option<ExportOutcome> {
        loop {
            let pending = self.inputs.pop_front();
            let is_idle = pending.is_none();
            let input = match pending {
                Some(input) => input,
                None => {
                    let behind = self.behind()?;
                    self.migrations.note(&self.name, |job| job.progress.remaining = behind);
                    // Checked again with the next acknowledgement at the latest.
                    let settings = &self.migrations.engine.settings;
                    let may_pause = !settings.prevent_migration_pause.load(Ordering::Relaxed);
                    ExportEvent::Behind(if may_pause { behind } else { u64::MAX })
                }
            };
            let mut actions = Vec::new();
            self.machine.handle(time::instant(), input, &mut actions);
            // The end is recorded once its other actions were performed.
            if !matches!(actions.last(), Some(ExportAction::End(_))) {
                self.migrations.note_state(&self.name, self.machine.state_name());
            }
            if is_idle && actions.is_empty() {
                return None;
            }
            if let Some(outcome) = self.act_all(actions).await {
                return Some(outcome);
            }
        }
    }

    async fn act_all(&mut self, actions: Vec<ExportAction>) -> Option<ExportOutcome> {
        for action in actions {
            match action {
                ExportAction::End(outcome) => return Some(outcome),
                ExportAction::LogIn => self.log_in().await,
                ExportAction::AskResumable => {
                    self.write(&SyncSlots::AskResumable.encoded()).await;
                }
                ExportAction::Establish { resumable } => {
                    self.establish(resumable).await;
                    // Everything sent from here on can be repeated.
                    self.window = resumable.then(ResendWindow::default);
                }
                ExportAction::Reconnect => {
                    let outcome = self.reconnect().await;
                    let is_resumed = outcome == ExportEvent::Resumed;
                    self.inputs.push_back(outcome);
                    if is_resumed {
                        // The target may have sent more at once.
                        self.on_received();
                    }
                }
                ExportAction::Send(message) => {
                    self.write(&SyncSlots::Message(message).encoded()).await;
                }
                ExportAction::TakeSnapshot => self.cut(),
                ExportAction::HoldWrites => self.hold().await,
            }
        }
        None
    }

    /// Returns how much of the log remains to be read, once the snapshot is sent.
    fn behind(&self) -> Option<u64> {
        let cursor = self.cursor.filter(|_| self.streams)?;
        self.migrations.replication.log.lock().unread_bytes(cursor).ok()
    }

    fn look_at_topology(&mut self) {
        let Some(topology) = self.migrations.engine.topology.as_ref().map(|topology| topology.load_full())
        else {
            return;
        };
        // Checked first, since a node that lost its last slot becomes a replica of the node that took it.
        if serves(&topology, self.order.target, &self.slots) {
            self.inputs.push_back(ExportEvent::TakenByTarget);
        } else if self.migrations.replication.is_replica() {
            self.inputs.push_back(ExportEvent::Demoted);
        } else if !serves(&topology, topology.myself, &self.slots) {
            self.inputs.push_back(ExportEvent::TakenByOther);
        }
    }

    async fn connect(&mut self) -> ExportEvent {
        let timeout = self.migrations.config.get(keys::CLUSTER_NODE_TIMEOUT);
        match self.dial(timeout).await {
            Ok(stream) => {
                self.link = Some(tokio::io::split(stream));
                ExportEvent::Connected
            }
            Err(why) => ExportEvent::NotConnected(why),
        }
    }

    async fn dial(&self, timeout: Duration) -> Result<Stream, String> {
        let dialer =
            Dialer::with_link_tls(&self.migrations.config, &self.migrations.network.tls, keys::TLS_CLUSTER);
        let tls = self.migrations.config.get(keys::TLS_CLUSTER);
        let address = topology(self.migrations).ok().and_then(|topology| {
            let endpoint = &topology.member(self.order.target)?.endpoint;
            Some((endpoint.ip.clone(), endpoint.port_for(tls)))
        });
        let Some((host, port)) = address else { return Err("it is not known".to_owned()) };
        dialer.dial((host.as_str(), port), timeout).await.map_err(|error| error.to_string())
    }

    /// Reconnects: authenticates, asks how much was applied, and repeats the rest.
    async fn reconnect(&mut self) -> ExportEvent {
        let Ok(mut stream) = self.dial(RECONNECT_WITHIN).await else { return ExportEvent::NotResumed };
        let mut wire = credentials(&self.migrations.config.values()).unwrap_or_default();
        SyncSlots::Resume(self.name).encode(&mut wire);
        self.from_target.begin_link();
        let from_target = &mut self.from_target;
        let answered = tokio::time::timeout(RECONNECT_WITHIN, async {
            stream.write_all(&wire).await?;
            answer_of_resume(&mut stream, from_target).await
        });
        let count = match answered.await {
            Ok(Ok(Some(count))) => count,
            Ok(Ok(None)) => return ExportEvent::EndedByPeer,
            Ok(Err(_)) | Err(_) => return ExportEvent::NotResumed,
        };
        self.link = Some(tokio::io::split(stream));
        let Some(window) = &mut self.window else { return ExportEvent::NotResumed };
        if !window.acknowledge(count) {
            return applied_too_much();
        }
        let rest = window.unacknowledged().to_vec();
        if !self.transmit(&rest).await {
            return ExportEvent::NotResumed;
        }
        tracing::info!("Slot migration {} goes on with another link", self.name);
        ExportEvent::Resumed
    }

    async fn log_in(&mut self) {
        let wire = credentials(&self.migrations.config.values());
        self.write(&wire.unwrap_or_default()).await;
    }

    async fn establish(&mut self, resumable: bool) {
        let Ok(topology) = topology(self.migrations) else { return };
        let ranges = self.order.ranges.clone();
        let establish = Establish { source: topology.myself, name: self.name, ranges, resumable };
        self.write(&SyncSlots::Establish(establish).encoded()).await;
    }

    /// Sends bytes, and keeps them for a reconnect if the job can resume.
    async fn write(&mut self, bytes: &[u8]) {
        let keys = self.progress.keys.load(Ordering::Relaxed);
        self.migrations.note(&self.name, |job| {
            job.progress.bytes += bytes.len() as u64;
            job.progress.keys = Some(keys);
        });
        if let Some(window) = &mut self.window {
            window.push(bytes);
        }
        if self.link.is_some() && !self.transmit(bytes).await {
            self.inputs.push_back(ExportEvent::Closed);
        }
    }

    /// Sends bytes, or closes a connection that accepts nothing. Returns whether there is still a connection.
    async fn transmit(&mut self, bytes: &[u8]) -> bool {
        let Some((_, writer)) = &mut self.link else { return false };
        let timeout = self.migrations.config.get(keys::REPL_TIMEOUT);
        let written = tokio::time::timeout(timeout, writer.write_all(bytes)).await;
        if !matches!(written, Ok(Ok(()))) {
            self.link = None;
        }
        self.link.is_some()
    }

    /// Tells a target that waits for a reconnect that there will be none.
    async fn say_end(&mut self, outcome: &ExportOutcome) {
        if *outcome == ExportOutcome::Success || self.window.is_none() {
            return;
        }
        self.transmit(&SyncSlots::Finish(Finish::failed(self.name)).encoded()).await;
    }

    /// Starts the thread that writes the snapshot, which is never blocked by a disk or a socket.
    fn cut(&mut self) {
        let (pieces, chunks) = mpsc::channel(PIECES_AHEAD);
        let (migrations, slots, progress) =
            (self.migrations.clone(), self.slots.clone(), self.progress.clone());
        let walk_on = move || walk_slots(&migrations, &slots, &progress, &pieces);
        match std::thread::Builder::new().name("slot-snapshot".to_owned()).spawn(walk_on) {
            Ok(_) => self.chunks = Some(chunks),
            Err(error) => {
                self.inputs.push_back(ExportEvent::Failed(format!("No thread for a snapshot: {error}")));
            }
        }
    }

    /// Sends the part of the log that concerns the slots.
    async fn send_log(&mut self) {
        let Some(cursor) = self.cursor else { return };
        let (mut chunk, mut out) = (Vec::with_capacity(CHUNK), Vec::new());
        if self.migrations.replication.log.lock().read(cursor, CHUNK, &mut chunk).is_err() {
            let why = "The changes of the slots were more than the log keeps";
            return self.inputs.push_back(ExportEvent::Failed(why.to_owned()));
        }
        match self.filter.feed(&chunk, &mut out) {
            Ok(Seen::Changes) => {}
            Ok(Seen::Flush) => self.inputs.push_back(ExportEvent::Flushed),
            Err(error) => self.inputs.push_back(ExportEvent::Failed(error.to_string())),
        }
        if !out.is_empty() {
            self.write(&out).await;
        }
    }

    /// Pauses writes to the slots. Each slot is locked once, so every earlier write is in the log afterwards.
    async fn hold(&mut self) {
        for slot in self.slots.iter() {
            if !self.held.hold(slot) {
                let why = format!("Writes to slot {slot} cannot be held");
                return self.inputs.push_back(ExportEvent::Failed(why));
            }
        }
        let log = &self.migrations.replication.log;
        let end = log.lock().position().offset;
        let there = |cursor: CursorId| log.lock().cursor_offset(cursor).is_none_or(|at| at >= end);
        let before = self.inputs.len();
        while let Some(cursor) = self.cursor
            && !there(cursor)
        {
            self.send_log().await;
            let may_go_on = |input: &ExportEvent| *input == ExportEvent::Closed && self.window.is_some();
            if !self.inputs.iter().skip(before).all(may_go_on) {
                // The log could not be read, or no connection could be made.
                return;
            }
        }
        self.inputs.push_back(ExportEvent::Drained);
    }

    fn finish(&mut self) {
        self.progress.cancelled_flag.store(true, Ordering::Relaxed);
        if let Some(cursor) = self.cursor.take() {
            self.migrations.replication.log.lock().remove_cursor(cursor);
        }
    }
}

impl Drop for Source<'_> {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Slots whose writes are paused while this value exists.
struct HeldSlots<'a> {
    migrations: &'a Migrations,
    slots: Vec<Slot>,
}

impl HeldSlots<'_> {
    fn hold(&mut self, slot: Slot) -> bool {
        let held = self.migrations.pauses.hold_slot(slot);
        self.slots.extend(held.then_some(slot));
        held
    }
}

impl Drop for HeldSlots<'_> {
    fn drop(&mut self) {
        self.slots.iter().for_each(|slot| self.migrations.pauses.free_slot(*slot));
    }
}

fn applied_too_much() -> ExportEvent {
    ExportEvent::Failed("Target node has applied more than was sent".to_owned())
}

/// Reads how much the target has applied from its reply to RESUME; `None` if it does not know the job. The reply to
/// AUTH may come first.
async fn answer_of_resume(stream: &mut Stream, from_target: &mut TargetReplies) -> io::Result<Option<u64>> {
    loop {
        match from_target.next_reply().map_err(io::Error::other)? {
            Some(TargetReply::Applied(count)) => return Ok(Some(count)),
            Some(TargetReply::Refused(_)) => return Ok(None),
            Some(TargetReply::Accepted | TargetReply::Command(_)) => {}
            None if stream.read_buf(from_target.buffer()).await? == 0 => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            None => {}
        }
    }
}

async fn read(
    link: &mut Option<(ReadHalf<Stream>, WriteHalf<Stream>)>,
    received: &mut Vec<u8>,
) -> io::Result<usize> {
    match link {
        Some((reader, _)) => reader.read_buf(received).await,
        None => pending().await,
    }
}

async fn next_chunk(chunks: &mut Option<mpsc::Receiver<SnapshotChunk>>) -> Option<SnapshotChunk> {
    match chunks {
        Some(chunks) => chunks.recv().await,
        None => pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep(at.since(time::instant())).await,
        None => pending().await,
    }
}

/// Waits until the cursor has something to read; for ever if there is no cursor.
async fn log_grown(migrations: &Migrations, cursor: Option<CursorId>) {
    let Some(cursor) = cursor else { return pending().await };
    let log = &migrations.replication.log;
    log.wait_for_growth(|| (log.lock().unread_bytes(cursor) != Ok(0)).then_some(())).await;
}

fn walk_slots(
    migrations: &Migrations,
    slots: &SlotSet,
    progress: &SnapshotProgress,
    pieces: &mpsc::Sender<SnapshotChunk>,
) {
    let durability = &migrations.durability;
    let cut = snapshot::take_snapshot(durability, |log| {
        migrations.replication.log.open(log);
        // The next change selects its database.
        log.forget_db();
        let end = log.position().offset;
        log.add_own_cursor(end)
    });
    let (state, cursor) = match cut {
        Ok(cut) => cut,
        Err(error) => {
            tracing::debug!("A snapshot of slots waits: {error:#}");
            let _ = pieces.blocking_send(SnapshotChunk::Failed);
            return;
        }
    };
    if pieces.blocking_send(SnapshotChunk::Started(cursor)).is_err() {
        return migrations.replication.log.lock().remove_cursor(cursor);
    }
    let is_cancelled = || progress.cancelled_flag.load(Ordering::Relaxed);
    let progress = WriteProgress { written: Some(&progress.keys), is_cancelled: &is_cancelled };
    let mut out = Pieces(pieces);
    match snapshot::write_slots(durability, state, slots, progress, &mut out) {
        Ok(()) => drop(pieces.blocking_send(SnapshotChunk::End)),
        Err(error) => tracing::debug!("A snapshot of slots ended early: {error}"),
    }
}

/// Queues the written parts.
struct Pieces<'a>(&'a mpsc::Sender<SnapshotChunk>);

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(SnapshotChunk::Bytes(bytes.to_vec()));
        sent.map(|()| bytes.len()).map_err(|_| io::Error::other("the job has ended"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
