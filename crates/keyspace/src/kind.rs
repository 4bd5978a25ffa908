//! The kinds of values, their names, and how an entry's header tells them apart.
//!
//! A kind is added here first; the compiler then names what else it needs (docs/keyspace.md, "How a kind is added").

use crate::entry::Code;
use crate::packed::{About, MOST_BYTES, MOST_ELEMENTS};
use crate::stream;

/// The type of a value, as TYPE names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A run of bytes.
    String,
    /// Elements in an order of their own.
    List,
    /// Members, each of which is there once.
    Set,
    /// Members in the order of their scores.
    SortedSet,
    /// Fields with values.
    Hash,
    /// Entries by rising ids.
    Stream,
}

impl Kind {
    /// All of them.
    pub const ALL: &[Self] =
        &[Self::String, Self::List, Self::Set, Self::SortedSet, Self::Hash, Self::Stream];

    /// The kind of this name, in lower case.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|kind| kind.name() == name).copied()
    }

    /// The name that TYPE and SCAN's TYPE option use.
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

/// The property of a string that OBJECT ENCODING goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Naming {
    /// The string was set whole: its content decides its name.
    #[default]
    ByContent,
    /// It was edited in place (APPEND, SETRANGE, SETBIT): Redis calls it `raw` whatever it holds.
    Raw,
    /// It is a sum of floats (INCRBYFLOAT): Redis does not call it `int` even if it is whole.
    NeverInt,
}

/// A kind, and the value's name in OBJECT ENCODING; that follows Redis's thresholds, whatever the shape. Its number is
/// the code in an entry's header, of which there are fifteen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Form {
    /// Called by its content.
    String,
    RawString,
    /// A sum of floats.
    SumString,
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

impl Form {
    #[inline]
    pub(crate) const fn code(self) -> Code {
        Code::of_key(self as u8)
    }

    /// The form that the header of a key's entry says.
    #[inline(always)]
    pub(crate) fn of(code: Code) -> Self {
        match code.number() {
            0 => Self::String,
            1 => Self::RawString,
            2 => Self::SumString,
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
            Self::String | Self::RawString | Self::SumString => Kind::String,
            Self::ListpackList | Self::QuicklistList => Kind::List,
            Self::IntsetSet | Self::ListpackSet | Self::TableSet => Kind::Set,
            Self::ListpackSortedSet | Self::SkiplistSortedSet => Kind::SortedSet,
            Self::ListpackHash | Self::TableHash => Kind::Hash,
            Self::Stream => Kind::Stream,
        }
    }

    /// Whether it has elements.
    #[inline]
    pub(crate) fn is_collection(self) -> bool {
        match self.kind() {
            Kind::String => false,
            Kind::List | Kind::Set | Kind::SortedSet | Kind::Hash | Kind::Stream => true,
        }
    }

    /// That of a value of this kind of which nothing is known yet.
    pub(crate) fn first_of(kind: Kind) -> Self {
        match kind {
            Kind::String => Self::String,
            Kind::List => Self::ListpackList,
            Kind::Set => Self::IntsetSet,
            Kind::SortedSet => Self::ListpackSortedSet,
            Kind::Hash => Self::ListpackHash,
            Kind::Stream => Self::Stream,
        }
    }

    /// The form whose name a value has from now on; `about` describes it or the elements that were added to it. A name
    /// that stands for more than another is kept.
    pub(crate) fn renamed(self, about: &About, limits: &Limits) -> Self {
        match self {
            Self::String | Self::RawString | Self::SumString | Self::Stream => self,
            Self::ListpackSortedSet if about.passes(limits.sorted_set) => Self::SkiplistSortedSet,
            Self::ListpackSortedSet | Self::SkiplistSortedSet => self,
            Self::ListpackList if limits.list.is_passed(about.bytes as usize, about.count as usize) => {
                Self::QuicklistList
            }
            Self::ListpackList | Self::QuicklistList => self,
            Self::ListpackHash if about.passes(limits.hash) => Self::TableHash,
            Self::ListpackHash | Self::TableHash => self,
            Self::IntsetSet | Self::ListpackSet | Self::TableSet => self.renamed_set(about, limits.set),
        }
    }

    /// The same for a set. It is an intset while it has integers alone, and not too many; with too many it becomes a
    /// table.
    pub(crate) fn renamed_set(self, about: &About, bounds: SetBounds) -> Self {
        match (self, about.form()) {
            (Self::TableSet, _) | (_, Self::TableSet) => Self::TableSet,
            (Self::IntsetSet, Self::IntsetSet) if about.count as usize <= bounds.intset => Self::IntsetSet,
            (Self::IntsetSet, Self::IntsetSet) => Self::TableSet,
            _ if about.passes(bounds.listpack) => Self::TableSet,
            _ => Self::ListpackSet,
        }
    }

    /// Whether a value of so many elements is stored as these bytes.
    #[inline]
    pub(crate) fn stays_packed(self, bytes: &[u8], len: usize) -> bool {
        match self.kind() {
            Kind::String => true,
            Kind::List | Kind::Set | Kind::SortedSet | Kind::Hash => {
                bytes.len() <= MOST_BYTES && len <= self.most_packed()
            }
            Kind::Stream => stream::stays_packed(bytes),
        }
    }

    /// How many elements a packed value has at most, for each of them is looked at to find one.
    pub(crate) fn most_packed(self) -> usize {
        match self {
            // They are not looked at one by one but stand in order.
            Self::IntsetSet => MOST_ELEMENTS,
            Self::ListpackSet | Self::TableSet => 128,
            Self::String
            | Self::RawString
            | Self::SumString
            | Self::ListpackHash
            | Self::TableHash
            | Self::ListpackList
            | Self::QuicklistList
            | Self::ListpackSortedSet
            | Self::SkiplistSortedSet
            | Self::Stream => MOST_ELEMENTS,
        }
    }
}

impl From<Naming> for Form {
    #[inline]
    fn from(naming: Naming) -> Self {
        match naming {
            Naming::ByContent => Self::String,
            Naming::Raw => Self::RawString,
            Naming::NeverInt => Self::SumString,
        }
    }
}

/// Up to where OBJECT ENCODING gives a collection the name of a small one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// How many elements.
    pub entries: usize,
    /// The length of an element, or of a name or value in it.
    pub value: usize,
}

/// Up to where OBJECT ENCODING gives a list the name of a small one (`list-max-listpack-size`): so many elements, or,
/// if negative, from 4 KB for -1 to 64 KB for -5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListLimit(pub i32);

impl ListLimit {
    /// Bytes of a listpack besides its entries.
    const FRAME: usize = 7;
    /// Where elements are counted, they must be no longer than this in all.
    const MOST_COUNTED: usize = 8192;

    /// The most bytes of a listpack, or the most elements.
    fn most(self) -> Result<usize, usize> {
        match self.0 {
            0.. => Err(self.0.max(1) as usize),
            _ => Ok(2048 << self.0.unsigned_abs().min(5)),
        }
    }

    /// Whether so many elements of so many bytes of records are too much for the small one's name.
    pub(crate) fn is_passed(self, bytes: usize, len: usize) -> bool {
        let bytes = bytes + Self::FRAME;
        match self.most() {
            Ok(most) => bytes > most,
            Err(most) => bytes > Self::MOST_COUNTED || len > most,
        }
    }

    /// Whether a list that was too much is so no more: it must have shrunk to half of that.
    pub(crate) fn is_far(self, bytes: usize, len: usize) -> bool {
        match self.most() {
            Ok(most) => bytes + Self::FRAME <= most / 2,
            Err(most) => len <= most / 2,
        }
    }
}

/// Up to where OBJECT ENCODING gives a set which name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetBounds {
    /// How many integers are an `intset`.
    pub intset: usize,
    /// Up to where a set is a `listpack`.
    pub listpack: Bounds,
}

/// Up to where entries of a stream are put together in one node; 0 is without a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeBounds {
    /// `stream-node-max-bytes`
    pub bytes: usize,
    /// `stream-node-max-entries`
    pub entries: usize,
}

/// Up to where collections are called small, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `list-max-listpack-size`.
    pub list: ListLimit,
    /// `set-max-intset-entries`, `set-max-listpack-entries` and `set-max-listpack-value`.
    pub set: SetBounds,
    /// `zset-max-listpack-entries` and `zset-max-listpack-value`.
    pub sorted_set: Bounds,
    /// `hash-max-listpack-entries` and `hash-max-listpack-value`.
    pub hash: Bounds,
    /// Of a stream, its nodes.
    pub stream: NodeBounds,
}

impl Default for Limits {
    fn default() -> Self {
        let set = SetBounds { intset: 512, listpack: Bounds { entries: 128, value: 64 } };
        let sorted_set = Bounds { entries: 128, value: 64 };
        let stream = NodeBounds { bytes: 4096, entries: 100 };
        Self { list: ListLimit(-2), set, sorted_set, hash: Bounds { entries: 512, value: 64 }, stream }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_reads_back_as_its_form() {
        let forms = [
            Form::String,
            Form::RawString,
            Form::SumString,
            Form::ListpackHash,
            Form::TableHash,
            Form::ListpackList,
            Form::QuicklistList,
            Form::IntsetSet,
            Form::ListpackSet,
            Form::TableSet,
            Form::ListpackSortedSet,
            Form::SkiplistSortedSet,
            Form::Stream,
        ];
        for form in forms {
            assert_eq!(Form::of(form.code()), form);
            assert_eq!(Form::first_of(form.kind()).kind(), form.kind());
            assert!(Kind::ALL.contains(&form.kind()));
        }
    }
}
