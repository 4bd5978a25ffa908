//! What is too large for a page.

use crate::chunked::Chunked;

/// A value that lies outside of the pages.
#[derive(Debug)]
pub(crate) enum Large {
    /// A string or a packed collection.
    Bytes(Vec<u8>),
}

impl Large {
    fn copy(&self) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes.clone()),
        }
    }

    /// Bytes of the heap that it takes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.capacity(),
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
}

impl Record {
    /// A record of its own with the same content.
    pub(crate) fn copy(&self) -> Self {
        Self { key: self.key.clone(), value: self.value.copy(), shared: 0 }
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
}

impl Store {
    pub(crate) fn put(&mut self, record: Record) -> u32 {
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

    pub(crate) fn record_mut(&mut self, number: u32) -> &mut Record {
        self.records[number].as_mut().expect("an entry's record is there")
    }

    /// An entry that has the record ends; gives the record if it was the last.
    pub(crate) fn release(&mut self, number: u32) -> Option<Record> {
        let record = self.record_mut(number);
        if record.shared > 0 {
            record.shared -= 1;
            return None;
        }
        self.unused.push(number);
        self.records[number].take()
    }

    pub(crate) fn bytes(&self) -> usize {
        let records: usize = self.records.iter().flatten().map(Record::bytes).sum();
        records + self.records.bytes() + self.unused.capacity() * 4
    }
}
