//! The packed format of streams, in which small streams are stored and parts of large streams arrive.
//!
//! The format consists of a two-byte entry count, as in every packed collection, and pieces, each with a type byte.
//! Ids, times and numbers are varints; names and nodes are length-prefixed.

use clock::Millis;

use super::large::LargeStream;
use super::{
    IdempotenceBounds, IdempotenceTotals, Stream, StreamCursor, StreamHead, StreamId, StreamPiece, StreamRef,
};
use crate::entries::{EntryRef, Splice};
use crate::key::Key;
use crate::kind::{Kind, ValueEncoding};
use crate::large::LargeValue;
use crate::packed::{COUNT_LEN, CollectionShape, PackedBuilder, PackedValue};
use crate::table::Table;

/// Maximum size of a packed stream in bytes. It is low because the stream is rewritten with each new entry.
const MAX_PACKED_BYTES: usize = 1 << 10;

const HEAD_PIECE: u8 = 0;
const NODE_PIECE: u8 = 1;
const GROUP_PIECE: u8 = 2;
const PENDING_PIECE: u8 = 3;
const CONSUMER_PIECE: u8 = 4;
const CONSUMER_PENDING_PIECE: u8 = 5;
const PRODUCERS_PIECE: u8 = 6;
const PRODUCER_PIECE: u8 = 7;
const IID_PIECE: u8 = 8;
const TOTALS_PIECE: u8 = 9;

fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_id(out: &mut Vec<u8>, id: StreamId) {
    write_varint(out, id.millis);
    write_varint(out, id.sequence);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Encodes an optional number: a 1 and the number, or a 0.
fn put_option(out: &mut Vec<u8>, value: Option<u64>) {
    write_varint(out, u64::from(value.is_some()));
    value.into_iter().for_each(|value| write_varint(out, value));
}

fn encode_piece(out: &mut Vec<u8>, piece: StreamPiece<'_>) {
    match piece {
        StreamPiece::Nodes(_) | StreamPiece::Consumers(_) => {}
        StreamPiece::Node { id, bytes } => {
            out.push(NODE_PIECE);
            put_id(out, id);
            put_bytes(out, bytes);
        }
        StreamPiece::Head { head, .. } => {
            out.push(HEAD_PIECE);
            write_varint(out, head.len);
            put_id(out, head.last_id);
            put_id(out, head.max_deleted_id);
            write_varint(out, head.entries_added);
        }
        StreamPiece::Group { name, last_delivered: last, entries_read: read, .. } => {
            out.push(GROUP_PIECE);
            put_bytes(out, name);
            put_id(out, last);
            put_option(out, read);
        }
        StreamPiece::Pending { id, delivery_time: delivered, delivery_count: count } => {
            out.push(PENDING_PIECE);
            put_id(out, id);
            write_varint(out, delivered.0 as u64);
            write_varint(out, count);
        }
        StreamPiece::Consumer { name, last_seen: seen, last_active: active, .. } => {
            out.push(CONSUMER_PIECE);
            put_bytes(out, name);
            write_varint(out, seen.0 as u64);
            put_option(out, active.map(|active| active.0 as u64));
        }
        StreamPiece::ConsumerPending(id) => {
            out.push(CONSUMER_PENDING_PIECE);
            put_id(out, id);
        }
        StreamPiece::Producers {
            bounds: IdempotenceBounds { duration_secs: duration, max_iids: most },
            ..
        } => {
            out.push(PRODUCERS_PIECE);
            write_varint(out, duration);
            write_varint(out, most);
        }
        StreamPiece::Producer { name, .. } => {
            out.push(PRODUCER_PIECE);
            put_bytes(out, name);
        }
        StreamPiece::Iid { iid, id } => {
            out.push(IID_PIECE);
            put_bytes(out, iid);
            put_id(out, id);
        }
        StreamPiece::Totals(IdempotenceTotals { added, duplicates }) => {
            out.push(TOTALS_PIECE);
            write_varint(out, added);
            write_varint(out, duplicates);
        }
    }
}

/// Decodes pieces. They are always well-formed, because only this module writes them.
struct PieceReader<'a>(&'a [u8]);

impl<'a> PieceReader<'a> {
    fn new(packed: &'a [u8]) -> Self {
        Self(&packed[COUNT_LEN..])
    }

    fn read_varint(&mut self) -> u64 {
        let (mut value, mut shift) = (0, 0);
        while let Some((byte, rest)) = self.0.split_first() {
            self.0 = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if *byte < 0x80 {
                break;
            }
            shift += 7;
        }
        value
    }

    fn read_time(&mut self) -> Millis {
        Millis(self.read_varint() as i64)
    }

    fn read_id(&mut self) -> StreamId {
        StreamId { millis: self.read_varint(), sequence: self.read_varint() }
    }

    fn read_bytes(&mut self) -> &'a [u8] {
        let len = self.read_varint() as usize;
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }

    fn read_option(&mut self) -> Option<u64> {
        (self.read_varint() == 1).then(|| self.read_varint())
    }
}

impl<'a> Iterator for PieceReader<'a> {
    type Item = StreamPiece<'a>;

    fn next(&mut self) -> Option<StreamPiece<'a>> {
        let (tag, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(match *tag {
            HEAD_PIECE => {
                let (len, last, max_deleted) = (self.read_varint(), self.read_id(), self.read_id());
                let head = StreamHead {
                    len,
                    last_id: last,
                    max_deleted_id: max_deleted,
                    entries_added: self.read_varint(),
                };
                StreamPiece::Head { head, first_id: StreamId::MIN, group_count: 0 }
            }
            NODE_PIECE => StreamPiece::Node { id: self.read_id(), bytes: self.read_bytes() },
            GROUP_PIECE => {
                let (name, last, read) = (self.read_bytes(), self.read_id(), self.read_option());
                StreamPiece::Group { name, last_delivered: last, entries_read: read, pending_count: 0 }
            }
            PENDING_PIECE => StreamPiece::Pending {
                id: self.read_id(),
                delivery_time: self.read_time(),
                delivery_count: self.read_varint(),
            },
            CONSUMER_PIECE => {
                let (name, seen) = (self.read_bytes(), self.read_time());
                let active = self.read_option().map(|active| Millis(active as i64));
                StreamPiece::Consumer { name, last_seen: seen, last_active: active, pending_count: 0 }
            }
            CONSUMER_PENDING_PIECE => StreamPiece::ConsumerPending(self.read_id()),
            PRODUCERS_PIECE => {
                let bounds =
                    IdempotenceBounds { duration_secs: self.read_varint(), max_iids: self.read_varint() };
                StreamPiece::Producers { bounds, producer_count: 0 }
            }
            PRODUCER_PIECE => StreamPiece::Producer { name: self.read_bytes(), iid_count: 0 },
            IID_PIECE => StreamPiece::Iid { iid: self.read_bytes(), id: self.read_id() },
            TOTALS_PIECE => {
                let totals = IdempotenceTotals { added: self.read_varint(), duplicates: self.read_varint() };
                StreamPiece::Totals(totals)
            }
            other => panic!("a piece of a stream begins with {other}, which nobody writes"),
        })
    }
}

pub(super) fn read_head(packed: &[u8]) -> StreamHead {
    let head = PieceReader::new(packed).find_map(|piece| match piece {
        StreamPiece::Head { head, .. } => Some(head),
        _ => None,
    });
    head.unwrap_or_default()
}

pub(super) fn unpack(packed: &[u8]) -> Stream {
    let mut stream = Stream::default();
    let whole = PieceReader::new(packed).all(|piece| stream.add_piece(piece));
    debug_assert!(whole, "what is stored was whole when it was");
    stream
}

/// Returns whether a stream is stored packed: it has at most one node, no groups and no producers.
pub(crate) fn stays_packed(packed: &[u8]) -> bool {
    let mut pieces = PieceReader::new(packed);
    let mut next = pieces.next();
    if matches!(next, Some(StreamPiece::Node { .. })) {
        next = pieces.next();
    }
    packed.len() <= MAX_PACKED_BYTES
        && pieces.0.is_empty()
        && matches!(next, None | Some(StreamPiece::Head { .. }))
}

impl Stream {
    pub(super) fn add_pieces(&mut self, packed: PackedValue<'_>) -> bool {
        PieceReader::new(packed.bytes()).all(|piece| self.add_piece(piece))
    }

    /// Encodes the stream; returns `None` if it does not qualify for the packed format.
    fn pack(&self) -> Option<Vec<u8>> {
        let is_more = self.nodes.len() > 1 || self.group_count() > 0 || self.producers().is_some();
        if self.bytes > MAX_PACKED_BYTES || is_more {
            return None;
        }
        let (mut packed, mut cursor) = (Vec::with_capacity(self.bytes + 64), StreamCursor::default());
        packed.extend_from_slice(&[0; COUNT_LEN]);
        while let Some(piece) = cursor.next(self) {
            encode_piece(&mut packed, piece);
        }
        (packed.len() <= MAX_PACKED_BYTES).then_some(packed)
    }
}

impl PackedBuilder {
    /// Appends a piece to the stream being built, or to one part of a large stream.
    pub fn push_piece(&mut self, piece: StreamPiece<'_>) {
        encode_piece(&mut self.bytes, piece);
        if let StreamPiece::Head { head, .. } = piece {
            self.summary.count = u32::try_from(head.len).unwrap_or(u32::MAX);
        }
    }
}

impl<'a> PackedValue<'a> {
    /// Returns the pieces of a packed stream, or of one part of a large stream. Counts of following pieces are 0.
    pub fn pieces(&self) -> impl Iterator<Item = StreamPiece<'a>> + use<'a> {
        debug_assert_eq!(self.kind(), Kind::Stream);
        PieceReader::new(self.bytes())
    }
}

impl Table {
    /// Returns the stream at `entry_ref`, or `None` if the value has another type.
    #[must_use]
    pub fn stream(&self, entry_ref: EntryRef) -> Option<StreamRef<'_>> {
        self.typed_value::<StreamRef<'_>>(entry_ref)
    }

    /// Edits the stream at `entry_ref` and returns the result of the edit.
    pub fn edit_stream<R>(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        edit: impl FnOnce(&mut Stream) -> R,
    ) -> (EntryRef, R) {
        debug_assert_eq!(self.kind(entry_ref), Kind::Stream);
        let Some(StreamRef { shape: CollectionShape::Packed(packed) }) = self.stream(entry_ref) else {
            let Some(LargeValue::Stream(large)) = self.entries.overflow_mut(entry_ref) else {
                panic!("the caller has seen that it is a stream")
            };
            return (entry_ref, large.edit(edit));
        };
        let (whole, mut stream) = (0..packed.len(), unpack(packed));
        let outcome = edit(&mut stream);
        let place = match stream.pack() {
            Some(packed) => {
                let count = usize::try_from(stream.head.len).unwrap_or(usize::MAX);
                let splice =
                    Splice { range: whole, replacement: &packed, count, code: ValueEncoding::Stream.code() };
                self.entries.splice(entry_ref, key, &splice)
            }
            None => self.make_large(entry_ref, key, LargeValue::Stream(Box::new(LargeStream::new(stream)))),
        };
        (place, outcome)
    }
}
