//! Memory model of sets.

use std::ops::Range;

use keyspace::{EncodingLimits, EntryRef, Key, PackedValue, Table};

use super::MemoryModel;
use crate::allocator::{Quantum, ROBJ_BYTES};
use crate::data::{KeyGroup, MemoryBreakdown};
use crate::structures::estimated::{self, ElementCounts, KeyShape};
use crate::structures::own::{element_metadata, sample_values};
use crate::structures::redis::{self, RedisVersion, packed_set_memory, sum_values};
use crate::structures::valkey;

pub(super) struct SetMemoryModel;

impl MemoryModel for SetMemoryModel {
    fn redis_memory(&self, quantum: Quantum, data: &KeyGroup, version: RedisVersion) -> MemoryBreakdown {
        redis::set_memory(quantum, data, version)
    }

    fn valkey_memory(&self, quantum: Quantum, data: &KeyGroup) -> MemoryBreakdown {
        packed_set_memory(quantum, data, true).unwrap_or_else(|| {
            let members = sum_values(data, |len| quantum.sds_memory(len));
            quantum.allocation_memory(0, ROBJ_BYTES)
                + valkey::table_memory(quantum, data.elements_per_key())
                + members
        })
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
        table.set_add_all(place, key, values.iter().map(Vec::as_slice), EncodingLimits::default().set).0
    }

    fn metadata_bytes(&self, data: &KeyGroup, is_structure: bool) -> f64 {
        element_metadata(data, is_structure, 1.0, 0.0)
    }

    fn estimate_structure(&self, shape: &KeyShape) -> u64 {
        shape.elements * estimated::table_element_bytes(shape)
    }

    fn count_elements(&self, value: &PackedValue<'_>, counts: &mut ElementCounts) {
        counts.elements += value.len() as u64;
        value.for_each_member(&mut |member| counts.add_string(&member));
    }
}
