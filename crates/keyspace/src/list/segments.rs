//! A large list: its segments in a tree, and the trees that snapshots hold of it.
//!
//! A snapshot holds the tree as it was at the cut, which shares all nodes with the list's own: that is one pointer. Its
//! walk takes the segments out from the front. Segments that the list has changed since lie in nodes of its own.

use std::sync::Arc;

use super::ListEnd;
use super::records::{self, ListItem};
use super::segment::Segment;
use super::tree::{Size, Tree};
use crate::captured::{Captured, Owner};
use crate::large::{Collection, Large};
use crate::overflow::{self, Kept, Record};
use crate::packed::Packed;
use crate::pages::Crowding;

/// Bytes of segments that are a part of a walk.
const A_PART: usize = 16 << 10;

/// The elements of a large list.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    tree: Tree,
    /// That of the tree.
    size: Size,
    held: Vec<Pinned>,
}

/// The segments that a snapshot holds.
#[derive(Debug)]
struct Pinned {
    bit: u32,
    /// The segments that have not been walked.
    rest: Tree,
    of: Size,
    is_new: bool,
    kept: Kept,
}

/// Some segments of a list, as a walk took them, and the list's size at the cut.
#[derive(Debug)]
pub(crate) struct SegmentsPart {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) of: Size,
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

    pub(crate) fn size(&self) -> Size {
        self.size
    }

    /// Puts an element at an end.
    pub(crate) fn push(&mut self, end: ListEnd, item: ListItem<'_>) {
        let index = match end {
            ListEnd::Head => 0,
            ListEnd::Tail => self.size.len,
        };
        self.insert(index, item);
    }

    /// Puts an element before element `index`.
    pub(crate) fn insert(&mut self, index: usize, item: ListItem<'_>) {
        self.change(|tree| tree.insert(index, &records::record(item)));
    }

    /// Puts an element in the place of element `index`.
    pub(crate) fn replace(&mut self, index: usize, item: ListItem<'_>) {
        self.change(|tree| tree.replace(index, &records::record(item)));
    }

    /// Takes element `index` out.
    pub(crate) fn remove(&mut self, index: usize) {
        self.change(|tree| tree.remove(index));
    }

    /// Takes `count` elements out at an end, and gives them.
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
        overflow::note_shed(rest.size().held());
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

    fn rough_bytes(&self) -> usize {
        self.size.held()
    }

    fn held_bytes(&self) -> usize {
        self.size.held()
    }

    fn crowding(&self) -> Crowding {
        Crowding::Free
    }

    fn add(&mut self, elements: Packed<'_>) -> bool {
        elements.items().for_each(|item| self.push(ListEnd::Tail, item));
        true
    }

    fn copy(&self) -> Large {
        Large::List(Box::new(self.tree.clone().into()))
    }

    fn pin(&mut self, bit: u32) {
        if self.held.iter().all(|held| held.bit != bit) {
            let kept = Kept::nothing_of(self.size.held());
            self.held.push(Pinned { bit, rest: self.tree.clone(), of: self.size, is_new: true, kept });
        }
    }

    fn walk(&mut self, bit: u32, of: Owner<'_>, captured: &mut Captured) -> Option<usize> {
        let place = self.held.iter().position(|held| held.bit == bit)?;
        let held = &mut self.held[place];
        let first = std::mem::replace(&mut held.is_new, false);
        let (mut segments, mut bytes) = (Vec::new(), 0);
        while bytes < A_PART
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
