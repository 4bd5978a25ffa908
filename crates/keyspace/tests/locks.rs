//! Only the thread that has the script turn may wait for a slot while holding another.

use keyspace::{Keyspace, LockedSlots};
use slot_routing::Slot;

fn slot(number: u16) -> Slot {
    Slot::new(number).expect("below 16384")
}

/// Some name all their slots beforehand, some take them one after another with the turn, some take all: in any
/// order, and all come to their end.
#[test]
fn nobody_waits_in_a_circle() {
    const ROUNDS: u16 = 200;
    let keyspace = Keyspace::new(1, 1);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let keyspace = &keyspace;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mut locked = keyspace.lock_many(&[slot(round % 7), slot((round * 5 + number) % 7)]);
                    assert!((1..=2).contains(&locked.iter_mut().count()));
                }
            });
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let turn = keyspace.script_turn();
                    let mut locked = keyspace.lock_many(&[slot((round + number) % 7)]);
                    for other in [3, 0, 6, 3] {
                        locked.add(&turn, slot(other));
                    }
                    assert!((3..=4).contains(&locked.iter_mut().count()));
                }
            });
        }
        scope.spawn(|| (0..20).for_each(|_| drop(LockedSlots::all(&keyspace.script_turn()))));
    });
}
