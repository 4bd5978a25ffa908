//! Receives a master's snapshot, either into a file that is loaded once it is complete, or directly into the data
//! (`repl-diskless-load`).
//!
//! | `repl-diskless-load` | the old data | if the link breaks during the transfer |
//! | --- | --- | --- |
//! | `disabled` | is dropped once the file is complete and was decoded | the old data stays |
//! | `on-empty-db`, on an empty node | | the node stays empty |
//! | `flush-before-load` | is dropped once the header has been read | the node is empty |
//! | `swapdb` | is swapped out once everything is loaded; served until then if it is of the same history | the old data stays |
//!
//! Where the old data stays, a snapshot that cannot be loaded costs nothing: it is decoded while it is written to the
//! file, before anything is dropped ([`SnapshotCheck`]).

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use config::{DisklessLoad, keys};
use durability::loading;
use durability::{Durability, saving};
use engine::NodeFlags;
use replication::ReplPosition;
use replication::master_driver;
use snapshot_io::{LoadError, LoadResult};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

use super::Replication;
use super::replication_thread::ReplicationEvent;

/// The maximum number of parts queued for decoding.
const MAX_QUEUED_PARTS: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadOutcome {
    /// The snapshot has replaced the data.
    Loaded,
    /// The snapshot is invalid; the old data is unchanged.
    Rejected,
    /// The snapshot is invalid, and the old data is gone.
    DataLost,
}

/// Why the transfer of a snapshot was aborted.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error("Opening the temp file needed for PRIMARY <-> REPLICA synchronization: {0}")]
    OpenFile(std::io::Error),
    #[error(
        "Write error writing to disk while receiving the snapshot for PRIMARY <-> REPLICA synchronization: {0}"
    )]
    WriteFile(std::io::Error),
    #[error("{LOAD_FAILED_MESSAGE}: {0}. The old data stays")]
    Rejected(LoadError),
    /// The thread that loads the snapshot has ended and has logged the reason.
    #[error("the snapshot being received cannot be loaded")]
    LoadEnded,
}

/// Valkey's log message, which tools search for.
const LOAD_FAILED_MESSAGE: &str = "Failed trying to load the PRIMARY synchronization DB";

/// A snapshot that is being received, by its destination.
pub(super) enum SnapshotReceiver {
    ToFile(FileReceiver),
    Direct(DirectReceiver),
}

/// A snapshot that is written to a file and loaded once it is complete.
pub(super) struct FileReceiver {
    file: tempfile::NamedTempFile,
    /// Checks the snapshot during the transfer; `None` if there is no old data to protect.
    check: Option<SnapshotCheck>,
}

/// Decodes a snapshot on a helper thread while it is written to its file, so that at the end only the last parts remain
/// to be checked.
struct SnapshotCheck {
    parts: Sender<Vec<u8>>,
    thread: JoinHandle<Result<(), LoadError>>,
}

/// A snapshot that is loaded while it is received.
pub(super) struct DirectReceiver {
    parts: Sender<Vec<u8>>,
    /// Set once all bytes have been passed to the loader. If the queue closes before that, the transfer was aborted.
    is_complete: Arc<AtomicBool>,
    load_thread: JoinHandle<LoadOutcome>,
    /// Whether the old data is dropped when the load starts.
    pub(super) drops_old_data: bool,
}

/// How a snapshot is loaded while it is received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirectLoadMode {
    /// The snapshot replaces the old data, which is dropped first.
    ReplaceData,
    /// The snapshot is loaded beside the old data, which may be served meanwhile.
    BesideOldData { serves_old_data: bool },
}

impl SnapshotReceiver {
    /// Prepares to receive a snapshot of `position`, as `repl-diskless-load` requires.
    pub(super) async fn start(
        replication: &Arc<Replication>,
        durability: &Arc<Durability>,
        position: ReplPosition,
        len: Option<u64>,
    ) -> Result<Self, ReceiveError> {
        let Some(way) = direct_load_mode(replication, position) else {
            let file = saving::create_temporary_file(durability).map_err(ReceiveError::OpenFile)?;
            let check = (!has_no_data(replication)).then(|| SnapshotCheck::start(durability));
            return Ok(Self::ToFile(FileReceiver { file, check }));
        };
        let whole = Arc::new(AtomicBool::new(false));
        let (pieces, reader) = new_part_queue(whole.clone());
        let turn = replication.snapshot_load_lock.clone().lock_owned().await;
        let (replication, durability) = (replication.clone(), durability.clone());
        let loading = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            load_streamed(&replication, &durability, reader, position, len.unwrap_or(0), way)
        });
        Ok(Self::Direct(DirectReceiver {
            parts: pieces,
            is_complete: whole,
            load_thread: loading,
            drops_old_data: way == DirectLoadMode::ReplaceData,
        }))
    }

    /// Returns whether the old data has been dropped.
    pub(super) fn drops_old_data(&self) -> bool {
        matches!(self, Self::Direct(DirectReceiver { drops_old_data: true, .. }))
    }

    /// Returns the destination as Valkey's log names it.
    pub(super) fn log_name(&self) -> &'static str {
        match self {
            Self::ToFile(_) => "disk",
            Self::Direct(_) => "parser",
        }
    }

    pub(super) async fn receive(&mut self, bytes: Vec<u8>) -> Result<(), ReceiveError> {
        match self {
            Self::ToFile(FileReceiver { file, check }) => {
                file.write_all(&bytes).map_err(ReceiveError::WriteFile)?;
                let ended = match check {
                    Some(check) => check.parts.send(bytes).await.is_err(),
                    None => false,
                };
                if ended && let Some(check) = check.take() {
                    // Bytes after the end of a snapshot are ignored, as they are by the load.
                    check.finish().await?;
                }
                Ok(())
            }
            Self::Direct(direct) => direct.parts.send(bytes).await.map_err(|_| ReceiveError::LoadEnded),
        }
    }

    /// Finishes the transfer: starts to replace the data by the complete snapshot.
    pub(super) async fn finish(
        self,
        replication: &Arc<Replication>,
        durability: &Arc<Durability>,
        position: ReplPosition,
    ) -> Result<JoinHandle<LoadOutcome>, ReceiveError> {
        match self {
            Self::ToFile(FileReceiver { file, check }) => {
                if let Some(check) = check {
                    check.finish().await?;
                }
                let turn = replication.snapshot_load_lock.clone().lock_owned().await;
                let (replication, durability) = (replication.clone(), durability.clone());
                Ok(tokio::task::spawn_blocking(move || {
                    let _turn = turn;
                    load_file(&replication, &durability, file, position)
                }))
            }
            Self::Direct(DirectReceiver {
                parts: pieces, is_complete: whole, load_thread: loading, ..
            }) => {
                whole.store(true, Ordering::Release);
                drop(pieces);
                Ok(loading)
            }
        }
    }

    /// Aborts the transfer. Returns the loading thread if a load has started.
    pub(super) fn abort(self) -> Option<JoinHandle<LoadOutcome>> {
        match self {
            Self::ToFile(_) => None,
            Self::Direct(DirectReceiver { load_thread: loading, .. }) => Some(loading),
        }
    }
}

impl SnapshotCheck {
    fn start(durability: &Arc<Durability>) -> Self {
        let (pieces, reader) = new_part_queue(Arc::default());
        let durability = durability.clone();
        let checking = tokio::task::spawn_blocking(move || loading::check_snapshot(&durability, reader));
        Self { parts: pieces, thread: checking }
    }

    /// Closes the queue and waits for the result of the check.
    async fn finish(self) -> Result<(), ReceiveError> {
        drop(self.parts);
        match self.thread.await {
            Ok(checked) => checked.map_err(ReceiveError::Rejected),
            // The helper thread is gone, because the process is stopping.
            Err(_) => Err(ReceiveError::LoadEnded),
        }
    }
}

fn has_no_data(replication: &Replication) -> bool {
    let keyspace = &replication.engine.keyspace;
    (0..keyspace.database_count()).all(|db| keyspace.is_empty(db))
}

/// Decides how a snapshot of `position` is loaded during the transfer. `None` if it must go to a file first.
fn direct_load_mode(replication: &Replication, position: ReplPosition) -> Option<DirectLoadMode> {
    match replication.config.get(keys::REPL_DISKLESS_LOAD) {
        DisklessLoad::FlushBeforeLoad => Some(DirectLoadMode::ReplaceData),
        DisklessLoad::OnEmptyDb => has_no_data(replication).then_some(DirectLoadMode::ReplaceData),
        DisklessLoad::Swapdb => {
            let log = replication.log.lock();
            Some(DirectLoadMode::BesideOldData {
                serves_old_data: log.is_open() && log.position().id == position.id,
            })
        }
        DisklessLoad::Disabled => None,
    }
}

/// Reads the bytes of a snapshot that is being received. Blocks until the next part arrives.
struct PartReader {
    queue: Receiver<Vec<u8>>,
    current_part: Vec<u8>,
    consumed_bytes: usize,
    is_complete: Arc<AtomicBool>,
}

/// Creates a queue for the parts of a snapshot, and its reader. If all parts were sent, `is_complete` must be set before the sender is dropped.
fn new_part_queue(is_complete: Arc<AtomicBool>) -> (Sender<Vec<u8>>, PartReader) {
    let (pieces, incoming) = channel(MAX_QUEUED_PARTS);
    (pieces, PartReader { queue: incoming, current_part: Vec::new(), consumed_bytes: 0, is_complete })
}

impl Read for PartReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.consumed_bytes == self.current_part.len() {
            let Some(piece) = self.queue.blocking_recv() else { return Ok(0) };
            (self.current_part, self.consumed_bytes) = (piece, 0);
        }
        let len = buffer.len().min(self.current_part.len() - self.consumed_bytes);
        buffer[..len].copy_from_slice(&self.current_part[self.consumed_bytes..self.consumed_bytes + len]);
        self.consumed_bytes += len;
        Ok(len)
    }
}

impl PartReader {
    /// Returns whether the master sent the complete snapshot and nothing after its end.
    fn is_whole_snapshot(&mut self) -> bool {
        while self.queue.blocking_recv().is_some() {}
        self.is_complete.load(Ordering::Acquire)
    }
}

fn load_streamed(
    replication: &Replication,
    durability: &Durability,
    parts: PartReader,
    position: ReplPosition,
    len: u64,
    mode: DirectLoadMode,
) -> LoadOutcome {
    let apply_guard = replication.applied_stream.apply_lock.lock();
    // The loader and the check for the end of the snapshot use the reader alternately.
    let pieces = std::cell::RefCell::new(parts);
    let input = SharedReader(&pieces);
    let all_came = || pieces.borrow_mut().is_whole_snapshot();
    let mut kept = true;
    let loaded = match mode {
        DirectLoadMode::ReplaceData => {
            tracing::info!("PRIMARY <-> REPLICA sync: Loading DB in memory");
            let before = || {
                kept = false;
                replication.log.close();
            };
            loading::replace_data_from_stream(durability, input, len, before, all_came)
        }
        DirectLoadMode::BesideOldData { serves_old_data: served } => {
            tracing::info!("PRIMARY <-> REPLICA sync: Loading DB in memory, beside the old one");
            let before = || {
                replication.log.close();
                replication.send_event(ReplicationEvent::MasterEvent(
                    master_driver::MasterDriverEvent::HistoryReplaced,
                ));
            };
            loading::replace_by_exchange(durability, input, len, served, all_came, before)
        }
    };
    adopt_position(replication, &loaded, position);
    drop(apply_guard);
    if let Ok(loaded) = &loaded {
        saving::record_resync(durability, loaded.keys);
    }
    open_gates(replication);
    match loaded {
        Ok(_) => LoadOutcome::Loaded,
        Err(_) if kept => LoadOutcome::Rejected,
        Err(_) => LoadOutcome::DataLost,
    }
}

/// Shares the reader between the loader and the check for the end, which runs between reads.
struct SharedReader<'a>(&'a std::cell::RefCell<PartReader>);

impl Read for SharedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().read(buffer)
    }
}

/// Loads a complete snapshot file and adopts its position.
fn load_file(
    replication: &Replication,
    durability: &Durability,
    file: tempfile::NamedTempFile,
    position: ReplPosition,
) -> LoadOutcome {
    let apply_guard = replication.applied_stream.apply_lock.lock();
    tracing::info!("PRIMARY <-> REPLICA sync: Loading DB in memory");
    // Until the load has finished, the data belongs to no history.
    replication.log.close();
    let loaded = loading::replace_data_from_file(durability, file.path(), false);
    adopt_position(replication, &loaded, position);
    drop(apply_guard);
    // The file becomes the base of the data on disk before clients are served or the stream is applied.
    if let Ok(loaded) = &loaded {
        saving::adopt_resync_file(durability, file, loaded.keys);
    }
    open_gates(replication);
    if loaded.is_ok() { LoadOutcome::Loaded } else { LoadOutcome::DataLost }
}

/// Adopts the replication position of the loaded snapshot.
fn adopt_position(
    replication: &Replication,
    load_result: &Result<LoadResult, LoadError>,
    position: ReplPosition,
) {
    match load_result {
        Ok(loaded) => {
            // The imports in the old data are ended, because the stream repeats the running ones at once.
            replication.applied_stream.imports.end_all_imports(&replication.engine);
            replication.master_imports.clear();
            replication.cluster_stream.replace_slot_states(&loaded.slot_states);
            replication.log.adopt_loaded_history(position);
            // Offsets of the old history cannot be compared with those of the new one.
            replication.commit_point.begin_history();
            replication.applied_stream.select_db(loaded.stream_db.unwrap_or(0));
            replication.applied_stream.reset_missing_changes();
            tracing::info!("PRIMARY <-> REPLICA sync: Finished with success, {} keys", loaded.keys);
        }
        Err(error) => tracing::warn!("{LOAD_FAILED_MESSAGE}: {error}"),
    }
}

fn open_gates(replication: &Replication) {
    let loading = NodeFlags::LOADING.union(NodeFlags::ASYNC_LOADING);
    replication.engine.settings.set_node_flags(loading, NodeFlags::empty());
    // Clients that are blocked on streams may find entries in the new data.
    replication.engine.retry_waiters();
}
