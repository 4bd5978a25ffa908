//! The directory map: which segment covers which hash positions.
//!
//! The map has one element per value of the first `depth` bits of a position; neighbouring elements can have the same
//! segment number. It doubles when a segment that has only one element is split. With millions of keys, doubling at
//! once would delay a command, so the doubled map is prepared in advance, a few elements per split.

use std::ops::Range;

/// Number of elements copied to the doubled map per split. The map doubles when nearly every element has its own
/// segment. [`SegmentMap::is_nearly_full`] becomes true early enough that four times as many splits remain as copying
/// needs.
const ELEMENTS_PER_SPLIT: usize = 16;
/// Minimum length of a map that is doubled in steps.
const MIN_INCREMENTAL_LEN: usize = 4096;

#[derive(Debug)]
pub(super) struct SegmentMap {
    depth: u8,
    segment_numbers: Vec<u32>,
    /// The elements of the doubled map that were prepared so far.
    doubled_map: Vec<u32>,
    segment_count: usize,
}

impl SegmentMap {
    /// Creates a map in which segment 0 covers all positions.
    pub(super) fn new() -> Self {
        Self { depth: 1, segment_numbers: vec![0; 2], doubled_map: Vec::new(), segment_count: 1 }
    }

    #[inline]
    pub(super) fn segment_number(&self, position: u64) -> u32 {
        self.segment_numbers[(position >> (64 - self.depth)) as usize]
    }

    /// Splits the segment that covers the positions whose first `depth` bits are those of `position`: `upper_segment`
    /// now covers the upper half of these positions.
    pub(super) fn split_range(&mut self, position: u64, depth: u8, upper_segment: u32) {
        if depth == self.depth {
            self.extend_doubled(self.segment_numbers.len());
            self.segment_numbers = std::mem::take(&mut self.doubled_map);
            self.depth += 1;
        } else if self.is_nearly_full() {
            self.extend_doubled(ELEMENTS_PER_SPLIT);
        }
        let range = self.range(position, depth);
        self.set_range(range.start.midpoint(range.end)..range.end, upper_segment);
        self.segment_count += 1;
    }

    /// Merges two segments: `segment` now covers all positions whose first `depth` bits are those of `position`.
    pub(super) fn merge_ranges(&mut self, position: u64, depth: u8, segment: u32) {
        self.set_range(self.range(position, depth), segment);
        self.segment_count -= 1;
    }

    pub(super) fn segment_count(&self) -> usize {
        self.segment_count
    }

    fn is_nearly_full(&self) -> bool {
        self.segment_numbers.len() >= MIN_INCREMENTAL_LEN
            && self.segment_count > self.segment_numbers.len() / 4 * 3
    }

    /// Copies `elements` more elements to the doubled map.
    fn extend_doubled(&mut self, elements: usize) {
        self.doubled_map.reserve_exact(self.segment_numbers.len() * 2 - self.doubled_map.len());
        let done = self.doubled_map.len() / 2;
        self.doubled_map.extend(
            self.segment_numbers.iter().skip(done).take(elements).flat_map(|&number| [number, number]),
        );
    }

    /// Returns the elements for the positions whose first `depth` bits are those of `position`.
    fn range(&self, position: u64, depth: u8) -> Range<usize> {
        let first = if depth == 0 { 0 } else { (position >> (64 - depth)) as usize };
        let width = 1 << (self.depth - depth);
        first * width..(first + 1) * width
    }

    fn set_range(&mut self, elements: Range<usize>, number: u32) {
        let ready = self.doubled_map.len();
        self.doubled_map[ready.min(elements.start * 2)..ready.min(elements.end * 2)].fill(number);
        self.segment_numbers[elements].fill(number);
    }

    /// Returns the number of heap bytes used.
    pub(super) fn heap_bytes(&self) -> usize {
        (self.segment_numbers.capacity() + self.doubled_map.capacity()) * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Reference model: the depth and number of each segment, by its start position.
    struct ReferenceMap(BTreeMap<u64, (u8, u32)>);

    impl ReferenceMap {
        fn segment_at(&self, position: u64) -> (u64, u8, u32) {
            let (&start, &(depth, number)) = self.0.range(..=position).next_back().unwrap();
            (start, depth, number)
        }
    }

    fn next_random(random: &mut u64) -> u64 {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *random ^ *random >> 29
    }

    fn check_map(map: &SegmentMap, model: &ReferenceMap) {
        for (&start, &(depth, number)) in &model.0 {
            let last = start | u64::MAX >> depth;
            assert_eq!(
                [map.segment_number(start), map.segment_number(last)],
                [number; 2],
                "{start:x} of depth {depth}"
            );
        }
    }

    /// Splits and merges segments at random, up to ten thousand and down to one. The map must always return the segment
    /// that covers a position.
    #[test]
    fn map_leads_to_covering_segment() {
        let mut map = SegmentMap::new();
        let mut twin = ReferenceMap(BTreeMap::from([(0, (0, 0))]));
        let (mut random, mut made) = (7, 0);
        for goal in [10_000, 5000, 12_000, 20, 12_000, 1] {
            while twin.0.len() < goal {
                let position = next_random(&mut random);
                let (start, depth, number) = twin.segment_at(position);
                made += 1;
                map.split_range(position, depth, made);
                twin.0.insert(start, (depth + 1, number));
                twin.0.insert(start | 1 << (63 - depth), (depth + 1, made));
            }
            while twin.0.len() > goal {
                let starts: Vec<u64> = twin.0.keys().copied().collect();
                for start in starts {
                    let Some(&(depth @ 1.., number)) = twin.0.get(&start) else { continue };
                    let other = start ^ 1 << (64 - depth);
                    let halves = twin.0.get(&other).is_some_and(|other| other.0 == depth);
                    if halves && next_random(&mut random).is_multiple_of(2) && twin.0.len() > goal {
                        twin.0.remove(&start.max(other));
                        twin.0.insert(start.min(other), (depth - 1, number));
                        map.merge_ranges(start, depth - 1, number);
                    }
                }
            }
            check_map(&map, &twin);
        }
    }

    /// If all segments fill equally, all segments of one depth split before the next depth starts. The doubled map must
    /// be complete in time, whatever was split and merged while it was prepared.
    #[test]
    fn large_map_is_doubled_ahead_of_time() {
        let mut map = SegmentMap::new();
        let mut twin = ReferenceMap(BTreeMap::from([(0, (0, 0))]));
        let mut made = 0;
        for depth in 0..16u8 {
            if depth == map.depth && map.segment_numbers.len() >= MIN_INCREMENTAL_LEN {
                assert_eq!(map.doubled_map.len(), 2 * map.segment_numbers.len());
            }
            let count = 1u64 << depth;
            for turn in 0..count {
                // Visit every segment once, in pseudo-random order.
                let number = turn.wrapping_mul(0x9e37_79b9) % count;
                let start = if depth == 0 { 0 } else { number << (64 - depth) };
                let lower = twin.0[&start].1;
                made += 1;
                map.split_range(start, depth, made);
                if turn.is_multiple_of(3) {
                    map.merge_ranges(start | 1 << (63 - depth), depth, made);
                    map.split_range(start, depth, made);
                    map.merge_ranges(start, depth, lower);
                    map.split_range(start, depth, made);
                }
                twin.0.insert(start, (depth + 1, lower));
                twin.0.insert(start | 1 << (63 - depth), (depth + 1, made));
            }
            check_map(&map, &twin);
        }
    }
}
