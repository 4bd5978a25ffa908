//! How many bytes a key will take in a server's memory, estimated from its properties without storing it.
//!
//! The figures are those of docs/keyspace.md: an entry of a slot's page has a header, its time, the key and the value,
//! and costs its line of the index and its share of what pages leave free. A large collection is a table of the same
//! make. docs/BENCHMARKS.md has what servers really take ("Resident bytes per key").

use keyspace::{Kind, Packed};
use slot_routing::SLOT_COUNT;

use crate::kinds::model;
pub use crate::structures::estimated::{Seen, Shape};
use crate::structures::estimated::{TIME, entry};

/// The header of an entry.
const HEADER: u64 = 6;
/// A reference to what lies outside of its page.
const REFERENCE: u64 = 4;
/// The overhead of an entry in a slot's pages, in percent of its own bytes: the head and the free end of its page.
const PAGES_SHARE: u64 = 9;
/// The longest value of a string and of a packed collection that lie in the page, and the longest key.
const LONGEST_STRING: u64 = 4095;
const LONGEST_PACKED: u64 = 502;
const LONGEST_KEY: u64 = 511;
/// Bytes of the record about a value outside the page, and about a collection that is a structure.
const RECORD: u64 = 48;
const STRUCTURE: u64 = 300;
/// The bytes that it will take.
pub fn bytes(shape: &Shape) -> u64 {
    let Shape { kind, key, packed, expires, .. } = *shape;
    let (key_here, key_outside) = if key > LONGEST_KEY { (0, size_class(key)) } else { (key, 0) };
    let head = HEADER + key_here + if expires { TIME } else { 0 };
    let longest = if kind == Kind::String { LONGEST_STRING } else { LONGEST_PACKED };
    match packed {
        Some(value) if value <= longest && key_outside == 0 => entry(head + value, PAGES_SHARE),
        Some(value) => entry(head + REFERENCE, PAGES_SHARE) + RECORD + key_outside + size_class(value),
        None => {
            entry(head + REFERENCE, PAGES_SHARE)
                + RECORD
                + key_outside
                + STRUCTURE
                + model(kind).structure(shape)
        }
    }
}

/// Returns the bytes that the slots take beside their keys: the line of an index and the rest of a page, of each slot
/// that has a key.
pub fn tables(keys: u64) -> u64 {
    const TABLE: u64 = 128;
    keys.min(SLOT_COUNT as u64) * TABLE
}

impl Seen {
    /// Adds a value, or a part of one.
    pub fn add(&mut self, value: &Packed<'_>) {
        model(value.kind()).see(value, self);
    }
}

/// Returns the bytes that the general allocator takes for so many: four sizes to each doubling.
fn size_class(len: u64) -> u64 {
    let step = (len.max(16).next_power_of_two() / 8).max(16);
    len.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(key: u64, value: u64, expires: bool) -> Shape {
        let kind = Kind::String;
        Shape { kind, key, elements: 1, payload: value, packed: Some(value), expires, timed_elements: 0 }
    }

    fn structure_of(kind: Kind, elements: u64, mean: u64) -> Shape {
        Shape {
            kind,
            key: 10,
            elements,
            payload: elements * mean,
            packed: None,
            expires: false,
            timed_elements: 0,
        }
    }

    /// Resident bytes as docs/BENCHMARKS.md and docs/keyspace.md have them, within 5 %.
    #[test]
    fn what_was_measured_is_what_is_reckoned() {
        let rows = [
            (bytes(&string(16, 32, false)), 66.0),
            (bytes(&string(16, 32, true)), 72.3),
            (bytes(&string(10, 8, false)), 33.1),
            (bytes(&structure_of(Kind::Hash, 2_000_000, 89)) / 2_000_000, 102.7),
            (bytes(&structure_of(Kind::SortedSet, 1_000_000, 21)) / 1_000_000, 44.7),
            (bytes(&structure_of(Kind::List, 1_000_000, 75)) / 1_000_000, 80.0),
        ];
        for (reckoned, measured) in rows {
            let ratio = reckoned as f64 / measured;
            assert!((0.95..1.05).contains(&ratio), "{reckoned} for {measured}");
        }
    }

    #[test]
    fn a_longer_value_takes_no_less_until_it_lies_outside_and_has_a_page_to_itself() {
        for (from, to) in [(0, LONGEST_STRING), (LONGEST_STRING + 1, 100_000)] {
            let sizes: Vec<u64> = (from..=to).map(|len| bytes(&string(20, len, false))).collect();
            assert!(sizes.is_sorted());
        }
        assert!(bytes(&string(1000, 1, true)) > bytes(&string(500, 1, true)));
    }
}
