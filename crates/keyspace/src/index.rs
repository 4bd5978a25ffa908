//! Maps a key's hash to its entry.
//!
//! An index starts as an [`inline::InlineIndex`] inside the table for a handful of keys, then becomes one
//! [`segment::Segment`] of up to 16 buckets. Above about 170 keys it is a directory of segments, whose
//! [`map::SegmentMap`] maps the leading bits of a hash to the segment that covers it (extendible hashing, Fagin et al.
//! 1979; leading bits preserve hash order). Every operation touches one segment of at most 176 entries and a small part
//! of the map, so no insert waits for a rehash, however large the table is.
//!
//! The index stores only entry numbers (references) and asks its caller for their hashes.
mod bucket;
mod inline;
mod map;
mod segment;

use inline::InlineIndex;
use map::SegmentMap;
use segment::{GrowthStep, HashedRefs, Segment};

use crate::chunked::ChunkedVec;
use crate::hashing::POSITION_MASK;
use crate::memory::prefetch;
use crate::purge::PAGES_PER_LOCK;

/// Number of entries at which a shrinking segment becomes an inline index again.
const SHRINK_TO_INLINE_LEN: usize = inline::CAPACITY / 2;

/// Provides the hashes of entries.
pub(crate) trait HashSource {
    fn hash(&self, reference: u32) -> u64;
    /// Prefetches the entry with this reference.
    fn prefetch(&self, reference: u32);
}

fn lookup_hashes(source: &impl HashSource) -> impl FnMut(&[u32], &mut HashedRefs) {
    |references, taken| {
        references.iter().for_each(|&reference| source.prefetch(reference));
        taken.extend(references.iter().map(|&reference| (source.hash(reference), reference)));
    }
}

#[derive(Debug)]
pub(crate) enum Index {
    Inline(InlineIndex),
    SingleSegment(Segment),
    Directory(Box<Directory>),
}

impl Default for Index {
    fn default() -> Self {
        Self::Inline(InlineIndex::default())
    }
}

#[derive(Debug)]
pub(crate) struct Directory {
    map: SegmentMap,
    segments: ChunkedVec<Segment>,
    /// Reusable numbers of segments that were freed.
    unused_segments: ChunkedVec<u32>,
    segments_by_depth: Vec<u32>,
}

/// Maximum number of attempts per random pick. Usually every second or third attempt succeeds; after many removals,
/// only one in a hundred.
const MAX_RANDOM_ATTEMPTS: usize = 1000;

/// Returns the next SplitMix64 pseudo-random number.
fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut splitmix64 = *state;
    splitmix64 = (splitmix64 ^ splitmix64 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    splitmix64 = (splitmix64 ^ splitmix64 >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    splitmix64 ^ splitmix64 >> 31
}

/// Number of entries per segment when an index is sized in advance. Segments are not filled completely, so that few of
/// them split soon.
const INITIAL_ENTRIES_PER_SEGMENT: usize = segment::MAX_ENTRIES * 3 / 4;
/// Maximum depth to which an index is split in advance. Splitting to this depth takes some microseconds.
const MAX_INITIAL_DEPTH: u8 = 6;

/// Two sibling segments are merged if together they have fewer entries than this.
const MERGE_THRESHOLD: usize = 80;

fn segment_from_inline(inline_index: &InlineIndex, source: &impl HashSource) -> Segment {
    let mut taken = HashedRefs::new();
    lookup_hashes(source)(inline_index.references(), &mut taken);
    let mut segment = Segment::default();
    segment.fill_empty(&taken);
    segment
}

impl Directory {
    /// Creates a directory whose only segment covers all positions.
    fn with_segment(segment: Segment) -> Self {
        let mut segments = ChunkedVec::default();
        segments.push(segment);
        Self {
            map: SegmentMap::new(),
            segments,
            unused_segments: ChunkedVec::default(),
            segments_by_depth: vec![1],
        }
    }

    fn split(&mut self, hash: u64, source: &impl HashSource) {
        let number = self.map.segment_number(hash);
        let depth = self.segments[number].depth();
        let other = self.segments[number].split(&mut lookup_hashes(source));
        let upper = match self.unused_segments.pop() {
            Some(number) => {
                self.segments[number] = other;
                number
            }
            None => {
                self.segments.push(other);
                self.segments.len() as u32 - 1
            }
        };
        self.map.split_range(hash, depth, upper);
        let depth = usize::from(depth);
        self.segments_by_depth.resize(self.segments_by_depth.len().max(depth + 2), 0);
        self.segments_by_depth[depth] -= 1;
        self.segments_by_depth[depth + 1] += 2;
    }

    /// Returns the entry in cell `cell` of the segment at `position`, or `None`. A segment that covers more positions
    /// is selected more often, but then returns `None` more often, so that each entry is equally likely.
    fn random_reference(&self, position: u64, cell: u64) -> Option<u32> {
        let deepest = self.segments_by_depth.iter().rposition(|&segments| segments > 0)?;
        let segment = &self.segments[self.map.segment_number(position)];
        let passes_by = (1u64 << (deepest - usize::from(segment.depth()))) - 1;
        if position & passes_by == 0 {
            segment.random_reference(segment::MAX_BUCKETS, cell as u32)
        } else {
            None
        }
    }

    /// Merges the segment of `hash` with its sibling if both are small. Returns whether they were merged.
    fn merge_segments(&mut self, hash: u64, source: &impl HashSource) -> bool {
        let number = self.map.segment_number(hash);
        let depth = self.segments[number].depth();
        if depth == 0 {
            return false;
        }
        let other = self.map.segment_number(hash ^ 1 << (64 - depth));
        let together = self.segments[number].len() + self.segments[other].len();
        if self.segments[other].depth() != depth || together > MERGE_THRESHOLD {
            return false;
        }
        let taken = std::mem::take(&mut self.segments[other]);
        self.segments[number].merge(taken, &mut lookup_hashes(source));
        self.map.merge_ranges(hash, depth - 1, number);
        self.segments_by_depth[usize::from(depth)] -= 2;
        self.segments_by_depth[usize::from(depth) - 1] += 1;
        self.unused_segments.push(other);
        true
    }
}

impl Index {
    /// Returns the segment that covers `hash`; `None` for an inline index.
    #[inline]
    fn segment(&self, hash: u64) -> Option<&Segment> {
        match self {
            Self::Inline(_) => None,
            Self::SingleSegment(segment) => Some(segment),
            Self::Directory(directory) => Some(&directory.segments[directory.map.segment_number(hash)]),
        }
    }

    /// Prefetches the segment header that [`Index::prefetch`] will read, unless there are so few segments that they are
    /// cached.
    #[inline]
    pub(crate) fn prefetch_segment(&self, hash: u64) {
        if let Self::Directory(directory) = self {
            let segment = &directory.segments[directory.map.segment_number(hash)];
            let segment = std::slice::from_ref(segment).as_ptr_range();
            prefetch(segment.start);
            // The header may span two cache lines.
            prefetch(segment.end.cast::<u8>().wrapping_sub(1));
        }
    }

    /// Prefetches the index line where a search for `hash` starts.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        if let Some(segment) = self.segment(hash) {
            segment.prefetch(hash);
        }
    }

    /// Returns the reference that a search for `hash` will most likely return, without comparing keys.
    #[inline]
    pub(crate) fn probable_reference(&self, hash: u64) -> Option<u32> {
        match self {
            Self::Inline(few) => few.find_candidate(hash),
            Self::SingleSegment(segment) => segment.probable_reference(hash),
            Self::Directory(directory) => {
                directory.segments[directory.map.segment_number(hash)].probable_reference(hash)
            }
        }
    }

    /// Returns the reference with this hash for which `is_match` returns true.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_match: impl FnMut(u32) -> bool) -> Option<u32> {
        match self {
            Self::Inline(few) => few.find(hash, is_match),
            Self::SingleSegment(segment) => segment.find(hash, is_match),
            Self::Directory(directory) => {
                directory.segments[directory.map.segment_number(hash)].find(hash, is_match)
            }
        }
    }

    /// Reserves space for this many entries in total. An empty index may get several segments, any other at most one.
    pub(crate) fn reserve(&mut self, entries: usize, source: &impl HashSource) {
        if entries <= inline::CAPACITY {
            return;
        }
        let mut segment = match self {
            Self::Inline(few) => segment_from_inline(few, source),
            Self::SingleSegment(segment) => std::mem::take(segment),
            Self::Directory(_) => return,
        };
        if segment.len() > 0 || entries <= segment::MAX_ENTRIES {
            segment.reserve(entries, &mut lookup_hashes(source));
            *self = Self::SingleSegment(segment);
            return;
        }
        let deep = (1..MAX_INITIAL_DEPTH)
            .find(|&depth| entries >> depth <= INITIAL_ENTRIES_PER_SEGMENT)
            .unwrap_or(MAX_INITIAL_DEPTH);
        let mut directory = Directory::with_segment(segment);
        for depth in 0..deep {
            (0..1u64 << depth).for_each(|number| directory.split(number.rotate_right(depth.into()), source));
        }
        for number in 0..directory.segments.len() {
            directory.segments[number as u32].reserve(entries >> deep, &mut lookup_hashes(source));
        }
        *self = Self::Directory(Box::new(directory));
    }

    pub(crate) fn add(&mut self, hash: u64, reference: u32, source: &impl HashSource) {
        loop {
            match self {
                Self::Inline(few) if few.is_full() => {
                    *self = Self::SingleSegment(segment_from_inline(few, source));
                }
                Self::Inline(few) => return few.add(hash, reference),
                Self::SingleSegment(segment) => match segment.growth_step() {
                    GrowthStep::Fits => return segment.add(hash, reference),
                    GrowthStep::Grow => segment.grow(&mut lookup_hashes(source)),
                    GrowthStep::Split => {
                        let mut directory = Directory::with_segment(std::mem::take(segment));
                        directory.split(hash, source);
                        *self = Self::Directory(Box::new(directory));
                    }
                },
                Self::Directory(directory) => {
                    let number = directory.map.segment_number(hash);
                    let segment = &mut directory.segments[number];
                    match segment.growth_step() {
                        GrowthStep::Fits => return segment.add(hash, reference),
                        GrowthStep::Grow => segment.grow(&mut lookup_hashes(source)),
                        GrowthStep::Split => directory.split(hash, source),
                    }
                }
            }
        }
    }

    pub(crate) fn remove(&mut self, hash: u64, reference: u32, source: &impl HashSource) {
        match self {
            Self::Inline(few) => few.remove(hash, reference),
            Self::SingleSegment(segment) => {
                segment.remove(hash, reference);
                if segment.len() <= SHRINK_TO_INLINE_LEN {
                    let mut few = InlineIndex::default();
                    let taken = segment.all_references(&mut lookup_hashes(source));
                    taken.into_iter().for_each(|(hash, reference)| few.add(hash, reference));
                    *self = Self::Inline(few);
                } else if segment.is_sparse() {
                    segment.shrink(&mut lookup_hashes(source));
                }
            }
            Self::Directory(directory) => {
                let number = directory.map.segment_number(hash);
                let segment = &mut directory.segments[number];
                segment.remove(hash, reference);
                if segment.is_sparse() {
                    segment.shrink(&mut lookup_hashes(source));
                    while directory.merge_segments(hash, source) {}
                    if directory.map.segment_count() == 1 {
                        let number = directory.map.segment_number(0);
                        *self = Self::SingleSegment(std::mem::take(&mut directory.segments[number]));
                    }
                }
            }
        }
    }

    /// Replaces the reference of an entry that was moved.
    pub(crate) fn replace_reference(&mut self, hash: u64, old: u32, new: u32) {
        match self {
            Self::Inline(few) => few.replace_reference(hash, old, new),
            Self::SingleSegment(segment) => segment.replace_reference(hash, old, new),
            Self::Directory(directory) => {
                let number = directory.map.segment_number(hash);
                directory.segments[number].replace_reference(hash, old, new);
            }
        }
    }

    /// Visits those entries of the bucket at `position` that are at this position or a higher one. Returns the next
    /// position, or `None` at the end.
    pub(crate) fn visit(
        &self,
        position: u64,
        source: &impl HashSource,
        visit: impl FnMut(u32),
    ) -> Option<u64> {
        let segment = match self {
            Self::Inline(few) => {
                let references = few.references().iter().copied();
                references
                    .filter(|&reference| source.hash(reference) & POSITION_MASK >= position)
                    .for_each(visit);
                return None;
            }
            Self::SingleSegment(segment) => segment,
            Self::Directory(directory) => &directory.segments[directory.map.segment_number(position)],
        };
        let depth = segment.depth();
        let start = if depth == 0 { 0 } else { position & !(u64::MAX >> depth) };
        match segment.visit_bucket(position & POSITION_MASK, |reference| source.hash(reference), visit) {
            Some(offset) => Some(start + offset),
            None if depth == 0 => None,
            None => start.checked_add(1 << (64 - depth)),
        }
    }

    /// Visits all entries in arbitrary order until `visit` returns false. Returns whether all were visited. `source`
    /// only prefetches the entries.
    pub(crate) fn visit_all(&self, source: &impl HashSource, mut visit: impl FnMut(u32) -> bool) -> bool {
        match self {
            Self::Inline(few) => {
                few.references().iter().for_each(|&reference| source.prefetch(reference));
                few.references().iter().copied().all(visit)
            }
            Self::SingleSegment(segment) => segment.visit_all(source, &mut visit),
            Self::Directory(directory) => {
                directory.segments.iter().all(|segment| segment.visit_all(source, &mut visit))
            }
        }
    }

    /// Picks a uniformly random entry by probing random cells until an occupied one is found.
    pub(crate) fn random_reference(&self, random: u64) -> Option<u32> {
        let mut state = random;
        let found = (0..MAX_RANDOM_ATTEMPTS).find_map(|_| {
            let (position, cell) = (splitmix64(&mut state), splitmix64(&mut state));
            match self {
                Self::Inline(few) => few.random_reference(cell),
                Self::SingleSegment(segment) => segment.random_reference(segment.bucket_count(), cell as u32),
                Self::Directory(directory) => directory.random_reference(position, cell),
            }
        });
        found.or_else(|| self.first_reference())
    }

    fn first_reference(&self) -> Option<u32> {
        match self {
            Self::Inline(few) => few.references().first().copied(),
            Self::SingleSegment(segment) => segment.any_reference(),
            Self::Directory(directory) => directory.segments.iter().find_map(Segment::any_reference),
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Inline(_) => 0,
            Self::SingleSegment(segment) => segment.heap_bytes(),
            Self::Directory(directory) => {
                let segments: usize = directory.segments.iter().map(Segment::heap_bytes).sum();
                let lists = directory.segments.heap_bytes() + directory.unused_segments.heap_bytes();
                let lists = lists + directory.segments_by_depth.capacity() * size_of::<u32>();
                segments + directory.map.heap_bytes() + lists + size_of::<Directory>()
            }
        }
    }

    /// Moves the index lines in chunk `part` to lower addresses of the pool if there is room. Returns whether more
    /// chunks follow.
    pub(crate) fn move_to_lower_addresses(&mut self, part: usize) -> bool {
        match self {
            Self::Inline(_) => false,
            Self::SingleSegment(segment) => {
                segment.move_to_lower_addresses();
                false
            }
            Self::Directory(directory) => {
                let count = directory.segments.len();
                let some = part * PAGES_PER_LOCK..count.min((part + 1) * PAGES_PER_LOCK);
                some.for_each(|number| directory.segments[number as u32].move_to_lower_addresses());
                count > (part + 1) * PAGES_PER_LOCK
            }
        }
    }
}
