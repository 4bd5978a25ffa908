//! Values that go from one key to another.

use clock::Millis;

use super::{Content, Place, Table};
use crate::entry::Mark;
use crate::hash::HashRef;
use crate::key::Key;
use crate::outside::Large;
use crate::packed::{HashBuilder, HashLimits, PackedHash};
use crate::usage::Usage;
use crate::value::Kind;

/// A value that lies in no table: it was taken out of one to be put into another (RENAME, MOVE), or is being made
/// before its key is (RESTORE, loading).
#[derive(Debug)]
#[must_use = "the value lies nowhere else"]
pub struct Detached {
    kind: Kind,
    mark: Mark,
    usage: u16,
    value: Loose,
}

#[derive(Debug)]
enum Loose {
    Small(Box<[u8]>),
    Large(Large),
}

impl Detached {
    /// A hash without fields, to be filled with more than a packed one can have.
    pub fn large_hash() -> Self {
        let value = Loose::Large(Large::Fields(Box::new(Table::for_fields())));
        Self { kind: Kind::Hash, mark: Mark::Off, usage: Usage::of_new().0, value }
    }

    /// Adds fields to a large hash; says whether all of them were new. `limits` decides how OBJECT ENCODING will
    /// call it.
    #[must_use]
    pub fn add_fields(&mut self, fields: PackedHash<'_>, limits: HashLimits) -> bool {
        let Loose::Large(Large::Fields(table)) = &mut self.value else {
            unreachable!("only a large hash is added to")
        };
        let before = table.len();
        for record in fields.fields() {
            table.set_field(record.field, record.value, record.expiry);
        }
        if fields.passes(limits) || table.len() > limits.fields {
            self.mark = Mark::On;
        }
        table.len() == before + fields.len()
    }
}

impl HashRef<'_> {
    /// A copy of the hash.
    #[must_use]
    pub fn to_builder(&self) -> HashBuilder {
        let mut builder = HashBuilder::new();
        self.for_each(&mut |field| builder.push(field.name, field.value, field.expiry));
        if self.named_table {
            builder.name_table();
        }
        builder
    }
}

impl Table {
    /// Takes the entry out and gives its value, without copying what is large unless a snapshot needs it
    /// where it is.
    pub fn detach(&mut self, place: Place, key: &Key<'_>) -> Detached {
        let (header, page, at) = self.pages.entry(place.0);
        let (kind, mark, usage) = (header.kind(), header.mark(), self.usage(place).0);
        let Some(number) = header.outside(page, at) else {
            let value = Loose::Small(header.value(page, at).into());
            drop(self.remove(place, key));
            return Detached { kind, mark, usage, value };
        };
        let dropped = self.remove_quietly(place, key.hash);
        let value = match dropped.record {
            Some(record) => record.value,
            None => copy(&self.store().record(number).value),
        };
        self.tidy_after_removal();
        Detached { kind, mark, usage, value: Loose::Large(value) }
    }

    /// Stores a value that was taken out elsewhere under a key that is not there.
    pub fn attach(&mut self, key: &Key<'_>, detached: Detached, expiry: Option<Millis>) -> Place {
        let Detached { kind, mark, usage, value } = detached;
        let place = match value {
            Loose::Small(bytes) => {
                let content = Content { kind, mark, usage, expiry, bytes: &bytes, len: bytes.len() };
                self.store_new(key, content)
            }
            Loose::Large(value) => {
                self.count_in(expiry);
                self.put_outside(key, kind, mark, usage, expiry, value)
            }
        };
        if kind == Kind::Hash {
            self.note_fields_due(place, key.bytes);
        }
        place
    }
}

/// A copy of a large value that a snapshot keeps.
fn copy(value: &Large) -> Large {
    match value {
        Large::Bytes(bytes) => Large::Bytes(bytes.clone()),
        Large::Fields(table) => {
            let mut copy = Box::new(Table::for_fields());
            table.each_field(&mut |field| copy.add_field(field));
            Large::Fields(copy)
        }
    }
}
