//! Implements [`AnyValue`] for hashes.

use clock::Millis;
use keyspace::HashRef;

use crate::digest::Digest;
use crate::kinds::{AnyValue, Bytes};

impl AnyValue<'_> for HashRef<'_> {
    fn type_number(&self) -> u32 {
        4
    }

    fn digest(&self, digest: &mut Digest) {
        self.for_each(&mut |field| {
            let mut pair = Digest::default();
            pair.mix(field.name);
            pair.mix(field.value);
            if field.expiry.is_some() {
                pair.xor(b"!!hexpire!!");
            }
            digest.xor_digest(pair);
        });
    }

    fn elements(&self) -> Option<usize> {
        Some(self.len())
    }

    fn text(&self, field: Option<&[u8]>, now: Millis) -> Option<Bytes> {
        self.get(field?).filter(|field| field.is_live_at(now)).map(|field| field.value.into())
    }
}
