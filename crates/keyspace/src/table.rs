//! The keys of one slot and one database.
//!
//! They are the entries of a store ([`crate::entries`]). Operations for all kinds of values are in this module; those
//! for a single kind are in the module of that kind.
mod bulk_load;
mod detached;

use clock::Millis;

use crate::entries::{Entries, EntryRef, KeyLookup, NewValue, StoredValue};
use crate::entry::EntryAttributes;
use crate::key::Key;
use crate::kind::{EncodingHint, Kind, ValueEncoding};
use crate::large::{Collection, LargeValue};
use crate::overflow::{OverflowShape, OverflowValue, Record};
use crate::packed::PackedValue;
use crate::pages::FillLevel;
use crate::usage::Usage;
use crate::value::{TypedView, Value};

pub use bulk_load::NewEntry;
pub use detached::DetachedValue;

/// A value removed from the table. Dropping a large value takes time, so the caller may drop it on another thread.
#[derive(Debug, Default)]
#[must_use = "dropping a large value takes time: decide where"]
pub struct RemovedValue {
    record: Option<Record<LargeValue>>,
}

/// Wraps a part of a value whose other elements stay in the table.
impl From<LargeValue> for RemovedValue {
    fn from(value: LargeValue) -> Self {
        Self { record: Some(value.into()) }
    }
}

impl RemovedValue {
    /// Wraps a value that has no entry of its own.
    pub(crate) fn from_large(value: LargeValue) -> Self {
        Self { record: Some(Record::without_store(value)) }
    }

    /// Returns the heap bytes that dropping the value frees.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.record.as_ref().map_or(0, Record::bytes)
    }
}

/// A key visited by a scan.
#[derive(Debug, Clone, Copy)]
pub struct ScanItem<'a> {
    /// The key's name.
    pub key: &'a [u8],
    /// The kind of the value.
    pub kind: Kind,
    /// Time at which the key expires; `None` if it has no expiry.
    pub expiry: Option<Millis>,
    /// Returns the usage counters of the key.
    pub usage: Usage,
}

/// The keys of one slot and one database.
#[derive(Debug, Default)]
pub struct Table {
    pub(crate) entries: Entries<LargeValue>,
}

impl Table {
    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the table has no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of keys with an expiry.
    #[must_use]
    pub fn volatile_len(&self) -> usize {
        self.entries.volatile_len()
    }

    /// Returns the number of keys whose values have expiring elements.
    #[must_use]
    #[inline]
    pub fn keys_with_element_expiry(&self) -> usize {
        self.entries.element_expiry_len()
    }

    /// Looks up a key without changing its usage. The key may have expired at `now`.
    #[must_use]
    #[inline]
    pub fn find(&self, key: &Key<'_>, now: Millis) -> KeyLookup {
        self.entries.find(key, now)
    }

    /// Looks up a key and also returns its usage if it exists.
    #[must_use]
    #[inline]
    pub fn find_with_usage(&self, key: &Key<'_>, now: Millis) -> (KeyLookup, Usage) {
        self.entries.find_with_usage(key, now)
    }

    /// Returns a read-only view of the value at `entry_ref`.
    #[must_use]
    #[inline(always)]
    pub fn value(&self, entry_ref: EntryRef) -> Value<'_> {
        let (code, body) = self.entries.value(entry_ref);
        match body {
            StoredValue::Inline(bytes) => Value::from_bytes(ValueEncoding::from_code(code), bytes),
            StoredValue::Overflow(large) => Value::from_large(ValueEncoding::from_code(code), large),
        }
    }

    /// Returns the kind of the value at `entry_ref`.
    #[must_use]
    #[inline]
    pub fn kind(&self, entry_ref: EntryRef) -> Kind {
        ValueEncoding::from_code(self.entries.type_code(entry_ref)).kind()
    }

    /// Returns the value as a typed view; `None` if it has a different kind.
    #[must_use]
    #[inline]
    pub fn typed_value<T: TypedView>(&self, entry_ref: EntryRef) -> Option<T::View<'_>> {
        T::from_value(self.value(entry_ref))
    }

    /// Returns the expiry time of the key.
    #[must_use]
    #[inline]
    pub fn expiry(&self, entry_ref: EntryRef) -> Option<Millis> {
        self.entries.expiry(entry_ref)
    }

    /// Returns the usage counters of the key.
    #[must_use]
    pub fn usage(&self, entry_ref: EntryRef) -> Usage {
        self.entries.usage(entry_ref)
    }

    /// Sets the usage counters of the key. Does not write unchanged counters, so that clean cache lines stay clean.
    #[inline]
    pub fn set_usage(&mut self, entry_ref: EntryRef, usage: Usage) {
        self.entries.set_usage(entry_ref, usage);
    }

    /// Visits about `count` keys in hash order, starting at position `from`. Returns the next position, or `None` at
    /// the end. A key that exists during the whole scan is visited at least once, even if the table grows or shrinks
    /// meanwhile. The low 16 bits of a position are zero.
    pub fn scan(&self, from: u64, count: usize, visit: &mut dyn FnMut(ScanItem<'_>)) -> Option<u64> {
        self.entries.scan(from, count, &mut |place| visit(self.scan_item(place)))
    }

    /// Picks a key at random. `random` is a uniform random number.
    #[must_use]
    pub fn random_key(&self, random: u64) -> Option<ScanItem<'_>> {
        self.entries.random_entry(random).map(|place| self.scan_item(place))
    }

    /// Visits one key per random number. All memory reads are issued together, which hides cache misses.
    pub fn sample(&self, randoms: &[u64], visit: &mut dyn FnMut(ScanItem<'_>)) {
        self.entries.sample(randoms, &mut |place| visit(self.scan_item(place)));
    }

    /// Picks a random key with an expiry. If few keys have one, the pick is uniform over pages rather than keys.
    #[must_use]
    pub fn random_volatile_key(&self, random: u64) -> Option<ScanItem<'_>> {
        self.entries.random_volatile_entry(random).map(|place| self.scan_item(place))
    }

    fn scan_item(&self, entry_ref: EntryRef) -> ScanItem<'_> {
        let (kind, expiry, usage) = (self.kind(entry_ref), self.expiry(entry_ref), self.usage(entry_ref));
        ScanItem { key: self.entries.key(entry_ref), kind, expiry, usage }
    }

    /// Stores a value under a new key.
    pub fn insert(&mut self, key: &Key<'_>, value: PackedValue<'_>, expiry: Option<Millis>) -> EntryRef {
        self.insert_with_usage(key, value, expiry, Usage::for_new_keys().0)
    }

    fn insert_with_usage(
        &mut self,
        key: &Key<'_>,
        value: PackedValue<'_>,
        expiry: Option<Millis>,
        usage: u16,
    ) -> EntryRef {
        let (attributes, bytes) =
            (EntryAttributes { code: value.value_encoding().code(), usage, expiry }, value.bytes());
        let place = if value.stays_packed() {
            self.entries.insert(key, NewValue { attributes, bytes, len: bytes.len() })
        } else {
            let mut large = LargeValue::empty(value.kind());
            large.add_part(value);
            self.entries.insert_overflow(key, attributes, large)
        };
        if value.has_expiring_elements() {
            self.record_element_expiry(place, key);
        }
        place
    }

    /// Replaces the value and expiry of the key at `entry_ref`.
    pub fn replace(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        value: PackedValue<'_>,
        expiry: Option<Millis>,
    ) -> (EntryRef, RemovedValue) {
        // Overwrite a string of equal length in place, which is the fastest way.
        let form = value.value_encoding();
        if !form.is_collection() && self.entries.overwrite(entry_ref, value.bytes(), form.code(), expiry) {
            return (entry_ref, RemovedValue::default());
        }
        let usage = self.usage(entry_ref);
        self.entries.clear_element_expiry(key.bytes);
        let record = self.entries.remove_without_compaction(entry_ref, key.hash);
        (self.insert_with_usage(key, value, expiry, usage.0), RemovedValue { record })
    }

    /// Sets or removes (`None`) the key's expiry.
    pub fn set_expiry(&mut self, entry_ref: EntryRef, key: &Key<'_>, expiry: Option<Millis>) -> EntryRef {
        self.entries.set_expiry(entry_ref, key, expiry)
    }

    /// Resizes the string at `entry_ref` to `len` bytes and returns it for editing. New bytes are zero; the expiry is
    /// unchanged.
    pub fn edit_string(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        len: usize,
        encoding_hint: EncodingHint,
    ) -> (EntryRef, &mut [u8]) {
        self.entries.edit(entry_ref, key, len, ValueEncoding::from(encoding_hint).code())
    }

    /// Removes the key at `entry_ref` and returns its value.
    pub fn remove(&mut self, entry_ref: EntryRef, key: &Key<'_>) -> RemovedValue {
        self.entries.clear_element_expiry(key.bytes);
        RemovedValue { record: self.entries.remove(entry_ref, key) }
    }

    /// Like [`Table::remove`], but also compacts the key's page, for callers that need the memory at once.
    pub fn evict(&mut self, entry_ref: EntryRef, key: &Key<'_>) -> RemovedValue {
        self.entries.clear_element_expiry(key.bytes);
        RemovedValue { record: self.entries.evict(entry_ref, key) }
    }

    /// Removes one expired key and puts its name into `key`. Returns `None` if no key has expired.
    pub fn remove_expired(&mut self, now: Millis, key: &mut Vec<u8>) -> Option<RemovedValue> {
        let record = self.entries.remove_expired(now, key)?;
        self.entries.clear_element_expiry(key);
        Some(RemovedValue { record })
    }

    /// Returns a lower bound of the time at which the next key, or element inside a value, expires.
    #[must_use]
    #[inline]
    pub fn next_expiry(&self) -> Option<Millis> {
        self.entries.next_expiry()
    }

    /// Records when the next element of the value at `entry_ref` expires.
    pub(crate) fn record_element_expiry(&mut self, entry_ref: EntryRef, key: &Key<'_>) {
        if let Some(due) = self.value(entry_ref).next_expiry() {
            self.entries.record_element_expiry(key.bytes, due);
        }
    }

    /// Updates the recorded expiry after elements were removed or lost their expiry, because the value may have no
    /// expiring elements any more.
    #[inline]
    pub(crate) fn refresh_element_expiry(&mut self, entry_ref: EntryRef, key: &Key<'_>) {
        if self.entries.has_element_expiry(key.bytes) && self.value(entry_ref).next_expiry().is_none() {
            self.entries.clear_element_expiry(key.bytes);
        }
    }

    /// Replaces a packed value by a large one. The entry's other attributes are unchanged.
    pub(crate) fn make_large(&mut self, entry_ref: EntryRef, key: &Key<'_>, large: LargeValue) -> EntryRef {
        let attributes = self.entries.attributes(entry_ref);
        drop(self.entries.remove_without_compaction(entry_ref, key.hash));
        self.entries.insert_overflow(key, attributes, large)
    }

    /// Returns the bytes that deleting the key frees, at once or when its page is compacted: the entry, its share of
    /// the index and of free page space, and its overflow record. The sum over all keys equals the bytes of the table
    /// without its dead bytes.
    #[must_use]
    pub fn entry_bytes(&self, entry_ref: EntryRef) -> usize {
        self.entries.entry_bytes(entry_ref)
    }

    /// Returns the bytes of live entries, excluding overflow values.
    #[must_use]
    pub fn live_bytes(&self) -> usize {
        self.entries.live_bytes()
    }

    /// Returns the bytes of pages, index and overflow records.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes()
    }

    /// Returns the bytes of the lookup structures: the index and the page list.
    #[must_use]
    pub fn overhead_bytes(&self) -> usize {
        self.entries.overhead_bytes()
    }

    /// Compacts up to `pages` pages while enough bytes are dead to justify it. Returns `pages` minus the number of
    /// compacted pages.
    pub fn compact(&mut self, pages: usize) -> usize {
        let mut left = pages;
        while left > 0 && self.entries.needs_compaction() && self.entries.compact() {
            left -= 1;
        }
        left
    }

    /// Returns whether any value may be stored as overflow.
    #[must_use]
    #[inline]
    pub fn may_have_large_values(&self) -> bool {
        self.entries.may_have_overflow_values()
    }

    /// Estimates the bytes freed by dropping the table, in O(1).
    #[must_use]
    pub fn estimated_bytes(&self) -> usize {
        self.entries.estimated_bytes()
    }

    /// Returns how full the table is, or the value of `key` if that is fuller.
    pub(crate) fn fill_level(&self, key: &Key<'_>) -> FillLevel {
        let value = match self.find(key, Millis(i64::MIN)) {
            KeyLookup::Live(place) | KeyLookup::Expired(place) => self.entries.value(place).1,
            KeyLookup::Missing => StoredValue::Inline(&[]),
        };
        let of_value = match value {
            StoredValue::Inline(_) => FillLevel::Free,
            StoredValue::Overflow(large) => match large.shape() {
                OverflowShape::Flat(_) => FillLevel::Free,
                OverflowShape::Collection(collection) => collection.fill_level(),
            },
        };
        self.entries.fill_level().max(of_value)
    }

    /// Returns the large collection that most likely belongs to a key with this hash. The key is not compared.
    #[inline]
    pub(crate) fn probable_collection(&self, hash: u64) -> Option<&dyn Collection> {
        match self.entries.probable_overflow(hash)? {
            OverflowShape::Collection(collection) => Some(collection),
            OverflowShape::Flat(_) => None,
        }
    }
}
