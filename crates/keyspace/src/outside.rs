//! What is too large for a page.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::chunked::Chunked;
use crate::table::Table;

/// Bytes of all records of the process, without tables and what these have.
static OUTSIDE: AtomicUsize = AtomicUsize::new(0);

/// Bytes of the process that are kept for snapshots only.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// How much is kept for snapshots only: entries in pages, strings and packed collections outside.
#[must_use]
pub fn kept_bytes() -> usize {
    KEPT.load(Ordering::Relaxed)
}

/// So many bytes more, and so many less, are kept for snapshots only.
pub(crate) fn count_kept(more: usize, less: usize) {
    KEPT.fetch_add(more, Ordering::Relaxed);
    KEPT.fetch_sub(less, Ordering::Relaxed);
}

/// How much lies outside of pages, in bytes, but for large collections' own pages.
pub(crate) fn outside_bytes() -> usize {
    OUTSIDE.load(Ordering::Relaxed)
}

/// A value that lies outside of the pages.
#[derive(Debug)]
pub(crate) enum Large {
    /// A string or a packed collection.
    Bytes(Vec<u8>),
    /// A large collection: its elements are the keys of a table of its own. A snapshot captures it by a pin
    /// of that table, whatever its size; it is never copied for one.
    Fields(Box<Table>),
}

impl Large {
    fn copy(&self) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes.clone()),
            Self::Fields(_) => unreachable!("a table is captured by pins"),
        }
    }

    /// Bytes of the heap that it takes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.capacity(),
            Self::Fields(table) => table.rough_bytes(),
        }
    }
}

/// A value outside, and its key if that is too long for a page too.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) key: Option<Box<[u8]>>,
    pub(crate) value: Large,
    /// How many entries beyond one have it: those that are kept for a snapshot while the entry that is
    /// alive got another expiry.
    pub(crate) shared: u8,
    /// What was counted when only snapshots had it any more, or 0.
    pub(crate) kept: usize,
}

impl Record {
    /// What is counted for it besides a table's pages.
    fn flat_bytes(&self) -> usize {
        let value = match &self.value {
            Large::Bytes(bytes) => bytes.capacity(),
            Large::Fields(_) => size_of::<Table>(),
        };
        size_of::<Option<Self>>() + self.key.as_ref().map_or(0, |key| key.len()) + value
    }

    /// All that it takes.
    pub(crate) fn held_bytes(&self) -> usize {
        let table = match &self.value {
            Large::Bytes(_) => 0,
            Large::Fields(table) => table.held_bytes(),
        };
        self.flat_bytes() + table
    }

    /// A record of its own with the same content.
    pub(crate) fn copy(&self) -> Self {
        Self { key: self.key.clone(), value: self.value.copy(), shared: 0, kept: 0 }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.key.as_ref().map_or(0, |key| key.len()) + self.value.bytes()
    }
}

/// The records of a table, by number.
#[derive(Debug, Default)]
pub(crate) struct Store {
    records: Chunked<Option<Record>>,
    unused: Vec<u32>,
    /// Bytes of the records, without the pages of tables.
    flat: usize,
    /// How many records are tables.
    tables: usize,
}

impl Store {
    pub(crate) fn put(&mut self, record: Record) -> u32 {
        self.count(0, record.flat_bytes());
        self.tables += usize::from(matches!(record.value, Large::Fields(_)));
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

    pub(crate) fn record(&self, number: u32) -> &Record {
        self.records[number].as_ref().expect("an entry's record is there")
    }

    /// The bytes of a flat value. What changes their capacity goes through [`Store::resize`].
    pub(crate) fn flat_mut(&mut self, number: u32) -> &mut Vec<u8> {
        match &mut self.record_mut(number).value {
            Large::Bytes(bytes) => bytes,
            Large::Fields(_) => unreachable!("the caller has seen that it is flat"),
        }
    }

    /// Changes the length of a flat value.
    pub(crate) fn resize(&mut self, number: u32, change: impl FnOnce(&mut Vec<u8>)) {
        let bytes = self.flat_mut(number);
        let before = bytes.capacity();
        change(bytes);
        let after = bytes.capacity();
        self.count(before, after);
    }

    fn count(&mut self, less: usize, more: usize) {
        self.flat = self.flat + more - less;
        OUTSIDE.fetch_add(more, Ordering::Relaxed);
        OUTSIDE.fetch_sub(less, Ordering::Relaxed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.len() == self.unused.len()
    }

    pub(crate) fn has_tables(&self) -> bool {
        self.tables > 0
    }

    /// Bytes of the records, without the pages of tables.
    pub(crate) fn flat_bytes(&self) -> usize {
        self.flat
    }

    pub(crate) fn record_mut(&mut self, number: u32) -> &mut Record {
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
    pub(crate) fn release(&mut self, number: u32) -> Option<Record> {
        let record = self.record_mut(number);
        if record.shared > 0 {
            record.shared -= 1;
            return None;
        }
        let record = self.record(number);
        let (flat, tables) = (record.flat_bytes(), usize::from(matches!(record.value, Large::Fields(_))));
        count_kept(0, record.kept);
        self.count(flat, 0);
        self.tables -= tables;
        self.unused.push(number);
        self.records[number].take()
    }

    pub(crate) fn bytes(&self) -> usize {
        let records: usize = self.records.iter().flatten().map(Record::bytes).sum();
        records + self.records.bytes() + self.unused.capacity() * 4
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.count(self.flat, 0);
    }
}
