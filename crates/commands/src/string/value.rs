//! Implements [`AnyValue`] for strings.

use clock::Millis;
use keyspace::StringRef;

use crate::digest::Digest;
use crate::kinds::{AnyValue, ElementBytes};

impl AnyValue<'_> for StringRef<'_> {
    fn type_number(&self) -> u32 {
        0
    }

    fn digest(&self, digest: &mut Digest) {
        digest.add_ordered(self.bytes);
    }

    fn string_for_sort(&self, field: Option<&[u8]>, _now: Millis) -> Option<ElementBytes> {
        field.is_none().then(|| self.bytes.into())
    }
}
