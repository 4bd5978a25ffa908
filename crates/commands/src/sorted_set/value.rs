//! Implements [`AnyValue`] for sorted sets.

use std::borrow::Cow;
use std::ops::Range;

use keyspace::SortedSetRef;
use resp::ShortestDouble;

use crate::digest::Digest;
use crate::kinds::{AnyValue, ElementBytes, ElementName, ScoredMembers, Sortable};

impl<'a> AnyValue<'a> for SortedSetRef<'a> {
    fn type_number(&self) -> u32 {
        3
    }

    fn digest(&self, digest: &mut Digest) {
        self.for_each(&mut |member| {
            let mut pair = Digest::default();
            pair.add_ordered(member.name);
            pair.add_ordered(ShortestDouble(member.score).to_string().as_bytes());
            digest.add_unordered_digest(pair);
        });
    }

    fn element_count(&self) -> Option<usize> {
        Some(SortedSetRef::len(self))
    }

    fn as_sortable(&self) -> Option<&dyn Sortable> {
        Some(self)
    }

    fn as_scored_members(&self) -> Option<&dyn ScoredMembers<'a>> {
        Some(self)
    }
}

impl Sortable for SortedSetRef<'_> {
    fn len(&self) -> usize {
        SortedSetRef::len(self)
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn load_elements(&self, range: Range<usize>, reversed: bool) -> Vec<ElementBytes> {
        let (mut loaded, len) = (Vec::with_capacity(range.len()), SortedSetRef::len(self));
        // As in Redis, LIMIT counts from the lowest member in either direction.
        let from_first = if reversed { len - range.end..len - range.start } else { range };
        SortedSetRef::visit(self, from_first, reversed, &mut |member| {
            loaded.push(ElementBytes::from_slice(member.name));
            true
        });
        loaded
    }
}

impl<'a> ScoredMembers<'a> for SortedSetRef<'a> {
    fn len(&self) -> usize {
        SortedSetRef::len(self)
    }

    fn prefetch(&self, hashes: &[u64]) {
        SortedSetRef::prefetch(self, hashes.iter().copied());
    }

    fn score(&self, name: &[u8], hash: u64) -> Option<f64> {
        self.score_with_hash(name, hash)
    }

    fn visit_members(&self, visit: &mut dyn FnMut(ElementName<'a>, f64) -> bool) {
        let all = 0..SortedSetRef::len(self);
        SortedSetRef::visit(self, all, false, &mut |member| visit(Cow::Borrowed(member.name), member.score));
    }
}
