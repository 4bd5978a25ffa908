//! The bytes of a key here: a table of the keyspace is filled with a few keys of the data, and measured.
//!
//! So the answer follows pages, index, thresholds and structures as they are (docs/keyspace.md), whatever becomes of
//! them. The bytes of a key depend on how many share its slot; a slot holds 1/16384 of them, wherever it lies. Where
//! these are more than [`MOST_BYTES`] in a slot, fewer are stored: pages and index no longer depend on it much. Of a
//! large collection a part is stored, likewise.

use std::iter;
use std::sync::{Mutex, PoisonError};

use keyspace::{Found, Key, Keyspace, Kind, Packed, Table, pool_taken};
use slot_routing::SLOT_COUNT;

use crate::data::{Data, Parts};
use crate::kinds::model;
use crate::structures::own::{text, value};

/// Bytes that the general allocator has given to this thread and not got back, as it counts them.
pub type Heap = fn() -> i64;

/// About how many bytes are stored to measure them.
const MOST_BYTES: u64 = 24 << 20;
/// The most elements that are stored of one collection.
const MOST_ELEMENTS: u64 = 200_000;
/// So many elements come with one command.
const AT_ONCE: u64 = 1000;
/// How many slots are filled if each has few keys, so that chance evens out.
const MOST_SLOTS: u64 = 1024;
const FEWEST_KEYS: u64 = 20_000;
/// The header and use of an entry of a key, and a time.
const ENTRY: f64 = 6.0;
const TIME: f64 = 6.0;
/// A collection is a structure past these.
const MOST_PACKED_ELEMENTS: u64 = 512;
const MOST_PACKED_BYTES: u64 = 8 << 10;

/// The bytes of one key among so many.
#[must_use]
pub fn bytes(data: &Data, keys: u64, heap: Heap) -> Parts {
    if data.elements > MOST_ELEMENTS {
        // The key itself is nothing beside so many.
        let part = Data { elements: MOST_ELEMENTS, ..data.clone() };
        return bytes(&part, keys, heap).times(data.elements as f64 / MOST_ELEMENTS as f64);
    }
    let keys = keys.max(1);
    let per_slot = keys as f64 / SLOT_COUNT as f64;
    let fits = (MOST_BYTES / data.payload().max(1)).max(1) as f64;
    // Slots differ by chance; what a page is full of evens that out when there are many keys.
    let slots = (FEWEST_KEYS as f64 / per_slot).clamp(4.0, MOST_SLOTS as f64);
    let slots = slots.min(fits / per_slot.max(1e-9)).max(1.0) as u64;
    let in_all = (per_slot * slots as f64).min(fits).max(1.0).round() as u64;
    let [used, index] = fill(data, in_all, slots, heap).map(|bytes| bytes as f64 / in_all as f64);
    let (payload, headers) = (data.payload() as f64, headers(data));
    let held = used + resident_beyond(data, used);
    Parts { payload, headers, index, rounding: (held - payload - headers - index).max(0.0) }
}

/// Memory that is resident and not in use: the free part of the pool, and what jemalloc adds to runs of whole pages,
/// which it begins at any line of their first page.
fn resident_beyond(data: &Data, used: f64) -> f64 {
    const FREE: f64 = 0.02;
    const WHOLE_PAGES: u64 = 14 << 10;
    const PAGE: f64 = 4096.0;
    let is_string = data.kind == Kind::String;
    used * FREE + if is_string && data.value_bytes > WHOLE_PAGES { PAGE } else { 0.0 }
}

/// The bytes in use for so many keys, and those of what finds them. One thread at a time: the pool is the process's.
fn fill(data: &Data, keys: u64, slots: u64, heap: Heap) -> [i64; 2] {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let keyspace = Keyspace::new(1, 1);
    let mut tables: Vec<Table> = iter::repeat_with(Table::default).take(slots as usize).collect();
    let in_use = || heap() + pool_taken() as i64;
    let before = in_use();
    for number in 0..keys {
        // Which slot is chance.
        let chance =
            number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let table = &mut tables[((chance >> 33) % slots) as usize];
        let name = text(number, data.key_bytes);
        store(table, &keyspace.key(&name), data);
    }
    // As a server does within seconds.
    for table in &mut tables {
        table.tidy(usize::MAX);
    }
    [in_use() - before, tables.iter().map(|table| table.overhead_bytes() as i64).sum()]
}

fn store(table: &mut Table, key: &Key<'_>, data: &Data) {
    let expiry = data.expires.then_some(clock::Millis(1 << 41));
    if data.kind == Kind::String {
        let _ = table.insert(key, Packed::string(&value(data, 0)), expiry);
        return;
    }
    let mut place = table.insert(key, Packed::empty(data.kind), None);
    for first in (0..data.elements).step_by(AT_ONCE as usize) {
        let numbers = first..data.elements.min(first + AT_ONCE);
        place = model(data.kind).add((table, place, key), data, numbers);
    }
    if let Found::Live(place) = table.find(key, clock::Millis(0)) {
        let _ = table.set_expiry(place, key, expiry);
    }
}

/// The bytes that describe a key and its elements.
fn headers(data: &Data) -> f64 {
    let key = ENTRY + if data.expires { TIME } else { 0.0 };
    key + model(data.kind).headers(data, is_structure(data))
}

fn is_structure(data: &Data) -> bool {
    data.kind != Kind::String
        && (data.elements > MOST_PACKED_ELEMENTS || data.payload() - data.key_bytes > MOST_PACKED_BYTES)
}
