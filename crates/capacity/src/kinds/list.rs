//! Memory model of lists.

use std::ops::Range;

use keyspace::{EncodingLimits, EntryRef, Key, ListEnd, PackedValue, Table};

use super::MemoryModel;
use crate::allocator::Quantum;
use crate::data::{KeyGroup, MemoryBreakdown};
use crate::structures::estimated::{ElementCounts, KeyShape};
use crate::structures::own::{element_metadata, sample_values};
use crate::structures::redis::{self, RedisVersion};

/// Bytes of the length before and after each element.
const LENGTH_FIELD_BYTES: u64 = 2;
/// Overhead of list segments in percent: free space, and the inner nodes of the tree.
const SEGMENT_OVERHEAD_PERCENT: u64 = 6;

pub(super) struct ListMemoryModel;

impl MemoryModel for ListMemoryModel {
    fn redis_memory(&self, quantum: Quantum, data: &KeyGroup, version: RedisVersion) -> MemoryBreakdown {
        redis::list_memory(quantum, data, version >= RedisVersion::V8)
    }

    fn valkey_memory(&self, quantum: Quantum, data: &KeyGroup) -> MemoryBreakdown {
        redis::list_memory(quantum, data, true)
    }

    fn add_to_sample(
        &self,
        table: &mut Table,
        place: EntryRef,
        key: &Key<'_>,
        data: &KeyGroup,
        numbers: Range<u64>,
    ) -> EntryRef {
        let values = sample_values(data, numbers);
        let items = values.iter().map(Vec::as_slice);
        table.list_push(place, key, ListEnd::Tail, items, EncodingLimits::default().list)
    }

    fn metadata_bytes(&self, data: &KeyGroup, is_structure: bool) -> f64 {
        element_metadata(data, is_structure, 2.0, 0.0)
    }

    fn estimate_structure(&self, shape: &KeyShape) -> u64 {
        let records = shape.payload_bytes + shape.elements * LENGTH_FIELD_BYTES;
        records + records * SEGMENT_OVERHEAD_PERCENT / 100
    }

    fn count_elements(&self, value: &PackedValue<'_>, counts: &mut ElementCounts) {
        counts.elements += value.len() as u64;
        value.items().for_each(|item| counts.add_bytes(item.len() as u64));
    }
}
