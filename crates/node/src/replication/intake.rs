//! Where a master's snapshot goes as it comes: into a file that is loaded once it is whole, or straight into the data
//! (`repl-diskless-load`).
//!
//! | | what was here before | when the link breaks on the way |
//! | --- | --- | --- |
//! | `disabled` | is dropped when the file is whole | stays |
//! | `on-empty-db`, if nothing was | | nothing is here |
//! | `flush-before-load` | is dropped first | nothing is here |
//! | `swapdb` | is exchanged when all is there; served until then if it is of the same history | stays |

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::loading::{LoadError, Loaded};
use config::{DisklessLoad, keys};
use durability::loading;
use durability::{Durability, saving};
use engine::Gate;
use replication::Position;
use replication::serving;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

use super::Replication;
use super::serve::Event;

/// Pieces of the stream that may wait to be decoded.
const PIECES_AHEAD: usize = 16;

/// A snapshot on its way.
pub(super) enum Intake {
    File(tempfile::NamedTempFile),
    Direct(Direct),
}

/// One that is loaded as it comes.
pub(super) struct Direct {
    pieces: Sender<Vec<u8>>,
    /// All of it has been handed over.
    whole: Arc<AtomicBool>,
    loading: JoinHandle<bool>,
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
    ) -> Result<Self, String> {
        let Some(way) = way(replication, position) else {
            return saving::new_file(durability)
                .map(Self::File)
                .map_err(|error| format!("Opening the temp file needed for the sync: {error}"));
        };
        let (pieces, incoming) = channel(PIECES_AHEAD);
        let whole = Arc::new(AtomicBool::new(false));
        let reader = Pieces { incoming, piece: Vec::new(), read: 0, whole: whole.clone() };
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

    /// Takes the next bytes.
    pub(super) async fn add(&mut self, bytes: Vec<u8>) -> Result<(), String> {
        match self {
            Self::File(file) => {
                let written = file.write_all(&bytes);
                written.map_err(|error| format!("Write error writing the sync's temp file: {error}"))
            }
            Self::Direct(direct) => {
                let sent = direct.pieces.send(bytes).await;
                sent.map_err(|_| "The snapshot that comes cannot be loaded".to_owned())
            }
        }
    }

    /// All of it is here: has it be the data. Returns whether that worked.
    pub(super) async fn finish(
        self,
        replication: &Arc<Replication>,
        durability: &Arc<Durability>,
        position: Position,
    ) -> JoinHandle<bool> {
        match self {
            Self::File(file) => {
                let turn = replication.loading.clone().lock_owned().await;
                let (replication, durability) = (replication.clone(), durability.clone());
                tokio::task::spawn_blocking(move || {
                    let _turn = turn;
                    load_file(&replication, &durability, file, position)
                })
            }
            Self::Direct(Direct { pieces, whole, loading, .. }) => {
                whole.store(true, Ordering::Release);
                drop(pieces);
                loading
            }
        }
    }
}

/// How a snapshot of `position` is loaded as it comes; `None` if it goes to a file first.
fn way(replication: &Replication, position: Position) -> Option<Way> {
    let keyspace = &replication.engine.keyspace;
    match replication.config.get(keys::REPL_DISKLESS_LOAD) {
        DisklessLoad::FlushBeforeLoad => Some(Way::Instead),
        DisklessLoad::OnEmptyDb => {
            (0..keyspace.databases()).all(|db| keyspace.is_empty(db)).then_some(Way::Instead)
        }
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
) -> bool {
    let apply_turn = replication.applied.turn.lock();
    // Both the loader and the check for the end of the snapshot look at it, one after the other.
    let pieces = std::cell::RefCell::new(pieces);
    let input = Shared(&pieces);
    let all_came = || pieces.borrow_mut().all_came();
    let loaded = match way {
        Way::Instead => {
            tracing::info!("MASTER <-> REPLICA sync: Loading DB in memory");
            replication.log.close();
            loading::replace_by_stream(durability, input, len, all_came)
        }
        Way::Beside { served } => {
            tracing::info!("MASTER <-> REPLICA sync: Loading DB in memory, beside the old one");
            let before = || {
                let whole = all_came();
                if whole {
                    replication.log.close();
                    replication.tell(Event::Serve(serving::Input::HistoryReplaced));
                }
                whole
            };
            loading::replace_by_exchange(durability, input, len, served, before)
        }
    };
    adopt_position(replication, &loaded, position);
    drop(apply_turn);
    if let Ok(loaded) = &loaded {
        saving::note_synchronised(durability, loaded.keys);
    }
    open_gates(replication);
    loaded.is_ok()
}

/// Reads pieces that the check for the end looks at between reads.
struct Shared<'a>(&'a std::cell::RefCell<Pieces>);

impl Read for Shared<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().read(buffer)
    }
}

/// Loads a whole snapshot and takes over its position. Says whether that worked.
fn load_file(
    replication: &Replication,
    durability: &Durability,
    file: tempfile::NamedTempFile,
    position: Position,
) -> bool {
    let apply_turn = replication.applied.turn.lock();
    tracing::info!("MASTER <-> REPLICA sync: Loading DB in memory");
    // Until it is loaded, the data belongs to no history.
    replication.log.close();
    let loaded = loading::replace_by_file(durability, file.path(), false);
    adopt_position(replication, &loaded, position);
    drop(apply_turn);
    // Before anybody is served or applied: the file is the data.
    if let Ok(loaded) = &loaded {
        saving::keep_synchronised(durability, file, loaded.keys);
    }
    open_gates(replication);
    loaded.is_ok()
}

/// Takes over the position of what was loaded.
fn adopt_position(replication: &Replication, loaded: &Result<Loaded, LoadError>, position: Position) {
    match loaded {
        Ok(loaded) => {
            // Those that are under way in it the stream names at once.
            replication.applied.imports.forget(&replication.engine);
            replication.master_imports.forget();
            replication.cluster_stream.on_states(&loaded.slot_states);
            replication.log.adopt_loaded(position);
            replication.applied.select(loaded.stream_db.unwrap_or(0));
            replication.applied.forget_missing();
            tracing::info!("MASTER <-> REPLICA sync: Finished with success, {} keys", loaded.keys);
        }
        Err(error) => tracing::warn!("Failed trying to load the MASTER synchronization DB: {error}"),
    }
}

fn open_gates(replication: &Replication) {
    let loading = Gate::LOADING.union(Gate::ASYNC_LOADING);
    replication.engine.settings.set_gates(loading, Gate::empty());
}
