//! Memory of the structures of Valkey 9: its own hash table; lists, listpacks, intsets and streams
//! equal those of Redis.
//!
//! A table has a power-of-two number of 64-byte buckets with seven entries each; a full bucket
//! chains another bucket. A hash field is stored with its value, and a sorted set member in its
//! skiplist node.

use crate::allocator::{Quantum, sds_overhead};
use crate::data::MemoryBreakdown;

const BUCKET_BYTES: f64 = 64.0;
const ENTRIES_PER_BUCKET: u64 = 7;
/// Bytes of a hash table's header.
const TABLE_HEADER_BYTES: u64 = 80;
pub(crate) const POINTER_BYTES: u64 = 8;
/// The maximum bytes of a field and its value that are stored in one allocation.
const MAX_EMBEDDED_FIELD_BYTES: u64 = 128;

/// Returns the expected bytes of the buckets for `elements` elements, including chained buckets.
pub(crate) fn bucket_bytes(elements: u64) -> f64 {
    let count = elements.div_ceil(ENTRIES_PER_BUCKET).max(1).next_power_of_two() as f64;
    let load = elements as f64 / count;
    // The number of entries per bucket follows a Poisson distribution with mean `load`. A bucket with more than seven
    // entries needs a chained one.
    let mut term = (-load).exp();
    let mut within = term;
    for places in 1..=ENTRIES_PER_BUCKET {
        term *= load / places as f64;
        within += term;
    }
    let behind = if elements <= ENTRIES_PER_BUCKET { 0.0 } else { 1.0 - within };
    count * (1.0 + behind) * BUCKET_BYTES
}

pub(crate) fn table_memory(quantum: Quantum, elements: u64) -> MemoryBreakdown {
    MemoryBreakdown {
        headers: quantum.size_class(TABLE_HEADER_BYTES) as f64,
        index: bucket_bytes(elements),
        ..MemoryBreakdown::default()
    }
}

/// Returns the cost of a hash field with its value.
pub(crate) fn field_memory(quantum: Quantum, name: u64, value: u64) -> MemoryBreakdown {
    let heads = sds_overhead(name) + sds_overhead(value);
    if name + value + heads <= MAX_EMBEDDED_FIELD_BYTES {
        return quantum.allocation_memory(name + value, heads);
    }
    quantum.allocation_memory(name, sds_overhead(name) + POINTER_BYTES) + quantum.sds_memory(value)
}
