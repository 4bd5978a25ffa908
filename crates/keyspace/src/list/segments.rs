//! A large list: a tree of segments, and the trees that snapshots hold.
//!
//! A snapshot holds the tree as of the cut. It shares all nodes with the live tree, so holding it costs one
//! pointer. Its walk removes segments from the front; segments that the live list changed since the cut have
//! their own nodes.

use std::sync::Arc;

use super::ListEnd;
use super::records::{self, ListItem};
use super::segment::Segment;
use super::tree::{ListSize, Tree};
use crate::captured::{Captured, ValueOwner};
use crate::large::{Collection, Large};
use crate::overflow::{self, KeptBytes, Record};
use crate::packed::PackedValue;
use crate::pages::FillLevel;

/// Bytes of segments in one part of a walk.
const BYTES_PER_PART: usize = 16 << 10;

/// The elements of a large list.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    tree: Tree,
    /// Size of `tree`.
    size: ListSize,
    held: Vec<Pinned>,
}

/// The segments that a snapshot holds.
#[derive(Debug)]
struct Pinned {
    bit: u32,
    /// Segments that have not been walked yet.
    rest: Tree,
    of: ListSize,
    is_new: bool,
    kept: KeptBytes,
}

/// Some segments of a list, taken by a walk, and the list's size at the cut.
#[derive(Debug)]
pub(crate) struct SegmentsPart {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) of: ListSize,
    pub(crate) first: bool,
}

impl From<Tree> for Segments {
    fn from(tree: Tree) -> Self {
        Self { size: tree.size(), tree, held: Vec::new() }
    }
}

impl Segments {
    /// Bytes of the records.
    pub(crate) fn bytes(&self) -> usize {
        self.size.bytes
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(crate) fn size(&self) -> ListSize {
        self.size
    }

    /// Pushes an element at an end.
    pub(crate) fn push(&mut self, end: ListEnd, item: ListItem<'_>) {
        let index = match end {
            ListEnd::Head => 0,
            ListEnd::Tail => self.size.len,
        };
        self.insert(index, item);
    }

    /// Inserts an element before `index`.
    pub(crate) fn insert(&mut self, index: usize, item: ListItem<'_>) {
        self.change(|tree| tree.insert(index, &records::record(item)));
    }

    /// Replaces the element at `index`.
    pub(crate) fn replace(&mut self, index: usize, item: ListItem<'_>) {
        self.change(|tree| tree.replace(index, &records::record(item)));
    }

    /// Removes the element at `index`.
    pub(crate) fn remove(&mut self, index: usize) {
        self.change(|tree| tree.remove(index));
    }

    /// Removes `count` elements from an end and returns them.
    pub(crate) fn take(&mut self, end: ListEnd, count: usize) -> Self {
        let before = overflow::shed();
        let mut rest = match end {
            ListEnd::Head => self.tree.split_off(count),
            ListEnd::Tail => self.tree.split_off(self.size.len - count),
        };
        if end == ListEnd::Head {
            std::mem::swap(&mut self.tree, &mut rest);
        }
        self.size = self.tree.size();
        overflow::record_shed(rest.size().held());
        self.note_shed_since(before);
        rest.into()
    }

    fn change(&mut self, change: impl FnOnce(&mut Tree)) {
        let before = overflow::shed();
        change(&mut self.tree);
        self.size = self.tree.size();
        self.note_shed_since(before);
    }

    fn note_shed_since(&mut self, before: usize) {
        if let Some(held) = self.held.last_mut() {
            held.kept.add_shed_since(before);
        }
    }
}

impl Collection for Segments {
    fn len(&self) -> usize {
        self.size.len
    }

    fn estimated_bytes(&self) -> usize {
        self.size.held()
    }

    fn held_bytes(&self) -> usize {
        self.size.held()
    }

    fn fill_level(&self) -> FillLevel {
        FillLevel::Free
    }

    fn add(&mut self, elements: PackedValue<'_>) -> bool {
        elements.items().for_each(|item| self.push(ListEnd::Tail, item));
        true
    }

    fn copy(&self) -> Large {
        Large::List(Box::new(self.tree.clone().into()))
    }

    fn pin(&mut self, bit: u32) {
        if self.held.iter().all(|held| held.bit != bit) {
            let kept = KeptBytes::zero_for(self.size.held());
            self.held.push(Pinned { bit, rest: self.tree.clone(), of: self.size, is_new: true, kept });
        }
    }

    fn walk(&mut self, bit: u32, of: ValueOwner<'_>, captured: &mut Captured) -> Option<usize> {
        let place = self.held.iter().position(|held| held.bit == bit)?;
        let held = &mut self.held[place];
        let first = std::mem::replace(&mut held.is_new, false);
        let (mut segments, mut bytes) = (Vec::new(), 0);
        while bytes < BYTES_PER_PART
            && let Some(segment) = held.rest.take_first()
        {
            bytes += segment.bytes();
            segments.push(segment);
        }
        if segments.is_empty() {
            self.held.swap_remove(place);
            return None;
        }
        captured.add_segments(of, SegmentsPart { segments, of: held.of, first });
        Some(bytes)
    }

    fn skip(&mut self, bit: u32, dropped: &mut Vec<Record<Large>>) -> Option<usize> {
        let place = self.held.iter().position(|held| held.bit == bit)?;
        let held = self.held.swap_remove(place);
        dropped.push(Large::List(Box::new(held.rest.into())).into());
        None
    }
}
