//! Kinds of values, their encodings, and the type codes of entries.
//!
//! To add a kind, start here. The compiler then reports all places that must handle it (docs/keyspace.md, "How a kind
//! is added").

use crate::entry::TypeCode;
use crate::packed::{MAX_PACKED_BYTES, MAX_PACKED_ELEMENTS, ValueSummary};
use crate::stream;

/// The type of a value, as reported by TYPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A string of arbitrary bytes.
    String,
    /// A list: a sequence of elements.
    List,
    /// A set of unique members.
    Set,
    /// A sorted set: unique members, ordered by score.
    SortedSet,
    /// A hash: fields with values.
    Hash,
    /// A stream: entries with ascending ids.
    Stream,
}

impl Kind {
    /// All kinds, in the order of their declaration.
    pub const ALL: &[Self] =
        &[Self::String, Self::List, Self::Set, Self::SortedSet, Self::Hash, Self::Stream];

    /// Parses a lower-case type name; `None` if it names no kind.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|kind| kind.name() == name).copied()
    }

    /// Returns the name used by TYPE and by the TYPE option of SCAN.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::List => "list",
            Self::Set => "set",
            Self::SortedSet => "zset",
            Self::Hash => "hash",
            Self::Stream => "stream",
        }
    }
}

/// Whether and how the elements of a value are unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementUniqueness {
    /// Elements may be equal (lists), or there are no elements (strings).
    Repeatable,
    /// No two elements have the same name ([`PackedValue::visit_names`](crate::PackedValue::visit_names)).
    ByName,
    /// Elements follow each other in strictly ascending order.
    ByOrder,
}

impl Kind {
    /// Returns in which sense the elements of a value of this kind are unique.
    #[must_use]
    pub fn element_uniqueness(self) -> ElementUniqueness {
        match self {
            Self::String | Self::List => ElementUniqueness::Repeatable,
            Self::Set | Self::SortedSet | Self::Hash => ElementUniqueness::ByName,
            Self::Stream => ElementUniqueness::ByOrder,
        }
    }
}

/// How a string was produced, which determines its OBJECT ENCODING.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum EncodingHint {
    /// The string was set as a whole, so its content determines the encoding.
    #[default]
    ByContent,
    /// The string was edited in place (APPEND, SETRANGE, SETBIT). Redis then reports `raw`, regardless of its content.
    Raw,
    /// The string is a result of INCRBYFLOAT. Redis then does not report `int`, even for an integer.
    NeverInt,
}

/// A kind and its OBJECT ENCODING, which follows Redis's thresholds independently of the representation. The
/// discriminant is the type code in an entry's header; fifteen codes are available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ValueEncoding {
    /// A string whose content determines the encoding.
    String,
    RawString,
    /// A string that is a result of INCRBYFLOAT.
    FloatSumString,
    ListpackHash,
    TableHash,
    ListpackList,
    QuicklistList,
    IntsetSet = 7,
    ListpackSet,
    TableSet,
    ListpackSortedSet = 10,
    SkiplistSortedSet,
    Stream = 12,
}

impl ValueEncoding {
    #[inline]
    pub(crate) const fn code(self) -> TypeCode {
        TypeCode::for_key(self as u8)
    }

    /// Returns the encoding with this type code.
    #[inline(always)]
    pub(crate) fn from_code(code: TypeCode) -> Self {
        match code.as_u8() {
            0 => Self::String,
            1 => Self::RawString,
            2 => Self::FloatSumString,
            3 => Self::ListpackHash,
            4 => Self::TableHash,
            5 => Self::ListpackList,
            6 => Self::QuicklistList,
            7 => Self::IntsetSet,
            8 => Self::ListpackSet,
            9 => Self::TableSet,
            10 => Self::ListpackSortedSet,
            11 => Self::SkiplistSortedSet,
            12 => Self::Stream,
            other => panic!("a key's entry has code {other}, which no kind writes"),
        }
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::String | Self::RawString | Self::FloatSumString => Kind::String,
            Self::ListpackList | Self::QuicklistList => Kind::List,
            Self::IntsetSet | Self::ListpackSet | Self::TableSet => Kind::Set,
            Self::ListpackSortedSet | Self::SkiplistSortedSet => Kind::SortedSet,
            Self::ListpackHash | Self::TableHash => Kind::Hash,
            Self::Stream => Kind::Stream,
        }
    }

    #[inline]
    pub(crate) fn is_collection(self) -> bool {
        match self.kind() {
            Kind::String => false,
            Kind::List | Kind::Set | Kind::SortedSet | Kind::Hash | Kind::Stream => true,
        }
    }

    pub(crate) fn initial_for(kind: Kind) -> Self {
        match kind {
            Kind::String => Self::String,
            Kind::List => Self::ListpackList,
            Kind::Set => Self::IntsetSet,
            Kind::SortedSet => Self::ListpackSortedSet,
            Kind::Hash => Self::ListpackHash,
            Kind::Stream => Self::Stream,
        }
    }

    /// Returns the encoding after adding elements with this summary. An encoding never becomes more compact
    /// again.
    pub(crate) fn encoding_after_adding(self, summary: &ValueSummary, limits: &EncodingLimits) -> Self {
        match self {
            Self::String | Self::RawString | Self::FloatSumString | Self::Stream => self,
            Self::ListpackSortedSet if summary.exceeds(limits.sorted_set) => Self::SkiplistSortedSet,
            Self::ListpackSortedSet | Self::SkiplistSortedSet => self,
            Self::ListpackList
                if limits.list.is_exceeded_by(summary.bytes as usize, summary.count as usize) =>
            {
                Self::QuicklistList
            }
            Self::ListpackList | Self::QuicklistList => self,
            Self::ListpackHash if summary.exceeds(limits.hash) => Self::TableHash,
            Self::ListpackHash | Self::TableHash => self,
            Self::IntsetSet | Self::ListpackSet | Self::TableSet => {
                self.set_encoding_after_adding(summary, limits.set)
            }
        }
    }

    /// Like [`Self::encoding_after_adding`], for a set. An intset stays one while all members are integers and within
    /// the limit, and becomes a hash table beyond the limit.
    pub(crate) fn set_encoding_after_adding(self, summary: &ValueSummary, bounds: SetBounds) -> Self {
        match (self, summary.value_encoding()) {
            (Self::TableSet, _) | (_, Self::TableSet) => Self::TableSet,
            (Self::IntsetSet, Self::IntsetSet) if summary.count as usize <= bounds.max_intset_entries => {
                Self::IntsetSet
            }
            (Self::IntsetSet, Self::IntsetSet) => Self::TableSet,
            _ if summary.exceeds(bounds.listpack) => Self::TableSet,
            _ => Self::ListpackSet,
        }
    }

    /// Returns whether a value with `len` elements in these packed bytes is stored packed.
    #[inline]
    pub(crate) fn stays_packed(self, bytes: &[u8], len: usize) -> bool {
        match self.kind() {
            Kind::String => true,
            Kind::List | Kind::Set | Kind::SortedSet | Kind::Hash => {
                bytes.len() <= MAX_PACKED_BYTES && len <= self.max_packed_elements()
            }
            Kind::Stream => stream::stays_packed(bytes),
        }
    }

    /// Returns the maximum number of elements of a packed value, which is low because lookups scan the elements.
    pub(crate) fn max_packed_elements(self) -> usize {
        match self {
            // Lookups in an intset use binary search, so it may have the maximum number of elements.
            Self::IntsetSet => MAX_PACKED_ELEMENTS,
            Self::ListpackSet | Self::TableSet => 128,
            Self::String
            | Self::RawString
            | Self::FloatSumString
            | Self::ListpackHash
            | Self::TableHash
            | Self::ListpackList
            | Self::QuicklistList
            | Self::ListpackSortedSet
            | Self::SkiplistSortedSet
            | Self::Stream => MAX_PACKED_ELEMENTS,
        }
    }
}

impl From<EncodingHint> for ValueEncoding {
    #[inline]
    fn from(encoding_hint: EncodingHint) -> Self {
        match encoding_hint {
            EncodingHint::ByContent => Self::String,
            EncodingHint::Raw => Self::RawString,
            EncodingHint::NeverInt => Self::FloatSumString,
        }
    }
}

/// Thresholds up to which OBJECT ENCODING reports `listpack`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListpackBounds {
    /// Maximum number of elements.
    pub max_entries: usize,
    /// Maximum length of an element, field name or value.
    pub max_value_len: usize,
}

/// Threshold for the `listpack` encoding of a list (`list-max-listpack-size`): a number of elements, or, if
/// negative, a size class from 4 KB (-1) to 64 KB (-5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListLimit(pub i32);

impl ListLimit {
    /// Number of bytes of a listpack besides its entries.
    const LISTPACK_OVERHEAD_BYTES: usize = 7;
    /// Maximum number of bytes that applies in addition to a limit on the number of elements.
    const MAX_BYTES_WITH_COUNT_LIMIT: usize = 8192;

    /// Returns the limit: `Ok` with a maximum number of bytes, or `Err` with a maximum number of elements.
    fn byte_or_element_limit(self) -> Result<usize, usize> {
        match self.0 {
            0.. => Err(self.0.max(1) as usize),
            _ => Ok(2048 << self.0.unsigned_abs().min(5)),
        }
    }

    /// Returns whether a list with this many bytes and elements exceeds the limit.
    pub(crate) fn is_exceeded_by(self, bytes: usize, len: usize) -> bool {
        let bytes = bytes + Self::LISTPACK_OVERHEAD_BYTES;
        match self.byte_or_element_limit() {
            Ok(most) => bytes > most,
            Err(most) => bytes > Self::MAX_BYTES_WITH_COUNT_LIMIT || len > most,
        }
    }

    /// Returns whether a quicklist is small enough to become a listpack again. It must shrink to half the limit, so
    /// that the encoding does not alternate.
    pub(crate) fn permits_conversion_to_listpack(self, bytes: usize, len: usize) -> bool {
        match self.byte_or_element_limit() {
            Ok(most) => bytes + Self::LISTPACK_OVERHEAD_BYTES <= most / 2,
            Err(most) => len <= most / 2,
        }
    }
}

/// Thresholds of the set encodings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetBounds {
    /// Maximum number of integers in an `intset`.
    pub max_intset_entries: usize,
    /// Thresholds of the `listpack` encoding.
    pub listpack: ListpackBounds,
}

/// Limits for the entries that share a stream node; 0 means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamNodeBounds {
    /// Maximum size of a node in bytes (`stream-node-max-bytes`).
    pub max_bytes: usize,
    /// Maximum number of entries in a node (`stream-node-max-entries`).
    pub max_entries: usize,
}

/// Thresholds of the compact encodings, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodingLimits {
    /// The limit for lists (`list-max-listpack-size`).
    pub list: ListLimit,
    /// Limits for sets (`set-max-intset-entries`, `set-max-listpack-entries` and `set-max-listpack-value`).
    pub set: SetBounds,
    /// Limits for sorted sets (`zset-max-listpack-entries` and `zset-max-listpack-value`).
    pub sorted_set: ListpackBounds,
    /// Limits for hashes (`hash-max-listpack-entries` and `hash-max-listpack-value`).
    pub hash: ListpackBounds,
    /// Limits for streams (`stream-node-max-bytes` and `stream-node-max-entries`).
    pub stream: StreamNodeBounds,
}

impl Default for EncodingLimits {
    fn default() -> Self {
        let set = SetBounds {
            max_intset_entries: 512,
            listpack: ListpackBounds { max_entries: 128, max_value_len: 64 },
        };
        let sorted_set = ListpackBounds { max_entries: 128, max_value_len: 64 };
        let stream = StreamNodeBounds { max_bytes: 4096, max_entries: 100 };
        Self {
            list: ListLimit(-2),
            set,
            sorted_set,
            hash: ListpackBounds { max_entries: 512, max_value_len: 64 },
            stream,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_code_decodes_to_its_encoding() {
        let forms = [
            ValueEncoding::String,
            ValueEncoding::RawString,
            ValueEncoding::FloatSumString,
            ValueEncoding::ListpackHash,
            ValueEncoding::TableHash,
            ValueEncoding::ListpackList,
            ValueEncoding::QuicklistList,
            ValueEncoding::IntsetSet,
            ValueEncoding::ListpackSet,
            ValueEncoding::TableSet,
            ValueEncoding::ListpackSortedSet,
            ValueEncoding::SkiplistSortedSet,
            ValueEncoding::Stream,
        ];
        for form in forms {
            assert_eq!(ValueEncoding::from_code(form.code()), form);
            assert_eq!(ValueEncoding::initial_for(form.kind()).kind(), form.kind());
            assert!(Kind::ALL.contains(&form.kind()));
        }
    }
}
