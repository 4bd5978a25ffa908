//! Compares the models with measured servers (docs/BENCHMARKS.md, "Resident bytes per key").

use capacity::KeyGroup;
use capacity::allocator::DEFAULT_QUANTUM;
use capacity::plan::{ModelInputs, PlannedServer};
use keyspace::Kind;
use tikv_jemalloc_ctl::thread;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Returns the net number of bytes that this thread has allocated.
fn allocated_bytes() -> i64 {
    let read = || Some((thread::allocatedp::read().ok()?.get(), thread::deallocatedp::read().ok()?.get()));
    read().map_or(0, |(given, returned)| given.cast_signed() - returned.cast_signed())
}

const MODELS: ModelInputs = ModelInputs { quantum: DEFAULT_QUANTUM, heap_counter: allocated_bytes };

fn key_group(kind: Kind, elements: u64, lengths: [u64; 3]) -> KeyGroup {
    let [key_bytes, field_bytes, value_bytes] = lengths;
    let name = kind.name().to_owned();
    KeyGroup {
        name,
        kind,
        keys: 1,
        elements,
        key_bytes,
        field_bytes,
        value_bytes,
        longest_value_bytes: None,
        expires: false,
        values_are_integers: false,
    }
}

fn predicted_bytes_per_key(server: PlannedServer, data: &KeyGroup, keys: u64) -> f64 {
    server.bytes_per_key(data, MODELS, keys, keys).total()
}

/// The predictions equal the measured resident bytes per key or element within 3 %. The single large sorted set may
/// deviate by 4 %, because its measurement of 47 MB includes the server's buffers.
#[test]
fn predictions_match_measurements() {
    let string = |key, value| key_group(Kind::String, 1, [key, 0, value]);
    let rows = [
        ("string 16+32", string(16, 32), 2_000_000, 1, 66.3),
        ("with a TTL", KeyGroup { expires: true, ..string(16, 32) }, 2_000_000, 1, 72.5),
        ("string 10+8", string(10, 8), 2_000_000, 1, 33.1),
        ("hash of 200", key_group(Kind::Hash, 200, [16, 14, 75]), 10_000, 200, 106.7),
        ("large hash", key_group(Kind::Hash, 2_000_000, [16, 14, 75]), 1, 2_000_000, 102.0),
        ("zset of 200", key_group(Kind::SortedSet, 200, [16, 0, 75]), 5000, 200, 107.9),
        ("large zset", key_group(Kind::SortedSet, 1_000_000, [16, 0, 17]), 1, 1_000_000, 46.9),
        ("list of 200", key_group(Kind::List, 200, [16, 0, 75]), 5000, 200, 86.9),
    ];
    let mut wrong = Vec::new();
    for (name, data, keys, divide, measured) in rows {
        let predicted = predicted_bytes_per_key(PlannedServer::Redoubt, &data, keys) / f64::from(divide);
        println!("{name}: {predicted:.1} for {measured}");
        let bound = if name == "large zset" { 0.04 } else { 0.03 };
        if !(1.0 - bound..1.0 + bound).contains(&(predicted / measured)) {
            wrong.push(format!("{name}: {predicted:.1} for {measured}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
