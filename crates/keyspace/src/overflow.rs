//! Overflow values: keys and values that are too large for a page.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::chunked::ChunkedVec;
use crate::entry::TypeCode;
use crate::large::{Collection, LargeValue};
use crate::order::SecondaryOrder;

/// Bytes of all overflow records and sorted-set orders of the process, without the pages of collections.
static OVERFLOW_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Number of bytes of the process that only snapshots still need.
static SNAPSHOT_ONLY_BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Total bytes of tree nodes that edits on this thread copied or removed, and that now belong only to the snapshots
    /// that shared them.
    static REPLACED_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of bytes that only snapshots still need: page entries, long strings, packed collections, and
/// former nodes of lists and streams.
#[must_use]
pub fn snapshot_only_bytes() -> usize {
    SNAPSHOT_ONLY_BYTES.load(Ordering::Relaxed)
}

/// Adds `added` to the number of bytes that only snapshots need, and subtracts `removed`.
pub(crate) fn count_snapshot_only_bytes(added: usize, removed: usize) {
    SNAPSHOT_ONLY_BYTES.fetch_add(added, Ordering::Relaxed);
    SNAPSHOT_ONLY_BYTES.fetch_sub(removed, Ordering::Relaxed);
}

/// Adds `added` to the number of overflow bytes, and subtracts `removed`.
pub(crate) fn count_overflow_bytes(added: usize, removed: usize) {
    OVERFLOW_BYTES.fetch_add(added, Ordering::Relaxed);
    OVERFLOW_BYTES.fetch_sub(removed, Ordering::Relaxed);
}

/// Returns the total overflow bytes, without the pages of large collections.
pub(crate) fn overflow_bytes() -> usize {
    OVERFLOW_BYTES.load(Ordering::Relaxed)
}

/// Counts bytes of a large value that are neither in pages nor in a record, until the counter is dropped. A clone
/// counts them again.
#[derive(Debug, Default)]
pub(crate) struct CountedBytes(usize);

impl CountedBytes {
    #[inline]
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes != self.0 {
            OVERFLOW_BYTES.fetch_add(bytes, Ordering::Relaxed);
            OVERFLOW_BYTES.fetch_sub(self.0, Ordering::Relaxed);
            self.0 = bytes;
        }
    }
}

impl Clone for CountedBytes {
    fn clone(&self) -> Self {
        record_replaced_bytes(self.0);
        let mut copy = Self::default();
        copy.set(self.0);
        copy
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Records that an edit copied or removed nodes of this many bytes, which now belong only to snapshots.
pub(crate) fn record_replaced_bytes(bytes: usize) {
    REPLACED_BYTES.set(REPLACED_BYTES.get().wrapping_add(bytes));
}

/// Returns the total bytes of nodes that edits on this thread have copied or removed so far.
pub(crate) fn total_replaced_bytes() -> usize {
    REPLACED_BYTES.get()
}

/// The number of bytes that only one snapshot still needs, for a value whose nodes are shared. It never exceeds the
/// size of the value.
#[derive(Debug)]
pub(crate) struct SnapshotOnlyBytes {
    bytes: usize,
    max_bytes: usize,
}

impl SnapshotOnlyBytes {
    /// Creates a counter at zero for a value of at most `max` bytes.
    pub(crate) fn with_limit(max: usize) -> Self {
        Self { bytes: 0, max_bytes: max }
    }

    /// Adds the bytes of nodes that edits copied or removed since [`total_replaced_bytes`] returned `earlier_total`. The
    /// snapshot must have shared these nodes.
    pub(crate) fn add_bytes_replaced_since(&mut self, earlier_total: usize) {
        let more = total_replaced_bytes().wrapping_sub(earlier_total).min(self.max_bytes - self.bytes);
        count_snapshot_only_bytes(more, 0);
        self.bytes += more;
    }
}

impl Drop for SnapshotOnlyBytes {
    fn drop(&mut self) {
        count_snapshot_only_bytes(0, self.bytes);
    }
}

/// A value that can be stored outside the pages of an entry store. For keys this is a string, a packed collection or a
/// large one ([`LargeValue`]); for elements of a large collection only bytes.
pub(crate) trait OverflowValue: std::fmt::Debug + From<Vec<u8>> + Into<LargeValue> {
    /// Determines the maximum page length: the square root of the product of this factor and the store's bytes.
    const PAGE_LEN_FACTOR: u64;

    /// The secondary sort order of the store; usually none.
    type SecondaryOrder: SecondaryOrder<Self>;

    /// Returns whether a value with this code is a packed collection that can outgrow the packed format. When such a
    /// value is moved, it leaves dead bytes, which must be few compared to the store.
    fn may_outgrow_packed(code: TypeCode) -> bool;

    /// Returns whether a snapshot visits the value part by part, after its page.
    fn is_walked_in_parts(&self) -> bool;

    fn shape(&self) -> OverflowShape<'_>;
    fn shape_mut(&mut self) -> OverflowShapeMut<'_>;

    /// Returns an independent copy.
    fn copy(&self) -> Self;

    /// Returns the number of heap bytes used.
    fn bytes(&self) -> usize {
        match self.shape() {
            OverflowShape::Flat(bytes) => bytes.capacity(),
            OverflowShape::Collection(collection) => collection.estimated_bytes(),
        }
    }
}

/// The two forms of an overflow value: plain bytes or a data structure.
pub(crate) enum OverflowShape<'a> {
    Flat(&'a Vec<u8>),
    Collection(&'a dyn Collection),
}

impl OverflowShape<'_> {
    /// Returns the number of elements; 0 for plain bytes, whose element count is not known here.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Flat(_) => 0,
            Self::Collection(collection) => collection.len(),
        }
    }
}

pub(crate) enum OverflowShapeMut<'a> {
    Flat(&'a mut Vec<u8>),
    Collection(&'a mut dyn Collection),
}

/// An overflow value, with its key if that is too long for a page as well.
#[derive(Debug)]
pub(crate) struct Record<V> {
    pub(crate) key: Option<Box<[u8]>>,
    pub(crate) value: V,
    /// Number of other entries that use this record: old versions of the entry that snapshots need after an expiry
    /// change.
    pub(crate) other_entry_count: u8,
    /// Number of bytes that are counted as needed only by snapshots; 0 while the entry is live.
    pub(crate) snapshot_only_bytes: usize,
}

impl<V: OverflowValue> Record<V> {
    /// Creates a record for a value that is not part of a store.
    pub(crate) fn without_store(value: V) -> Self {
        Self { key: None, value, other_entry_count: 0, snapshot_only_bytes: 0 }
    }

    /// Returns the bytes that are counted for the record, without a collection's pages.
    fn bytes_without_pages(&self) -> usize {
        let value = match self.value.shape() {
            OverflowShape::Flat(bytes) => bytes.capacity(),
            OverflowShape::Collection(collection) => size_of_val(collection),
        };
        size_of::<Option<Self>>() + self.key.as_ref().map_or(0, |key| key.len()) + value
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let collection = match self.value.shape() {
            OverflowShape::Flat(_) => 0,
            OverflowShape::Collection(collection) => collection.heap_bytes(),
        };
        self.bytes_without_pages() + collection
    }

    fn copy(&self) -> Self {
        Self { key: self.key.clone(), value: self.value.copy(), other_entry_count: 0, snapshot_only_bytes: 0 }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.key.as_ref().map_or(0, |key| key.len()) + self.value.bytes()
    }

    fn is_collection(&self) -> bool {
        matches!(self.value.shape(), OverflowShape::Collection(_))
    }

    /// Converts the record to a common type, so that it can be dropped by other code.
    pub(crate) fn into_dropped(self) -> Record<LargeValue> {
        Record {
            key: self.key,
            value: self.value.into(),
            other_entry_count: self.other_entry_count,
            snapshot_only_bytes: self.snapshot_only_bytes,
        }
    }
}

/// Creates a record for a value that has no entry.
impl From<LargeValue> for Record<LargeValue> {
    fn from(value: LargeValue) -> Self {
        Self { key: None, value, other_entry_count: 0, snapshot_only_bytes: 0 }
    }
}

#[derive(Debug)]
pub(crate) struct RecordStore<V: OverflowValue> {
    records: ChunkedVec<Option<Record<V>>>,
    free_numbers: Vec<u32>,
    /// Bytes of the records, without the pages of collections.
    flat_bytes: usize,
    collection_count: usize,
}

impl<V: OverflowValue> Default for RecordStore<V> {
    fn default() -> Self {
        Self { records: ChunkedVec::default(), free_numbers: Vec::new(), flat_bytes: 0, collection_count: 0 }
    }
}

impl<V: OverflowValue> RecordStore<V> {
    pub(crate) fn put(&mut self, record: Record<V>) -> u32 {
        self.count_bytes(0, record.bytes_without_pages());
        self.collection_count += usize::from(record.is_collection());
        match self.free_numbers.pop() {
            Some(number) => {
                self.records[number] = Some(record);
                number
            }
            None => {
                self.records.push(Some(record));
                self.records.len() as u32 - 1
            }
        }
    }

    pub(crate) fn put_copy(&mut self, number: u32) -> u32 {
        let copy = self.record(number).copy();
        self.put(copy)
    }

    pub(crate) fn record(&self, number: u32) -> &Record<V> {
        self.records[number].as_ref().expect("an entry's record is there")
    }

    /// Returns the bytes of a value for editing; empty for a collection. Their number must not change (see
    /// [`RecordStore::resize`]).
    pub(crate) fn bytes_mut(&mut self, number: u32) -> &mut [u8] {
        match self.record_mut(number).value.shape_mut() {
            OverflowShapeMut::Flat(bytes) => bytes,
            OverflowShapeMut::Collection(_) => &mut [],
        }
    }

    /// Changes the length of a value stored as plain bytes.
    pub(crate) fn resize(&mut self, number: u32, change: impl FnOnce(&mut Vec<u8>)) {
        let OverflowShapeMut::Flat(bytes) = self.record_mut(number).value.shape_mut() else { return };
        let before = bytes.capacity();
        change(bytes);
        let after = bytes.capacity();
        self.count_bytes(before, after);
    }

    fn count_bytes(&mut self, removed: usize, added: usize) {
        self.flat_bytes = self.flat_bytes + added - removed;
        count_overflow_bytes(added, removed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.len() == self.free_numbers.len()
    }

    pub(crate) fn has_collections(&self) -> bool {
        self.collection_count > 0
    }

    /// Returns the bytes of the records, without the pages of collections.
    pub(crate) fn bytes_without_pages(&self) -> usize {
        self.flat_bytes
    }

    pub(crate) fn record_mut(&mut self, number: u32) -> &mut Record<V> {
        self.records[number].as_mut().expect("an entry's record is there")
    }

    /// Also moves the key to the overflow record. Older entries that snapshots need may use the same record, but have
    /// their own copy of the key.
    pub(crate) fn set_key(&mut self, number: u32, key: &[u8]) {
        let record = self.record_mut(number);
        let before = record.bytes_without_pages();
        record.key = Some(key.into());
        let after = record.bytes_without_pages();
        self.count_bytes(before, after);
    }

    /// Marks a record as needed only by snapshots.
    pub(crate) fn mark_snapshot_only(&mut self, number: u32) {
        let record = self.record_mut(number);
        if record.snapshot_only_bytes == 0 {
            record.snapshot_only_bytes = record.bytes_without_pages();
            count_snapshot_only_bytes(record.snapshot_only_bytes, 0);
        }
    }

    /// Ends an entry's use of the record. Returns the record if no other entry uses it.
    pub(crate) fn release(&mut self, number: u32) -> Option<Record<V>> {
        let record = self.record_mut(number);
        if record.other_entry_count > 0 {
            record.other_entry_count -= 1;
            return None;
        }
        let record = self.record(number);
        let (flat, collections) = (record.bytes_without_pages(), usize::from(record.is_collection()));
        count_snapshot_only_bytes(0, record.snapshot_only_bytes);
        self.count_bytes(flat, 0);
        self.collection_count -= collections;
        self.free_numbers.push(number);
        self.records[number].take()
    }

    pub(crate) fn bytes(&self) -> usize {
        let records: usize = self.records.iter().flatten().map(Record::bytes).sum();
        records + self.records.heap_bytes() + self.free_numbers.capacity() * 4
    }
}

impl<V: OverflowValue> Drop for RecordStore<V> {
    fn drop(&mut self) {
        self.count_bytes(self.flat_bytes, 0);
    }
}
