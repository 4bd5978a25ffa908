//! The segments of a large list in order, found by element index.
//!
//! Each node of the tree ([`crate::tree`]) has the number of elements and bytes in its subtree, so a lookup by index
//! takes as many steps as the tree has levels: five for a billion elements.

use std::sync::Arc;

use super::records::{self, ListItem};
use super::segment::Segment;
use crate::tree::{self, Child, Item, Seek, TreeEnd};

/// Number of heap bytes that a shared segment takes, including its item in the leaf.
const SEGMENT_BYTES: usize = 2 * size_of::<usize>() + size_of::<Segment>() + size_of::<SizedSegment>();

/// Element, byte and segment counts of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ListSize {
    pub(crate) len: usize,
    pub(crate) bytes: usize,
    pub(crate) segments: usize,
}

impl ListSize {
    /// Returns the estimated heap bytes. Free space at the ends of segments is small and ignored.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.bytes + self.segments * SEGMENT_BYTES
    }
}

impl std::iter::Sum for ListSize {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::default(), |sum, size| Self {
            len: sum.len + size.len,
            bytes: sum.bytes + size.bytes,
            segments: sum.segments + size.segments,
        })
    }
}

/// A segment with a copy of its size, so that a search can skip the segment without reading it.
#[derive(Debug, Clone)]
struct SizedSegment {
    len: usize,
    bytes: usize,
    segment: Arc<Segment>,
}

impl From<Segment> for SizedSegment {
    fn from(segment: Segment) -> Self {
        Self { len: segment.len(), bytes: segment.bytes(), segment: Arc::new(segment) }
    }
}

impl SizedSegment {
    /// Edits the segment, copying it first if it is shared.
    fn edit<R>(&mut self, change: impl FnOnce(&mut Segment) -> R) -> R {
        let segment = Arc::make_mut(&mut self.segment);
        let result = change(segment);
        (self.len, self.bytes) = (segment.len(), segment.bytes());
        result
    }
}

impl Item for SizedSegment {
    type Summary = ListSize;

    fn summary(items: &[Self]) -> ListSize {
        items.iter().map(|held| ListSize { len: held.len, bytes: held.bytes, segments: 1 }).sum()
    }

    fn summary_of_children(children: &[Child<Self>]) -> ListSize {
        children.iter().map(|child| child.summary).sum()
    }
}

/// A search by element index. The index is relative to the list at first, later to a node, and finally to a segment.
#[derive(Debug, Clone, Copy)]
struct ElementIndex(usize);

impl ElementIndex {
    /// Selects the child that contains the element, given the element counts of the children.
    fn descend(&mut self, mut lens: impl Iterator<Item = usize>) -> Option<usize> {
        lens.position(|len| {
            let is_here = self.0 < len;
            self.0 -= if is_here { 0 } else { len };
            is_here
        })
    }
}

impl Seek<SizedSegment> for ElementIndex {
    fn child_index(&mut self, children: &[Child<SizedSegment>]) -> usize {
        let place = self.descend(children.iter().map(|child| child.summary.len));
        place.expect("the index is that of an element")
    }

    fn item_index(&mut self, items: &[SizedSegment]) -> Result<usize, usize> {
        self.descend(items.iter().map(|held| held.len)).ok_or(items.len())
    }
}

/// A search for an insert position: before an element, or at the end of the list. Between two segments, it finds the
/// end of the first one.
#[derive(Debug, Clone, Copy)]
struct InsertPosition(usize);

impl InsertPosition {
    fn descend<P>(&mut self, first: P, element: impl FnOnce(&mut ElementIndex) -> P) -> P {
        let Some(index) = self.0.checked_sub(1) else { return first };
        let mut before = ElementIndex(index);
        let place = element(&mut before);
        self.0 = before.0 + 1;
        place
    }
}

impl Seek<SizedSegment> for InsertPosition {
    fn child_index(&mut self, children: &[Child<SizedSegment>]) -> usize {
        self.descend(0, |element| element.child_index(children))
    }

    fn item_index(&mut self, items: &[SizedSegment]) -> Result<usize, usize> {
        let first = if items.is_empty() { Err(0) } else { Ok(0) };
        self.descend(first, |element| element.item_index(items))
    }
}

/// The segments of a list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tree {
    tree: tree::Tree<SizedSegment>,
}

type NodeEdit<'a> = tree::NodeEdit<'a, SizedSegment>;

/// Removes element `index` of a segment from a leaf.
fn remove(node: &mut NodeEdit<'_>, segment_index: usize, index: usize) {
    if node.items()[segment_index].len == 1 {
        node.remove(segment_index);
        return;
    }
    node.items()[segment_index].edit(|segment| segment.remove(index));
    if !join_with_next(node, segment_index) && segment_index > 0 {
        join_with_next(node, segment_index - 1);
    }
}

/// Merges a segment with the next one if both have become small. Returns whether it did.
fn join_with_next(node: &mut NodeEdit<'_>, segment_index: usize) -> bool {
    let [first, second, ..] = &mut node.items()[segment_index..] else { return false };
    let joins = first.segment.should_merge(&second.segment);
    if joins {
        first.edit(|segment| segment.append_segment(&second.segment));
        node.remove(segment_index + 1);
    }
    joins
}

/// Splits a segment before element `index`, unless one half would be empty.
fn split(node: &mut NodeEdit<'_>, segment_index: usize, index: usize) {
    let held = &mut node.items()[segment_index];
    if index > 0 && index < held.len {
        let rest = held.edit(|segment| segment.split_off(index));
        node.insert(segment_index + 1, rest.into());
    }
}

/// Inserts a record before element `index` of a segment.
fn insert(node: &mut NodeEdit<'_>, segment_index: usize, index: usize, record: &[u8]) {
    let held = &mut node.items()[segment_index];
    if held.segment.has_room(record.len()) {
        return held.edit(|segment| segment.insert(index, record));
    }
    split(node, segment_index, index);
    node.insert(segment_index + usize::from(index > 0), Segment::with_record(record).into());
}

impl Tree {
    pub(crate) fn size(&self) -> ListSize {
        self.tree.summary().unwrap_or_default()
    }

    /// Returns the element at `index`, which must exist.
    pub(crate) fn item(&self, index: usize) -> ListItem<'_> {
        let mut to = ElementIndex(index);
        let held = self.tree.find(&mut to).expect("the index is that of an element");
        held.segment.item(to.0)
    }

    /// Visits elements from `index` forward until `visit` returns false. Returns whether all were visited.
    pub(crate) fn visit<'a>(&'a self, index: usize, visit: &mut dyn FnMut(ListItem<'a>) -> bool) -> bool {
        let mut to = ElementIndex(index);
        let mut segments = self.tree.iter_from(&mut to);
        let mut from = to.0;
        segments.all(|held| {
            let run = &held.segment.records()[held.segment.record_offset(std::mem::take(&mut from))..];
            records::items(run).all(&mut *visit)
        })
    }

    /// Visits elements from `index` back to the first until `visit` returns false. Returns whether all were visited.
    pub(crate) fn visit_backward<'a>(
        &'a self,
        index: usize,
        visit: &mut dyn FnMut(ListItem<'a>) -> bool,
    ) -> bool {
        let mut to = ElementIndex(index);
        let mut segments = self.tree.backward_from(&mut to);
        let mut from = Some(to.0);
        segments.all(|held| {
            let last = from.take().unwrap_or(held.len - 1);
            records::items_backward(&held.segment.records()[..held.segment.record_offset(last + 1)])
                .all(&mut *visit)
        })
    }

    pub(crate) fn visit_segments<'a>(&'a self, visit: &mut dyn FnMut(&'a Segment)) {
        self.tree.iter().for_each(|held| visit(&held.segment));
    }

    /// Inserts a record before element `index`, or at the end.
    pub(crate) fn insert(&mut self, index: usize, record: &[u8]) {
        self.tree.edit_item(InsertPosition(index), |row, place, &InsertPosition(index)| match place {
            Ok(place) => insert(row, place, index, record),
            Err(place) => row.insert(place, Segment::with_record(record).into()),
        });
    }

    pub(crate) fn replace(&mut self, index: usize, record: &[u8]) {
        let done = self.edit_segment(index, |row, place, index| {
            let held = &mut row.items()[place];
            let more = record.len().saturating_sub(held.segment.record_len(index));
            let fits = held.len == 1 || held.segment.has_room(more);
            if fits {
                held.edit(|segment| segment.replace(index, record));
            }
            fits
        });
        if done == Some(false) {
            self.remove(index);
            self.insert(index, record);
        }
    }

    pub(crate) fn remove(&mut self, index: usize) {
        self.edit_segment(index, remove);
    }

    /// Edits the leaf that contains the element at `index`.
    fn edit_segment<R>(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut NodeEdit<'_>, usize, usize) -> R,
    ) -> Option<R> {
        let (result, is_there) =
            self.tree.edit_item(ElementIndex(index), |row, place, &ElementIndex(index)| {
                (place.ok().map(|place| change(row, place, index)), place.is_ok())
            })?;
        debug_assert!(is_there, "the index is that of an element");
        result
    }

    /// Splits off the elements starting at `index`.
    pub(crate) fn split_off(&mut self, index: usize) -> Self {
        if index == 0 {
            return std::mem::take(self);
        }
        if index >= self.size().len {
            return Self::default();
        }
        self.edit_segment(index, split);
        Self { tree: self.tree.split_off(ElementIndex(index)) }
    }

    pub(crate) fn take_first(&mut self) -> Option<Arc<Segment>> {
        let held = self.tree.edit_existing(TreeEnd::First, |row, _, _| row.remove(0))?;
        Some(held.segment)
    }
}

#[cfg(test)]
mod tests;
