//! Measures the bytes per key in this server by filling a keyspace table with sample keys.
//!
//! The measurement uses the real pages, index, thresholds and structures (docs/keyspace.md), so it stays correct when
//! they change. Bytes per key depend on how many keys share a slot; each slot holds 1/16384 of all keys. If these keys
//! take more than [`MAX_SAMPLE_BYTES`] per slot, fewer keys are stored, because the fill level hardly changes beyond
//! that size. Large collections are sampled likewise.

use std::iter;
use std::sync::{Mutex, PoisonError};

use keyspace::{Key, KeyLookup, Keyspace, Kind, PackedValue, Table, pool_used_bytes};
use slot_routing::SLOT_COUNT;

use crate::data::{KeyGroup, MemoryBreakdown};
use crate::kinds::memory_model;
use crate::structures::own::{format_number, sample_value};

/// Returns the net number of bytes that this thread has allocated from the general allocator.
pub type HeapCounter = fn() -> i64;

/// Approximate limit in bytes of the sample data per slot.
const MAX_SAMPLE_BYTES: u64 = 24 << 20;
/// The largest number of elements stored per collection.
const MAX_SAMPLE_ELEMENTS: u64 = 200_000;
/// The number of elements added per command.
const ELEMENTS_PER_COMMAND: u64 = 1000;
/// The maximum number of filled slots. A slot with few keys is not representative, so many slots are averaged.
const MAX_SAMPLE_SLOTS: u64 = 1024;
const MIN_SAMPLE_KEYS: u64 = 20_000;
/// Bytes of the header of a key's entry.
const ENTRY_HEADER_BYTES: f64 = 6.0;
/// Bytes of a key's expiry time.
const EXPIRY_BYTES: f64 = 6.0;
/// Limits of the packed encoding. A larger collection is stored as a separate structure.
const MAX_PACKED_ELEMENTS: u64 = 512;
const MAX_PACKED_BYTES: u64 = 8 << 10;

/// Returns the bytes of one key in a server that holds `keys` such keys.
#[must_use]
pub fn sampled_memory(data: &KeyGroup, keys: u64, heap: HeapCounter) -> MemoryBreakdown {
    if data.elements > MAX_SAMPLE_ELEMENTS {
        // The key itself is negligible in a collection of this size, so scale the result of a smaller collection.
        let part = KeyGroup { elements: MAX_SAMPLE_ELEMENTS, ..data.clone() };
        return sampled_memory(&part, keys, heap)
            .multiplied_by(data.elements as f64 / MAX_SAMPLE_ELEMENTS as f64);
    }
    let keys = keys.max(1);
    let per_slot = keys as f64 / SLOT_COUNT as f64;
    let fits = (MAX_SAMPLE_BYTES / data.payload_bytes().max(1)).max(1) as f64;
    // The fill level varies between slots, so average over several of them.
    let slots = (MIN_SAMPLE_KEYS as f64 / per_slot).clamp(4.0, MAX_SAMPLE_SLOTS as f64);
    let slots = slots.min(fits / per_slot.max(1e-9)).max(1.0) as u64;
    let in_all = (per_slot * slots as f64).min(fits).max(1.0).round() as u64;
    let [used, index] = measure_sample(data, in_all, slots, heap).map(|bytes| bytes as f64 / in_all as f64);
    let (payload, headers) = (data.payload_bytes() as f64, metadata_bytes(data));
    let held = used + unused_resident_bytes(data, used);
    MemoryBreakdown { payload, headers, index, rounding: (held - payload - headers - index).max(0.0) }
}

/// Returns the memory that is resident but unused: free pool space, and the page that jemalloc adds to a large
/// allocation to start it at a random cache line.
fn unused_resident_bytes(data: &KeyGroup, used: f64) -> f64 {
    const FREE_POOL_FRACTION: f64 = 0.02;
    const LARGE_ALLOCATION_BYTES: u64 = 14 << 10;
    const PAGE_BYTES: f64 = 4096.0;
    let is_string = data.kind == Kind::String;
    used * FREE_POOL_FRACTION
        + if is_string && data.value_bytes > LARGE_ALLOCATION_BYTES { PAGE_BYTES } else { 0.0 }
}

/// Stores `keys` keys and returns the bytes in use, and how many of them serve lookup. Calls are serialized because all
/// threads share the memory pool.
fn measure_sample(data: &KeyGroup, keys: u64, slots: u64, heap: HeapCounter) -> [i64; 2] {
    static MEASUREMENT_LOCK: Mutex<()> = Mutex::new(());
    let _guard = MEASUREMENT_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let keyspace = Keyspace::new(1, 1);
    let mut tables: Vec<Table> = iter::repeat_with(Table::default).take(slots as usize).collect();
    let in_use = || heap() + pool_used_bytes() as i64;
    let before = in_use();
    for number in 0..keys {
        // Assign the sample key to a pseudo-random slot.
        let chance =
            number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let table = &mut tables[((chance >> 33) % slots) as usize];
        let name = format_number(number, data.key_bytes);
        store_sample_key(table, &keyspace.key(&name), data);
    }
    // Compact the tables, as a server does within seconds.
    for table in &mut tables {
        table.compact(usize::MAX);
    }
    [in_use() - before, tables.iter().map(|table| table.overhead_bytes() as i64).sum()]
}

fn store_sample_key(table: &mut Table, key: &Key<'_>, data: &KeyGroup) {
    let expiry = data.expires.then_some(clock::Millis(1 << 41));
    if data.kind == Kind::String {
        let _ = table.insert(key, PackedValue::string(&sample_value(data, 0)), expiry);
        return;
    }
    let mut place = table.insert(key, PackedValue::empty(data.kind), None);
    for first in (0..data.elements).step_by(ELEMENTS_PER_COMMAND as usize) {
        let numbers = first..data.elements.min(first + ELEMENTS_PER_COMMAND);
        place = memory_model(data.kind).add_to_sample(table, place, key, data, numbers);
    }
    if let KeyLookup::Live(place) = table.find(key, clock::Millis(0)) {
        let _ = table.set_expiry(place, key, expiry);
    }
}

/// Returns the metadata bytes of a key and its elements.
fn metadata_bytes(data: &KeyGroup) -> f64 {
    let key = ENTRY_HEADER_BYTES + if data.expires { EXPIRY_BYTES } else { 0.0 };
    key + memory_model(data.kind).metadata_bytes(data, exceeds_packed_limits(data))
}

fn exceeds_packed_limits(data: &KeyGroup) -> bool {
    data.kind != Kind::String
        && (data.elements > MAX_PACKED_ELEMENTS || data.payload_bytes() - data.key_bytes > MAX_PACKED_BYTES)
}
