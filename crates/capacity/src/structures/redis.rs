//! The structures of Redis 7 and 8: what they take, allocation by allocation, at the usual settings.
//!
//! From their own headers: `robj` of 16 bytes, `sds` with a head of 1, 3, 5 or 9 bytes and a zero behind, `dictEntry`
//! of 24 bytes behind a power of two of pointers, `listpack`, `quicklist`, `intset`, `zskiplist`. Redis 8 keeps small
//! sets and lists as listpacks, and a table without values (a set) has entries only where its chains are longer than
//! one.

use crate::allocator::{Quantum, ROBJ, sds_head};
use crate::data::{Data, Parts};

pub(crate) const ENTRY: u64 = 24;
const DICT: u64 = 56;
/// The longest element of what stays a listpack, and how many elements it may have.
const LONGEST_PACKED: u64 = 64;
pub(crate) const MOST_FIELDS: u64 = 512;
pub(crate) const MOST_MEMBERS: u64 = 128;
const MOST_INTEGERS: u64 = 512;
/// The bytes of a node of a list (`list-max-listpack-size -2`).
const LIST_NODE: u64 = 8192;
/// The longest string that lies in one allocation with its object.
const EMBEDDED: u64 = 44;

/// Which Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 7.0.
    Seven,
    /// 8.0.
    Eight,
}

/// Bytes around a string in a listpack: its length before, and the entry's behind.
pub(crate) fn listpack_head(len: u64) -> u64 {
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

pub(crate) fn string(q: Quantum, len: u64, integer: bool) -> Parts {
    match len {
        // The number lies where the pointer would.
        0..20 if integer => Parts { payload: 8.0, headers: (ROBJ - 8) as f64, ..Parts::default() },
        0..=EMBEDDED => q.allocation(len, ROBJ + 4),
        _ => q.allocation(0, ROBJ) + q.allocation(len, sds_head(len)),
    }
}

/// All values of a key, of which one may be longer than the others.
pub(crate) fn each_value(data: &Data, of: impl Fn(u64) -> Parts) -> Parts {
    let (rest, longest) = data.lengths();
    of(rest).times((data.elements() - 1) as f64) + of(longest)
}

/// Whether its lengths and their number let it be a listpack.
pub(crate) fn is_packed(data: &Data, most: u64) -> bool {
    data.elements <= most && data.longest().max(data.field_bytes) <= LONGEST_PACKED
}

/// A table of pointers, with its own record.
fn dict(q: Quantum, elements: u64, entries: f64, moves: bool) -> Parts {
    let buckets = elements.next_power_of_two().max(4);
    let old = if moves { q.class(buckets / 2 * 8) } else { 0 };
    Parts {
        headers: q.class(DICT) as f64,
        index: (q.class(buckets * 8) + old) as f64 + entries,
        ..Parts::default()
    }
}

/// Whether a table that was filled in one go still has its last, half as large. A step of moving is done with each
/// command that comes to it: until as many elements were added as the old one's buckets that are in use, 63 %.
fn is_moving(elements: u64) -> bool {
    let half = elements.next_power_of_two() / 2;
    half >= 4 && elements > half && ((elements - half) as f64) < 0.63 * half as f64
}

pub(crate) fn packed_hash(q: Quantum, data: &Data) -> Parts {
    let (rest, longest) = data.lengths();
    let heads = data.elements * listpack_head(data.field_bytes)
        + (data.elements - 1) * listpack_head(rest)
        + listpack_head(longest);
    q.listpack((data.field_bytes + data.value_bytes) * data.elements(), heads)
}

pub(crate) fn hash(q: Quantum, data: &Data) -> Parts {
    if is_packed(data, MOST_FIELDS) {
        return packed_hash(q, data);
    }
    let n = data.elements;
    // A hash that becomes a table by its number of fields gets room for all of them, with the field that is too many.
    // So does one that becomes a table by its longest value, about.
    let (rest, longest) = data.lengths();
    let whole = rest.max(data.field_bytes) <= LONGEST_PACKED && (longest > rest || n <= 2 * MOST_FIELDS);
    let fields = q.sds(data.field_bytes).times(n as f64) + each_value(data, |len| q.sds(len));
    q.allocation(0, ROBJ) + dict(q, n, (n * q.class(ENTRY)) as f64, !whole && is_moving(n)) + fields
}

/// The width of the integers of an intset.
fn integer_width(digits: u64) -> u64 {
    match digits {
        0..=4 => 2,
        5..=9 => 4,
        _ => 8,
    }
}

/// A set that is packed, or `None`.
pub(crate) fn packed_set(q: Quantum, data: &Data, listpacks: bool) -> Option<Parts> {
    let n = data.elements;
    if data.integers && n <= MOST_INTEGERS {
        return Some(q.allocation(0, ROBJ) + q.allocation(n * integer_width(data.value_bytes), 8));
    }
    let packed = listpacks && is_packed(data, MOST_MEMBERS);
    packed.then(|| q.listpack(n * data.value_bytes, n * listpack_head(data.value_bytes)))
}

pub(crate) fn set(q: Quantum, data: &Data, version: Version) -> Parts {
    packed_set(q, data, version >= Version::Eight).unwrap_or_else(|| {
        let n = data.elements;
        let buckets = n.next_power_of_two().max(4) as f64;
        let entries = match version {
            Version::Seven => (n * q.class(ENTRY)) as f64,
            // A member alone in its bucket has no entry; the others' have 16 bytes.
            Version::Eight => {
                let chained = |buckets: f64| n as f64 - buckets * (1.0 - (-(n as f64) / buckets).exp());
                let old = if is_moving(n) { buckets / 2.0 } else { buckets };
                16.0 * (chained(buckets) + chained(old)) / 2.0
            }
        };
        q.allocation(0, ROBJ) + dict(q, n, entries, is_moving(n)) + each_value(data, |len| q.sds(len))
    })
}

/// Items in nodes of up to 8 KB. `alone`: a list of one node is that node.
pub(crate) fn list(q: Quantum, data: &Data, alone: bool) -> Parts {
    const QUICKLIST: u64 = 40;
    const NODE: u64 = 40;
    let item = data.value_bytes + listpack_head(data.value_bytes);
    let total = item * data.elements + 7;
    if alone && total <= LIST_NODE {
        return q.listpack(
            data.value_bytes * data.elements,
            item * data.elements - data.value_bytes * data.elements,
        );
    }
    // A node is full when the next item and eight bytes are too many.
    let in_node = ((LIST_NODE - 15) / item).max(1);
    let node = |items: u64| {
        q.allocation(data.value_bytes * items, (item - data.value_bytes) * items + 7) + q.index(NODE)
    };
    let (full, rest) = (data.elements / in_node, data.elements % in_node);
    let last = if rest > 0 { node(rest) } else { Parts::default() };
    q.allocation(0, ROBJ) + q.allocation(0, QUICKLIST) + node(in_node).times(full as f64) + last
}

/// A member's place in the order, on the average of its levels.
pub(crate) fn skiplist_node(q: Quantum, fixed: u64, payload: u64) -> Parts {
    (1..=32).fold(Parts::default(), |sum, level: u64| {
        let share = 0.75 * 0.25_f64.powi(level as i32 - 1);
        let found = q.index(fixed + 16 * level + payload);
        sum + Parts { index: found.index - payload as f64, payload: payload as f64, ..found }.times(share)
    })
}

/// The bytes of a score in a listpack: an integer below a million.
const PACKED_SCORE: u64 = 5;
/// A sorted set, its list with the tower of its head.
pub(crate) const ZSET: u64 = 16 + 32 + 640;

pub(crate) fn packed_zset(q: Quantum, data: &Data) -> Parts {
    let n = data.elements;
    q.listpack(n * data.value_bytes, n * (listpack_head(data.value_bytes) + PACKED_SCORE))
}

pub(crate) fn zset(q: Quantum, data: &Data) -> Parts {
    let n = data.elements;
    if is_packed(data, MOST_MEMBERS) {
        return packed_zset(q, data);
    }
    let order = skiplist_node(q, 24, 0).times(n as f64);
    let heads = Parts { headers: (ROBJ + ZSET) as f64, ..Parts::default() };
    heads + dict(q, n, (n * q.class(ENTRY)) as f64, is_moving(n)) + order + each_value(data, |len| q.sds(len))
}

/// Entries in nodes of up to 4 KB or 100, found by a radix tree of their ids. The last node has its 4 KB from the
/// beginning; it is cut to its content when the next one is begun.
pub(crate) fn stream(q: Quantum, data: &Data) -> Parts {
    const NODE_BYTES: u64 = 4096;
    const NODE_ENTRIES: u64 = 100;
    const STREAM: u64 = 80;
    const TREE: u64 = 24;
    /// An id with a prefix of its own in the tree: its run of bytes, and the pointer to the node.
    const PLACE: [u64; 2] = [32, 16];
    /// Flags, both parts of the id less the node's, and the number of parts, each with its length behind; ids are
    /// mostly less than eight seconds apart.
    const ENTRY: u64 = 2 + 3 + 2 + 2;
    /// The bytes of a node before its entries: counts and a zero; the name of the field is added to them.
    const HEAD: u64 = 7 + 2 + 2 + 2 + 2;
    let head = HEAD + data.field_bytes + listpack_head(data.field_bytes);
    let entry = ENTRY + listpack_head(data.value_bytes);
    // A node is full when the next entry's own bytes would be too many.
    let asked = data.field_bytes + data.value_bytes;
    let fits = NODE_BYTES.saturating_sub(head + asked).div_ceil(entry + data.value_bytes).max(1);
    let in_node = fits.min(NODE_ENTRIES);
    let place = PLACE.into_iter().fold(Parts::default(), |sum, bytes| sum + q.index(bytes));
    let node = |entries: u64| q.allocation(data.value_bytes * entries, entry * entries + head) + place;
    let n = data.elements();
    let last = match n % in_node {
        0 => in_node,
        rest => rest,
    };
    let reserved = NODE_BYTES.saturating_sub(node(last).total() as u64 - place.total() as u64);
    q.allocation(0, ROBJ)
        + q.allocation(0, STREAM)
        + q.allocation(0, TREE)
        + node(in_node).times(((n - last) / in_node) as f64)
        + node(last)
        + Parts { rounding: reserved as f64, ..Parts::default() }
}
