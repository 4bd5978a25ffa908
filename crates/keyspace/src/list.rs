//! Lists.
//!
//! A small list is packed: a run of records ([`records`]). A larger one is a tree of segments ([`segments`]), which
//! shares nodes with the snapshots that pin it: access to the ends takes a few steps, an index is found by element
//! counts, and a snapshot captures a list of any length in O(1). OBJECT ENCODING follows Redis's thresholds,
//! independently of this representation.
mod editing;
pub(crate) mod records;
mod segment;
pub(crate) mod segments;
mod tree;

use crate::kind::{Kind, ValueEncoding};
use crate::packed::{self, COUNT_LEN, CollectionShape, PackedBuilder, PackedValue};
use crate::value::PartElements;
pub use records::{ItemDigits, ListItem};
use segments::{Segments, SegmentsPart};

/// An end of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListEnd {
    /// The end with the first element (left end).
    Head,
    /// The end with the last element (right end).
    Tail,
}

/// A read-only view of a list, borrowed from its slot.
#[derive(Debug, Clone, Copy)]
pub struct ListRef<'a> {
    pub(crate) shape: CollectionShape<'a, Segments>,
    pub(crate) value_encoding: ValueEncoding,
}

/// Consecutive elements encoded as listpack entries.
#[derive(Debug, Clone, Copy)]
pub struct ListRun<'a> {
    /// Number of elements.
    pub len: usize,
    /// The listpack entries, without the listpack's header and terminator.
    pub entries: &'a [u8],
}

impl<'a> ListRun<'a> {
    /// Returns the decoded elements.
    pub fn items(&self) -> impl Iterator<Item = ListItem<'a>> + Clone + use<'a> {
        records::items(self.entries)
    }
}

impl<'a> ListRef<'a> {
    /// Returns the number of elements.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.shape.len()
    }

    /// Returns whether the list has no elements, which happens only until the emptied list is deleted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the name that OBJECT ENCODING reports.
    #[must_use]
    pub fn encoding(&self) -> &'static str {
        if self.value_encoding == ValueEncoding::QuicklistList { "quicklist" } else { "listpack" }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self.shape {
            CollectionShape::Packed(packed) => packed.len() - COUNT_LEN,
            CollectionShape::Large(segments) => segments.bytes(),
        }
    }

    /// Returns the element at `index`, if it exists.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<ListItem<'a>> {
        (index < self.len()).then(|| match self.shape {
            CollectionShape::Packed(packed) => {
                let run = &packed[COUNT_LEN..];
                records::read_record(run, records::record_offset(run, packed::count(packed), index)).item
            }
            CollectionShape::Large(segments) => segments.tree().item(index),
        })
    }

    /// Visits elements from `index` forward while `visit` returns true.
    pub fn visit_from(&self, index: usize, visit: &mut dyn FnMut(ListItem<'a>) -> bool) {
        if index >= self.len() {
            return;
        }
        match self.shape {
            CollectionShape::Packed(packed) => {
                let run = &packed[COUNT_LEN..];
                let from = records::record_offset(run, packed::count(packed), index);
                records::items(&run[from..]).all(visit);
            }
            CollectionShape::Large(segments) => {
                segments.tree().visit(index, visit);
            }
        }
    }

    /// Visits elements from `index` back to the first while `visit` returns true.
    pub fn visit_backward_from(&self, index: usize, visit: &mut dyn FnMut(ListItem<'a>) -> bool) {
        if index >= self.len() {
            return;
        }
        match self.shape {
            CollectionShape::Packed(packed) => {
                let run = &packed[COUNT_LEN..];
                let to = records::record_offset(run, packed::count(packed), index + 1);
                records::items_backward(&run[..to]).all(visit);
            }
            CollectionShape::Large(segments) => {
                segments.tree().visit_backward(index, visit);
            }
        }
    }

    /// Visits all elements.
    pub fn for_each(&self, visit: &mut dyn FnMut(ListItem<'a>)) {
        self.visit_from(0, &mut |item| {
            visit(item);
            true
        });
    }

    /// Returns the number of runs that [`Self::for_each_run`] visits.
    #[must_use]
    pub fn run_count(&self) -> usize {
        match self.shape {
            CollectionShape::Packed(_) => 1,
            CollectionShape::Large(segments) => segments.size().segments,
        }
    }

    /// Visits all elements, one run at a time.
    pub fn for_each_run(&self, visit: &mut dyn FnMut(ListRun<'a>)) {
        match self.shape {
            CollectionShape::Packed(packed) => {
                visit(ListRun { len: packed::count(packed), entries: &packed[COUNT_LEN..] });
            }
            CollectionShape::Large(segments) => segments.tree().visit_segments(&mut |segment| {
                visit(ListRun { len: segment.len(), entries: segment.records() });
            }),
        }
    }
}

/// Some elements of a large list, which a snapshot visits together.
#[derive(Debug, Clone, Copy)]
pub struct ListPart<'a> {
    part: &'a SegmentsPart,
}

impl SegmentsPart {
    pub(crate) fn elements(&self) -> PartElements<'_> {
        PartElements::List(ListPart { part: self })
    }
}

impl<'a> ListPart<'a> {
    /// Returns the number of runs of the whole list when the snapshot was taken.
    #[must_use]
    pub fn total_runs(&self) -> usize {
        self.part.total_size.segments
    }

    /// Visits the elements of this part, one run at a time.
    pub fn for_each_run(&self, visit: &mut dyn FnMut(ListRun<'a>)) {
        for segment in &self.part.segments {
            visit(ListRun { len: segment.len(), entries: segment.records() });
        }
    }
}

impl PackedBuilder {
    /// Appends an element to the list being built.
    pub fn push_item(&mut self, element: &[u8]) {
        records::push_record(&mut self.bytes, element.into());
        self.summary.count += 1;
        packed::set_count(&mut self.bytes, self.summary.count as usize);
    }
}

impl<'a> PackedValue<'a> {
    /// Returns the elements of a packed list, or of one part of it.
    pub fn items(&self) -> impl Iterator<Item = ListItem<'a>> + Clone + use<'a> {
        debug_assert_eq!(self.kind(), Kind::List);
        records::items(&self.bytes()[COUNT_LEN..])
    }
}
