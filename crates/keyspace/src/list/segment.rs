//! A segment: consecutive elements of a large list, with free space at both ends.

use super::records::{self, ListItem};
use crate::overflow::record_replaced_bytes;

/// Maximum record bytes of a segment with more than one element. Larger segments would have less overhead, but an
/// insert in the middle moves all these bytes, a lookup by index scans them, and an edit of a pinned list copies them.
/// Measured with 200 elements of 75 bytes, twice the maximum wastes more space in the last segment than it saves by
/// fewer segments.
pub(crate) const MAX_SEGMENT_BYTES: usize = 4096;
/// Size below which a segment is merged with a neighbour, if the merged segment is still small.
const MAX_SMALL_BYTES: usize = MAX_SEGMENT_BYTES / 4;
const MAX_MERGED_BYTES: usize = MAX_SEGMENT_BYTES / 2;

/// Consecutive elements of a list, as records with free space at both ends.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    /// The records, between free space at both ends.
    bytes: Vec<u8>,
    start: u32,
    count: u32,
}

/// Copies the records without the free space.
impl Clone for Segment {
    fn clone(&self) -> Self {
        record_replaced_bytes(self.bytes() + size_of::<Self>());
        Self { bytes: self.records().to_vec(), start: 0, count: self.count }
    }
}

/// Rounds `len` up to the allocator's next size class, with four classes per power of two.
fn allocation_size(len: usize) -> usize {
    if len <= 64 {
        return len.next_multiple_of(16);
    }
    len.next_multiple_of(len.next_power_of_two() / 8)
}

impl Segment {
    pub(crate) fn with_record(record: &[u8]) -> Self {
        Self::with_records(record, 1)
    }

    pub(crate) fn with_records(records: &[u8], count: usize) -> Self {
        let mut bytes = Vec::with_capacity(allocation_size(records.len()));
        bytes.extend_from_slice(records);
        Self { bytes, start: 0, count: count as u32 }
    }

    pub(crate) fn records(&self) -> &[u8] {
        &self.bytes[self.start as usize..]
    }

    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() - self.start as usize
    }

    /// Returns whether another `more` bytes of records fit.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.bytes() + bytes <= MAX_SEGMENT_BYTES
    }

    /// Returns the offset of record `index`, relative to the first record.
    pub(crate) fn record_offset(&self, index: usize) -> usize {
        records::record_offset(self.records(), self.len(), index)
    }

    pub(crate) fn item(&self, index: usize) -> ListItem<'_> {
        records::read_record(self.records(), self.record_offset(index)).item
    }

    /// Reserves free space of `bytes` bytes, before the records or after them.
    fn reserve(&mut self, bytes: usize, at_start: bool) {
        let (start, len) = (self.start as usize, self.bytes());
        let free = if at_start { start } else { self.bytes.capacity() - self.bytes.len() };
        if free >= bytes {
            return;
        }
        let mut capacity = self.bytes.capacity();
        if capacity < len + bytes {
            capacity = allocation_size(len + bytes);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        let to = if at_start { capacity - len } else { 0 };
        self.bytes.resize((to + len).max(self.bytes.len()), 0);
        self.bytes.copy_within(start..start + len, to);
        self.bytes.truncate(to + len);
        self.start = to as u32;
    }

    /// Inserts records before element `index`.
    pub(crate) fn insert(&mut self, index: usize, record: &[u8]) {
        let in_front = index == 0 && self.count > 0;
        let at = self.record_offset(index);
        self.reserve(record.len(), in_front);
        if in_front {
            self.start -= record.len() as u32;
            let start = self.start as usize;
            self.bytes[start..start + record.len()].copy_from_slice(record);
        } else if at == self.bytes() {
            self.bytes.extend_from_slice(record);
        } else {
            let at = self.start as usize + at;
            self.bytes.splice(at..at, record.iter().copied());
        }
        self.count += 1;
    }

    /// Returns the length of record `index` in bytes.
    pub(crate) fn record_len(&self, index: usize) -> usize {
        let at = self.record_offset(index);
        records::next_offset(self.records(), at) - at
    }

    pub(crate) fn remove(&mut self, index: usize) {
        let (at, len) = (self.record_offset(index), self.record_len(index));
        self.count -= 1;
        if index == 0 {
            self.start += len as u32;
        } else {
            let at = self.start as usize + at;
            self.bytes.drain(at..at + len);
        }
    }

    /// Replaces element `index`. The record must fit.
    pub(crate) fn replace(&mut self, index: usize, record: &[u8]) {
        let at = self.record_offset(index);
        let end = at + self.record_len(index);
        self.reserve(record.len().saturating_sub(end - at), false);
        let start = self.start as usize;
        self.bytes.splice(start + at..start + end, record.iter().copied());
        if self.bytes.capacity() > MAX_SEGMENT_BYTES {
            self.shrink_to_fit();
        }
    }

    /// Splits off the elements starting at `index`.
    pub(crate) fn split_off(&mut self, index: usize) -> Self {
        let at = self.record_offset(index);
        let rest = Self::with_records(&self.records()[at..], self.len() - index);
        self.bytes.truncate(self.start as usize + at);
        self.count = index as u32;
        self.shrink_to_fit();
        rest
    }

    /// Shrinks the buffer if much of it is free.
    fn shrink_to_fit(&mut self) {
        if allocation_size(self.bytes()) < self.bytes.capacity() {
            *self = Self::with_records(self.records(), self.len());
        }
    }

    pub(crate) fn should_merge(&self, neighbour: &Self) -> bool {
        self.bytes().min(neighbour.bytes()) < MAX_SMALL_BYTES
            && self.bytes() + neighbour.bytes() <= MAX_MERGED_BYTES
    }

    pub(crate) fn append_segment(&mut self, next: &Self) {
        self.reserve(next.bytes(), false);
        self.bytes.extend_from_slice(next.records());
        self.count += next.count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_grows_at_both_ends_with_little_free_space() {
        let mut segment = Segment::default();
        for number in 0..200u8 {
            let element = [number; 10];
            let index = if number % 3 == 0 { 0 } else { segment.len() };
            segment.insert(index, &records::encode_record(ListItem::Bytes(&element)));
            assert_eq!(segment.item(index), ListItem::Bytes(&element));
            assert!(segment.bytes.capacity() <= allocation_size(segment.bytes()) + 16, "{segment:?}");
        }
        assert_eq!(segment.records().len(), 2400);
        let rest = segment.split_off(50);
        assert_eq!((segment.len(), rest.len()), (50, 150));
        assert_eq!(segment.bytes.capacity(), allocation_size(600));
        segment.append_segment(&rest);
        assert_eq!(segment.records().len(), 2400);
    }

    #[test]
    fn segment_of_large_element_fits_exactly() {
        let segment = Segment::with_record(&records::encode_record(ListItem::Bytes(&vec![7; 100_000])));
        assert_eq!(segment.bytes(), 100_008);
        assert!(segment.bytes.capacity() < 115_000);
        assert!(!segment.has_room(1));
    }
}
