//! Implements [`AnyValue`] for strings.

use clock::Millis;
use keyspace::StringRef;

use crate::digest::Digest;
use crate::kinds::{AnyValue, Bytes};

impl AnyValue<'_> for StringRef<'_> {
    fn type_number(&self) -> u32 {
        0
    }

    fn digest(&self, digest: &mut Digest) {
        digest.mix(self.bytes);
    }

    fn text(&self, field: Option<&[u8]>, _now: Millis) -> Option<Bytes> {
        field.is_none().then(|| self.bytes.into())
    }
}
