//! Sets.
//!
//! A small set is packed ([`members`]): sorted integers, or strings in insertion order. In a larger one, each member is
//! an entry without a value in the set's own store ([`crate::fields`]). OBJECT ENCODING follows Redis's thresholds,
//! independently of this representation.
mod builder;
mod editing;
pub(crate) mod members;

use crate::fields::{Field, FieldKind, FieldsPart, LargeFields, lookup_key};
use crate::kind::{Kind, ValueEncoding};
use crate::large::LargeValue;
use crate::packed::{self, CollectionShape, MAX_PACKED_ELEMENTS, PackedBuilder, PackedValue};
use crate::value::PartElements;

pub use builder::SetBuilder;
use members::PackedMembers;
pub use members::{Digits, SetMember};

/// Defines sets as collections of fields: members are names without values.
#[derive(Debug)]
pub(crate) struct SetFields;

impl FieldKind for SetFields {
    type Overflow = Vec<u8>;

    fn elements(part: FieldsPart<'_>) -> PartElements<'_> {
        PartElements::Set(part)
    }

    fn into_large(fields: Box<LargeFields<Self>>) -> LargeValue {
        LargeValue::Set(fields)
    }

    fn visit_packed(packed: &PackedValue<'_>, visit: &mut dyn FnMut(Field<'_>)) {
        PackedMembers::from_packed(packed.bytes())
            .for_each(&mut |member| visit(Field { name: &member, value: b"", expiry: None }));
    }
}

/// A read-only view of a set, borrowed from its slot.
#[derive(Debug, Clone, Copy)]
pub struct SetRef<'a> {
    pub(crate) shape: CollectionShape<'a, LargeFields<SetFields>>,
    pub(crate) value_encoding: ValueEncoding,
}

impl<'a> SetRef<'a> {
    /// Returns the number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.len()
    }

    /// Returns whether the set has no members. Only a newly created set can be empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the name that OBJECT ENCODING reports.
    #[must_use]
    pub fn encoding(&self) -> &'static str {
        match self.value_encoding {
            ValueEncoding::IntsetSet => "intset",
            ValueEncoding::ListpackSet => "listpack",
            _ => "hashtable",
        }
    }

    /// Returns whether `member` is in the set.
    #[must_use]
    #[inline]
    pub fn contains(&self, member: &[u8]) -> bool {
        match self.shape {
            CollectionShape::Packed(packed) => PackedMembers::from_packed(packed).find(member).is_some(),
            CollectionShape::Large(fields) => fields.find(&lookup_key(member)).is_some(),
        }
    }

    /// Like [`Self::contains`], for callers that already have the member's hash
    /// ([`crate::Keyspace::hash_element_name`]).
    #[must_use]
    #[inline]
    pub fn contains_with_hash(&self, member: &[u8], hash: u64) -> bool {
        match self.shape {
            CollectionShape::Packed(packed) => PackedMembers::from_packed(packed).find(member).is_some(),
            CollectionShape::Large(fields) => fields.contains_with_hash(member, hash),
        }
    }

    /// Prefetches the members with these hashes if the set is too large for the L1 and L2 caches.
    pub fn prefetch(&self, hashes: impl Iterator<Item = u64> + Clone) {
        if let CollectionShape::Large(fields) = self.shape {
            fields.prefetch(hashes);
        }
    }

    /// Visits members in arbitrary order until `visit` returns false. Returns whether all were visited.
    pub fn visit(&self, visit: &mut dyn FnMut(SetMember<'a>) -> bool) -> bool {
        match self.shape {
            CollectionShape::Packed(packed) => {
                let mut goes_on = true;
                PackedMembers::from_packed(packed).for_each(&mut |member| goes_on = goes_on && visit(member));
                goes_on
            }
            CollectionShape::Large(fields) => {
                fields.visit_all(&mut |field| visit(SetMember::Bytes(field.name)))
            }
        }
    }

    /// Visits all members.
    pub fn for_each(&self, visit: &mut dyn FnMut(SetMember<'a>)) {
        match self.shape {
            CollectionShape::Packed(packed) => PackedMembers::from_packed(packed).for_each(visit),
            CollectionShape::Large(fields) => {
                fields.for_each(&mut |field| visit(SetMember::Bytes(field.name)));
            }
        }
    }

    /// Visits about `count` members from position `from`, like [`crate::Table::scan`]; a packed set is visited
    /// completely.
    pub fn scan(&self, from: u64, count: usize, visit: &mut dyn FnMut(SetMember<'a>)) -> Option<u64> {
        match self.shape {
            CollectionShape::Packed(_) => {
                self.for_each(visit);
                None
            }
            CollectionShape::Large(fields) => {
                fields.scan(from, count, &mut |field| visit(SetMember::Bytes(field.name)))
            }
        }
    }

    /// Picks a member at random. `random` is a uniform random number.
    #[must_use]
    pub fn random_member(&self, random: u64) -> Option<SetMember<'a>> {
        match self.shape {
            CollectionShape::Packed(packed) => {
                let index = random.checked_rem(packed::count(packed) as u64)? as usize;
                PackedMembers::from_packed(packed).nth(index).map(|(_, member)| member)
            }
            CollectionShape::Large(fields) => {
                fields.random_field(random).map(|field| SetMember::Bytes(field.name))
            }
        }
    }
}

impl PackedBuilder {
    /// Appends a member to the set being built. Returns false if it is a duplicate, which is detected only among
    /// integers.
    #[must_use]
    pub fn push_member(&mut self, member: &[u8]) -> bool {
        let about = &mut self.summary;
        about.count += 1;
        about.max_element_len = about.max_element_len.max(member.len() as u32);
        let is_integer = resp::parse_i64(member).is_some();
        if !is_integer {
            about.value_encoding = ValueEncoding::ListpackSet;
        }
        let mut is_new = true;
        match PackedMembers::from_packed(&self.bytes) {
            PackedMembers::Integers(_) if is_integer && about.count as usize <= MAX_PACKED_ELEMENTS => {
                match members::MemberAddition::from_packed(&self.bytes, member) {
                    Some(addition) => drop(self.bytes.splice(addition.range, addition.replacement)),
                    None => is_new = false,
                }
            }
            PackedMembers::Integers(_) => {
                members::convert_to_strings(&mut self.bytes);
                members::append_string(&mut self.bytes, member);
            }
            PackedMembers::Strings(_) => members::append_string(&mut self.bytes, member),
        }
        packed::set_count(&mut self.bytes, about.count as usize);
        is_new
    }
}

impl<'a> PackedValue<'a> {
    /// Visits the members of a packed set, or of one part of it.
    pub fn for_each_member(&self, visit: &mut dyn FnMut(SetMember<'a>)) {
        debug_assert_eq!(self.kind(), Kind::Set);
        PackedMembers::from_packed(self.bytes()).for_each(visit);
    }

    /// Returns the members among which duplicates are possible: none if the members are stored sorted.
    pub fn unordered_members(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        debug_assert_eq!(self.kind(), Kind::Set);
        PackedMembers::from_packed(self.bytes()).unordered()
    }
}
