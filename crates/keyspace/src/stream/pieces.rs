//! A stream as a row of pieces: how one goes to a file and comes from there, in parts if it is large.
//!
//! They stand in the order in which Redis's files have them: the nodes; the head of the stream; each group, with its
//! pending entries and then, for each consumer, which of them are its own. The numbers of
//! pieces that follow are given where they are known beforehand.

use std::sync::Arc;

use clock::Millis;

use super::node::{self, NodeRef};
use super::producers::Producers;
use super::{Consumer, Group, Head, IdempotenceBounds, IdempotenceTotals, Node, Pending, Stream, StreamId};
use crate::tree::Map;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// How many nodes follow.
    Nodes(usize),
    /// Entries that lie together.
    Node {
        /// From which the ids of the entries are counted.
        id: StreamId,
        /// The listpack.
        bytes: &'a [u8],
    },
    /// The head of the stream, with what is to follow.
    Head {
        /// The head itself.
        head: Head,
        /// The first entry that is there.
        first: StreamId,
        /// How many groups follow.
        groups: usize,
    },
    /// A group.
    Group {
        /// Its name.
        name: &'a [u8],
        /// The id that it gave out last.
        last: StreamId,
        /// How many entries it has read.
        read: Option<u64>,
        /// How many are pending, which follow.
        pending: usize,
    },
    /// An entry that is pending in the group.
    Pending {
        /// The entry.
        id: StreamId,
        /// When it was delivered.
        delivered: Millis,
        /// How often.
        count: u64,
    },
    /// How many consumers the group has, which follow.
    Consumers(usize),
    /// One of them.
    Consumer {
        /// Its name.
        name: &'a [u8],
        /// When it tried something.
        seen: Millis,
        /// When it got something.
        active: Option<Millis>,
        /// How many of the group's entries are pending with it, which follow.
        pending: usize,
    },
    /// Is pending with this consumer.
    Owned(StreamId),
    /// The idempotent producers.
    Producers {
        /// For how long iids are kept, and how many.
        bounds: IdempotenceBounds,
        /// How many producers follow.
        count: usize,
    },
    /// One of them.
    Producer {
        /// Its name.
        name: &'a [u8],
        /// How many iids follow.
        iids: usize,
    },
    /// An iid of the producer.
    Iid {
        /// The iid itself.
        iid: &'a [u8],
        /// Its entry.
        id: StreamId,
    },
    /// The messages of all producers so far, behind their iids.
    Totals(IdempotenceTotals),
}

impl Piece<'_> {
    /// About how long it is.
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
            | Self::Owned(_)
            | Self::Producers { .. }
            | Self::Totals(_) => 0,
        }
    }
}

/// Whether bytes that came from elsewhere are a node with this id; says how many entries are there, and which id is
/// the last, deleted or not.
#[must_use]
pub fn check_node(id: StreamId, bytes: &[u8]) -> Option<(u64, StreamId)> {
    node::check(id, bytes)
}

/// Visits the entries of a node that are not deleted. Bytes that are no node have none.
pub fn node_entries(id: StreamId, bytes: &[u8], visit: &mut dyn FnMut(super::Entry<'_>)) {
    let Some(node) = NodeRef::read(id, bytes) else { return };
    node.records_from(id).filter(|record| !record.is_deleted).for_each(|record| visit(record.entry));
}

/// How far a reader is within the pieces of a stream.
#[derive(Debug, Clone, Default)]
pub struct Cursor(Stage);

type Name = Arc<[u8]>;

/// The piece that was given last.
#[derive(Debug, Clone, Default)]
enum Stage {
    #[default]
    Nothing,
    Nodes(Option<StreamId>),
    /// All of a group.
    Groups(Option<Name>),
    Pending(Name, Option<StreamId>),
    /// All of a consumer.
    Consumers(Name, Option<Name>),
    Owned(Name, Name, Option<StreamId>),
    /// All of a producer.
    Producers(Option<Name>),
    Iids(Name, Option<(StreamId, Name)>),
    All,
}

impl Cursor {
    /// The next piece of the stream, which must not change meanwhile.
    pub fn next<'a>(&mut self, stream: &'a Stream) -> Option<Piece<'a>> {
        loop {
            let (stage, piece) = std::mem::replace(&mut self.0, Stage::All).step(stream)?;
            self.0 = stage;
            if piece.is_some() {
                return piece;
            }
        }
    }
}

impl Stage {
    fn step(self, stream: &Stream) -> Option<(Self, Option<Piece<'_>>)> {
        let group = |name: &Name| stream.groups.get(&**name);
        Some(match self {
            Self::All => return None,
            Self::Nothing => (Self::Nodes(None), Some(Piece::Nodes(stream.nodes.len()))),
            Self::Nodes(last) => match stream.nodes.after(last.as_ref()) {
                Some((&id, node)) => (Self::Nodes(Some(id)), Some(Piece::Node { id, bytes: &node.bytes })),
                None => {
                    let (head, first, groups) = (stream.head, stream.first_id(), stream.groups.len());
                    (Self::Groups(None), Some(Piece::Head { head, first, groups }))
                }
            },
            Self::Groups(last) => {
                let Some((name, group)) = stream.groups.after(last.as_deref()) else {
                    let producers = stream.producers.as_ref()?;
                    let (bounds, count) = (producers.bounds, producers.by_name.len());
                    return Some((Self::Producers(None), Some(Piece::Producers { bounds, count })));
                };
                let &Group { last, read, ref pending, .. } = group;
                let piece = Piece::Group { name, last, read, pending: pending.len() };
                (Self::Pending(name.clone(), None), Some(piece))
            }
            Self::Pending(name, last) => {
                let group = group(&name)?;
                match group.pending.after(last.as_ref()) {
                    Some((&id, &Pending { delivered, count, .. })) => {
                        (Self::Pending(name, Some(id)), Some(Piece::Pending { id, delivered, count }))
                    }
                    None => (Self::Consumers(name, None), Some(Piece::Consumers(group.consumers.len()))),
                }
            }
            Self::Consumers(name, last) => match group(&name)?.consumers.after(last.as_deref()) {
                Some((consumer, &Consumer { seen, active, ref pending })) => {
                    let piece = Piece::Consumer { name: consumer, seen, active, pending: pending.len() };
                    (Self::Owned(name, consumer.clone(), None), Some(piece))
                }
                None => (Self::Groups(Some(name)), None),
            },
            Self::Owned(name, consumer, last) => {
                match group(&name)?.consumers.get(&*consumer)?.pending.after(last.as_ref()) {
                    Some((&id, ())) => (Self::Owned(name, consumer, Some(id)), Some(Piece::Owned(id))),
                    None => (Self::Consumers(name, Some(consumer)), None),
                }
            }
            Self::Producers(last) => Self::step_producer(stream, last.as_deref())?,
            Self::Iids(name, last) => {
                match stream.producers.as_ref()?.by_name.get(&*name)?.by_age.after(last.as_ref()) {
                    Some((entry, ())) => {
                        let piece = Piece::Iid { iid: &entry.1, id: entry.0 };
                        (Self::Iids(name, Some(entry.clone())), Some(piece))
                    }
                    None => (Self::Producers(Some(name)), None),
                }
            }
        })
    }

    /// The producer behind this one, or what comes behind the last.
    fn step_producer<'a>(stream: &'a Stream, last: Option<&[u8]>) -> Option<(Self, Option<Piece<'a>>)> {
        let producers = stream.producers.as_ref()?;
        Some(match producers.by_name.after(last) {
            Some((name, producer)) => {
                let piece = Piece::Producer { name, iids: producer.by_age.len() };
                (Self::Iids(name.clone(), None), Some(piece))
            }
            None => (Self::All, Some(Piece::Totals(producers.totals))),
        })
    }
}

/// Some pieces of a large stream, as a snapshot's walk comes to them.
#[derive(Debug, Clone, Copy)]
pub struct StreamPart<'a> {
    pub(super) stream: &'a Stream,
    pub(super) from: &'a Cursor,
    pub(super) pieces: usize,
}

impl StreamPart<'_> {
    /// [`Stream::has_active_times`] of the whole stream.
    #[must_use]
    pub fn has_active_times(&self) -> bool {
        self.stream.has_active_times()
    }

    /// Whether the stream has idempotent producers, or had any.
    #[must_use]
    pub fn has_producers(&self) -> bool {
        self.stream.producers().is_some()
    }

    /// Visits them.
    pub fn for_each(&self, visit: &mut dyn FnMut(Piece<'_>)) {
        let mut cursor = self.from.clone();
        for _ in 0..self.pieces {
            cursor.next(self.stream).into_iter().for_each(&mut *visit);
        }
    }
}

impl Stream {
    /// Whether a consumer of a group was active at another time than it was seen.
    #[must_use]
    pub fn has_active_times(&self) -> bool {
        let mut consumers = self.groups.iter().flat_map(|(_, group)| group.consumers.iter());
        consumers.any(|(_, consumer)| consumer.active != Some(consumer.seen))
    }

    /// Adds a piece; says whether it fits behind those before it. Nodes must have been looked at ([`check_node`]).
    /// Names and ids rise, an entry that is pending has one consumer, and the numbers are right.
    #[must_use]
    pub fn add_piece(&mut self, piece: Piece<'_>) -> bool {
        match piece {
            Piece::Nodes(_) | Piece::Consumers(_) => true,
            Piece::Node { id, bytes } => self.add_node(id, bytes),
            Piece::Head { head, .. } => {
                let last = self.nodes.last().and_then(|(id, node)| NodeRef::read(*id, &node.bytes));
                let fits = head.len == self.head.len && last.is_none_or(|node| node.last_id() <= head.last);
                self.head = head;
                fits
            }
            Piece::Group { name, last, read, .. } => {
                let rises = self.groups.last().is_none_or(|(before, _)| **before < *name);
                self.groups.insert(name.into(), Group::new(last, read));
                rises
            }
            Piece::Pending { id, delivered, count } => self.groups.last_mut().is_some_and(|group| {
                // Without a consumer yet: those of the group come later.
                let pending = Pending { consumer: Name::default(), delivered, count };
                let rises = group.pending.last().is_none_or(|(last, _)| *last < id);
                group.pending.insert(id, pending);
                rises && group.consumers.is_empty()
            }),
            Piece::Consumer { name, seen, active, .. } => self.groups.last_mut().is_some_and(|group| {
                let rises = group.consumers.last().is_none_or(|(before, _)| **before < *name);
                group.consumers.insert(name.into(), Consumer { seen, active, pending: Map::default() });
                rises
            }),
            Piece::Owned(id) => self.groups.last_mut().is_some_and(|group| group.own(id)),
            Piece::Producers { bounds, .. } => {
                let is_first = self.producers.is_none();
                self.producers = Some(Arc::new(Producers::new(bounds)));
                is_first
            }
            Piece::Producer { name, .. } => self.add_producer(name),
            Piece::Iid { iid, id } => self.add_iid_of_last(iid, id),
            Piece::Totals(totals) => {
                let Some(producers) = self.producers.as_mut() else { return false };
                Arc::make_mut(producers).totals = totals;
                true
            }
        }
    }

    /// Says whether the producer comes behind those that are there.
    fn add_producer(&mut self, name: &[u8]) -> bool {
        let Some(producers) = self.producers.as_mut() else { return false };
        Arc::make_mut(producers).add_producer(name)
    }

    /// Adds an iid to the producer that was added last; says whether it was not there.
    fn add_iid_of_last(&mut self, iid: &[u8], id: StreamId) -> bool {
        let Some(producers) = self.producers.as_mut() else { return false };
        Arc::make_mut(producers).add_iid_of_last(iid, id)
    }

    fn add_node(&mut self, id: StreamId, bytes: &[u8]) -> bool {
        let before = self.nodes.last().and_then(|(id, node)| NodeRef::read(*id, &node.bytes));
        let rises = before.is_none_or(|before| before.last_id() < id);
        let Some(node) = NodeRef::read(id, bytes) else { return false };
        self.head.len += node.live;
        self.head.last = node.last_id();
        self.bytes += bytes.len();
        self.nodes.insert(id, Node::new(bytes.to_vec()));
        rises
    }
}

impl Group {
    /// Gives this entry to the last consumer; says whether the entry had no consumer before.
    fn own(&mut self, id: StreamId) -> bool {
        let Some((name, consumer)) = self.consumers.last() else { return false };
        let rises = consumer.pending.last().is_none_or(|(last, _)| *last < id);
        let Some(pending) = self.pending.get_mut(&id) else { return false };
        // An empty name stands for no consumer, unless one of that name has the entry among its own.
        let owner = std::mem::replace(&mut pending.consumer, name.clone());
        let is_nobodys =
            owner.is_empty() && self.consumers.get(&*owner).is_none_or(|first| !first.pending.contains(&id));
        if let Some(consumer) = self.consumers.last_mut() {
            consumer.pending.insert(id, ());
        }
        rises && is_nobodys
    }
}
