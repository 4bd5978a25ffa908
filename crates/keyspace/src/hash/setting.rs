//! Sets fields of a hash, packed or large.
//!
//! Most updates overwrite an existing field with a value of equal size, so no bytes move. Any other update rewrites a
//! packed hash once per command. A hash that outgrows the packed format becomes large.

use smallvec::SmallVec;

use super::{HashFields, records};
use crate::entries::{EntryRef, Splice};
use crate::fields::{Field, LargeFields, ReplacedField};
use crate::key::Key;
use crate::kind::{ListpackBounds, ValueEncoding};
use crate::large::LargeValue;
use crate::packed::{self, CollectionShape, MAX_PACKED_BYTES, MAX_PACKED_ELEMENTS};
use crate::table::Table;

/// Returns whether a hash that has `count` fields after adding this one exceeds the listpack bounds.
#[inline]
fn exceeds_bounds(field: &Field<'_>, count: usize, bounds: ListpackBounds) -> bool {
    field.name.len().max(field.value.len()) > bounds.max_value_len || count > bounds.max_entries
}

impl Table {
    /// Sets a field of the hash at `entry_ref`, with its expiry. Returns the previous state if the field existed.
    pub fn hash_set(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        field: Field<'_>,
        bounds: ListpackBounds,
    ) -> (EntryRef, Option<ReplacedField>) {
        let (place, replaced) = match self.set_in_place(entry_ref, key, field, bounds) {
            Some(done) => done,
            None => self.set_by_splice(entry_ref, key, field, bounds),
        };
        self.refresh_element_expiry(place, key);
        (place, replaced)
    }

    /// Sets a field of a packed hash if the field is new or changes its size.
    fn set_by_splice(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        field: Field<'_>,
        bounds: ListpackBounds,
    ) -> (EntryRef, Option<ReplacedField>) {
        let hash = self.expect_hash(entry_ref);
        let CollectionShape::Packed(packed) = hash.shape else {
            return self.set_in_large(entry_ref, key, field, bounds);
        };
        let Field { name, value, expiry } = field;
        let found = records::find_record(packed, name);
        let count = packed::count(packed) + usize::from(found.is_none());
        let form = if exceeds_bounds(&field, count, bounds) {
            ValueEncoding::TableHash
        } else {
            hash.value_encoding
        };
        let replaced = found.map(|record| ReplacedField { expiry: record.expiry });
        let range = found.map_or(packed.len()..packed.len(), |record| record.start..record.end);
        let mut bytes = SmallVec::<[u8; 256]>::new();
        records::push_record(&mut bytes, name, value, expiry);
        if packed.len() - range.len() + bytes.len() > MAX_PACKED_BYTES || count > MAX_PACKED_ELEMENTS {
            let place = self.make_hash_large(entry_ref, key);
            return self.set_in_large(place, key, field, bounds);
        }
        let splice = Splice { range, replacement: &bytes, count, code: form.code() };
        let place = self.entries.splice(entry_ref, key, &splice);
        if expiry.is_some() {
            self.record_element_expiry(place, key);
        }
        (place, replaced)
    }

    fn set_in_large(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        field: Field<'_>,
        bounds: ListpackBounds,
    ) -> (EntryRef, Option<ReplacedField>) {
        let form = self.expect_hash(entry_ref).value_encoding;
        let Some(fields) = self.large_hash_mut(entry_ref) else { return (entry_ref, None) };
        let replaced = fields.set(field.name, field.value, field.expiry);
        if form != ValueEncoding::TableHash && exceeds_bounds(&field, fields.len(), bounds) {
            self.entries.set_code(entry_ref, ValueEncoding::TableHash.code());
        }
        if field.expiry.is_some() {
            self.record_element_expiry(entry_ref, key);
        }
        (entry_ref, replaced)
    }

    /// Sets several fields of the hash at `entry_ref`. `visit_replaced` receives the previous state of each field. A
    /// packed hash is rewritten once for all fields.
    pub fn hash_set_all<'f>(
        &mut self,
        mut entry_ref: EntryRef,
        key: &Key<'_>,
        mut fields: impl Iterator<Item = Field<'f>>,
        bounds: ListpackBounds,
        mut visit_replaced: impl FnMut(Option<ReplacedField>),
    ) -> EntryRef {
        while let Some(field) = fields.next() {
            match self.set_in_place(entry_ref, key, field, bounds) {
                Some((set, replaced)) => {
                    entry_ref = set;
                    visit_replaced(replaced);
                }
                None => {
                    let all = [field].into_iter().chain(fields.by_ref());
                    entry_ref = self.set_by_rewrite(entry_ref, key, all, bounds, &mut visit_replaced);
                }
            }
        }
        self.refresh_element_expiry(entry_ref, key);
        entry_ref
    }

    /// Sets fields in a copy of a packed hash as long as the copy stays packed, and stores the copy.
    fn set_by_rewrite<'f>(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        mut fields: impl Iterator<Item = Field<'f>>,
        bounds: ListpackBounds,
        visit_replaced: &mut impl FnMut(Option<ReplacedField>),
    ) -> EntryRef {
        let Some(first) = fields.next() else { return entry_ref };
        let Some(second) = fields.next() else {
            let (place, replaced) = self.set_by_splice(entry_ref, key, first, bounds);
            visit_replaced(replaced);
            return place;
        };
        let mut fields = [first, second].into_iter().chain(fields);
        let (mut place, mut too_much) = (entry_ref, None);
        let hash = self.expect_hash(place);
        if let CollectionShape::Packed(packed) = hash.shape {
            let (whole, mut timed) = (0..packed.len(), false);
            let mut draft = HashRewrite { bytes: packed.into(), value_encoding: hash.value_encoding, bounds };
            for field in fields.by_ref() {
                let Some(replaced) = draft.set(&field) else {
                    too_much = Some(field);
                    break;
                };
                timed |= field.expiry.is_some();
                visit_replaced(replaced);
            }
            let (count, code) = (packed::count(&draft.bytes), draft.value_encoding.code());
            let splice = Splice { range: whole, replacement: &draft.bytes, count, code };
            place = self.entries.splice(place, key, &splice);
            if timed {
                self.record_element_expiry(place, key);
            }
        }
        // The hash has outgrown the packed format, so convert it and set the remaining fields one by one.
        for field in too_much.into_iter().chain(fields) {
            let (set, replaced) = self.hash_set(place, key, field, bounds);
            place = set;
            visit_replaced(replaced);
        }
        place
    }

    /// Sets a field in place; returns `None` if its size would change.
    #[inline]
    fn set_in_place(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        field: Field<'_>,
        bounds: ListpackBounds,
    ) -> Option<(EntryRef, Option<ReplacedField>)> {
        let Field { name, value, expiry } = field;
        let hash = self.expect_hash(entry_ref);
        let CollectionShape::Packed(packed) = hash.shape else {
            return Some(self.set_in_large(entry_ref, key, field, bounds));
        };
        let record = records::find_record(packed, name)
            .filter(|record| record.value.len() == value.len())
            .filter(|record| records::can_overwrite_expiry(record.expiry, expiry))?;
        let exceeds_bounds = exceeds_bounds(&field, packed::count(packed), bounds);
        let form = if exceeds_bounds { ValueEncoding::TableHash } else { hash.value_encoding };
        let replaced = ReplacedField { expiry: record.expiry };
        let (start, value_at) = (record.start, record.value_start);
        let place = self.entries.copy_on_write(entry_ref, key);
        let packed = self.entries.flat_value_mut(place);
        packed[value_at..value_at + value.len()].copy_from_slice(value);
        if let Some(expiry) = expiry {
            records::overwrite_expiry(packed, start, expiry);
            self.record_element_expiry(place, key);
        }
        self.entries.set_code(place, form.code());
        Some((place, Some(replaced)))
    }

    /// Converts a packed hash into a large one.
    fn make_hash_large(&mut self, entry_ref: EntryRef, key: &Key<'_>) -> EntryRef {
        let mut fields = Box::<LargeFields<HashFields>>::default();
        self.expect_hash(entry_ref).for_each(&mut |field| {
            fields.set(field.name, field.value, field.expiry);
        });
        self.make_large(entry_ref, key, LargeValue::Hash(fields))
    }
}

/// A packed hash under construction, with some fields changed.
struct HashRewrite {
    bytes: SmallVec<[u8; 1024]>,
    value_encoding: ValueEncoding,
    bounds: ListpackBounds,
}

impl HashRewrite {
    /// Sets a field and returns its previous state, if it existed. Returns `None` if the hash would outgrow the packed
    /// format.
    fn set(&mut self, field: &Field<'_>) -> Option<Option<ReplacedField>> {
        let found = records::find_record(&self.bytes, field.name);
        let replaced = found.map(|record| ReplacedField { expiry: record.expiry });
        let range = found.map_or(self.bytes.len()..self.bytes.len(), |record| record.start..record.end);
        let count = packed::count(&self.bytes) + usize::from(found.is_none());
        let mut bytes = SmallVec::<[u8; 256]>::new();
        records::push_record(&mut bytes, field.name, field.value, field.expiry);
        if self.bytes.len() - range.len() + bytes.len() > MAX_PACKED_BYTES || count > MAX_PACKED_ELEMENTS {
            return None;
        }
        let at = range.start;
        self.bytes.drain(range);
        self.bytes.insert_from_slice(at, &bytes);
        packed::set_count(&mut self.bytes, count);
        if exceeds_bounds(field, count, self.bounds) {
            self.value_encoding = ValueEncoding::TableHash;
        }
        Some(replaced)
    }
}
