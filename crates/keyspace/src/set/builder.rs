//! Builds a set from the arguments of a command or from other sets.

use super::members::{MemberAddition, PackedMembers};
use super::{SetFields, SetRef};
use crate::entries::UnstoredValue;
use crate::fields::LargeFields;
use crate::kind::{Kind, SetBounds, ValueEncoding};
use crate::large::LargeValue;
use crate::packed::{self, COUNT_LEN, CollectionShape, MAX_PACKED_BYTES, MAX_PACKED_ELEMENTS, ValueSummary};
use crate::table::DetachedValue;

/// A set that is not stored yet. Its encoding follows the thresholds as if the members were added one at a time.
#[derive(Debug)]
pub struct SetBuilder {
    shape: OwnedSet,
    value_encoding: ValueEncoding,
    bounds: SetBounds,
}

#[derive(Debug)]
pub(super) enum OwnedSet {
    Packed(Vec<u8>),
    Large(Box<LargeFields<SetFields>>),
}

impl SetBuilder {
    /// Returns an empty set.
    #[must_use]
    pub fn new(bounds: SetBounds) -> Self {
        Self {
            shape: OwnedSet::Packed(vec![0; COUNT_LEN]),
            value_encoding: ValueEncoding::initial_for(Kind::Set),
            bounds,
        }
    }

    /// Returns the thresholds that determine the set's encoding.
    #[must_use]
    pub fn bounds(&self) -> SetBounds {
        self.bounds
    }

    pub(super) fn from_packed(packed: &[u8], encoding: ValueEncoding, bounds: SetBounds) -> Self {
        Self { shape: OwnedSet::Packed(packed.to_vec()), value_encoding: encoding, bounds }
    }

    /// Hints that `count` members will be added next. The encoding is chosen as if all of them were new.
    pub fn reserve_encoding(&mut self, count: usize) {
        let about = ValueSummary { count: count as u32, ..ValueSummary::for_encoding(self.value_encoding) };
        self.value_encoding = self.value_encoding.set_encoding_after_adding(&about, self.bounds);
    }

    /// Reserves space for `count` members. The set must be empty.
    pub fn reserve(&mut self, count: usize) {
        if count > MAX_PACKED_ELEMENTS && self.as_ref().is_empty() {
            let mut fields = Box::<LargeFields<SetFields>>::default();
            fields.reserve(count);
            self.shape = OwnedSet::Large(fields);
        }
    }

    /// Adds a member. Returns whether it is new.
    pub fn add(&mut self, member: &[u8]) -> bool {
        let fields = match &mut self.shape {
            OwnedSet::Large(fields) => fields,
            OwnedSet::Packed(bytes) => {
                let Some(addition) = MemberAddition::from_packed(bytes, member) else { return false };
                let count = packed::count(bytes) + 1;
                self.value_encoding =
                    self.value_encoding.set_encoding_after_adding(&addition.summary_of(count), self.bounds);
                if !must_become_large(&addition, bytes.len(), count, self.value_encoding) {
                    bytes.splice(addition.range, addition.replacement);
                    packed::set_count(bytes, count);
                    return true;
                }
                let fields = large_from_packed(bytes);
                self.shape = OwnedSet::Large(fields);
                return self.add(member);
            }
        };
        let is_new = fields.insert_if_new(member);
        if is_new {
            let about = summary_of(member, fields.len());
            self.value_encoding = self.value_encoding.set_encoding_after_adding(&about, self.bounds);
        }
        is_new
    }

    /// Removes a member. Returns whether it existed.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        match &mut self.shape {
            OwnedSet::Large(fields) => fields.remove(member),
            OwnedSet::Packed(bytes) => {
                let Some(range) = PackedMembers::from_packed(bytes).find(member) else { return false };
                let count = packed::count(bytes) - 1;
                bytes.drain(range);
                packed::set_count(bytes, count);
                true
            }
        }
    }

    /// Returns a read-only view of the set.
    #[must_use]
    pub fn as_ref(&self) -> SetRef<'_> {
        let shape = match &self.shape {
            OwnedSet::Packed(bytes) => CollectionShape::Packed(bytes),
            OwnedSet::Large(fields) => CollectionShape::Large(&**fields),
        };
        SetRef { shape, value_encoding: self.value_encoding }
    }

    pub(super) fn into_parts(self) -> (OwnedSet, ValueEncoding) {
        (self.shape, self.value_encoding)
    }

    /// Converts the set into a value that can be stored under a key.
    pub fn into_value(self) -> DetachedValue {
        let value = match self.shape {
            OwnedSet::Packed(bytes) => UnstoredValue::Bytes(bytes.into()),
            OwnedSet::Large(fields) => UnstoredValue::Overflow(LargeValue::Set(fields)),
        };
        DetachedValue::new(self.value_encoding, value)
    }
}

/// Returns whether a packed set of `len` bytes must become large when `addition` gives it `count` members.
pub(super) fn must_become_large(
    addition: &MemberAddition,
    len: usize,
    count: usize,
    encoding: ValueEncoding,
) -> bool {
    len - addition.range.len() + addition.replacement.len() > MAX_PACKED_BYTES
        || count > encoding.max_packed_elements()
}

pub(super) fn large_from_packed(packed: &[u8]) -> Box<LargeFields<SetFields>> {
    let mut fields = Box::<LargeFields<SetFields>>::default();
    PackedMembers::from_packed(packed).for_each(&mut |member| {
        fields.insert_if_new(&member);
    });
    fields
}

/// Summarizes a large set for its encoding: `member` was added and is now one of `count` members.
pub(super) fn summary_of(member: &[u8], count: usize) -> ValueSummary {
    let form =
        if resp::parse_i64(member).is_some() { ValueEncoding::IntsetSet } else { ValueEncoding::ListpackSet };
    ValueSummary {
        count: count as u32,
        max_element_len: member.len() as u32,
        ..ValueSummary::for_encoding(form)
    }
}

impl MemberAddition {
    /// Summarizes a packed set for its encoding: it has `count` members after this addition.
    pub(super) fn summary_of(&self, count: usize) -> ValueSummary {
        let form = if self.all_integers { ValueEncoding::IntsetSet } else { ValueEncoding::ListpackSet };
        ValueSummary {
            count: count as u32,
            max_element_len: self.max_member_len as u32,
            ..ValueSummary::for_encoding(form)
        }
    }
}
