//! Hashes: their fields are changed here.
//!
//! A hash is packed ([`crate::packed`]) while it has few fields and bytes, in its entry or outside. Past
//! that it becomes a table of its own, whose keys are the fields: one field costs the same however many
//! there are, a scan keeps its promise, fields expire as keys do, and a snapshot captures it by a pin of
//! that table ([`super::pins`]) instead of a copy. What users see of this is only the name that OBJECT
//! ENCODING gives, and that follows Redis's thresholds, not the shape.
//!
//! Which hashes have fields that expire is kept by key, with a time before which none of them does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clock::Millis;
use slot_routing::Slot;
use smallvec::SmallVec;

use super::{Content, Dropped, Found, Place, Table};
use crate::entry::kept_time;
use crate::hash::{Field, HashRef, Replaced, Shape};
use crate::hashing;
use crate::key::Key;
use crate::outside::Large;
use crate::packed::{self, HashLimits, MOST_BYTES, MOST_FIELDS, PackedHash};
use crate::pages;
use crate::value::{Kind, NewValue, Value};

/// The hashes with fields that expire.
#[derive(Debug, Default)]
pub(super) struct FieldsDue {
    by_time: BTreeSet<(Millis, Arc<[u8]>)>,
    by_key: BTreeMap<Arc<[u8]>, Millis>,
}

impl FieldsDue {
    pub(super) fn first(&self) -> Option<Millis> {
        self.by_time.first().map(|(time, _)| *time)
    }

    fn note(&mut self, key: &[u8], due: Millis) {
        let known = self.by_key.get_key_value(key).map(|(key, &time)| (key.clone(), time));
        if known.as_ref().is_some_and(|&(_, time)| time <= due) {
            return;
        }
        let key = match known {
            Some((key, time)) => {
                self.by_time.remove(&(time, key.clone()));
                key
            }
            None => key.into(),
        };
        self.by_time.insert((due, key.clone()));
        self.by_key.insert(key, due);
    }

    fn pop(&mut self, now: Millis) -> Option<Arc<[u8]>> {
        if self.first()? > now {
            return None;
        }
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }
}

fn field_key(name: &[u8]) -> Key<'_> {
    let slot = Slot::new(0).expect("the first slot");
    Key { bytes: name, slot, hash: hashing::of(name) }
}

/// A field as an item of its hash's table.
fn as_field<'a>(table: &'a Table, reference: u32) -> Field<'a> {
    let (header, page, at) = table.pages.entry(reference);
    let name = table.keys().key_of(header, page, at);
    match table.value_of(header, page, at) {
        Value::String(string) => Field { name, value: string.bytes, expiry: header.expiry(page, at) },
        other => unreachable!("a field is a string, not a {}", other.kind().name()),
    }
}

/// What a table of fields is asked by [`HashRef`].
impl Table {
    #[inline]
    pub(crate) fn field(&self, name: &[u8]) -> Option<Field<'_>> {
        let keys = self.keys();
        let found = self.index.find(hashing::of(name), |reference| keys.key(reference) == name)?;
        Some(as_field(self, found))
    }

    pub(crate) fn each_field(&self, visit: &mut dyn FnMut(Field<'_>)) {
        let mut position = Some(0);
        while let Some(from) = position {
            position = self.index.visit(from, &self.keys(), |reference| visit(as_field(self, reference)));
        }
    }

    pub(crate) fn scan_fields(
        &self,
        from: u64,
        count: usize,
        visit: &mut dyn FnMut(Field<'_>),
    ) -> Option<u64> {
        let (mut position, mut visited) = (from, 0);
        loop {
            let next = self.index.visit(position, &self.keys(), |reference| {
                visited += 1;
                visit(as_field(self, reference));
            });
            match next {
                Some(next) if visited < count => position = next,
                next => return next,
            }
        }
    }

    pub(crate) fn random_field(&self, random: u64) -> Option<Field<'_>> {
        self.index.pick(random).map(|reference| as_field(self, reference))
    }

    pub(super) fn add_field(&mut self, field: Field<'_>) {
        self.insert(&field_key(field.name), NewValue::string(field.value), field.expiry);
    }

    pub(super) fn set_field(
        &mut self,
        name: &[u8],
        value: &[u8],
        expiry: Option<Millis>,
    ) -> Option<Replaced> {
        let expiry = expiry.map(kept_time);
        let key = field_key(name);
        match self.find(&key, Millis(i64::MIN)) {
            Found::Live(place) | Found::Expired(place) => {
                let replaced = Replaced { expiry: self.expiry(place) };
                drop(self.replace(place, &key, NewValue::string(value), expiry));
                Some(replaced)
            }
            Found::Missing => {
                self.insert(&key, NewValue::string(value), expiry);
                None
            }
        }
    }
}

impl Table {
    /// The hash at `place`, if it is one.
    #[must_use]
    #[inline]
    pub fn hash(&self, place: Place) -> Option<HashRef<'_>> {
        match self.value(place) {
            Value::Hash(hash) => Some(hash),
            _ => None,
        }
    }

    pub(super) fn known_hash(&self, place: Place) -> HashRef<'_> {
        self.hash(place).expect("the caller has seen that it is a hash")
    }

    pub(super) fn insert_hash(
        &mut self,
        key: &Key<'_>,
        hash: PackedHash<'_>,
        expiry: Option<Millis>,
        usage: u16,
    ) -> Place {
        let mark = hash.named_table().into();
        let bytes = hash.bytes();
        let place = if bytes.len() <= MOST_BYTES && hash.len() <= MOST_FIELDS {
            self.store_new(key, Content { kind: Kind::Hash, mark, usage, expiry, bytes, len: bytes.len() })
        } else {
            let mut table = Box::new(Table::for_fields());
            for record in hash.fields() {
                table.set_field(record.field, record.value, record.expiry);
            }
            self.count_in(expiry);
            self.put_outside(key, Kind::Hash, mark, usage, expiry, Large::Fields(table))
        };
        if hash.any_expires() {
            self.note_fields_due(place, key.bytes);
        }
        place
    }

    /// Removes a field of the hash at `place`; says whether it was there. A hash without fields must not
    /// stay: the caller removes its key.
    pub fn hash_remove(&mut self, place: Place, key: &Key<'_>, name: &[u8]) -> (Place, bool) {
        let hash = self.known_hash(place);
        match hash.shape {
            Shape::Packed(packed) => {
                let Some(record) = packed::find(packed, name) else { return (place, false) };
                let (range, count) = (record.start..record.end, packed::count(packed) - 1);
                let named_table = hash.named_table;
                (self.splice(place, key, range, &[], count, named_table), true)
            }
            Shape::Table(table) => {
                if table.field(name).is_none() {
                    return (place, false);
                }
                let table = self.table_of(place);
                let key = field_key(name);
                if let Found::Live(place) | Found::Expired(place) = table.find(&key, Millis(i64::MIN)) {
                    drop(table.remove(place, &key));
                }
                (place, true)
            }
        }
    }

    /// Changes when a field of the hash at `place` expires; says whether the field is there.
    pub fn hash_set_expiry(
        &mut self,
        place: Place,
        key: &Key<'_>,
        name: &[u8],
        expiry: Option<Millis>,
    ) -> (Place, bool) {
        let hash = self.known_hash(place);
        let Some(field) = hash.get(name) else { return (place, false) };
        if field.expiry == expiry {
            return (place, true);
        }
        let place = match hash.shape {
            Shape::Packed(_) => {
                let value: SmallVec<[u8; 512]> = field.value.into();
                // The name that the encoding has stays: no limit is passed by a time.
                let limits = HashLimits { fields: usize::MAX, value: usize::MAX };
                self.hash_set(place, key, Field { name, value: &value, expiry }, limits).0
            }
            Shape::Table(_) => {
                let table = self.table_of(place);
                let field = field_key(name);
                if let Found::Live(at) | Found::Expired(at) = table.find(&field, Millis(i64::MIN)) {
                    table.set_expiry(at, &field, expiry.map(kept_time));
                }
                place
            }
        };
        if expiry.is_some() {
            self.note_fields_due(place, key.bytes);
        }
        (place, true)
    }

    /// Removes one field whose time has come from any hash, and the hash if that was its last; puts the
    /// hash's key into `key` and the field's name into `name`. Says whether there was one.
    pub fn pop_due_field(&mut self, now: Millis, key: &mut Vec<u8>, name: &mut Vec<u8>) -> Option<Dropped> {
        while let Some(bytes) = self.rare.as_mut()?.fields_due.as_mut()?.pop(now) {
            let hashed = field_key(&bytes);
            let (Found::Live(place) | Found::Expired(place)) = self.find(&hashed, Millis(i64::MIN)) else {
                continue;
            };
            let Some(hash) = self.hash(place) else { continue };
            name.clear();
            let (place, found) = match hash.shape {
                Shape::Packed(_) => match hash.due(now) {
                    Some(field) => {
                        name.extend_from_slice(field.name);
                        self.hash_remove(place, &hashed, name)
                    }
                    None => (place, false),
                },
                Shape::Table(_) => (place, self.table_of(place).pop_due(now, name).is_some()),
            };
            let emptied = self.known_hash(place).is_empty();
            if !emptied {
                self.note_fields_due(place, &bytes);
            }
            if found {
                key.clear();
                key.extend_from_slice(&bytes);
                return Some(if emptied { self.remove(place, &hashed) } else { Dropped::default() });
            }
        }
        None
    }

    /// Notes when the next field of the hash at `place` expires.
    pub(super) fn note_fields_due(&mut self, place: Place, key: &[u8]) {
        if let Some(due) = self.known_hash(place).next_due() {
            self.rare().fields_due.get_or_insert_default().note(key, due);
        }
    }

    /// The table of a large hash, to be changed: the snapshots that need its entry pin it first.
    pub(super) fn table_of(&mut self, place: Place) -> &mut Table {
        let pinned = self.pinned(pages::split(place.0).0);
        let (header, page, at) = self.pages.entry(place.0);
        let number = header.outside(page, at).expect("a table lies outside");
        if pinned != 0 {
            self.pin_record(number, pinned);
        }
        match &mut self.rare().store.record_mut(number).value {
            Large::Fields(table) => table,
            Large::Bytes(_) => unreachable!("the caller has seen that it is a table"),
        }
    }
}
