//! Tests concurrent snapshots, and that slots are unlocked while a snapshot visits their keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use clock::Millis;
use keyspace::{KeyLookup, Keyspace, PackedValue, Snapshot, SnapshotValue, Value};
use slot_routing::Slot;

fn set(keyspace: &Keyspace, name: &str, value: &[u8]) {
    let key = keyspace.key(name.as_bytes());
    let mut guard = keyspace.lock(key.slot());
    let table = guard.table(0);
    match table.find(&key, Millis(0)) {
        KeyLookup::Missing => drop(table.insert(&key, PackedValue::string(value), None)),
        KeyLookup::Live(place) | KeyLookup::Expired(place) => {
            drop(table.replace(place, &key, PackedValue::string(value), None));
        }
    }
}

fn all_entries(snapshot: &mut Snapshot) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut seen = BTreeMap::new();
    for slot in Slot::all() {
        snapshot.walk(slot, &mut |entry| {
            let SnapshotValue::Whole(Value::String(string)) = entry.value else {
                panic!("only strings were stored")
            };
            assert!(seen.insert(entry.key.to_vec(), string.bytes.to_vec()).is_none());
        });
    }
    seen
}

/// A slot that is pinned for one snapshot can be pinned for another one, so snapshots do not wait for each other.
#[test]
fn concurrent_snapshots_see_their_own_state() {
    let keyspace = Arc::new(Keyspace::new(1, 1));
    let names: Vec<String> = (0..3000).map(|number| format!("{{{}}}{number}", number % 7)).collect();
    let (mut snapshots, mut states) = (Vec::new(), Vec::new());
    for round in 0..3u8 {
        for (number, name) in names.iter().enumerate().filter(|(number, _)| number % 3 >= usize::from(round))
        {
            set(&keyspace, name, &vec![round; 1 + number % 300]);
        }
        let (snapshot, ()) = keyspace
            .prepare_snapshot()
            .take(&keyspace.acquire_global_lock(), || ())
            .expect("three at a time");
        snapshots.push(snapshot);
        let state = names.iter().enumerate().map(|(number, name)| {
            (name.clone().into_bytes(), vec![round.min((number % 3) as u8); 1 + number % 300])
        });
        states.push(state.collect::<BTreeMap<_, _>>());
    }
    assert!(
        keyspace.prepare_snapshot().take(&keyspace.acquire_global_lock(), || ()).is_none(),
        "a fourth is refused, not waited for"
    );
    names.iter().for_each(|name| set(&keyspace, name, b"later"));
    for which in [1, 0, 2] {
        assert_eq!(all_entries(&mut snapshots[which]), states[which]);
    }
    snapshots.pop();
    assert!(keyspace.prepare_snapshot().take(&keyspace.acquire_global_lock(), || ()).is_some());
}

/// A snapshot visits copies: the visitor may lock the visited slot, and long values are visited as a whole.
#[test]
fn slot_is_unlocked_while_keys_are_visited() {
    let keyspace = Arc::new(Keyspace::new(1, 1));
    let long: Vec<u8> = (0..1_000_000u32).map(|number| (number % 251) as u8).collect();
    set(&keyspace, "{a}short", b"value");
    set(&keyspace, "{a}long", &long);
    let (mut snapshot, ()) =
        keyspace.prepare_snapshot().take(&keyspace.acquire_global_lock(), || ()).expect("no other snapshot");
    let mut seen = Vec::new();
    snapshot.walk(Slot::of_key(b"a"), &mut |entry| {
        set(&keyspace, "{a}short", b"other");
        set(&keyspace, "{a}long", b"no longer");
        let SnapshotValue::Whole(Value::String(string)) = entry.value else {
            panic!("only strings were stored")
        };
        seen.push((entry.key.to_vec(), string.bytes.to_vec()));
    });
    seen.sort();
    assert_eq!(seen, [(b"{a}long".to_vec(), long), (b"{a}short".to_vec(), b"value".to_vec())]);
}

/// Taking a snapshot waits for snapshots that commands read, because those end soon, but for no other snapshot.
#[test]
fn taking_a_snapshot_waits_for_those_that_commands_read() {
    let keyspace = Arc::new(Keyspace::new(1, 1));
    let cut =
        |keyspace: &Arc<Keyspace>| keyspace.prepare_snapshot().take(&keyspace.acquire_global_lock(), || ());
    let read = || {
        let turn = keyspace.acquire_global_lock();
        keyspace.prepare_snapshot().take_for_command(&turn, || ()).map(|(snapshot, ())| snapshot)
    };
    let reads = [read(), read(), read()].map(|read| read.expect("three at a time"));
    assert!(read().is_none(), "who reads waits for nobody");
    let other = keyspace.clone();
    let cuts = std::thread::spawn(move || cut(&other).map(|(snapshot, ())| snapshot));
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!cuts.is_finished());
    drop(reads);
    let first = cuts.join().unwrap().expect("a place was free");
    let others = [cut(&keyspace), cut(&keyspace)];
    assert!(others.iter().all(Option::is_some) && cut(&keyspace).is_none());
    drop(first);
}
