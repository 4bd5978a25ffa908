//! Removes fields and changes their expiry.

use clock::Millis;
use smallvec::SmallVec;

use super::{HashFields, HashRef, records};
use crate::entries::{EntryRef, KeyLookup, Splice};
use crate::fields::{Field, LargeFields, lookup_key};
use crate::key::Key;
use crate::kind::ListpackBounds;
use crate::large::LargeValue;
use crate::packed::{self, CollectionShape};
use crate::table::{RemovedValue, Table};

impl Table {
    /// Returns the hash at `entry_ref`, or `None` if the value has another type.
    #[must_use]
    #[inline]
    pub fn hash(&self, entry_ref: EntryRef) -> Option<HashRef<'_>> {
        self.typed_value::<HashRef<'_>>(entry_ref)
    }

    pub(super) fn expect_hash(&self, entry_ref: EntryRef) -> HashRef<'_> {
        self.hash(entry_ref).expect("the caller has seen that it is a hash")
    }

    /// Returns the fields of a large hash, for editing. They are pinned first for the snapshots that need the entry.
    pub(super) fn large_hash_mut(&mut self, entry_ref: EntryRef) -> Option<&mut LargeFields<HashFields>> {
        if let LargeValue::Hash(fields) = self.entries.overflow_mut(entry_ref)? { Some(fields) } else { None }
    }

    /// Removes a field of the hash at `entry_ref`. Returns whether the field existed. The caller must delete the key
    /// when the hash becomes empty.
    pub fn hash_remove(&mut self, entry_ref: EntryRef, key: &Key<'_>, name: &[u8]) -> (EntryRef, bool) {
        let hash = self.expect_hash(entry_ref);
        let CollectionShape::Packed(packed) = hash.shape else {
            // Look up the field first, because removing a missing field must not pin the hash.
            let found = hash.get(name).is_some();
            let removed = found && self.large_hash_mut(entry_ref).is_some_and(|fields| fields.remove(name));
            self.refresh_element_expiry(entry_ref, key);
            return (entry_ref, removed);
        };
        let Some(record) = records::find_record(packed, name) else { return (entry_ref, false) };
        let (range, count) = (record.start..record.end, packed::count(packed) - 1);
        let splice = Splice { range, replacement: &[], count, code: hash.value_encoding.code() };
        let place = self.entries.splice(entry_ref, key, &splice);
        self.refresh_element_expiry(place, key);
        (place, true)
    }

    /// Sets or removes the expiry of a field of the hash at `entry_ref`. Returns whether the field exists.
    pub fn hash_set_expiry(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        name: &[u8],
        expiry: Option<Millis>,
    ) -> (EntryRef, bool) {
        let hash = self.expect_hash(entry_ref);
        let Some(field) = hash.get(name) else { return (entry_ref, false) };
        if field.expiry == expiry {
            return (entry_ref, true);
        }
        let place = match hash.shape {
            CollectionShape::Packed(_) => {
                let value: SmallVec<[u8; 512]> = field.value.into();
                // Unlimited bounds keep the current encoding, which setting an expiry must not change.
                let bounds = ListpackBounds { max_entries: usize::MAX, max_value_len: usize::MAX };
                self.hash_set(entry_ref, key, Field { name, value: &value, expiry }, bounds).0
            }
            CollectionShape::Large(_) => {
                if let Some(fields) = self.large_hash_mut(entry_ref) {
                    fields.set_expiry(name, expiry);
                }
                entry_ref
            }
        };
        match expiry {
            Some(_) => self.record_element_expiry(place, key),
            None => self.refresh_element_expiry(place, key),
        }
        (place, true)
    }

    /// Removes one expired field from any hash, and the hash itself if the field was its last. Puts the hash's key into
    /// `key` and the field's name into `name`. Returns `None` if no field has expired.
    pub fn remove_expired_field(
        &mut self,
        now: Millis,
        key: &mut Vec<u8>,
        name: &mut Vec<u8>,
    ) -> Option<RemovedValue> {
        while let Some(bytes) = self.entries.pop_element_expiry(now) {
            let hashed = lookup_key(&bytes);
            let (KeyLookup::Live(place) | KeyLookup::Expired(place)) = self.find(&hashed, Millis(i64::MIN))
            else {
                continue;
            };
            let Some(hash) = self.hash(place) else { continue };
            name.clear();
            let (place, found) = match hash.shape {
                CollectionShape::Packed(packed) => {
                    let past = |record: &records::FieldRecord<'_>| !Field::from(*record).is_live_at(now);
                    let due = records::records(packed).find(past);
                    due.iter().for_each(|record| name.extend_from_slice(record.name));
                    if due.is_some() { self.hash_remove(place, &hashed, name) } else { (place, false) }
                }
                CollectionShape::Large(_) => {
                    (place, self.large_hash_mut(place).is_some_and(|fields| fields.remove_expired(now, name)))
                }
            };
            let emptied = self.expect_hash(place).is_empty();
            if !emptied {
                self.record_element_expiry(place, &hashed);
            }
            if found {
                key.clear();
                key.extend_from_slice(&bytes);
                return Some(if emptied { self.remove(place, &hashed) } else { RemovedValue::default() });
            }
        }
        None
    }
}
