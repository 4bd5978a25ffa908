//! Adds and removes members, and changes their scores.

use std::ops::Range;

use smallvec::SmallVec;

use super::{MIN_STORED_SCORE_LEN, ScoredMember, SortedSetFields, SortedSetRef, records};
use crate::entries::{EntryRef, Splice};
use crate::fields::{LargeFields, lookup_key};
use crate::key::Key;
use crate::kind::{ListpackBounds, ValueEncoding};
use crate::large::LargeValue;
use crate::order::ElementBoundary;
use crate::packed::{self, CollectionShape, MAX_PACKED_BYTES, MAX_PACKED_ELEMENTS};
use crate::score::{self, EncodedScore};
use crate::table::Table;

impl LargeFields<SortedSetFields> {
    fn member_at(&self, rank: usize) -> Option<EntryRef> {
        let mut found = None;
        self.entries.secondary_order.visit(
            rank..rank + 1,
            false,
            &self.entries.entry_keys(),
            &mut |reference| {
                found = Some(EntryRef(reference));
                false
            },
        );
        found
    }
}

impl Table {
    /// Returns the sorted set at `entry_ref`, or `None` if the value has another type.
    #[must_use]
    #[inline]
    pub fn sorted_set(&self, entry_ref: EntryRef) -> Option<SortedSetRef<'_>> {
        self.typed_value::<SortedSetRef<'_>>(entry_ref)
    }

    #[inline]
    fn expect_sorted_set(&self, entry_ref: EntryRef) -> SortedSetRef<'_> {
        self.sorted_set(entry_ref).expect("the caller has seen that it is a sorted set")
    }

    /// Returns the members of a large sorted set, for editing. They are pinned first for the snapshots that need the
    /// entry.
    fn large_sorted_set_mut(&mut self, entry_ref: EntryRef) -> Option<&mut LargeFields<SortedSetFields>> {
        if let LargeValue::SortedSet(members) = self.entries.overflow_mut(entry_ref)? {
            Some(members)
        } else {
            None
        }
    }

    /// Updates the score of a member of the sorted set at `entry_ref`. `decide` receives the member's current score, if
    /// it exists, and returns the new score (never NaN), or `None` to change nothing.
    pub fn sorted_set_update(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        name: &[u8],
        bounds: ListpackBounds,
        decide: impl FnOnce(Option<f64>) -> Option<f64>,
    ) -> EntryRef {
        let set = self.expect_sorted_set(entry_ref);
        match set.shape {
            CollectionShape::Packed(packed) => {
                let found = records::find_record(packed, name);
                let before = found.map(|record| record.score);
                let Some(score) = decide(before).filter(|score| before != Some(*score)) else {
                    return self.update_encoding_for(entry_ref, name, bounds);
                };
                let found = found.map(|record| record.start..record.end);
                self.set_in_packed(entry_ref, key, ScoredMember { name, score }, found, bounds)
            }
            CollectionShape::Large(members) => {
                let member = lookup_key(name);
                let found = members.find(&member);
                let before = found.map(|found| members.field_at(found).value);
                let score = before.map(score::decode);
                let Some(new) = decide(score).filter(|new| score != Some(*new)) else {
                    return self.update_encoding_for(entry_ref, name, bounds);
                };
                // Encode a score in eight bytes if the old one took eight, so that its entry need not move.
                let kept = EncodedScore::new(new, before.map_or(MIN_STORED_SCORE_LEN, <[u8]>::len));
                let is_after = name.len() > bounds.max_value_len
                    || members.len() + usize::from(found.is_none()) > bounds.max_entries;
                let encoding_after_adding =
                    is_after && set.value_encoding != ValueEncoding::SkiplistSortedSet;
                if let Some(members) = self.large_sorted_set_mut(entry_ref) {
                    members.set_in_found_entry(&member, found, kept.bytes(), None);
                }
                if encoding_after_adding {
                    self.entries.set_code(entry_ref, ValueEncoding::SkiplistSortedSet.code());
                }
                entry_ref
            }
        }
    }

    /// Updates the encoding for a name that was not added because of the XX option. Valkey checks the lengths of names
    /// before the option.
    fn update_encoding_for(&mut self, entry_ref: EntryRef, name: &[u8], bounds: ListpackBounds) -> EntryRef {
        if name.len() > bounds.max_value_len {
            self.entries.set_code(entry_ref, ValueEncoding::SkiplistSortedSet.code());
        }
        entry_ref
    }

    /// Inserts a member into a packed sorted set, or moves it from its old position.
    fn set_in_packed(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        member: ScoredMember<'_>,
        found: Option<Range<usize>>,
        bounds: ListpackBounds,
    ) -> EntryRef {
        let set = self.expect_sorted_set(entry_ref);
        let CollectionShape::Packed(packed) = set.shape else { return entry_ref };
        let ScoredMember { name, score } = member;
        let count = packed::count(packed) + usize::from(found.is_none());
        let is_after = name.len() > bounds.max_value_len || count > bounds.max_entries;
        // A listpack does not preserve the sign of zero; adding 0.0 makes it positive.
        let form = if is_after { ValueEncoding::SkiplistSortedSet } else { set.value_encoding };
        let score = if form == ValueEncoding::SkiplistSortedSet { score } else { score + 0.0 };
        let mut record = SmallVec::<[u8; 256]>::new();
        records::push_record(&mut record, name, score);
        let old = found.as_ref().map_or(0, Range::len);
        if packed.len() - old + record.len() > MAX_PACKED_BYTES || count > MAX_PACKED_ELEMENTS {
            let place = self.make_sorted_set_large(entry_ref, key);
            return self.sorted_set_update(place, key, name, bounds, |_| Some(score));
        }
        let cut = ElementBoundary::Element { score_bits: score::order_bits(score), name, is_after: false };
        let behind = records::records(packed).find(|other| other.name != name && !other.is_before(&cut));
        let to = behind.map_or(packed.len(), |behind| behind.start);
        // Shift the records between the old and the new position of the member.
        let mut with = SmallVec::<[u8; 512]>::new();
        let range = match found {
            Some(found) if found.end <= to => {
                with.extend_from_slice(&packed[found.end..to]);
                with.extend_from_slice(&record);
                found.start..to
            }
            Some(found) => {
                with.extend_from_slice(&record);
                with.extend_from_slice(&packed[to..found.start]);
                to..found.end
            }
            None => {
                with.extend_from_slice(&record);
                to..to
            }
        };
        let splice = Splice { range, replacement: &with, count, code: form.code() };
        self.entries.splice(entry_ref, key, &splice)
    }

    /// Removes a member of the sorted set at `entry_ref` and returns its score. The caller must delete the key
    /// when the set becomes empty.
    pub fn sorted_set_remove(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        name: &[u8],
    ) -> (EntryRef, Option<f64>) {
        let set = self.expect_sorted_set(entry_ref);
        match set.shape {
            CollectionShape::Packed(packed) => {
                let Some(record) = records::find_record(packed, name) else { return (entry_ref, None) };
                let (range, count) = (record.start..record.end, packed::count(packed) - 1);
                let (score, code) = (record.score, set.value_encoding.code());
                (
                    self.entries.splice(entry_ref, key, &Splice { range, replacement: &[], count, code }),
                    Some(score),
                )
            }
            CollectionShape::Large(members) => {
                let member = lookup_key(name);
                // Look up the member first, because removing a missing member must not pin the set.
                let Some(found) = members.find(&member) else { return (entry_ref, None) };
                let score = ScoredMember::from(members.field_at(found)).score;
                if let Some(members) = self.large_sorted_set_mut(entry_ref) {
                    drop(members.entries.remove(found, &member));
                }
                (entry_ref, Some(score))
            }
        }
    }

    /// Removes the members whose ranks are in a range. `visit` receives each member before it is removed. The caller
    /// must delete the key when the set becomes empty.
    pub fn sorted_set_remove_ranks(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        ranks: Range<usize>,
        visit: &mut dyn FnMut(ScoredMember<'_>),
    ) -> EntryRef {
        let set = self.expect_sorted_set(entry_ref);
        let ranks = ranks.start..ranks.end.min(set.len());
        if ranks.is_empty() {
            return entry_ref;
        }
        if let CollectionShape::Packed(packed) = set.shape {
            let mut range = None;
            for record in records::records(packed).skip(ranks.start).take(ranks.len()) {
                let start = range.map_or(record.start, |(start, _)| start);
                range = Some((start, record.end));
                visit(record.into());
            }
            let Some((start, end)) = range else { return entry_ref };
            let (count, code) = (packed::count(packed) - ranks.len(), set.value_encoding.code());
            return self.entries.splice(
                entry_ref,
                key,
                &Splice { range: start..end, replacement: &[], count, code },
            );
        }
        let Some(members) = self.large_sorted_set_mut(entry_ref) else { return entry_ref };
        let mut name = Vec::new();
        let mut next = members.member_at(ranks.start);
        for _ in ranks.clone() {
            let Some(removed) = next else { break };
            let member = ScoredMember::from(members.field_at(removed));
            visit(member);
            name.clear();
            name.extend_from_slice(member.name);
            drop(members.entries.remove(removed, &lookup_key(&name)));
            // Later members move down to this rank. Prefetch the next one, which this or the next command may remove.
            next = members.member_at(ranks.start);
            if let Some(next) = next {
                members.entries.prefetch_index(lookup_key(members.field_at(next).name).hash());
            }
        }
        entry_ref
    }

    /// Converts a packed sorted set into a large one.
    fn make_sorted_set_large(&mut self, entry_ref: EntryRef, key: &Key<'_>) -> EntryRef {
        let mut members = Box::<LargeFields<SortedSetFields>>::default();
        self.expect_sorted_set(entry_ref).for_each(&mut |member| {
            members.set(member.name, EncodedScore::new(member.score, MIN_STORED_SCORE_LEN).bytes(), None);
        });
        self.make_large(entry_ref, key, LargeValue::SortedSet(members))
    }
}
