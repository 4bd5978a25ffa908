//! Modifies lists, packed or large.
//!
//! A packed list is edited by splicing bytes. It becomes large when it would grow past [`MAX_PACKED`]: below
//! that, moving the whole entry costs less than a tree lookup.

use smallvec::SmallVec;

use super::segments::Segments;
use super::{ListEnd, ListItem, ListRef, records};
use crate::entries::{Place, Splice};
use crate::key::Key;
use crate::kind::{Form, Kind, ListLimit};
use crate::large::Large;
use crate::packed::{Builder, COUNT, MOST_ELEMENTS, Shape};
use crate::table::{Dropped, Table};

/// A list that grows beyond this many bytes becomes large.
const MOST_PACKED: usize = 2048;

/// Replaces a range of elements of a packed list by `count` others.
struct Exchange<'a> {
    elements: std::ops::Range<usize>,
    with: &'a [u8],
    count: usize,
}

impl Table {
    /// The list at `place`, or `None` if the value has another type.
    #[must_use]
    #[inline]
    pub fn list(&self, place: Place) -> Option<ListRef<'_>> {
        self.typed::<ListRef<'_>>(place)
    }

    fn known_list(&self, place: Place) -> ListRef<'_> {
        self.list(place).expect("the caller has seen that it is a list")
    }

    /// The segments of a large list, for editing. Snapshots that need the entry pin it first.
    fn segments(&mut self, place: Place) -> Option<&mut Segments> {
        if let Large::List(segments) = self.entries.outside_mut(place)? { Some(segments) } else { None }
    }

    /// Creates a list under a key that does not exist, pushing the elements one by one at `end`.
    pub fn list_create<'e>(
        &mut self,
        key: &Key<'_>,
        end: ListEnd,
        elements: impl DoubleEndedIterator<Item = &'e [u8]>,
        limit: ListLimit,
    ) -> Place {
        let mut list = Builder::new(Kind::List);
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
        if limit.is_passed(raw, list.len()) {
            self.entries.set_code(place, Form::QuicklistList.code());
        }
        place
    }

    /// Pushes elements one by one at an end of the list at `place`.
    pub fn list_push<'e>(
        &mut self,
        place: Place,
        key: &Key<'_>,
        end: ListEnd,
        elements: impl DoubleEndedIterator<Item = &'e [u8]> + Clone,
        limit: ListLimit,
    ) -> Place {
        let (count, raw) =
            elements.clone().fold((0, 0), |(count, raw), element| (count + 1, raw + element.len()));
        self.name_larger(place, raw, count, limit);
        let list = self.known_list(place);
        if let Shape::Packed(packed) = list.shape
            && packed.len() + raw + count <= MOST_PACKED
        {
            let mut with = records::Draft::new();
            let mut push = |element: &[u8]| records::push(&mut with, element.into());
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
            let exchange = Exchange { elements: at..at, with: &with, count };
            if let Some(place) = self.exchange(place, key, &exchange) {
                return place;
            }
        }
        let place = self.make_list_large(place, key);
        if let Some(segments) = self.segments(place) {
            elements.for_each(|element| segments.push(end, element.into()));
        }
        place
    }

    /// Inserts an element before `index` in the list at `place`.
    pub fn list_insert(
        &mut self,
        place: Place,
        key: &Key<'_>,
        index: usize,
        element: &[u8],
        limit: ListLimit,
    ) -> Place {
        self.name_larger(place, element.len(), 1, limit);
        let with = records::record(element.into());
        let exchange = Exchange { elements: index..index, with: &with, count: 1 };
        if let Some(place) = self.exchange(place, key, &exchange) {
            return place;
        }
        let place = self.make_list_large(place, key);
        if let Some(segments) = self.segments(place) {
            segments.insert(index, element.into());
        }
        place
    }

    /// Replaces the element at `index`, which must exist, in the list at `place`.
    pub fn list_set(
        &mut self,
        place: Place,
        key: &Key<'_>,
        index: usize,
        element: &[u8],
        limit: ListLimit,
    ) -> Place {
        self.name_larger(place, element.len(), 1, limit);
        let with = records::record(element.into());
        let exchange = Exchange { elements: index..index + 1, with: &with, count: 1 };
        let place = match self.exchange(place, key, &exchange) {
            Some(place) => place,
            None => {
                let place = self.make_list_large(place, key);
                if let Some(segments) = self.segments(place) {
                    segments.replace(index, element.into());
                }
                place
            }
        };
        self.name_smaller(place, limit);
        place
    }

    /// Pops up to `count` elements from an end of the list at `place`. The caller must delete the key when
    /// the list becomes empty.
    pub fn list_take(
        &mut self,
        place: Place,
        key: &Key<'_>,
        end: ListEnd,
        count: usize,
        limit: ListLimit,
    ) -> (Place, Dropped) {
        let len = self.known_list(place).len();
        let count = count.min(len);
        if count == 0 {
            return (place, Dropped::default());
        }
        let elements = match end {
            ListEnd::Head => 0..count,
            ListEnd::Tail => len - count..len,
        };
        let (mut place, mut dropped) = (place, Dropped::default());
        match self.exchange(place, key, &Exchange { elements: elements.clone(), with: &[], count: 0 }) {
            Some(exchanged) => place = exchanged,
            None => {
                if let Some(segments) = self.segments(place) {
                    if count == 1 {
                        segments.remove(elements.start);
                    } else {
                        dropped = Large::List(Box::new(segments.take(end, count))).into();
                    }
                }
            }
        }
        self.name_smaller(place, limit);
        (place, dropped)
    }

    /// Removes elements equal to `element` from the list at `place`: the first `most`, or the last if
    /// `from_tail`. Returns how many were removed. The caller must delete the key when the list becomes
    /// empty.
    pub fn list_remove(
        &mut self,
        place: Place,
        key: &Key<'_>,
        element: &[u8],
        (from_tail, most): (bool, usize),
        limit: ListLimit,
    ) -> (Place, usize) {
        let wanted = ListItem::from(element);
        let list = self.known_list(place);
        let mut found = Vec::new();
        let mut index = if from_tail { list.len() } else { 0 };
        let mut visit = |item: ListItem<'_>| {
            index = if from_tail { index - 1 } else { index };
            if item == wanted {
                found.push(index);
            }
            index += usize::from(!from_tail);
            found.len() < most
        };
        match from_tail {
            true => list.visit_back_from(list.len() - 1, &mut visit),
            false => list.visit_from(0, &mut visit),
        }
        let removed = found.len();
        if removed == 0 {
            return (place, 0);
        }
        // Remove from the back, so that the remaining indexes stay valid.
        if !from_tail {
            found.reverse();
        }
        let place = match list.shape {
            Shape::Packed(packed) => {
                let mut with = SmallVec::<[u8; 1024]>::new();
                for (index, item) in records::items(&packed[COUNT..]).enumerate() {
                    if found.last() == Some(&index) {
                        found.pop();
                    } else {
                        records::push(&mut with, item);
                    }
                }
                let (elements, count) = (0..list.len(), list.len() - removed);
                self.exchange(place, key, &Exchange { elements, with: &with, count })
                    .expect("what becomes shorter stays packed")
            }
            Shape::Large(_) => {
                if let Some(segments) = self.segments(place) {
                    found.into_iter().for_each(|index| segments.remove(index));
                }
                place
            }
        };
        self.name_smaller(place, limit);
        (place, removed)
    }

    /// Replaces elements of a packed list; `None` if the list is large or would outgrow the packed form.
    fn exchange(&mut self, place: Place, key: &Key<'_>, exchange: &Exchange<'_>) -> Option<Place> {
        let list = self.known_list(place);
        let Shape::Packed(packed) = list.shape else { return None };
        let Exchange { elements, with, count } = exchange;
        let (run, len) = (&packed[COUNT..], list.len());
        let start = records::offset(run, len, elements.start);
        let end = match elements.len() {
            0 => start,
            1 => records::next(run, start),
            _ => records::offset(run, len, elements.end),
        };
        let count = len - elements.len() + count;
        let grows = with.len() > end - start;
        if grows && (packed.len() - (end - start) + with.len() > MOST_PACKED || count > MOST_ELEMENTS) {
            return None;
        }
        let code = list.form.code();
        let splice = Splice { range: COUNT + start..COUNT + end, with, count, code };
        Some(self.entries.splice(place, key, &splice))
    }

    /// Converts a packed list into a large one.
    fn make_list_large(&mut self, place: Place, key: &Key<'_>) -> Place {
        let Shape::Packed(packed) = self.known_list(place).shape else { return place };
        let mut segments = Box::<Segments>::default();
        records::items(&packed[COUNT..]).for_each(|item| segments.push(ListEnd::Tail, item));
        self.make_large(place, key, Large::List(segments))
    }

    /// Updates the encoding before `count` elements with `raw` bytes in total are added.
    fn name_larger(&mut self, place: Place, raw: usize, count: usize, limit: ListLimit) {
        let list = self.known_list(place);
        if list.form == Form::ListpackList && limit.is_passed(list.bytes() + raw, list.len() + count) {
            self.entries.set_code(place, Form::QuicklistList.code());
        }
    }

    /// Updates the encoding after the list shrank.
    fn name_smaller(&mut self, place: Place, limit: ListLimit) {
        let list = self.known_list(place);
        if list.form == Form::QuicklistList && limit.is_far(list.bytes(), list.len()) {
            self.entries.set_code(place, Form::ListpackList.code());
        }
    }
}
