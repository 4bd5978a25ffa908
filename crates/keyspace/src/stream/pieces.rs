//! A stream as a sequence of pieces. It is saved and loaded in this form, in parts if the stream is large.
//!
//! The order is that of Redis's files: the nodes; the head; each group with its pending entries and then, per consumer,
//! the entries that the consumer owns. Counts of following pieces are included where they are known in advance.

use std::sync::Arc;

use clock::Millis;

use super::node::{self, NodeRef};
use super::producers::Producers;
use super::{
    Consumer, Group, IdempotenceBounds, IdempotenceTotals, Node, PendingEntry, Stream, StreamHead, StreamId,
};
use crate::tree::Map;

/// A piece of a serialized stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamPiece<'a> {
    /// Number of nodes that follow.
    Nodes(usize),
    /// A node with consecutive entries.
    Node {
        /// Base id that the entry ids are relative to.
        id: StreamId,
        /// The node's listpack.
        bytes: &'a [u8],
    },
    /// The counters and ids of the stream, and what follows.
    Head {
        /// The counters and ids.
        head: StreamHead,
        /// Id of the first live entry.
        first_id: StreamId,
        /// Number of groups that follow.
        group_count: usize,
    },
    /// A consumer group, followed by its pending entries.
    Group {
        /// The group name.
        name: &'a [u8],
        /// The last delivered id.
        last_delivered: StreamId,
        /// Number of entries that the group has read; `None` if unknown.
        entries_read: Option<u64>,
        /// Number of pending entries that follow.
        pending_count: usize,
    },
    /// A pending entry of the group.
    Pending {
        /// The entry id.
        id: StreamId,
        /// Time at which the entry was last delivered.
        delivery_time: Millis,
        /// Number of times that the entry was delivered.
        delivery_count: u64,
    },
    /// Number of the group's consumers that follow.
    Consumers(usize),
    /// A consumer of the current group, followed by its pending entries.
    Consumer {
        /// The consumer name.
        name: &'a [u8],
        /// Time of the consumer's last attempt to read or claim entries.
        last_seen: Millis,
        /// Time at which the consumer last received an entry; `None` if it never did.
        last_active: Option<Millis>,
        /// Number of pending entries of this consumer that follow.
        pending_count: usize,
    },
    /// A pending entry that the current consumer owns.
    ConsumerPending(StreamId),
    /// The idempotent producers of the stream, which follow.
    Producers {
        /// Retention limits of iids.
        bounds: IdempotenceBounds,
        /// Number of producers that follow.
        producer_count: usize,
    },
    /// An idempotent producer, followed by its iids.
    Producer {
        /// The producer name.
        name: &'a [u8],
        /// Number of iids that follow.
        iid_count: usize,
    },
    /// An iid of the current producer.
    Iid {
        /// The iid bytes.
        iid: &'a [u8],
        /// Id of the entry that was added with this iid.
        id: StreamId,
    },
    /// Message counts of all producers, which follow the iids of the last producer.
    Totals(IdempotenceTotals),
}

impl StreamPiece<'_> {
    /// Returns the approximate size of the piece in bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Node { bytes, .. } => bytes.len(),
            Self::Group { name, .. } | Self::Consumer { name, .. } | Self::Producer { name, .. } => {
                name.len()
            }
            Self::Iid { iid, .. } => iid.len(),
            Self::Nodes(_)
            | Self::Head { .. }
            | Self::Pending { .. }
            | Self::Consumers(_)
            | Self::ConsumerPending(_)
            | Self::Producers { .. }
            | Self::Totals(_) => 0,
        }
    }
}

/// Validates a node from a file or payload. Returns the number of live entries and the last id, including deleted
/// entries.
#[must_use]
pub fn check_node(id: StreamId, bytes: &[u8]) -> Option<(u64, StreamId)> {
    node::validate_node(id, bytes)
}

/// Visits the live entries of a node; does nothing if the node is malformed.
pub fn node_entries(id: StreamId, bytes: &[u8], visit: &mut dyn FnMut(super::StreamEntry<'_>)) {
    let Some(node) = NodeRef::decode(id, bytes) else { return };
    node.records_from(id).filter(|record| !record.is_deleted).for_each(|record| visit(record.entry));
}

/// The position of a reader in the pieces of a stream.
#[derive(Debug, Clone, Default)]
pub struct StreamCursor(CursorState);

type Name = Arc<[u8]>;

/// The last piece that the cursor returned.
#[derive(Debug, Clone, Default)]
enum CursorState {
    #[default]
    Start,
    Nodes(Option<StreamId>),
    /// All pieces of this group were returned; `None` before the first group.
    Groups(Option<Name>),
    Pending(Name, Option<StreamId>),
    /// All pieces of this consumer of a group were returned; `None` before the group's first consumer.
    Consumers(Name, Option<Name>),
    ConsumerPending(Name, Name, Option<StreamId>),
    /// All pieces of this producer were returned; `None` before the first producer.
    Producers(Option<Name>),
    Iids(Name, Option<(StreamId, Name)>),
    End,
}

impl StreamCursor {
    /// Returns the next piece of the stream, which must not change between calls.
    pub fn next<'a>(&mut self, stream: &'a Stream) -> Option<StreamPiece<'a>> {
        loop {
            let (stage, piece) = std::mem::replace(&mut self.0, CursorState::End).step(stream)?;
            self.0 = stage;
            if piece.is_some() {
                return piece;
            }
        }
    }
}

impl CursorState {
    fn step(self, stream: &Stream) -> Option<(Self, Option<StreamPiece<'_>>)> {
        let group = |name: &Name| stream.groups.get(&**name);
        Some(match self {
            Self::End => return None,
            Self::Start => (Self::Nodes(None), Some(StreamPiece::Nodes(stream.nodes.len()))),
            Self::Nodes(last) => match stream.nodes.first_after(last.as_ref()) {
                Some((&id, node)) => {
                    (Self::Nodes(Some(id)), Some(StreamPiece::Node { id, bytes: &node.bytes }))
                }
                None => {
                    let (head, first_id, group_count) = (stream.head, stream.first_id(), stream.groups.len());
                    (Self::Groups(None), Some(StreamPiece::Head { head, first_id, group_count }))
                }
            },
            Self::Groups(last) => {
                let Some((name, group)) = stream.groups.first_after(last.as_deref()) else {
                    let producers = stream.producers.as_ref()?;
                    let (bounds, producer_count) = (producers.bounds, producers.by_name.len());
                    let piece = StreamPiece::Producers { bounds, producer_count };
                    return Some((Self::Producers(None), Some(piece)));
                };
                let &Group { last_delivered, entries_read, ref pending, .. } = group;
                let pending_count = pending.len();
                let piece = StreamPiece::Group { name, last_delivered, entries_read, pending_count };
                (Self::Pending(name.clone(), None), Some(piece))
            }
            Self::Pending(name, last) => {
                let group = group(&name)?;
                match group.pending.first_after(last.as_ref()) {
                    Some((&id, &PendingEntry { delivery_time, delivery_count, .. })) => {
                        let piece = StreamPiece::Pending { id, delivery_time, delivery_count };
                        (Self::Pending(name, Some(id)), Some(piece))
                    }
                    None => {
                        (Self::Consumers(name, None), Some(StreamPiece::Consumers(group.consumers.len())))
                    }
                }
            }
            Self::Consumers(group_name, last) => {
                match group(&group_name)?.consumers.first_after(last.as_deref()) {
                    Some((consumer, &Consumer { last_seen, last_active, ref pending })) => {
                        let (name, pending_count) = (consumer, pending.len());
                        let piece = StreamPiece::Consumer { name, last_seen, last_active, pending_count };
                        (Self::ConsumerPending(group_name, consumer.clone(), None), Some(piece))
                    }
                    None => (Self::Groups(Some(group_name)), None),
                }
            }
            Self::ConsumerPending(name, consumer, last) => {
                match group(&name)?.consumers.get(&*consumer)?.pending.first_after(last.as_ref()) {
                    Some((&id, ())) => (
                        Self::ConsumerPending(name, consumer, Some(id)),
                        Some(StreamPiece::ConsumerPending(id)),
                    ),
                    None => (Self::Consumers(name, Some(consumer)), None),
                }
            }
            Self::Producers(last) => Self::step_producer(stream, last.as_deref())?,
            Self::Iids(name, last) => Self::step_iid(stream, name, last.as_ref())?,
        })
    }

    /// Returns the next iid of a producer, if there is one.
    fn step_iid<'a>(
        stream: &'a Stream,
        name: Name,
        last: Option<&(StreamId, Name)>,
    ) -> Option<(Self, Option<StreamPiece<'a>>)> {
        Some(match stream.producers.as_ref()?.by_name.get(&*name)?.by_age.first_after(last) {
            Some((entry, ())) => {
                let piece = StreamPiece::Iid { iid: &entry.1, id: entry.0 };
                (Self::Iids(name, Some(entry.clone())), Some(piece))
            }
            None => (Self::Producers(Some(name)), None),
        })
    }

    /// Returns the next producer, or the piece after the last producer.
    fn step_producer<'a>(stream: &'a Stream, last: Option<&[u8]>) -> Option<(Self, Option<StreamPiece<'a>>)> {
        let producers = stream.producers.as_ref()?;
        Some(match producers.by_name.first_after(last) {
            Some((name, producer)) => {
                let piece = StreamPiece::Producer { name, iid_count: producer.by_age.len() };
                (Self::Iids(name.clone(), None), Some(piece))
            }
            None => (Self::End, Some(StreamPiece::Totals(producers.lifetime_totals))),
        })
    }
}

/// Some pieces of a large stream, which a snapshot visits together.
#[derive(Debug, Clone, Copy)]
pub struct StreamPart<'a> {
    pub(super) stream: &'a Stream,
    pub(super) start: &'a StreamCursor,
    pub(super) piece_count: usize,
}

impl StreamPart<'_> {
    /// Returns [`Stream::has_active_times`] of the whole stream.
    #[must_use]
    pub fn has_active_times(&self) -> bool {
        self.stream.has_active_times()
    }

    /// Returns whether the stream has or had idempotent producers.
    #[must_use]
    pub fn has_producers(&self) -> bool {
        self.stream.producers().is_some()
    }

    /// Visits the pieces of this part.
    pub fn for_each(&self, visit: &mut dyn FnMut(StreamPiece<'_>)) {
        let mut cursor = self.start.clone();
        for _ in 0..self.piece_count {
            cursor.next(self.stream).into_iter().for_each(&mut *visit);
        }
    }
}

impl Stream {
    /// Returns whether any consumer's active time differs from its seen time.
    #[must_use]
    pub fn has_active_times(&self) -> bool {
        let mut consumers = self.groups.iter().flat_map(|(_, group)| group.consumers.iter());
        consumers.any(|(_, consumer)| consumer.last_active != Some(consumer.last_seen))
    }

    /// Adds a piece. Returns false if it contradicts the previous pieces: names and ids must ascend, a pending entry
    /// must have exactly one consumer, and counts must match. Nodes must have been validated by [`check_node`].
    #[must_use]
    pub fn add_piece(&mut self, piece: StreamPiece<'_>) -> bool {
        match piece {
            StreamPiece::Nodes(_) | StreamPiece::Consumers(_) => true,
            StreamPiece::Node { id, bytes } => self.add_node(id, bytes),
            StreamPiece::Head { head, .. } => {
                let last = self.nodes.last().and_then(|(id, node)| NodeRef::decode(*id, &node.bytes));
                let fits =
                    head.len == self.head.len && last.is_none_or(|node| node.last_id() <= head.last_id);
                self.head = head;
                fits
            }
            StreamPiece::Group { name, last_delivered: last, entries_read: read, .. } => {
                let rises = self.groups.last().is_none_or(|(before, _)| **before < *name);
                self.groups.insert(name.into(), Group::new(last, read));
                rises
            }
            StreamPiece::Pending { id, delivery_time: delivered, delivery_count: count } => {
                self.groups.last_mut().is_some_and(|group| {
                    // The consumer is not known yet, because the group's consumers follow later.
                    let pending = PendingEntry {
                        consumer: Name::default(),
                        delivery_time: delivered,
                        delivery_count: count,
                    };
                    let rises = group.pending.last().is_none_or(|(last, _)| *last < id);
                    group.pending.insert(id, pending);
                    rises && group.consumers.is_empty()
                })
            }
            StreamPiece::Consumer { name, last_seen: seen, last_active: active, .. } => {
                self.groups.last_mut().is_some_and(|group| {
                    let rises = group.consumers.last().is_none_or(|(before, _)| **before < *name);
                    group.consumers.insert(
                        name.into(),
                        Consumer { last_seen: seen, last_active: active, pending: Map::default() },
                    );
                    rises
                })
            }
            StreamPiece::ConsumerPending(id) => {
                self.groups.last_mut().is_some_and(|group| group.assign_to_last_consumer(id))
            }
            StreamPiece::Producers { bounds, .. } => {
                let is_first = self.producers.is_none();
                self.producers = Some(Arc::new(Producers::new(bounds)));
                is_first
            }
            StreamPiece::Producer { name, .. } => self.add_producer(name),
            StreamPiece::Iid { iid, id } => self.add_iid_of_last_producer(iid, id),
            StreamPiece::Totals(totals) => {
                let Some(producers) = self.producers.as_mut() else { return false };
                Arc::make_mut(producers).lifetime_totals = totals;
                true
            }
        }
    }

    /// Adds a producer. Returns false unless its name sorts after those of the existing producers.
    fn add_producer(&mut self, name: &[u8]) -> bool {
        let Some(producers) = self.producers.as_mut() else { return false };
        Arc::make_mut(producers).add_producer(name)
    }

    /// Adds an iid to the producer that was added last. Returns whether the iid is new.
    fn add_iid_of_last_producer(&mut self, iid: &[u8], id: StreamId) -> bool {
        let Some(producers) = self.producers.as_mut() else { return false };
        Arc::make_mut(producers).add_iid_to_last_producer(iid, id)
    }

    fn add_node(&mut self, id: StreamId, bytes: &[u8]) -> bool {
        let before = self.nodes.last().and_then(|(id, node)| NodeRef::decode(*id, &node.bytes));
        let rises = before.is_none_or(|before| before.last_id() < id);
        let Some(node) = NodeRef::decode(id, bytes) else { return false };
        self.head.len += node.live_count;
        self.head.last_id = node.last_id();
        self.bytes += bytes.len();
        self.nodes.insert(id, Node::new(bytes.to_vec()));
        rises
    }
}

impl Group {
    /// Assigns this entry to the consumer that was added last. Returns whether the entry had no owner before.
    fn assign_to_last_consumer(&mut self, id: StreamId) -> bool {
        let Some((name, consumer)) = self.consumers.last() else { return false };
        let rises = consumer.pending.last().is_none_or(|(last, _)| *last < id);
        let Some(pending) = self.pending.get_mut(&id) else { return false };
        // An empty name means no owner, unless a consumer with an empty name owns the entry.
        let owner = std::mem::replace(&mut pending.consumer, name.clone());
        let had_no_owner =
            owner.is_empty() && self.consumers.get(&*owner).is_none_or(|first| !first.pending.contains(&id));
        if let Some(consumer) = self.consumers.last_mut() {
            consumer.pending.insert(id, ());
        }
        rises && had_no_owner
    }
}
