//! Sorted sets.
//!
//! A small sorted set is packed in order ([`records`]). In a larger one, each member is an entry of the set's own store
//! ([`crate::fields`]) with the score as its value, and an additional index sorts the entries ([`crate::order`]). A
//! snapshot captures the store, not the index. OBJECT ENCODING follows Redis's thresholds, independently of this
//! representation.
mod editing;
mod pinned;
pub(crate) mod records;

use std::ops::Range;

use crate::entries::EntryRef;
use crate::entry::TypeCode;
use crate::fields::{Field, FieldKind, FieldsPart, LargeFields};
use crate::kind::{Kind, ValueEncoding};
use crate::large::{ELEMENT_PAGE_LEN_FACTOR, LargeValue};
use crate::order::{ElementBoundary, Tree};
use crate::overflow::{OverflowShape, OverflowShapeMut, OverflowValue};
use crate::packed::{self, CollectionShape, PackedBuilder, PackedValue};
use crate::score::{self, EncodedScore};
use crate::value::PartElements;

pub use pinned::{PinnedMembers, RankRange};

/// Minimum length of a score in a store. Integral scores take four bytes and others eight, so that most updates do not
/// change the size of the entry.
const MIN_STORED_SCORE_LEN: usize = 4;

/// A member and its score, which is never NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoredMember<'a> {
    /// The member's name.
    pub name: &'a [u8],
    /// The member's score.
    pub score: f64,
}

/// A boundary in the member order: between two members or at an end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OrderBoundary<'a> {
    /// The boundary before all members with this score.
    BeforeScore(f64),
    /// The boundary after all members with this score.
    AfterScore(f64),
    /// The boundary before the member with this name; the member need not exist. Only for sets whose members all have
    /// equal scores.
    BeforeName(&'a [u8]),
    /// The boundary after the member with this name; the member need not exist. Only for sets whose members all have
    /// equal scores.
    AfterName(&'a [u8]),
}

impl<'a> OrderBoundary<'a> {
    fn to_element_boundary(self) -> ElementBoundary<'a> {
        match self {
            Self::BeforeScore(score) => {
                ElementBoundary::Score { score_bits: score::order_bits(score), is_after: false }
            }
            Self::AfterScore(score) => {
                ElementBoundary::Score { score_bits: score::order_bits(score), is_after: true }
            }
            Self::BeforeName(name) => ElementBoundary::Name { name, is_after: false },
            Self::AfterName(name) => ElementBoundary::Name { name, is_after: true },
        }
    }
}

/// Defines sorted sets as collections of fields: each member is a name with a score.
#[derive(Debug)]
pub(crate) struct SortedSetFields;

impl FieldKind for SortedSetFields {
    type Overflow = ScoreBytes;

    fn elements(part: FieldsPart<'_>) -> PartElements<'_> {
        PartElements::SortedSet(SortedSetPart(part))
    }

    fn into_large(fields: Box<LargeFields<Self>>) -> LargeValue {
        LargeValue::SortedSet(fields)
    }

    fn visit_packed(packed: &PackedValue<'_>, visit: &mut dyn FnMut(Field<'_>)) {
        packed.scored_members().for_each(|member| {
            let kept = EncodedScore::new(member.score, MIN_STORED_SCORE_LEN);
            visit(Field { name: member.name, value: kept.bytes(), expiry: None });
        });
    }
}

/// The score of a member whose name is too long for a page. Stores with this value type sort their entries by score.
#[derive(Debug)]
pub(crate) struct ScoreBytes(Vec<u8>);

impl From<Vec<u8>> for ScoreBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<ScoreBytes> for LargeValue {
    fn from(scores: ScoreBytes) -> Self {
        Self::Bytes(scores.0)
    }
}

impl OverflowValue for ScoreBytes {
    const PAGE_LEN_FACTOR: u64 = ELEMENT_PAGE_LEN_FACTOR;
    type SecondaryOrder = Tree;

    fn may_outgrow_packed(_: TypeCode) -> bool {
        false
    }

    fn is_walked_in_parts(&self) -> bool {
        false
    }

    fn shape(&self) -> OverflowShape<'_> {
        OverflowShape::Flat(&self.0)
    }

    fn shape_mut(&mut self) -> OverflowShapeMut<'_> {
        OverflowShapeMut::Flat(&mut self.0)
    }

    fn copy(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<'a> From<Field<'a>> for ScoredMember<'a> {
    #[inline]
    fn from(field: Field<'a>) -> Self {
        Self { name: field.name, score: score::decode(field.value) }
    }
}

impl<'a> From<records::MemberRecord<'a>> for ScoredMember<'a> {
    #[inline]
    fn from(record: records::MemberRecord<'a>) -> Self {
        Self { name: record.name, score: record.score }
    }
}

/// A read-only view of a sorted set, borrowed from its slot.
#[derive(Debug, Clone, Copy)]
pub struct SortedSetRef<'a> {
    pub(crate) shape: CollectionShape<'a, LargeFields<SortedSetFields>>,
    pub(crate) value_encoding: ValueEncoding,
}

impl<'a> SortedSetRef<'a> {
    /// Returns the number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.len()
    }

    /// Returns whether the set has no members. Only a newly created sorted set can be empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the name that OBJECT ENCODING reports.
    #[must_use]
    pub fn encoding(&self) -> &'static str {
        if self.value_encoding == ValueEncoding::SkiplistSortedSet { "skiplist" } else { "listpack" }
    }

    /// Returns the score of a member, if it exists.
    #[must_use]
    #[inline]
    pub fn score(&self, name: &[u8]) -> Option<f64> {
        match self.shape {
            CollectionShape::Packed(packed) => records::find_record(packed, name).map(|record| record.score),
            CollectionShape::Large(members) => members.get(name).map(|field| score::decode(field.value)),
        }
    }

    /// Like [`Self::score`], for callers that already have the name's hash ([`crate::Keyspace::hash_element_name`]).
    #[must_use]
    #[inline]
    pub fn score_with_hash(&self, name: &[u8], hash: u64) -> Option<f64> {
        match self.shape {
            CollectionShape::Packed(packed) => records::find_record(packed, name).map(|record| record.score),
            CollectionShape::Large(members) => {
                members.get_with_hash(name, hash).map(|field| score::decode(field.value))
            }
        }
    }

    /// Prefetches the members with these hashes if the set is too large for the L1 and L2 caches.
    pub fn prefetch(&self, hashes: impl Iterator<Item = u64> + Clone) {
        if let CollectionShape::Large(members) = self.shape {
            members.prefetch(hashes);
        }
    }

    /// Returns the ascending rank of a member, and its score.
    #[must_use]
    pub fn rank(&self, name: &[u8]) -> Option<(usize, f64)> {
        match self.shape {
            CollectionShape::Packed(packed) => {
                let mut ranked = records::records(packed).enumerate();
                let (rank, record) = ranked.find(|(_, record)| record.name == name)?;
                Some((rank, record.score))
            }
            CollectionShape::Large(members) => {
                let score = self.score(name)?;
                let cut =
                    ElementBoundary::Element { score_bits: score::order_bits(score), name, is_after: false };
                Some((members.entries.secondary_order.rank(&cut, &members.entries.entry_keys()), score))
            }
        }
    }

    /// Returns the number of members before this boundary.
    #[must_use]
    pub fn count_before(&self, boundary: OrderBoundary<'_>) -> usize {
        let cut = boundary.to_element_boundary();
        match self.shape {
            CollectionShape::Packed(packed) => {
                records::records(packed).take_while(|record| record.is_before(&cut)).count()
            }
            CollectionShape::Large(members) => {
                members.entries.secondary_order.rank(&cut, &members.entries.entry_keys())
            }
        }
    }

    /// Returns the member with this ascending rank.
    #[must_use]
    pub fn member_at_rank(&self, rank: usize) -> Option<ScoredMember<'a>> {
        match self.shape {
            CollectionShape::Packed(packed) => records::records(packed).nth(rank).map(ScoredMember::from),
            CollectionShape::Large(members) => {
                let (entries, mut found) = (&members.entries, None);
                entries.secondary_order.visit(
                    rank..rank.saturating_add(1),
                    false,
                    &entries.entry_keys(),
                    &mut |reference| {
                        found = Some(EntryRef(reference));
                        false
                    },
                );
                found.map(|place| members.field_at(place).into())
            }
        }
    }

    /// Visits the members whose ranks are in a range, ascending or descending, until `visit` returns false.
    pub fn visit(
        &self,
        ranks: Range<usize>,
        reversed: bool,
        visit: &mut dyn FnMut(ScoredMember<'a>) -> bool,
    ) {
        let (start, count) = (ranks.start, ranks.end.saturating_sub(ranks.start));
        match self.shape {
            CollectionShape::Packed(packed) if reversed => {
                let skipped = packed::count(packed).saturating_sub(ranks.end);
                let some = records::records_reversed(packed).skip(skipped);
                let _ = some.take(count).all(|record| visit(record.into()));
            }
            CollectionShape::Packed(packed) => {
                let some = records::records(packed).skip(start);
                let _ = some.take(count).all(|record| visit(record.into()));
            }
            CollectionShape::Large(members) => {
                let entries = &members.entries;
                entries.secondary_order.visit(ranks, reversed, &entries.entry_keys(), &mut |reference| {
                    visit(members.field_at(EntryRef(reference)).into())
                });
            }
        }
    }

    /// Visits all members in arbitrary order.
    pub fn for_each(&self, visit: &mut dyn FnMut(ScoredMember<'_>)) {
        match self.shape {
            CollectionShape::Packed(packed) => {
                records::records(packed).for_each(|record| visit(record.into()));
            }
            CollectionShape::Large(members) => members.for_each(&mut |field| visit(field.into())),
        }
    }

    /// Visits about `count` members from position `from`, like [`crate::Table::scan`]; a packed sorted set is visited
    /// completely.
    pub fn scan(&self, from: u64, count: usize, visit: &mut dyn FnMut(ScoredMember<'_>)) -> Option<u64> {
        match self.shape {
            CollectionShape::Packed(_) => {
                self.for_each(visit);
                None
            }
            CollectionShape::Large(members) => members.scan(from, count, &mut |field| visit(field.into())),
        }
    }
}

/// Some members of a large sorted set, which a snapshot visits together and in arbitrary order.
#[derive(Debug, Clone, Copy)]
pub struct SortedSetPart<'a>(FieldsPart<'a>);

impl SortedSetPart<'_> {
    /// Visits the members of this part, which may be none.
    pub fn for_each(&self, visit: &mut dyn FnMut(ScoredMember<'_>)) {
        self.0.for_each(&mut |field| visit(field.into()));
    }
}

impl PackedBuilder {
    /// Appends a member to the sorted set being built. Unless members are added in order,
    /// [`PackedBuilder::sort_scored_members`] must be called at the end.
    pub fn push_scored_member(&mut self, name: &[u8], score: f64) {
        debug_assert!(!score.is_nan());
        records::push_record(&mut self.bytes, name, score);
        let about = &mut self.summary;
        about.count += 1;
        about.max_element_len = about.max_element_len.max(name.len() as u32);
        packed::set_count(&mut self.bytes, about.count as usize);
    }

    /// Sorts the members of a sorted set whose members were not added in order.
    pub fn sort_scored_members(&mut self) {
        let mut members: Vec<_> =
            records::records(&self.bytes).map(|record| (score::order_bits(record.score), record)).collect();
        let is_before = |one: &(u64, records::MemberRecord<'_>), other: &(u64, records::MemberRecord<'_>)| {
            (one.0, one.1.name) <= (other.0, other.1.name)
        };
        if members.is_sorted_by(is_before) {
            return;
        }
        members.sort_unstable_by(|one, other| (one.0, one.1.name).cmp(&(other.0, other.1.name)));
        let mut order_bits = Vec::with_capacity(self.bytes.len());
        order_bits.extend_from_slice(&self.bytes[..packed::COUNT_LEN]);
        members
            .iter()
            .for_each(|(_, record)| order_bits.extend_from_slice(&self.bytes[record.start..record.end]));
        self.bytes = order_bits;
    }
}

impl<'a> PackedValue<'a> {
    /// Returns the members of a packed sorted set, or of one part of it.
    pub fn scored_members(&self) -> impl Iterator<Item = ScoredMember<'a>> + Clone + use<'a> {
        debug_assert_eq!(self.kind(), Kind::SortedSet);
        records::records(self.bytes()).map(ScoredMember::from)
    }
}
