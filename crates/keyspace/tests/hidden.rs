//! Slots that are being imported count as empty although they contain keys.

use clock::Millis;
use keyspace::{KeyLookup, Keyspace, PackedValue};

#[test]
fn hidden_slot_counts_as_empty_and_expires_nothing() {
    let keyspace = Keyspace::new(1, 2);
    let key = keyspace.key(b"k");
    let slot = key.slot();
    keyspace.lock(slot).set_hidden(true);
    for db in 0..2 {
        keyspace.lock(slot).table(db).insert(&key, PackedValue::string(b"v"), Some(Millis(5)));
    }
    let seen = |keyspace: &Keyspace| {
        let of_slot = (
            keyspace.keys_in_slot(slot),
            keyspace.volatile_keys_in_slot(slot),
            keyspace.has_other_databases(slot),
        );
        (of_slot, keyspace.len(0), keyspace.slots_with_expiries_due(Millis(10)).len())
    };
    assert_eq!(seen(&keyspace), ((0, 0, false), 0, 0));
    assert!(matches!(keyspace.lock(slot).table(0).find(&key, Millis(0)), KeyLookup::Live(_)));
    keyspace.lock(slot).set_hidden(false);
    assert_eq!(seen(&keyspace), ((2, 2, true), 1, 1));
}
