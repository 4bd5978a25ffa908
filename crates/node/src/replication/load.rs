//! A snapshot on its way into the data.
//!
//! One thread reads and decodes the file; as many as there are workers store what it found, each the keys of
//! its own slots, so that they never wait for each other and a key's parts stay in order. What is on its way
//! between them is bounded.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use clock::Millis;
use engine::Gate;
use keyspace::{Found, HashBuilder, Keyspace, LockedSlots, Naming, NewValue};
use persistence::{Entry, Item, Limits, RdbError, RdbLoader};
use slot_routing::Slot;

use crate::server::Server;

/// A batch goes to its thread when it has so many bytes or keys.
const BATCH_BYTES: usize = 64 * 1024;
const BATCH_KEYS: usize = 1024;
/// Batches that may wait for a thread.
const BATCHES_AHEAD: usize = 4;
/// Keys whose memory is asked for at once.
const SWEEP: usize = 16;
/// A load that takes long says how far it is this often.
const TELL_PERIOD: Duration = Duration::from_secs(5);

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

/// How far a load is.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    /// Wall clock in milliseconds.
    began: AtomicI64,
    total: AtomicU64,
    read: AtomicU64,
    /// What the file says its writer used.
    used_memory: AtomicU64,
}

impl Loading {
    fn begin(&self, total: u64) {
        self.began.store(crate::time::now().0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
        self.used_memory.store(0, Ordering::Relaxed);
    }

    /// Percent done, and the seconds that the rest will take.
    fn estimate(&self) -> (f64, u64) {
        let (read, total) = (self.read.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        let took = (crate::time::now().0 - self.began.load(Ordering::Relaxed)).max(0) as f64 / 1000.0;
        let done = if total == 0 { 0.0 } else { read as f64 / total as f64 };
        let left = if done == 0.0 { 1.0 } else { took / done * (1.0 - done) };
        (done * 100.0, left.ceil() as u64)
    }

    /// The lines of INFO while data is loaded.
    pub(crate) fn info(&self, text: &mut String) {
        use std::fmt::Write;
        let (percent, left) = self.estimate();
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "loading_start_time:{}\r\nloading_total_bytes:{}\r\nloading_rdb_used_mem:{}\r\n\
             loading_loaded_bytes:{}\r\nloading_loaded_perc:{percent:.2}\r\nloading_eta_seconds:{left}\r\n",
            self.began.load(Ordering::Relaxed) / 1000,
            self.total.load(Ordering::Relaxed),
            self.used_memory.load(Ordering::Relaxed),
            self.read.load(Ordering::Relaxed),
        );
    }
}

/// Replaces all data by that of a file. Commands get LOADING meanwhile. Keys that are past their time
/// are left out if `drop_expired` (a master); a replica keeps them until its master says.
pub(crate) fn replace_by_file(server: &Server, path: &Path, drop_expired: bool) -> Result<Loaded, LoadError> {
    let file = std::fs::File::open(path)?;
    server.saving.loading.begin(file.metadata()?.len());
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
        taken.extend(slot.databases().filter_map(|db| slot.take(db).table));
    }
    // The tables are dropped here, with no slot locked.
    drop(taken);
}

fn load(server: &Server, input: impl Read, drop_expired: bool) -> Result<Loaded, LoadError> {
    let keyspace = &server.engine.keyspace;
    let threads = usize::try_from(server.config.integer("io-threads")).unwrap_or(1).max(1);
    std::thread::scope(|scope| {
        let lanes = (0..threads).map(|_| {
            let (sender, batches) = sync_channel(BATCHES_AHEAD);
            scope.spawn(move || store_all(keyspace, &batches));
            Lane { sender, batch: Batch::default() }
        });
        let mut lanes: Vec<Lane> = lanes.collect();
        let outcome = read(server, input, drop_expired, &mut lanes);
        // What was decoded is stored also before an error; the caller removes it.
        lanes.iter_mut().for_each(Lane::send);
        outcome
        // The scope ends when the threads have stored everything.
    })
}

/// Reads the file to its end and gives each key to the thread of its slot.
fn read(
    server: &Server,
    input: impl Read,
    drop_expired: bool,
    lanes: &mut [Lane],
) -> Result<Loaded, LoadError> {
    let limits = Limits { verify_checksum: server.config.switch("rdbchecksum"), ..Limits::default() };
    let mut loader = RdbLoader::new(input, limits)?;
    loader.set_hash_limits(server.engine.settings.hash_limits());
    let databases = server.engine.keyspace.databases();
    let now = crate::time::now();
    let mut loaded = Loaded::default();
    let mut told = crate::time::instant();
    let progress = &server.saving.loading;
    let mut since_look = 0;
    loop {
        since_look += 1;
        if since_look == BATCH_KEYS {
            since_look = 0;
            progress.read.store(loader.offset(), Ordering::Relaxed);
            if crate::time::instant().since(told) >= TELL_PERIOD {
                told = crate::time::instant();
                let (percent, left) = progress.estimate();
                tracing::info!("Loading: {percent:.1} %, {} keys, about {left} seconds left", loaded.keys);
            }
        }
        let Some(item) = loader.next_item()? else { break };
        match item {
            Item::Entry(entry) if drop_expired && entry.expiry.is_some_and(|expiry| expiry <= now) => {
                loaded.expired += 1;
            }
            Item::Entry(entry) if entry.db >= databases => {
                return Err(LoadError::Database(entry.db, databases));
            }
            Item::Entry(entry) => {
                lanes[Slot::of_key(entry.key).index() % lanes.len()].add(&entry);
                loaded.keys += 1;
            }
            Item::Aux { name: b"repl-id", value } => loaded.repl_id = Some(value.to_vec()),
            Item::Aux { name: b"repl-offset", value } => loaded.repl_offset = resp::parse_i64(value),
            Item::Aux { name: b"repl-stream-db", value } => {
                loaded.stream_db = resp::parse_i64(value).and_then(|db| u16::try_from(db).ok());
            }
            Item::Aux { name: b"used-mem", value } => {
                let used = resp::parse_i64(value).and_then(|used| u64::try_from(used).ok());
                progress.used_memory.store(used.unwrap_or(0), Ordering::Relaxed);
            }
            Item::Aux { .. } | Item::Sizes { .. } => {}
            Item::Function(_) => return Err(LoadError::Functions),
        }
    }
    progress.read.store(loader.offset(), Ordering::Relaxed);
    Ok(loaded)
}

/// The way to one of the storing threads.
struct Lane {
    sender: SyncSender<Batch>,
    batch: Batch,
}

/// Keys on their way to a thread; keys and strings lie in `bytes`.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    keys: Vec<Loose>,
}

/// A key that was read.
struct Loose {
    db: u16,
    /// Where in the batch the key ends; it starts where the one before it ended.
    key_end: usize,
    end: usize,
    /// A string's bytes lie behind the key.
    hash: Option<Box<HashBuilder>>,
    naming: Naming,
    expiry: Option<Millis>,
}

impl Lane {
    fn add(&mut self, entry: &Entry<'_>) {
        let Batch { bytes, keys } = &mut self.batch;
        bytes.extend_from_slice(entry.key);
        let key_end = bytes.len();
        let (hash, naming) = match entry.value {
            NewValue::String(string) => {
                bytes.extend_from_slice(string.bytes);
                (None, string.naming)
            }
            NewValue::Hash(builder) => (Some(Box::new(builder.clone())), Naming::ByContent),
        };
        keys.push(Loose { db: entry.db, key_end, end: bytes.len(), hash, naming, expiry: entry.expiry });
        if bytes.len() >= BATCH_BYTES || keys.len() >= BATCH_KEYS {
            self.send();
        }
    }

    fn send(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if !batch.keys.is_empty() {
            self.sender.send(batch).expect("a storing thread ends after its sender");
        }
    }
}

/// Stores batches until no more come.
fn store_all(keyspace: &Keyspace, batches: &Receiver<Batch>) {
    while let Ok(batch) = batches.recv() {
        let mut start = 0;
        for part in batch.keys.chunks(SWEEP) {
            let mut at = start;
            for loose in part {
                keyspace.touch_slot(&keyspace.key(&batch.bytes[at..loose.key_end]));
                at = loose.end;
            }
            for loose in part {
                store(keyspace, &batch.bytes[start..loose.end], loose.key_end - start, loose);
                start = loose.end;
            }
        }
    }
}

fn store(keyspace: &Keyspace, bytes: &[u8], key_len: usize, loose: &Loose) {
    let (key, string) = bytes.split_at(key_len);
    let value = match &loose.hash {
        Some(builder) => NewValue::Hash(builder),
        None => NewValue::String(keyspace::Str { bytes: string, naming: loose.naming }),
    };
    let key = keyspace.key(key);
    let mut slot = keyspace.lock(key.slot());
    let table = slot.table(loose.db);
    // A file names a key once, but nothing makes it.
    match table.find(&key, Millis(i64::MIN)) {
        Found::Missing => drop(table.insert(&key, value, loose.expiry)),
        Found::Live(place) | Found::Expired(place) => {
            drop(table.replace(place, &key, value, loose.expiry));
        }
    }
}
