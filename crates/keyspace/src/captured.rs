//! Copies entries out of a locked slot so that a snapshot can serialize them after the slot is unlocked.
//!
//! Copying a page takes a fraction of the time that serializing its entries takes, and the walking thread can
//! be preempted at any moment. So the slot is locked only while copying: whole pages, plus the keys and
//! values that their entries store outside the page. A long value is copied in chunks under several locks; it
//! cannot be edited in between (see `pins` in [`crate::entries`]).

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

/// Buffers larger than this are freed after use instead of being reused.
const KEPT_CAPACITY: usize = 256 << 10;

/// Copied pieces, in the order in which they will be visited.
#[derive(Debug, Default)]
pub(crate) struct Captured {
    bytes: Vec<u8>,
    outside: Vec<Outside>,
    pieces: Vec<Piece>,
    /// Number of pieces already visited.
    shown: usize,
    /// Records that only the snapshot still needed. The caller drops them after unlocking, because dropping
    /// is slow.
    pub(crate) dropped: Vec<Record<Large>>,
    /// `bytes` ends with the first chunks of a long value; the rest is copied under later locks.
    pub(crate) within_value: bool,
    /// Some parts of a multi-part value have been visited and more will follow.
    pub(crate) within_parts: bool,
    /// Visit keys with empty values, and skip values that have their own walk.
    pub(crate) names_only: bool,
}

/// Ranges in `bytes` of the key and value that an entry stores outside its page.
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
    /// A page of keys.
    Page(Copied),
    /// A page of collection elements stored as fields.
    Fields {
        page: Copied,
        of: Whole,
        part: PartOf,
    },
    /// Segments of a list. They are shared through `Arc`, so nothing is copied.
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

/// A large value that the walk took over in O(1). It is visited part by part with no slot locked.
pub(crate) trait InParts: std::fmt::Debug + Send {
    /// Returns the next part, or `None` at the end.
    fn next_part(&mut self) -> Option<Part<'_>>;
}

/// A copied page.
#[derive(Debug)]
struct Copied {
    /// The snapshot's bit in the state of an entry.
    bit: u32,
    page: Range<usize>,
    outside: Range<usize>,
}

/// The key that a value belongs to, as ranges of the copy buffer.
#[derive(Debug)]
struct Whole {
    key: Range<usize>,
    marks: Marks,
}

/// The key and database that own a value with its own walk.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'a> {
    pub(crate) db: u16,
    pub(crate) key: &'a [u8],
    pub(crate) marks: Marks,
}

/// Describes one part of a collection's fields.
#[derive(Debug)]
pub(crate) struct PartOf {
    pub(crate) total: usize,
    pub(crate) first: bool,
    pub(crate) any_expires: bool,
    /// Wraps the fields in the variant of their collection kind.
    pub(crate) elements: for<'a> fn(FieldsPart<'a>) -> Elements<'a>,
}

/// The parts of an entry that lie outside its page. `key` is `None` if the key is in the page; `value` is
/// `None` if the value has its own walk.
pub(crate) struct External<'a> {
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
}

/// Looks up the overflow key and value of an entry by its page offset and header; `None` if it has none.
pub(crate) type FindExternal<'f, 'a> = dyn Fn(usize, Header) -> Option<External<'a>> + 'f;

/// Whether the entry belongs to the snapshot with this bit.
pub(crate) fn is_needed(header: Header, bit: u32) -> bool {
    header.state() == ALIVE || header.state() & bit != 0
}

impl Captured {
    /// Copies a page of keys and returns the number of bytes copied. `external` is `Some` if the table has
    /// overflow values.
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

    /// Copies a page of collection fields.
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

    /// Adds segments of a list.
    pub(crate) fn add_segments(&mut self, owner: Owner<'_>, part: SegmentsPart) {
        let of = self.whole(owner);
        self.pieces.push(Piece { db: owner.db, content: Content::Segments { of, part } });
    }

    /// Copies the next chunk of a long value; the last chunk completes the value.
    pub(crate) fn add_long_part(&mut self, part: &[u8], left: usize) {
        self.bytes.reserve(part.len() + left);
        self.bytes.extend_from_slice(part);
        self.within_value = left > 0;
    }

    /// Completes a long value made of the last `len` bytes copied.
    pub(crate) fn complete_long(&mut self, owner: Owner<'_>, len: usize) {
        let value = self.bytes.len() - len..self.bytes.len();
        let of = self.whole(owner);
        self.pieces.push(Piece { db: owner.db, content: Content::Long { of, value } });
    }

    /// Adds a value that will be visited in parts.
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

    /// Visits the copied entries and clears the buffer. Stops after one part of a multi-part value.
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

    /// Visits a piece, or the next part of a multi-part value. Returns whether more parts may follow.
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

/// Receives the key, the value and the attributes of an entry.
type VisitEntry<'a> = dyn FnMut(&[u8], &[u8], Marks) + 'a;

/// A read-only view of a copied page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageView<'a> {
    bit: u32,
    page: &'a [u8],
    outside: &'a [Outside],
    bytes: &'a [u8],
}

impl PageView<'_> {
    /// Visits the entries that existed at the cut.
    pub(crate) fn for_each(&self, visit: &mut VisitEntry<'_>) {
        let mut outside = self.outside.iter().peekable();
        for (at, header) in page::entries(self.page, page::HEAD) {
            if !is_needed(header, self.bit) {
                continue;
            }
            let (mut key, mut value) = (header.key(self.page, at), header.value(self.page, at));
            if header.outside(self.page, at).is_some() {
                // An entry without a copied value has its own walk.
                let Some(external) = outside.next_if(|external| external.at == at) else { continue };
                key = external.key.clone().map_or(key, |key| &self.bytes[key]);
                value = &self.bytes[external.value.clone()];
            }
            visit(key, value, header.marks(self.page, at));
        }
    }
}
