//! Sends a snapshot to replicas. One snapshot is taken for all replicas that requested it together. The slowest replica
//! determines the speed, and a replica that accepts nothing for `repl-timeout` is dropped.

use std::io::{self, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use durability::Durability;
use durability::pace::YieldPace;
use durability::snapshot::{self, RdbOptions, WriteProgress};
use durability::stream::random_repl_id;
use persistence::Dialect;
use replication::master::{PeerId, TransferId};
use replication::master_driver::{MasterDriverEvent, SnapshotPosition};
use replication::{ReplId, SnapshotContents};
use tokio::sync::mpsc;

use super::Replication;
use super::replication_thread::ReplicationEvent;

/// The size of a snapshot part in bytes, and the maximum number of parts queued for one replica.
const PART_SIZE: usize = 64 * 1024;
pub(crate) const MAX_QUEUED_PARTS: usize = 16;

/// A part of a snapshot. The last part is marked, so that an aborted snapshot is not mistaken for a complete one.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotPart {
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) is_last: bool,
}

/// The queue of parts for one replica's connection.
pub(crate) type PartSender = mpsc::Sender<SnapshotPart>;

/// The format, contents and receivers of a requested snapshot.
#[derive(Debug)]
pub(crate) struct SnapshotRequest {
    pub(crate) transfer: TransferId,
    pub(crate) dialect: Dialect,
    pub(crate) contents: SnapshotContents,
    /// The replicas for which the snapshot is started.
    pub(crate) peers: Vec<PeerId>,
    pub(crate) destination: SnapshotDestination,
    pub(crate) is_cancelled: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(crate) enum SnapshotDestination {
    /// The snapshot is streamed to these replicas while it is taken, with an end mark.
    Replicas(Vec<PartSender>),
    /// The snapshot is first written to a file. The senders for the replicas that will receive it come through this
    /// channel.
    File(std::sync::mpsc::Receiver<Vec<PartSender>>),
}

/// The replicas that receive a snapshot.
struct SnapshotReceivers {
    senders: Vec<PartSender>,
    is_cancelled: Arc<AtomicBool>,
}

/// Takes a snapshot and sends it. Runs on a thread of its own and reports by events.
pub(crate) fn run_transfer(durability: &Durability, replication: &Replication, request: SnapshotRequest) {
    let transfer = request.transfer;
    if let Err(error) = try_transfer(durability, replication, request) {
        tracing::warn!("The snapshot for replicas failed: {error:#}");
        replication.send_event(ReplicationEvent::MasterEvent(MasterDriverEvent::TransferFailed(transfer)));
    }
}

fn try_transfer(
    durability: &Durability,
    replication: &Replication,
    request: SnapshotRequest,
) -> anyhow::Result<()> {
    let SnapshotRequest { transfer, dialect, contents, peers, destination, is_cancelled: cancelled } =
        request;
    let mut is_created = false;
    let (mut state, noted) = snapshot::take_snapshot(durability, |log| {
        is_created = !log.is_open();
        replication.log.open(log);
        let selected_db = replication.applied_stream.selected_db_in_log(log);
        let noted = SnapshotPosition::record(log, transfer, &peers, selected_db);
        // The snapshot contains keys of slots that are being imported, so its receivers must know about the imports.
        replication.applied_stream.imports.repeat_running_imports_in_log(log);
        noted
    })?;
    if replication.engine.settings.debug.stops_at_snapshots.load(Ordering::Relaxed) {
        process::daemon::suspend_process();
    }
    if is_created {
        let (id, none) = (noted.position.id, ReplId::NONE);
        tracing::info!("Replication backlog created, my new replication IDs are '{id}' and '{none}'");
    }
    if !contents.includes_data {
        state.drop_data();
    }
    if !contents.includes_functions {
        state.drop_functions();
    }
    let keys = state.key_count();
    let pace = YieldPace::yielding(replication.engine.keyspace.used_bytes());
    let position = Some((noted.position, noted.db.unwrap_or(0)));
    replication.send_event(ReplicationEvent::MasterEvent(MasterDriverEvent::SnapshotTaken(noted)));
    // Later changes of the slot states are sent in the stream.
    let format_slot_states = || replication.cluster_stream.format_slot_states(&replication.engine);
    let slot_states = contents.includes_data.then(format_slot_states).unwrap_or_default();
    let form = RdbOptions { dialect, position, is_aof_base: false, slot_states };
    let shown = durability.rdb_saves.show_transfer_as_save(keys as u64);
    let is_cancelled = || cancelled.load(Ordering::Relaxed);
    let progress = WriteProgress { written_keys: Some(shown.written_keys()), is_cancelled: &is_cancelled };
    match destination {
        SnapshotDestination::Replicas(receivers) => {
            tracing::info!("Starting BGSAVE for SYNC with target: replicas sockets using: normal sync");
            let mut to = SnapshotReceivers { senders: receivers, is_cancelled: cancelled.clone() };
            let mark = random_repl_id();
            to.send_to_all(format!("$EOF:{mark}\r\n").as_bytes())?;
            snapshot::write_rdb(durability, state, &form, progress, pace, &mut to)?;
            to.finish(mark.as_str().as_bytes());
        }
        SnapshotDestination::File(receivers) => {
            tracing::info!("Starting BGSAVE for SYNC with target: disk using: normal sync");
            let mut file = tempfile::tempfile_in(".")?;
            snapshot::write_rdb(durability, state, &form, progress, pace, &mut file)?;
            let len = file.stream_position()?;
            file.seek(SeekFrom::Start(0))?;
            let event = MasterDriverEvent::SnapshotWritten(transfer);
            replication.send_event(ReplicationEvent::MasterEvent(event));
            let receivers = receivers.recv().map_err(|_| no_receivers_error())?;
            let mut to = SnapshotReceivers { senders: receivers, is_cancelled: cancelled.clone() };
            to.send_to_all(format!("${len}\r\n").as_bytes())?;
            io::copy(&mut file, &mut to)?;
            to.finish(&[]);
        }
    }
    Ok(())
}

fn no_receivers_error() -> io::Error {
    io::Error::other("nobody waits for it any more")
}

impl SnapshotReceivers {
    /// Sends bytes to all receivers that are still connected.
    fn send_to_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_cancelled.load(Ordering::Relaxed) {
            return Err(no_receivers_error());
        }
        for piece in bytes.chunks(PART_SIZE) {
            let piece = SnapshotPart { bytes: piece.into(), is_last: false };
            self.senders.retain(|receiver| receiver.blocking_send(piece.clone()).is_ok());
        }
        if self.senders.is_empty() { Err(io::Error::other("every replica has gone")) } else { Ok(()) }
    }

    /// Sends the last bytes, marked as the end of the snapshot.
    fn finish(self, bytes: &[u8]) {
        let piece = SnapshotPart { bytes: bytes.into(), is_last: true };
        for receiver in self.senders {
            // An error means that the receiver has disconnected, so it needs no end mark.
            let _ = receiver.blocking_send(piece.clone());
        }
    }
}

impl Write for SnapshotReceivers {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send_to_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
