//! A leaf: references in order, and beside each about where its score lies.
//!
//! The range that a leaf's scores lie in is divided into 2^16 parts of the same width. Of elements in different parts
//! the order is known without a look at them; a search looks only at those of the part that it is for. What lies beyond
//! the range counts to its first or last part: that is never wrong, only slower, and the range is chosen anew.

use super::{Cut, Elements};
use crate::overflow::count_outside;

/// How many elements a leaf has room for: with them it takes 376 bytes, and the allocator gives 384.
pub(super) const LEAF: usize = 60;

#[derive(Debug)]
pub(super) struct Leaf {
    /// Where the range begins.
    base: u64,
    /// A part of the range is as wide as a power of two.
    shift: u8,
    len: u8,
    /// The parts of the elements. Behind the last element, the last part.
    parts: [u16; LEAF],
    references: [u32; LEAF],
}

/// Bytes that a leaf takes, with its share of the node above.
pub(super) const LEAF_BYTES: usize = size_of::<Leaf>() + 48;

impl Leaf {
    /// A leaf without elements, whose range begins there.
    pub(super) fn new(base: u64) -> Self {
        count_outside(LEAF_BYTES, 0);
        Self { base, shift: 0, len: 0, parts: [u16::MAX; LEAF], references: [0; LEAF] }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }

    #[inline]
    pub(super) fn references(&self) -> &[u32] {
        &self.references[..self.len()]
    }

    pub(super) fn set(&mut self, index: usize, reference: u32) {
        self.references[index] = reference;
    }

    #[inline]
    fn part(&self, bits: u64) -> u16 {
        (bits.saturating_sub(self.base) >> self.shift).min(u64::from(u16::MAX)) as u16
    }

    /// Where the range ends.
    fn top(&self) -> u64 {
        self.base.saturating_add((((1u64 << 16) - 1) << self.shift) + ((1 << self.shift) - 1))
    }

    /// How many elements lie before the cut.
    #[inline]
    pub(super) fn before(&self, cut: &Cut<'_>, of: &impl Elements) -> usize {
        let (first, end) = match cut.bits() {
            None => (0, self.len()),
            Some(bits) => {
                let part = self.part(bits);
                // Counted without a branch: that is one pass over two lines.
                let below = self.parts.iter().filter(|other| **other < part).count();
                let upto = self.parts.iter().filter(|other| **other <= part).count();
                (below, upto.min(self.len()))
            }
        };
        let alike = &self.references[first..end];
        first + alike.partition_point(|&other| cut.passes(of.bits(other), || of.name(other)))
    }

    /// Adds an element with this score at `index`. There must be room.
    pub(super) fn insert(&mut self, index: usize, reference: u32, bits: u64, of: &impl Elements) {
        let len = self.len();
        self.references.copy_within(index..len, index + 1);
        self.parts.copy_within(index..len, index + 1);
        self.references[index] = reference;
        self.parts[index] = self.part(bits);
        self.len += 1;
        if bits < self.base || bits > self.top() {
            // Twice as far, so that elements that come in order do not all come here.
            let first = of.bits(self.references[0]);
            let last = of.bits(self.references[len]);
            let more = last - first;
            if bits < self.base {
                self.set_range(first.saturating_sub(more), last.max(self.top()), of);
            } else {
                self.set_range(first.min(self.base), last.saturating_add(more), of);
            }
        }
    }

    pub(super) fn remove(&mut self, index: usize) {
        let len = self.len();
        self.references.copy_within(index + 1..len, index);
        self.parts.copy_within(index + 1..len, index);
        self.parts[len - 1] = u16::MAX;
        self.len -= 1;
    }

    /// Takes the elements from `index` on, of which there must be some, into a leaf of their own.
    pub(super) fn split_off(&mut self, index: usize, of: &impl Elements) -> Box<Self> {
        self.references().iter().for_each(|&reference| of.prefetch(reference));
        let border = of.bits(self.references[index]);
        let (base, top) = (self.base.min(border), self.top().max(border));
        let mut right = Box::new(Self::new(border));
        let moved = self.len() - index;
        right.references[..moved].copy_from_slice(&self.references[index..index + moved]);
        right.len = moved as u8;
        self.len = index as u8;
        self.set_range(base, border, of);
        right.set_range(border, top, of);
        right
    }

    /// Takes over all elements of the next leaf. There must be room.
    pub(super) fn append(&mut self, right: &Self, of: &impl Elements) {
        let (len, more) = (self.len(), right.len());
        self.references[len..len + more].copy_from_slice(right.references());
        self.len += more as u8;
        self.set_range(self.base.min(right.base), self.top().max(right.top()), of);
    }

    /// Chooses the range anew. Scores beyond it do no harm.
    fn set_range(&mut self, base: u64, top: u64, of: &impl Elements) {
        let width = top - base;
        self.base = base;
        self.shift = (64 - width.leading_zeros()).saturating_sub(16) as u8;
        self.parts = [u16::MAX; LEAF];
        for index in 0..self.len() {
            self.parts[index] = self.part(of.bits(self.references[index]));
        }
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        count_outside(0, LEAF_BYTES);
    }
}
