//! Modifies lists, packed or large.
//!
//! A packed list is edited by replacing a byte range. It becomes large when it would exceed [`MAX_PACKED_LIST_BYTES`]
//! bytes; for a smaller list, moving the whole entry costs less than a tree lookup.

use std::ops::Range;

use smallvec::SmallVec;

use super::segments::Segments;
use super::{ListEnd, ListItem, ListRef, records};
use crate::entries::{EntryRef, Splice};
use crate::key::Key;
use crate::kind::{Kind, ListLimit, ValueEncoding};
use crate::large::LargeValue;
use crate::packed::{COUNT_LEN, CollectionShape, MAX_PACKED_ELEMENTS, PackedBuilder};
use crate::table::{RemovedValue, Table};

/// Number of bytes beyond which a list becomes large.
const MAX_PACKED_LIST_BYTES: usize = 2048;

/// Replaces a range of elements of a packed list by `count` other elements.
struct RangeReplacement<'a> {
    elements: std::ops::Range<usize>,
    replacement: &'a [u8],
    count: usize,
}

impl Table {
    /// Returns the list at `entry_ref`, or `None` if the value has another type.
    #[must_use]
    #[inline]
    pub fn list(&self, entry_ref: EntryRef) -> Option<ListRef<'_>> {
        self.typed_value::<ListRef<'_>>(entry_ref)
    }

    fn expect_list(&self, entry_ref: EntryRef) -> ListRef<'_> {
        self.list(entry_ref).expect("the caller has seen that it is a list")
    }

    /// Returns the segments of a large list, for editing. They are pinned first for the snapshots that need the entry.
    fn segments_mut(&mut self, entry_ref: EntryRef) -> Option<&mut Segments> {
        if let LargeValue::List(segments) = self.entries.overflow_mut(entry_ref)? {
            Some(segments)
        } else {
            None
        }
    }

    /// Creates a list under a new key by pushing the elements one by one at `end`.
    pub fn list_create<'e>(
        &mut self,
        key: &Key<'_>,
        end: ListEnd,
        elements: impl DoubleEndedIterator<Item = &'e [u8]>,
        limit: ListLimit,
    ) -> EntryRef {
        let mut list = PackedBuilder::new(Kind::List);
        let mut raw = 0;
        let mut push = |element: &[u8]| {
            raw += element.len();
            list.push_item(element);
        };
        match end {
            ListEnd::Head => elements.rev().for_each(&mut push),
            ListEnd::Tail => elements.for_each(&mut push),
        }
        let list = list.packed();
        let place = self.insert(key, list, None);
        if limit.is_exceeded_by(raw, list.len()) {
            self.entries.set_code(place, ValueEncoding::QuicklistList.code());
        }
        place
    }

    /// Pushes elements one by one at `end` of the list at `entry_ref`.
    pub fn list_push<'e>(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        end: ListEnd,
        elements: impl DoubleEndedIterator<Item = &'e [u8]> + Clone,
        limit: ListLimit,
    ) -> EntryRef {
        let (count, raw) =
            elements.clone().fold((0, 0), |(count, raw), element| (count + 1, raw + element.len()));
        self.update_encoding_after_growth(entry_ref, raw, count, limit);
        let list = self.expect_list(entry_ref);
        if let CollectionShape::Packed(packed) = list.shape
            && packed.len() + raw + count <= MAX_PACKED_LIST_BYTES
        {
            let mut with = records::EncodedRecord::new();
            let mut push = |element: &[u8]| records::push_record(&mut with, element.into());
            let at = match end {
                ListEnd::Head => {
                    elements.clone().rev().for_each(&mut push);
                    0
                }
                ListEnd::Tail => {
                    elements.clone().for_each(&mut push);
                    list.len()
                }
            };
            let exchange = RangeReplacement { elements: at..at, replacement: &with, count };
            if let Some(place) = self.replace_range(entry_ref, key, &exchange) {
                return place;
            }
        }
        let place = self.make_list_large(entry_ref, key);
        if let Some(segments) = self.segments_mut(place) {
            elements.for_each(|element| segments.push(end, element.into()));
        }
        place
    }

    /// Inserts an element before `index` in the list at `entry_ref`.
    pub fn list_insert(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        index: usize,
        element: &[u8],
        limit: ListLimit,
    ) -> EntryRef {
        self.replace_by_element(entry_ref, key, index..index, element, limit)
    }

    /// Replaces the element at `index` in the list at `entry_ref`. The index must be valid.
    pub fn list_set(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        index: usize,
        element: &[u8],
        limit: ListLimit,
    ) -> EntryRef {
        let place = self.replace_by_element(entry_ref, key, index..index + 1, element, limit);
        self.update_encoding_after_removal(place, limit);
        place
    }

    /// Removes up to `count` elements from `end` of the list at `entry_ref`. The caller must delete the key when the
    /// list becomes empty.
    pub fn list_remove_ends(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        end: ListEnd,
        count: usize,
        limit: ListLimit,
    ) -> (EntryRef, RemovedValue) {
        let len = self.expect_list(entry_ref).len();
        let count = count.min(len);
        if count == 0 {
            return (entry_ref, RemovedValue::default());
        }
        let elements = match end {
            ListEnd::Head => 0..count,
            ListEnd::Tail => len - count..len,
        };
        let (mut place, mut dropped) = (entry_ref, RemovedValue::default());
        match self.replace_range(
            place,
            key,
            &RangeReplacement { elements: elements.clone(), replacement: &[], count: 0 },
        ) {
            Some(exchanged) => place = exchanged,
            None => {
                if let Some(segments) = self.segments_mut(place) {
                    if count == 1 {
                        segments.remove(elements.start);
                    } else {
                        dropped = LargeValue::List(Box::new(segments.take_from_end(end, count))).into();
                    }
                }
            }
        }
        self.update_encoding_after_removal(place, limit);
        (place, dropped)
    }

    /// Removes up to `max_count` elements equal to `element` from the list at `entry_ref`, starting at the head, or at
    /// the tail if `from_tail` is set. Returns the number of removed elements. The caller must delete the key when the
    /// list becomes empty.
    pub fn list_remove(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        element: &[u8],
        count: i64,
        limit: ListLimit,
    ) -> (EntryRef, usize) {
        let from_tail = count < 0;
        let max_count = match usize::try_from(count.unsigned_abs()) {
            Ok(0) | Err(_) => usize::MAX,
            Ok(count) => count,
        };
        let wanted = ListItem::from(element);
        let list = self.expect_list(entry_ref);
        let mut found = Vec::new();
        let mut index = if from_tail { list.len() } else { 0 };
        let mut visit = |item: ListItem<'_>| {
            index = if from_tail { index - 1 } else { index };
            if item == wanted {
                found.push(index);
            }
            index += usize::from(!from_tail);
            found.len() < max_count
        };
        match from_tail {
            true => list.visit_backward_from(list.len() - 1, &mut visit),
            false => list.visit_from(0, &mut visit),
        }
        let removed = found.len();
        if removed == 0 {
            return (entry_ref, 0);
        }
        // Remove matches from the end of the list, so that the remaining indexes stay valid.
        if !from_tail {
            found.reverse();
        }
        let place = match list.shape {
            CollectionShape::Packed(packed) => {
                let mut with = SmallVec::<[u8; 1024]>::new();
                for (index, item) in records::items(&packed[COUNT_LEN..]).enumerate() {
                    if found.last() == Some(&index) {
                        found.pop();
                    } else {
                        records::push_record(&mut with, item);
                    }
                }
                let (elements, count) = (0..list.len(), list.len() - removed);
                self.replace_range(entry_ref, key, &RangeReplacement { elements, replacement: &with, count })
                    .expect("what becomes shorter stays packed")
            }
            CollectionShape::Large(_) => {
                if let Some(segments) = self.segments_mut(entry_ref) {
                    found.into_iter().for_each(|index| segments.remove(index));
                }
                entry_ref
            }
        };
        self.update_encoding_after_removal(place, limit);
        (place, removed)
    }

    /// Replaces a range of at most one element by `element`; an empty range inserts it.
    fn replace_by_element(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        range: Range<usize>,
        element: &[u8],
        limit: ListLimit,
    ) -> EntryRef {
        self.update_encoding_after_growth(entry_ref, element.len(), 1, limit);
        let record = records::encode_record(element.into());
        let replacement = RangeReplacement { elements: range.clone(), replacement: &record, count: 1 };
        if let Some(place) = self.replace_range(entry_ref, key, &replacement) {
            return place;
        }
        let place = self.make_list_large(entry_ref, key);
        if let Some(segments) = self.segments_mut(place) {
            match range.is_empty() {
                true => segments.insert(range.start, element.into()),
                false => segments.replace(range.start, element.into()),
            }
        }
        place
    }

    /// Replaces elements of a packed list. Returns `None` if the list is large or would outgrow the packed format.
    fn replace_range(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        replacement: &RangeReplacement<'_>,
    ) -> Option<EntryRef> {
        let list = self.expect_list(entry_ref);
        let CollectionShape::Packed(packed) = list.shape else { return None };
        let RangeReplacement { elements, replacement: with, count } = replacement;
        let (run, len) = (&packed[COUNT_LEN..], list.len());
        let start = records::record_offset(run, len, elements.start);
        let end = match elements.len() {
            0 => start,
            1 => records::next_offset(run, start),
            _ => records::record_offset(run, len, elements.end),
        };
        let count = len - elements.len() + count;
        let grows = with.len() > end - start;
        if grows
            && (packed.len() - (end - start) + with.len() > MAX_PACKED_LIST_BYTES
                || count > MAX_PACKED_ELEMENTS)
        {
            return None;
        }
        let code = list.value_encoding.code();
        let splice = Splice { range: COUNT_LEN + start..COUNT_LEN + end, replacement: with, count, code };
        Some(self.entries.splice(entry_ref, key, &splice))
    }

    /// Converts a packed list into a large one.
    fn make_list_large(&mut self, entry_ref: EntryRef, key: &Key<'_>) -> EntryRef {
        let CollectionShape::Packed(packed) = self.expect_list(entry_ref).shape else { return entry_ref };
        let mut segments = Box::<Segments>::default();
        records::items(&packed[COUNT_LEN..]).for_each(|item| segments.push(ListEnd::Tail, item));
        self.make_large(entry_ref, key, LargeValue::List(segments))
    }

    /// Updates the encoding before `count` elements with a total of `added_bytes` are added.
    fn update_encoding_after_growth(
        &mut self,
        entry_ref: EntryRef,
        added_bytes: usize,
        count: usize,
        limit: ListLimit,
    ) {
        let list = self.expect_list(entry_ref);
        if list.value_encoding == ValueEncoding::ListpackList
            && limit.is_exceeded_by(list.bytes() + added_bytes, list.len() + count)
        {
            self.entries.set_code(entry_ref, ValueEncoding::QuicklistList.code());
        }
    }

    fn update_encoding_after_removal(&mut self, entry_ref: EntryRef, limit: ListLimit) {
        let list = self.expect_list(entry_ref);
        if list.value_encoding == ValueEncoding::QuicklistList
            && limit.permits_conversion_to_listpack(list.bytes(), list.len())
        {
            self.entries.set_code(entry_ref, ValueEncoding::ListpackList.code());
        }
    }
}
