//! Estimates the memory of a key's elements from their number and size, without storing them.

use keyspace::Kind;

/// Bytes of the header of an entry in a large collection.
const ELEMENT_HEADER_BYTES: u64 = 4;
/// Bytes of the expiry time of a key or a field.
pub(crate) const EXPIRY_BYTES: u64 = 6;
/// Index bytes per entry: a bucket line serves twelve entries, at the average load.
const INDEX_BYTES_PER_ENTRY: u64 = 7;
/// Page overhead of a large collection, in percent of its elements' bytes. Its pages are larger than those of a slot.
const ELEMENT_PAGE_OVERHEAD_PERCENT: u64 = 4;

/// The properties of a key from which its size is estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyShape {
    /// The Redis type of the value.
    pub kind: Kind,
    /// The length of the key name in bytes.
    pub key_bytes: u64,
    /// The number of elements of the value.
    pub elements: u64,
    /// Bytes of the string, or of all elements: members, field names and values, or stream nodes.
    pub payload_bytes: u64,
    /// Bytes of the value in its packed encoding; `None` if the value is a separate structure.
    pub packed_bytes: Option<u64>,
    /// Whether the key has an expiry time, which takes additional bytes.
    pub expires: bool,
    /// The number of elements with an expiry time.
    pub expiring_elements: u64,
}

/// Returns the bytes of an entry of `len` bytes, including its page overhead and its share of an index line.
pub(crate) fn entry_bytes(len: u64, overhead_percent: u64) -> u64 {
    let len = len.next_multiple_of(2);
    len + len * overhead_percent / 100 + INDEX_BYTES_PER_ENTRY
}

/// Returns the bytes per element of a large collection that is stored as a table.
pub(crate) fn table_element_bytes(shape: &KeyShape) -> u64 {
    let mean = shape.payload_bytes / shape.elements.max(1);
    entry_bytes(ELEMENT_HEADER_BYTES + mean, ELEMENT_PAGE_OVERHEAD_PERCENT)
}

/// Totals over the elements of a value. The parts of a large value can be added one by one.
#[derive(Debug, Clone, Copy, Default)]
pub struct ElementCounts {
    /// The number of elements added so far.
    pub elements: u64,
    /// The bytes of all elements, as in [`KeyShape::payload_bytes`].
    pub payload_bytes: u64,
    /// Bytes of the longest element, field name or value.
    pub longest_bytes: u64,
    /// The number of elements with an expiry time.
    pub expiring_elements: u64,
}

impl ElementCounts {
    pub(crate) fn add_string(&mut self, bytes: &[u8]) {
        self.add_bytes(bytes.len() as u64);
    }

    pub(crate) fn add_bytes(&mut self, bytes: u64) {
        self.payload_bytes += bytes;
        self.longest_bytes = self.longest_bytes.max(bytes);
    }
}
