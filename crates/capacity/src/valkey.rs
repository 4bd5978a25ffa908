//! Valkey 9: its own hash table and embedded keys and values; lists, listpacks, intsets and streams are Redis's.
//!
//! A table is a power of two of 64-byte buckets with seven places each; a full bucket gets another behind it. A key, its
//! time and a short value lie in one allocation with their object; the field of a hash lies with its value, the member
//! of a sorted set with its node.

use keyspace::Kind;

use crate::allocator::Quantum;
use crate::data::{Data, Parts};
use crate::kinds::model;
use crate::redis::{ROBJ, sds_head};

const BUCKET: f64 = 64.0;
const PLACES: u64 = 7;
/// A table's own record.
const TABLE: u64 = 80;
/// An object without its pointer, and the length in front of an embedded key.
const HEAD: u64 = 8;
const KEY_HEAD: u64 = 1;
const TIME: u64 = 8;
const POINTER: u64 = 8;
/// The longest object with key and value in one.
const EMBEDDED: u64 = 128;
/// The longest field and value in one.
const TOGETHER: u64 = 128;

/// The buckets for so many elements, with those behind full ones.
fn buckets(elements: u64) -> f64 {
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

/// The bytes of a key, if so many lie in one server.
#[must_use]
pub fn bytes(data: &Data, q: Quantum, keys: u64) -> Parts {
    let keys = keys.max(1);
    let place = Parts { index: buckets(keys) / keys as f64, ..Parts::default() };
    let places = place.times(if data.expires { 2.0 } else { 1.0 });
    let name = KEY_HEAD + sds_head(data.key_bytes);
    let head = HEAD + name + if data.expires { TIME } else { 0 };
    if data.kind == Kind::String {
        let len = data.value_bytes;
        let whole = head + data.key_bytes + len + 4;
        if !data.integers && whole <= EMBEDDED {
            return places + q.allocation(data.key_bytes + len, head + 4);
        }
        let object = q.allocation(data.key_bytes, head + POINTER);
        return places + object + if data.integers { Parts::default() } else { q.sds(len) };
    }
    // The object that Redis has apart lies with the key.
    let object = q.allocation(data.key_bytes, head + POINTER);
    let own = Parts { headers: -(ROBJ as f64), ..Parts::default() };
    places + object + model(data.kind).valkey(q, data) + own
}

/// A field with its value.
pub(crate) fn field(q: Quantum, name: u64, value: u64) -> Parts {
    let heads = sds_head(name) + sds_head(value);
    if name + value + heads <= TOGETHER {
        return q.allocation(name + value, heads);
    }
    q.allocation(name, sds_head(name) + POINTER) + q.sds(value)
}
