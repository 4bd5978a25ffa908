//! Redis 7 and 8: what a key takes in them.

use crate::allocator::Quantum;
use crate::data::{Data, Parts};
use crate::kinds::model;
use crate::structures::redis::ENTRY;
pub use crate::structures::redis::Version;

/// The bytes of a key, if so many lie in one server.
#[must_use]
pub fn bytes(data: &Data, version: Version, q: Quantum, keys: u64) -> Parts {
    let keys = keys.max(1);
    let table = (keys.next_power_of_two().max(4) * 8) as f64 / keys as f64;
    let place = Parts { index: table + q.class(ENTRY) as f64, ..Parts::default() };
    let expiry = if data.expires { place } else { Parts::default() };
    q.sds(data.key_bytes) + place + expiry + model(data.kind).redis(q, data, version)
}
