//! The copies that a walk makes of a slot's entries while it holds the slot, to be shown once the slot is free.
//!
//! Copying a page takes a small part of the time in which its entries are written out, and the thread that walks may
//! lose its processor at any moment. So the slot is held for the copying only: pages as they are, and beside them
//! the keys and values that their entries have outside. A long value is copied by pieces, over several locks: it is
//! not edited meanwhile ([`crate::entries`], `pins`).

use std::ops::Range;

use crate::entry::{ALIVE, Header, Marks};
use crate::fields::FieldsPart;
use crate::kind::Form;
use crate::large::Large;
use crate::list::segments::SegmentsPart;
use crate::overflow::Record;
use crate::page;
use crate::snapshot::SnapshotEntry;
use crate::usage::Usage;
use crate::value::{Elements, Part, Shown, Value};

/// Buffers that have grown beyond this for a long value are not kept.
const KEPT_CAPACITY: usize = 256 << 10;

/// Copies, in the order in which they are shown.
#[derive(Debug, Default)]
pub(crate) struct Captured {
    bytes: Vec<u8>,
    outside: Vec<Outside>,
    pieces: Vec<Piece>,
    /// How many pieces have been shown.
    shown: usize,
    /// The records that were kept for the snapshot alone. Dropping them takes time.
    pub(crate) dropped: Vec<Record<Large>>,
    /// A part of a long value is the last in `bytes`, the others are to follow.
    pub(crate) within_value: bool,
    /// Parts of a value were shown, and others are to follow.
    pub(crate) within_parts: bool,
    /// Values are not copied: they are shown as empty ones, and those that are walked by themselves not at all.
    pub(crate) names_only: bool,
}

/// Where in `bytes` an entry's key and value are that lie outside of its page.
#[derive(Debug)]
struct Outside {
    /// The entry's offset in its page.
    at: usize,
    key: Option<Range<usize>>,
    value: Range<usize>,
}

#[derive(Debug)]
struct Piece {
    db: u16,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// Keys.
    Page(Copied),
    /// Elements that are fields.
    Fields {
        page: Copied,
        of: Whole,
        part: PartOf,
    },
    /// Segments of a list. What is shared need not be copied.
    Segments {
        of: Whole,
        part: SegmentsPart,
    },
    Long {
        of: Whole,
        value: Range<usize>,
    },
    Parts {
        of: Whole,
        parts: Box<dyn InParts>,
    },
}

/// A large value that a walk took over as a whole, for it takes no time to: shown part by part, with no slot held.
pub(crate) trait InParts: std::fmt::Debug + Send {
    /// The next part; `None` behind the last.
    fn next_part(&mut self) -> Option<Part<'_>>;
}

/// A page that was copied.
#[derive(Debug)]
struct Copied {
    /// The snapshot's bit in the state of an entry.
    bit: u32,
    page: Range<usize>,
    outside: Range<usize>,
}

/// The key that a value belongs to.
#[derive(Debug)]
struct Whole {
    key: Range<usize>,
    marks: Marks,
}

/// The key, with its database, that a value which is walked by itself belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'a> {
    pub(crate) db: u16,
    pub(crate) key: &'a [u8],
    pub(crate) marks: Marks,
}

/// The description of some fields of a collection.
#[derive(Debug)]
pub(crate) struct PartOf {
    pub(crate) total: usize,
    pub(crate) first: bool,
    pub(crate) any_expires: bool,
    /// Gives them as elements of their kind.
    pub(crate) elements: for<'a> fn(FieldsPart<'a>) -> Elements<'a>,
}

/// The key and value of an entry that lie outside of its page: no key if that is in the page, no value if that is walked
/// by itself.
pub(crate) struct External<'a> {
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
}

/// Gives the key and value that an entry has outside, by its offset and header; `None` if it has none there.
pub(crate) type FindExternal<'f, 'a> = dyn Fn(usize, Header) -> Option<External<'a>> + 'f;

/// Whether the snapshot with this bit has the entry.
pub(crate) fn is_needed(header: Header, bit: u32) -> bool {
    header.state() == ALIVE || header.state() & bit != 0
}

impl Captured {
    /// Copies a page of keys. `external` is for a table that has something outside. Returns how many bytes were
    /// copied.
    pub(crate) fn add_page<'a>(
        &mut self,
        db: u16,
        bit: u32,
        page: &'a [u8],
        external: Option<&FindExternal<'_, 'a>>,
    ) -> usize {
        let before = self.bytes.len();
        let page = self.copy(bit, page, external);
        self.pieces.push(Piece { db, content: Content::Page(page) });
        self.bytes.len() - before
    }

    /// Copies a page of fields.
    pub(crate) fn add_fields<'a>(
        &mut self,
        bit: u32,
        page: &'a [u8],
        external: Option<&FindExternal<'_, 'a>>,
        owner: Owner<'_>,
        part: PartOf,
    ) -> usize {
        let before = self.bytes.len();
        let page = self.copy(bit, page, external);
        let of = self.whole(owner);
        self.pieces.push(Piece { db: owner.db, content: Content::Fields { page, of, part } });
        self.bytes.len() - before
    }

    /// Takes segments of a list.
    pub(crate) fn add_segments(&mut self, owner: Owner<'_>, part: SegmentsPart) {
        let of = self.whole(owner);
        self.pieces.push(Piece { db: owner.db, content: Content::Segments { of, part } });
    }

    /// Copies the next part of a long value; the last completes it.
    pub(crate) fn add_long_part(&mut self, part: &[u8], left: usize) {
        self.bytes.reserve(part.len() + left);
        self.bytes.extend_from_slice(part);
        self.within_value = left > 0;
    }

    /// Completes a long value: the last `len` bytes that were copied are all its parts.
    pub(crate) fn complete_long(&mut self, owner: Owner<'_>, len: usize) {
        let value = self.bytes.len() - len..self.bytes.len();
        let of = self.whole(owner);
        self.pieces.push(Piece { db: owner.db, content: Content::Long { of, value } });
    }

    /// Takes over a value that is shown in parts.
    pub(crate) fn add_in_parts(&mut self, owner: Owner<'_>, parts: Box<dyn InParts>) {
        let of = self.whole(owner);
        self.pieces.push(Piece { db: owner.db, content: Content::Parts { of, parts } });
    }

    fn whole(&mut self, owner: Owner<'_>) -> Whole {
        Whole { key: self.keep(owner.key), marks: owner.marks }
    }

    fn keep(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn copy<'a>(&mut self, bit: u32, page: &'a [u8], external: Option<&FindExternal<'_, 'a>>) -> Copied {
        let first = self.outside.len();
        let copy = self.keep(&page[..page::end(page)]);
        let Some(external) = external else { return Copied { bit, page: copy, outside: first..first } };
        for (at, header) in page::entries(page, page::HEAD).filter(|(_, header)| is_needed(*header, bit)) {
            let Some(External { key, value }) = external(at, header) else { continue };
            let value = if self.names_only { Some(&[][..]) } else { value };
            if let Some(value) = value {
                let (key, value) = (key.map(|key| self.keep(key)), self.keep(value));
                self.outside.push(Outside { at, key, value });
            }
        }
        Copied { bit, page: copy, outside: first..self.outside.len() }
    }

    /// Shows what was copied, and is empty then; but no more than one part of a value that is shown in parts.
    pub(crate) fn show(&mut self, visit: &mut dyn FnMut(SnapshotEntry<'_>)) {
        let mut pieces = std::mem::take(&mut self.pieces);
        self.within_parts = false;
        while let Some(piece) = pieces.get_mut(self.shown) {
            if self.show_piece(piece, visit) {
                self.within_parts = true;
                self.pieces = pieces;
                return;
            }
            self.shown += 1;
        }
        pieces.clear();
        self.pieces = pieces;
        self.clear();
    }

    /// Shows a piece, or the next part of a value; says whether there may be more of it.
    fn show_piece(&self, piece: &mut Piece, visit: &mut dyn FnMut(SnapshotEntry<'_>)) -> bool {
        let Piece { db, content } = piece;
        let mut show = |of: &Whole, value| {
            let Marks { expiry, usage, .. } = of.marks;
            let (key, usage) = (&self.bytes[of.key.clone()], Usage(usage));
            visit(SnapshotEntry { db: *db, key, value, expiry, usage });
        };
        match content {
            Content::Page(page) => {
                self.view(page).for_each(&mut |key, bytes, Marks { code, usage, expiry }| {
                    let (value, usage) = (Shown::Whole(Value::flat(Form::of(code), bytes)), Usage(usage));
                    visit(SnapshotEntry { db: *db, key, value, expiry, usage });
                });
            }
            Content::Fields { page, of, part } => {
                let PartOf { total, first, any_expires, elements } = *part;
                let elements = elements(FieldsPart { any_expires, page: self.view(page) });
                show(of, Shown::Part(Part { total, first, elements }));
            }
            Content::Segments { of, part } => {
                let SegmentsPart { of: size, first, .. } = *part;
                show(of, Shown::Part(Part { total: size.len, first, elements: part.elements() }));
            }
            Content::Long { of, value } => {
                let form = Form::of(of.marks.code);
                show(of, Shown::Whole(Value::flat(form, &self.bytes[value.clone()])));
            }
            Content::Parts { of, parts } => {
                let part = parts.next_part();
                let more = part.is_some();
                part.into_iter().for_each(|part| show(of, Shown::Part(part)));
                return more;
            }
        }
        false
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.outside.clear();
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_CAPACITY);
        self.dropped.clear();
        self.within_value = false;
        (self.shown, self.within_parts) = (0, false);
    }

    fn view(&self, copied: &Copied) -> PageView<'_> {
        PageView {
            bit: copied.bit,
            page: &self.bytes[copied.page.clone()],
            outside: &self.outside[copied.outside.clone()],
            bytes: &self.bytes,
        }
    }
}

/// Sees an entry: its key, value, and what else it says.
type VisitEntry<'a> = dyn FnMut(&[u8], &[u8], Marks) + 'a;

/// The copy of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageView<'a> {
    bit: u32,
    page: &'a [u8],
    outside: &'a [Outside],
    bytes: &'a [u8],
}

impl PageView<'_> {
    /// Visits what the page had at the cut.
    pub(crate) fn for_each(&self, visit: &mut VisitEntry<'_>) {
        let mut outside = self.outside.iter().peekable();
        for (at, header) in page::entries(self.page, page::HEAD) {
            if !is_needed(header, self.bit) {
                continue;
            }
            let (mut key, mut value) = (header.key(self.page, at), header.value(self.page, at));
            if header.outside(self.page, at).is_some() {
                // A value that is missing here is shown by itself.
                let Some(external) = outside.next_if(|external| external.at == at) else { continue };
                key = external.key.clone().map_or(key, |key| &self.bytes[key]);
                value = &self.bytes[external.value.clone()];
            }
            visit(key, value, header.marks(self.page, at));
        }
    }
}
