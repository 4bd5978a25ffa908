//! Describes groups of similar keys, the input of a prediction, and breaks down the memory of one key by purpose.

use std::ops::{Add, AddAssign};

use keyspace::Kind;
use serde::Serialize;

/// A group of similar keys. Lengths are means, in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyGroup {
    /// The group's name, which reports show.
    pub name: String,
    /// The Redis type of the values, which selects the memory model.
    pub kind: Kind,
    /// The number of keys in the group, over the whole cluster.
    pub keys: u64,
    /// The number of elements per key. Strings count as one element.
    pub elements: u64,
    /// The mean length of a key name in bytes.
    pub key_bytes: u64,
    /// The mean length of a field name in bytes. Unused by types without fields.
    pub field_bytes: u64,
    /// The mean length of one value in bytes: a string, a hash value, a list item, a member, or all values of a stream
    /// entry.
    pub value_bytes: u64,
    /// The length of the longest value, if it exceeds the mean. It determines whether a small collection keeps its
    /// compact encoding.
    pub longest_value_bytes: Option<u64>,
    /// Whether the keys have a time to live, which takes additional bytes.
    pub expires: bool,
    /// Whether set members or string values are integers, which Redis encodes more compactly.
    pub values_are_integers: bool,
}

impl KeyGroup {
    /// Returns the length of the longest value; it is the mean length unless `longest_value_bytes` is greater.
    #[must_use]
    pub fn longest_value_len(&self) -> u64 {
        self.longest_value_bytes.unwrap_or(0).max(self.value_bytes)
    }

    /// Returns the length of one value when one of them is the longest: first the length of each other value, then that
    /// of the longest. The other values are shorter than the mean, so that the total stays the mean times the number of
    /// values.
    #[must_use]
    pub fn value_lengths(&self) -> (u64, u64) {
        let (n, longest) = (self.elements_per_key(), self.longest_value_len());
        let rest = (self.value_bytes * n).saturating_sub(longest);
        if n < 2 || longest == self.value_bytes {
            (self.value_bytes, self.value_bytes)
        } else {
            (rest / (n - 1), longest)
        }
    }

    /// Returns the number of values per key, which is at least one.
    #[must_use]
    pub fn elements_per_key(&self) -> u64 {
        if self.kind == Kind::String { 1 } else { self.elements.max(1) }
    }
}

/// The memory of one key in bytes, broken down by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct MemoryBreakdown {
    /// Bytes that the client stored.
    pub payload: f64,
    /// Metadata: headers, lengths, expiry times and structure fields.
    pub headers: f64,
    /// Bytes for lookup: hash tables and ordering structures.
    pub index: f64,
    /// Unused bytes: allocator rounding and free space in pages.
    pub rounding: f64,
}

impl MemoryBreakdown {
    /// Returns the sum of all four components.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.payload + self.headers + self.index + self.rounding
    }

    /// Returns the memory of `count` keys or elements that each take `self`.
    #[must_use]
    pub fn multiplied_by(self, count: f64) -> Self {
        Self {
            payload: self.payload * count,
            headers: self.headers * count,
            index: self.index * count,
            rounding: self.rounding * count,
        }
    }
}

impl Add for MemoryBreakdown {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            payload: self.payload + other.payload,
            headers: self.headers + other.headers,
            index: self.index + other.index,
            rounding: self.rounding + other.rounding,
        }
    }
}

impl AddAssign for MemoryBreakdown {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
