//! Only the thread that holds the global lock may wait for a slot while holding another.

use std::sync::Arc;
use std::time::Duration;

use keyspace::{Keyspace, LockedSlots};
use slot_routing::Slot;

fn slot_number(number: u16) -> Slot {
    Slot::new(number).expect("below 16384")
}

/// Some threads lock declared slots, some lock slots one by one under the global lock, and some lock all slots. All of
/// them must finish.
#[test]
fn concurrent_slot_locking_does_not_deadlock() {
    const ROUNDS: u16 = 200;
    let keyspace = Keyspace::new(1, 1);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let keyspace = &keyspace;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mut locked =
                        keyspace.lock_many(&[slot_number(round % 7), slot_number((round * 5 + number) % 7)]);
                    assert!((1..=2).contains(&locked.iter_mut().count()));
                }
            });
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let turn = keyspace.acquire_global_lock();
                    let mut locked = keyspace.lock_many(&[slot_number((round + number) % 7)]);
                    for other in [3, 0, 6, 3] {
                        assert!(locked.add_slot(&turn, slot_number(other), &|_| true));
                    }
                    assert!((3..=4).contains(&locked.iter_mut().count()));
                }
            });
        }
        scope.spawn(|| (0..20).for_each(|_| drop(LockedSlots::lock_all(&keyspace.acquire_global_lock()))));
    });
}

/// While some slots stay locked, a thread that waits for all slots must not keep any of them locked.
#[test]
fn thread_waiting_for_all_slots_keeps_none_locked() {
    let keyspace = Arc::new(Keyspace::new(1, 1));
    let busy = [slot_number(9000), slot_number(40), slot_number(16383)].map(|slot| keyspace.lock(slot));
    let wanting = |want: fn(&Arc<Keyspace>)| {
        let keyspace = keyspace.clone();
        std::thread::spawn(move || want(&keyspace))
    };
    let both = [
        wanting(|keyspace| drop(LockedSlots::lock_all(&keyspace.acquire_global_lock()))),
        wanting(|keyspace| drop(keyspace.prepare_snapshot().take(&keyspace.acquire_global_lock(), || ()))),
    ];
    // While the three busy slots stay locked, all other slots must become free again and again.
    for round in 0..100 {
        for other in [0, 39, 41, 8999, 9001, 16382] {
            let wait_policy = |waited| waited < Duration::from_secs(20);
            assert!(keyspace.lock_slot_while(slot_number(other), &wait_policy).is_some(), "round {round}");
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    busy.into_iter().for_each(drop);
    both.into_iter().for_each(|thread| thread.join().unwrap());
    let turn = keyspace.acquire_global_lock();
    let impatient = |_| false;
    let one = keyspace.lock(slot_number(7));
    assert!(LockedSlots::lock_all_while(&turn, &impatient).is_none());
    drop(one);
    assert_eq!(
        LockedSlots::lock_all_while(&turn, &impatient).map(|all| all.len()),
        Some(slot_routing::SLOT_COUNT)
    );
}

/// Slots that were locked together are all published before any is unlocked, so the next thread that locks one sees
/// exact counts.
#[test]
fn slots_unlocked_together_are_published_first() {
    let keyspace = Keyspace::new(1, 1);
    let [first, second] = [b"a", b"b"].map(|key| keyspace.key(key));
    let moved = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..2000 {
                let [to, from] = if round % 2 == 0 { [&first, &second] } else { [&second, &first] };
                let mut locked = keyspace.lock_many(&[first.slot(), second.slot()]);
                locked.slot_mut(to.slot()).table(0).insert(to, keyspace::PackedValue::string(b"v"), None);
                let table = locked.slot_mut(from.slot()).table(0);
                if let keyspace::KeyLookup::Live(place) = table.find(from, clock::Millis(0)) {
                    drop(table.remove(place, from));
                }
                drop(locked);
                if round == 0 {
                    moved.wait();
                }
            }
        });
        moved.wait();
        for _ in 0..2000 {
            for key in [&first, &second] {
                let locked = keyspace.lock(key.slot());
                let here = locked.existing_table(0).map_or(0, keyspace::Table::len);
                let other = if key.slot() == first.slot() { &second } else { &first };
                assert_eq!(here + keyspace.slot_len(other.slot()), 1);
            }
        }
    });
}
