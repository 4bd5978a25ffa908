//! Where a master's snapshot goes as it comes: into a file that is loaded once it is whole, or straight into the data
//! (`repl-diskless-load`).
//!
//! | | what was here before | when the link breaks on the way |
//! | --- | --- | --- |
//! | `disabled` | is dropped when the file is whole and was read through | stays |
//! | `on-empty-db`, if nothing was | | nothing is here |
//! | `flush-before-load` | is dropped once the header is read | nothing is here |
//! | `swapdb` | is exchanged when all is there; served until then if it is of the same history | stays |
//!
//! A snapshot that cannot be loaded costs nothing where the data stays: it is decoded as it comes, beside being written
//! to its file, before anything is dropped ([`Check`]).

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use config::{DisklessLoad, keys};
use durability::loading;
use durability::{Durability, saving};
use engine::Gate;
use replication::Position;
use replication::master_driver;
use snapshot_io::{LoadError, LoadResult};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

use super::Replication;
use super::serve::Event;

/// Pieces of the stream that may wait to be decoded.
const PIECES_AHEAD: usize = 16;

/// The result of a snapshot for the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadOutcome {
    /// The snapshot is the data.
    Loaded,
    /// The snapshot cannot be loaded, and the data is as it was before.
    Rejected,
    /// The snapshot cannot be loaded, and no data is left.
    DataLost,
}

/// Why a snapshot is taken in no further.
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
    /// The thread that loads what comes has ended, and has logged why.
    #[error("the snapshot that comes cannot be loaded")]
    LoadEnded,
}

/// Tools search for this text of Valkey's.
const LOAD_FAILED: &str = "Failed trying to load the PRIMARY synchronization DB";

/// A snapshot on its way.
pub(super) enum Intake {
    File(ToFile),
    Direct(Direct),
}

/// A snapshot that goes into a file, which is loaded once it is whole.
pub(super) struct ToFile {
    file: tempfile::NamedTempFile,
    /// There is data that the snapshot is to replace.
    check: Option<Check>,
}

/// The check of a snapshot while it is written to its file. It runs beside the transfer, so that only the last pieces
/// have to be waited for.
struct Check {
    pieces: Sender<Vec<u8>>,
    checking: JoinHandle<Result<(), LoadError>>,
}

/// One that is loaded as it comes.
pub(super) struct Direct {
    pieces: Sender<Vec<u8>>,
    /// All of it has been handed over.
    whole: Arc<AtomicBool>,
    loading: JoinHandle<LoadOutcome>,
    /// The earlier data is dropped when the load begins.
    pub(super) replaces: bool,
}

/// How a snapshot is loaded as it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// In the place of what was here.
    Instead,
    /// Beside it, which is served meanwhile or not.
    Beside { served: bool },
}

impl Intake {
    /// Gets ready for a snapshot of `position`, as the configuration wants it taken.
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

    /// Whether what was here is gone from now on.
    pub(super) fn replaces(&self) -> bool {
        matches!(self, Self::Direct(Direct { replaces: true, .. }))
    }

    /// Where the snapshot goes, in the words of Valkey's log.
    pub(super) fn destination(&self) -> &'static str {
        match self {
            Self::File(_) => "disk",
            Self::Direct(_) => "parser",
        }
    }

    /// Takes the next bytes.
    pub(super) async fn add(&mut self, bytes: Vec<u8>) -> Result<(), IntakeError> {
        match self {
            Self::File(ToFile { file, check }) => {
                file.write_all(&bytes).map_err(IntakeError::Write)?;
                let ended = match check {
                    Some(check) => check.pieces.send(bytes).await.is_err(),
                    None => false,
                };
                if ended && let Some(check) = check.take() {
                    // Bytes behind the end of a snapshot are passed over, as by the load.
                    check.finish().await?;
                }
                Ok(())
            }
            Self::Direct(direct) => direct.pieces.send(bytes).await.map_err(|_| IntakeError::LoadEnded),
        }
    }

    /// All of it is here: has it be the data.
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

    /// Ends without the rest: the link is lost, or the load has ended. `None` if no load was begun.
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

    /// No more bytes come: waits for the outcome.
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

/// How a snapshot of `position` is loaded as it comes; `None` if it goes to a file first.
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

/// A snapshot as a thread reads it that may wait.
struct Pieces {
    incoming: Receiver<Vec<u8>>,
    piece: Vec<u8>,
    read: usize,
    whole: Arc<AtomicBool>,
}

/// Where pieces go in, and where a thread reads them. `whole` is set before the first closes, if no piece is missing.
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
    /// Whether the master sent all of what it began, and nothing behind the end of what was loaded.
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
    // Both the loader and the check for the end of the snapshot look at it, one after the other.
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

/// Reads pieces that the check for the end looks at between reads.
struct Shared<'a>(&'a std::cell::RefCell<Pieces>);

impl Read for Shared<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().read(buffer)
    }
}

/// Loads a whole snapshot and takes over its position.
fn load_file(
    replication: &Replication,
    durability: &Durability,
    file: tempfile::NamedTempFile,
    position: Position,
) -> LoadOutcome {
    let apply_guard = replication.applied.apply_lock.lock();
    tracing::info!("PRIMARY <-> REPLICA sync: Loading DB in memory");
    // Until it is loaded, the data belongs to no history.
    replication.log.close();
    let loaded = loading::replace_by_file(durability, file.path(), false);
    adopt_position(replication, &loaded, position);
    drop(apply_guard);
    // Before anybody is served or applied: the file is the data.
    if let Ok(loaded) = &loaded {
        saving::keep_resync_file(durability, file, loaded.keys);
    }
    open_gates(replication);
    if loaded.is_ok() { LoadOutcome::Loaded } else { LoadOutcome::DataLost }
}

/// Takes over the position of what was loaded.
fn adopt_position(replication: &Replication, loaded: &Result<LoadResult, LoadError>, position: Position) {
    match loaded {
        Ok(loaded) => {
            // Those that are under way in it the stream names at once.
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
    let loading = Gate::LOADING.union(Gate::ASYNC_LOADING);
    replication.engine.settings.set_gates(loading, Gate::empty());
    // Streams that are read may have entries now.
    replication.engine.retry_waiters();
}
