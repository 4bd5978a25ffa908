//! Values that are too large for an entry.
//!
//! A string or packed collection is stored as bytes. A collection that has outgrown the packed format is a data
//! structure behind the [`Collection`] trait, which provides everything that is needed to store, pin, visit, count and
//! drop it.

use crate::captured::{CapturedEntries, ValueOwner};
use crate::entry::{MAX_VALUE_LEN, TypeCode};
use crate::fields::LargeFields;
use crate::hash::HashFields;
use crate::kind::{Kind, ValueEncoding};
use crate::list::segments::Segments;
use crate::overflow::{OverflowShape, OverflowShapeMut, OverflowValue, Record};
use crate::packed::{PackedValue, elements_bytes};
use crate::pages::FillLevel;
use crate::set::SetFields;
use crate::sorted_set::SortedSetFields;
use crate::stream::LargeStream;

/// A large collection.
///
/// A snapshot captures it without copying: the collection is pinned before its first change after the snapshot was
/// taken, or when the snapshot reaches its key. From then on it preserves the pinned state until the snapshot has
/// visited it part by part.
pub(crate) trait Collection: std::fmt::Debug {
    fn len(&self) -> usize;

    /// Estimates the bytes freed by dropping the collection, in O(1).
    fn estimated_bytes(&self) -> usize;

    /// Returns the number of heap bytes used.
    fn heap_bytes(&self) -> usize;

    fn fill_level(&self) -> FillLevel;

    /// Adds the elements of a packed value of the same kind. Returns whether all were new.
    fn add_packed(&mut self, elements: PackedValue<'_>) -> bool;

    /// Returns a deep copy that no snapshot has pinned.
    fn copy(&self) -> LargeValue;

    /// Pins the current elements for the snapshot with this bit, unless they are pinned for it already.
    fn pin(&mut self, snapshot_bit: u32);

    /// Copies the next pinned part together with the collection's key, unpins it, and returns its bytes. Returns `None`
    /// after the last part.
    fn walk(
        &mut self,
        snapshot_bit: u32,
        owner: ValueOwner<'_>,
        captured: &mut CapturedEntries,
    ) -> Option<usize>;

    /// Unpins the next part without copying it and returns its bytes. Returns `None` after the last part.
    fn skip(&mut self, snapshot_bit: u32, dropped: &mut Vec<Record<LargeValue>>) -> Option<usize>;

    /// Prefetches the index segment for the element with this hash. Does nothing for kinds without named elements.
    fn prefetch_segment(&self, _hash: u64) {}

    /// Prefetches the index line for the element with this hash.
    fn prefetch_index(&self, _hash: u64) {}

    /// Prefetches the element with this hash.
    fn prefetch_element(&self, _hash: u64) {}
}

/// A value that is stored outside the pages.
#[derive(Debug)]
pub(crate) enum LargeValue {
    /// A string or packed collection, stored as bytes.
    Bytes(Vec<u8>),
    List(Box<Segments>),
    Set(Box<LargeFields<SetFields>>),
    SortedSet(Box<LargeFields<SortedSetFields>>),
    Hash(Box<LargeFields<HashFields>>),
    Stream(Box<LargeStream>),
}

impl LargeValue {
    pub(crate) fn empty(kind: Kind) -> Self {
        match kind {
            Kind::String => Self::Bytes(Vec::new()),
            Kind::List => Self::List(Box::default()),
            Kind::Set => Self::Set(Box::default()),
            Kind::SortedSet => Self::SortedSet(Box::default()),
            Kind::Hash => Self::Hash(Box::default()),
            Kind::Stream => Self::Stream(Box::default()),
        }
    }

    /// Returns the total bytes of the elements if the encoding of the kind depends on it; otherwise 0.
    pub(crate) fn elements_bytes(&self) -> u32 {
        match self {
            Self::Bytes(bytes) => elements_bytes(bytes),
            Self::List(segments) => u32::try_from(segments.bytes()).unwrap_or(u32::MAX),
            Self::Set(_) | Self::SortedSet(_) | Self::Hash(_) | Self::Stream(_) => 0,
        }
    }

    /// Adds a part of a value. Returns whether all its elements were new.
    pub(crate) fn add_part(&mut self, part: PackedValue<'_>) -> bool {
        match self.shape_mut() {
            OverflowShapeMut::Flat(bytes) => {
                bytes.extend_from_slice(part.bytes());
                true
            }
            OverflowShapeMut::Collection(collection) => collection.add_packed(part),
        }
    }
}

impl From<Vec<u8>> for LargeValue {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// Page length factor for the keys of a slot. Measured with strings of 18 to 3000 bytes and hashes, with 15 to 170 keys
/// per slot.
const KEY_PAGE_LEN_FACTOR: u64 = 450;
/// Page length factor for the elements of a large collection. It is higher than for keys: large collections do not all
/// grow at the same time, so other pages soon fill the holes that growing pages leave in the pool.
pub(crate) const ELEMENT_PAGE_LEN_FACTOR: u64 = 4800;

impl OverflowValue for LargeValue {
    const PAGE_LEN_FACTOR: u64 = KEY_PAGE_LEN_FACTOR;
    type SecondaryOrder = ();

    #[inline]
    fn may_outgrow_packed(code: TypeCode) -> bool {
        ValueEncoding::from_code(code).is_collection()
    }

    fn is_walked_in_parts(&self) -> bool {
        match self.shape() {
            OverflowShape::Flat(bytes) => bytes.len() > MAX_VALUE_LEN,
            OverflowShape::Collection(_) => true,
        }
    }

    fn shape(&self) -> OverflowShape<'_> {
        match self {
            Self::Bytes(bytes) => OverflowShape::Flat(bytes),
            Self::List(segments) => OverflowShape::Collection(&**segments),
            Self::Set(fields) => OverflowShape::Collection(&**fields),
            Self::SortedSet(members) => OverflowShape::Collection(&**members),
            Self::Hash(fields) => OverflowShape::Collection(&**fields),
            Self::Stream(stream) => OverflowShape::Collection(&**stream),
        }
    }

    fn shape_mut(&mut self) -> OverflowShapeMut<'_> {
        match self {
            Self::Bytes(bytes) => OverflowShapeMut::Flat(bytes),
            Self::List(segments) => OverflowShapeMut::Collection(&mut **segments),
            Self::Set(fields) => OverflowShapeMut::Collection(&mut **fields),
            Self::SortedSet(members) => OverflowShapeMut::Collection(&mut **members),
            Self::Hash(fields) => OverflowShapeMut::Collection(&mut **fields),
            Self::Stream(stream) => OverflowShapeMut::Collection(&mut **stream),
        }
    }

    fn copy(&self) -> Self {
        match self.shape() {
            OverflowShape::Flat(bytes) => Self::Bytes(bytes.clone()),
            OverflowShape::Collection(collection) => collection.copy(),
        }
    }
}

/// A long value of an element, which is copied together with its page.
impl OverflowValue for Vec<u8> {
    const PAGE_LEN_FACTOR: u64 = ELEMENT_PAGE_LEN_FACTOR;
    type SecondaryOrder = ();

    fn may_outgrow_packed(_: TypeCode) -> bool {
        false
    }

    fn is_walked_in_parts(&self) -> bool {
        false
    }

    fn shape(&self) -> OverflowShape<'_> {
        OverflowShape::Flat(self)
    }

    fn shape_mut(&mut self) -> OverflowShapeMut<'_> {
        OverflowShapeMut::Flat(self)
    }

    fn copy(&self) -> Self {
        self.clone()
    }
}
