//! The models against what servers were measured to take (docs/BENCHMARKS.md, "Resident bytes per key").

use capacity::Data;
use capacity::allocator::DEFAULT;
use capacity::plan::{Models, Server};
use keyspace::Kind;
use tikv_jemalloc_ctl::thread;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Bytes of the heap that this thread has allocated and not freed.
fn heap() -> i64 {
    let read = || Some((thread::allocatedp::read().ok()?.get(), thread::deallocatedp::read().ok()?.get()));
    read().map_or(0, |(given, returned)| given.cast_signed() - returned.cast_signed())
}

const MODELS: Models = Models { quantum: DEFAULT, heap };

fn data(kind: Kind, elements: u64, lengths: [u64; 3]) -> Data {
    let [key_bytes, field_bytes, value_bytes] = lengths;
    let name = kind.name().to_owned();
    Data {
        name,
        kind,
        keys: 1,
        elements,
        key_bytes,
        field_bytes,
        value_bytes,
        longest_bytes: None,
        expires: false,
        integers: false,
    }
}

fn per_key(server: Server, data: &Data, keys: u64) -> f64 {
    server.bytes(data, MODELS, keys, keys).total()
}

/// Resident bytes of the rows, as measured, by keys and what they are divided by. The one large sorted set is 47 MB in all,
/// of which a server's buffers are a part: within 4 %.
#[test]
fn what_was_measured_here_is_what_is_predicted() {
    let string = |key, value| data(Kind::String, 1, [key, 0, value]);
    let rows = [
        ("string 16+32", string(16, 32), 2_000_000, 1, 66.3),
        ("with a TTL", Data { expires: true, ..string(16, 32) }, 2_000_000, 1, 72.5),
        ("string 10+8", string(10, 8), 2_000_000, 1, 33.1),
        ("hash of 200", data(Kind::Hash, 200, [16, 14, 75]), 10_000, 200, 106.7),
        ("large hash", data(Kind::Hash, 2_000_000, [16, 14, 75]), 1, 2_000_000, 102.0),
        ("zset of 200", data(Kind::SortedSet, 200, [16, 0, 75]), 5000, 200, 107.9),
        ("large zset", data(Kind::SortedSet, 1_000_000, [16, 0, 17]), 1, 1_000_000, 46.9),
        ("list of 200", data(Kind::List, 200, [16, 0, 75]), 5000, 200, 86.9),
    ];
    let mut wrong = Vec::new();
    for (name, data, keys, divide, measured) in rows {
        let predicted = per_key(Server::Redoubt, &data, keys) / f64::from(divide);
        println!("{name}: {predicted:.1} for {measured}");
        let bound = if name == "large zset" { 0.04 } else { 0.03 };
        if !(1.0 - bound..1.0 + bound).contains(&(predicted / measured)) {
            wrong.push(format!("{name}: {predicted:.1} for {measured}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
