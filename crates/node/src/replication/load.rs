//! A snapshot on its way into the data.

use std::io::Read;
use std::path::Path;

use clock::Millis;
use engine::Gate;
use keyspace::{Found, LockedSlots};
use persistence::{Entry, Item, Limits, RdbError, RdbLoader};

use crate::server::Server;

/// Why a file was not loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{0}")]
    Open(#[from] std::io::Error),
    #[error("{0}")]
    Read(#[from] RdbError),
    #[error("the file has a database {0}, and there are only {1}")]
    Database(u16, u16),
    #[error("the file holds functions, which are not supported")]
    Functions,
}

/// What was loaded.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Loaded {
    pub(crate) keys: u64,
    /// Keys that were past their time and left out.
    pub(crate) expired: u64,
    /// Where the replication stream stood when the file was written.
    pub(crate) repl_id: Option<Vec<u8>>,
    pub(crate) repl_offset: Option<i64>,
    /// The database that the stream had selected there.
    pub(crate) stream_db: Option<u16>,
}

/// Replaces all data by that of a file. Commands get LOADING meanwhile. Keys that are past their time
/// are left out if `drop_expired` (a master); a replica keeps them until its master says.
pub(crate) fn replace_by_file(server: &Server, path: &Path, drop_expired: bool) -> Result<Loaded, LoadError> {
    let file = std::fs::File::open(path)?;
    server.engine.settings.set_gate(Gate::LOADING, true);
    flush(server);
    let outcome = load(server, file, drop_expired);
    if outcome.is_err() {
        // Half of a file is nobody's data.
        flush(server);
    }
    server.engine.touch_all_watched();
    server.engine.settings.set_gate(Gate::LOADING, false);
    outcome
}

/// Removes every key of every database.
fn flush(server: &Server) {
    let _script_turn = server.engine.script_turn.lock();
    let keyspace = &server.engine.keyspace;
    let mut taken = Vec::new();
    for slot in LockedSlots::all(keyspace).iter_mut() {
        for db in 0..keyspace.databases() {
            taken.push(slot.take(db));
        }
    }
    // The tables are dropped here, with no slot locked.
    drop(taken);
}

fn load(server: &Server, input: impl Read, drop_expired: bool) -> Result<Loaded, LoadError> {
    let limits = Limits { verify_checksum: server.config.switch("rdbchecksum"), ..Limits::default() };
    let mut loader = RdbLoader::new(input, limits)?;
    let now = crate::time::now();
    let mut loaded = Loaded::default();
    while let Some(item) = loader.next_item()? {
        match item {
            Item::Entry(entry) if drop_expired && entry.expiry.is_some_and(|expiry| expiry <= now) => {
                loaded.expired += 1;
            }
            Item::Entry(entry) => {
                store(server, &entry)?;
                loaded.keys += 1;
            }
            Item::Aux { name: b"repl-id", value } => loaded.repl_id = Some(value.to_vec()),
            Item::Aux { name: b"repl-offset", value } => loaded.repl_offset = resp::parse_i64(value),
            Item::Aux { name: b"repl-stream-db", value } => {
                loaded.stream_db = resp::parse_i64(value).and_then(|db| u16::try_from(db).ok());
            }
            Item::Aux { .. } | Item::Sizes { .. } => {}
            Item::Function(_) => return Err(LoadError::Functions),
        }
    }
    Ok(loaded)
}

fn store(server: &Server, entry: &Entry<'_>) -> Result<(), LoadError> {
    let keyspace = &server.engine.keyspace;
    if entry.db >= keyspace.databases() {
        return Err(LoadError::Database(entry.db, keyspace.databases()));
    }
    let key = keyspace.key(entry.key);
    let mut slot = keyspace.lock(key.slot());
    let table = slot.table(entry.db);
    // A file names a key once, but nothing makes it.
    match table.find(&key, Millis(i64::MIN)) {
        Found::Missing => drop(table.insert(&key, entry.value, entry.expiry)),
        Found::Live(place) | Found::Expired(place) => {
            drop(table.replace(place, &key, entry.value, entry.expiry));
        }
    }
    Ok(())
}
