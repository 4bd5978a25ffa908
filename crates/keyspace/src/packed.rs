//! A value as one run of bytes: how it is stored while it is small, and how one comes in that is to be stored.
//!
//! A string is its bytes. A collection begins with the number of its elements, in two bytes; the layout of the rest is
//! its kind's own ([`crate::hash`], `records`). It stays so up to [`MOST_BYTES`] and [`MOST_ELEMENTS`]; past that it
//! becomes a structure ([`crate::large`]). Code that copies, moves, loads or renames a packed value knows no kinds.

use crate::kind::{Bounds, Form, Kind, Limits, Naming};
use crate::large::Collection;
use crate::value::Value;

/// Bytes of the number that a packed collection begins with.
pub(crate) const COUNT: usize = 2;
/// The most bytes and elements of a packed collection ([`Form::most_packed`]): to find one, each is looked at.
pub(crate) const MOST_BYTES: usize = 8 << 10;
pub(crate) const MOST_ELEMENTS: usize = 512;

pub(crate) fn count(packed: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([packed[0], packed[1]]))
}

/// Bytes of the elements, as far as four bytes can say it.
pub(crate) fn elements_len(packed: &[u8]) -> u32 {
    u32::try_from(packed.len().saturating_sub(COUNT)).unwrap_or(u32::MAX)
}

pub(crate) fn set_count(packed: &mut [u8], count: usize) {
    packed[..COUNT].copy_from_slice(&(count as u16).to_le_bytes());
}

/// Where a collection's elements are that is read.
#[derive(Debug)]
pub(crate) enum Shape<'a, L> {
    Packed(&'a [u8]),
    Large(&'a L),
}

impl<L> Clone for Shape<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Shape<'_, L> {}

impl<L: Collection> Shape<'_, L> {
    /// How many elements there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Packed(packed) => count(packed),
            Self::Large(large) => large.len(),
        }
    }
}

/// A value, or a part of a large one, that is to be stored.
#[derive(Debug, Clone, Copy)]
pub struct Packed<'a> {
    /// The count that a collection begins with is right only in one that may stay packed.
    bytes: &'a [u8],
    about: About,
}

/// The facts about a [`Packed`] value that go with its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    pub(crate) form: Form,
    /// How many elements there are; none of a string.
    pub(crate) count: u32,
    /// The length of the longest element, or of a name or value in it.
    pub(crate) longest: u32,
    /// Whether an element expires.
    pub(crate) timed: bool,
    /// Bytes of all elements; known when the value has been named.
    pub(crate) bytes: u32,
}

impl<'a> Packed<'a> {
    /// A string that was set whole.
    #[must_use]
    #[inline]
    pub fn string(bytes: &'a [u8]) -> Self {
        Self::named_string(bytes, Naming::ByContent)
    }

    /// A string, with how OBJECT ENCODING names it.
    #[must_use]
    #[inline]
    pub fn named_string(bytes: &'a [u8], naming: Naming) -> Self {
        Self { bytes, about: About::of(naming.into()) }
    }

    /// A value without elements, to be filled where it lies.
    #[must_use]
    pub fn empty(kind: Kind) -> Self {
        let form = Form::first_of(kind);
        let bytes: &[u8] = if form.is_collection() { &[0; COUNT] } else { &[] };
        Self { bytes, about: About::of(form) }
    }

    /// Puts one together again from what [`bytes`](Self::bytes) and [`about`](Self::about) gave.
    #[must_use]
    pub fn of(bytes: &'a [u8], about: About) -> Self {
        Self { bytes, about }
    }

    /// The value as it is stored.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The facts that were noted while it was built.
    #[must_use]
    pub fn about(&self) -> About {
        self.about
    }

    /// The kind of value it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.about.form.kind()
    }

    #[inline]
    pub(crate) fn form(&self) -> Form {
        self.about.form
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.about.count as usize
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.about.count == 0
    }

    /// Its name in OBJECT ENCODING.
    #[must_use]
    pub fn encoding(&self) -> &'static str {
        Value::flat(self.form(), self.bytes).encoding()
    }

    /// Whether an element expires.
    #[must_use]
    pub fn any_expires(&self) -> bool {
        self.about.timed
    }

    /// Whether it is stored as it is.
    #[inline]
    #[must_use]
    pub fn stays_packed(&self) -> bool {
        self.form().stays_packed(self.bytes, self.len())
    }
}

impl About {
    #[inline]
    pub(crate) fn of(form: Form) -> Self {
        Self { form, count: 0, longest: 0, timed: false, bytes: 0 }
    }

    #[inline]
    pub(crate) fn form(&self) -> Form {
        self.form
    }

    /// Whether so many elements, or one so long, are past the bounds of a small collection's name.
    pub(crate) fn passes(&self, bounds: Bounds) -> bool {
        self.count as usize > bounds.entries || self.longest as usize > bounds.value
    }
}

/// A packed value that is being made: from a dump, from a file. Its kind's module adds the elements.
#[derive(Debug, Clone)]
pub struct Builder {
    pub(crate) bytes: Vec<u8>,
    pub(crate) about: About,
}

/// A string without bytes.
impl Default for Builder {
    fn default() -> Self {
        Self::new(Kind::String)
    }
}

impl Builder {
    /// Begins an empty value of this kind.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        let empty = Packed::empty(kind);
        Self { bytes: empty.bytes.to_vec(), about: empty.about }
    }

    /// Begins anew and keeps the memory.
    pub fn begin(&mut self, kind: Kind) {
        let empty = Packed::empty(kind);
        self.bytes.clear();
        self.bytes.extend_from_slice(empty.bytes);
        self.about = empty.about;
    }

    /// Decides how OBJECT ENCODING will call it.
    pub fn name_by(&mut self, limits: &Limits) {
        self.about.bytes = elements_len(&self.bytes);
        self.about.form = self.about.form.renamed(&self.about, limits);
    }

    /// Makes a string of the bytes that `fill` puts into the memory that the builder has.
    ///
    /// # Errors
    /// That of `fill`; the builder then holds no value.
    pub fn fill_string<E>(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        self.begin(Kind::String);
        fill(&mut self.bytes)
    }

    /// The value that has been built so far.
    #[must_use]
    pub fn packed(&self) -> Packed<'_> {
        Packed { bytes: &self.bytes, about: self.about }
    }
}
