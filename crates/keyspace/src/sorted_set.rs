//! Sorted sets.
//!
//! A sorted set is packed in its order ([`records`]) while it has few members and bytes, in its entry or outside. Past
//! that its members are the entries of a store of their own ([`crate::fields`]), the score of each its value; that
//! store keeps them in order beside their hashes ([`crate::order`]). A snapshot captures the store and not the order.
//! Users see only the name that OBJECT ENCODING gives, and that follows Redis's thresholds, not the shape.
mod editing;
mod pinned;
pub(crate) mod records;

use std::ops::Range;

use crate::entries::Place;
use crate::entry::Code;
use crate::fields::{Field, Fields, FieldsPart, Of};
use crate::kind::{Form, Kind};
use crate::large::{Large, SQUARE_OF_ELEMENTS};
use crate::order::{Cut, Tree};
use crate::overflow::{Outside, Shape as OutsideShape, ShapeMut};
use crate::packed::{self, Builder, Packed, Shape};
use crate::score::{self, Kept};
use crate::value::Elements;

pub use pinned::PinnedMembers;

/// In a store, scores that are whole take four bytes and others eight: most changes keep the size.
const LEAST_KEPT: usize = 4;

/// A member and its score, which is never NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scored<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its score.
    pub score: f64,
}

/// A place in the order of the members, between two of them or at an end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Between<'a> {
    /// Before all members with this score.
    BeforeScore(f64),
    /// Behind all members with this score.
    AfterScore(f64),
    /// Before the member of this name, or where it would be. Of a set whose members have the same score.
    BeforeName(&'a [u8]),
    /// Behind it.
    AfterName(&'a [u8]),
}

impl<'a> Between<'a> {
    fn cut(self) -> Cut<'a> {
        match self {
            Self::BeforeScore(score) => Cut::Score { bits: score::ordered(score), after: false },
            Self::AfterScore(score) => Cut::Score { bits: score::ordered(score), after: true },
            Self::BeforeName(name) => Cut::Name { name, after: false },
            Self::AfterName(name) => Cut::Name { name, after: true },
        }
    }
}

/// The members of a sorted set: each has a score.
#[derive(Debug)]
pub(crate) struct OfSortedSet;

impl Of for OfSortedSet {
    type Outside = Scores;

    fn elements(part: FieldsPart<'_>) -> Elements<'_> {
        Elements::SortedSet(ScoredPart(part))
    }

    fn large(fields: Box<Fields<Self>>) -> Large {
        Large::SortedSet(fields)
    }

    fn unpack(packed: &Packed<'_>, visit: &mut dyn FnMut(Field<'_>)) {
        packed.scored().for_each(|member| {
            let kept = Kept::new(member.score, LEAST_KEPT);
            visit(Field { name: member.name, value: kept.bytes(), expiry: None });
        });
    }
}

/// The score of a member whose name is too long for a page. Entries with such values are kept in order.
#[derive(Debug)]
pub(crate) struct Scores(Vec<u8>);

impl From<Vec<u8>> for Scores {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<Scores> for Large {
    fn from(scores: Scores) -> Self {
        Self::Bytes(scores.0)
    }
}

impl Outside for Scores {
    const SQUARE: u64 = SQUARE_OF_ELEMENTS;
    type Order = Tree;

    fn may_grow(_: Code) -> bool {
        false
    }

    fn waits(&self) -> bool {
        false
    }

    fn shape(&self) -> OutsideShape<'_> {
        OutsideShape::Flat(&self.0)
    }

    fn shape_mut(&mut self) -> ShapeMut<'_> {
        ShapeMut::Flat(&mut self.0)
    }

    fn copy(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<'a> From<Field<'a>> for Scored<'a> {
    #[inline]
    fn from(field: Field<'a>) -> Self {
        Self { name: field.name, score: score::read(field.value) }
    }
}

impl<'a> From<records::Record<'a>> for Scored<'a> {
    #[inline]
    fn from(record: records::Record<'a>) -> Self {
        Self { name: record.member, score: record.score }
    }
}

/// A sorted set as it is read, borrowed from its slot.
#[derive(Debug, Clone, Copy)]
pub struct SortedSetRef<'a> {
    pub(crate) shape: Shape<'a, Fields<OfSortedSet>>,
    pub(crate) form: Form,
}

impl<'a> SortedSetRef<'a> {
    /// How many members there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.len()
    }

    /// Only a sorted set that was just made has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name that OBJECT ENCODING gives it.
    #[must_use]
    pub fn encoding(&self) -> &'static str {
        if self.form == Form::SkiplistSortedSet { "skiplist" } else { "listpack" }
    }

    /// The score of this member.
    #[must_use]
    #[inline]
    pub fn score(&self, name: &[u8]) -> Option<f64> {
        match self.shape {
            Shape::Packed(packed) => records::find(packed, name).map(|record| record.score),
            Shape::Large(members) => members.get(name).map(|field| score::read(field.value)),
        }
    }

    /// The same, for a caller that knows the name's hash ([`crate::Keyspace::hash_part`]).
    #[must_use]
    #[inline]
    pub fn score_hashed(&self, name: &[u8], hash: u64) -> Option<f64> {
        match self.shape {
            Shape::Packed(packed) => records::find(packed, name).map(|record| record.score),
            Shape::Large(members) => members.get_hashed(name, hash).map(|field| score::read(field.value)),
        }
    }

    /// Asks the processor for the members with these hashes, if there are so many members that they may be far away.
    pub fn touch(&self, hashes: impl Iterator<Item = u64> + Clone) {
        if let Shape::Large(members) = self.shape {
            members.touch(hashes);
        }
    }

    /// How many members stand before this one, and its score.
    #[must_use]
    pub fn rank(&self, name: &[u8]) -> Option<(usize, f64)> {
        match self.shape {
            Shape::Packed(packed) => {
                let mut ranked = records::records(packed).enumerate();
                let (rank, record) = ranked.find(|(_, record)| record.member == name)?;
                Some((rank, record.score))
            }
            Shape::Large(members) => {
                let score = self.score(name)?;
                let cut = Cut::Element { bits: score::ordered(score), name, after: false };
                Some((members.entries.order.rank(&cut, &members.entries.names()), score))
            }
        }
    }

    /// How many members stand before this place.
    #[must_use]
    pub fn count_before(&self, place: Between<'_>) -> usize {
        let cut = place.cut();
        match self.shape {
            Shape::Packed(packed) => {
                records::records(packed).take_while(|record| record.is_before(&cut)).count()
            }
            Shape::Large(members) => members.entries.order.rank(&cut, &members.entries.names()),
        }
    }

    /// The member with so many before it.
    #[must_use]
    pub fn at(&self, rank: usize) -> Option<Scored<'a>> {
        match self.shape {
            Shape::Packed(packed) => records::records(packed).nth(rank).map(Scored::from),
            Shape::Large(members) => {
                let (entries, mut found) = (&members.entries, None);
                entries.order.visit(
                    rank..rank.saturating_add(1),
                    false,
                    &entries.names(),
                    &mut |reference| {
                        found = Some(Place(reference));
                        false
                    },
                );
                found.map(|place| members.at(place).into())
            }
        }
    }

    /// Visits the members with these ranks, in order or from the last to the first, until `visit` says no.
    pub fn visit(&self, ranks: Range<usize>, reversed: bool, visit: &mut dyn FnMut(Scored<'a>) -> bool) {
        let (start, count) = (ranks.start, ranks.end.saturating_sub(ranks.start));
        match self.shape {
            Shape::Packed(packed) if reversed => {
                let skipped = packed::count(packed).saturating_sub(ranks.end);
                let some = records::reversed(packed).skip(skipped);
                let _ = some.take(count).all(|record| visit(record.into()));
            }
            Shape::Packed(packed) => {
                let some = records::records(packed).skip(start);
                let _ = some.take(count).all(|record| visit(record.into()));
            }
            Shape::Large(members) => {
                let entries = &members.entries;
                entries.order.visit(ranks, reversed, &entries.names(), &mut |reference| {
                    visit(members.at(Place(reference)).into())
                });
            }
        }
    }

    /// Visits all members, in any order.
    pub fn for_each(&self, visit: &mut dyn FnMut(Scored<'_>)) {
        match self.shape {
            Shape::Packed(packed) => records::records(packed).for_each(|record| visit(record.into())),
            Shape::Large(members) => members.for_each(&mut |field| visit(field.into())),
        }
    }

    /// Visits about `count` members from position `from` on, as [`crate::Table::scan`] does; a packed sorted set is
    /// visited whole.
    pub fn scan(&self, from: u64, count: usize, visit: &mut dyn FnMut(Scored<'_>)) -> Option<u64> {
        match self.shape {
            Shape::Packed(_) => {
                self.for_each(visit);
                None
            }
            Shape::Large(members) => members.scan(from, count, &mut |field| visit(field.into())),
        }
    }
}

/// Some members of a large sorted set, as a snapshot's walk comes to them: in any order.
#[derive(Debug, Clone, Copy)]
pub struct ScoredPart<'a>(FieldsPart<'a>);

impl ScoredPart<'_> {
    /// Visits the members of this part, which may be none.
    pub fn for_each(&self, visit: &mut dyn FnMut(Scored<'_>)) {
        self.0.for_each(&mut |field| visit(field.into()));
    }
}

impl Builder {
    /// Adds a member that is not there yet to a sorted set. A caller that does not add them in order calls
    /// [`Builder::order_scored`] in the end.
    pub fn push_scored(&mut self, name: &[u8], score: f64) {
        debug_assert!(!score.is_nan());
        records::push(&mut self.bytes, name, score);
        let about = &mut self.about;
        about.count += 1;
        about.longest = about.longest.max(name.len() as u32);
        packed::set_count(&mut self.bytes, about.count as usize);
    }

    /// Brings the members of a sorted set into their order.
    pub fn order_scored(&mut self) {
        let mut members: Vec<_> =
            records::records(&self.bytes).map(|record| (score::ordered(record.score), record)).collect();
        let is_before = |one: &(u64, records::Record<'_>), other: &(u64, records::Record<'_>)| {
            (one.0, one.1.member) <= (other.0, other.1.member)
        };
        if members.is_sorted_by(is_before) {
            return;
        }
        members.sort_unstable_by(|one, other| (one.0, one.1.member).cmp(&(other.0, other.1.member)));
        let mut ordered = Vec::with_capacity(self.bytes.len());
        ordered.extend_from_slice(&self.bytes[..packed::COUNT]);
        members
            .iter()
            .for_each(|(_, record)| ordered.extend_from_slice(&self.bytes[record.start..record.end]));
        self.bytes = ordered;
    }
}

impl<'a> Packed<'a> {
    /// The members of a packed sorted set, or of a part of one.
    pub fn scored(&self) -> impl Iterator<Item = Scored<'a>> + Clone + use<'a> {
        debug_assert_eq!(self.kind(), Kind::SortedSet);
        records::records(self.bytes()).map(Scored::from)
    }
}
