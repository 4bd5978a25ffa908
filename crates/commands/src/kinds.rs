//! What commands about values of any kind ask of each: DEBUG, SORT, the union of sorted sets with sets.
//!
//! A kind answers beside its own commands, in its `value.rs`; here is the list of them.

use std::borrow::Cow;
use std::ops::Range;

use clock::Millis;
use keyspace::Value;
use smallvec::SmallVec;

use crate::digest::Digest;

/// Most elements are short.
pub(crate) type Bytes = SmallVec<[u8; 24]>;

/// A value of some kind, as commands see it that take any.
pub(crate) trait AnyValue<'a> {
    /// Redis's number of the type, which DEBUG DIGEST adds before the value.
    fn type_number(&self) -> u32;

    /// Adds what it holds.
    fn digest(&self, digest: &mut Digest);

    /// How many elements it has; `None` if it is of a kind that Redis keeps in no listpack or table.
    fn elements(&self) -> Option<usize> {
        None
    }

    /// What SORT takes of it.
    fn sortable(&self) -> Option<&dyn Sortable> {
        None
    }

    /// What ZUNION and its kin take of it.
    fn scored(&self) -> Option<&dyn ScoredMembers<'a>> {
        None
    }

    /// It, or that field of it if the field lives at `now`, where a pattern of SORT names it.
    fn text(&self, _field: Option<&[u8]>, _now: Millis) -> Option<Bytes> {
        None
    }
}

/// A value whose elements can be sorted.
pub(crate) trait Sortable {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether they have an order of their own.
    fn is_ordered(&self) -> bool;

    /// Those at these places, the last first if they have an order and that is to be `reversed`.
    fn load(&self, range: Range<usize>, reversed: bool) -> Vec<Bytes>;
}

/// A member's name, which most often lies in its set as it is.
pub(crate) type Name<'a> = Cow<'a, [u8]>;

/// Members, each with a score.
pub(crate) trait ScoredMembers<'a> {
    /// How many there are.
    fn len(&self) -> usize;

    /// Asks the processor for what looking for names with these hashes needs.
    fn touch(&self, hashes: &[u64]);

    /// The score of the member of that name, whose hash is this.
    fn score(&self, name: &[u8], hash: u64) -> Option<f64>;

    /// Visits members and their scores until `visit` says no.
    fn visit(&self, visit: &mut dyn FnMut(Name<'a>, f64) -> bool);
}

/// A value as its kind has it.
pub(crate) fn any<'v, 'a>(value: &'v Value<'a>) -> &'v dyn AnyValue<'a> {
    match value {
        Value::String(string) => string,
        Value::List(list) => list,
        Value::Set(set) => set,
        Value::SortedSet(set) => set,
        Value::Hash(hash) => hash,
        Value::Stream(stream) => stream,
    }
}
