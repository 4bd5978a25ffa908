//! A snapshot on its way into the data.
//!
//! One thread reads and decodes the file; as many as there are workers store the keys ([`lanes`]), each those of its
//! own slots, so that they never wait for each other and a key's parts stay in order. The data on its way between them
//! is bounded, and so is the held part of a large hash beside the hash itself.

use std::io::Read;
use std::sync::atomic::Ordering;

use clock::Millis;
use engine::{Commands, Engine, Gate, Lazy};
use keyspace::{Keyspace, LockedSlots, Usage};
use persistence::{Entry, Item, Limits, RdbError, RdbLoader, Reason};
use slot_routing::{SLOT_COUNT, Slot};

use crate::host::{Host, Told};
use crate::skipped_keys::LeftOut;
use crate::store_queue::{Faults, Lane, lane};

/// Bytes that may be on their way to the storing threads, and as many again that they are working on.
const ON_THEIR_WAY: usize = 1 << 20;
/// A key with its value has so many bytes in a file at least: what is promised beyond that is a lie.
const LEAST_OF_A_KEY: u64 = 4;
/// So many of the keys that are passed over are named to users.
const MOST_NAMED: u64 = 10;
/// How far the load is is noted after so many items.
const ITEMS_PER_LOOK: usize = 1024;

/// Why a file was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be opened.
    #[error("{0}")]
    Open(#[from] std::io::Error),
    /// It cannot be read, or is none.
    #[error("{0}")]
    Read(#[from] RdbError),
    /// It has a database that there is not.
    #[error("the file has a database {0}, and there are only {1}")]
    Database(u16, u16),
    /// It ends too early.
    #[error("the master's connection ended before its snapshot did")]
    Incomplete,
    /// It has too much of one slot.
    #[error("the file has more small values of one slot than a slot can hold")]
    SlotFull,
    /// It has functions that do not load.
    #[error("the file has a library of functions that does not load: {0}")]
    Functions(#[from] scripting::FunctionError),
}

/// The result of a load.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Keys that it had.
    pub keys: u64,
    /// Keys that were past their time and left out.
    pub expired: u64,
    /// Keys whose collections have no elements, which are passed over.
    pub empty: u64,
    /// The keys and fields left out, which the followers of this node's history are to be told of.
    pub left_out: LeftOut,
    /// The history of the replication stream when the file was written.
    pub repl_id: Option<Vec<u8>>,
    /// The offset of the stream then.
    pub repl_offset: Option<i64>,
    /// The database that the stream had selected there.
    pub stream_db: Option<u16>,
    /// The slots that were on the move at the master whose snapshot it is.
    pub slot_states: Vec<u8>,
    /// Bytes up to its end; an old append-only file goes on behind that.
    pub bytes: u64,
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

/// Brings data into an engine.
#[derive(Clone, Copy)]
pub struct Loader<'a> {
    /// The engine.
    pub engine: &'a Engine,
    /// The commands that it runs.
    pub commands: &'a Commands,
    /// How many threads store keys.
    pub threads: usize,
    /// `rdbchecksum`
    pub verify_checksum: bool,
    /// So many bytes of deletions the log keeps.
    pub kept: u64,
    /// The process around it.
    pub host: &'a dyn Host,
}

impl std::fmt::Debug for Loader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl Loader<'_> {
    /// Replaces all data by that of a snapshot of about `len` bytes. Commands get LOADING from now on, until the caller
    /// says otherwise: when it is known what the data is, or what an empty data set means. Keys and fields that are past
    /// their time are left out if `drop_expired` (a master); a replica keeps them until its master says. `whole` is
    /// asked at the end whether all of it came.
    ///
    /// # Errors
    /// The snapshot cannot be read, or is none. Then no data is left, unless its header already says so.
    pub fn replace(
        &self,
        input: impl Read,
        len: u64,
        drop_expired: bool,
        whole: impl FnOnce() -> bool,
    ) -> Result<Loaded, LoadError> {
        self.replace_after(input, len, drop_expired, || (), whole)
    }

    /// [`Self::replace`], with `before` called right before the data is dropped: once the header is read.
    ///
    /// # Errors
    /// As [`Self::replace`]. The data is as it was if `before` was not called.
    pub fn replace_after(
        &self,
        input: impl Read,
        len: u64,
        drop_expired: bool,
        before: impl FnOnce(),
        whole: impl FnOnce() -> bool,
    ) -> Result<Loaded, LoadError> {
        let rdb = self.open(input)?;
        before();
        self.host.begin(len);
        clear(self.engine);
        let outcome = self.load(rdb, len, drop_expired);
        let outcome =
            outcome.and_then(|loaded| if whole() { Ok(loaded) } else { Err(LoadError::Incomplete) });
        if outcome.is_err() {
            // Half of a file is no data set.
            flush(self.engine);
        }
        self.engine.touch_all_watched();
        outcome
    }

    /// Replaces all data by the snapshot that comes, once that is there whole, as `whole` says; `before` is called right
    /// before. The old data stays until then, and is served if `served`, or else commands get LOADING until the caller
    /// says otherwise. It takes memory for both.
    ///
    /// # Errors
    /// As [`Self::replace`]. An error leaves everything as it was, and comes before `before` is called.
    pub fn replace_by_exchange(
        &self,
        input: impl Read,
        len: u64,
        served: bool,
        whole: impl FnOnce() -> bool,
        before: impl FnOnce(),
    ) -> Result<Loaded, LoadError> {
        let rdb = self.open(input)?;
        self.host.begin(len);
        let engine = self.engine;
        engine.settings.set_gate(if served { Gate::ASYNC_LOADING } else { Gate::LOADING }, true);
        // The hashes are as those of the first keyspace, whatever the seed.
        let aside = engine.keyspace.empty_alike(0);
        let loaded = self.load_into(&aside, rdb, len, false)?;
        if !whole() {
            return Err(LoadError::Incomplete);
        }
        engine.replace_libraries(&loaded.libraries, self.host.nanos())?;
        before();
        exchange(engine, &aside);
        engine.touch_all_watched();
        Ok(loaded)
    }

    /// Adds the data of a snapshot to what there is; of keys that both have, the snapshot's stay. Commands get LOADING
    /// as with [`Self::replace`].
    ///
    /// # Errors
    /// The snapshot cannot be read, or is none.
    pub fn add(&self, input: impl Read, len: u64, drop_expired: bool) -> Result<Loaded, LoadError> {
        let rdb = self.open(input)?;
        self.host.begin(len);
        self.engine.settings.set_gate(Gate::LOADING, true);
        let outcome = self.load(rdb, len, drop_expired);
        self.engine.touch_all_watched();
        outcome
    }

    /// Reads the header.
    pub(crate) fn open<R: Read>(&self, input: R) -> Result<RdbLoader<R>, LoadError> {
        let settings = &self.engine.settings;
        let unchecked = settings.skip_checksums.load(Ordering::Relaxed);
        let verify_checksum = self.verify_checksum && !unchecked;
        let limits = Limits { verify_checksum, checks: settings.file_checks(), ..Limits::default() };
        let mut rdb = RdbLoader::new(input, limits)?;
        rdb.set_limits(settings.limits());
        Ok(rdb)
    }

    fn load(&self, rdb: RdbLoader<impl Read>, len: u64, drop_expired: bool) -> Result<Loaded, LoadError> {
        let loaded = self.load_into(&self.engine.keyspace, rdb, len, drop_expired)?;
        self.engine.replace_libraries(&loaded.libraries, self.host.nanos())?;
        Ok(loaded)
    }

    fn load_into(
        &self,
        keyspace: &Keyspace,
        rdb: RdbLoader<impl Read>,
        len: u64,
        drop_expired: bool,
    ) -> Result<Loaded, LoadError> {
        let limits = self.engine.settings.limits();
        let (faults, share) = (Faults::default(), ON_THEIR_WAY / self.threads);
        let mut loaded = std::thread::scope(|scope| {
            let lanes = (0..self.threads).map(|_| {
                let (lane, storing) = lane(keyspace, limits, &faults, share);
                scope.spawn(move || storing.run());
                lane
            });
            let mut lanes: Vec<Lane> = lanes.collect();
            let outcome = self.read(rdb, len, drop_expired, &mut lanes);
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
            drop_expired_fields(keyspace, self.host.now(), &mut loaded, self.kept);
        }
        Ok(loaded)
    }

    /// Reads the snapshot to its end and gives each key to the thread of its slot.
    fn read(
        &self,
        mut loader: RdbLoader<impl Read>,
        len: u64,
        drop_expired: bool,
        lanes: &mut [Lane],
    ) -> Result<Loaded, LoadError> {
        let settings = &self.engine.settings;
        let databases = self.engine.keyspace.databases();
        let (now, by_frequency) = (self.host.now(), settings.lfu().is_some());
        let deletion = settings.deletion(Lazy::EXPIRE);
        let (mut loaded, mut lane, mut items) = (Loaded::default(), None, 0);
        loop {
            let offset = loader.offset();
            items += 1;
            if items % ITEMS_PER_LOOK == 0 {
                self.host.progress(offset, loaded.keys);
            }
            let Some(item) = loader.next_item()? else { break };
            match item {
                Item::Entry(entry) if drop_expired && entry.expiry.is_some_and(|expiry| expiry <= now) => {
                    loaded.expired += 1;
                    if entry.db < databases {
                        loaded.left_out.add(entry.db, &[deletion, entry.key], self.kept);
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
                    self.host.key_read();
                }
                Item::Empty(key) => {
                    self.skip_empty(key.key, &mut loaded);
                    lane = None;
                }
                Item::More { part, is_last } => {
                    if let Some(number) = lane {
                        lanes[number].add_part(part, is_last, offset);
                    }
                }
                Item::Aux { name: b"used-mem", value } => {
                    let used = resp::parse_i64(value).and_then(|used| u64::try_from(used).ok());
                    self.host.used_memory(used.unwrap_or(0));
                }
                Item::Sizes { keys, .. } => {
                    let keys = keys.min(len / LEAST_OF_A_KEY);
                    lanes.iter_mut().for_each(|lane| lane.expect(a_slots_share(keys)));
                }
                Item::Aux { name, value } => loaded.note(name, value),
                Item::Function(code) => loaded.libraries.push(code.to_vec()),
            }
        }
        loaded.bytes = loader.offset();
        self.host.progress(loaded.bytes, loaded.keys);
        Ok(loaded)
    }

    /// Counts a key without elements, which is not stored. The log names the first few.
    fn skip_empty(&self, key: &[u8], loaded: &mut Loaded) {
        loaded.empty += 1;
        if loaded.empty <= MOST_NAMED {
            self.host.tell(Told::EmptyKey(key));
        }
    }
}

/// Puts all keys of `aside` in the place of those that are here.
fn exchange(engine: &Engine, aside: &Keyspace) {
    let turn = engine.keyspace.script_turn();
    let mut taken = Vec::new();
    let databases = engine.keyspace.databases();
    for (number, slot) in engine.keyspace.slots().zip(LockedSlots::all(&turn).iter_mut()) {
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

/// Removes all data; commands get LOADING from now on.
pub fn clear(engine: &Engine) {
    engine.settings.set_gate(Gate::LOADING, true);
    flush(engine);
}

/// Removes every key of every database.
fn flush(engine: &Engine) {
    let turn = engine.keyspace.script_turn();
    let mut taken = Vec::new();
    for slot in LockedSlots::all(&turn).iter_mut() {
        taken.extend(slot.databases().into_iter().filter_map(|db| slot.take(db).table));
    }
    // The tables are dropped here, with no slot locked.
    drop(taken);
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
