//! Implements [`AnyValue`] for sets.

use std::borrow::Cow;
use std::ops::Range;

use keyspace::{SetMember, SetRef};

use crate::digest::Digest;
use crate::kinds::{AnyValue, ElementBytes, ElementName, ScoredMembers, Sortable};

impl<'a> AnyValue<'a> for SetRef<'a> {
    fn type_number(&self) -> u32 {
        2
    }

    fn digest(&self, digest: &mut Digest) {
        self.for_each(&mut |member| digest.add_unordered(&member));
    }

    fn element_count(&self) -> Option<usize> {
        Some(SetRef::len(self))
    }

    fn as_sortable(&self) -> Option<&dyn Sortable> {
        Some(self)
    }

    fn as_scored_members(&self) -> Option<&dyn ScoredMembers<'a>> {
        Some(self)
    }
}

impl Sortable for SetRef<'_> {
    fn len(&self) -> usize {
        SetRef::len(self)
    }

    fn is_ordered(&self) -> bool {
        false
    }

    fn load_elements(&self, range: Range<usize>, _reversed: bool) -> Vec<ElementBytes> {
        let (mut loaded, mut index) = (Vec::with_capacity(range.len()), 0);
        self.for_each(&mut |member| {
            if range.contains(&index) {
                loaded.push(ElementBytes::from_slice(&member));
            }
            index += 1;
        });
        loaded
    }
}

/// In sorted-set operations, each member of a plain set has the score 1.
impl<'a> ScoredMembers<'a> for SetRef<'a> {
    fn len(&self) -> usize {
        SetRef::len(self)
    }

    fn prefetch(&self, hashes: &[u64]) {
        SetRef::prefetch(self, hashes.iter().copied());
    }

    fn score(&self, name: &[u8], hash: u64) -> Option<f64> {
        self.contains_with_hash(name, hash).then_some(1.0)
    }

    fn visit_members(&self, visit: &mut dyn FnMut(ElementName<'a>, f64) -> bool) {
        SetRef::visit(self, &mut |member| match member {
            SetMember::Bytes(name) => visit(Cow::Borrowed(name), 1.0),
            SetMember::Integer(_) => visit(Cow::Owned(member.to_vec()), 1.0),
        });
    }
}
