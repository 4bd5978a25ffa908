//! A set of small integers with fast access to its minimum.

/// A two-level bitmap. The upper level has a bit for each word of the lower level that is not zero.
#[derive(Debug)]
pub(super) struct BitSet {
    words: Vec<u64>,
    summary: Vec<u64>,
}

impl BitSet {
    pub(super) const fn new() -> Self {
        Self { words: Vec::new(), summary: Vec::new() }
    }

    /// Creates an empty set with capacity for numbers below `len`.
    pub(super) fn with_capacity_below(len: usize) -> Self {
        let mut bits = Self::new();
        bits.reserve(len);
        bits
    }

    /// Reserves capacity for numbers below `len`.
    pub(super) fn reserve(&mut self, len: usize) {
        let words = len.div_ceil(64);
        if self.words.len() < words {
            self.words.resize(words, 0);
            self.summary.resize(words.div_ceil(64), 0);
        }
    }

    pub(super) fn contains(&self, number: usize) -> bool {
        self.words.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    pub(super) fn insert(&mut self, number: usize) {
        self.words[number / 64] |= 1 << (number % 64);
        self.summary[number / 4096] |= 1 << (number / 64 % 64);
    }

    pub(super) fn remove(&mut self, number: usize) {
        let word = &mut self.words[number / 64];
        *word &= !(1 << (number % 64));
        if *word == 0 {
            self.summary[number / 4096] &= !(1 << (number / 64 % 64));
        }
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
        self.summary.fill(0);
    }

    /// Returns the smallest member; `None` if the set is empty.
    pub(super) fn first(&self) -> Option<usize> {
        let (index, summary) = self.summary.iter().enumerate().find(|(_, summary)| **summary != 0)?;
        let word = index * 64 + summary.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    pub(super) fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_set_finds_the_minimum() {
        let mut bits = BitSet::new();
        assert_eq!(bits.first(), None);
        bits.reserve(20_000);
        for number in [19_999, 4096, 70, 5] {
            bits.insert(number);
            assert_eq!(bits.first(), Some(number));
        }
        assert_eq!(bits.count(), 4);
        for number in [5, 70, 4096, 19_999] {
            assert!(bits.contains(number));
            assert_eq!(bits.first(), Some(number));
            bits.remove(number);
        }
        assert_eq!(bits.first(), None);
        assert!(!bits.contains(1_000_000));
    }
}
