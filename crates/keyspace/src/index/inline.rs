//! The index of a handful of entries: tags and references stored inside the table itself.
//!
//! Most slots of a small server have so few keys that an index line would take more memory than the entries. The
//! references are unordered; callers that need them in hash order must compute the hashes.

use super::bucket::tag;

/// Maximum number of references. They take as many bytes as a segment header.
pub(super) const CAPACITY: usize = 7;

#[derive(Debug, Default)]
pub(crate) struct InlineIndex {
    references: [u32; CAPACITY],
    tags: [u8; CAPACITY],
    len: u8,
}

impl InlineIndex {
    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() == CAPACITY
    }

    #[inline]
    pub(super) fn references(&self) -> &[u32] {
        &self.references[..self.len()]
    }

    /// Returns the references with the tag of `hash`, and their cells.
    #[inline]
    fn references_with_tag(&self, hash: u64) -> impl Iterator<Item = (usize, u32)> {
        let tag = tag(hash);
        let set_bits = self.tags[..self.len()].iter().enumerate();
        set_bits.filter(move |&(_, &other)| other == tag).map(|(cell, _)| (cell, self.references[cell]))
    }

    #[inline]
    pub(super) fn find_candidate(&self, hash: u64) -> Option<u32> {
        self.references_with_tag(hash).next().map(|(_, reference)| reference)
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_match: impl FnMut(u32) -> bool) -> Option<u32> {
        self.references_with_tag(hash).map(|(_, reference)| reference).find(|&reference| is_match(reference))
    }

    /// Adds a reference. The index must not be full.
    pub(super) fn add(&mut self, hash: u64, reference: u32) {
        self.references[self.len()] = reference;
        self.tags[self.len()] = tag(hash);
        self.len += 1;
    }

    fn cell_of(&self, hash: u64, reference: u32) -> usize {
        let found = self.references_with_tag(hash).find(|&(_, other)| other == reference);
        found.expect("what is alive is indexed").0
    }

    pub(super) fn remove(&mut self, hash: u64, reference: u32) {
        let cell = self.cell_of(hash, reference);
        self.len -= 1;
        self.references[cell] = self.references[self.len()];
        self.tags[cell] = self.tags[self.len()];
    }

    /// Replaces the reference of an entry that was moved.
    pub(super) fn replace_reference(&mut self, hash: u64, old: u32, new: u32) {
        let cell = self.cell_of(hash, old);
        self.references[cell] = new;
    }

    /// Picks a uniformly random reference.
    pub(super) fn random_reference(&self, random: u64) -> Option<u32> {
        let cell = (u128::from(random) * u128::from(self.len)) >> 64;
        self.references().get(cell as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_references_are_found_by_tag() {
        let mut few = InlineIndex::default();
        for number in 0..CAPACITY as u64 {
            assert!(!few.is_full());
            few.add(number % 3, number as u32 * 10);
        }
        assert!(few.is_full());
        assert_eq!(few.find(2, |_| true), Some(20));
        assert_eq!(few.find(2, |reference| reference == 50), Some(50));
        few.remove(2, 20);
        few.replace_reference(2, 50, 55);
        assert_eq!((few.find_candidate(2), few.find(2, |reference| reference == 20)), (Some(55), None));
        assert_eq!(few.references().len(), CAPACITY - 1);
        let picked: std::collections::BTreeSet<_> =
            (0..100u64).filter_map(|turn| few.random_reference(turn.wrapping_mul(u64::MAX / 100))).collect();
        assert_eq!(picked.into_iter().collect::<Vec<_>>(), [0, 10, 30, 40, 55, 60]);
    }
}
