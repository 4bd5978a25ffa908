//! A value as one byte string: the compact stored format, and the format in which values arrive to be stored.
//!
//! A string consists of its bytes. A collection starts with its element count in two bytes; the remaining layout
//! depends on its kind (such as [`crate::hash`], `records`). A collection stays packed up to [`MAX_PACKED_BYTES`] and
//! [`MAX_PACKED_ELEMENTS`]; a larger one is a data structure ([`crate::large`]). Code that copies, moves, loads or
//! renames packed values does not depend on their kinds.

use crate::kind::{EncodingHint, EncodingLimits, Kind, ListpackBounds, ValueEncoding};
use crate::large::Collection;
use crate::value::Value;

/// Length of the element count in bytes.
pub(crate) const COUNT_LEN: usize = 2;
/// Maximum size in bytes of a packed collection. It is low because a lookup scans all elements
/// ([`ValueEncoding::max_packed_elements`]).
pub(crate) const MAX_PACKED_BYTES: usize = 8 << 10;
pub(crate) const MAX_PACKED_ELEMENTS: usize = 512;

pub(crate) fn count(packed: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([packed[0], packed[1]]))
}

/// Returns the number of bytes of all elements, limited to `u32::MAX`.
pub(crate) fn elements_bytes(packed: &[u8]) -> u32 {
    u32::try_from(packed.len().saturating_sub(COUNT_LEN)).unwrap_or(u32::MAX)
}

pub(crate) fn set_count(packed: &mut [u8], count: usize) {
    packed[..COUNT_LEN].copy_from_slice(&(count as u16).to_le_bytes());
}

/// The representation of a collection: packed bytes or a large structure.
#[derive(Debug)]
pub(crate) enum CollectionShape<'a, L> {
    Packed(&'a [u8]),
    Large(&'a L),
}

impl<L> Clone for CollectionShape<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for CollectionShape<'_, L> {}

impl<L: Collection> CollectionShape<'_, L> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Packed(packed) => count(packed),
            Self::Large(large) => large.len(),
        }
    }
}

/// A value, or a part of a large value, to be stored.
#[derive(Debug, Clone, Copy)]
pub struct PackedValue<'a> {
    /// The bytes of the value. The element count at the start of a collection is valid only if the collection can stay
    /// packed.
    bytes: &'a [u8],
    summary: ValueSummary,
}

/// Properties of a [`PackedValue`], collected while the value is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueSummary {
    pub(crate) value_encoding: ValueEncoding,
    /// Number of elements; 0 for a string.
    pub(crate) count: u32,
    /// Length of the longest element, field name or value.
    pub(crate) max_element_len: u32,
    /// Whether any element has an expiry.
    pub(crate) has_expiry: bool,
    /// Total bytes of all elements; set when the encoding is chosen.
    pub(crate) bytes: u32,
}

impl<'a> PackedValue<'a> {
    /// Wraps a string that was set as a whole.
    #[must_use]
    #[inline]
    pub fn string(bytes: &'a [u8]) -> Self {
        Self::string_with_hint(bytes, EncodingHint::ByContent)
    }

    /// Wraps a string with an explicit encoding hint.
    #[must_use]
    #[inline]
    pub fn string_with_hint(bytes: &'a [u8], encoding_hint: EncodingHint) -> Self {
        Self { bytes, summary: ValueSummary::for_encoding(encoding_hint.into()) }
    }

    /// Returns an empty value of this kind, to be stored first and filled later.
    #[must_use]
    pub fn empty(kind: Kind) -> Self {
        let form = ValueEncoding::initial_for(kind);
        let bytes: &[u8] = if form.is_collection() { &[0; COUNT_LEN] } else { &[] };
        Self { bytes, summary: ValueSummary::for_encoding(form) }
    }

    /// Creates a value from the [`bytes`](Self::bytes) and the [`summary`](Self::summary) of another.
    #[must_use]
    pub fn from_parts(bytes: &'a [u8], summary: ValueSummary) -> Self {
        Self { bytes, summary }
    }

    /// Returns the value in its packed format.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the facts collected while the value was built.
    #[must_use]
    pub fn summary(&self) -> ValueSummary {
        self.summary
    }

    /// Returns the kind of the value.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.summary.value_encoding.kind()
    }

    #[inline]
    pub(crate) fn value_encoding(&self) -> ValueEncoding {
        self.summary.value_encoding
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.summary.count as usize
    }

    /// Returns whether the value has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.summary.count == 0
    }

    /// Returns the name that OBJECT ENCODING reports.
    #[must_use]
    pub fn encoding(&self) -> &'static str {
        Value::from_bytes(self.value_encoding(), self.bytes).encoding()
    }

    /// Returns whether any element has an expiry.
    #[must_use]
    pub fn has_expiring_elements(&self) -> bool {
        self.summary.has_expiry
    }

    /// Returns whether the value is stored packed.
    #[inline]
    #[must_use]
    pub fn stays_packed(&self) -> bool {
        self.value_encoding().stays_packed(self.bytes, self.len())
    }
}

impl ValueSummary {
    #[inline]
    pub(crate) fn for_encoding(encoding: ValueEncoding) -> Self {
        Self { value_encoding: encoding, count: 0, max_element_len: 0, has_expiry: false, bytes: 0 }
    }

    #[inline]
    pub(crate) fn value_encoding(&self) -> ValueEncoding {
        self.value_encoding
    }

    /// Returns whether the element count or the longest element exceeds the bounds.
    pub(crate) fn exceeds(&self, bounds: ListpackBounds) -> bool {
        self.count as usize > bounds.max_entries || self.max_element_len as usize > bounds.max_value_len
    }
}

/// Builds packed values, for example from a DUMP payload or a file. Each kind's module adds methods for its elements.
#[derive(Debug, Clone)]
pub struct PackedBuilder {
    pub(crate) bytes: Vec<u8>,
    pub(crate) summary: ValueSummary,
}

/// Creates a builder with an empty string.
impl Default for PackedBuilder {
    fn default() -> Self {
        Self::new(Kind::String)
    }
}

impl PackedBuilder {
    /// Creates a builder with an empty value of this kind.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        let empty = PackedValue::empty(kind);
        Self { bytes: empty.bytes.to_vec(), summary: empty.summary }
    }

    /// Starts a new empty value of this kind, reusing the memory.
    pub fn reset(&mut self, kind: Kind) {
        let empty = PackedValue::empty(kind);
        self.bytes.clear();
        self.bytes.extend_from_slice(empty.bytes);
        self.summary = empty.summary;
    }

    /// Chooses the OBJECT ENCODING according to the configured limits.
    pub fn choose_encoding(&mut self, limits: &EncodingLimits) {
        self.summary.bytes = elements_bytes(&self.bytes);
        self.summary.value_encoding =
            self.summary.value_encoding.encoding_after_adding(&self.summary, limits);
    }

    /// Builds a string from the bytes that `fill` writes into the builder's buffer.
    ///
    /// # Errors
    /// The error of `fill`. The builder then has no valid value.
    pub fn build_string<E>(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        self.reset(Kind::String);
        fill(&mut self.bytes)
    }

    /// Returns the value built so far.
    #[must_use]
    pub fn packed(&self) -> PackedValue<'_> {
        PackedValue { bytes: &self.bytes, summary: self.summary }
    }
}
