//! Implements [`AnyValue`] for streams.

use keyspace::{StreamId, StreamRef};

use crate::digest::Digest;
use crate::kinds::AnyValue;

impl AnyValue<'_> for StreamRef<'_> {
    fn type_number(&self) -> u32 {
        6
    }

    fn digest(&self, digest: &mut Digest) {
        for entry in self.read().range(StreamId::MIN, StreamId::MAX) {
            digest.mix(format!("{}.{}", entry.id.millis, entry.id.sequence).as_bytes());
            entry.for_each(&mut |name, value| {
                digest.mix(name);
                digest.mix(value);
            });
        }
    }
}
