//! The structures of Valkey 9: its own hash table; lists, listpacks, intsets and streams are Redis's.
//!
//! A table is a power of two of 64-byte buckets with seven places each; a full bucket gets another behind it. The field
//! of a hash lies with its value, the member of a sorted set with its node.

use crate::allocator::{Quantum, sds_head};
use crate::data::Parts;

const BUCKET: f64 = 64.0;
const PLACES: u64 = 7;
/// A table's own record.
const TABLE: u64 = 80;
pub(crate) const POINTER: u64 = 8;
/// The longest field and value in one.
const TOGETHER: u64 = 128;

/// The buckets for so many elements, with those behind full ones.
pub(crate) fn buckets(elements: u64) -> f64 {
    let count = elements.div_ceil(PLACES).max(1).next_power_of_two() as f64;
    let load = elements as f64 / count;
    // Poisson: the share with more elements than places.
    let mut term = (-load).exp();
    let mut within = term;
    for places in 1..=PLACES {
        term *= load / places as f64;
        within += term;
    }
    let behind = if elements <= PLACES { 0.0 } else { 1.0 - within };
    count * (1.0 + behind) * BUCKET
}

pub(crate) fn table(q: Quantum, elements: u64) -> Parts {
    Parts { headers: q.class(TABLE) as f64, index: buckets(elements), ..Parts::default() }
}

/// A field with its value.
pub(crate) fn field(q: Quantum, name: u64, value: u64) -> Parts {
    let heads = sds_head(name) + sds_head(value);
    if name + value + heads <= TOGETHER {
        return q.allocation(name + value, heads);
    }
    q.allocation(name, sds_head(name) + POINTER) + q.sds(value)
}
