//! A bucket of the index, which takes one cache line.
//!
//! ```text
//! 0         12         14      16                              64
//! +---------+----------+-------+-------------------------------+
//! | 12 tags | overflow | 0     | 12 references                 |
//! +---------+----------+-------+-------------------------------+
//! u8 each   u16                u32 each
//! ```
//!
//! A tag is a byte of the key's hash, or 0 for a free cell. `overflow` counts the entries that belong to this or an
//! earlier bucket but are stored in a later one, because all cells were taken. While it is not 0, a search must
//! continue with the next bucket.

use wide::u8x16;

pub(crate) const CELLS_PER_BUCKET: usize = 12;
pub(crate) const BUCKET_LEN: usize = 64;
const OVERFLOW_OFFSET: usize = 12;
const REFERENCES_OFFSET: usize = 16;

/// Read access to a bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket<'a>(pub(crate) &'a [u8; BUCKET_LEN]);

#[derive(Debug)]
pub(crate) struct BucketMut<'a>(pub(crate) &'a mut [u8; BUCKET_LEN]);

/// Returns the tag of a hash, which is never 0.
#[inline]
pub(crate) fn tag(hash: u64) -> u8 {
    (hash as u8).max(1)
}

/// Returns a bit mask of the cells that contain `tag`.
#[inline]
fn cells_with_tag(line: &[u8; BUCKET_LEN], tag: u8) -> u32 {
    let head: [u8; 16] = *line.first_chunk().expect("a line is longer");
    u8x16::new(head).simd_eq(u8x16::splat(tag)).to_bitmask() & ((1 << CELLS_PER_BUCKET) - 1)
}

/// Returns the numbers of the set bits in ascending order.
#[inline]
fn set_bits(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let cell = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(cell)
    })
}

impl<'a> Bucket<'a> {
    #[inline]
    pub(crate) fn reference(self, cell: usize) -> u32 {
        let at = REFERENCES_OFFSET + cell * 4;
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    #[inline]
    pub(crate) fn overflow_count(self) -> u16 {
        u16::from_le_bytes([self.0[OVERFLOW_OFFSET], self.0[OVERFLOW_OFFSET + 1]])
    }

    /// Returns the cells that contain `tag`, with their references.
    #[inline]
    pub(crate) fn references_with_tag(self, tag: u8) -> impl Iterator<Item = (usize, u32)> + 'a {
        set_bits(cells_with_tag(self.0, tag)).map(move |cell| (cell, self.reference(cell)))
    }

    pub(crate) fn references(self) -> impl Iterator<Item = u32> + 'a {
        (0..CELLS_PER_BUCKET).filter(move |&cell| self.0[cell] != 0).map(move |cell| self.reference(cell))
    }

    pub(crate) fn reference_if_taken(self, cell: usize) -> Option<u32> {
        (self.0[cell] != 0).then(|| self.reference(cell))
    }

    #[inline]
    pub(crate) fn free_cell(self) -> Option<usize> {
        set_bits(cells_with_tag(self.0, 0)).next()
    }
}

impl BucketMut<'_> {
    pub(crate) fn set(&mut self, cell: usize, tag: u8, reference: u32) {
        self.0[cell] = tag;
        let at = REFERENCES_OFFSET + cell * 4;
        self.0[at..at + 4].copy_from_slice(&reference.to_le_bytes());
    }

    pub(crate) fn clear(&mut self, cell: usize) {
        self.0[cell] = 0;
    }

    pub(crate) fn add_overflow(&mut self, delta: i32) {
        let overflow_count =
            i32::from(u16::from_le_bytes([self.0[OVERFLOW_OFFSET], self.0[OVERFLOW_OFFSET + 1]])) + delta;
        let overflow_count =
            u16::try_from(overflow_count).expect("a segment has fewer entries, and each leaves as it came");
        self.0[OVERFLOW_OFFSET..OVERFLOW_OFFSET + 2].copy_from_slice(&overflow_count.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_found_by_tag() {
        let mut line = [0; BUCKET_LEN];
        let mut bucket = BucketMut(&mut line);
        for cell in 0..CELLS_PER_BUCKET {
            bucket.set(cell, [7, 9][cell % 2], cell as u32 * 1000);
        }
        bucket.clear(4);
        bucket.add_overflow(3);
        bucket.add_overflow(-1);
        let bucket = Bucket(&line);
        assert_eq!(bucket.references_with_tag(7).map(|(cell, _)| cell).collect::<Vec<_>>(), [0, 2, 6, 8, 10]);
        assert_eq!(bucket.references_with_tag(9).last(), Some((11, 11_000)));
        assert_eq!(bucket.references().count(), 11);
        assert_eq!((bucket.free_cell(), bucket.overflow_count()), (Some(4), 2));
    }
}
