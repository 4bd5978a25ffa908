//! Memory of the structures of Redis 7 and 8 at default settings, allocation by allocation.
//!
//! Sizes follow their headers: `robj` of 16 bytes, `sds` with a header of 1, 3, 5 or 9 bytes and a terminating zero,
//! `dictEntry` of 24 bytes and a power-of-two bucket array, `listpack`, `quicklist`, `intset`, `zskiplist`. Redis 8
//! also encodes small sets as listpacks, and its tables without values (sets) need entries only in chains longer than
//! one.

use crate::allocator::{Quantum, ROBJ_BYTES, sds_overhead};
use crate::data::{KeyGroup, MemoryBreakdown};

pub(crate) const DICT_ENTRY_BYTES: u64 = 24;
const DICT_BYTES: u64 = 56;
/// Maximum length of an element in the listpack encoding.
const MAX_PACKED_VALUE_BYTES: u64 = 64;
/// Maximum number of fields of a hash in the listpack encoding.
pub(crate) const MAX_PACKED_FIELDS: u64 = 512;
/// Maximum number of members of a set or sorted set in the listpack encoding.
pub(crate) const MAX_PACKED_MEMBERS: u64 = 128;
/// Maximum number of members of a set in the intset encoding.
const MAX_INTSET_MEMBERS: u64 = 512;
/// Maximum bytes of a list node (`list-max-listpack-size -2`).
const LIST_NODE_BYTES: u64 = 8192;
/// The longest string that is embedded in its object (EMBSTR).
const MAX_EMBEDDED_STRING_BYTES: u64 = 44;

/// The version of Redis whose structures are modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RedisVersion {
    /// Redis 7.0, as packaged by Debian.
    V7,
    /// Redis 8.0 or later.
    V8,
}

/// Returns the metadata bytes of a listpack entry: encoding with length before the string, backward
/// length after it.
pub(crate) fn listpack_entry_overhead(len: u64) -> u64 {
    let before = match len {
        0..64 => 1,
        64..4096 => 2,
        _ => 5,
    };
    let behind = match before + len {
        0..128 => 1,
        128..16_384 => 2,
        _ => 3,
    };
    before + behind
}

pub(crate) fn string_memory(quantum: Quantum, len: u64, is_integer: bool) -> MemoryBreakdown {
    match len {
        // The integer is stored in the object's pointer field, so it needs no allocation.
        0..20 if is_integer => {
            MemoryBreakdown { payload: 8.0, headers: (ROBJ_BYTES - 8) as f64, ..MemoryBreakdown::default() }
        }
        0..=MAX_EMBEDDED_STRING_BYTES => quantum.allocation_memory(len, ROBJ_BYTES + 4),
        _ => quantum.allocation_memory(0, ROBJ_BYTES) + quantum.allocation_memory(len, sds_overhead(len)),
    }
}

/// Sums `cost`, a function of the value length, over all values of a key.
pub(crate) fn sum_values(data: &KeyGroup, cost: impl Fn(u64) -> MemoryBreakdown) -> MemoryBreakdown {
    let (rest, longest) = data.value_lengths();
    cost(rest).multiplied_by((data.elements_per_key() - 1) as f64) + cost(longest)
}

/// Returns whether a value with at most `max` elements stays a listpack.
pub(crate) fn fits_listpack(data: &KeyGroup, max: u64) -> bool {
    data.elements <= max && data.longest_value_len().max(data.field_bytes) <= MAX_PACKED_VALUE_BYTES
}

/// Returns the cost of a `dict`, its bucket arrays and its entries.
fn dict_memory(quantum: Quantum, elements: u64, entry_bytes: f64, is_rehashing: bool) -> MemoryBreakdown {
    let buckets = elements.next_power_of_two().max(4);
    let old = if is_rehashing { quantum.size_class(buckets / 2 * 8) } else { 0 };
    MemoryBreakdown {
        headers: quantum.size_class(DICT_BYTES) as f64,
        index: (quantum.size_class(buckets * 8) + old) as f64 + entry_bytes,
        ..MemoryBreakdown::default()
    }
}

/// Returns whether a dict that was filled at once is still rehashing, so that it also has its old bucket array, which
/// is half as large. Each insertion moves one non-empty bucket, and 63 % of the old buckets are non-empty.
fn is_rehashing(elements: u64) -> bool {
    let half = elements.next_power_of_two() / 2;
    half >= 4 && elements > half && ((elements - half) as f64) < 0.63 * half as f64
}

pub(crate) fn listpack_hash_memory(quantum: Quantum, data: &KeyGroup) -> MemoryBreakdown {
    let (rest, longest) = data.value_lengths();
    let heads = data.elements * listpack_entry_overhead(data.field_bytes)
        + (data.elements - 1) * listpack_entry_overhead(rest)
        + listpack_entry_overhead(longest);
    quantum.listpack_memory((data.field_bytes + data.value_bytes) * data.elements_per_key(), heads)
}

pub(crate) fn hash_memory(quantum: Quantum, data: &KeyGroup) -> MemoryBreakdown {
    if fits_listpack(data, MAX_PACKED_FIELDS) {
        return listpack_hash_memory(quantum, data);
    }
    let n = data.elements;
    // Redis presizes the dict for all fields, including the new one, when a hash exceeds the listpack's entry limit. A
    // hash converted because of a long value is presized about the same.
    let (rest, longest) = data.value_lengths();
    let whole = rest.max(data.field_bytes) <= MAX_PACKED_VALUE_BYTES
        && (longest > rest || n <= 2 * MAX_PACKED_FIELDS);
    let fields = quantum.sds_memory(data.field_bytes).multiplied_by(n as f64)
        + sum_values(data, |len| quantum.sds_memory(len));
    quantum.allocation_memory(0, ROBJ_BYTES)
        + dict_memory(
            quantum,
            n,
            (n * quantum.size_class(DICT_ENTRY_BYTES)) as f64,
            !whole && is_rehashing(n),
        )
        + fields
}

/// Returns the width in bytes of the integers in an intset.
fn integer_width(digits: u64) -> u64 {
    match digits {
        0..=4 => 2,
        5..=9 => 4,
        _ => 8,
    }
}

/// Returns the cost of a set in a compact encoding, or `None` if it is a hash table.
pub(crate) fn packed_set_memory(
    quantum: Quantum,
    data: &KeyGroup,
    allow_listpack: bool,
) -> Option<MemoryBreakdown> {
    let n = data.elements;
    if data.values_are_integers && n <= MAX_INTSET_MEMBERS {
        return Some(
            quantum.allocation_memory(0, ROBJ_BYTES)
                + quantum.allocation_memory(n * integer_width(data.value_bytes), 8),
        );
    }
    let packed = allow_listpack && fits_listpack(data, MAX_PACKED_MEMBERS);
    packed
        .then(|| quantum.listpack_memory(n * data.value_bytes, n * listpack_entry_overhead(data.value_bytes)))
}

pub(crate) fn set_memory(quantum: Quantum, data: &KeyGroup, version: RedisVersion) -> MemoryBreakdown {
    packed_set_memory(quantum, data, version >= RedisVersion::V8).unwrap_or_else(|| {
        let n = data.elements;
        let buckets = n.next_power_of_two().max(4) as f64;
        let entries = match version {
            RedisVersion::V7 => (n * quantum.size_class(DICT_ENTRY_BYTES)) as f64,
            // Redis 8 needs no entry for a member that is alone in its bucket, and 16 bytes for any other member.
            RedisVersion::V8 => {
                let chained = |buckets: f64| n as f64 - buckets * (1.0 - (-(n as f64) / buckets).exp());
                let old = if is_rehashing(n) { buckets / 2.0 } else { buckets };
                16.0 * (chained(buckets) + chained(old)) / 2.0
            }
        };
        quantum.allocation_memory(0, ROBJ_BYTES)
            + dict_memory(quantum, n, entries, is_rehashing(n))
            + sum_values(data, |len| quantum.sds_memory(len))
    })
}

/// Returns the cost of a list with nodes of up to 8 KB. Newer versions store a list of one node as a plain listpack.
pub(crate) fn list_memory(quantum: Quantum, data: &KeyGroup, allow_listpack: bool) -> MemoryBreakdown {
    const QUICKLIST_BYTES: u64 = 40;
    const QUICKLIST_NODE_BYTES: u64 = 40;
    let item = data.value_bytes + listpack_entry_overhead(data.value_bytes);
    let total = item * data.elements + 7;
    if allow_listpack && total <= LIST_NODE_BYTES {
        return quantum.listpack_memory(
            data.value_bytes * data.elements,
            item * data.elements - data.value_bytes * data.elements,
        );
    }
    // Redis starts a new node when the next item plus eight bytes would exceed the limit.
    let in_node = ((LIST_NODE_BYTES - 15) / item).max(1);
    let node = |items: u64| {
        quantum.allocation_memory(data.value_bytes * items, (item - data.value_bytes) * items + 7)
            + quantum.index_memory(QUICKLIST_NODE_BYTES)
    };
    let (full, rest) = (data.elements / in_node, data.elements % in_node);
    let last = if rest > 0 { node(rest) } else { MemoryBreakdown::default() };
    quantum.allocation_memory(0, ROBJ_BYTES)
        + quantum.allocation_memory(0, QUICKLIST_BYTES)
        + node(in_node).multiplied_by(full as f64)
        + last
}

/// Returns the cost of a skiplist node with the average number of levels.
pub(crate) fn skiplist_node_memory(quantum: Quantum, metadata_bytes: u64, payload: u64) -> MemoryBreakdown {
    (1..=32).fold(MemoryBreakdown::default(), |sum, level: u64| {
        let share = 0.75 * 0.25_f64.powi(level as i32 - 1);
        let found = quantum.index_memory(metadata_bytes + 16 * level + payload);
        sum + MemoryBreakdown { index: found.index - payload as f64, payload: payload as f64, ..found }
            .multiplied_by(share)
    })
}

/// Bytes of a score in a listpack, for an integer score below a million.
const PACKED_SCORE_BYTES: u64 = 5;
/// Bytes of a sorted set object, including the skiplist's header node, which has the maximum height.
pub(crate) const ZSET_BYTES: u64 = 16 + 32 + 640;

pub(crate) fn listpack_zset_memory(quantum: Quantum, data: &KeyGroup) -> MemoryBreakdown {
    let n = data.elements;
    quantum.listpack_memory(
        n * data.value_bytes,
        n * (listpack_entry_overhead(data.value_bytes) + PACKED_SCORE_BYTES),
    )
}

pub(crate) fn zset_memory(quantum: Quantum, data: &KeyGroup) -> MemoryBreakdown {
    let n = data.elements;
    if fits_listpack(data, MAX_PACKED_MEMBERS) {
        return listpack_zset_memory(quantum, data);
    }
    let order = skiplist_node_memory(quantum, 24, 0).multiplied_by(n as f64);
    let heads = MemoryBreakdown { headers: (ROBJ_BYTES + ZSET_BYTES) as f64, ..MemoryBreakdown::default() };
    heads
        + dict_memory(quantum, n, (n * quantum.size_class(DICT_ENTRY_BYTES)) as f64, is_rehashing(n))
        + order
        + sum_values(data, |len| quantum.sds_memory(len))
}

/// Returns the cost of a stream: nodes of up to 4 KB or 100 entries, in a radix tree by id. The last node has 4 KB
/// preallocated and is shrunk when the next node is created.
pub(crate) fn stream_memory(quantum: Quantum, data: &KeyGroup) -> MemoryBreakdown {
    const MAX_NODE_BYTES: u64 = 4096;
    const MAX_NODE_ENTRIES: u64 = 100;
    const STREAM_BYTES: u64 = 80;
    const RAX_BYTES: u64 = 24;
    /// Bytes of a radix tree node for an id with its own prefix, and of the pointer to the stream node.
    const RAX_NODE_BYTES: [u64; 2] = [32, 16];
    /// Bytes of the flags, of the id's two delta-encoded parts and of the field count, each with its backward length.
    /// Ids are assumed to be less than eight seconds apart.
    const ENTRY_BYTES: u64 = 2 + 3 + 2 + 2;
    /// Bytes of a stream node's master entry without the field name: header, counts and terminator.
    const MASTER_ENTRY_BYTES: u64 = 7 + 2 + 2 + 2 + 2;
    let head = MASTER_ENTRY_BYTES + data.field_bytes + listpack_entry_overhead(data.field_bytes);
    let entry = ENTRY_BYTES + listpack_entry_overhead(data.value_bytes);
    // Redis starts a new node when the fields and values of the next entry would exceed the limit.
    let asked = data.field_bytes + data.value_bytes;
    let fits = MAX_NODE_BYTES.saturating_sub(head + asked).div_ceil(entry + data.value_bytes).max(1);
    let in_node = fits.min(MAX_NODE_ENTRIES);
    let place = RAX_NODE_BYTES
        .into_iter()
        .fold(MemoryBreakdown::default(), |sum, bytes| sum + quantum.index_memory(bytes));
    let node =
        |entries: u64| quantum.allocation_memory(data.value_bytes * entries, entry * entries + head) + place;
    let n = data.elements_per_key();
    let last = match n % in_node {
        0 => in_node,
        rest => rest,
    };
    let reserved = MAX_NODE_BYTES.saturating_sub(node(last).total() as u64 - place.total() as u64);
    quantum.allocation_memory(0, ROBJ_BYTES)
        + quantum.allocation_memory(0, STREAM_BYTES)
        + quantum.allocation_memory(0, RAX_BYTES)
        + node(in_node).multiplied_by(((n - last) / in_node) as f64)
        + node(last)
        + MemoryBreakdown { rounding: reserved as f64, ..MemoryBreakdown::default() }
}
