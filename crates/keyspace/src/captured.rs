//! Copies entries out of a locked slot so that a snapshot can serialize them after the slot is unlocked.
//!
//! Copying a page is much faster than serializing its entries, and the thread may be preempted at any moment. So the
//! slot stays locked only while data is copied: whole pages, plus the keys and values that their entries store outside
//! the page. A long value is copied in chunks, and the slot is unlocked in between; the value cannot be edited until
//! then (see `pins` in [`crate::entries`]).

use std::ops::Range;

use crate::entry::{EntryAttributes, Header, STATE_ALIVE};
use crate::fields::FieldsPart;
use crate::kind::ValueEncoding;
use crate::large::LargeValue;
use crate::list::segments::SegmentsPart;
use crate::overflow::Record;
use crate::page;
use crate::snapshot::SnapshotEntry;
use crate::usage::Usage;
use crate::value::{PartElements, SnapshotValue, Value, ValuePart};

/// Buffers larger than this are freed after use instead of being reused.
const MAX_RETAINED_CAPACITY: usize = 256 << 10;

/// Copied data, in the order in which the snapshot will visit it.
#[derive(Debug, Default)]
pub(crate) struct CapturedEntries {
    bytes: Vec<u8>,
    overflow: Vec<OverflowRanges>,
    pieces: Vec<CapturedPiece>,
    visited_pieces: usize,
    /// Records that no store and no other snapshot needs any more. The caller drops them after unlocking, because
    /// dropping is slow.
    pub(crate) records_to_drop: Vec<Record<LargeValue>>,
    /// Whether `bytes` ends with the first chunks of a long value whose other chunks are not copied yet.
    pub(crate) in_long_value: bool,
    /// Whether some parts of a multi-part value have been visited and more parts will follow.
    pub(crate) in_multipart_value: bool,
    /// Whether only keys are needed: they are visited with empty values, and values that have several parts are
    /// skipped.
    pub(crate) keys_only: bool,
}

/// Ranges in `bytes` of the key and value that an entry stores outside its page.
#[derive(Debug)]
struct OverflowRanges {
    /// The entry's offset in its page.
    entry_offset: usize,
    key: Option<Range<usize>>,
    value: Range<usize>,
}

#[derive(Debug)]
struct CapturedPiece {
    db: u16,
    content: CapturedContent,
}

#[derive(Debug)]
enum CapturedContent {
    /// A copied page of keys.
    Page(CopiedPage),
    /// A page with elements of a hash, set or sorted set.
    FieldPage {
        page: CopiedPage,
        owner: CopiedKey,
        part: PartInfo,
    },
    /// Segments of a list. They are shared through `Arc`, so nothing is copied.
    ListSegments {
        owner: CopiedKey,
        part: SegmentsPart,
    },
    LongValue {
        owner: CopiedKey,
        value: Range<usize>,
    },
    MultipartValue {
        owner: CopiedKey,
        parts: Box<dyn MultipartWalk>,
    },
}

/// A large value that was handed over to the snapshot in O(1). Its parts are visited while no slot is locked.
pub(crate) trait MultipartWalk: std::fmt::Debug + Send {
    /// Returns the next part, or `None` after the last one.
    fn next_part(&mut self) -> Option<ValuePart<'_>>;
}

#[derive(Debug)]
struct CopiedPage {
    /// The snapshot's bit in the state of an entry ([`crate::entry`]).
    snapshot_bit: u32,
    page: Range<usize>,
    overflow: Range<usize>,
}

/// The key of a value, as a range of the copy buffer, with its attributes.
#[derive(Debug)]
struct CopiedKey {
    key: Range<usize>,
    attributes: EntryAttributes,
}

/// The database and key of a value that is visited in parts.
#[derive(Clone, Copy)]
pub(crate) struct ValueOwner<'a> {
    pub(crate) db: u16,
    pub(crate) key: &'a [u8],
    pub(crate) attributes: EntryAttributes,
}

/// Properties of the part of a collection that is passed to the visitor.
#[derive(Debug)]
pub(crate) struct PartInfo {
    pub(crate) total: usize,
    pub(crate) is_first: bool,
    pub(crate) has_expiring_fields: bool,
    /// Converts the fields to the variant for the kind of the collection.
    pub(crate) elements: for<'a> fn(FieldsPart<'a>) -> PartElements<'a>,
}

/// The key and value of an entry that lie outside its page. `key` is `None` if the page contains the key; `value` is
/// `None` if the value is visited in parts.
pub(crate) struct OverflowParts<'a> {
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
}

/// Looks up the overflow key and value of an entry by its page offset and header; `None` if the entry has neither.
pub(crate) type FindOverflow<'f, 'a> = dyn Fn(usize, Header) -> Option<OverflowParts<'a>> + 'f;

/// Returns whether the entry existed when the snapshot with this bit was taken.
pub(crate) fn is_in_snapshot(header: Header, snapshot_bit: u32) -> bool {
    header.state() == STATE_ALIVE || header.state() & snapshot_bit != 0
}

impl CapturedEntries {
    /// Copies a page of keys and returns the number of copied bytes. `overflow_parts` is `None` if the table has no
    /// overflow values.
    pub(crate) fn add_page<'a>(
        &mut self,
        db: u16,
        snapshot_bit: u32,
        page: &'a [u8],
        overflow_parts: Option<&FindOverflow<'_, 'a>>,
    ) -> usize {
        let before = self.bytes.len();
        let page = self.copy_page(snapshot_bit, page, overflow_parts);
        self.pieces.push(CapturedPiece { db, content: CapturedContent::Page(page) });
        self.bytes.len() - before
    }

    /// Copies a page of collection fields.
    pub(crate) fn add_fields<'a>(
        &mut self,
        snapshot_bit: u32,
        page: &'a [u8],
        overflow_parts: Option<&FindOverflow<'_, 'a>>,
        owner: ValueOwner<'_>,
        part: PartInfo,
    ) -> usize {
        let before = self.bytes.len();
        let page = self.copy_page(snapshot_bit, page, overflow_parts);
        let of = self.copy_key(owner);
        self.pieces.push(CapturedPiece {
            db: owner.db,
            content: CapturedContent::FieldPage { page, owner: of, part },
        });
        self.bytes.len() - before
    }

    pub(crate) fn add_segments(&mut self, owner: ValueOwner<'_>, part: SegmentsPart) {
        let of = self.copy_key(owner);
        self.pieces
            .push(CapturedPiece { db: owner.db, content: CapturedContent::ListSegments { owner: of, part } });
    }

    /// Copies the next chunk of a long value. After this chunk, `remaining_bytes` bytes remain to be copied.
    pub(crate) fn add_long_chunk(&mut self, chunk: &[u8], remaining_bytes: usize) {
        self.bytes.reserve(chunk.len() + remaining_bytes);
        self.bytes.extend_from_slice(chunk);
        self.in_long_value = remaining_bytes > 0;
    }

    /// Completes a long value made of the last `len` bytes copied.
    pub(crate) fn finish_long_value(&mut self, owner: ValueOwner<'_>, len: usize) {
        let value = self.bytes.len() - len..self.bytes.len();
        let of = self.copy_key(owner);
        self.pieces
            .push(CapturedPiece { db: owner.db, content: CapturedContent::LongValue { owner: of, value } });
    }

    /// Adds a value whose parts will be visited later.
    pub(crate) fn add_multipart(&mut self, owner: ValueOwner<'_>, parts: Box<dyn MultipartWalk>) {
        let of = self.copy_key(owner);
        self.pieces.push(CapturedPiece {
            db: owner.db,
            content: CapturedContent::MultipartValue { owner: of, parts },
        });
    }

    fn copy_key(&mut self, owner: ValueOwner<'_>) -> CopiedKey {
        CopiedKey { key: self.copy_bytes(owner.key), attributes: owner.attributes }
    }

    fn copy_bytes(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn copy_page<'a>(
        &mut self,
        snapshot_bit: u32,
        page: &'a [u8],
        overflow_parts: Option<&FindOverflow<'_, 'a>>,
    ) -> CopiedPage {
        let first = self.overflow.len();
        let copy = self.copy_bytes(&page[..page::entries_end(page)]);
        let Some(overflow_parts) = overflow_parts else {
            return CopiedPage { snapshot_bit, page: copy, overflow: first..first };
        };
        for (at, header) in
            page::entries(page, page::HEADER_LEN).filter(|(_, header)| is_in_snapshot(*header, snapshot_bit))
        {
            let Some(OverflowParts { key, value }) = overflow_parts(at, header) else { continue };
            let value = if self.keys_only { Some(&[][..]) } else { value };
            if let Some(value) = value {
                let (key, value) = (key.map(|key| self.copy_bytes(key)), self.copy_bytes(value));
                self.overflow.push(OverflowRanges { entry_offset: at, key, value });
            }
        }
        CopiedPage { snapshot_bit, page: copy, overflow: first..self.overflow.len() }
    }

    /// Visits the copied entries and clears the buffer. Stops after one part of a multi-part value.
    pub(crate) fn visit_captured(&mut self, visit: &mut dyn FnMut(SnapshotEntry<'_>)) {
        let mut pieces = std::mem::take(&mut self.pieces);
        self.in_multipart_value = false;
        while let Some(piece) = pieces.get_mut(self.visited_pieces) {
            if self.visit_piece(piece, visit) {
                self.in_multipart_value = true;
                self.pieces = pieces;
                return;
            }
            self.visited_pieces += 1;
        }
        pieces.clear();
        self.pieces = pieces;
        self.clear();
    }

    /// Visits a copied piece, or the next part of a multi-part value. Returns whether more parts follow.
    fn visit_piece(&self, piece: &mut CapturedPiece, visit: &mut dyn FnMut(SnapshotEntry<'_>)) -> bool {
        let CapturedPiece { db, content } = piece;
        let mut visit_captured = |of: &CopiedKey, value| {
            let EntryAttributes { expiry, usage, .. } = of.attributes;
            let (key, usage) = (&self.bytes[of.key.clone()], Usage(usage));
            visit(SnapshotEntry { db: *db, key, value, expiry, usage });
        };
        match content {
            CapturedContent::Page(page) => {
                self.page_view(page).for_each(&mut |key, bytes, EntryAttributes { code, usage, expiry }| {
                    let (value, usage) = (
                        SnapshotValue::Whole(Value::from_bytes(ValueEncoding::from_code(code), bytes)),
                        Usage(usage),
                    );
                    visit(SnapshotEntry { db: *db, key, value, expiry, usage });
                });
            }
            CapturedContent::FieldPage { page, owner: of, part } => {
                let PartInfo { total, is_first: first, has_expiring_fields: any_expires, elements } = *part;
                let elements =
                    elements(FieldsPart { has_expiring_fields: any_expires, page: self.page_view(page) });
                visit_captured(
                    of,
                    SnapshotValue::Part(ValuePart { total_elements: total, is_first: first, elements }),
                );
            }
            CapturedContent::ListSegments { owner: of, part } => {
                let SegmentsPart { total_size: size, is_first: first, .. } = *part;
                visit_captured(
                    of,
                    SnapshotValue::Part(ValuePart {
                        total_elements: size.len,
                        is_first: first,
                        elements: part.elements(),
                    }),
                );
            }
            CapturedContent::LongValue { owner: of, value } => {
                let form = ValueEncoding::from_code(of.attributes.code);
                visit_captured(of, SnapshotValue::Whole(Value::from_bytes(form, &self.bytes[value.clone()])));
            }
            CapturedContent::MultipartValue { owner: of, parts } => {
                let part = parts.next_part();
                let more = part.is_some();
                part.into_iter().for_each(|part| visit_captured(of, SnapshotValue::Part(part)));
                return more;
            }
        }
        false
    }

    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.overflow.clear();
        self.bytes.clear();
        self.bytes.shrink_to(MAX_RETAINED_CAPACITY);
        self.records_to_drop.clear();
        self.in_long_value = false;
        (self.visited_pieces, self.in_multipart_value) = (0, false);
    }

    fn page_view(&self, copied: &CopiedPage) -> PageView<'_> {
        PageView {
            snapshot_bit: copied.snapshot_bit,
            page: &self.bytes[copied.page.clone()],
            overflow: &self.overflow[copied.overflow.clone()],
            bytes: &self.bytes,
        }
    }
}

/// A callback that receives the key, the value and the attributes of an entry.
type VisitEntry<'a> = dyn FnMut(&[u8], &[u8], EntryAttributes) + 'a;

/// A read-only view of a copied page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageView<'a> {
    snapshot_bit: u32,
    page: &'a [u8],
    overflow: &'a [OverflowRanges],
    bytes: &'a [u8],
}

impl PageView<'_> {
    /// Visits the entries that existed when the snapshot was taken.
    pub(crate) fn for_each(&self, visit: &mut VisitEntry<'_>) {
        let mut overflow = self.overflow.iter().peekable();
        for (at, header) in page::entries(self.page, page::HEADER_LEN) {
            if !is_in_snapshot(header, self.snapshot_bit) {
                continue;
            }
            let (mut key, mut value) = (header.key(self.page, at), header.value(self.page, at));
            if header.record_number(self.page, at).is_some() {
                // Skip an entry without a copied value, because its value is visited later, in parts.
                let Some(overflow_parts) =
                    overflow.next_if(|overflow_parts| overflow_parts.entry_offset == at)
                else {
                    continue;
                };
                key = overflow_parts.key.clone().map_or(key, |key| &self.bytes[key]);
                value = &self.bytes[overflow_parts.value.clone()];
            }
            visit(key, value, header.attributes(self.page, at));
        }
    }
}
