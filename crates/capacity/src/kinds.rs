//! The models of each kind of value: a file for each, and here the list of them.

mod hash;
mod list;
mod set;
mod sorted_set;
mod stream;
mod string;

use std::ops::Range;

use keyspace::{Key, Kind, Packed, Place, Table};

use crate::allocator::Quantum;
use crate::data::{Data, Parts};
use crate::structures::estimated::{Seen, Shape};
use crate::structures::redis::Version;

/// A kind, as the models ask it.
pub(crate) trait Model {
    /// The bytes that the client stores in one element.
    fn element_bytes(&self, data: &Data) -> u64 {
        data.value_bytes
    }

    /// The bytes that an RDB has of an element besides its value; `length` returns those of a length.
    fn dumped(&self, _data: &Data, _length: fn(u64) -> u64) -> u64 {
        0
    }

    /// The bytes of a value in Redis.
    fn redis(&self, q: Quantum, data: &Data, version: Version) -> Parts;

    /// The bytes of a value in Valkey, with an object of its own.
    fn valkey(&self, q: Quantum, data: &Data) -> Parts;

    /// Adds the elements with these numbers to a value here.
    fn add(&self, of: (&mut Table, Place, &Key<'_>), data: &Data, numbers: Range<u64>) -> Place;

    /// The bytes that describe the elements of a value here, which is a structure or packed.
    fn headers(&self, data: &Data, is_structure: bool) -> f64;

    /// The elements of a structure here.
    fn structure(&self, shape: &Shape) -> u64;

    /// Adds a value, or a part of one, to the counts of it.
    fn see(&self, value: &Packed<'_>, seen: &mut Seen);
}

/// Returns the model of this kind.
pub(crate) fn model(kind: Kind) -> &'static dyn Model {
    match kind {
        Kind::String => &string::Strings,
        Kind::List => &list::Lists,
        Kind::Set => &set::Sets,
        Kind::SortedSet => &sorted_set::SortedSets,
        Kind::Hash => &hash::Hashes,
        Kind::Stream => &stream::Streams,
    }
}

impl Data {
    /// Returns the bytes that the client stores of one key: its name, its values, the names of its fields. Scores are
    /// not among it, nor what entries of a stream have in common: the name of their field.
    #[must_use]
    pub fn payload(&self) -> u64 {
        self.key_bytes + model(self.kind).element_bytes(self) * self.elements()
    }
}
