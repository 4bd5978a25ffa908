//! Keeps the members of a large sorted set ordered by score, then name.
//!
//! The order is a B-tree with element counts in its nodes, so that looking up a rank, the element at a rank, and the
//! start of a score or name range all take O(log n). It is a secondary index of an entry store ([`crate::entries`])
//! besides the hash index. Like that, it stores only references, four bytes per element, and reads scores and names
//! from the entries. The order can be rebuilt from the entries, so it need not be pinned: a snapshot captures the
//! entries, and loading sorts them again.
//!
//! To avoid a memory access per comparison, a leaf has two bytes per reference that approximate the position of the
//! score in the leaf's range. Only elements with equal approximations are read ([`leaf`]). Inner nodes have the full
//! score of each child's first element.

mod leaf;
mod tree;

use std::fmt::Debug;
use std::vec::IntoIter;

use crate::overflow::OverflowValue;
use crate::pages::EntryKeys;
use crate::score;
use crate::sorted_set::ScoreBytes;

use tree::Position;
pub(crate) use tree::Tree;

/// An index that sorts the entries of a store; the implementation for `()` does nothing.
///
/// The index consists of references, so the store notifies it of every entry that is inserted, removed or moved.
pub(crate) trait SecondaryOrder<V: OverflowValue>: Debug + Default {
    /// Positions in the order, for entries that are about to be moved.
    type Positions;

    /// Called after an entry was inserted.
    fn add(&mut self, reference: u32, keys: &EntryKeys<'_, V>);

    /// Called before an entry is removed or changed.
    fn remove(&mut self, reference: u32, keys: &EntryKeys<'_, V>);

    /// Returns the positions of entries that are about to be moved.
    fn positions_of(&self, references: impl Iterator<Item = u32>, keys: &EntryKeys<'_, V>)
    -> Self::Positions;

    /// Called for each moved entry, in the order in which the references were passed to [`Self::positions_of`].
    fn replace_reference(&mut self, positions: &mut Self::Positions, old: u32, new: u32);

    /// Returns the number of heap bytes used.
    fn heap_bytes(&self) -> usize;
}

impl<V: OverflowValue> SecondaryOrder<V> for () {
    type Positions = ();

    #[inline(always)]
    fn add(&mut self, _: u32, _: &EntryKeys<'_, V>) {}

    #[inline(always)]
    fn remove(&mut self, _: u32, _: &EntryKeys<'_, V>) {}

    #[inline(always)]
    fn positions_of(&self, _: impl Iterator<Item = u32>, _: &EntryKeys<'_, V>) {}

    #[inline(always)]
    fn replace_reference(&mut self, (): &mut (), _: u32, _: u32) {}

    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Access to the scores and names of elements by reference.
pub(crate) trait ElementSource {
    /// Returns the score as an integer with the same ordering.
    fn score_bits(&self, reference: u32) -> u64;
    fn name(&self, reference: u32) -> &[u8];
    /// Prefetches the element with this reference.
    fn prefetch(&self, reference: u32);
}

impl ElementSource for EntryKeys<'_, ScoreBytes> {
    #[inline]
    fn score_bits(&self, reference: u32) -> u64 {
        score::order_bits(score::decode(self.value(reference)))
    }

    #[inline]
    fn name(&self, reference: u32) -> &[u8] {
        EntryKeys::name(*self, reference)
    }

    #[inline]
    fn prefetch(&self, reference: u32) {
        self.pages.prefetch(reference);
    }
}

/// A boundary in the order: before or after certain elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ElementBoundary<'a> {
    /// The boundary lies before or after all elements with a score.
    Score { score_bits: u64, is_after: bool },
    /// The boundary lies before or after one element.
    Element { score_bits: u64, name: &'a [u8], is_after: bool },
    /// The boundary lies before or after a name. Only for sets whose elements all have equal scores.
    Name { name: &'a [u8], is_after: bool },
}

impl<'a> ElementBoundary<'a> {
    #[inline]
    pub(crate) fn is_after<'n>(&self, element: u64, element_name: impl FnOnce() -> &'n [u8]) -> bool {
        match *self {
            Self::Score { score_bits: bits, is_after: after } => element < bits || after && element == bits,
            Self::Element { score_bits: bits, name, is_after: after } => {
                element < bits
                    || element == bits && (if after { element_name() <= name } else { element_name() < name })
            }
            Self::Name { name, is_after: after } => {
                if after {
                    element_name() <= name
                } else {
                    element_name() < name
                }
            }
        }
    }

    #[inline]
    fn score_bits(&self) -> Option<u64> {
        match *self {
            Self::Score { score_bits: bits, .. } | Self::Element { score_bits: bits, .. } => Some(bits),
            Self::Name { .. } => None,
        }
    }

    #[inline]
    fn before_element(bits: u64, name: &'a [u8]) -> Self {
        Self::Element { score_bits: bits, name, is_after: false }
    }

    #[inline]
    fn after_element(bits: u64, name: &'a [u8]) -> Self {
        Self::Element { score_bits: bits, name, is_after: true }
    }
}

impl SecondaryOrder<ScoreBytes> for Tree {
    type Positions = IntoIter<Position>;

    fn add(&mut self, reference: u32, keys: &EntryKeys<'_, ScoreBytes>) {
        self.insert(reference, keys);
    }

    fn remove(&mut self, reference: u32, keys: &EntryKeys<'_, ScoreBytes>) {
        self.remove_element(reference, keys);
    }

    fn positions_of(
        &self,
        references: impl Iterator<Item = u32>,
        keys: &EntryKeys<'_, ScoreBytes>,
    ) -> Self::Positions {
        references.map(|reference| self.position(reference, keys)).collect::<Vec<_>>().into_iter()
    }

    fn replace_reference(&mut self, positions: &mut Self::Positions, old: u32, new: u32) {
        let position = positions.next().expect("each entry that is moved had a place");
        self.replace_reference(&position, old, new);
    }

    fn heap_bytes(&self) -> usize {
        self.allocated_bytes()
    }
}

#[cfg(test)]
mod tests;
