//! Elements of a large collection that are found by name: fields of a hash, members of a set or sorted set.
//!
//! The collection has its own store ([`crate::entries`]), with one entry per element. A snapshot pins that store once,
//! no matter how many elements it has, and then copies it page by page.

use std::marker::PhantomData;

use clock::Millis;
use slot_routing::Slot;

use crate::captured::{CapturedEntries, PageView, PartInfo, ValueOwner};
use crate::entries::{Entries, EntryRef, KeyLookup, NewValue};
use crate::entry::{EntryAttributes, TypeCode};
use crate::hashing;
use crate::key::Key;
use crate::large::{Collection, LargeValue};
use crate::overflow::{OverflowValue, Record};
use crate::packed::PackedValue;
use crate::pages::FillLevel;
use crate::value::PartElements;

/// A named element of a collection, such as a field of a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name of the field or member.
    pub name: &'a [u8],
    /// The field's value; empty for set members.
    pub value: &'a [u8],
    /// Time at which the field expires; `None` if it has no expiry.
    pub expiry: Option<Millis>,
}

impl Field<'_> {
    /// Returns whether the field has not expired at `now`.
    #[must_use]
    pub fn is_live_at(&self, now: Millis) -> bool {
        self.expiry.is_none_or(|expiry| expiry > now)
    }
}

/// The previous state of a field that was overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplacedField {
    /// Expiry of the overwritten field; `None` if it had none.
    pub expiry: Option<Millis>,
}

impl ReplacedField {
    /// Returns whether the overwritten field had expired at `now`.
    #[must_use]
    pub fn was_expired_at(&self, now: Millis) -> bool {
        self.expiry.is_some_and(|expiry| expiry <= now)
    }
}

/// Differences between the collection kinds whose elements are fields: hash, set and sorted set.
pub(crate) trait FieldKind: std::fmt::Debug + Sized {
    /// Wraps some of the fields for a snapshot visitor.
    fn elements(part: FieldsPart<'_>) -> PartElements<'_>;

    /// The type of values that are too long for a page. It also defines the secondary sort order of the fields.
    type Overflow: OverflowValue;

    /// Wraps the fields as a large value.
    fn into_large(fields: Box<LargeFields<Self>>) -> LargeValue;

    /// Visits the elements of a packed value of this kind. Their names are not necessarily slices of the packed bytes.
    fn visit_packed(packed: &PackedValue<'_>, visit: &mut dyn FnMut(Field<'_>));
}

#[derive(Debug)]
pub(crate) struct LargeFields<T: FieldKind> {
    pub(crate) entries: Entries<T::Overflow>,
    kind: PhantomData<T>,
}

impl<T: FieldKind> Default for LargeFields<T> {
    fn default() -> Self {
        Self { entries: Entries::default(), kind: PhantomData }
    }
}

/// Number of fields up to which a collection is assumed to fit the L1 and L2 caches.
const MAX_NEAR_CACHE_FIELDS: usize = 4096;

/// Creates a lookup key from a field name. The slot of the key is not used.
#[inline]
pub(crate) fn lookup_key(name: &[u8]) -> Key<'_> {
    hashed_key(name, hashing::hash_bytes(name))
}

#[inline]
fn hashed_key(name: &[u8], hash: u64) -> Key<'_> {
    Key { bytes: name, slot: Slot::new(0).expect("the first slot"), hash }
}

impl<T: FieldKind> LargeFields<T> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn find(&self, key: &Key<'_>) -> Option<EntryRef> {
        match self.entries.find(key, Millis(i64::MIN)) {
            KeyLookup::Live(place) | KeyLookup::Expired(place) => Some(place),
            KeyLookup::Missing => None,
        }
    }

    #[inline]
    pub(crate) fn field_at(&self, entry_ref: EntryRef) -> Field<'_> {
        let (name, value, expiry) = self.entries.flat_entry(entry_ref);
        Field { name, value, expiry }
    }

    #[inline]
    pub(crate) fn get(&self, name: &[u8]) -> Option<Field<'_>> {
        self.find(&lookup_key(name)).map(|place| self.field_at(place))
    }

    /// Like [`Self::get`], for callers that already have the hash of the name.
    #[inline]
    pub(crate) fn get_with_hash(&self, name: &[u8], hash: u64) -> Option<Field<'_>> {
        self.find(&hashed_key(name, hash)).map(|place| self.field_at(place))
    }

    #[inline]
    pub(crate) fn contains_with_hash(&self, name: &[u8], hash: u64) -> bool {
        self.find(&hashed_key(name, hash)).is_some()
    }

    /// Prefetches the fields with these hashes if the collection is too large for the L1 and L2 caches.
    pub(crate) fn prefetch(&self, hashes: impl Iterator<Item = u64> + Clone) {
        if self.len() > MAX_NEAR_CACHE_FIELDS {
            hashes.clone().for_each(|hash| self.entries.prefetch_index(hash));
            hashes.for_each(|hash| {
                self.entries.prefetch_entry(hash);
            });
        }
    }

    pub(crate) fn for_each<'a>(&'a self, visit: &mut dyn FnMut(Field<'a>)) {
        self.entries.visit_all(&mut |place| {
            visit(self.field_at(place));
            true
        });
    }

    /// Visits fields until `visit` returns false. Returns whether all were visited.
    pub(crate) fn visit_all<'a>(&'a self, visit: &mut dyn FnMut(Field<'a>) -> bool) -> bool {
        self.entries.visit_all(&mut |place| visit(self.field_at(place)))
    }

    pub(crate) fn scan<'a>(
        &'a self,
        from: u64,
        count: usize,
        visit: &mut dyn FnMut(Field<'a>),
    ) -> Option<u64> {
        self.entries.scan(from, count, &mut |place| visit(self.field_at(place)))
    }

    pub(crate) fn random_field(&self, random: u64) -> Option<Field<'_>> {
        self.entries.random_entry(random).map(|place| self.field_at(place))
    }

    pub(crate) fn count_expired(&self, now: Millis) -> usize {
        self.entries.count_expired(now)
    }

    pub(crate) fn next_expiry(&self) -> Option<Millis> {
        self.entries.next_expiry()
    }

    /// Sets a field and returns its previous state if it existed.
    pub(crate) fn set(&mut self, name: &[u8], value: &[u8], expiry: Option<Millis>) -> Option<ReplacedField> {
        let key = lookup_key(name);
        let found = self.find(&key);
        let replaced = found.map(|place| ReplacedField { expiry: self.entries.expiry(place) });
        self.set_in_found_entry(&key, found, value, expiry);
        replaced
    }

    /// Sets a field that the caller has looked up: `found` is the result of [`Self::find`].
    pub(crate) fn set_in_found_entry(
        &mut self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        value: &[u8],
        expiry: Option<Millis>,
    ) {
        if let Some(place) = found {
            if self.entries.overwrite(place, value, TypeCode::ELEMENT, expiry) {
                return;
            }
            drop(self.entries.remove_without_compaction(place, key.hash));
        }
        self.insert(key, value, expiry);
    }

    /// Adds a name without a value. Returns whether it is new.
    pub(crate) fn insert_if_new(&mut self, name: &[u8]) -> bool {
        let key = lookup_key(name);
        let is_new = self.find(&key).is_none();
        if is_new {
            self.insert(&key, &[], None);
        }
        is_new
    }

    /// Reserves index space for `count` more fields.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.entries.reserve(count);
    }

    fn insert(&mut self, key: &Key<'_>, value: &[u8], expiry: Option<Millis>) {
        let attributes = EntryAttributes { code: TypeCode::ELEMENT, usage: 0, expiry };
        self.entries.insert(key, NewValue { attributes, bytes: value, len: value.len() });
    }

    /// Removes a field. Returns whether it existed.
    pub(crate) fn remove(&mut self, name: &[u8]) -> bool {
        let key = lookup_key(name);
        let found = self.find(&key);
        if let Some(place) = found {
            drop(self.entries.remove(place, &key));
        }
        found.is_some()
    }

    /// Removes the field selected by `random` and puts its name into `name`.
    pub(crate) fn pop(&mut self, random: u64, name: &mut Vec<u8>) {
        if let Some(place) = self.entries.random_entry(random) {
            name.extend_from_slice(self.entries.key(place));
            drop(self.entries.remove(place, &lookup_key(name)));
        }
    }

    /// Sets or removes the expiry of a field, if it exists.
    pub(crate) fn set_expiry(&mut self, name: &[u8], expiry: Option<Millis>) {
        let key = lookup_key(name);
        if let Some(place) = self.find(&key) {
            self.entries.set_expiry(place, &key, expiry);
        }
    }

    /// Removes one expired field and puts its name into `name`. Returns whether a field had expired.
    pub(crate) fn remove_expired(&mut self, now: Millis, name: &mut Vec<u8>) -> bool {
        self.entries.remove_expired(now, name).is_some()
    }
}

impl<T: FieldKind> Collection for LargeFields<T> {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn estimated_bytes(&self) -> usize {
        self.entries.estimated_bytes()
    }

    fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes()
    }

    fn fill_level(&self) -> FillLevel {
        self.entries.fill_level()
    }

    fn add_packed(&mut self, elements: PackedValue<'_>) -> bool {
        let before = self.len();
        self.entries.reserve(before + elements.len());
        self.entries.set_expected_bytes(elements.bytes().len());
        T::visit_packed(&elements, &mut |field| {
            self.set(field.name, field.value, field.expiry);
        });
        self.entries.set_expected_bytes(0);
        self.len() == before + elements.len()
    }

    fn copy(&self) -> LargeValue {
        let mut copy = Box::<Self>::default();
        self.for_each(&mut |field| {
            copy.insert(&lookup_key(field.name), field.value, field.expiry);
        });
        T::into_large(copy)
    }

    fn pin(&mut self, snapshot_bit: u32) {
        if !self.entries.is_pinned_for(snapshot_bit) {
            self.entries.pin(snapshot_bit, 0);
        }
    }

    fn walk(
        &mut self,
        snapshot_bit: u32,
        owner: ValueOwner<'_>,
        captured: &mut CapturedEntries,
    ) -> Option<usize> {
        let mut dropped = std::mem::take(&mut captured.records_to_drop);
        let copied = self.entries.walk_page(snapshot_bit, &mut dropped, |pin, page, beside| {
            let part = PartInfo {
                total: pin.pinned_len as usize,
                is_first: pin.has_not_started(),
                has_expiring_fields: pin.pinned_volatile > 0,
                elements: T::elements,
            };
            captured.add_fields(snapshot_bit, page, beside, owner, part)
        });
        captured.records_to_drop = dropped;
        copied
    }

    fn skip(&mut self, snapshot_bit: u32, dropped: &mut Vec<Record<LargeValue>>) -> Option<usize> {
        self.entries.skip_page(snapshot_bit, dropped)
    }

    fn prefetch_segment(&self, hash: u64) {
        self.entries.prefetch_segment(hash);
    }

    fn prefetch_index(&self, hash: u64) {
        self.entries.prefetch_index(hash);
    }

    fn prefetch_element(&self, hash: u64) {
        self.entries.prefetch_entry(hash);
    }
}

/// Some fields of a large collection, which a snapshot visits together.
#[derive(Debug, Clone, Copy)]
pub struct FieldsPart<'a> {
    /// Whether any field of the whole collection had an expiry when the snapshot was taken.
    pub has_expiring_fields: bool,
    pub(crate) page: PageView<'a>,
}

impl FieldsPart<'_> {
    /// Visits the fields of this part, which may be empty.
    pub fn for_each(&self, visit: &mut dyn FnMut(Field<'_>)) {
        self.page
            .for_each(&mut |name, value, attributes| visit(Field { name, value, expiry: attributes.expiry }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashFields;

    /// Picks random fields and returns by how many standard deviations the counts differ from a uniform distribution.
    fn chi_square_ratio(fields: &LargeFields<HashFields>, choices: u64) -> f64 {
        let mut chosen = std::collections::BTreeMap::new();
        for number in 0..choices {
            let field =
                fields.random_field(hashing::hash_bytes(&number.to_le_bytes())).expect("there are fields");
            *chosen.entry(field.name).or_insert(0.0) += 1.0;
        }
        let (cells, expected) = (fields.len() as f64, choices as f64 / fields.len() as f64);
        let missed = cells - chosen.len() as f64;
        let square = |count: &f64| (count - expected).powi(2) / expected;
        let sum = chosen.values().map(square).sum::<f64>() + missed * expected;
        (sum - cells) / (2.0 * cells).sqrt()
    }

    #[test]
    fn random_picks_are_uniform() {
        for (len, left) in [(12, 12), (100, 100), (500, 500), (3000, 3000), (3000, 700), (20_000, 100)] {
            let mut fields = LargeFields::<HashFields>::default();
            for number in 0..len {
                fields.set(&u32::to_be_bytes(number), b"", None);
            }
            (left..len).for_each(|number| assert!(fields.remove(&number.to_be_bytes())));
            let unfairness = chi_square_ratio(&fields, u64::from(left) * 100);
            assert!(unfairness.abs() < 5.0, "{left} of {len}: {unfairness}");
        }
    }
}
