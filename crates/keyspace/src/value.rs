//! What a key holds.

use crate::hash::{HashPart, HashRef};
use crate::packed::PackedHash;

/// The type of a value, as TYPE names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    String,
    List,
    Set,
    SortedSet,
    Hash,
    Stream,
}

impl Kind {
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

/// A string and how OBJECT ENCODING names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Str<'a> {
    pub bytes: &'a [u8],
    pub naming: Naming,
}

/// What OBJECT ENCODING goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Naming {
    /// The string was set whole: what it holds says what it is called.
    #[default]
    ByContent,
    /// It was edited in place (APPEND, SETRANGE, SETBIT): Redis calls it `raw` whatever it holds.
    Raw,
    /// It is a sum of floats (INCRBYFLOAT): Redis does not call it `int` even if it is whole.
    NeverInt,
}

/// A value as it is read, borrowed from its slot.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    String(Str<'a>),
    Hash(HashRef<'a>),
    /// Only from a snapshot's walk: some fields of a hash that is too large to be visited at once.
    HashPart(HashPart<'a>),
}

impl Value<'_> {
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::String(_) => Kind::String,
            Self::Hash(_) | Self::HashPart(_) => Kind::Hash,
        }
    }
}

/// A value as it is stored.
#[derive(Debug, Clone, Copy)]
pub enum NewValue<'a> {
    String(Str<'a>),
    Hash(PackedHash<'a>),
}

impl<'a> NewValue<'a> {
    /// A string that was set whole.
    #[must_use]
    pub fn string(bytes: &'a [u8]) -> Self {
        Self::String(Str { bytes, naming: Naming::ByContent })
    }
}
