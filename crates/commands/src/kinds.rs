//! Operations of a data type for commands that accept any type: DEBUG, SORT, and unions of sorted sets with sets.
//!
//! Each type implements the traits in its own `value.rs`; this file declares them.

use std::borrow::Cow;
use std::ops::Range;

use clock::Millis;
use keyspace::Value;
use smallvec::SmallVec;

use crate::digest::Digest;

/// An element's bytes. The inline capacity fits most elements.
pub(crate) type ElementBytes = SmallVec<[u8; 24]>;

/// A value of any type.
pub(crate) trait AnyValue<'a> {
    /// The type's number in Redis, which DEBUG DIGEST hashes before the content.
    fn type_number(&self) -> u32;

    /// Adds the content of the value to the digest.
    fn digest(&self, digest: &mut Digest);

    /// The number of elements, or `None` for types that Redis stores neither as a listpack nor as a table.
    fn element_count(&self) -> Option<usize> {
        None
    }

    /// The value as an input of SORT, or `None` for types that cannot be sorted.
    fn as_sortable(&self) -> Option<&dyn Sortable> {
        None
    }

    /// The value as an input of ZUNION and similar commands, or `None` for types without members.
    fn as_scored_members(&self) -> Option<&dyn ScoredMembers<'a>> {
        None
    }

    /// The value that a BY or GET pattern of SORT selects: the string itself, or the value of a hash field that has not
    /// expired at `now`.
    fn string_for_sort(&self, _field: Option<&[u8]>, _now: Millis) -> Option<ElementBytes> {
        None
    }
}

/// A value that SORT can sort.
pub(crate) trait Sortable {
    /// The number of elements.
    fn len(&self) -> usize;

    /// Whether the elements have a natural order, as in a list or sorted set.
    fn is_ordered(&self) -> bool;

    /// Returns the elements in this range of indexes. `reversed` reverses the natural order, if there is one.
    fn load_elements(&self, range: Range<usize>, reversed: bool) -> Vec<ElementBytes>;
}

/// A member's name, borrowed from the set wherever possible.
pub(crate) type ElementName<'a> = Cow<'a, [u8]>;

/// A collection of members with scores.
pub(crate) trait ScoredMembers<'a> {
    /// The number of members.
    fn len(&self) -> usize;

    /// Prefetches the memory for lookups of members with these hashes.
    fn prefetch(&self, hashes: &[u64]);

    /// The score of a member; `hash` must be the hash of `name`.
    fn score(&self, name: &[u8], hash: u64) -> Option<f64>;

    /// Visits members and their scores until `visit` returns false.
    fn visit_members(&self, visit: &mut dyn FnMut(ElementName<'a>, f64) -> bool);
}

/// Returns the implementation for the value's type.
pub(crate) fn as_any_value<'v, 'a>(value: &'v Value<'a>) -> &'v dyn AnyValue<'a> {
    match value {
        Value::String(string) => string,
        Value::List(list) => list,
        Value::Set(set) => set,
        Value::SortedSet(set) => set,
        Value::Hash(hash) => hash,
        Value::Stream(stream) => stream,
    }
}
