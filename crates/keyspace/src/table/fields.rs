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
use std::ops::Range;
use std::sync::Arc;

use clock::Millis;
use slot_routing::Slot;
use smallvec::SmallVec;

use super::{Content, Dropped, Found, Place, Table};
use crate::entry::{Mark, Where, kept_time};
use crate::hash::{Field, HashRef, Replaced, Shape};
use crate::hashing;
use crate::key::Key;
use crate::outside::Large;
use crate::packed::{self, COUNT, HashBuilder, HashLimits, MOST_BYTES, MOST_FIELDS};
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

/// Whether a hash with so many fields and this one among them is past what is called a `listpack`.
#[inline]
fn passes(field: &Field<'_>, count: usize, limits: HashLimits) -> bool {
    field.name.len().max(field.value.len()) > limits.value || count > limits.fields
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

    fn known_hash(&self, place: Place) -> HashRef<'_> {
        self.hash(place).expect("the caller has seen that it is a hash")
    }

    pub(super) fn insert_hash(
        &mut self,
        key: &Key<'_>,
        builder: &HashBuilder,
        expiry: Option<Millis>,
        usage: u16,
    ) -> Place {
        let mark = builder.named_table.into();
        let len = COUNT + builder.records.len();
        let place = if len <= MOST_BYTES && builder.count <= MOST_FIELDS {
            let mut bytes: SmallVec<[u8; 1024]> = SmallVec::with_capacity(len);
            bytes.extend_from_slice(&(builder.count as u16).to_le_bytes());
            bytes.extend_from_slice(&builder.records);
            self.store_new(key, Content { kind: Kind::Hash, mark, usage, expiry, bytes: &bytes, len })
        } else {
            let mut table = Box::new(Table::for_fields());
            for record in packed::records_from(&builder.records, 0) {
                table.set_field(record.field, record.value, record.expiry);
            }
            self.count_in(expiry);
            self.put_outside(key, Kind::Hash, mark, usage, expiry, Large::Fields(table))
        };
        self.note_fields_due(place, key.bytes);
        place
    }

    /// Sets a field of the hash at `place`, and when it expires. Says what was there.
    pub fn hash_set(
        &mut self,
        place: Place,
        key: &Key<'_>,
        field: Field<'_>,
        limits: HashLimits,
    ) -> (Place, Option<Replaced>) {
        match self.set_where_it_is(place, key, field, limits) {
            Some(done) => done,
            None => self.set_moving(place, key, field, limits),
        }
    }

    /// Sets a field of a packed hash that is not there or has another size.
    fn set_moving(
        &mut self,
        place: Place,
        key: &Key<'_>,
        field: Field<'_>,
        limits: HashLimits,
    ) -> (Place, Option<Replaced>) {
        let Field { name, value, expiry } = field;
        let hash = self.known_hash(place);
        let Shape::Packed(packed) = hash.shape else { unreachable!("a field of a table is set where it is") };
        let found = packed::find(packed, name);
        let count = packed::count(packed) + usize::from(found.is_none());
        let named_table = hash.named_table || passes(&field, count, limits);
        let replaced = found.map(|record| Replaced { expiry: record.expiry });
        let range = found.map_or(packed.len()..packed.len(), |record| record.start..record.end);
        let mut bytes = SmallVec::<[u8; 256]>::new();
        packed::push(&mut bytes, name, value, expiry);
        let place = if packed.len() - range.len() + bytes.len() > MOST_BYTES || count > MOST_FIELDS {
            let place = self.unpack(place, key, named_table);
            self.table_of(place).set_field(name, value, expiry);
            place
        } else {
            self.splice(place, key, range, &bytes, count, named_table)
        };
        if expiry.is_some() {
            self.note_fields_due(place, key.bytes);
        }
        (place, replaced)
    }

    /// Sets several fields of the hash at `place`, one after another; `told` hears for each what was there. A
    /// packed hash is written anew once for all of them.
    pub fn hash_set_all<'f>(
        &mut self,
        mut place: Place,
        key: &Key<'_>,
        mut fields: impl Iterator<Item = Field<'f>>,
        limits: HashLimits,
        mut told: impl FnMut(Option<Replaced>),
    ) -> Place {
        while let Some(field) = fields.next() {
            match self.set_where_it_is(place, key, field, limits) {
                Some((set, replaced)) => {
                    place = set;
                    told(replaced);
                }
                None => place = self.set_rewriting(place, key, field, &mut fields, limits, &mut told),
            }
        }
        place
    }

    /// Sets fields of a packed hash in a copy, as long as it stays one, and stores that.
    fn set_rewriting<'f>(
        &mut self,
        place: Place,
        key: &Key<'_>,
        first: Field<'f>,
        fields: &mut impl Iterator<Item = Field<'f>>,
        limits: HashLimits,
        told: &mut impl FnMut(Option<Replaced>),
    ) -> Place {
        let Some(second) = fields.next() else {
            let (place, replaced) = self.set_moving(place, key, first, limits);
            told(replaced);
            return place;
        };
        let hash = self.known_hash(place);
        let Shape::Packed(packed) = hash.shape else { unreachable!("a field of a table is set where it is") };
        let (whole, mut named_table) = (0..packed.len(), hash.named_table);
        let mut draft: SmallVec<[u8; 1024]> = packed.into();
        let (mut timed, mut too_much) = (false, None);
        let mut fields = [first, second].into_iter().chain(fields);
        for field in fields.by_ref() {
            let found = packed::find(&draft, field.name);
            let replaced = found.map(|record| Replaced { expiry: record.expiry });
            let range = found.map_or(draft.len()..draft.len(), |record| record.start..record.end);
            let count = packed::count(&draft) + usize::from(found.is_none());
            let mut bytes = SmallVec::<[u8; 256]>::new();
            packed::push(&mut bytes, field.name, field.value, field.expiry);
            if draft.len() - range.len() + bytes.len() > MOST_BYTES || count > MOST_FIELDS {
                too_much = Some(field);
                break;
            }
            let at = range.start;
            draft.drain(range);
            draft.insert_from_slice(at, &bytes);
            packed::set_count(&mut draft, count);
            named_table |= passes(&field, count, limits);
            timed |= field.expiry.is_some();
            told(replaced);
        }
        let mut place = self.splice(place, key, whole, &draft, packed::count(&draft), named_table);
        if timed {
            self.note_fields_due(place, key.bytes);
        }
        // It becomes a table, in which the others are set one by one.
        for field in too_much.into_iter().chain(fields) {
            let (set, replaced) = self.hash_set(place, key, field, limits);
            place = set;
            told(replaced);
        }
        place
    }

    /// Sets a field if nothing else has to move for it.
    #[inline]
    fn set_where_it_is(
        &mut self,
        place: Place,
        key: &Key<'_>,
        field: Field<'_>,
        limits: HashLimits,
    ) -> Option<(Place, Option<Replaced>)> {
        let Field { name, value, expiry } = field;
        let hash = self.known_hash(place);
        let Shape::Packed(packed) = hash.shape else {
            let named = hash.named_table;
            let table = self.table_of(place);
            let replaced = table.set_field(name, value, expiry);
            if !named && passes(&field, table.len(), limits) {
                self.set_mark(place, true);
            }
            if expiry.is_some() {
                self.note_fields_due(place, key.bytes);
            }
            return Some((place, replaced));
        };
        let record = packed::find(packed, name)
            .filter(|record| record.value.len() == value.len())
            .filter(|record| record.expiry.is_some() == expiry.is_some())?;
        let named_table = hash.named_table || passes(&field, packed::count(packed), limits);
        let replaced = Replaced { expiry: record.expiry };
        let (start, value_at) = (record.start, record.value_at);
        let place = self.thaw(place, key);
        let packed = self.flat_mut(place);
        packed[value_at..value_at + value.len()].copy_from_slice(value);
        if let Some(expiry) = expiry {
            packed::set_time(packed, start, expiry);
            self.note_fields_due(place, key.bytes);
        }
        self.set_mark(place, named_table);
        Some((place, Some(replaced)))
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
    fn table_of(&mut self, place: Place) -> &mut Table {
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

    /// Gives an entry its mark. That a snapshot may need it does not matter: a mark says only how a value is
    /// called, and is not written.
    fn set_mark(&mut self, place: Place, named_table: bool) {
        let mark = Mark::from(named_table);
        let (header, page, at) = self.pages.entry_mut(place.0);
        if header.mark() != mark {
            header.with_mark(mark).write(page, at);
        }
    }

    /// The bytes of a packed value, to be changed where they are. The entry must be thawed.
    fn flat_mut(&mut self, place: Place) -> &mut [u8] {
        let (header, page, at) = self.pages.entry(place.0);
        match header.outside(page, at) {
            Some(number) => {
                let number = self.own_record(place, number);
                self.rare().store.flat_mut(number)
            }
            None => {
                let (header, page, at) = self.pages.entry_mut(place.0);
                header.value_mut(page, at)
            }
        }
    }

    /// Exchanges some bytes of a packed value for others, in its entry or outside, and sets its count.
    fn splice(
        &mut self,
        place: Place,
        key: &Key<'_>,
        range: Range<usize>,
        with: &[u8],
        count: usize,
        named_table: bool,
    ) -> Place {
        let (header, page, at) = self.pages.entry(place.0);
        if header.place() == Where::Here {
            let (usage, expiry) = (header.usage(page, at), header.expiry(page, at));
            let old = header.value(page, at);
            let mut bytes: SmallVec<[u8; 1024]> = SmallVec::with_capacity(old.len() + with.len());
            bytes.extend_from_slice(&old[..range.start]);
            bytes.extend_from_slice(with);
            bytes.extend_from_slice(&old[range.end..]);
            packed::set_count(&mut bytes, count);
            self.unlink(place, key.hash);
            self.kill(place);
            let (mark, len) = (named_table.into(), bytes.len());
            let content = Content { kind: header.kind(), mark, usage, expiry, bytes: &bytes, len };
            return self.store_new(key, content);
        }
        let place = self.thaw(place, key);
        self.set_mark(place, named_table);
        let (header, page, at) = self.pages.entry(place.0);
        let number = header.outside(page, at).expect("it lies outside");
        let number = self.own_record(place, number);
        self.rare().store.resize(number, |bytes| {
            let need = bytes.len() - range.len() + with.len();
            if need > bytes.capacity() {
                bytes.reserve_exact(need + need / 16 - bytes.len());
            }
            bytes.splice(range, with.iter().copied());
            packed::set_count(bytes, count);
        });
        place
    }

    /// Makes a packed hash a table.
    fn unpack(&mut self, place: Place, key: &Key<'_>, named_table: bool) -> Place {
        let mut table = Box::new(Table::for_fields());
        self.known_hash(place).for_each(&mut |field| {
            table.set_field(field.name, field.value, field.expiry);
        });
        let (usage, expiry) = (self.usage(place).0, self.expiry(place));
        drop(self.remove_quietly(place, key.hash));
        self.count_in(expiry);
        self.put_outside(key, Kind::Hash, named_table.into(), usage, expiry, Large::Fields(table))
    }
}
