//! Adds and removes members.

use super::builder::{self, OwnedSet, SetBuilder};
use super::members::{MemberAddition, PackedMembers};
use super::{SetFields, SetRef};
use crate::entries::{EntryRef, Splice};
use crate::fields::LargeFields;
use crate::key::Key;
use crate::kind::SetBounds;
use crate::large::Large;
use crate::packed::{self, COUNT_LEN, Shape};
use crate::table::Table;

impl Table {
    /// Returns the set at `entry_ref`, or `None` if the value has another type.
    #[must_use]
    #[inline]
    pub fn set(&self, place: EntryRef) -> Option<SetRef<'_>> {
        self.typed::<SetRef<'_>>(place)
    }

    fn expect_set(&self, place: EntryRef) -> SetRef<'_> {
        self.set(place).expect("the caller has seen that it is a set")
    }

    /// Returns the members of a large set, for editing. They are pinned first for the snapshots that need the entry.
    fn large_set_mut(&mut self, place: EntryRef) -> Option<&mut LargeFields<SetFields>> {
        if let Large::Set(fields) = self.entries.overflow_mut(place)? { Some(fields) } else { None }
    }

    /// Adds a member to the set at `entry_ref`. Returns whether it is new.
    pub fn set_add(
        &mut self,
        place: EntryRef,
        key: &Key<'_>,
        member: &[u8],
        bounds: SetBounds,
    ) -> (EntryRef, bool) {
        let set = self.expect_set(place);
        let form = set.value_encoding;
        let Shape::Packed(packed) = set.shape else {
            return (place, self.add_to_large_set(place, member, bounds));
        };
        let Some(addition) = MemberAddition::from_packed(packed, member) else { return (place, false) };
        let count = packed::count(packed) + 1;
        let form = form.set_encoding_after_adding(&addition.summary_of(count), bounds);
        if builder::must_become_large(&addition, packed.len(), count, form) {
            let fields = builder::large(packed);
            let place = self.make_large(place, key, Large::Set(fields));
            return (place, self.add_to_large_set(place, member, bounds));
        }
        let splice =
            Splice { range: addition.range, replacement: &addition.replacement, count, code: form.code() };
        (self.entries.splice(place, key, &splice), true)
    }

    fn add_to_large_set(&mut self, place: EntryRef, member: &[u8], bounds: SetBounds) -> bool {
        let form = self.expect_set(place).value_encoding;
        let Some(fields) = self.large_set_mut(place) else { return false };
        let is_new = fields.insert_if_new(member);
        let encoding_after_adding =
            form.set_encoding_after_adding(&builder::summary_of(member, fields.len()), bounds);
        if is_new && encoding_after_adding != form {
            self.entries.set_code(place, encoding_after_adding.code());
        }
        is_new
    }

    /// Adds several members to the set at `entry_ref` and returns how many were new. A packed set is rewritten once for
    /// all members.
    pub fn set_add_all<'m>(
        &mut self,
        mut place: EntryRef,
        key: &Key<'_>,
        members: impl ExactSizeIterator<Item = &'m [u8]>,
        bounds: SetBounds,
    ) -> (EntryRef, usize) {
        let set = self.expect_set(place);
        let (Shape::Packed(packed), 2..) = (set.shape, members.len()) else {
            let mut added = 0;
            for member in members {
                let (set, is_new) = self.set_add(place, key, member, bounds);
                place = set;
                added += usize::from(is_new);
            }
            return (place, added);
        };
        let before = set.value_encoding;
        let mut new = SetBuilder::from_packed(packed, before, bounds);
        new.reserve_encoding(members.len());
        let added = members.filter(|member| new.add(member)).count();
        let (shape, form) = new.into_parts();
        match shape {
            OwnedSet::Packed(bytes) if added > 0 => {
                let (range, count) = (COUNT_LEN..self.packed_len(place), packed::count(&bytes));
                let splice = Splice { range, replacement: &bytes[COUNT_LEN..], count, code: form.code() };
                place = self.entries.splice(place, key, &splice);
            }
            OwnedSet::Packed(_) => self.entries.set_code(place, form.code()),
            OwnedSet::Large(fields) => {
                place = self.make_large(place, key, Large::Set(fields));
                self.entries.set_code(place, form.code());
            }
        }
        (place, added)
    }

    fn packed_len(&self, place: EntryRef) -> usize {
        match self.expect_set(place).shape {
            Shape::Packed(packed) => packed.len(),
            Shape::Large(_) => 0,
        }
    }

    /// Removes a member of the set at `entry_ref`. Returns whether the member existed. The caller must delete the key
    /// when the set becomes empty.
    pub fn set_remove(&mut self, place: EntryRef, key: &Key<'_>, member: &[u8]) -> (EntryRef, bool) {
        let set = self.expect_set(place);
        let Shape::Packed(packed) = set.shape else {
            // Look up the member first, because removing a missing member must not pin the set.
            let found = set.contains(member);
            return (place, found && self.large_set_mut(place).is_some_and(|fields| fields.remove(member)));
        };
        let Some(range) = PackedMembers::from_packed(packed).find(member) else { return (place, false) };
        let splice = Splice {
            range,
            replacement: &[],
            count: packed::count(packed) - 1,
            code: set.value_encoding.code(),
        };
        (self.entries.splice(place, key, &splice), true)
    }

    /// Removes the member that the uniform random number `random` selects, and puts it into `member`. The caller must
    /// delete the key when the set becomes empty.
    pub fn set_pop(&mut self, place: EntryRef, key: &Key<'_>, random: u64, member: &mut Vec<u8>) -> EntryRef {
        member.clear();
        let set = self.expect_set(place);
        let Shape::Packed(packed) = set.shape else {
            if let Some(fields) = self.large_set_mut(place) {
                fields.pop(random, member);
            }
            return place;
        };
        let count = packed::count(packed);
        let index = random.checked_rem(count as u64).unwrap_or_default() as usize;
        let Some((range, chosen)) = PackedMembers::from_packed(packed).nth(index) else { return place };
        member.extend_from_slice(&chosen);
        let splice = Splice { range, replacement: &[], count: count - 1, code: set.value_encoding.code() };
        self.entries.splice(place, key, &splice)
    }
}
