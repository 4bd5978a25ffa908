//! Implements [`AnyValue`] for hashes.

use clock::Millis;
use keyspace::HashRef;

use crate::digest::Digest;
use crate::kinds::{AnyValue, ElementBytes};

impl AnyValue<'_> for HashRef<'_> {
    fn type_number(&self) -> u32 {
        4
    }

    fn digest(&self, digest: &mut Digest) {
        self.for_each(&mut |field| {
            let mut pair = Digest::default();
            pair.add_ordered(field.name);
            pair.add_ordered(field.value);
            if field.expiry.is_some() {
                pair.add_unordered(b"!!hexpire!!");
            }
            digest.add_unordered_digest(pair);
        });
    }

    fn element_count(&self) -> Option<usize> {
        Some(self.len())
    }

    fn string_for_sort(&self, field: Option<&[u8]>, now: Millis) -> Option<ElementBytes> {
        self.get(field?).filter(|field| field.is_live_at(now)).map(|field| field.value.into())
    }
}
