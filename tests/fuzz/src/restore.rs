//! Fuzzes RESTORE with valid checksums: a restored value must have the same dump after another round trip.

use clock::Millis;
use crc_fast::{CrcAlgorithm, checksum};
use keyspace::{EncodingLimits, KeyLookup, Keyspace, ListpackBounds};
use persistence::{Dialect, InputChecks, RestoredValue, ValueBuffer};

fn encoding_limits() -> EncodingLimits {
    EncodingLimits {
        hash: ListpackBounds { max_entries: 16, max_value_len: 64 },
        ..EncodingLimits::default()
    }
}
const TEST_KEY: &[u8] = b"key";

/// Restores and dumps `value`, a payload without its trailer, twice.
pub fn fuzz_restore(value: &[u8]) {
    let Some(first) = restore_and_dump(&payload_with_trailer(value)) else { return };
    assert_eq!(restore_and_dump(&first).as_ref(), Some(&first));
}

/// Appends the trailer of a payload: the RDB version and a valid checksum.
#[must_use]
pub fn payload_with_trailer(value: &[u8]) -> Vec<u8> {
    let mut payload = [value, &persistence::WRITTEN_VERSION.to_le_bytes()].concat();
    payload.extend_from_slice(&checksum(CrcAlgorithm::Crc64Redis, &payload).to_le_bytes());
    payload
}

/// Restores `payload` and dumps the value again; `None` if the payload is refused.
fn restore_and_dump(payload: &[u8]) -> Option<Vec<u8>> {
    let mut buffer = ValueBuffer::new();
    let restored =
        persistence::restore(payload, 1 << 20, encoding_limits(), InputChecks::default(), &mut buffer)
            .ok()?;
    let keyspace = Keyspace::new(1, 1);
    let key = keyspace.key(TEST_KEY);
    let mut guard = keyspace.lock(key.slot());
    let table = guard.table(0);
    match restored {
        RestoredValue::Whole(value) => table.insert(&key, value, None),
        RestoredValue::Multipart(hash) => table.attach(&key, hash, None),
    };
    let KeyLookup::Live(place) = table.find(&key, Millis(0)) else { panic!("the restored key is missing") };
    Some(persistence::dump(&table.value(place), Dialect::Redis, true))
}

/// Whether RESTORE accepts the payload.
#[must_use]
pub fn is_restorable(payload: &[u8]) -> bool {
    persistence::restore(
        payload,
        512 << 20,
        EncodingLimits::default(),
        InputChecks::default(),
        &mut ValueBuffer::new(),
    )
    .is_ok()
}
