//! Valkey 9: what a key takes in it. A key, its time and a short value lie in one allocation with their object.

use keyspace::Kind;

use crate::allocator::{Quantum, ROBJ, sds_head};
use crate::data::{Data, Parts};
use crate::kinds::model;
use crate::structures::valkey::{POINTER, buckets};

/// An object without its pointer, and the length in front of an embedded key.
const HEAD: u64 = 8;
const KEY_HEAD: u64 = 1;
const TIME: u64 = 8;
/// The longest object with key and value in one.
const EMBEDDED: u64 = 128;

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
