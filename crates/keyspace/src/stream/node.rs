//! A stream node: consecutive entries in one listpack, in Redis's format.
//!
//! The listpack starts with:
//!
//! ```text
//! live, deleted, number of fields, each field's name, 0
//! ```
//!
//! It is followed by each entry, with its id relative to the node's id:
//!
//! ```text
//! flags, milliseconds, sequence, value of each field, number of items                          (flags & 2: same
//! fields) flags, milliseconds, sequence, number of fields, name and value of each, number of items
//! ```
//!
//! The names at the start are those of the first entry; entries with identical fields store only values. A deleted
//! entry (flags & 1) stays until its node is removed. The number of items is for reading backwards.

use super::StreamId;
use super::listpack::{self, Appender, HEADER_LEN, Item};

const DELETED_FLAG: i64 = 1;
const SAME_FIELDS_FLAG: i64 = 2;

/// A decoded node header.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeRef<'a> {
    id: StreamId,
    bytes: &'a [u8],
    /// Number of entries that are not marked as deleted.
    pub(super) live_count: u64,
    pub(super) deleted_count: u64,
    field_count: usize,
    /// Offset of the first field name in the node.
    names_offset: usize,
    first_entry_offset: usize,
}

/// An entry of a node, which may be marked as deleted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a> {
    pub(super) entry: StreamEntry<'a>,
    pub(super) is_deleted: bool,
    /// Offset of the entry's flags in the node.
    offset: usize,
    next_offset: usize,
}

/// An entry of a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamEntry<'a> {
    /// The entry id.
    pub id: StreamId,
    bytes: &'a [u8],
    field_count: usize,
    /// Offset of the field names in the node; `None` if each value is preceded by its name.
    names_offset: Option<usize>,
    offset: usize,
}

impl StreamEntry<'_> {
    /// Returns the number of fields.
    #[must_use]
    pub fn len(&self) -> usize {
        self.field_count
    }

    /// Always returns false, because an entry has at least one field.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.field_count == 0
    }

    /// Visits field names and values in order.
    pub fn for_each(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        let (mut name_at, mut at) = (self.names_offset, self.offset);
        for _ in 0..self.field_count {
            let Some((name, next)) = listpack::read_item(self.bytes, name_at.unwrap_or(at)) else { return };
            match &mut name_at {
                Some(name_at) => *name_at = next,
                None => at = next,
            }
            let Some((value, next)) = listpack::read_item(self.bytes, at) else { return };
            at = next;
            let (mut name_digits, mut value_digits) = Default::default();
            visit(name.as_text(&mut name_digits), value.as_text(&mut value_digits));
        }
    }
}

/// Number of entries at the end of a node that are checked before the node is searched from its start.
const TAIL_CHECKED_ENTRIES: usize = 8;

impl<'a> NodeRef<'a> {
    /// Decodes the header of a node; `None` if it is malformed.
    pub(super) fn decode(id: StreamId, bytes: &'a [u8]) -> Option<Self> {
        let (live, at) = listpack::read_integer(bytes, HEADER_LEN)?;
        let (deleted, at) = listpack::read_integer(bytes, at)?;
        let (fields, names_at) = listpack::read_integer(bytes, at)?;
        let mut at = names_at;
        for _ in 0..fields {
            at = listpack::read_item(bytes, at)?.1;
        }
        let (zero, first_at) = listpack::read_integer(bytes, at)?;
        let (live, deleted) = (u64::try_from(live).ok()?, u64::try_from(deleted).ok()?);
        let fields = usize::try_from(fields).ok().filter(|_| zero == 0)?;
        Some(Self {
            id,
            bytes,
            live_count: live,
            deleted_count: deleted,
            field_count: fields,
            names_offset: names_at,
            first_entry_offset: first_at,
        })
    }

    /// Decodes the entry whose flags are at offset `at`.
    fn record(&self, at: usize) -> Option<Record<'a>> {
        let bytes = self.bytes;
        if listpack::is_end(bytes, at) {
            return None;
        }
        let (flags, next) = listpack::read_integer(bytes, at)?;
        let (millis, next) = listpack::read_integer(bytes, next)?;
        let (sequence, mut next) = listpack::read_integer(bytes, next)?;
        let id = StreamId {
            millis: self.id.millis.wrapping_add(millis as u64),
            sequence: self.id.sequence.wrapping_add(sequence as u64),
        };
        let (mut fields, mut names_at) = (self.field_count, Some(self.names_offset));
        if flags & SAME_FIELDS_FLAG == 0 {
            let (own, behind) = listpack::read_integer(bytes, next)?;
            (fields, names_at, next) = (usize::try_from(own).ok()?, None, behind);
        }
        let entry = StreamEntry { id, bytes, field_count: fields, names_offset: names_at, offset: next };
        let values = if names_at.is_some() { fields } else { fields.checked_mul(2)? };
        for _ in 0..values {
            next = listpack::read_item(bytes, next)?.1;
        }
        let (_, next) = listpack::read_integer(bytes, next)?;
        Some(Record { entry, is_deleted: flags & DELETED_FLAG != 0, offset: at, next_offset: next })
    }

    /// Returns the entries in order, starting at or before the first entry whose id is at least `from`. The last
    /// entries are checked first, because clients that follow a stream request the newest entries.
    pub(super) fn records_from(self, from: StreamId) -> impl Iterator<Item = Record<'a>> {
        let last = self.backward().take(if from > self.id { TAIL_CHECKED_ENTRIES } else { 0 });
        let before = last.into_iter().find(|record| record.entry.id < from);
        let mut at = before.map_or(self.first_entry_offset, |record| record.next_offset);
        std::iter::from_fn(move || {
            let record = self.record(at)?;
            at = record.next_offset;
            Some(record)
        })
    }

    /// Returns the entries in reverse order.
    pub(super) fn backward(self) -> impl Iterator<Item = Record<'a>> {
        let mut end = listpack::terminator_offset(self.bytes);
        std::iter::from_fn(move || {
            if end <= self.first_entry_offset {
                return None;
            }
            let mut at = listpack::previous_offset(self.bytes, end)?;
            let (items, _) = listpack::read_integer(self.bytes, at)?;
            for _ in 0..items {
                at = listpack::previous_offset(self.bytes, at)?;
            }
            end = at;
            self.record(at)
        })
    }

    /// Returns the id of the last entry, even if it is marked as deleted.
    pub(super) fn last_id(self) -> StreamId {
        self.backward().next().map_or(self.id, |record| record.entry.id)
    }

    fn has_fields(&self, fields: &Fields<'_>) -> bool {
        let mut at = self.names_offset;
        self.field_count == fields.len()
            && fields.iter().all(|(name, _)| match listpack::read_item(self.bytes, at) {
                Some((item, next)) => {
                    at = next;
                    match item {
                        Item::Bytes(bytes) => bytes == name,
                        Item::Integer(_) => item.as_text(&mut itoa::Buffer::new()) == name,
                    }
                }
                None => false,
            })
    }
}

/// The field names and values of an entry to be appended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [&'a [u8]]);

impl<'a> Fields<'a> {
    fn len(&self) -> usize {
        self.0.len() / 2
    }

    fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.0.chunks_exact(2).map(|pair| (pair[0], pair[1]))
    }

    /// Returns the total bytes of names and values.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|word| word.len()).sum()
    }
}

/// Creates a node with one entry that has these fields.
pub(super) fn begin_node(fields: &Fields<'_>) -> Vec<u8> {
    let mut bytes = listpack::with_capacity(fields.bytes() + 32);
    let mut items = Appender::append_to(&mut bytes);
    items.push_integer(1);
    items.push_integer(0);
    items.push_integer(fields.len() as i64);
    fields.iter().for_each(|(name, _)| items.push(name));
    items.push_integer(0);
    push_entry(&mut items, 0, 0, true, fields);
    drop(items);
    bytes
}

/// Appends an entry whose id is given relative to the id of its node.
fn push_entry(
    items: &mut Appender<'_>,
    relative_millis: i64,
    relative_sequence: i64,
    same_fields: bool,
    fields: &Fields<'_>,
) {
    items.push_integer(if same_fields { SAME_FIELDS_FLAG } else { 0 });
    items.push_integer(relative_millis);
    items.push_integer(relative_sequence);
    if !same_fields {
        items.push_integer(fields.len() as i64);
    }
    for (name, value) in fields.iter() {
        if !same_fields {
            items.push(name);
        }
        items.push(value);
    }
    let count = if same_fields { fields.len() + 3 } else { 2 * fields.len() + 4 };
    items.push_integer(count as i64);
}

/// Appends an entry to the node with id `node_id`, whose listpack is `bytes`.
pub(super) fn append(node_id: StreamId, bytes: &mut Vec<u8>, entry_id: StreamId, fields: &Fields<'_>) {
    let Some(node) = NodeRef::decode(node_id, bytes) else { return };
    let (bytes_equal, live) = (node.has_fields(fields), node.live_count + 1);
    let millis = entry_id.millis.wrapping_sub(node_id.millis) as i64;
    let sequence = entry_id.sequence.wrapping_sub(node_id.sequence) as i64;
    push_entry(&mut Appender::append_to(bytes), millis, sequence, bytes_equal, fields);
    listpack::replace_integer(bytes, HEADER_LEN, live as i64);
}

/// Calls `decide` for the live entries in order and marks those as deleted for which it returns `Delete`. Returns the
/// number of marked entries.
pub(super) fn mark_deleted(
    id: StreamId,
    bytes: &mut Vec<u8>,
    mut decide: impl FnMut(StreamId) -> DeletionDecision,
) -> u64 {
    let Some(node) = NodeRef::decode(id, bytes) else { return 0 };
    let (mut marked, mut at) = (Vec::new(), node.first_entry_offset);
    while let Some(record) = node.record(at) {
        at = record.next_offset;
        match if record.is_deleted { DeletionDecision::Keep } else { decide(record.entry.id) } {
            DeletionDecision::Delete => marked.push(record.offset),
            DeletionDecision::Keep => {}
            DeletionDecision::Stop => break,
        }
    }
    let (live, deleted, count) = (node.live_count, node.deleted_count, marked.len() as u64);
    for at in marked {
        // The flags are always a one-byte integer: nodes from files and payloads were validated.
        bytes[at] |= DELETED_FLAG as u8;
    }
    if count > 0 {
        listpack::replace_integer(bytes, HEADER_LEN, live.saturating_sub(count) as i64);
        if let Some((_, at)) = listpack::read_item(bytes, HEADER_LEN) {
            listpack::replace_integer(bytes, at, (deleted + count) as i64);
        }
    }
    count
}

/// Whether to delete an entry of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeletionDecision {
    Delete,
    Keep,
    /// Keep this entry and all later ones.
    Stop,
}

/// Validates a node from a file or payload: every item must be complete, ids must ascend, and counts must be correct.
/// Returns the number of live entries and the last id, including deleted entries.
pub(super) fn validate_node(id: StreamId, bytes: &[u8]) -> Option<(u64, StreamId)> {
    let node = NodeRef::decode(id, bytes)?;
    let (mut at, mut items, mut live, mut deleted) = (node.first_entry_offset, node.field_count + 4, 0, 0);
    let mut last = None;
    while !listpack::is_end(bytes, at) {
        let record = node.record(at)?;
        let flags = bytes[at];
        let entry = record.entry;
        let own = if flags & SAME_FIELDS_FLAG as u8 != 0 {
            entry.field_count + 3
        } else {
            2 * entry.field_count + 4
        };
        let count_at = listpack::previous_offset(bytes, record.next_offset)?;
        let sound = flags <= (DELETED_FLAG | SAME_FIELDS_FLAG) as u8
            && listpack::read_integer(bytes, count_at)?.0 == own as i64
            && entry.field_count > 0
            && last.is_none_or(|last| last < entry.id)
            && entry.id >= id;
        // Reading backwards from the item count must lead to the start of the entry.
        let mut first = count_at;
        for _ in 0..own {
            first = listpack::previous_offset(bytes, first)?;
        }
        if !sound || first != at {
            return None;
        }
        last = Some(entry.id);
        items += own + 1;
        *(if record.is_deleted { &mut deleted } else { &mut live }) += 1;
        at = record.next_offset;
    }
    let counted =
        node.live_count == live && node.deleted_count == deleted && at == listpack::terminator_offset(bytes);
    let last = last.filter(|_| counted && listpack::is_valid(bytes, items))?;
    Some((live, last))
}
