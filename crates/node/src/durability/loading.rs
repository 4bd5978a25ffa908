//! A snapshot on its way into the data.
//!
//! One thread reads and decodes the file; as many as there are workers store the keys ([`lanes`]), each those of its
//! own slots, so that they never wait for each other and a key's parts stay in order. The data on its way between them
//! is bounded, and so is the held part of a large hash beside the hash itself.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use clock::Millis;
use config::keys;
use engine::{Engine, Gate, Lazy};
use keyspace::{Keyspace, LockedSlots, Usage};
use persistence::{Entry, Item, Limits, RdbError, RdbLoader, Reason};
use slot_routing::{SLOT_COUNT, Slot};

use super::lanes::{Faults, Lane, lane};
use super::left_out::LeftOut;
use super::snapshot::delay;
use crate::durability::Durability;

/// Bytes that may be on their way to the storing threads, and as many again that they are working on.
const ON_THEIR_WAY: usize = 1 << 20;
/// A key with its value has so many bytes in a file at least: what is promised beyond that is a lie.
const LEAST_OF_A_KEY: u64 = 4;
/// How far the load is is noted after so many items.
const ITEMS_PER_LOOK: usize = 1024;
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
    #[error("the master's connection ended before its snapshot did")]
    Incomplete,
    #[error("the file has more small values of one slot than a slot can hold")]
    SlotFull,
    #[error("the file has a library of functions that does not load: {0}")]
    Functions(#[from] scripting::FunctionError),
}

/// The result of a load.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Loaded {
    pub(crate) keys: u64,
    /// Keys that were past their time and left out.
    pub(crate) expired: u64,
    /// The keys and fields left out, which the followers of this node's history are to be told of.
    pub(crate) left_out: LeftOut,
    /// Where the replication stream stood when the file was written.
    pub(crate) repl_id: Option<Vec<u8>>,
    pub(crate) repl_offset: Option<i64>,
    /// The database that the stream had selected there.
    pub(crate) stream_db: Option<u16>,
    /// The slots that were on the move at the master whose snapshot it is.
    pub(crate) slot_states: Vec<u8>,
    /// Bytes up to its end; an old append-only file goes on behind that.
    pub(crate) bytes: u64,
    /// The texts of the libraries of functions.
    libraries: Vec<Vec<u8>>,
}

impl Loaded {
    /// Takes note of what the file says beside the data.
    fn note(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"repl-id" => self.repl_id = Some(value.to_vec()),
            b"repl-offset" => self.repl_offset = resp::parse_i64(value),
            b"repl-stream-db" => {
                self.stream_db = resp::parse_i64(value).and_then(|db| u16::try_from(db).ok());
            }
            b"cluster-slot-states" => self.slot_states = value.to_vec(),
            _ => {}
        }
    }
}

/// How far a load is.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    /// Wall clock in milliseconds.
    began: AtomicI64,
    total: AtomicU64,
    read: AtomicU64,
    /// The memory that the file's writer used, in bytes, as the file states it.
    used_memory: AtomicU64,
}

impl Loading {
    fn begin(&self, total: u64) {
        self.began.store(crate::process::time::now().0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
        self.used_memory.store(0, Ordering::Relaxed);
    }

    /// Percent done, and the seconds that the rest will take.
    fn estimate(&self) -> (f64, u64) {
        let (read, total) = (self.read.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        let took =
            (crate::process::time::now().0 - self.began.load(Ordering::Relaxed)).max(0) as f64 / 1000.0;
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

/// Replaces all data by that of a file. Commands get LOADING from now on, until the caller says otherwise: when it is
/// known what the data is, or what an empty data set means. Keys and fields that are past their time are left out if
/// `drop_expired` (a master); a replica keeps them until its master says.
pub(crate) fn replace_by_file(
    durability: &Durability,
    path: &Path,
    drop_expired: bool,
) -> Result<Loaded, LoadError> {
    let file = std::fs::File::open(path)?;
    let len = file.metadata()?.len();
    replace(durability, file, len, drop_expired, || true)
}

/// The same as [`replace_by_file`], of what comes over a connection.
pub(crate) fn replace_by_stream(
    durability: &Durability,
    input: impl Read,
    len: u64,
    whole: impl FnOnce() -> bool,
) -> Result<Loaded, LoadError> {
    replace(durability, input, len, false, whole)
}

fn replace(
    durability: &Durability,
    input: impl Read,
    len: u64,
    drop_expired: bool,
    whole: impl FnOnce() -> bool,
) -> Result<Loaded, LoadError> {
    durability.saving.loading.begin(len);
    clear(durability);
    let outcome = load(durability, input, drop_expired);
    let outcome = outcome.and_then(|loaded| if whole() { Ok(loaded) } else { Err(LoadError::Incomplete) });
    if outcome.is_err() {
        // Half of a file is no data set.
        flush(&durability.engine);
    }
    durability.engine.touch_all_watched();
    outcome
}

/// Replaces all data by the snapshot that comes, once that is there whole; `before` is called right before. The old
/// data stays until then, and is served if `served`, or else commands get LOADING until the caller says otherwise. It
/// takes memory for both. An error leaves everything as it was.
pub(crate) fn replace_by_exchange(
    durability: &Durability,
    input: impl Read,
    len: u64,
    served: bool,
    before: impl FnOnce() -> bool,
) -> Result<Loaded, LoadError> {
    durability.saving.loading.begin(len);
    let engine = &durability.engine;
    engine.settings.set_gate(if served { Gate::ASYNC_LOADING } else { Gate::LOADING }, true);
    // The hashes are as those of the first keyspace, whatever the seed.
    let aside = Keyspace::new(0, engine.keyspace.databases());
    let loaded = load_into(durability, &aside, input, false)?;
    if !before() {
        return Err(LoadError::Incomplete);
    }
    engine.replace_libraries(&loaded.libraries, crate::process::time::nanos)?;
    exchange(engine, &aside);
    engine.touch_all_watched();
    Ok(loaded)
}

/// Puts all keys of `aside` in the place of those that are here.
fn exchange(engine: &Engine, aside: &Keyspace) {
    let turn = engine.keyspace.script_turn();
    let mut taken = Vec::new();
    let databases = engine.keyspace.databases();
    for (number, slot) in Slot::all().zip(LockedSlots::all(&turn).iter_mut()) {
        let mut new = aside.lock(number);
        for db in 0..databases {
            taken.extend(slot.take(db).table);
            if let Some(table) = new.take(db).table {
                *slot.table(db) = table;
            }
        }
    }
    // The tables are dropped here, with no slot locked.
    drop(taken);
}

/// Adds the data of a file to what there is; of keys that both have, the file's stay. Commands get LOADING as with
/// [`replace_by_file`].
pub(crate) fn add_file(
    durability: &Durability,
    path: &Path,
    drop_expired: bool,
) -> Result<Loaded, LoadError> {
    let file = std::fs::File::open(path)?;
    durability.saving.loading.begin(file.metadata()?.len());
    durability.engine.settings.set_gate(Gate::LOADING, true);
    let outcome = load(durability, file, drop_expired);
    durability.engine.touch_all_watched();
    outcome
}

/// Removes all data; commands get LOADING from now on.
pub(crate) fn clear(durability: &Durability) {
    durability.engine.settings.set_gate(Gate::LOADING, true);
    flush(&durability.engine);
}

/// Removes every key of every database.
fn flush(engine: &Engine) {
    let turn = engine.keyspace.script_turn();
    let mut taken = Vec::new();
    for slot in LockedSlots::all(&turn).iter_mut() {
        taken.extend(slot.databases().filter_map(|db| slot.take(db).table));
    }
    // The tables are dropped here, with no slot locked.
    drop(taken);
}

fn load(durability: &Durability, input: impl Read, drop_expired: bool) -> Result<Loaded, LoadError> {
    let loaded = load_into(durability, &durability.engine.keyspace, input, drop_expired)?;
    durability.engine.replace_libraries(&loaded.libraries, crate::process::time::nanos)?;
    Ok(loaded)
}

fn load_into(
    durability: &Durability,
    keyspace: &Keyspace,
    input: impl Read,
    drop_expired: bool,
) -> Result<Loaded, LoadError> {
    let limits = durability.engine.settings.limits();
    let threads = durability.config.get(keys::IO_THREADS);
    let (faults, share) = (Faults::default(), ON_THEIR_WAY / threads);
    let mut loaded = std::thread::scope(|scope| {
        let lanes = (0..threads).map(|_| {
            let (lane, storing) = lane(keyspace, limits, &faults, share);
            scope.spawn(move || storing.run());
            lane
        });
        let mut lanes: Vec<Lane> = lanes.collect();
        let outcome = read(durability, input, drop_expired, &mut lanes);
        // All decoded entries are stored also before an error; the caller removes them.
        lanes.iter_mut().for_each(Lane::send);
        outcome
        // The scope ends when the threads have stored everything.
    })?;
    if faults.is_full() {
        return Err(LoadError::SlotFull);
    }
    if let Some(offset) = faults.twice() {
        let reason = Reason::BadValue("a value with the same element twice");
        return Err(RdbError { offset, reason }.into());
    }
    if drop_expired {
        let kept = durability.log.lock().capacity();
        drop_expired_fields(keyspace, crate::process::time::now(), &mut loaded, kept);
    }
    Ok(loaded)
}

/// Takes out the fields of hashes that are past their time, and the hashes of which none is left.
fn drop_expired_fields(keyspace: &Keyspace, now: Millis, loaded: &mut Loaded, kept: u64) {
    let (mut key, mut name) = (Vec::new(), Vec::new());
    for slot in keyspace.due_slots(now) {
        for (db, table) in keyspace.lock(slot).tables() {
            let before = table.len();
            while table.pop_due_field(now, &mut key, &mut name).is_some() {
                loaded.left_out.add(db, &[b"HDEL", &key, &name], kept);
            }
            loaded.keys = loaded.keys.saturating_sub((before - table.len()) as u64);
        }
    }
}

/// Shows how far the loading is, now and then.
struct Looks {
    items: usize,
    reported: clock::Instant,
}

impl Default for Looks {
    fn default() -> Self {
        Self { items: 0, reported: crate::process::time::instant() }
    }
}

impl Looks {
    fn count_item(&mut self, progress: &Loading, offset: u64, keys: u64) {
        self.items += 1;
        if self.items < ITEMS_PER_LOOK {
            return;
        }
        self.items = 0;
        progress.read.store(offset, Ordering::Relaxed);
        if crate::process::time::instant().since(self.reported) >= TELL_PERIOD {
            self.reported = crate::process::time::instant();
            let (percent, left) = progress.estimate();
            tracing::info!("Loading: {percent:.1} %, {keys} keys, about {left} seconds left");
        }
    }
}

/// Reads the file to its end and gives each key to the thread of its slot.
fn read(
    durability: &Durability,
    input: impl Read,
    drop_expired: bool,
    lanes: &mut [Lane],
) -> Result<Loaded, LoadError> {
    let unchecked = durability.engine.settings.skip_checksums.load(Ordering::Relaxed);
    let verify_checksum = durability.config.get(keys::RDBCHECKSUM) && !unchecked;
    let limits = Limits { verify_checksum, ..Limits::default() };
    let mut loader = RdbLoader::new(input, limits)?;
    loader.set_limits(durability.engine.settings.limits());
    let databases = durability.engine.keyspace.databases();
    let (now, by_frequency) = (crate::process::time::now(), durability.engine.settings.lfu().is_some());
    let mut loaded = Loaded::default();
    let progress = &durability.saving.loading;
    let key_delay = durability.config.get(keys::KEY_LOAD_DELAY);
    let (mut looks, mut lane) = (Looks::default(), None);
    let deletion = durability.engine.settings.deletion(Lazy::EXPIRE);
    let kept = durability.log.lock().capacity();
    loop {
        let offset = loader.offset();
        looks.count_item(progress, offset, loaded.keys);
        let Some(item) = loader.next_item()? else { break };
        match item {
            Item::Entry(entry) if drop_expired && entry.expiry.is_some_and(|expiry| expiry <= now) => {
                loaded.expired += 1;
                if entry.db < databases {
                    loaded.left_out.add(entry.db, &[deletion, entry.key], kept);
                }
                lane = None;
            }
            Item::Entry(entry) if entry.db >= databases => {
                return Err(LoadError::Database(entry.db, databases));
            }
            Item::Entry(entry) => {
                let slot = Slot::of_key(entry.key);
                let number = slot.index() % lanes.len();
                lanes[number].add(slot, &entry, usage_of(&entry, now, by_frequency), offset);
                lane = Some(number);
                loaded.keys += 1;
                delay(key_delay, 1);
            }
            Item::More { part, is_last } => {
                if let Some(number) = lane {
                    lanes[number].add_part(part, is_last, offset);
                }
            }
            Item::Aux { name: b"used-mem", value } => {
                let used = resp::parse_i64(value).and_then(|used| u64::try_from(used).ok());
                progress.used_memory.store(used.unwrap_or(0), Ordering::Relaxed);
            }
            Item::Sizes { keys, .. } => {
                let keys = keys.min(progress.total.load(Ordering::Relaxed) / LEAST_OF_A_KEY);
                lanes.iter_mut().for_each(|lane| lane.expect(a_slots_share(keys)));
            }
            Item::Aux { name, value } => loaded.note(name, value),
            Item::Function(code) => loaded.libraries.push(code.to_vec()),
        }
    }
    loaded.bytes = loader.offset();
    progress.read.store(loaded.bytes, Ordering::Relaxed);
    Ok(loaded)
}

/// How many of so many keys nearly every slot will have. A few more cost one step of growth, a few less would leave
/// lines of the index empty.
fn a_slots_share(keys: u64) -> usize {
    let mean = keys / SLOT_COUNT as u64;
    (mean - mean.isqrt()) as usize
}

/// A key's use as the file states it, if that is the measure that this server evicts by.
fn usage_of(entry: &Entry<'_>, now: Millis, by_frequency: bool) -> Option<Usage> {
    if by_frequency {
        entry.used.frequency.map(|counter| Usage::frequent(now, counter))
    } else {
        entry.used.idle_seconds.map(|seconds| Usage::idle(now, seconds))
    }
}
