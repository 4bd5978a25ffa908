//! Memory models per value type, one file each.

mod hash;
mod list;
mod set;
mod sorted_set;
mod stream;
mod string;

use std::ops::Range;

use keyspace::{EntryRef, Key, Kind, PackedValue, Table};

use crate::allocator::Quantum;
use crate::data::{KeyGroup, MemoryBreakdown};
use crate::structures::estimated::{ElementCounts, KeyShape};
use crate::structures::redis::RedisVersion;

/// The memory model of one value type.
pub(crate) trait MemoryModel {
    /// Returns the bytes of client data in one element.
    fn element_bytes(&self, data: &KeyGroup) -> u64 {
        data.value_bytes
    }

    /// Returns the RDB bytes per element in addition to its value. `length` returns the size of a length prefix.
    fn rdb_overhead(&self, _data: &KeyGroup, _length: fn(u64) -> u64) -> u64 {
        0
    }

    /// Returns the memory of one value in Redis.
    fn redis_memory(&self, quantum: Quantum, data: &KeyGroup, version: RedisVersion) -> MemoryBreakdown;

    /// Returns the memory of one value in Valkey, including the value's object.
    fn valkey_memory(&self, quantum: Quantum, data: &KeyGroup) -> MemoryBreakdown;

    /// Adds the sample elements with the given numbers to a key in a sample table.
    fn add_to_sample(
        &self,
        table: &mut Table,
        place: EntryRef,
        key: &Key<'_>,
        data: &KeyGroup,
        numbers: Range<u64>,
    ) -> EntryRef;

    /// Returns the metadata bytes of all elements. They depend on whether the value is packed or a separate structure.
    fn metadata_bytes(&self, data: &KeyGroup, is_structure: bool) -> f64;

    /// Estimates the bytes of all elements of a large value, which is stored as a separate structure.
    fn estimate_structure(&self, shape: &KeyShape) -> u64;

    /// Adds the elements of a value, or of one part of a large value, to the counts.
    fn count_elements(&self, value: &PackedValue<'_>, counts: &mut ElementCounts);
}

pub(crate) fn memory_model(kind: Kind) -> &'static dyn MemoryModel {
    match kind {
        Kind::String => &string::StringMemoryModel,
        Kind::List => &list::ListMemoryModel,
        Kind::Set => &set::SetMemoryModel,
        Kind::SortedSet => &sorted_set::SortedSetMemoryModel,
        Kind::Hash => &hash::HashMemoryModel,
        Kind::Stream => &stream::StreamMemoryModel,
    }
}

impl KeyGroup {
    /// Returns the client bytes of one key: its name, values and field names. Scores, and the field name that all
    /// entries of a stream share, are not counted.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.key_bytes + memory_model(self.kind).element_bytes(self) * self.elements_per_key()
    }
}
