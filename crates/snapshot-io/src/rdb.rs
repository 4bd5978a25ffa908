//! Loads a snapshot.
//!
//! One thread reads and decodes the file. As many threads as there are workers store the keys ([`crate::store_queue`]).
//! Each has its own slots, so the threads never wait for each other, and the parts of a key stay in order. The number
//! of bytes between reading and storing is limited, and so is the buffered part of a large hash.

use std::io::Read;
use std::sync::atomic::Ordering;

use clock::Millis;
use engine::{CommandSet, Engine, LazyFreeReason, NodeFlags};
use keyspace::{Keyspace, LockedSlots, Usage};
use persistence::{RdbEntry, RdbError, RdbErrorReason, RdbItem, RdbLoader, ReadLimits};
use slot_routing::{SLOT_COUNT, Slot};

use crate::host::{LoadEvent, LoadHost};
use crate::skipped_keys::SkippedKeyDeletions;
use crate::store_queue::{StoreErrors, StoreQueue, store_queue};

/// Maximum number of bytes queued for the storing threads. The threads may be processing as many again.
const MAX_BYTES_IN_FLIGHT: usize = 1 << 20;
/// Minimum number of bytes that a key and its value take in a file. A larger key count than this allows is ignored.
const MIN_BYTES_PER_KEY: u64 = 4;
/// Maximum number of skipped keys that are logged individually.
const MAX_LOGGED_KEYS: u64 = 10;
pub(crate) const DUPLICATE_ELEMENT_ERROR: RdbErrorReason =
    RdbErrorReason::BadValue("a value with the same element twice");
/// Number of items between two progress reports.
const ITEMS_PER_PROGRESS_REPORT: usize = 1024;

/// Why a snapshot was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be opened.
    #[error("{0}")]
    Open(#[from] std::io::Error),
    /// The file cannot be read or is malformed.
    #[error("{0}")]
    Read(#[from] RdbError),
    /// The file uses a database that is not configured: its number, and the highest allowed one.
    #[error("the file has a database {0}, and there are only {1}")]
    DatabaseOutOfRange(u16, u16),
    /// The file ends too early.
    #[error("the master's connection ended before its snapshot did")]
    Incomplete,
    /// The pages of a slot have no room for its keys.
    #[error("the file has more small values of one slot than a slot can hold")]
    SlotFull,
    /// A function library failed to load.
    #[error("the file has a library of functions that does not load: {0}")]
    Functions(#[from] scripting::FunctionError),
}

/// What a load found in the snapshot.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LoadResult {
    /// Number of keys in the file.
    pub keys: u64,
    /// Number of expired keys that were skipped.
    pub expired_keys: u64,
    /// Number of skipped keys with empty collections.
    pub empty_keys: u64,
    /// Commands that delete the skipped keys and fields on the replicas of this node.
    pub skipped_keys: SkippedKeyDeletions,
    /// The replication id that the snapshot states.
    pub repl_id: Option<Vec<u8>>,
    /// The replication offset that the snapshot states.
    pub repl_offset: Option<i64>,
    /// The database selected in the replication stream at `repl_offset`.
    pub stream_db: Option<u16>,
    /// The migrating slots that the snapshot states, in the format of [`persistence::RdbInfo::slot_states`].
    pub slot_states: Vec<u8>,
    /// Length of the RDB in bytes. In an old append-only file, commands follow it.
    pub rdb_bytes: u64,
    /// Source texts of the function libraries.
    libraries: Vec<Vec<u8>>,
}

impl LoadResult {
    /// Records a metadata field of the file if the field is relevant.
    fn record_aux(&mut self, name: &[u8], value: &[u8]) {
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

/// Loads snapshots and append-only files into an engine.
#[derive(Clone, Copy)]
pub struct Loader<'a> {
    /// The engine that receives the data.
    pub engine: &'a Engine,
    /// The command table for AOF commands.
    pub commands: &'a CommandSet,
    /// Number of threads that store keys.
    pub store_threads: usize,
    /// Whether to verify checksums (`rdbchecksum`).
    pub verify_checksum: bool,
    /// Maximum number of bytes of [`SkippedKeyDeletions`].
    pub max_deletion_bytes: u64,
    /// The process that runs the load.
    pub host: &'a dyn LoadHost,
}

impl std::fmt::Debug for Loader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader").field("threads", &self.store_threads).finish_non_exhaustive()
    }
}

impl Loader<'_> {
    /// Replaces all data with that of a snapshot of about `len` bytes. From now on commands get LOADING; the caller
    /// ends that state once the loaded (or empty) dataset may be served. With `drop_expired`, as on a master, expired
    /// keys and fields are skipped; a replica stores them until its master deletes them. `is_complete` is called at the
    /// end and returns whether the input was complete.
    ///
    /// # Errors
    /// The snapshot cannot be read or is malformed. The dataset is empty afterwards, unless the header was already
    /// invalid.
    pub fn replace_dataset(
        &self,
        input: impl Read,
        len: u64,
        drop_expired: bool,
        is_complete: impl FnOnce() -> bool,
    ) -> Result<LoadResult, LoadError> {
        self.replace_dataset_after(input, len, drop_expired, || (), is_complete)
    }

    /// Like [`Self::replace_dataset`], but calls `before_drop` after the header was read, directly before the old data is
    /// dropped.
    ///
    /// # Errors
    /// Same as [`Self::replace_dataset`]. If `before_drop` was not called, the data is unchanged.
    pub fn replace_dataset_after(
        &self,
        input: impl Read,
        len: u64,
        drop_expired: bool,
        before_drop: impl FnOnce(),
        is_complete: impl FnOnce() -> bool,
    ) -> Result<LoadResult, LoadError> {
        let rdb = self.open(input)?;
        before_drop();
        self.host.on_load_started(len);
        clear_for_loading(self.engine);
        let outcome = self.load(rdb, len, drop_expired);
        let outcome =
            outcome.and_then(|loaded| if is_complete() { Ok(loaded) } else { Err(LoadError::Incomplete) });
        if outcome.is_err() {
            // Drop the incomplete data.
            remove_all_keys(self.engine);
        }
        self.engine.invalidate_all_watches();
        outcome
    }

    /// Loads a snapshot into a second dataset, and swaps the two datasets if the snapshot is complete according to
    /// `is_complete`; `before_swap` is called directly before the swap. Until then, commands use the old data if
    /// `serve_old_data` is set; otherwise they get LOADING until the caller ends that state. Both datasets need memory
    /// at the same time.
    ///
    /// # Errors
    /// Same as [`Self::replace_dataset`], but the data is unchanged and `before_swap` was not called.
    pub fn replace_dataset_by_swap(
        &self,
        input: impl Read,
        len: u64,
        serve_old_data: bool,
        is_complete: impl FnOnce() -> bool,
        before_swap: impl FnOnce(),
    ) -> Result<LoadResult, LoadError> {
        let rdb = self.open(input)?;
        self.host.on_load_started(len);
        let engine = self.engine;
        engine
            .settings
            .set_node_flag(if serve_old_data { NodeFlags::ASYNC_LOADING } else { NodeFlags::LOADING }, true);
        // The seed has no effect, because hash secrets are set once per process.
        let aside = engine.keyspace.empty_like(0);
        let loaded = self.load_into(&aside, rdb, len, false)?;
        if !is_complete() {
            return Err(LoadError::Incomplete);
        }
        engine.replace_libraries(&loaded.libraries, self.host.nanos_clock())?;
        before_swap();
        swap_databases(engine, &aside);
        engine.invalidate_all_watches();
        Ok(loaded)
    }

    /// Adds a snapshot to the current data. The snapshot replaces keys that exist in both. Commands get LOADING, as in
    /// [`Self::replace_dataset`].
    ///
    /// # Errors
    /// The snapshot cannot be read or is malformed.
    pub fn add_to_dataset(
        &self,
        input: impl Read,
        len: u64,
        drop_expired: bool,
    ) -> Result<LoadResult, LoadError> {
        let rdb = self.open(input)?;
        self.host.on_load_started(len);
        self.engine.settings.set_node_flag(NodeFlags::LOADING, true);
        let outcome = self.load(rdb, len, drop_expired);
        self.engine.invalidate_all_watches();
        outcome
    }

    pub(crate) fn open<R: Read>(&self, input: R) -> Result<RdbLoader<R>, LoadError> {
        let settings = &self.engine.settings;
        let unchecked = settings.debug.skip_checksums.load(Ordering::Relaxed);
        let verify_checksum = self.verify_checksum && !unchecked;
        let limits = ReadLimits {
            verify_checksum,
            checks: settings.input_checks.for_files(),
            ..ReadLimits::default()
        };
        let mut rdb = RdbLoader::new(input, limits)?;
        rdb.set_limits(settings.value_limits.encoding_limits());
        Ok(rdb)
    }

    fn load(&self, rdb: RdbLoader<impl Read>, len: u64, drop_expired: bool) -> Result<LoadResult, LoadError> {
        let loaded = self.load_into(&self.engine.keyspace, rdb, len, drop_expired)?;
        self.engine.replace_libraries(&loaded.libraries, self.host.nanos_clock())?;
        Ok(loaded)
    }

    fn load_into(
        &self,
        keyspace: &Keyspace,
        rdb: RdbLoader<impl Read>,
        len: u64,
        drop_expired: bool,
    ) -> Result<LoadResult, LoadError> {
        let limits = self.engine.settings.value_limits.encoding_limits();
        let (errors, share) = (StoreErrors::default(), MAX_BYTES_IN_FLIGHT / self.store_threads);
        let mut loaded = std::thread::scope(|scope| {
            let store_queues = (0..self.store_threads).map(|_| {
                let (store_queue, storing) = store_queue(keyspace, limits, &errors, share);
                scope.spawn(move || storing.run());
                store_queue
            });
            let mut store_queues: Vec<StoreQueue> = store_queues.collect();
            let outcome = self.read_items(rdb, len, drop_expired, &mut store_queues);
            // Store all decoded entries even after an error, so that the caller can remove them.
            store_queues.iter_mut().for_each(StoreQueue::send);
            outcome
            // Leaving the scope waits for all threads.
        })?;
        if errors.found_full_slot() {
            return Err(LoadError::SlotFull);
        }
        if let Some(offset) = errors.first_duplicate_offset() {
            return Err(RdbError { offset, reason: DUPLICATE_ELEMENT_ERROR }.into());
        }
        if drop_expired {
            drop_expired_fields(keyspace, self.host.now(), &mut loaded, self.max_deletion_bytes);
        }
        Ok(loaded)
    }

    /// Reads the snapshot to its end and sends each key to the thread that stores its slot.
    fn read_items(
        &self,
        mut loader: RdbLoader<impl Read>,
        len: u64,
        drop_expired: bool,
        store_queues: &mut [StoreQueue],
    ) -> Result<LoadResult, LoadError> {
        let settings = &self.engine.settings;
        let databases = self.engine.keyspace.database_count();
        let (now, by_frequency) = (self.host.now(), settings.eviction.lfu().is_some());
        let deletion = settings.lazy_free.deletion_command(LazyFreeReason::EXPIRE);
        let (mut loaded, mut store_queue, mut items) = (LoadResult::default(), None, 0);
        loop {
            let offset = loader.offset();
            items += 1;
            if items % ITEMS_PER_PROGRESS_REPORT == 0 {
                self.host.report_progress(offset, loaded.keys);
            }
            let Some(item) = loader.next_item()? else { break };
            match item {
                RdbItem::Entry(entry) if drop_expired && entry.expiry.is_some_and(|expiry| expiry <= now) => {
                    loaded.expired_keys += 1;
                    if entry.db < databases {
                        loaded.skipped_keys.add(entry.db, &[deletion, entry.key], self.max_deletion_bytes);
                    }
                    store_queue = None;
                }
                RdbItem::Entry(entry) if entry.db >= databases => {
                    return Err(LoadError::DatabaseOutOfRange(entry.db, databases));
                }
                RdbItem::Entry(entry) => {
                    let (slot, usage) = (Slot::of_key(entry.key), usage_from_file(&entry, now, by_frequency));
                    let number = slot.index() % store_queues.len();
                    store_queues[number].add(slot, &entry, usage, offset);
                    store_queue = Some(number);
                    loaded.keys += 1;
                    self.host.on_key_read();
                }
                RdbItem::Empty(key) => {
                    self.count_empty_key(key.key, &mut loaded);
                    store_queue = None;
                }
                RdbItem::NextPart { part, is_last } => {
                    if let Some(number) = store_queue {
                        store_queues[number].add_part(part, is_last, offset);
                    }
                }
                RdbItem::Aux { name: b"used-mem", value } => {
                    let used = resp::parse_i64(value).and_then(|used| u64::try_from(used).ok());
                    self.host.on_used_memory(used.unwrap_or(0));
                }
                RdbItem::KeyCounts { keys, .. } => {
                    let keys = keys.min(len / MIN_BYTES_PER_KEY);
                    store_queues.iter_mut().for_each(|queue| queue.expect_keys(expected_keys_per_slot(keys)));
                }
                RdbItem::Aux { name, value } => loaded.record_aux(name, value),
                RdbItem::Function(code) => loaded.libraries.push(code.to_vec()),
            }
        }
        loaded.rdb_bytes = loader.offset();
        self.host.report_progress(loaded.rdb_bytes, loaded.keys);
        Ok(loaded)
    }

    /// Counts a skipped key with an empty collection. Only the first few such keys are logged.
    fn count_empty_key(&self, key: &[u8], loaded: &mut LoadResult) {
        loaded.empty_keys += 1;
        if loaded.empty_keys <= MAX_LOGGED_KEYS {
            self.host.report_event(LoadEvent::EmptyKey(key));
        }
    }
}

/// Swaps the keys of all databases between `loaded` and the engine.
fn swap_databases(engine: &Engine, loaded: &Keyspace) {
    let turn = engine.keyspace.acquire_global_lock();
    let mut taken = Vec::new();
    let databases = engine.keyspace.database_count();
    for (number, slot) in engine.keyspace.slots().zip(LockedSlots::lock_all(&turn).iter_mut()) {
        let mut new = loaded.lock(number);
        for db in 0..databases {
            taken.extend(slot.take_database(db).table);
            if let Some(table) = new.take_database(db).table {
                *slot.table(db) = table;
            }
        }
    }
    // Drop the old tables while no slot is locked.
    drop(taken);
}

/// Removes all data. Commands get LOADING until the caller ends that state.
pub fn clear_for_loading(engine: &Engine) {
    engine.settings.set_node_flag(NodeFlags::LOADING, true);
    remove_all_keys(engine);
}

/// Removes every key of every database.
fn remove_all_keys(engine: &Engine) {
    let turn = engine.keyspace.acquire_global_lock();
    let mut taken = Vec::new();
    for slot in LockedSlots::lock_all(&turn).iter_mut() {
        taken.extend(slot.databases().into_iter().filter_map(|db| slot.take_database(db).table));
    }
    // Drop the old tables while no slot is locked.
    drop(taken);
}

/// Removes expired hash fields, and the hashes that become empty.
fn drop_expired_fields(keyspace: &Keyspace, now: Millis, loaded: &mut LoadResult, max_deletion_bytes: u64) {
    let (mut key, mut name) = (Vec::new(), Vec::new());
    for slot in keyspace.slots_with_expiries_due(now) {
        for (db, table) in keyspace.lock(slot).tables() {
            let before = table.len();
            while table.remove_expired_field(now, &mut key, &mut name).is_some() {
                loaded.skipped_keys.add(db, &[b"HDEL", &key, &name], max_deletion_bytes);
            }
            loaded.keys = loaded.keys.saturating_sub((before - table.len()) as u64);
        }
    }
}

/// Returns the number of keys to preallocate per slot, given the total; nearly every slot has fewer keys. An estimate
/// that is slightly too low costs one growth step; one that is too high leaves index lines empty.
fn expected_keys_per_slot(keys: u64) -> usize {
    let mean = keys / SLOT_COUNT as u64;
    (mean - mean.isqrt()) as usize
}

/// Converts a key's usage information in the file; `None` if the current eviction policy does not use it.
fn usage_from_file(entry: &RdbEntry<'_>, now: Millis, is_lfu: bool) -> Option<Usage> {
    if is_lfu {
        entry.access_metadata.frequency.map(|counter| Usage::with_frequency(now, counter))
    } else {
        entry.access_metadata.idle_seconds.map(|seconds| Usage::with_idle_time(now, seconds))
    }
}
