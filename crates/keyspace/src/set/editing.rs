//! Adds and removes members.

use super::builder::{self, OwnedSet, SetBuilder};
use super::members::{MemberAddition, PackedMembers};
use super::{SetFields, SetRef};
use crate::entries::{EntryRef, Splice};
use crate::fields::LargeFields;
use crate::key::Key;
use crate::kind::SetBounds;
use crate::large::LargeValue;
use crate::packed::{self, COUNT_LEN, CollectionShape};
use crate::table::Table;

impl Table {
    /// Returns the set at `entry_ref`, or `None` if the value has another type.
    #[must_use]
    #[inline]
    pub fn set(&self, entry_ref: EntryRef) -> Option<SetRef<'_>> {
        self.typed_value::<SetRef<'_>>(entry_ref)
    }

    fn expect_set(&self, entry_ref: EntryRef) -> SetRef<'_> {
        self.set(entry_ref).expect("the caller has seen that it is a set")
    }

    /// Returns the members of a large set, for editing. They are pinned first for the snapshots that need the entry.
    fn large_set_mut(&mut self, entry_ref: EntryRef) -> Option<&mut LargeFields<SetFields>> {
        if let LargeValue::Set(fields) = self.entries.overflow_mut(entry_ref)? { Some(fields) } else { None }
    }

    /// Adds a member to the set at `entry_ref`. Returns whether it is new.
    pub fn set_add(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        member: &[u8],
        bounds: SetBounds,
    ) -> (EntryRef, bool) {
        let set = self.expect_set(entry_ref);
        let form = set.value_encoding;
        let CollectionShape::Packed(packed) = set.shape else {
            return (entry_ref, self.add_to_large_set(entry_ref, member, bounds));
        };
        let Some(addition) = MemberAddition::from_packed(packed, member) else { return (entry_ref, false) };
        let count = packed::count(packed) + 1;
        let form = form.set_encoding_after_adding(&addition.summary_of(count), bounds);
        if builder::must_become_large(&addition, packed.len(), count, form) {
            let fields = builder::large_from_packed(packed);
            let place = self.make_large(entry_ref, key, LargeValue::Set(fields));
            return (place, self.add_to_large_set(place, member, bounds));
        }
        let splice =
            Splice { range: addition.range, replacement: &addition.replacement, count, code: form.code() };
        (self.entries.splice(entry_ref, key, &splice), true)
    }

    fn add_to_large_set(&mut self, entry_ref: EntryRef, member: &[u8], bounds: SetBounds) -> bool {
        let form = self.expect_set(entry_ref).value_encoding;
        let Some(fields) = self.large_set_mut(entry_ref) else { return false };
        let is_new = fields.insert_if_new(member);
        let encoding_after_adding =
            form.set_encoding_after_adding(&builder::summary_of(member, fields.len()), bounds);
        if is_new && encoding_after_adding != form {
            self.entries.set_code(entry_ref, encoding_after_adding.code());
        }
        is_new
    }

    /// Adds several members to the set at `entry_ref` and returns how many were new. A packed set is rewritten once for
    /// all members.
    pub fn set_add_all<'m>(
        &mut self,
        mut entry_ref: EntryRef,
        key: &Key<'_>,
        members: impl ExactSizeIterator<Item = &'m [u8]>,
        bounds: SetBounds,
    ) -> (EntryRef, usize) {
        let set = self.expect_set(entry_ref);
        let (CollectionShape::Packed(packed), 2..) = (set.shape, members.len()) else {
            let mut added = 0;
            for member in members {
                let (set, is_new) = self.set_add(entry_ref, key, member, bounds);
                entry_ref = set;
                added += usize::from(is_new);
            }
            return (entry_ref, added);
        };
        let before = set.value_encoding;
        let mut new = SetBuilder::from_packed(packed, before, bounds);
        new.reserve_encoding(members.len());
        let added = members.filter(|member| new.add(member)).count();
        let (shape, form) = new.into_parts();
        match shape {
            OwnedSet::Packed(bytes) if added > 0 => {
                let (range, count) = (COUNT_LEN..self.packed_len(entry_ref), packed::count(&bytes));
                let splice = Splice { range, replacement: &bytes[COUNT_LEN..], count, code: form.code() };
                entry_ref = self.entries.splice(entry_ref, key, &splice);
            }
            OwnedSet::Packed(_) => self.entries.set_code(entry_ref, form.code()),
            OwnedSet::Large(fields) => {
                entry_ref = self.make_large(entry_ref, key, LargeValue::Set(fields));
                self.entries.set_code(entry_ref, form.code());
            }
        }
        (entry_ref, added)
    }

    fn packed_len(&self, entry_ref: EntryRef) -> usize {
        match self.expect_set(entry_ref).shape {
            CollectionShape::Packed(packed) => packed.len(),
            CollectionShape::Large(_) => 0,
        }
    }

    /// Removes a member of the set at `entry_ref`. Returns whether the member existed. The caller must delete the key
    /// when the set becomes empty.
    pub fn set_remove(&mut self, entry_ref: EntryRef, key: &Key<'_>, member: &[u8]) -> (EntryRef, bool) {
        let set = self.expect_set(entry_ref);
        let CollectionShape::Packed(packed) = set.shape else {
            // Look up the member first, because removing a missing member must not pin the set.
            let found = set.contains(member);
            return (
                entry_ref,
                found && self.large_set_mut(entry_ref).is_some_and(|fields| fields.remove(member)),
            );
        };
        let Some(range) = PackedMembers::from_packed(packed).find(member) else { return (entry_ref, false) };
        let splice = Splice {
            range,
            replacement: &[],
            count: packed::count(packed) - 1,
            code: set.value_encoding.code(),
        };
        (self.entries.splice(entry_ref, key, &splice), true)
    }

    /// Removes the member that the uniform random number `random` selects, and puts it into `member`. The caller must
    /// delete the key when the set becomes empty.
    pub fn set_pop(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        random: u64,
        member: &mut Vec<u8>,
    ) -> EntryRef {
        member.clear();
        let set = self.expect_set(entry_ref);
        let CollectionShape::Packed(packed) = set.shape else {
            if let Some(fields) = self.large_set_mut(entry_ref) {
                fields.pop(random, member);
            }
            return entry_ref;
        };
        let count = packed::count(packed);
        let index = random.checked_rem(count as u64).unwrap_or_default() as usize;
        let Some((range, chosen)) = PackedMembers::from_packed(packed).nth(index) else { return entry_ref };
        member.extend_from_slice(&chosen);
        let splice = Splice { range, replacement: &[], count: count - 1, code: set.value_encoding.code() };
        self.entries.splice(entry_ref, key, &splice)
    }
}
