//! The data that a question is about, and the shape of answers.

use std::ops::{Add, AddAssign};

use keyspace::Kind;
use serde::Serialize;

/// Keys of one make. Lengths are means, in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Data {
    /// How users call it.
    pub name: String,
    /// Their type.
    pub kind: Kind,
    /// How many there are.
    pub keys: u64,
    /// Elements of each; 1 of a string.
    pub elements: u64,
    /// The length of a key.
    pub key_bytes: u64,
    /// The length of a field's name; unused in what has no fields.
    pub field_bytes: u64,
    /// The length of a string, of a field's value, of an item of a list, of a member, of an entry's values.
    pub value_bytes: u64,
    /// The longest of the values, if one is longer than the others: it decides how a small value is kept.
    pub longest_bytes: Option<u64>,
    /// Whether the keys have a time to live.
    pub expires: bool,
    /// Whether values are integers: of a set, members; of a string, its value.
    pub integers: bool,
}

impl Data {
    /// The longest value.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.longest_bytes.unwrap_or(0).max(self.value_bytes)
    }

    /// The length of one value, the longest, and of each of the others: together they are the mean times the elements,
    /// as far as that goes.
    #[must_use]
    pub fn lengths(&self) -> (u64, u64) {
        let (n, longest) = (self.elements(), self.longest());
        let rest = (self.value_bytes * n).saturating_sub(longest);
        if n < 2 || longest == self.value_bytes {
            (self.value_bytes, self.value_bytes)
        } else {
            (rest / (n - 1), longest)
        }
    }

    /// How many values a key has.
    #[must_use]
    pub fn elements(&self) -> u64 {
        if self.kind == Kind::String { 1 } else { self.elements.max(1) }
    }
}

/// Bytes of one key.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Parts {
    /// Bytes that the client stored.
    pub payload: f64,
    /// Bytes that describe it: headers, lengths, times, structures.
    pub headers: f64,
    /// Bytes that find it: hash tables, orders.
    pub index: f64,
    /// Bytes that are lost: allocation sizes, ends of pages, free room.
    pub rounding: f64,
}

impl Parts {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.payload + self.headers + self.index + self.rounding
    }

    /// So many of them.
    #[must_use]
    pub fn times(self, count: f64) -> Self {
        Self {
            payload: self.payload * count,
            headers: self.headers * count,
            index: self.index * count,
            rounding: self.rounding * count,
        }
    }
}

impl Add for Parts {
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

impl AddAssign for Parts {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
