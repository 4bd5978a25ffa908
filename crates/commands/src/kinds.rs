//! The operations that a kind offers to commands about values of any kind: DEBUG, SORT, the union of sorted sets
//! with sets.
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

/// A value of some kind, as seen by commands that take any kind.
pub(crate) trait AnyValue<'a> {
    /// Redis's number of the type, which DEBUG DIGEST adds before the value.
    fn type_number(&self) -> u32;

    /// Adds what it holds.
    fn digest(&self, digest: &mut Digest);

    /// How many elements it has; `None` if it is of a kind that Redis keeps in no listpack or table.
    fn elements(&self) -> Option<usize> {
        None
    }

    /// The value as SORT reads it, if it can be sorted.
    fn sortable(&self) -> Option<&dyn Sortable> {
        None
    }

    /// The value as ZUNION and its kin read it, if it has members.
    fn scored(&self) -> Option<&dyn ScoredMembers<'a>> {
        None
    }

    /// The value's text, or that of a field that lives at `now`, for a pattern of SORT that names it.
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

    /// The elements in this range; with `reversed`, in reverse order if they have an order.
    fn load(&self, range: Range<usize>, reversed: bool) -> Vec<Bytes>;
}

/// A member's name, which most often lies in its set as it is.
pub(crate) type Name<'a> = Cow<'a, [u8]>;

/// Members, each with a score.
pub(crate) trait ScoredMembers<'a> {
    /// How many there are.
    fn len(&self) -> usize;

    /// Prefetches the memory that lookups of names with these hashes read.
    fn touch(&self, hashes: &[u64]);

    /// The score of the member of that name, whose hash is this.
    fn score(&self, name: &[u8], hash: u64) -> Option<f64>;

    /// Visits members and their scores until `visit` returns false.
    fn visit(&self, visit: &mut dyn FnMut(Name<'a>, f64) -> bool);
}

/// The value's implementation for its kind.
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
