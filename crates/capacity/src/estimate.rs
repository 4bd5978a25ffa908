//! Estimates a key's memory in this server from its properties, without storing it.
//!
//! The constants follow docs/keyspace.md. An entry in a slot's page has a header, an expiry time,
//! the key and the value; it also accounts for its index line and for a share of the pages' free
//! space. A large collection is a table with the same layout. docs/BENCHMARKS.md has the measured
//! values ("Resident bytes per key").

use keyspace::{Kind, PackedValue};
use slot_routing::SLOT_COUNT;

use crate::kinds::memory_model;
use crate::structures::estimated::{EXPIRY_BYTES, entry_bytes};
pub use crate::structures::estimated::{ElementCounts, KeyShape};

const ENTRY_HEADER_BYTES: u64 = 6;
/// Bytes that a page stores in place of a value that is allocated outside the page.
const OVERFLOW_REFERENCE_BYTES: u64 = 4;
/// Page headers and free space, in percent of the bytes of a page's entries.
const PAGE_OVERHEAD_PERCENT: u64 = 9;
/// The length in bytes of the longest string value that is stored inside a page.
const MAX_INLINE_STRING_BYTES: u64 = 4095;
const MAX_INLINE_COLLECTION_BYTES: u64 = 502;
const MAX_INLINE_KEY_BYTES: u64 = 511;
/// Bytes of metadata of a value that is stored outside its page.
const OVERFLOW_METADATA_BYTES: u64 = 48;
const STRUCTURE_HEADER_BYTES: u64 = 300;
/// Estimates the bytes that one key takes in this server.
pub fn estimate_key_bytes(shape: &KeyShape) -> u64 {
    let KeyShape { kind, key_bytes: key, packed_bytes: packed, expires, .. } = *shape;
    let (key_here, key_outside) = if key > MAX_INLINE_KEY_BYTES { (0, size_class(key)) } else { (key, 0) };
    let head = ENTRY_HEADER_BYTES + key_here + if expires { EXPIRY_BYTES } else { 0 };
    let longest = if kind == Kind::String { MAX_INLINE_STRING_BYTES } else { MAX_INLINE_COLLECTION_BYTES };
    match packed {
        Some(value) if value <= longest && key_outside == 0 => {
            entry_bytes(head + value, PAGE_OVERHEAD_PERCENT)
        }
        Some(value) => {
            entry_bytes(head + OVERFLOW_REFERENCE_BYTES, PAGE_OVERHEAD_PERCENT)
                + OVERFLOW_METADATA_BYTES
                + key_outside
                + size_class(value)
        }
        None => {
            entry_bytes(head + OVERFLOW_REFERENCE_BYTES, PAGE_OVERHEAD_PERCENT)
                + OVERFLOW_METADATA_BYTES
                + key_outside
                + STRUCTURE_HEADER_BYTES
                + memory_model(kind).estimate_structure(shape)
        }
    }
}

/// Returns the fixed cost in bytes of the slots that hold `keys` keys: one index line and a partly filled page per
/// slot.
pub fn slot_overhead_bytes(keys: u64) -> u64 {
    const SLOT_OVERHEAD_BYTES: u64 = 128;
    keys.min(SLOT_COUNT as u64) * SLOT_OVERHEAD_BYTES
}

impl ElementCounts {
    /// Counts a value, or one part of a large value.
    pub fn add_value(&mut self, value: &PackedValue<'_>) {
        memory_model(value.kind()).count_elements(value, self);
    }
}

/// Rounds `len` up to the allocator's next size class, with four classes per doubling.
fn size_class(len: u64) -> u64 {
    let step = (len.max(16).next_power_of_two() / 8).max(16);
    len.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string_key(key: u64, value: u64, expires: bool) -> KeyShape {
        let kind = Kind::String;
        KeyShape {
            kind,
            key_bytes: key,
            elements: 1,
            payload_bytes: value,
            packed_bytes: Some(value),
            expires,
            expiring_elements: 0,
        }
    }

    fn collection_key(kind: Kind, elements: u64, mean_bytes: u64) -> KeyShape {
        KeyShape {
            kind,
            key_bytes: 10,
            elements,
            payload_bytes: elements * mean_bytes,
            packed_bytes: None,
            expires: false,
            expiring_elements: 0,
        }
    }

    /// The estimates equal the values in docs/BENCHMARKS.md and docs/keyspace.md within 5 %.
    #[test]
    fn estimates_match_measurements() {
        let rows = [
            (estimate_key_bytes(&string_key(16, 32, false)), 66.0),
            (estimate_key_bytes(&string_key(16, 32, true)), 72.3),
            (estimate_key_bytes(&string_key(10, 8, false)), 33.1),
            (estimate_key_bytes(&collection_key(Kind::Hash, 2_000_000, 89)) / 2_000_000, 102.7),
            (estimate_key_bytes(&collection_key(Kind::SortedSet, 1_000_000, 21)) / 1_000_000, 44.7),
            (estimate_key_bytes(&collection_key(Kind::List, 1_000_000, 75)) / 1_000_000, 80.0),
        ];
        for (reckoned, measured) in rows {
            let ratio = reckoned as f64 / measured;
            assert!((0.95..1.05).contains(&ratio), "{reckoned} for {measured}");
        }
    }

    #[test]
    fn estimate_grows_with_value_length() {
        for (from, to) in [(0, MAX_INLINE_STRING_BYTES), (MAX_INLINE_STRING_BYTES + 1, 100_000)] {
            let sizes: Vec<u64> =
                (from..=to).map(|len| estimate_key_bytes(&string_key(20, len, false))).collect();
            assert!(sizes.is_sorted());
        }
        assert!(
            estimate_key_bytes(&string_key(1000, 1, true)) > estimate_key_bytes(&string_key(500, 1, true))
        );
    }
}
