//! A hash as it is read.

use clock::Millis;

use crate::captured::PageView;
use crate::packed;
use crate::table::Table;
use crate::value::Value;

/// A field of a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
    pub expiry: Option<Millis>,
}

impl Field<'_> {
    /// Whether its time has not come.
    #[must_use]
    pub fn lives_at(&self, now: Millis) -> bool {
        self.expiry.is_none_or(|expiry| expiry > now)
    }
}

/// A field that was set anew: what it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replaced {
    pub expiry: Option<Millis>,
}

/// A hash as it is read, borrowed from its slot. Fields whose time has come are there until they are
/// removed: the caller decides what to do with them.
#[derive(Debug, Clone, Copy)]
pub struct HashRef<'a> {
    pub(crate) shape: Shape<'a>,
    /// Whether OBJECT ENCODING calls it `hashtable`.
    pub(crate) named_table: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape<'a> {
    Packed(&'a [u8]),
    Table(&'a Table),
}

impl<'a> From<packed::Record<'a>> for Field<'a> {
    fn from(record: packed::Record<'a>) -> Self {
        Self { name: record.field, value: record.value, expiry: record.expiry }
    }
}

impl<'a> HashRef<'a> {
    /// How many fields there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.shape {
            Shape::Packed(packed) => packed::count(packed),
            Shape::Table(table) => table.len(),
        }
    }

    /// Only a hash that was just made has no fields.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name that OBJECT ENCODING gives it.
    #[must_use]
    pub fn encoding(&self) -> &'static str {
        if self.named_table { "hashtable" } else { "listpack" }
    }

    #[must_use]
    #[inline]
    pub fn get(&self, field: &[u8]) -> Option<Field<'a>> {
        match self.shape {
            Shape::Packed(packed) => packed::find(packed, field).map(Field::from),
            Shape::Table(table) => table.field(field),
        }
    }

    /// Visits all fields.
    pub fn for_each(&self, visit: &mut dyn FnMut(Field<'_>)) {
        match self.shape {
            Shape::Packed(packed) => packed::records(packed).for_each(|record| visit(record.into())),
            Shape::Table(table) => table.each_field(visit),
        }
    }

    /// How many of the fields have a time that has not come, or none. Looks only where some may be due.
    #[must_use]
    pub fn len_at(&self, now: Millis) -> usize {
        match self.shape {
            Shape::Packed(packed) => {
                packed::records(packed).filter(|record| Field::from(*record).lives_at(now)).count()
            }
            Shape::Table(table) => table.len() - table.count_due(now),
        }
    }

    /// Visits about `count` fields from position `from` on, as [`Table::scan`] does; a packed hash is
    /// visited whole.
    pub fn scan(&self, from: u64, count: usize, visit: &mut dyn FnMut(Field<'_>)) -> Option<u64> {
        match self.shape {
            Shape::Packed(_) => {
                self.for_each(visit);
                None
            }
            Shape::Table(table) => table.scan_fields(from, count, visit),
        }
    }

    /// A field chosen by `random`, a uniform random number.
    #[must_use]
    pub fn random(&self, random: u64) -> Option<Field<'a>> {
        match self.shape {
            Shape::Packed(packed) => {
                let index = random.checked_rem(packed::count(packed) as u64)? as usize;
                packed::records(packed).nth(index).map(Field::from)
            }
            Shape::Table(table) => table.random_field(random),
        }
    }

    /// When the next field expires, or a time before that.
    #[must_use]
    pub fn next_due(&self) -> Option<Millis> {
        match self.shape {
            Shape::Packed(packed) => packed::records(packed).filter_map(|record| record.expiry).min(),
            Shape::Table(table) => table.next_due(),
        }
    }

    /// A field whose time has come.
    pub(crate) fn due(&self, now: Millis) -> Option<Field<'a>> {
        match self.shape {
            Shape::Packed(packed) => {
                let mut records = packed::records(packed);
                records.find(|record| record.expiry.is_some_and(|expiry| expiry <= now)).map(Field::from)
            }
            Shape::Table(_) => None,
        }
    }
}

/// Some fields of a large hash, as a snapshot's walk comes to them.
#[derive(Debug, Clone, Copy)]
pub struct HashPart<'a> {
    /// How many fields the hash had at the cut. The parts add up to it.
    pub total: usize,
    /// Whether this is the hash's first part. The others follow with no other key between them.
    pub first: bool,
    /// Whether fields of the hash expired at the cut, here or in other parts.
    pub any_expires: bool,
    pub(crate) page: PageView<'a>,
}

impl HashPart<'_> {
    /// Visits the fields of this part, which may be none.
    pub fn for_each(&self, visit: &mut dyn FnMut(Field<'_>)) {
        self.page.for_each(&mut |name, value, expiry, _| {
            if let Value::String(string) = value {
                visit(Field { name, value: string.bytes, expiry });
            }
        });
    }
}
