//! Memory model of Valkey 9, which stores a key, its expiry time and a short value in one
//! allocation.

use keyspace::Kind;

use crate::allocator::{Quantum, ROBJ_BYTES, sds_overhead};
use crate::data::{KeyGroup, MemoryBreakdown};
use crate::kinds::memory_model;
use crate::structures::valkey::{POINTER_BYTES, bucket_bytes};

/// Bytes of an object without its value pointer.
const OBJECT_HEADER_BYTES: u64 = 8;
/// Bytes of the length prefix of an embedded key.
const KEY_HEADER_BYTES: u64 = 1;
const EXPIRY_BYTES: u64 = 8;
/// The maximum size in bytes of an object that embeds its key and value.
const MAX_EMBEDDED_OBJECT_BYTES: u64 = 128;

/// Returns the bytes of one key of the group `data` in a server that holds `keys` keys.
#[must_use]
pub fn bytes_per_key(data: &KeyGroup, quantum: Quantum, keys: u64) -> MemoryBreakdown {
    let keys = keys.max(1);
    let place = MemoryBreakdown { index: bucket_bytes(keys) / keys as f64, ..MemoryBreakdown::default() };
    let places = place.multiplied_by(if data.expires { 2.0 } else { 1.0 });
    let name = KEY_HEADER_BYTES + sds_overhead(data.key_bytes);
    let head = OBJECT_HEADER_BYTES + name + if data.expires { EXPIRY_BYTES } else { 0 };
    if data.kind == Kind::String {
        let len = data.value_bytes;
        let whole = head + data.key_bytes + len + 4;
        if !data.values_are_integers && whole <= MAX_EMBEDDED_OBJECT_BYTES {
            return places + quantum.allocation_memory(data.key_bytes + len, head + 4);
        }
        let object = quantum.allocation_memory(data.key_bytes, head + POINTER_BYTES);
        return places
            + object
            + if data.values_are_integers { MemoryBreakdown::default() } else { quantum.sds_memory(len) };
    }
    // Redis has a separate `robj` for the value; Valkey merges it with the key's object.
    let object = quantum.allocation_memory(data.key_bytes, head + POINTER_BYTES);
    let own = MemoryBreakdown { headers: -(ROBJ_BYTES as f64), ..MemoryBreakdown::default() };
    places + object + memory_model(data.kind).valkey_memory(quantum, data) + own
}
