//! Memory model of Redis 7 and 8.

use crate::allocator::Quantum;
use crate::data::{KeyGroup, MemoryBreakdown};
use crate::kinds::memory_model;
use crate::structures::redis::DICT_ENTRY_BYTES;
pub use crate::structures::redis::RedisVersion;

/// Returns the bytes of one key of the group `data` in a server that holds `keys` keys.
#[must_use]
pub fn bytes_per_key(data: &KeyGroup, version: RedisVersion, quantum: Quantum, keys: u64) -> MemoryBreakdown {
    let keys = keys.max(1);
    let table = (keys.next_power_of_two().max(4) * 8) as f64 / keys as f64;
    let place = MemoryBreakdown {
        index: table + quantum.size_class(DICT_ENTRY_BYTES) as f64,
        ..MemoryBreakdown::default()
    };
    let expiry = if data.expires { place } else { MemoryBreakdown::default() };
    quantum.sds_memory(data.key_bytes)
        + place
        + expiry
        + memory_model(data.kind).redis_memory(quantum, data, version)
}
