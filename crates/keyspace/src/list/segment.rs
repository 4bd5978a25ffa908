//! Some elements of a large list that follow each other: a run of records with room at both ends.

use super::records::{self, ListItem};
use crate::overflow::note_shed;

/// A segment has at most this many bytes of records, unless it is one element. The more, the less is spent beside
/// the elements; but this much is moved when one comes in between, is looked through to find one by its index, and is
/// copied when a pinned list is changed. Measured with 200 elements of 75 bytes: at twice as much the unused end of the
/// last segment costs more than the fewer segments save.
pub(crate) const MOST_BYTES: usize = 4096;
/// Neighbours are joined when one has become smaller than this, and both together are small.
const SMALL: usize = MOST_BYTES / 4;
const SMALL_TOGETHER: usize = MOST_BYTES / 2;

/// A run of records.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    /// The records, behind what is free before them.
    bytes: Vec<u8>,
    start: u32,
    count: u32,
}

/// Without the room at its ends.
impl Clone for Segment {
    fn clone(&self) -> Self {
        note_shed(self.bytes() + size_of::<Self>());
        Self { bytes: self.records().to_vec(), start: 0, count: self.count }
    }
}

/// The sizes in which the allocator gives memory: four between a power of two and the next.
fn allocated(len: usize) -> usize {
    if len <= 64 {
        return len.next_multiple_of(16);
    }
    len.next_multiple_of(len.next_power_of_two() / 8)
}

impl Segment {
    /// One element.
    pub(crate) fn of(record: &[u8]) -> Self {
        Self::with(record, 1)
    }

    pub(crate) fn with(records: &[u8], count: usize) -> Self {
        let mut bytes = Vec::with_capacity(allocated(records.len()));
        bytes.extend_from_slice(records);
        Self { bytes, start: 0, count: count as u32 }
    }

    pub(crate) fn records(&self) -> &[u8] {
        &self.bytes[self.start as usize..]
    }

    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    /// Bytes of its records.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() - self.start as usize
    }

    /// Whether records of so many bytes find room.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.bytes() + more <= MOST_BYTES
    }

    /// Where record `index` begins among the records.
    pub(crate) fn offset(&self, index: usize) -> usize {
        records::offset(self.records(), self.len(), index)
    }

    pub(crate) fn item(&self, index: usize) -> ListItem<'_> {
        records::read(self.records(), self.offset(index)).item
    }

    /// Sees to it that so many bytes find room: before the records, or behind them.
    fn make_room(&mut self, more: usize, in_front: bool) {
        let (start, len) = (self.start as usize, self.bytes());
        let free = if in_front { start } else { self.bytes.capacity() - self.bytes.len() };
        if free >= more {
            return;
        }
        let mut capacity = self.bytes.capacity();
        if capacity < len + more {
            capacity = allocated(len + more);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        let to = if in_front { capacity - len } else { 0 };
        self.bytes.resize((to + len).max(self.bytes.len()), 0);
        self.bytes.copy_within(start..start + len, to);
        self.bytes.truncate(to + len);
        self.start = to as u32;
    }

    /// Puts records before element `index`.
    pub(crate) fn insert(&mut self, index: usize, record: &[u8]) {
        let in_front = index == 0 && self.count > 0;
        let at = self.offset(index);
        self.make_room(record.len(), in_front);
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

    /// Bytes of record `index`.
    pub(crate) fn record_len(&self, index: usize) -> usize {
        let at = self.offset(index);
        records::next(self.records(), at) - at
    }

    /// Takes element `index` out.
    pub(crate) fn remove(&mut self, index: usize) {
        let (at, len) = (self.offset(index), self.record_len(index));
        self.count -= 1;
        if index == 0 {
            self.start += len as u32;
        } else {
            let at = self.start as usize + at;
            self.bytes.drain(at..at + len);
        }
    }

    /// Puts a record in the place of element `index`. There must be room for it.
    pub(crate) fn replace(&mut self, index: usize, record: &[u8]) {
        let at = self.offset(index);
        let end = at + self.record_len(index);
        self.make_room(record.len().saturating_sub(end - at), false);
        let start = self.start as usize;
        self.bytes.splice(start + at..start + end, record.iter().copied());
        if self.bytes.capacity() > MOST_BYTES {
            self.make_tight();
        }
    }

    /// Takes the elements from `index` on out.
    pub(crate) fn split_off(&mut self, index: usize) -> Self {
        let at = self.offset(index);
        let rest = Self::with(&self.records()[at..], self.len() - index);
        self.bytes.truncate(self.start as usize + at);
        self.count = index as u32;
        self.make_tight();
        rest
    }

    /// Gives back what is free, if that is much.
    fn make_tight(&mut self) {
        if allocated(self.bytes()) < self.bytes.capacity() {
            *self = Self::with(self.records(), self.len());
        }
    }

    /// Whether it should be joined with this neighbour.
    pub(crate) fn should_join(&self, neighbour: &Self) -> bool {
        self.bytes().min(neighbour.bytes()) < SMALL && self.bytes() + neighbour.bytes() <= SMALL_TOGETHER
    }

    /// Appends the elements of the next.
    pub(crate) fn join(&mut self, next: &Self) {
        self.make_room(next.bytes(), false);
        self.bytes.extend_from_slice(next.records());
        self.count += next.count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_at_both_ends_and_keeps_little_free() {
        let mut segment = Segment::default();
        for number in 0..200u8 {
            let element = [number; 10];
            let index = if number % 3 == 0 { 0 } else { segment.len() };
            segment.insert(index, &records::record(ListItem::Bytes(&element)));
            assert_eq!(segment.item(index), ListItem::Bytes(&element));
            assert!(segment.bytes.capacity() <= allocated(segment.bytes()) + 16, "{segment:?}");
        }
        assert_eq!(segment.records().len(), 2400);
        let rest = segment.split_off(50);
        assert_eq!((segment.len(), rest.len()), (50, 150));
        assert_eq!(segment.bytes.capacity(), allocated(600));
        segment.join(&rest);
        assert_eq!(segment.records().len(), 2400);
    }

    #[test]
    fn a_large_element_takes_what_it_needs() {
        let segment = Segment::of(&records::record(ListItem::Bytes(&vec![7; 100_000])));
        assert_eq!(segment.bytes(), 100_008);
        assert!(segment.bytes.capacity() < 115_000);
        assert!(!segment.has_room(1));
    }
}
