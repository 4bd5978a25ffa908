//! Keys and values that are too large for a page.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::chunked::Chunked;
use crate::entry::Code;
use crate::large::{Collection, Large};
use crate::order::Order;

/// Bytes of all records of the process, without the pages of collections, and of the orders of these.
static OUTSIDE: AtomicUsize = AtomicUsize::new(0);

/// Bytes of the process that are kept for snapshots only.
static KEPT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Bytes of nodes that edits on this thread have copied or taken out: the snapshots that shared them have them
    /// alone now.
    static SHED: Cell<usize> = const { Cell::new(0) };
}

/// Bytes that are kept for snapshots only: entries in pages, strings and packed collections outside, and nodes that
/// lists and streams no longer share with them.
#[must_use]
pub fn kept_bytes() -> usize {
    KEPT.load(Ordering::Relaxed)
}

/// So many bytes more, and so many less, are kept for snapshots only.
pub(crate) fn count_kept(more: usize, less: usize) {
    KEPT.fetch_add(more, Ordering::Relaxed);
    KEPT.fetch_sub(less, Ordering::Relaxed);
}

/// So many bytes more, and so many less, lie outside of pages.
pub(crate) fn count_outside(more: usize, less: usize) {
    OUTSIDE.fetch_add(more, Ordering::Relaxed);
    OUTSIDE.fetch_sub(less, Ordering::Relaxed);
}

/// How much lies outside of pages, in bytes, but for large collections' own pages.
pub(crate) fn outside_bytes() -> usize {
    OUTSIDE.load(Ordering::Relaxed)
}

/// Bytes of a part of a large value that lies neither in pages nor in a record of its own: they count as long as this
/// is there, and a copy counts for itself.
#[derive(Debug, Default)]
pub(crate) struct Counted(usize);

impl Counted {
    /// It takes so many now.
    #[inline]
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes != self.0 {
            OUTSIDE.fetch_add(bytes, Ordering::Relaxed);
            OUTSIDE.fetch_sub(self.0, Ordering::Relaxed);
            self.0 = bytes;
        }
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        note_shed(self.0);
        let mut copy = Self::default();
        copy.set(self.0);
        copy
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// An edit has copied or taken out nodes of so many bytes.
pub(crate) fn note_shed(bytes: usize) {
    SHED.set(SHED.get().wrapping_add(bytes));
}

/// How many bytes edits on this thread have ever shed.
pub(crate) fn shed() -> usize {
    SHED.get()
}

/// The count of bytes that a snapshot alone has of a value whose nodes it shares: at most all of the value.
#[derive(Debug)]
pub(crate) struct Kept {
    bytes: usize,
    most: usize,
}

impl Kept {
    /// Nothing yet, of a value of so many bytes.
    pub(crate) fn nothing_of(most: usize) -> Self {
        Self { bytes: 0, most }
    }

    /// Adds the bytes that were shed since [`shed`] gave `before`: the snapshot shared them.
    pub(crate) fn add_shed_since(&mut self, before: usize) {
        let more = shed().wrapping_sub(before).min(self.most - self.bytes);
        count_kept(more, 0);
        self.bytes += more;
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        count_kept(0, self.bytes);
    }
}

/// A value that may lie outside of the pages of a store of entries: of a key, a string, a packed collection or a
/// large one ([`crate::large::Large`]); of an element of a large collection, only bytes.
pub(crate) trait Outside: std::fmt::Debug + From<Vec<u8>> + Into<Large> {
    /// A page grows to the square root of this many times the store's bytes.
    const SQUARE: u64;

    /// The order that the store keeps its entries in, beside their hashes; mostly none.
    type Order: Order<Self>;

    /// Whether a value with this code is packed and may outgrow that form: then the dead bytes that it leaves behind as
    /// it moves are to be few beside the store's.
    fn may_grow(code: Code) -> bool;

    /// Whether a snapshot's walk comes to it by itself, after its page.
    fn waits(&self) -> bool;

    fn shape(&self) -> Shape<'_>;
    fn shape_mut(&mut self) -> ShapeMut<'_>;

    /// A value of its own with the same content.
    fn copy(&self) -> Self;

    /// Bytes of the heap that it takes.
    fn bytes(&self) -> usize {
        match self.shape() {
            Shape::Flat(bytes) => bytes.capacity(),
            Shape::Collection(collection) => collection.rough_bytes(),
        }
    }
}

/// The shape of a value outside: one run of bytes, or a structure.
pub(crate) enum Shape<'a> {
    Flat(&'a Vec<u8>),
    Collection(&'a dyn Collection),
}

impl Shape<'_> {
    /// How many elements there are; of bytes it is not known here.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Flat(_) => 0,
            Self::Collection(collection) => collection.len(),
        }
    }
}

/// The same, to be changed.
pub(crate) enum ShapeMut<'a> {
    Flat(&'a mut Vec<u8>),
    Collection(&'a mut dyn Collection),
}

/// A value outside, and its key if that is too long for a page too.
#[derive(Debug)]
pub(crate) struct Record<V> {
    pub(crate) key: Option<Box<[u8]>>,
    pub(crate) value: V,
    /// How many entries beyond one have it: those that are kept for a snapshot while the entry that is
    /// alive got another expiry.
    pub(crate) shared: u8,
    /// Bytes that were counted when only snapshots still had it, or 0.
    pub(crate) kept: usize,
}

impl<V: Outside> Record<V> {
    /// Of a value that is in no store.
    pub(crate) fn loose(value: V) -> Self {
        Self { key: None, value, shared: 0, kept: 0 }
    }

    /// Bytes that are counted for it, without those that a collection has in pages.
    fn flat_bytes(&self) -> usize {
        let value = match self.value.shape() {
            Shape::Flat(bytes) => bytes.capacity(),
            Shape::Collection(collection) => size_of_val(collection),
        };
        size_of::<Option<Self>>() + self.key.as_ref().map_or(0, |key| key.len()) + value
    }

    /// All that it takes.
    pub(crate) fn held_bytes(&self) -> usize {
        let collection = match self.value.shape() {
            Shape::Flat(_) => 0,
            Shape::Collection(collection) => collection.held_bytes(),
        };
        self.flat_bytes() + collection
    }

    /// A record of its own with the same content.
    fn copy(&self) -> Self {
        Self { key: self.key.clone(), value: self.value.copy(), shared: 0, kept: 0 }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.key.as_ref().map_or(0, |key| key.len()) + self.value.bytes()
    }

    fn is_collection(&self) -> bool {
        matches!(self.value.shape(), Shape::Collection(_))
    }

    /// The same, as it is handed on to be dropped.
    pub(crate) fn into_dropped(self) -> Record<Large> {
        Record { key: self.key, value: self.value.into(), shared: self.shared, kept: self.kept }
    }
}

/// Of no entry.
impl From<Large> for Record<Large> {
    fn from(value: Large) -> Self {
        Self { key: None, value, shared: 0, kept: 0 }
    }
}

/// The records of a store of entries, by number.
#[derive(Debug)]
pub(crate) struct Store<V: Outside> {
    records: Chunked<Option<Record<V>>>,
    unused: Vec<u32>,
    /// Bytes of the records, without the pages of collections.
    flat: usize,
    /// How many records are collections.
    collections: usize,
}

impl<V: Outside> Default for Store<V> {
    fn default() -> Self {
        Self { records: Chunked::default(), unused: Vec::new(), flat: 0, collections: 0 }
    }
}

impl<V: Outside> Store<V> {
    pub(crate) fn put(&mut self, record: Record<V>) -> u32 {
        self.count(0, record.flat_bytes());
        self.collections += usize::from(record.is_collection());
        match self.unused.pop() {
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

    /// Puts a copy of a record beside it.
    pub(crate) fn put_copy(&mut self, number: u32) -> u32 {
        let copy = self.record(number).copy();
        self.put(copy)
    }

    pub(crate) fn record(&self, number: u32) -> &Record<V> {
        self.records[number].as_ref().expect("an entry's record is there")
    }

    /// The bytes of a flat value, not to become more or fewer; see [`Store::resize`]. A collection has none.
    pub(crate) fn flat_mut(&mut self, number: u32) -> &mut [u8] {
        match self.record_mut(number).value.shape_mut() {
            ShapeMut::Flat(bytes) => bytes,
            ShapeMut::Collection(_) => &mut [],
        }
    }

    /// Changes the length of a flat value.
    pub(crate) fn resize(&mut self, number: u32, change: impl FnOnce(&mut Vec<u8>)) {
        let ShapeMut::Flat(bytes) = self.record_mut(number).value.shape_mut() else { return };
        let before = bytes.capacity();
        change(bytes);
        let after = bytes.capacity();
        self.count(before, after);
    }

    fn count(&mut self, less: usize, more: usize) {
        self.flat = self.flat + more - less;
        count_outside(more, less);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.len() == self.unused.len()
    }

    pub(crate) fn has_collections(&self) -> bool {
        self.collections > 0
    }

    /// Bytes of the records, without the pages of collections.
    pub(crate) fn flat_bytes(&self) -> usize {
        self.flat
    }

    pub(crate) fn record_mut(&mut self, number: u32) -> &mut Record<V> {
        self.records[number].as_mut().expect("an entry's record is there")
    }

    /// The key lies outside as well from now on. Entries that are kept for a snapshot and share the record
    /// still have it themselves.
    pub(crate) fn set_key(&mut self, number: u32, key: &[u8]) {
        let record = self.record_mut(number);
        let before = record.flat_bytes();
        record.key = Some(key.into());
        let after = record.flat_bytes();
        self.count(before, after);
    }

    /// From now on only snapshots have the record.
    pub(crate) fn keep(&mut self, number: u32) {
        let record = self.record_mut(number);
        if record.kept == 0 {
            record.kept = record.flat_bytes();
            count_kept(record.kept, 0);
        }
    }

    /// An entry that has the record ends; gives the record if it was the last.
    pub(crate) fn release(&mut self, number: u32) -> Option<Record<V>> {
        let record = self.record_mut(number);
        if record.shared > 0 {
            record.shared -= 1;
            return None;
        }
        let record = self.record(number);
        let (flat, collections) = (record.flat_bytes(), usize::from(record.is_collection()));
        count_kept(0, record.kept);
        self.count(flat, 0);
        self.collections -= collections;
        self.unused.push(number);
        self.records[number].take()
    }

    pub(crate) fn bytes(&self) -> usize {
        let records: usize = self.records.iter().flatten().map(Record::bytes).sum();
        records + self.records.bytes() + self.unused.capacity() * 4
    }
}

impl<V: Outside> Drop for Store<V> {
    fn drop(&mut self) {
        self.count(self.flat, 0);
    }
}
