//! Reported memory is exact, and memory is released. This is a single test, because the memory pool is process-wide.

use std::sync::Arc;

use clock::Millis;
use keyspace::{
    EntryRef, Key, KeyLookup, Keyspace, Kind, ListEnd, ListLimit, PackedBuilder, PackedValue, SnapshotValue,
    Stream, StreamId, StreamNodeBounds, StreamTrim, Table, TrimPrecision, Value, pool_usage,
    snapshot_only_bytes,
};
use slot_routing::Slot;

const KEY_COUNT: usize = 200_000;

fn insert_keys(keyspace: &Keyspace, name: &str, value: PackedValue<'_>) {
    let key = keyspace.key(name.as_bytes());
    let mut guard = keyspace.lock(key.slot());
    guard.table(0).insert(&key, value, None);
}

/// Returns the bytes that deleting the key would free, according to the table.
fn reported_bytes(keyspace: &Keyspace, name: &str) -> usize {
    let key = keyspace.key(name.as_bytes());
    let mut guard = keyspace.lock(key.slot());
    let table = guard.table(0);
    let KeyLookup::Live(place) = table.find(&key, Millis(0)) else { panic!("the key is there") };
    table.entry_bytes(place)
}

fn delete_keys(keyspace: &Keyspace, name: &str) {
    let key = keyspace.key(name.as_bytes());
    let mut guard = keyspace.lock(key.slot());
    let table = guard.table(0);
    if let KeyLookup::Live(place) = table.find(&key, Millis(0)) {
        drop(table.remove(place, &key));
    }
}

#[test]
fn memory_is_counted_exactly_and_freed() {
    bytes_kept_for_snapshots_are_counted();
    nodes_kept_for_snapshots_are_counted();
    entry_bytes_match_memory_freed_by_deletion();
    // Use few slots, so that each has as many keys as in a server with millions of keys.
    let name = |number: usize| format!("{{{}}}{number:012}", number % 1000);
    let keyspace = Keyspace::new(1, 16);
    for len in [8, 32, 200, 5000] {
        let keys = if len > 1000 { KEY_COUNT / 20 } else { KEY_COUNT };
        let value = vec![7; len];
        let before = keyspace.used_bytes();
        (0..keys).for_each(|number| insert_keys(&keyspace, &name(number), PackedValue::string(&value)));
        let reported_bytes: usize = (0..keys).map(|number| reported_bytes(&keyspace, &name(number))).sum();
        let full = pool_usage();
        let used = keyspace.used_bytes() - before;
        let off = (reported_bytes as f64 - used as f64) / used as f64;
        assert!(off.abs() < 0.05, "keys of {len} bytes say {reported_bytes}, the keyspace {used}");

        (0..keys).filter(|number| number % 10 != 3).for_each(|number| delete_keys(&keyspace, &name(number)));
        (0..2 * Keyspace::PURGE_STEPS).for_each(|step| {
            keyspace.purge_step(step);
        });
        let left = pool_usage();
        if len < 1000 {
            assert!(left.used_bytes < full.used_bytes / 6, "a tenth of the keys takes {left:?} of {full:?}");
            assert!(
                left.mapped_bytes < full.mapped_bytes / 3,
                "the system got back all but {left:?} of {full:?}"
            );
        }
        (0..keys).for_each(|number| delete_keys(&keyspace, &name(number)));
        assert!(keyspace.used_bytes() - before < 100_000, "without keys nothing is left");
    }
}

/// Overwritten and deleted strings are counted exactly until the snapshot that needs them has visited them.
fn bytes_kept_for_snapshots_are_counted() {
    let keyspace = Arc::new(Keyspace::new(1, 16));
    let (small, large) = (vec![1; 40], vec![2; 50_000]);
    let names: Vec<String> = (0..100).map(|number| format!("{number}")).collect();
    for name in &names {
        insert_keys(&keyspace, name, PackedValue::string(if name.len() == 1 { &large } else { &small }));
    }
    let (mut snapshot, ()) =
        keyspace.prepare_snapshot().take(&keyspace.acquire_global_lock(), || ()).expect("no other");
    for name in &names {
        delete_keys(&keyspace, name);
        insert_keys(&keyspace, name, PackedValue::string(&small));
    }
    let kept = snapshot_only_bytes();
    assert!((10 * 50_000 + 90 * 50..10 * 51_000 + 90 * 60).contains(&kept), "{kept}");
    assert!(keyspace.used_bytes() > kept);
    let mut long = 0;
    Slot::all().for_each(|slot| {
        snapshot.walk(slot, &mut |entry| {
            long += usize::from(
                matches!(entry.value, SnapshotValue::Whole(Value::String(string)) if string.bytes == large),
            );
        });
    });
    assert_eq!((long, snapshot_only_bytes()), (10, 0));
}

/// Nodes that a list or stream no longer shares with a snapshot are counted until the snapshot has visited them.
fn nodes_kept_for_snapshots_are_counted() {
    const ITEMS: usize = 2000;
    const BYTES: usize = ITEMS * 100;
    const LIMIT: ListLimit = ListLimit(-2);
    const BOUNDS: StreamNodeBounds = StreamNodeBounds { max_bytes: 4096, max_entries: 100 };
    let item = [b'a'; 100];
    let changes: [fn(&mut Table, &Key<'_>, EntryRef); 3] = [
        |table, key, mut place| {
            for index in 0..ITEMS {
                place = table.list_set(place, key, index, b"b", LIMIT);
            }
        },
        |table, key, place| drop(table.list_remove_ends(place, key, ListEnd::Head, ITEMS - 1, LIMIT).1),
        |table, key, place| {
            let trim = |stream: &mut Stream| stream.trim(StreamTrim::MaxLen(1), TrimPrecision::Exact).1;
            drop(table.edit_stream(place, key, trim).1.into_dropped());
        },
    ];
    for (which, change) in changes.into_iter().enumerate() {
        let keyspace = Arc::new(Keyspace::new(1, 16));
        let key = keyspace.key(b"key");
        let place = {
            let mut guard = keyspace.lock(key.slot());
            let table = guard.table(0);
            if which < 2 {
                table.list_create(&key, ListEnd::Tail, std::iter::repeat_n(&item[..], ITEMS), LIMIT)
            } else {
                let place = table.insert(&key, PackedValue::empty(Kind::Stream), None);
                let fill = |stream: &mut Stream| {
                    for sequence in 1..=ITEMS as u64 {
                        stream.append(StreamId { millis: 1, sequence }, &[b"f", &item], BOUNDS);
                    }
                };
                table.edit_stream(place, &key, fill).0
            }
        };
        let (mut snapshot, ()) =
            keyspace.prepare_snapshot().take(&keyspace.acquire_global_lock(), || ()).expect("no other");
        assert_eq!(snapshot_only_bytes(), 0, "what is shared costs nothing");
        change(keyspace.lock(key.slot()).table(0), &key, place);
        let kept = snapshot_only_bytes();
        assert!((BYTES * 9 / 10..BYTES * 3 / 2).contains(&kept), "change {which} keeps {kept}");
        Slot::all().for_each(|slot| snapshot.walk(slot, &mut |_| {}));
        assert_eq!(snapshot_only_bytes(), 0, "change {which}");
    }
}

/// Deletes strings and hashes of many sizes, each among others of similar size.
fn entry_bytes_match_memory_freed_by_deletion() {
    let keyspace = Keyspace::new(1, 16);
    let check = |what: &str, keys: usize, value: PackedValue<'_>| {
        let name = |number: usize| format!("{{{}}}{number:06}", number % 20);
        let before = keyspace.used_bytes();
        (0..keys).for_each(|number| insert_keys(&keyspace, &name(number), value));
        let reported_bytes: usize = (0..keys).map(|number| reported_bytes(&keyspace, &name(number))).sum();
        let full = keyspace.used_bytes();
        (0..keys).for_each(|number| delete_keys(&keyspace, &name(number)));
        let gave = full - keyspace.used_bytes();
        let off = (reported_bytes as f64 - gave as f64) / gave as f64;
        assert!(
            off.abs() < 0.05,
            "{what}: the keys say {reported_bytes}, deleting them gave {gave} of {}",
            full - before
        );
    };
    for len in [1, 7, 20, 44, 117, 118, 300, 1000, 3000, 4095, 4096, 10_000, 100_000] {
        check(&format!("strings of {len}"), 2000, PackedValue::string(&vec![1; len]));
    }
    for (fields, len) in
        [(1, 5), (11, 20), (100, 10), (500, 15), (513, 15), (3000, 75), (20, 1000), (2000, 1)]
    {
        let mut hash = PackedBuilder::new(Kind::Hash);
        (0..fields)
            .for_each(|field| hash.push_field(format!("field:{field:05}").as_bytes(), &vec![1; len], None));
        check(&format!("hashes of {fields} times {len}"), 200, hash.packed());
    }
}
