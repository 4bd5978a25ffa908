//! Setting fields of a hash, packed or a table.
//!
//! Most fields that are set were there and keep their size: then nothing moves. Else a packed hash is written
//! anew, once for all fields that a command sets, and becomes a table when it grows past what is packed.

use std::ops::Range;

use smallvec::SmallVec;

use super::{Content, Place, Table};
use crate::entry::{Mark, Where};
use crate::hash::{Field, Replaced, Shape};
use crate::key::Key;
use crate::outside::Large;
use crate::packed::{self, HashLimits, MOST_BYTES, MOST_FIELDS};
use crate::value::Kind;

/// Whether a hash with so many fields and this one among them is past what is called a `listpack`.
#[inline]
fn passes(field: &Field<'_>, count: usize, limits: HashLimits) -> bool {
    field.name.len().max(field.value.len()) > limits.value || count > limits.fields
}

impl Table {
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
    pub(super) fn splice(
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
