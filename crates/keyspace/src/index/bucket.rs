//! One bucket of the index: a cache line.
//!
//! ```text
//!  0         12         14      16                              64
//! +---------+----------+-------+-------------------------------+
//! | 12 tags | overflow | 0     | 12 references                 |
//! +---------+----------+-------+-------------------------------+
//!  u8 each   u16                u32 each
//! ```
//!
//! A tag is a byte of the key's hash, 0 for a free cell. `overflow` counts the entries whose home is this
//! bucket or an earlier one, but which were stored in a later bucket because all cells were taken. While it
//! is not 0, a search must continue with the next bucket.

use wide::u8x16;

pub(crate) const PLACES: usize = 12;
pub(crate) const LINE: usize = 64;
const PASSED: usize = 12;
const REFERENCES: usize = 16;

/// A read-only bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket<'a>(pub(crate) &'a [u8; LINE]);

/// A mutable bucket.
#[derive(Debug)]
pub(crate) struct BucketMut<'a>(pub(crate) &'a mut [u8; LINE]);

/// The tag of a hash, never 0.
#[inline]
pub(crate) fn tag(hash: u64) -> u8 {
    (hash as u8).max(1)
}

/// Bit mask of the cells that hold `tag`.
#[inline]
fn places_with(line: &[u8; LINE], tag: u8) -> u32 {
    let head: [u8; 16] = *line.first_chunk().expect("a line is longer");
    u8x16::new(head).simd_eq(u8x16::splat(tag)).to_bitmask() & ((1 << PLACES) - 1)
}

/// The numbers of the set bits in ascending order.
#[inline]
fn places(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(place)
    })
}

impl<'a> Bucket<'a> {
    #[inline]
    pub(crate) fn reference(self, place: usize) -> u32 {
        let at = REFERENCES + place * 4;
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    #[inline]
    pub(crate) fn passed(self) -> u16 {
        u16::from_le_bytes([self.0[PASSED], self.0[PASSED + 1]])
    }

    /// The cells that hold `tag`, with their references.
    #[inline]
    pub(crate) fn tagged(self, tag: u8) -> impl Iterator<Item = (usize, u32)> + 'a {
        places(places_with(self.0, tag)).map(move |place| (place, self.reference(place)))
    }

    pub(crate) fn references(self) -> impl Iterator<Item = u32> + 'a {
        (0..PLACES).filter(move |&place| self.0[place] != 0).map(move |place| self.reference(place))
    }

    /// The reference in the cell, if it is taken.
    pub(crate) fn at(self, place: usize) -> Option<u32> {
        (self.0[place] != 0).then(|| self.reference(place))
    }

    #[inline]
    pub(crate) fn free_place(self) -> Option<usize> {
        places(places_with(self.0, 0)).next()
    }
}

impl BucketMut<'_> {
    pub(crate) fn set(&mut self, place: usize, tag: u8, reference: u32) {
        self.0[place] = tag;
        let at = REFERENCES + place * 4;
        self.0[at..at + 4].copy_from_slice(&reference.to_le_bytes());
    }

    pub(crate) fn clear(&mut self, place: usize) {
        self.0[place] = 0;
    }

    pub(crate) fn pass(&mut self, by: i32) {
        let passed = i32::from(u16::from_le_bytes([self.0[PASSED], self.0[PASSED + 1]])) + by;
        let passed = u16::try_from(passed).expect("a segment has fewer entries, and each leaves as it came");
        self.0[PASSED..PASSED + 2].copy_from_slice(&passed.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_by_tag() {
        let mut line = [0; LINE];
        let mut bucket = BucketMut(&mut line);
        for place in 0..PLACES {
            bucket.set(place, [7, 9][place % 2], place as u32 * 1000);
        }
        bucket.clear(4);
        bucket.pass(3);
        bucket.pass(-1);
        let bucket = Bucket(&line);
        assert_eq!(bucket.tagged(7).map(|(place, _)| place).collect::<Vec<_>>(), [0, 2, 6, 8, 10]);
        assert_eq!(bucket.tagged(9).last(), Some((11, 11_000)));
        assert_eq!(bucket.references().count(), 11);
        assert_eq!((bucket.free_place(), bucket.passed()), (Some(4), 2));
    }
}
