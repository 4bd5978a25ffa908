//! Threads that store the loaded keys.
//!
//! Each thread receives batches of keys through its own queue. It sorts the keys of a batch by slot and stores them
//! together, so that a slot's cache lines are fetched once, and creates tables with their expected final size. The
//! thread assembles a large value from its parts before it creates the key, so that no slot is locked meanwhile and at
//! most one batch of parts is in memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use clock::Millis;
use keyspace::{
    DetachedValue, EncodingLimits, KeyLookup, Keyspace, NewEntry, PackedValue, Usage, ValueSummary,
};
use persistence::RdbEntry;
use slot_routing::Slot;
use smallvec::SmallVec;

/// Number of keys whose memory is prefetched together.
pub(crate) const PREFETCH_BATCH: usize = 32;

/// Errors found by the storing threads.
#[derive(Debug)]
pub(crate) struct StoreErrors {
    /// File offset of the first large value with a duplicate element.
    first_duplicate_offset: AtomicU64,
    /// Whether a slot had no room for its keys.
    found_full_slot: AtomicBool,
}

impl Default for StoreErrors {
    fn default() -> Self {
        Self { first_duplicate_offset: AtomicU64::new(u64::MAX), found_full_slot: AtomicBool::new(false) }
    }
}

impl StoreErrors {
    /// Returns the file offset of a large value with a duplicate element, if one was found.
    pub(crate) fn first_duplicate_offset(&self) -> Option<u64> {
        Some(self.first_duplicate_offset.load(Ordering::Relaxed)).filter(|&offset| offset != u64::MAX)
    }

    /// Returns whether a slot had no room for its keys.
    pub(crate) fn found_full_slot(&self) -> bool {
        self.found_full_slot.load(Ordering::Relaxed)
    }
}

pub(crate) struct StoreQueue {
    sender: SyncSender<Batch>,
    /// Returns stored batches to the queue, so that their memory is reused.
    spare_batch: Receiver<Batch>,
    batch: Batch,
    /// Size in bytes at which the current batch is sent to the thread.
    max_batch_bytes: usize,
    /// Expected number of keys per slot in the current database.
    expected_keys_per_slot: usize,
}

/// The state of a storing thread: the data, its limits, and its batch channels.
pub(crate) struct StoreThread<'a> {
    keyspace: &'a Keyspace,
    limits: EncodingLimits,
    errors: &'a StoreErrors,
    batches: Receiver<Batch>,
    returned_batches: Sender<Batch>,
    max_batch_bytes: usize,
}

/// Keys that are sent to a thread. All names and values are stored in `bytes`.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    entries: Vec<QueuedEntry>,
    /// Expected final number of keys per slot.
    expected_keys_per_slot: usize,
}

/// A key with a complete value: its database and slot for sorting, and its index in the batch.
struct SlotOrderedKey {
    db: u16,
    slot: Slot,
    index: u32,
    summary: ValueSummary,
}

/// A key with its value, or a further part of the previous key's value.
struct QueuedEntry {
    db: u16,
    slot: Slot,
    /// Offset in the batch at which the key ends. The key starts where the previous entry ends.
    key_end: u32,
    end: u32,
    content: EntryContent,
    expiry: Option<Millis>,
    usage: Option<Usage>,
}

/// What the bytes that follow a key contain.
#[derive(Clone, Copy)]
enum EntryContent {
    Whole(ValueSummary),
    /// The first part of a large value; `offset` is the key's position in the file.
    FirstPart {
        summary: ValueSummary,
        offset: u64,
    },
    /// A further part of a large value; `offset` is its position in the file.
    NextPart {
        summary: ValueSummary,
        is_last: bool,
        offset: u64,
    },
}

/// A key whose large value is being assembled.
struct PartialValue {
    db: u16,
    key: Box<[u8]>,
    expiry: Option<Millis>,
    usage: Option<Usage>,
    value: DetachedValue,
}

/// Creates a queue and the thread state that receives from it. A batch is sent once it has `max_batch_bytes` bytes.
pub(crate) fn store_queue<'a>(
    keyspace: &'a Keyspace,
    limits: EncodingLimits,
    errors: &'a StoreErrors,
    max_batch_bytes: usize,
) -> (StoreQueue, StoreThread<'a>) {
    let ((sender, batches), (emptied, spare)) = (sync_channel(0), channel());
    let batch = Batch::default();
    (
        StoreQueue { sender, spare_batch: spare, batch, max_batch_bytes, expected_keys_per_slot: 0 },
        StoreThread { keyspace, limits, errors, batches, returned_batches: emptied, max_batch_bytes },
    )
}

impl StoreQueue {
    /// Adds a key with its value, or with the first part of it. `offset` is the key's position in the file.
    pub(crate) fn add(&mut self, slot: Slot, entry: &RdbEntry<'_>, usage: Option<Usage>, offset: u64) {
        let bytes = &mut self.batch.bytes;
        bytes.extend_from_slice(entry.key);
        let key_end = bytes.len() as u32;
        bytes.extend_from_slice(entry.packed_value.bytes());
        let about = entry.packed_value.summary();
        let content = if entry.is_part {
            EntryContent::FirstPart { summary: about, offset }
        } else {
            EntryContent::Whole(about)
        };
        let end = bytes.len() as u32;
        self.push(QueuedEntry { db: entry.db, slot, key_end, end, content, expiry: entry.expiry, usage });
    }

    /// Adds a further part of the value of the last key.
    pub(crate) fn add_part(&mut self, part: PackedValue<'_>, is_last: bool, offset: u64) {
        let key_end = self.batch.bytes.len() as u32;
        self.batch.bytes.extend_from_slice(part.bytes());
        let content = EntryContent::NextPart { summary: part.summary(), is_last, offset };
        let (end, slot) = (self.batch.bytes.len() as u32, Slot::of_key(b""));
        self.push(QueuedEntry { db: 0, slot, key_end, end, content, expiry: None, usage: None });
    }

    /// Announces the expected number of keys per slot in the current database.
    pub(crate) fn expect_keys(&mut self, keys_per_slot: usize) {
        self.send();
        self.expected_keys_per_slot = keys_per_slot;
    }

    fn push(&mut self, entry: QueuedEntry) {
        self.batch.entries.push(entry);
        if self.batch.bytes.len() >= self.max_batch_bytes {
            self.send();
        }
    }

    pub(crate) fn send(&mut self) {
        if !self.batch.entries.is_empty() {
            let spare = self.spare_batch.try_recv().unwrap_or_default();
            let mut batch = std::mem::replace(&mut self.batch, spare);
            batch.expected_keys_per_slot = self.expected_keys_per_slot;
            self.sender.send(batch).expect("a storing thread ends after its sender");
        }
    }
}

impl Batch {
    /// Returns the offset in the batch at which an entry starts.
    fn entry_start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.entries[before].end as usize)
    }

    /// Returns the key of an entry, and the bytes of its value.
    fn key_and_value(&self, index: usize) -> (&[u8], &[u8]) {
        let loose = &self.entries[index];
        let (key_end, end) = (loose.key_end as usize, loose.end as usize);
        (&self.bytes[self.entry_start(index)..key_end], &self.bytes[key_end..end])
    }

    /// Collects the keys with complete values, sorted by database and slot.
    fn collect_keys_by_slot(&self, sorted: &mut Vec<SlotOrderedKey>) {
        sorted.clear();
        let whole = self.entries.iter().enumerate();
        sorted.extend(whole.filter_map(|(number, loose)| match loose.content {
            EntryContent::Whole(about) => {
                Some(SlotOrderedKey { db: loose.db, slot: loose.slot, index: number as u32, summary: about })
            }
            EntryContent::FirstPart { .. } | EntryContent::NextPart { .. } => None,
        }));
        sorted.sort_unstable_by_key(|ordered| (ordered.db, ordered.slot, ordered.index));
    }

    fn clear(&mut self, max_bytes: usize) {
        self.entries.clear();
        self.bytes.clear();
        // Shrink the buffer, so that one long string does not occupy its memory forever.
        self.bytes.shrink_to(2 * max_bytes);
    }
}

impl StoreThread<'_> {
    /// Stores batches until the channel closes.
    pub(crate) fn run(self) {
        let (mut open, mut order) = (None, Vec::new());
        while let Ok(mut batch) = self.batches.recv() {
            self.assemble_large_values(&batch, &mut open);
            batch.collect_keys_by_slot(&mut order);
            order.chunks(PREFETCH_BATCH).for_each(|some| self.store_keys(&batch, some));
            batch.clear(self.max_batch_bytes);
            // Sending fails when the load has ended and the queue has been dropped.
            let _ = self.returned_batches.send(batch);
        }
    }

    /// Stores some keys of a batch. The keys must be sorted by slot.
    fn store_keys(&self, batch: &Batch, keys: &[SlotOrderedKey]) {
        let entry = |&SlotOrderedKey { slot, index: number, summary: about, .. }: &SlotOrderedKey| {
            let loose = &batch.entries[number as usize];
            let (key, bytes) = batch.key_and_value(number as usize);
            let (key, value) = (self.keyspace.key_in_slot(slot, key), PackedValue::from_parts(bytes, about));
            NewEntry { key, value, expiry: loose.expiry, usage: loose.usage }
        };
        let entries: SmallVec<[NewEntry<'_>; PREFETCH_BATCH]> = keys.iter().map(entry).collect();
        entries.iter().for_each(|entry| self.keyspace.prefetch_slot(&entry.key));
        self.keyspace.prefetch_entries(keys[0].db, entries.iter().map(|entry| &entry.key));
        let mut at = 0;
        for of_one in keys.chunk_by(|one, other| (one.db, one.slot) == (other.db, other.slot)) {
            let SlotOrderedKey { db, slot, .. } = of_one[0];
            let entries = &entries[at..at + of_one.len()];
            if !self.keyspace.lock(slot).table(db).bulk_load(entries, batch.expected_keys_per_slot) {
                self.errors.found_full_slot.store(true, Ordering::Relaxed);
            }
            at += of_one.len();
        }
    }

    /// Assembles large values from their parts; a key is created only when its value is complete.
    fn assemble_large_values(&self, batch: &Batch, partial_value: &mut Option<PartialValue>) {
        for (number, loose) in batch.entries.iter().enumerate() {
            let (key, bytes) = batch.key_and_value(number);
            match loose.content {
                EntryContent::Whole(_) => {}
                EntryContent::FirstPart { summary: about, offset } => {
                    let part = PackedValue::from_parts(bytes, about);
                    let mut value = DetachedValue::empty_large(part.kind());
                    self.add(&mut value, part, offset);
                    let (db, expiry, usage) = (loose.db, loose.expiry, loose.usage);
                    *partial_value = Some(PartialValue { db, key: key.into(), expiry, usage, value });
                }
                EntryContent::NextPart { summary: about, is_last, offset } => {
                    let value = &mut partial_value.as_mut().expect("the first part comes first").value;
                    self.add(value, PackedValue::from_parts(bytes, about), offset);
                    if is_last && let Some(whole) = partial_value.take() {
                        self.store_assembled_value(whole);
                    }
                }
            }
        }
    }

    fn add(&self, value: &mut DetachedValue, part: PackedValue<'_>, offset: u64) {
        if !value.add_part(part, &self.limits) {
            self.errors.first_duplicate_offset.fetch_min(offset, Ordering::Relaxed);
        }
    }

    fn store_assembled_value(&self, PartialValue { db, key, expiry, usage, value }: PartialValue) {
        let key = self.keyspace.key(&key);
        let mut slot = self.keyspace.lock(key.slot());
        let table = slot.table(db);
        if let KeyLookup::Live(place) | KeyLookup::Expired(place) = table.find(&key, Millis(i64::MIN)) {
            drop(table.remove(place, &key));
        }
        let place = table.attach(&key, value, expiry);
        if let Some(usage) = usage {
            table.set_usage(place, usage);
        }
    }
}
