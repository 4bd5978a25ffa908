//! A payload of RESTORE, whose trailer is always right: what is stored from it and dumped is the same again.

use clock::Millis;
use crc_fast::{CrcAlgorithm, checksum};
use keyspace::{EncodingLimits, KeyLookup, Keyspace, ListpackBounds};
use persistence::{Checks, Dialect, RestoredValue, ValueBuffer};

fn limits() -> EncodingLimits {
    EncodingLimits { hash: ListpackBounds { entries: 16, value: 64 }, ..EncodingLimits::default() }
}
const KEY: &[u8] = b"key";

/// A payload without its trailer: stored, dumped, stored and dumped again.
pub fn run(value: &[u8]) {
    let Some(first) = dumped_again(&payload(value)) else { return };
    assert_eq!(dumped_again(&first).as_ref(), Some(&first));
}

/// The payload with its trailer.
#[must_use]
pub fn payload(value: &[u8]) -> Vec<u8> {
    let mut payload = [value, &persistence::WRITTEN_VERSION.to_le_bytes()].concat();
    payload.extend_from_slice(&checksum(CrcAlgorithm::Crc64Redis, &payload).to_le_bytes());
    payload
}

/// The payload that DUMP makes of the value after RESTORE has taken it.
fn dumped_again(payload: &[u8]) -> Option<Vec<u8>> {
    let mut buffer = ValueBuffer::new();
    let restored = persistence::restore(payload, 1 << 20, limits(), Checks::default(), &mut buffer).ok()?;
    let keyspace = Keyspace::new(1, 1);
    let key = keyspace.key(KEY);
    let mut guard = keyspace.lock(key.slot());
    let table = guard.table(0);
    match restored {
        RestoredValue::Whole(value) => table.insert(&key, value, None),
        RestoredValue::Large(hash) => table.attach(&key, hash, None),
    };
    let KeyLookup::Live(place) = table.find(&key, Millis(0)) else { panic!("it was put there") };
    Some(persistence::dump(&table.value(place), Dialect::Redis, true))
}

/// Reads a payload as RESTORE does; says whether that is a value.
#[must_use]
pub fn read(payload: &[u8]) -> bool {
    persistence::restore(
        payload,
        512 << 20,
        EncodingLimits::default(),
        Checks::default(),
        &mut ValueBuffer::new(),
    )
    .is_ok()
}
