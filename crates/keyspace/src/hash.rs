//! Hashes.
//!
//! A hash with few and short fields is packed ([`records`]). In a larger one, each field is an entry of the hash's own
//! store ([`crate::fields`]): the cost per field does not depend on the hash size, HSCAN keeps its guarantee, fields
//! expire like keys, and a snapshot pins the hash instead of copying it. OBJECT ENCODING follows Redis's thresholds,
//! independently of this representation.
mod editing;
pub(crate) mod records;
mod setting;

use clock::Millis;

use crate::fields::{Field, FieldKind, FieldsPart, LargeFields};
use crate::kind::{Kind, ValueEncoding};
use crate::large::LargeValue;
use crate::packed::{self, CollectionShape, PackedBuilder, PackedValue};
use crate::value::PartElements;

/// Defines hashes as collections of fields, each of which has a value and may expire.
#[derive(Debug)]
pub(crate) struct HashFields;

impl FieldKind for HashFields {
    type Overflow = Vec<u8>;

    fn elements(part: FieldsPart<'_>) -> PartElements<'_> {
        PartElements::Hash(part)
    }

    fn into_large(fields: Box<LargeFields<Self>>) -> LargeValue {
        LargeValue::Hash(fields)
    }

    fn visit_packed(packed: &PackedValue<'_>, visit: &mut dyn FnMut(Field<'_>)) {
        packed.fields().for_each(visit);
    }
}

/// A read-only view of a hash, borrowed from its slot. It includes expired fields that have not been removed yet;
/// callers must check the expiry.
#[derive(Debug, Clone, Copy)]
pub struct HashRef<'a> {
    pub(crate) shape: CollectionShape<'a, LargeFields<HashFields>>,
    pub(crate) value_encoding: ValueEncoding,
}

impl<'a> From<records::FieldRecord<'a>> for Field<'a> {
    fn from(record: records::FieldRecord<'a>) -> Self {
        Self { name: record.name, value: record.value, expiry: record.expiry }
    }
}

impl<'a> HashRef<'a> {
    /// Returns the number of fields, including expired ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.len()
    }

    /// Returns whether the hash has no fields. Only a newly created hash can be empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the name that OBJECT ENCODING reports.
    #[must_use]
    pub fn encoding(&self) -> &'static str {
        if self.value_encoding == ValueEncoding::TableHash { "hashtable" } else { "listpack" }
    }

    /// Looks up a field by name.
    #[must_use]
    #[inline]
    pub fn get(&self, field: &[u8]) -> Option<Field<'a>> {
        match self.shape {
            CollectionShape::Packed(packed) => records::find_record(packed, field).map(Field::from),
            CollectionShape::Large(fields) => fields.get(field),
        }
    }

    /// Visits all fields.
    pub fn for_each(&self, visit: &mut dyn FnMut(Field<'a>)) {
        match self.shape {
            CollectionShape::Packed(packed) => {
                records::records(packed).for_each(|record| visit(record.into()));
            }
            CollectionShape::Large(fields) => fields.for_each(visit),
        }
    }

    /// Returns the number of fields that have not expired at `now`. Scans the fields only if one may have expired.
    #[must_use]
    pub fn live_len(&self, now: Millis) -> usize {
        match self.shape {
            CollectionShape::Packed(packed) => {
                records::records(packed).filter(|record| Field::from(*record).is_live_at(now)).count()
            }
            CollectionShape::Large(fields) => fields.len() - fields.count_expired(now),
        }
    }

    /// Visits about `count` fields from position `from`, like [`crate::Table::scan`]; a packed hash is visited
    /// completely.
    pub fn scan(&self, from: u64, count: usize, visit: &mut dyn FnMut(Field<'a>)) -> Option<u64> {
        match self.shape {
            CollectionShape::Packed(_) => {
                self.for_each(visit);
                None
            }
            CollectionShape::Large(fields) => fields.scan(from, count, visit),
        }
    }

    /// Picks a field at random. `random` is a uniform random number.
    #[must_use]
    pub fn random_field(&self, random: u64) -> Option<Field<'a>> {
        match self.shape {
            CollectionShape::Packed(packed) => {
                let index = random.checked_rem(packed::count(packed) as u64)? as usize;
                records::records(packed).nth(index).map(Field::from)
            }
            CollectionShape::Large(fields) => fields.random_field(random),
        }
    }

    /// Returns a lower bound of the time at which the next field expires.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Millis> {
        match self.shape {
            CollectionShape::Packed(packed) => {
                records::records(packed).filter_map(|record| record.expiry).min()
            }
            CollectionShape::Large(fields) => fields.next_expiry(),
        }
    }
}

impl PackedBuilder {
    /// Appends a field to the hash being built. The hash must not contain the name yet.
    pub fn push_field(&mut self, name: &[u8], value: &[u8], expiry: Option<Millis>) {
        records::push_record(&mut self.bytes, name, value, expiry);
        let about = &mut self.summary;
        about.count += 1;
        about.max_element_len = about.max_element_len.max(name.len().max(value.len()) as u32);
        about.has_expiry |= expiry.is_some();
        packed::set_count(&mut self.bytes, about.count as usize);
    }
}

impl<'a> PackedValue<'a> {
    /// Returns the fields of a packed hash, or of one part of it.
    pub fn fields(&self) -> impl Iterator<Item = Field<'a>> + Clone + use<'a> {
        debug_assert_eq!(self.kind(), Kind::Hash);
        records::records(self.bytes()).map(Field::from)
    }
}
