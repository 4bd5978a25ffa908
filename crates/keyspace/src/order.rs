//! The elements of a large sorted set in their order: by score, those of one score by name.
//!
//! A B-tree whose nodes are counted, so the rank of an element, the element of a rank, and where a range of scores or
//! names begins are all found in O(log n). It is a second index of a store of entries ([`crate::entries`]), beside
//! that by hash, and like that one it has nothing but references: four bytes an element. The score and the name are
//! read where the entry lies. The order can be derived from the entries, so it needs no pin: a snapshot captures the
//! entries, and loading one orders them anew.
//!
//! So that a search does not go to memory for each comparison, a leaf keeps beside each reference two bytes that tell
//! about where its score lies in the leaf's range, and only those that are alike there are looked at ([`leaf`]). A node
//! above keeps the first element of each child with its whole score.

mod leaf;
mod tree;

use std::fmt::Debug;
use std::vec::IntoIter;

use crate::overflow::Outside;
use crate::pages::Names;
use crate::score;
use crate::sorted_set::Scores;

use tree::Position;
pub(crate) use tree::Tree;

/// An index that keeps the entries of a store in an order of their own; `()` keeps none.
///
/// It has references, so it is told of each entry that is put into the store, taken out of it or moved.
pub(crate) trait Order<V: Outside>: Debug + Default {
    /// Where entries stand that are to be moved.
    type Places;

    /// An entry was put into the store.
    fn add(&mut self, reference: u32, names: &Names<'_, V>);

    /// An entry is to be taken out of the store or changed.
    fn remove(&mut self, reference: u32, names: &Names<'_, V>);

    /// These entries are about to be moved.
    fn places(&self, references: impl Iterator<Item = u32>, names: &Names<'_, V>) -> Self::Places;

    /// The next of them was moved.
    fn redirect(&mut self, places: &mut Self::Places, from: u32, to: u32);

    /// Bytes of the heap that it takes.
    fn bytes(&self) -> usize;
}

impl<V: Outside> Order<V> for () {
    type Places = ();

    #[inline(always)]
    fn add(&mut self, _: u32, _: &Names<'_, V>) {}

    #[inline(always)]
    fn remove(&mut self, _: u32, _: &Names<'_, V>) {}

    #[inline(always)]
    fn places(&self, _: impl Iterator<Item = u32>, _: &Names<'_, V>) {}

    #[inline(always)]
    fn redirect(&mut self, (): &mut (), _: u32, _: u32) {}

    fn bytes(&self) -> usize {
        0
    }
}

/// The scores and names of the elements, which a tree looks up by reference.
pub(crate) trait Elements {
    /// The score as a number that is in its order.
    fn bits(&self, reference: u32) -> u64;
    fn name(&self, reference: u32) -> &[u8];
    /// Asks the processor for the element's memory.
    fn prefetch(&self, reference: u32);
}

impl Elements for Names<'_, Scores> {
    #[inline]
    fn bits(&self, reference: u32) -> u64 {
        score::ordered(score::read(self.value(reference)))
    }

    #[inline]
    fn name(&self, reference: u32) -> &[u8] {
        Names::name(*self, reference)
    }

    #[inline]
    fn prefetch(&self, reference: u32) {
        self.pages.prefetch(reference);
    }
}

/// A place between two elements: some lie before it, the others behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut<'a> {
    /// Before or after all elements with a score.
    Score { bits: u64, after: bool },
    /// Before or after one element.
    Element { bits: u64, name: &'a [u8], after: bool },
    /// Before or after a name, of elements that all have the same score.
    Name { name: &'a [u8], after: bool },
}

impl<'a> Cut<'a> {
    /// Whether an element lies before it.
    #[inline]
    pub(crate) fn passes<'n>(&self, element: u64, its_name: impl FnOnce() -> &'n [u8]) -> bool {
        match *self {
            Self::Score { bits, after } => element < bits || after && element == bits,
            Self::Element { bits, name, after } => {
                element < bits
                    || element == bits && (if after { its_name() <= name } else { its_name() < name })
            }
            Self::Name { name, after } => {
                if after {
                    its_name() <= name
                } else {
                    its_name() < name
                }
            }
        }
    }

    /// The score that it lies at.
    #[inline]
    fn bits(&self) -> Option<u64> {
        match *self {
            Self::Score { bits, .. } | Self::Element { bits, .. } => Some(bits),
            Self::Name { .. } => None,
        }
    }

    /// Right before the element.
    #[inline]
    fn before(bits: u64, name: &'a [u8]) -> Self {
        Self::Element { bits, name, after: false }
    }

    /// Right behind the element.
    #[inline]
    fn behind(bits: u64, name: &'a [u8]) -> Self {
        Self::Element { bits, name, after: true }
    }
}

impl Order<Scores> for Tree {
    type Places = IntoIter<Position>;

    fn add(&mut self, reference: u32, names: &Names<'_, Scores>) {
        self.insert(reference, names);
    }

    fn remove(&mut self, reference: u32, names: &Names<'_, Scores>) {
        self.take(reference, names);
    }

    fn places(&self, references: impl Iterator<Item = u32>, names: &Names<'_, Scores>) -> Self::Places {
        references.map(|reference| self.position(reference, names)).collect::<Vec<_>>().into_iter()
    }

    fn redirect(&mut self, places: &mut Self::Places, from: u32, to: u32) {
        let position = places.next().expect("each entry that is moved had a place");
        self.exchange(&position, from, to);
    }

    fn bytes(&self) -> usize {
        self.held_bytes()
    }
}

#[cfg(test)]
mod tests;
