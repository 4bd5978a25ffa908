//! The elements of a key as an estimate sees them: counted, not stored.

use keyspace::Kind;

/// The header of an entry in a large collection.
const ELEMENT_HEADER: u64 = 4;
/// A time of a key or a field.
pub(crate) const TIME: u64 = 6;
/// Bytes of the index for each entry: a bucket's line for twelve, at the load that it has on average.
const INDEX: u64 = 7;
/// The overhead of an element in the pages of a large collection, in percent of its own bytes. They are longer than a
/// slot's.
const ELEMENT_PAGES_SHARE: u64 = 4;

/// The properties of a key that its size is estimated from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Its type.
    pub kind: Kind,
    /// The key's length.
    pub key: u64,
    /// How many elements the value has.
    pub elements: u64,
    /// Bytes of the string, or of all elements: of members, of fields with their values, of a stream's nodes.
    pub payload: u64,
    /// Bytes of the value as it is stored while it is small; `None` of one that is a structure.
    pub packed: Option<u64>,
    /// Whether the key has a time.
    pub expires: bool,
    /// How many elements have one.
    pub timed_elements: u64,
}

/// An entry of so many bytes, with its place in the index.
pub(crate) fn entry(len: u64, share: u64) -> u64 {
    let len = len.next_multiple_of(2);
    len + len * share / 100 + INDEX
}

/// An element of a structure that is a table.
pub(crate) fn element(shape: &Shape) -> u64 {
    let mean = shape.payload / shape.elements.max(1);
    entry(ELEMENT_HEADER + mean, ELEMENT_PAGES_SHARE)
}

/// The elements and bytes counted so far of a value.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// How many elements there were.
    pub elements: u64,
    /// See [`Shape::payload`].
    pub payload: u64,
    /// Bytes of the longest element, name or value.
    pub longest: u64,
    /// How many elements have a time.
    pub timed: u64,
}

impl Seen {
    pub(crate) fn add_string(&mut self, bytes: &[u8]) {
        self.add_bytes(bytes.len() as u64);
    }

    pub(crate) fn add_bytes(&mut self, bytes: u64) {
        self.payload += bytes;
        self.longest = self.longest.max(bytes);
    }
}
