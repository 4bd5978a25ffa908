//! Implements [`AnyValue`] for streams.

use keyspace::{StreamId, StreamRef};

use crate::digest::Digest;
use crate::kinds::AnyValue;

impl AnyValue<'_> for StreamRef<'_> {
    fn type_number(&self) -> u32 {
        6
    }

    fn digest(&self, digest: &mut Digest) {
        for entry in self.to_stream().range(StreamId::MIN, StreamId::MAX) {
            digest.add_ordered(format!("{}.{}", entry.id.millis, entry.id.sequence).as_bytes());
            entry.for_each(&mut |name, value| {
                digest.add_ordered(name);
                digest.add_ordered(value);
            });
        }
    }
}
