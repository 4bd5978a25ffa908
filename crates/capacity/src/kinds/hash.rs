//! Memory model of hashes.

use std::ops::Range;

use keyspace::{EncodingLimits, EntryRef, Field, Key, PackedValue, Table};

use super::MemoryModel;
use crate::allocator::{Quantum, ROBJ_BYTES};
use crate::data::{KeyGroup, MemoryBreakdown};
use crate::structures::estimated::{self, ElementCounts, KeyShape};
use crate::structures::own::{element_metadata, format_number, sample_values};
use crate::structures::redis::{
    self, MAX_PACKED_FIELDS, RedisVersion, fits_listpack, listpack_hash_memory, sum_values,
};
use crate::structures::valkey;

pub(super) struct HashMemoryModel;

impl MemoryModel for HashMemoryModel {
    fn element_bytes(&self, data: &KeyGroup) -> u64 {
        data.field_bytes + data.value_bytes
    }

    fn rdb_overhead(&self, data: &KeyGroup, length: fn(u64) -> u64) -> u64 {
        length(data.field_bytes)
    }

    fn redis_memory(&self, quantum: Quantum, data: &KeyGroup, _version: RedisVersion) -> MemoryBreakdown {
        redis::hash_memory(quantum, data)
    }

    fn valkey_memory(&self, quantum: Quantum, data: &KeyGroup) -> MemoryBreakdown {
        if fits_listpack(data, MAX_PACKED_FIELDS) {
            return listpack_hash_memory(quantum, data);
        }
        let fields = sum_values(data, |len| valkey::field_memory(quantum, data.field_bytes, len));
        quantum.allocation_memory(0, ROBJ_BYTES)
            + valkey::table_memory(quantum, data.elements_per_key())
            + fields
    }

    fn add_to_sample(
        &self,
        table: &mut Table,
        place: EntryRef,
        key: &Key<'_>,
        data: &KeyGroup,
        numbers: Range<u64>,
    ) -> EntryRef {
        let names: Vec<Vec<u8>> =
            numbers.clone().map(|number| format_number(number, data.field_bytes)).collect();
        let values = sample_values(data, numbers);
        let fields = names.iter().zip(&values).map(|(name, value)| Field { name, value, expiry: None });
        table.hash_set_all(place, key, fields, EncodingLimits::default().hash, |_| ())
    }

    fn metadata_bytes(&self, data: &KeyGroup, is_structure: bool) -> f64 {
        element_metadata(data, is_structure, 2.0, 0.0)
    }

    fn estimate_structure(&self, shape: &KeyShape) -> u64 {
        shape.elements * estimated::table_element_bytes(shape)
            + shape.expiring_elements * estimated::EXPIRY_BYTES
    }

    fn count_elements(&self, value: &PackedValue<'_>, counts: &mut ElementCounts) {
        counts.elements += value.len() as u64;
        value.fields().for_each(|field| {
            counts.add_string(field.name);
            counts.add_string(field.value);
            counts.expiring_elements += u64::from(field.expiry.is_some());
        });
    }
}
