//! A large list: a tree of segments, and the versions of the tree that snapshots pin.
//!
//! A snapshot pins the tree in the state that it captured. This costs one pointer, because the pinned tree shares all
//! nodes with the live one. Visiting the list removes segments from the front of the pinned tree; segments that have
//! changed since are separate nodes of the live tree.

use std::sync::Arc;

use super::ListEnd;
use super::records::{self, ListItem};
use super::segment::Segment;
use super::tree::{ListSize, Tree};
use crate::captured::{CapturedEntries, ValueOwner};
use crate::large::{Collection, LargeValue};
use crate::overflow::{self, Record, SnapshotOnlyBytes};
use crate::packed::PackedValue;
use crate::pages::FillLevel;

/// Number of bytes of segments in one part that a snapshot visits.
const BYTES_PER_PART: usize = 16 << 10;

/// The elements of a large list.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    tree: Tree,
    /// Number of elements and bytes in `tree`.
    size: ListSize,
    pins: Vec<PinnedList>,
}

/// The list in the state that a snapshot captured.
#[derive(Debug)]
struct PinnedList {
    snapshot_bit: u32,
    /// Segments that the snapshot has not visited yet.
    unvisited: Tree,
    total_size: ListSize,
    is_first_part_pending: bool,
    snapshot_only_bytes: SnapshotOnlyBytes,
}

/// Some segments of a list, and the size of the whole list when the snapshot was taken.
#[derive(Debug)]
pub(crate) struct SegmentsPart {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) total_size: ListSize,
    pub(crate) is_first: bool,
}

impl From<Tree> for Segments {
    fn from(tree: Tree) -> Self {
        Self { size: tree.size(), tree, pins: Vec::new() }
    }
}

impl Segments {
    pub(crate) fn bytes(&self) -> usize {
        self.size.bytes
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(crate) fn size(&self) -> ListSize {
        self.size
    }

    pub(crate) fn push(&mut self, end: ListEnd, item: ListItem<'_>) {
        let index = match end {
            ListEnd::Head => 0,
            ListEnd::Tail => self.size.len,
        };
        self.insert(index, item);
    }

    /// Inserts an element before `index`.
    pub(crate) fn insert(&mut self, index: usize, item: ListItem<'_>) {
        self.edit_tree(|tree| tree.insert(index, &records::encode_record(item)));
    }

    pub(crate) fn replace(&mut self, index: usize, item: ListItem<'_>) {
        self.edit_tree(|tree| tree.replace(index, &records::encode_record(item)));
    }

    pub(crate) fn remove(&mut self, index: usize) {
        self.edit_tree(|tree| tree.remove(index));
    }

    /// Removes `count` elements from an end and returns them.
    pub(crate) fn take_from_end(&mut self, end: ListEnd, count: usize) -> Self {
        let before = overflow::total_replaced_bytes();
        let mut rest = match end {
            ListEnd::Head => self.tree.split_off(count),
            ListEnd::Tail => self.tree.split_off(self.size.len - count),
        };
        if end == ListEnd::Head {
            std::mem::swap(&mut self.tree, &mut rest);
        }
        self.size = self.tree.size();
        overflow::record_replaced_bytes(rest.size().heap_bytes());
        self.record_bytes_replaced_since(before);
        rest.into()
    }

    fn edit_tree(&mut self, change: impl FnOnce(&mut Tree)) {
        let before = overflow::total_replaced_bytes();
        change(&mut self.tree);
        self.size = self.tree.size();
        self.record_bytes_replaced_since(before);
    }

    fn record_bytes_replaced_since(&mut self, before: usize) {
        if let Some(held) = self.pins.last_mut() {
            held.snapshot_only_bytes.add_bytes_replaced_since(before);
        }
    }
}

impl Collection for Segments {
    fn len(&self) -> usize {
        self.size.len
    }

    fn estimated_bytes(&self) -> usize {
        self.size.heap_bytes()
    }

    fn heap_bytes(&self) -> usize {
        self.size.heap_bytes()
    }

    fn fill_level(&self) -> FillLevel {
        FillLevel::Free
    }

    fn add_packed(&mut self, elements: PackedValue<'_>) -> bool {
        elements.items().for_each(|item| self.push(ListEnd::Tail, item));
        true
    }

    fn copy(&self) -> LargeValue {
        LargeValue::List(Box::new(self.tree.clone().into()))
    }

    fn pin(&mut self, snapshot_bit: u32) {
        if self.pins.iter().all(|held| held.snapshot_bit != snapshot_bit) {
            let kept = SnapshotOnlyBytes::with_limit(self.size.heap_bytes());
            self.pins.push(PinnedList {
                snapshot_bit,
                unvisited: self.tree.clone(),
                total_size: self.size,
                is_first_part_pending: true,
                snapshot_only_bytes: kept,
            });
        }
    }

    fn walk(
        &mut self,
        snapshot_bit: u32,
        owner: ValueOwner<'_>,
        captured: &mut CapturedEntries,
    ) -> Option<usize> {
        let place = self.pins.iter().position(|held| held.snapshot_bit == snapshot_bit)?;
        let held = &mut self.pins[place];
        let first = std::mem::replace(&mut held.is_first_part_pending, false);
        let (mut segments, mut bytes) = (Vec::new(), 0);
        while bytes < BYTES_PER_PART
            && let Some(segment) = held.unvisited.take_first()
        {
            bytes += segment.bytes();
            segments.push(segment);
        }
        if segments.is_empty() {
            self.pins.swap_remove(place);
            return None;
        }
        captured.add_segments(owner, SegmentsPart { segments, total_size: held.total_size, is_first: first });
        Some(bytes)
    }

    fn skip(&mut self, snapshot_bit: u32, dropped: &mut Vec<Record<LargeValue>>) -> Option<usize> {
        let place = self.pins.iter().position(|held| held.snapshot_bit == snapshot_bit)?;
        let held = self.pins.swap_remove(place);
        dropped.push(LargeValue::List(Box::new(held.unvisited.into())).into());
        None
    }
}
