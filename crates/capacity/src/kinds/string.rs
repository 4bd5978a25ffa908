//! Memory model of strings.

use std::ops::Range;

use keyspace::{EntryRef, Key, PackedValue, Table};

use super::MemoryModel;
use crate::allocator::Quantum;
use crate::data::{KeyGroup, MemoryBreakdown};
use crate::structures::estimated::{ElementCounts, KeyShape};
use crate::structures::redis::{self, RedisVersion};

pub(super) struct StringMemoryModel;

impl MemoryModel for StringMemoryModel {
    fn redis_memory(&self, quantum: Quantum, data: &KeyGroup, _version: RedisVersion) -> MemoryBreakdown {
        redis::string_memory(quantum, data.value_bytes, data.values_are_integers)
    }

    /// Returns zero, because Valkey stores a string value in the key's object.
    fn valkey_memory(&self, _quantum: Quantum, _data: &KeyGroup) -> MemoryBreakdown {
        MemoryBreakdown::default()
    }

    fn add_to_sample(
        &self,
        _: &mut Table,
        place: EntryRef,
        _: &Key<'_>,
        _data: &KeyGroup,
        _numbers: Range<u64>,
    ) -> EntryRef {
        place
    }

    fn metadata_bytes(&self, _data: &KeyGroup, _is_structure: bool) -> f64 {
        0.0
    }

    fn estimate_structure(&self, shape: &KeyShape) -> u64 {
        shape.payload_bytes
    }

    fn count_elements(&self, value: &PackedValue<'_>, counts: &mut ElementCounts) {
        counts.elements = 1;
        counts.add_string(value.bytes());
    }
}
