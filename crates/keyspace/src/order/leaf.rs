//! A leaf: ordered references with approximate scores.
//!
//! The score range of a leaf is divided into 2^16 parts of equal width. Elements in different parts are ordered without
//! reading them, so a search reads only the elements in the same part as the searched score. Scores outside the range
//! belong to the first or last part, which is correct but slower until the range is recomputed.

use super::{ElementBoundary, ElementSource};
use crate::overflow::count_overflow_bytes;

/// Maximum number of elements of a leaf. A full leaf takes 376 bytes, for which the allocator uses 384.
pub(super) const LEAF_CAPACITY: usize = 60;

#[derive(Debug)]
pub(super) struct Leaf {
    /// Lowest score of the range, as ordered bits.
    score_base: u64,
    /// Base-2 logarithm of the width of each part of the range.
    shift: u8,
    len: u8,
    /// The part of the range to which each element belongs. Unused elements have the maximum value.
    score_parts: [u16; LEAF_CAPACITY],
    references: [u32; LEAF_CAPACITY],
}

/// Memory of a leaf in bytes, including its share of the parent node.
pub(super) const LEAF_HEAP_BYTES: usize = size_of::<Leaf>() + 48;

impl Leaf {
    /// Creates an empty leaf whose range starts at `base`.
    pub(super) fn new(base: u64) -> Self {
        count_overflow_bytes(LEAF_HEAP_BYTES, 0);
        Self {
            score_base: base,
            shift: 0,
            len: 0,
            score_parts: [u16::MAX; LEAF_CAPACITY],
            references: [0; LEAF_CAPACITY],
        }
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
    fn score_part(&self, bits: u64) -> u16 {
        (bits.saturating_sub(self.score_base) >> self.shift).min(u64::from(u16::MAX)) as u16
    }

    fn score_end(&self) -> u64 {
        self.score_base.saturating_add((((1u64 << 16) - 1) << self.shift) + ((1 << self.shift) - 1))
    }

    #[inline]
    pub(super) fn count_before(&self, boundary: &ElementBoundary<'_>, source: &impl ElementSource) -> usize {
        let (first, end) = match boundary.score_bits() {
            None => (0, self.len()),
            Some(bits) => {
                let part = self.score_part(bits);
                // Count without branches, reading two cache lines.
                let below = self.score_parts.iter().filter(|other| **other < part).count();
                let upto = self.score_parts.iter().filter(|other| **other <= part).count();
                (below, upto.min(self.len()))
            }
        };
        let alike = &self.references[first..end];
        first
            + alike
                .partition_point(|&other| boundary.is_after(source.score_bits(other), || source.name(other)))
    }

    /// Inserts an element with this score at `index`. The leaf must have room.
    pub(super) fn insert(&mut self, index: usize, reference: u32, bits: u64, source: &impl ElementSource) {
        let len = self.len();
        self.references.copy_within(index..len, index + 1);
        self.score_parts.copy_within(index..len, index + 1);
        self.references[index] = reference;
        self.score_parts[index] = self.score_part(bits);
        self.len += 1;
        if bits < self.score_base || bits > self.score_end() {
            // Double the range, so that elements arriving in order do not all belong to the last part.
            let first = source.score_bits(self.references[0]);
            let last = source.score_bits(self.references[len]);
            let more = last - first;
            if bits < self.score_base {
                self.set_range(first.saturating_sub(more), last.max(self.score_end()), source);
            } else {
                self.set_range(first.min(self.score_base), last.saturating_add(more), source);
            }
        }
    }

    pub(super) fn remove(&mut self, index: usize) {
        let len = self.len();
        self.references.copy_within(index + 1..len, index);
        self.score_parts.copy_within(index + 1..len, index);
        self.score_parts[len - 1] = u16::MAX;
        self.len -= 1;
    }

    /// Moves the elements starting at `index`, of which there must be one, to a new leaf.
    pub(super) fn split_off(&mut self, index: usize, source: &impl ElementSource) -> Box<Self> {
        self.references().iter().for_each(|&reference| source.prefetch(reference));
        let border = source.score_bits(self.references[index]);
        let (base, top) = (self.score_base.min(border), self.score_end().max(border));
        let mut right = Box::new(Self::new(border));
        let moved = self.len() - index;
        right.references[..moved].copy_from_slice(&self.references[index..index + moved]);
        right.len = moved as u8;
        self.len = index as u8;
        self.set_range(base, border, source);
        right.set_range(border, top, source);
        right
    }

    /// Adds all elements of the next leaf, which must fit.
    pub(super) fn append(&mut self, next: &Self, source: &impl ElementSource) {
        let (len, more) = (self.len(), next.len());
        self.references[len..len + more].copy_from_slice(next.references());
        self.len += more as u8;
        self.set_range(self.score_base.min(next.score_base), self.score_end().max(next.score_end()), source);
    }

    /// Recomputes the parts for a new range. Scores outside it are still ordered correctly.
    fn set_range(&mut self, base: u64, top: u64, source: &impl ElementSource) {
        let width = top - base;
        self.score_base = base;
        self.shift = (64 - width.leading_zeros()).saturating_sub(16) as u8;
        self.score_parts = [u16::MAX; LEAF_CAPACITY];
        for index in 0..self.len() {
            self.score_parts[index] = self.score_part(source.score_bits(self.references[index]));
        }
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        count_overflow_bytes(0, LEAF_HEAP_BYTES);
    }
}
