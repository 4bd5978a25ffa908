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
use crate::estimate::{Seen, Shape};
use crate::redis::Version;

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

    /// The bytes that describe the elements of a value here.
    fn headers(&self, data: &Data) -> f64;

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
