//! Read-only views of values.

use clock::Millis;

use crate::fields::FieldsPart;
pub use crate::hash::HashRef;
use crate::kind::{EncodingHint, Kind, ValueEncoding};
use crate::large::LargeValue;
pub use crate::list::ListRef;
use crate::list::{ItemDigits, ListPart};
use crate::packed::{CollectionShape, PackedValue};
pub use crate::set::SetRef;
use crate::sorted_set::SortedSetPart;
pub use crate::sorted_set::SortedSetRef;
use crate::stream::StreamPart;
pub use crate::stream::StreamRef;

/// Maximum length of a string that Redis embeds in its object and reports as `embstr`.
const MAX_EMBEDDED_LEN: usize = 44;

/// A string, and how it was produced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StringRef<'a> {
    /// The string bytes.
    pub bytes: &'a [u8],
    /// How the string was produced, which determines its OBJECT ENCODING.
    pub encoding_hint: EncodingHint,
}

impl StringRef<'_> {
    /// Returns the integer value if the string's encoding is `int`.
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        if self.encoding_hint == EncodingHint::ByContent { resp::parse_i64(self.bytes) } else { None }
    }

    fn encoding(&self) -> &'static str {
        match self.encoding_hint {
            EncodingHint::Raw => "raw",
            EncodingHint::ByContent if self.integer().is_some() => "int",
            EncodingHint::ByContent | EncodingHint::NeverInt if self.bytes.len() <= MAX_EMBEDDED_LEN => {
                "embstr"
            }
            EncodingHint::ByContent | EncodingHint::NeverInt => "raw",
        }
    }
}

/// A read-only view of a value, borrowed from its slot.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A view of a string.
    String(StringRef<'a>),
    /// A view of a list.
    List(ListRef<'a>),
    /// A view of a set.
    Set(SetRef<'a>),
    /// A view of a sorted set.
    SortedSet(SortedSetRef<'a>),
    /// A view of a hash.
    Hash(HashRef<'a>),
    /// A view of a stream.
    Stream(StreamRef<'a>),
}

impl<'a> Value<'a> {
    /// Returns a view of a value that is stored as bytes.
    #[inline(always)]
    pub(crate) fn from_bytes(encoding: ValueEncoding, bytes: &'a [u8]) -> Self {
        match encoding {
            ValueEncoding::String => {
                Self::String(StringRef { bytes, encoding_hint: EncodingHint::ByContent })
            }
            ValueEncoding::RawString => Self::String(StringRef { bytes, encoding_hint: EncodingHint::Raw }),
            ValueEncoding::FloatSumString => {
                Self::String(StringRef { bytes, encoding_hint: EncodingHint::NeverInt })
            }
            ValueEncoding::ListpackList | ValueEncoding::QuicklistList => {
                Self::List(ListRef { shape: CollectionShape::Packed(bytes), value_encoding: encoding })
            }
            ValueEncoding::IntsetSet | ValueEncoding::ListpackSet | ValueEncoding::TableSet => {
                Self::Set(SetRef { shape: CollectionShape::Packed(bytes), value_encoding: encoding })
            }
            ValueEncoding::ListpackSortedSet | ValueEncoding::SkiplistSortedSet => {
                Self::SortedSet(SortedSetRef {
                    shape: CollectionShape::Packed(bytes),
                    value_encoding: encoding,
                })
            }
            ValueEncoding::ListpackHash | ValueEncoding::TableHash => {
                Self::Hash(HashRef { shape: CollectionShape::Packed(bytes), value_encoding: encoding })
            }
            ValueEncoding::Stream => Self::Stream(StreamRef { shape: CollectionShape::Packed(bytes) }),
        }
    }

    #[inline(always)]
    pub(crate) fn from_large(encoding: ValueEncoding, large: &'a LargeValue) -> Self {
        match large {
            LargeValue::Bytes(bytes) => Self::from_bytes(encoding, bytes),
            LargeValue::List(large) => {
                Self::List(ListRef { shape: CollectionShape::Large(large), value_encoding: encoding })
            }
            LargeValue::Set(large) => {
                Self::Set(SetRef { shape: CollectionShape::Large(large), value_encoding: encoding })
            }
            LargeValue::SortedSet(large) => Self::SortedSet(SortedSetRef {
                shape: CollectionShape::Large(large),
                value_encoding: encoding,
            }),
            LargeValue::Hash(large) => {
                Self::Hash(HashRef { shape: CollectionShape::Large(large), value_encoding: encoding })
            }
            LargeValue::Stream(large) => Self::Stream(StreamRef { shape: CollectionShape::Large(large) }),
        }
    }

    /// Returns the kind of the value.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::String(_) => Kind::String,
            Self::List(_) => Kind::List,
            Self::Set(_) => Kind::Set,
            Self::SortedSet(_) => Kind::SortedSet,
            Self::Hash(_) => Kind::Hash,
            Self::Stream(_) => Kind::Stream,
        }
    }

    /// Returns the number of elements including expired fields; for a string, its length in bytes.
    #[must_use]
    pub fn element_count(&self) -> usize {
        match self {
            Self::String(string) => string.bytes.len(),
            Self::List(list) => list.len(),
            Self::Set(set) => set.len(),
            Self::SortedSet(set) => set.len(),
            Self::Hash(hash) => hash.len(),
            Self::Stream(stream) => stream.head().len as usize,
        }
    }

    /// Returns whether the value is a large collection, which a snapshot visits in parts.
    #[must_use]
    pub fn is_large(&self) -> bool {
        match self {
            Self::String(_) => false,
            Self::List(list) => matches!(list.shape, CollectionShape::Large(_)),
            Self::Set(set) => matches!(set.shape, CollectionShape::Large(_)),
            Self::SortedSet(set) => matches!(set.shape, CollectionShape::Large(_)),
            Self::Hash(hash) => matches!(hash.shape, CollectionShape::Large(_)),
            Self::Stream(stream) => matches!(stream.shape, CollectionShape::Large(_)),
        }
    }

    /// Returns a lower bound of the time at which the next element expires.
    pub(crate) fn next_expiry(&self) -> Option<Millis> {
        match self {
            Self::String(_) | Self::List(_) | Self::Set(_) | Self::SortedSet(_) | Self::Stream(_) => None,
            Self::Hash(hash) => hash.next_expiry(),
        }
    }

    /// Returns the name that OBJECT ENCODING reports.
    #[must_use]
    pub fn encoding(&self) -> &'static str {
        match self {
            Self::String(string) => string.encoding(),
            Self::List(list) => list.encoding(),
            Self::Set(set) => set.encoding(),
            Self::SortedSet(set) => set.encoding(),
            Self::Hash(hash) => hash.encoding(),
            Self::Stream(_) => "stream",
        }
    }
}

/// A view of one kind of value. Commands use it to check the type of a key.
pub trait TypedView {
    /// The type of the view, with the lifetime of the borrowed value.
    type View<'a>;
    /// The kind of value that the view reads.
    const KIND: Kind;

    /// Returns the view, or `None` if the value has another kind.
    fn from_value(value: Value<'_>) -> Option<Self::View<'_>>;
}

impl TypedView for StringRef<'_> {
    type View<'a> = StringRef<'a>;
    const KIND: Kind = Kind::String;

    #[inline]
    fn from_value(value: Value<'_>) -> Option<StringRef<'_>> {
        if let Value::String(string) = value { Some(string) } else { None }
    }
}

impl TypedView for ListRef<'_> {
    type View<'a> = ListRef<'a>;
    const KIND: Kind = Kind::List;

    #[inline]
    fn from_value(value: Value<'_>) -> Option<ListRef<'_>> {
        if let Value::List(list) = value { Some(list) } else { None }
    }
}

impl TypedView for SetRef<'_> {
    type View<'a> = SetRef<'a>;
    const KIND: Kind = Kind::Set;

    #[inline]
    fn from_value(value: Value<'_>) -> Option<SetRef<'_>> {
        if let Value::Set(set) = value { Some(set) } else { None }
    }
}

impl TypedView for SortedSetRef<'_> {
    type View<'a> = SortedSetRef<'a>;
    const KIND: Kind = Kind::SortedSet;

    #[inline]
    fn from_value(value: Value<'_>) -> Option<SortedSetRef<'_>> {
        if let Value::SortedSet(set) = value { Some(set) } else { None }
    }
}

impl TypedView for HashRef<'_> {
    type View<'a> = HashRef<'a>;
    const KIND: Kind = Kind::Hash;

    #[inline]
    fn from_value(value: Value<'_>) -> Option<HashRef<'_>> {
        if let Value::Hash(hash) = value { Some(hash) } else { None }
    }
}

impl TypedView for StreamRef<'_> {
    type View<'a> = StreamRef<'a>;
    const KIND: Kind = Kind::Stream;

    #[inline]
    fn from_value(value: Value<'_>) -> Option<StreamRef<'_>> {
        if let Value::Stream(stream) = value { Some(stream) } else { None }
    }
}

/// A value, or a part of one, that a snapshot visits.
#[derive(Debug, Clone, Copy)]
pub enum SnapshotValue<'a> {
    /// A complete value.
    Whole(Value<'a>),
    /// Some elements of a value that is too large to visit at once.
    Part(ValuePart<'a>),
}

/// Some elements of a large value.
#[derive(Debug, Clone, Copy)]
pub struct ValuePart<'a> {
    /// Number of elements of the whole value when the snapshot was taken, which is the sum over all parts.
    pub total_elements: usize,
    /// Whether this is the first part of the value. The other parts follow directly, without other keys in between.
    pub is_first: bool,
    /// The elements of this part.
    pub elements: PartElements<'a>,
}

/// The elements of one part, which may be empty.
#[derive(Debug, Clone, Copy)]
pub enum PartElements<'a> {
    /// Elements of a list.
    List(ListPart<'a>),
    /// Members of a set.
    Set(FieldsPart<'a>),
    /// Members of a sorted set.
    SortedSet(SortedSetPart<'a>),
    /// Fields of a hash.
    Hash(FieldsPart<'a>),
    /// Pieces of a stream.
    Stream(StreamPart<'a>),
}

impl PartElements<'_> {
    /// Visits list elements, or the names of the elements of other collections.
    pub fn visit_names(&self, visit: &mut dyn FnMut(&[u8])) {
        match self {
            Self::List(list) => {
                let mut digits = ItemDigits::default();
                list.for_each_run(&mut |run| run.items().for_each(|item| visit(item.bytes(&mut digits))));
            }
            Self::Set(fields) | Self::Hash(fields) => fields.for_each(&mut |field| visit(field.name)),
            Self::SortedSet(members) => members.for_each(&mut |member| visit(member.name)),
            Self::Stream(_) => {}
        }
    }
}

impl PackedValue<'_> {
    /// Visits the names of a collection's elements: set members, or hash fields. Other kinds have no names.
    pub fn visit_names(&self, visit: &mut dyn FnMut(&[u8])) {
        match self.kind() {
            Kind::Set => self.unordered_members().for_each(visit),
            Kind::SortedSet => self.scored_members().for_each(|member| visit(member.name)),
            Kind::Hash => self.fields().for_each(|field| visit(field.name)),
            Kind::String | Kind::List | Kind::Stream => {}
        }
    }
}
