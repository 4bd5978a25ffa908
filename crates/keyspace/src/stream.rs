//! Streams: entries with ascending ids, and consumer groups.
//!
//! Entries are stored in nodes ([`node`]), each one a listpack as in Redis, in a tree keyed by the first entry's id
//! ([`crate::tree`]). Groups, consumers and pending entries are stored in such trees as well. Copying a [`Stream`] is
//! therefore O(1): a snapshot captures a large stream by copying it ([`large`]), and a node is copied when it is first
//! changed after that.
//!
//! A stream without groups whose entries fit one short node is packed ([`packed`]); it is decoded into a [`Stream`] to
//! be read or changed. Streams are copied to other keys, saved and loaded as a sequence of [`StreamPiece`]s.
mod groups;
mod large;
mod listpack;
mod node;
mod packed;
mod pieces;
mod producers;
mod references;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

pub use groups::{Consumer, Group, PendingEntry};
pub(crate) use large::LargeStream;
pub use node::StreamEntry;
use node::{DeletionDecision, Fields, NodeRef, Record};
pub(crate) use packed::stays_packed;
pub use pieces::{StreamCursor, StreamPart, StreamPiece, check_node, node_entries};
pub use producers::{IdempotenceBounds, IdempotenceTotals, Producers};

use crate::kind::StreamNodeBounds;
use crate::overflow::{CountedBytes, record_replaced_bytes};
use crate::packed::CollectionShape;
use crate::tree::Map;

/// The id of a stream entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StreamId {
    /// Milliseconds, usually the wall-clock time at which the entry was added.
    pub millis: u64,
    /// Number that distinguishes entries of one millisecond.
    pub sequence: u64,
}

impl StreamId {
    /// The lowest id, which no entry can have.
    pub const MIN: Self = Self { millis: 0, sequence: 0 };
    /// The highest id.
    pub const MAX: Self = Self { millis: u64::MAX, sequence: u64::MAX };

    /// Returns the next id; `None` for the highest.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        match self.sequence.checked_add(1) {
            Some(sequence) => Some(Self { sequence, ..self }),
            None => Some(Self { millis: self.millis.checked_add(1)?, sequence: 0 }),
        }
    }

    /// Returns the previous id; `None` for the lowest.
    #[must_use]
    pub fn previous(self) -> Option<Self> {
        match self.sequence.checked_sub(1) {
            Some(sequence) => Some(Self { sequence, ..self }),
            None => Some(Self { millis: self.millis.checked_sub(1)?, sequence: u64::MAX }),
        }
    }
}

impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.millis, self.sequence)
    }
}

/// Counters and ids of a stream as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamHead {
    /// Number of entries.
    pub len: u64,
    /// The id that was generated last.
    pub last_id: StreamId,
    /// The highest deleted id.
    pub max_deleted_id: StreamId,
    /// Number of entries ever added.
    pub entries_added: u64,
}

/// Redis's hard limit for the size of a node.
const MAX_NODE_BYTES: usize = 1 << 30;

/// The threshold of a trim. Entries beyond it are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamTrim {
    /// Keeps only this many of the newest entries.
    MaxLen(u64),
    /// Removes the entries below this id.
    MinId(StreamId),
}

/// How precisely a trim applies its threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrimPrecision {
    /// Every entry beyond the threshold is removed.
    Exact,
    /// Only whole nodes are removed, with at most this many entries in total.
    Nodes(u64),
}

#[derive(Debug, Clone)]
struct Node {
    bytes: Vec<u8>,
    counted_bytes: CountedBytes,
}

impl Node {
    fn new(bytes: Vec<u8>) -> Arc<Self> {
        let mut node = Self { bytes, counted_bytes: CountedBytes::default() };
        node.update_counted_bytes();
        Arc::new(node)
    }

    fn update_counted_bytes(&mut self) {
        self.counted_bytes.set(self.bytes.capacity() + size_of::<Self>());
    }
}

/// A stream. Cloning is O(1).
#[derive(Debug, Clone, Default)]
pub struct Stream {
    head: StreamHead,
    nodes: Map<StreamId, Arc<Node>>,
    /// Total bytes of the nodes.
    bytes: usize,
    groups: Map<Arc<[u8]>, Group>,
    producers: Option<Arc<Producers>>,
}

impl Stream {
    /// Returns the counters and ids of the stream.
    #[must_use]
    pub fn head(&self) -> StreamHead {
        self.head
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the id of the first entry, or the lowest id if the stream is empty.
    #[must_use]
    pub fn first_id(&self) -> StreamId {
        self.range(StreamId::MIN, StreamId::MAX).next().map_or(StreamId::MIN, |entry| entry.id)
    }

    /// Returns the id of the last entry that was not deleted, or the lowest id if the stream is empty.
    #[must_use]
    pub fn last_entry_id(&self) -> StreamId {
        self.range_backward(StreamId::MIN, StreamId::MAX).next().map_or(StreamId::MIN, |entry| entry.id)
    }

    /// Returns the entries with ids from `from` to `to`, inclusive.
    pub fn range(&self, from: StreamId, to: StreamId) -> impl Iterator<Item = StreamEntry<'_>> {
        let start = self.node_containing(from).map_or(from, |(id, _)| id);
        let nodes = self.nodes.iter_from(&start).take_while(move |(id, _)| **id <= to);
        let nodes = nodes.filter_map(|(id, node)| NodeRef::decode(*id, &node.bytes));
        let records = nodes.flat_map(move |node| node.records_from(from));
        let from_on = live_entries(records).skip_while(move |entry| entry.id < from);
        from_on.take_while(move |entry| entry.id <= to)
    }

    /// Returns the entries with ids from `from` to `to`, inclusive, in reverse.
    pub fn range_backward(&self, from: StreamId, to: StreamId) -> impl Iterator<Item = StreamEntry<'_>> {
        let nodes = self.nodes.backward_from(&to);
        let records =
            nodes.filter_map(|(id, node)| NodeRef::decode(*id, &node.bytes)).flat_map(NodeRef::backward);
        let to_on = live_entries(records).skip_while(move |entry| entry.id > to);
        to_on.take_while(move |entry| entry.id >= from)
    }

    /// Returns the entry with this id.
    #[must_use]
    pub fn entry(&self, id: StreamId) -> Option<StreamEntry<'_>> {
        self.range(id, id).next()
    }

    /// Returns the node in which an entry with this id would be.
    fn node_containing(&self, id: StreamId) -> Option<(StreamId, &Arc<Node>)> {
        self.nodes.backward_from(&id).next().map(|(id, node)| (*id, node))
    }

    /// Appends an entry; `field_values` contains field names and values alternately. The id must be higher than all ids
    /// generated before.
    pub fn append(&mut self, id: StreamId, field_values: &[&[u8]], bounds: StreamNodeBounds) {
        debug_assert!(
            id > self.head.last_id && field_values.len() >= 2 && field_values.len().is_multiple_of(2)
        );
        let fields = Fields(field_values);
        self.head.len += 1;
        self.head.entries_added += 1;
        self.head.last_id = id;
        if let Some(last) = self.nodes.last().map(|(id, _)| *id)
            && let Some(node) = self.nodes.last_mut()
        {
            let node = Arc::make_mut(node);
            if has_room(last, &node.bytes, &fields, bounds) {
                let before = node.bytes.len();
                node::append(last, &mut node.bytes, id, &fields);
                node.update_counted_bytes();
                self.bytes += node.bytes.len() - before;
                return;
            }
            // The previous node is complete, so free its spare capacity.
            node.bytes.shrink_to_fit();
            node.update_counted_bytes();
        }
        let bytes = node::begin_node(&fields);
        self.bytes += bytes.len();
        self.nodes.insert(id, Node::new(bytes));
    }

    /// Deletes an entry. Returns whether it existed.
    pub fn delete(&mut self, id: StreamId) -> bool {
        let Some((node_id, node)) = self.node_containing(id) else { return false };
        let Some(read) = NodeRef::decode(node_id, &node.bytes) else { return false };
        if !live_entries(read.records_from(id)).any(|entry| entry.id == id) {
            return false;
        }
        if read.live_count == 1 {
            self.remove_node(node_id);
        } else {
            self.mark_deleted(node_id, |other| match other.cmp(&id) {
                std::cmp::Ordering::Less => DeletionDecision::Keep,
                std::cmp::Ordering::Equal => DeletionDecision::Delete,
                std::cmp::Ordering::Greater => DeletionDecision::Stop,
            });
        }
        self.head.len -= 1;
        self.head.max_deleted_id = self.head.max_deleted_id.max(id);
        true
    }

    fn remove_node(&mut self, id: StreamId) -> Option<Arc<Node>> {
        let node = self.nodes.remove(&id)?;
        self.bytes -= node.bytes.len();
        record_replaced_bytes(node.bytes.len());
        Some(node)
    }

    fn mark_deleted(&mut self, node: StreamId, decide: impl FnMut(StreamId) -> DeletionDecision) -> u64 {
        let Some(found) = self.nodes.get_mut(&node) else { return 0 };
        let found = Arc::make_mut(found);
        let before = found.bytes.len();
        let marked = node::mark_deleted(node, &mut found.bytes, decide);
        self.bytes = self.bytes + found.bytes.len() - before;
        marked
    }

    /// Removes entries from the start. Returns the number of removed entries, and the removed nodes for the caller to
    /// drop.
    pub fn trim(&mut self, trim: StreamTrim, precision: TrimPrecision) -> (u64, Self) {
        let (mut cut, mut gone) = (0, Self::default());
        while let Some((&id, node)) = self.nodes.first() {
            if matches!(trim, StreamTrim::MaxLen(most) if self.head.len <= most) {
                break;
            }
            let Some(read) = NodeRef::decode(id, &node.bytes) else { break };
            if matches!(precision, TrimPrecision::Nodes(most) if most > 0 && cut + read.live_count > most) {
                break;
            }
            let whole = match trim {
                StreamTrim::MaxLen(most) => self.head.len - read.live_count >= most,
                StreamTrim::MinId(least) => read.last_id() < least,
            };
            if whole {
                (cut, self.head.len) = (cut + read.live_count, self.head.len - read.live_count);
                let bytes = node.bytes.len();
                gone.bytes += bytes;
                gone.nodes.insert(id, node.clone());
                self.remove_node(id);
                continue;
            }
            if precision == TrimPrecision::Exact {
                let mut len = self.head.len;
                let marked = self.mark_deleted(id, |entry| {
                    let stays = match trim {
                        StreamTrim::MaxLen(most) => len <= most,
                        StreamTrim::MinId(least) => entry >= least,
                    };
                    len -= u64::from(!stays);
                    if stays { DeletionDecision::Stop } else { DeletionDecision::Delete }
                });
                (cut, self.head.len) = (cut + marked, self.head.len - marked);
            }
            break;
        }
        (cut, gone)
    }

    /// Sets the last generated id, the number of entries ever added and the highest deleted id.
    pub fn set_head(&mut self, last: StreamId, added: u64, max_deleted: StreamId) {
        self.head = StreamHead {
            len: self.head.len,
            last_id: last,
            max_deleted_id: max_deleted,
            entries_added: added,
        };
    }
}

fn live_entries<'a>(records: impl Iterator<Item = Record<'a>>) -> impl Iterator<Item = StreamEntry<'a>> {
    records.filter(|record| !record.is_deleted).map(|record| record.entry)
}

/// Returns whether Redis would add another entry to this node.
fn has_room(id: StreamId, bytes: &[u8], fields: &Fields<'_>, bounds: StreamNodeBounds) -> bool {
    let most = if bounds.max_bytes == 0 { MAX_NODE_BYTES } else { bounds.max_bytes.min(MAX_NODE_BYTES) };
    let Some(node) = NodeRef::decode(id, bytes) else { return false };
    bytes.len() + fields.bytes() < most
        && (bounds.max_entries == 0 || node.live_count + node.deleted_count < bounds.max_entries as u64)
}

/// A read-only view of a stream, borrowed from its slot.
#[derive(Debug, Clone, Copy)]
pub struct StreamRef<'a> {
    pub(crate) shape: CollectionShape<'a, LargeStream>,
}

impl<'a> StreamRef<'a> {
    /// Returns the counters and ids of the stream.
    #[must_use]
    pub fn head(&self) -> StreamHead {
        match self.shape {
            CollectionShape::Packed(bytes) => packed::read_head(bytes),
            CollectionShape::Large(large) => large.stream().head,
        }
    }

    /// Returns whether the stream has or had idempotent producers.
    #[must_use]
    pub fn has_producers(&self) -> bool {
        matches!(self.shape, CollectionShape::Large(large) if large.stream().producers().is_some())
    }

    /// Returns the stream, decoding it if it is packed.
    #[must_use]
    pub fn to_stream(&self) -> Cow<'a, Stream> {
        match self.shape {
            CollectionShape::Packed(bytes) => Cow::Owned(packed::unpack(bytes)),
            CollectionShape::Large(large) => Cow::Borrowed(large.stream()),
        }
    }
}
