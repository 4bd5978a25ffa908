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
//! file, before anything is dropped ([`Check`]).

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use config::{DisklessLoad, keys};
use durability::loading;
use durability::{Durability, saving};
use engine::NodeFlags;
use replication::Position;
use replication::master_driver;
use snapshot_io::{LoadError, LoadResult};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

use super::Replication;
use super::serve::Event;

/// The maximum number of parts queued for decoding.
const PIECES_AHEAD: usize = 16;

/// The result of loading a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadOutcome {
    /// The snapshot has replaced the data.
    Loaded,
    /// The snapshot is invalid; the old data is unchanged.
    Rejected,
    /// The snapshot is invalid, and the old data is gone.
    DataLost,
}

/// Why the transfer of a snapshot is aborted.
#[derive(Debug, thiserror::Error)]
pub(super) enum IntakeError {
    #[error("Opening the temp file needed for PRIMARY <-> REPLICA synchronization: {0}")]
    Open(std::io::Error),
    #[error(
        "Write error writing to disk while receiving the snapshot for PRIMARY <-> REPLICA synchronization: {0}"
    )]
    Write(std::io::Error),
    #[error("{LOAD_FAILED}: {0}. The old data stays")]
    Rejected(LoadError),
    /// The loading thread has ended and has logged why.
    #[error("the snapshot that comes cannot be loaded")]
    LoadEnded,
}

/// Valkey's log message, which tools search for.
const LOAD_FAILED: &str = "Failed trying to load the PRIMARY synchronization DB";

/// A snapshot that is being received.
pub(super) enum Intake {
    File(ToFile),
    Direct(Direct),
}

/// A snapshot that is written to a file and loaded once it is complete.
pub(super) struct ToFile {
    file: tempfile::NamedTempFile,
    /// Decodes the snapshot during the transfer, if there is data to protect.
    check: Option<Check>,
}

/// Decodes a snapshot while it is written to its file. It runs concurrently with the transfer, so only the last parts
/// have to be waited for.
struct Check {
    pieces: Sender<Vec<u8>>,
    checking: JoinHandle<Result<(), LoadError>>,
}

/// A snapshot that is loaded while it is received.
pub(super) struct Direct {
    pieces: Sender<Vec<u8>>,
    /// Set once all bytes have been passed to the loader.
    whole: Arc<AtomicBool>,
    loading: JoinHandle<LoadOutcome>,
    /// Whether the old data is dropped when the load starts.
    pub(super) replaces: bool,
}

/// How a snapshot is loaded while it is received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// In place of the old data.
    Instead,
    /// Beside the old data, which may be served meanwhile.
    Beside { served: bool },
}

impl Intake {
    /// Prepares to receive a snapshot of `position` as configured.
    pub(super) async fn begin(
        replication: &Arc<Replication>,
        durability: &Arc<Durability>,
        position: Position,
        len: Option<u64>,
    ) -> Result<Self, IntakeError> {
        let Some(way) = way(replication, position) else {
            let file = saving::create_temporary_file(durability).map_err(IntakeError::Open)?;
            let check = (!is_empty(replication)).then(|| Check::begin(durability));
            return Ok(Self::File(ToFile { file, check }));
        };
        let whole = Arc::new(AtomicBool::new(false));
        let (pieces, reader) = pieces(whole.clone());
        let turn = replication.loading.clone().lock_owned().await;
        let (replication, durability) = (replication.clone(), durability.clone());
        let loading = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            load_directly(&replication, &durability, reader, (position, len.unwrap_or(0)), way)
        });
        Ok(Self::Direct(Direct { pieces, whole, loading, replaces: way == Way::Instead }))
    }

    /// Returns whether the old data has been dropped.
    pub(super) fn replaces(&self) -> bool {
        matches!(self, Self::Direct(Direct { replaces: true, .. }))
    }

    /// Returns the destination in the words of Valkey's log.
    pub(super) fn destination(&self) -> &'static str {
        match self {
            Self::File(_) => "disk",
            Self::Direct(_) => "parser",
        }
    }

    /// Adds received bytes.
    pub(super) async fn add(&mut self, bytes: Vec<u8>) -> Result<(), IntakeError> {
        match self {
            Self::File(ToFile { file, check }) => {
                file.write_all(&bytes).map_err(IntakeError::Write)?;
                let ended = match check {
                    Some(check) => check.pieces.send(bytes).await.is_err(),
                    None => false,
                };
                if ended && let Some(check) = check.take() {
                    // Bytes behind the end of a snapshot are ignored, as by the load.
                    check.finish().await?;
                }
                Ok(())
            }
            Self::Direct(direct) => direct.pieces.send(bytes).await.map_err(|_| IntakeError::LoadEnded),
        }
    }

    /// Finishes the transfer: the complete snapshot replaces the data.
    pub(super) async fn finish(
        self,
        replication: &Arc<Replication>,
        durability: &Arc<Durability>,
        position: Position,
    ) -> Result<JoinHandle<LoadOutcome>, IntakeError> {
        match self {
            Self::File(ToFile { file, check }) => {
                if let Some(check) = check {
                    check.finish().await?;
                }
                let turn = replication.loading.clone().lock_owned().await;
                let (replication, durability) = (replication.clone(), durability.clone());
                Ok(tokio::task::spawn_blocking(move || {
                    let _turn = turn;
                    load_file(&replication, &durability, file, position)
                }))
            }
            Self::Direct(Direct { pieces, whole, loading, .. }) => {
                whole.store(true, Ordering::Release);
                drop(pieces);
                Ok(loading)
            }
        }
    }

    /// Aborts the transfer. Returns the thread of a load that has started.
    pub(super) fn give_up(self) -> Option<JoinHandle<LoadOutcome>> {
        match self {
            Self::File(_) => None,
            Self::Direct(Direct { loading, .. }) => Some(loading),
        }
    }
}

impl Check {
    fn begin(durability: &Arc<Durability>) -> Self {
        let (pieces, reader) = pieces(Arc::default());
        let durability = durability.clone();
        let checking = tokio::task::spawn_blocking(move || loading::check(&durability, reader));
        Self { pieces, checking }
    }

    /// Signals the end of the snapshot and waits for the result.
    async fn finish(self) -> Result<(), IntakeError> {
        drop(self.pieces);
        match self.checking.await {
            Ok(checked) => checked.map_err(IntakeError::Rejected),
            // The process is stopping.
            Err(_) => Err(IntakeError::LoadEnded),
        }
    }
}

fn is_empty(replication: &Replication) -> bool {
    let keyspace = &replication.engine.keyspace;
    (0..keyspace.databases()).all(|db| keyspace.is_empty(db))
}

/// Decides how a snapshot of `position` is loaded directly; `None` if it goes to a file first.
fn way(replication: &Replication, position: Position) -> Option<Way> {
    match replication.config.get(keys::REPL_DISKLESS_LOAD) {
        DisklessLoad::FlushBeforeLoad => Some(Way::Instead),
        DisklessLoad::OnEmptyDb => is_empty(replication).then_some(Way::Instead),
        DisklessLoad::Swapdb => {
            let log = replication.log.lock();
            Some(Way::Beside { served: log.is_open() && log.position().id == position.id })
        }
        DisklessLoad::Disabled => None,
    }
}

/// A blocking reader of a snapshot that is being received.
struct Pieces {
    incoming: Receiver<Vec<u8>>,
    piece: Vec<u8>,
    read: usize,
    whole: Arc<AtomicBool>,
}

/// Creates the queue and its reader. `whole` must be set before the queue is closed if no part is missing.
fn pieces(whole: Arc<AtomicBool>) -> (Sender<Vec<u8>>, Pieces) {
    let (pieces, incoming) = channel(PIECES_AHEAD);
    (pieces, Pieces { incoming, piece: Vec::new(), read: 0, whole })
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.read == self.piece.len() {
            let Some(piece) = self.incoming.blocking_recv() else { return Ok(0) };
            (self.piece, self.read) = (piece, 0);
        }
        let len = buffer.len().min(self.piece.len() - self.read);
        buffer[..len].copy_from_slice(&self.piece[self.read..self.read + len]);
        self.read += len;
        Ok(len)
    }
}

impl Pieces {
    /// Returns whether the master sent the complete snapshot and nothing behind it.
    fn all_came(&mut self) -> bool {
        while self.incoming.blocking_recv().is_some() {}
        self.whole.load(Ordering::Acquire)
    }
}

fn load_directly(
    replication: &Replication,
    durability: &Durability,
    pieces: Pieces,
    (position, len): (Position, u64),
    way: Way,
) -> LoadOutcome {
    let apply_guard = replication.applied.apply_lock.lock();
    // Used by the loader and by the check for the end of the snapshot, one after the other.
    let pieces = std::cell::RefCell::new(pieces);
    let input = Shared(&pieces);
    let all_came = || pieces.borrow_mut().all_came();
    let mut kept = true;
    let loaded = match way {
        Way::Instead => {
            tracing::info!("PRIMARY <-> REPLICA sync: Loading DB in memory");
            let before = || {
                kept = false;
                replication.log.close();
            };
            loading::replace_by_stream(durability, input, len, before, all_came)
        }
        Way::Beside { served } => {
            tracing::info!("PRIMARY <-> REPLICA sync: Loading DB in memory, beside the old one");
            let before = || {
                replication.log.close();
                replication.tell(Event::Serve(master_driver::MasterDriverEvent::HistoryReplaced));
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

/// Lets the check for the end access the reader between reads.
struct Shared<'a>(&'a std::cell::RefCell<Pieces>);

impl Read for Shared<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().read(buffer)
    }
}

/// Loads a complete snapshot file and adopts its position.
fn load_file(
    replication: &Replication,
    durability: &Durability,
    file: tempfile::NamedTempFile,
    position: Position,
) -> LoadOutcome {
    let apply_guard = replication.applied.apply_lock.lock();
    tracing::info!("PRIMARY <-> REPLICA sync: Loading DB in memory");
    // The data belongs to no history until it is loaded.
    replication.log.close();
    let loaded = loading::replace_by_file(durability, file.path(), false);
    adopt_position(replication, &loaded, position);
    drop(apply_guard);
    // Before clients are served or the stream is applied: the file becomes the base of the data on disk.
    if let Ok(loaded) = &loaded {
        saving::keep_resync_file(durability, file, loaded.keys);
    }
    open_gates(replication);
    if loaded.is_ok() { LoadOutcome::Loaded } else { LoadOutcome::DataLost }
}

/// Adopts the position of the loaded snapshot.
fn adopt_position(replication: &Replication, loaded: &Result<LoadResult, LoadError>, position: Position) {
    match loaded {
        Ok(loaded) => {
            // The stream repeats the running imports at once.
            replication.applied.imports.end_all(&replication.engine);
            replication.master_imports.forget();
            replication.cluster_stream.on_states(&loaded.slot_states);
            replication.log.adopt_loaded(position);
            replication.applied.select(loaded.stream_db.unwrap_or(0));
            replication.applied.reset_missing();
            tracing::info!("PRIMARY <-> REPLICA sync: Finished with success, {} keys", loaded.keys);
        }
        Err(error) => tracing::warn!("{LOAD_FAILED}: {error}"),
    }
}

fn open_gates(replication: &Replication) {
    let loading = NodeFlags::LOADING.union(NodeFlags::ASYNC_LOADING);
    replication.engine.settings.set_node_flags(loading, NodeFlags::empty());
    // Blocked readers of streams may find entries now.
    replication.engine.retry_waiters();
}
