//! Memory model of sorted sets.

use std::ops::Range;

use keyspace::{EncodingLimits, EntryRef, Key, PackedValue, Table};

use super::MemoryModel;
use crate::allocator::{Quantum, ROBJ_BYTES, sds_overhead};
use crate::data::{KeyGroup, MemoryBreakdown};
use crate::structures::estimated::{self, ElementCounts, KeyShape};
use crate::structures::own::{element_metadata, sample_values};
use crate::structures::redis::{
    self, MAX_PACKED_MEMBERS, RedisVersion, ZSET_BYTES, fits_listpack, listpack_zset_memory,
    skiplist_node_memory, sum_values,
};
use crate::structures::valkey;

/// Bytes of a score, which is stored after its member's header.
const SCORE_BYTES: f64 = 4.0;
/// Bytes of a score in an RDB file.
const RDB_SCORE_BYTES: u64 = 8;
/// Bytes per member in the ordered index: six in a full leaf, and leaves are 70 % full on average.
const ORDER_INDEX_BYTES: u64 = 9;

pub(super) struct SortedSetMemoryModel;

impl MemoryModel for SortedSetMemoryModel {
    fn rdb_overhead(&self, _data: &KeyGroup, _length: fn(u64) -> u64) -> u64 {
        RDB_SCORE_BYTES
    }

    fn redis_memory(&self, quantum: Quantum, data: &KeyGroup, _version: RedisVersion) -> MemoryBreakdown {
        redis::zset_memory(quantum, data)
    }

    fn valkey_memory(&self, quantum: Quantum, data: &KeyGroup) -> MemoryBreakdown {
        if fits_listpack(data, MAX_PACKED_MEMBERS) {
            return listpack_zset_memory(quantum, data);
        }
        let nodes = sum_values(data, |len| {
            let node = skiplist_node_memory(quantum, 16 + 1 + sds_overhead(len), len);
            // Valkey's skiplist node contains the score, which is client data rather than index.
            MemoryBreakdown { payload: node.payload + 8.0, index: node.index - 8.0, ..node }
        });
        let own = quantum.allocation_memory(0, ROBJ_BYTES)
            + MemoryBreakdown { headers: ZSET_BYTES as f64, ..MemoryBreakdown::default() };
        own + valkey::table_memory(quantum, data.elements_per_key()) + nodes
    }

    fn add_to_sample(
        &self,
        table: &mut Table,
        mut place: EntryRef,
        key: &Key<'_>,
        data: &KeyGroup,
        numbers: Range<u64>,
    ) -> EntryRef {
        let bounds = EncodingLimits::default().sorted_set;
        for (number, name) in numbers.clone().zip(sample_values(data, numbers)) {
            // Pseudo-random scores, because scores rarely arrive in ascending order.
            let score = (number.wrapping_mul(0x9e37_79b1) % (1 << 20)) as f64;
            place = table.sorted_set_update(place, key, &name, bounds, |_| Some(score));
        }
        place
    }

    fn metadata_bytes(&self, data: &KeyGroup, is_structure: bool) -> f64 {
        element_metadata(data, is_structure, 3.0, SCORE_BYTES)
    }

    fn estimate_structure(&self, shape: &KeyShape) -> u64 {
        shape.elements * (estimated::table_element_bytes(shape) + ORDER_INDEX_BYTES)
    }

    fn count_elements(&self, value: &PackedValue<'_>, counts: &mut ElementCounts) {
        counts.elements += value.len() as u64;
        value.scored_members().for_each(|member| {
            counts.add_string(member.name);
            counts.payload_bytes += score_len(member.score);
        });
    }
}

/// Returns the number of bytes that a packed score takes.
fn score_len(score: f64) -> u64 {
    if score.fract() == 0.0 && score.abs() <= f64::from(i32::MAX) { 4 } else { 8 }
}
