//! Moves values between keys.

use clock::Millis;

use super::Table;
use crate::entries::{EntryRef, UnstoredValue};
use crate::entry::EntryAttributes;
use crate::key::Key;
use crate::kind::{EncodingLimits, Kind, ValueEncoding};
use crate::large::LargeValue;
use crate::overflow::OverflowValue;
use crate::packed::PackedValue;
use crate::usage::Usage;

/// A value that is not part of a table: removed from one key to be stored under another (RENAME, MOVE), copied (COPY),
/// or built before its key is created (RESTORE, loading).
#[derive(Debug)]
#[must_use = "the value lies nowhere else"]
pub struct DetachedValue {
    value_encoding: ValueEncoding,
    usage: u16,
    value: UnstoredValue<LargeValue>,
}

impl DetachedValue {
    pub(crate) fn new(encoding: ValueEncoding, value: UnstoredValue<LargeValue>) -> Self {
        Self { value_encoding: encoding, usage: Usage::for_new_keys().0, value }
    }

    /// Creates an empty large value, to which more elements can be added than a packed value can have.
    pub fn empty_large(kind: Kind) -> Self {
        Self::new(ValueEncoding::initial_for(kind), UnstoredValue::Overflow(LargeValue::empty(kind)))
    }

    /// Adds the elements of a part, whose kind must be that of the value. Returns whether all elements were new.
    /// `limits` are the thresholds for the OBJECT ENCODING.
    #[must_use]
    pub fn add_part(&mut self, part: PackedValue<'_>, limits: &EncodingLimits) -> bool {
        debug_assert_eq!(self.value_encoding.kind(), part.kind());
        let UnstoredValue::Overflow(large) = &mut self.value else { return false };
        let all_new = large.add_part(part);
        let mut about = part.summary();
        about.count = large.shape().len() as u32;
        about.bytes = large.elements_bytes();
        self.value_encoding = self.value_encoding.encoding_after_adding(&about, limits);
        all_new
    }
}

impl Table {
    /// Removes the key and returns its value. A large value is copied only if a snapshot needs the original.
    pub fn detach(&mut self, entry_ref: EntryRef, key: &Key<'_>) -> DetachedValue {
        self.entries.clear_element_expiry(key.bytes);
        let (attributes, value) = self.entries.detach(entry_ref, key);
        DetachedValue {
            value_encoding: ValueEncoding::from_code(attributes.code),
            usage: attributes.usage,
            value,
        }
    }

    /// Copies the value at `entry_ref`.
    pub fn copy(&self, entry_ref: EntryRef) -> DetachedValue {
        let (attributes, value) = self.entries.copy(entry_ref);
        DetachedValue {
            value_encoding: ValueEncoding::from_code(attributes.code),
            usage: Usage::for_new_keys().0,
            value,
        }
    }

    /// Stores a detached value under a key that does not exist.
    pub fn attach(&mut self, key: &Key<'_>, detached: DetachedValue, expiry: Option<Millis>) -> EntryRef {
        let DetachedValue { value_encoding: form, usage, value } = detached;
        let place = self.entries.attach(key, EntryAttributes { code: form.code(), usage, expiry }, value);
        self.record_element_expiry(place, key);
        place
    }
}
