//! A sequence of buckets that covers a range of hash positions.
//!
//! A segment of depth d covers the positions that share their first d bits. The following bits, scaled to the bucket
//! count, select an entry's home bucket; any bucket count works, and hash order is preserved. If the home bucket is
//! full, the entry goes to the next bucket with a free cell, and every bucket passed on the way counts the entry in its
//! `overflow`. Growing adds two buckets and redistributes at most 176 entries; a segment of maximum size splits
//! ([`super::Index`]).
//!
//! Invariants: exactly `len` cells are taken; every entry is reachable from its home bucket through buckets whose
//! `overflow` is not 0.

use smallvec::SmallVec;

use super::HashSource;
use super::bucket::{BUCKET_LEN, Bucket, BucketMut, CELLS_PER_BUCKET, tag};
use crate::hashing::POSITION_MASK;
use crate::memory::CacheLinePair;

const BUCKETS_PER_BLOCK: usize = CacheLinePair::LEN / BUCKET_LEN;
const MAX_BLOCKS: usize = 8;
pub(super) const MAX_BUCKETS: usize = MAX_BLOCKS * BUCKETS_PER_BLOCK;
pub(super) const MAX_ENTRIES: usize = MAX_BUCKETS * (CELLS_PER_BUCKET - 1);

/// References with their hashes, in a buffer on the stack.
pub(super) type HashedRefs = SmallVec<[(u64, u32); MAX_BUCKETS * CELLS_PER_BUCKET]>;

#[derive(Debug, Default)]
pub(crate) struct Segment {
    blocks: [Option<CacheLinePair>; MAX_BLOCKS],
    len: u16,
    buckets: u8,
    depth: u8,
}

/// Returns the maximum number of entries for this many buckets.
fn capacity(buckets: usize) -> usize {
    if buckets == 1 { CELLS_PER_BUCKET } else { buckets * (CELLS_PER_BUCKET - 1) }
}

/// Returns the number of buckets for this many entries.
fn buckets_for(len: usize) -> usize {
    match len {
        0 => 0,
        1..=CELLS_PER_BUCKET => 1,
        _ => len.div_ceil(CELLS_PER_BUCKET - 1).next_multiple_of(BUCKETS_PER_BLOCK).min(MAX_BUCKETS),
    }
}

/// What a segment must do before an entry can be added.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GrowthStep {
    Fits,
    Grow,
    Split,
}

impl Segment {
    pub(super) fn with_depth(depth: u8) -> Self {
        Self { depth, ..Self::default() }
    }

    pub(super) fn depth(&self) -> u8 {
        self.depth
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.blocks.iter().flatten().count() * CacheLinePair::LEN
    }

    pub(super) fn move_to_lower_addresses(&mut self) {
        self.blocks.iter_mut().flatten().for_each(CacheLinePair::move_to_lower_addresses);
    }

    fn buckets(&self) -> usize {
        usize::from(self.buckets)
    }

    /// Returns the home bucket of a hash. The segment must have buckets.
    #[inline]
    fn home_bucket(&self, hash: u64) -> usize {
        let local = (hash & POSITION_MASK) << self.depth;
        ((u128::from(local) * self.buckets as u128) >> 64) as usize
    }

    #[inline]
    fn next_bucket(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets() { 0 } else { bucket + 1 }
    }

    #[inline]
    fn bucket(&self, number: usize) -> Bucket<'_> {
        let block = self.blocks[number / BUCKETS_PER_BLOCK].as_ref().expect("a bucket has its block");
        let lines: &[[u8; BUCKET_LEN]] = block.bytes().as_chunks().0;
        Bucket(&lines[number % BUCKETS_PER_BLOCK])
    }

    #[inline]
    fn bucket_mut(&mut self, number: usize) -> BucketMut<'_> {
        let block = self.blocks[number / BUCKETS_PER_BLOCK].as_mut().expect("a bucket has its block");
        let lines: &mut [[u8; BUCKET_LEN]] = block.bytes_mut().as_chunks_mut().0;
        BucketMut(&mut lines[number % BUCKETS_PER_BLOCK])
    }

    /// Prefetches the cache line where a search for `hash` starts.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        if self.buckets > 0 {
            let home = self.home_bucket(hash);
            let block = self.blocks[home / BUCKETS_PER_BLOCK].as_ref().expect("a bucket has its block");
            block.prefetch(home % BUCKETS_PER_BLOCK * BUCKET_LEN);
        }
    }

    /// Returns the first reference in the home bucket that has the tag of `hash`, which is nearly always the right one.
    #[inline]
    pub(super) fn probable_reference(&self, hash: u64) -> Option<u32> {
        let bucket = (self.buckets > 0).then(|| self.bucket(self.home_bucket(hash)))?;
        bucket.references_with_tag(tag(hash)).next().map(|(_, reference)| reference)
    }

    /// Returns the bucket, cell and reference of the entry for which `is_match` returns true.
    #[inline]
    fn find_cell(&self, hash: u64, mut is_match: impl FnMut(u32) -> bool) -> Option<(usize, usize, u32)> {
        if self.buckets == 0 {
            return None;
        }
        let tag = tag(hash);
        let mut number = self.home_bucket(hash);
        for _ in 0..self.buckets {
            let bucket = self.bucket(number);
            if let Some((cell, reference)) =
                bucket.references_with_tag(tag).find(|&(_, reference)| is_match(reference))
            {
                return Some((number, cell, reference));
            }
            if bucket.overflow_count() == 0 {
                return None;
            }
            number = self.next_bucket(number);
        }
        None
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, is_match: impl FnMut(u32) -> bool) -> Option<u32> {
        self.find_cell(hash, is_match).map(|(_, _, reference)| reference)
    }

    pub(super) fn growth_step(&self) -> GrowthStep {
        match self.buckets() {
            buckets if buckets > 0 && self.len() < capacity(buckets) => GrowthStep::Fits,
            MAX_BUCKETS => GrowthStep::Split,
            _ => GrowthStep::Grow,
        }
    }

    /// Adds a reference. The segment must have room.
    pub(super) fn add(&mut self, hash: u64, reference: u32) {
        let mut number = self.home_bucket(hash);
        loop {
            if let Some(cell) = self.bucket(number).free_cell() {
                self.bucket_mut(number).set(cell, tag(hash), reference);
                self.len += 1;
                return;
            }
            self.bucket_mut(number).add_overflow(1);
            number = self.next_bucket(number);
        }
    }

    pub(super) fn remove(&mut self, hash: u64, reference: u32) {
        let (found, cell, _) =
            self.find_cell(hash, |other| other == reference).expect("what is alive is indexed");
        self.bucket_mut(found).clear(cell);
        self.len -= 1;
        let mut number = self.home_bucket(hash);
        while number != found {
            self.bucket_mut(number).add_overflow(-1);
            number = self.next_bucket(number);
        }
    }

    /// Replaces the reference of an entry that was moved.
    pub(super) fn replace_reference(&mut self, hash: u64, old: u32, new: u32) {
        let (number, cell, _) = self.find_cell(hash, |other| other == old).expect("what is alive is indexed");
        self.bucket_mut(number).set(cell, tag(hash), new);
    }

    /// Returns whether the segment has far more buckets than it needs.
    pub(super) fn is_sparse(&self) -> bool {
        self.buckets() > buckets_for(self.len() * 2)
    }

    pub(super) fn grow(&mut self, hash_of: &mut dyn FnMut(&[u32], &mut HashedRefs)) {
        let more =
            if self.buckets == 0 { 1 } else { (self.buckets() + 1).next_multiple_of(BUCKETS_PER_BLOCK) };
        let more = if more == self.buckets() { more + BUCKETS_PER_BLOCK } else { more };
        self.redistribute(more, hash_of);
    }

    /// Resizes the segment to the number of buckets that this many entries need.
    pub(super) fn reserve(&mut self, entries: usize, hash_of: &mut dyn FnMut(&[u32], &mut HashedRefs)) {
        let buckets = buckets_for(entries);
        if buckets > self.buckets() {
            self.redistribute(buckets, hash_of);
        }
    }

    pub(super) fn shrink(&mut self, hash_of: &mut dyn FnMut(&[u32], &mut HashedRefs)) {
        self.redistribute(buckets_for(self.len()), hash_of);
    }

    fn redistribute(&mut self, buckets: usize, hash_of: &mut dyn FnMut(&[u32], &mut HashedRefs)) {
        let taken = self.take_all(hash_of);
        self.rebuild(buckets, &taken);
    }

    pub(super) fn all_references(&self, hash_of: &mut dyn FnMut(&[u32], &mut HashedRefs)) -> HashedRefs {
        let buckets = (0..self.buckets()).map(|number| self.bucket(number));
        let references: SmallVec<[u32; MAX_BUCKETS * CELLS_PER_BUCKET]> =
            buckets.flat_map(Bucket::references).collect();
        let mut taken = HashedRefs::new();
        hash_of(&references, &mut taken);
        taken
    }

    /// Removes and returns all references with their hashes.
    pub(super) fn take_all(&mut self, hash_of: &mut dyn FnMut(&[u32], &mut HashedRefs)) -> HashedRefs {
        let taken = self.all_references(hash_of);
        self.len = 0;
        taken
    }

    pub(super) fn fill_empty(&mut self, references: &[(u64, u32)]) {
        self.rebuild(buckets_for(references.len()), references);
    }

    /// Distributes the references over this many buckets.
    pub(super) fn rebuild(&mut self, buckets: usize, references: &[(u64, u32)]) {
        for (number, block) in self.blocks.iter_mut().enumerate() {
            if number * BUCKETS_PER_BLOCK < buckets {
                block.get_or_insert_with(CacheLinePair::new).bytes_mut().fill(0);
            } else {
                *block = None;
            }
        }
        self.buckets = buckets as u8;
        references.iter().for_each(|&(hash, reference)| self.add(hash, reference));
    }

    /// Splits the segment in two by the next bit of the hash, and returns the upper half.
    pub(super) fn split(&mut self, hash_of: &mut dyn FnMut(&[u32], &mut HashedRefs)) -> Self {
        let taken = self.take_all(hash_of);
        let bit = 63 - self.depth;
        let (low, high): (HashedRefs, HashedRefs) =
            taken.into_iter().partition(|(hash, _)| hash >> bit & 1 == 0);
        let mut other = Self::with_depth(self.depth + 1);
        self.depth += 1;
        // The upper half reuses the blocks at the end.
        let (for_low, for_high) = (buckets_for(low.len() + 1), buckets_for(high.len() + 1));
        let own = for_low.div_ceil(BUCKETS_PER_BLOCK);
        let rest = self.blocks[own..].iter_mut().filter_map(Option::take);
        other.blocks.iter_mut().zip(rest).for_each(|(cell, block)| *cell = Some(block));
        self.rebuild(for_low, &low);
        other.rebuild(for_high, &high);
        other
    }

    /// Adds all references of the sibling segment `other`.
    pub(super) fn merge(&mut self, mut other: Self, hash_of: &mut dyn FnMut(&[u32], &mut HashedRefs)) {
        let mut taken = self.take_all(hash_of);
        taken.extend(other.take_all(hash_of));
        self.depth -= 1;
        self.rebuild(buckets_for(taken.len()), &taken);
    }

    /// Visits the references whose home bucket is that of `position`, except those at lower positions. Returns the
    /// start position of the next bucket relative to the segment, or `None` after the last bucket.
    pub(super) fn visit_bucket(
        &self,
        position: u64,
        hash_of: impl Fn(u32) -> u64,
        mut visit: impl FnMut(u32),
    ) -> Option<u64> {
        if self.buckets == 0 {
            return None;
        }
        let home = self.home_bucket(position);
        let mut number = home;
        for _ in 0..self.buckets {
            let bucket = self.bucket(number);
            for reference in bucket.references() {
                let hash = hash_of(reference);
                if self.home_bucket(hash) == home && hash & POSITION_MASK >= position {
                    visit(reference);
                }
            }
            if bucket.overflow_count() == 0 {
                break;
            }
            number = self.next_bucket(number);
        }
        (home + 1 < self.buckets()).then(|| {
            let start = ((home as u128 + 1) << 64).div_ceil(self.buckets as u128) as u64;
            let start = (start >> self.depth) + u64::from(start & ((1 << self.depth) - 1) != 0);
            start.saturating_add(!POSITION_MASK) & POSITION_MASK
        })
    }

    /// Visits all references until `visit` returns false. Returns whether all were visited.
    pub(super) fn visit_all(&self, source: &impl HashSource, visit: &mut impl FnMut(u32) -> bool) -> bool {
        (0..self.buckets()).all(|number| {
            let references: SmallVec<[u32; CELLS_PER_BUCKET]> = self.bucket(number).references().collect();
            references.iter().for_each(|&reference| source.prefetch(reference));
            references.into_iter().all(&mut *visit)
        })
    }

    pub(super) fn any_reference(&self) -> Option<u32> {
        (0..self.buckets()).find_map(|number| self.bucket(number).references().next())
    }

    /// Returns the reference in the cell that `random` selects among the cells of `buckets` buckets, or `None` if that
    /// cell is free or does not exist. All references are equally likely.
    pub(super) fn random_reference(&self, buckets: usize, random: u32) -> Option<u32> {
        let cell = ((u64::from(random) * (buckets * CELLS_PER_BUCKET) as u64) >> 32) as usize;
        (cell / CELLS_PER_BUCKET < self.buckets())
            .then(|| self.bucket(cell / CELLS_PER_BUCKET).reference_if_taken(cell % CELLS_PER_BUCKET))?
    }

    pub(super) fn bucket_count(&self) -> usize {
        self.buckets()
    }
}
