//! The packed format of streams: how small ones are stored, and how parts of a large one arrive.
//!
//! A two-byte entry count, as in every packed collection, then pieces, each with a type byte. Ids, times and
//! numbers are varints; names and nodes are length-prefixed.

use clock::Millis;

use super::large::LargeStream;
use super::{Cursor, Head, IdempotenceBounds, IdempotenceTotals, Piece, Stream, StreamId, StreamRef};
use crate::entries::{Place, Splice};
use crate::key::Key;
use crate::kind::{Form, Kind};
use crate::large::Large;
use crate::packed::{Builder, COUNT, Packed, Shape};
use crate::table::Table;

/// Maximum size of a packed stream in bytes; it is rewritten with each entry.
const MOST: usize = 1 << 10;

const HEAD: u8 = 0;
const NODE: u8 = 1;
const GROUP: u8 = 2;
const PENDING: u8 = 3;
const CONSUMER: u8 = 4;
const OWNED: u8 = 5;
const PRODUCERS: u8 = 6;
const PRODUCER: u8 = 7;
const IID: u8 = 8;
const TOTALS: u8 = 9;

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_id(out: &mut Vec<u8>, id: StreamId) {
    put(out, id.millis);
    put(out, id.sequence);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Encodes an optional number: 1 and the number, or 0.
fn put_option(out: &mut Vec<u8>, value: Option<u64>) {
    put(out, u64::from(value.is_some()));
    value.into_iter().for_each(|value| put(out, value));
}

fn push(out: &mut Vec<u8>, piece: Piece<'_>) {
    match piece {
        Piece::Nodes(_) | Piece::Consumers(_) => {}
        Piece::Node { id, bytes } => {
            out.push(NODE);
            put_id(out, id);
            put_bytes(out, bytes);
        }
        Piece::Head { head, .. } => {
            out.push(HEAD);
            put(out, head.len);
            put_id(out, head.last);
            put_id(out, head.max_deleted);
            put(out, head.added);
        }
        Piece::Group { name, last, read, .. } => {
            out.push(GROUP);
            put_bytes(out, name);
            put_id(out, last);
            put_option(out, read);
        }
        Piece::Pending { id, delivered, count } => {
            out.push(PENDING);
            put_id(out, id);
            put(out, delivered.0 as u64);
            put(out, count);
        }
        Piece::Consumer { name, seen, active, .. } => {
            out.push(CONSUMER);
            put_bytes(out, name);
            put(out, seen.0 as u64);
            put_option(out, active.map(|active| active.0 as u64));
        }
        Piece::Owned(id) => {
            out.push(OWNED);
            put_id(out, id);
        }
        Piece::Producers { bounds: IdempotenceBounds { duration, most }, .. } => {
            out.push(PRODUCERS);
            put(out, duration);
            put(out, most);
        }
        Piece::Producer { name, .. } => {
            out.push(PRODUCER);
            put_bytes(out, name);
        }
        Piece::Iid { iid, id } => {
            out.push(IID);
            put_bytes(out, iid);
            put_id(out, id);
        }
        Piece::Totals(IdempotenceTotals { added, duplicates }) => {
            out.push(TOTALS);
            put(out, added);
            put(out, duplicates);
        }
    }
}

/// Decodes pieces that this module wrote, so they are well-formed.
struct Pieces<'a>(&'a [u8]);

impl<'a> Pieces<'a> {
    fn of(packed: &'a [u8]) -> Self {
        Self(&packed[COUNT..])
    }

    fn number(&mut self) -> u64 {
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

    fn time(&mut self) -> Millis {
        Millis(self.number() as i64)
    }

    fn id(&mut self) -> StreamId {
        StreamId { millis: self.number(), sequence: self.number() }
    }

    fn bytes(&mut self) -> &'a [u8] {
        let len = self.number() as usize;
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }

    fn option(&mut self) -> Option<u64> {
        (self.number() == 1).then(|| self.number())
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        let (tag, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(match *tag {
            HEAD => {
                let (len, last, max_deleted) = (self.number(), self.id(), self.id());
                let head = Head { len, last, max_deleted, added: self.number() };
                Piece::Head { head, first: StreamId::MIN, groups: 0 }
            }
            NODE => Piece::Node { id: self.id(), bytes: self.bytes() },
            GROUP => {
                let (name, last, read) = (self.bytes(), self.id(), self.option());
                Piece::Group { name, last, read, pending: 0 }
            }
            PENDING => Piece::Pending { id: self.id(), delivered: self.time(), count: self.number() },
            CONSUMER => {
                let (name, seen) = (self.bytes(), self.time());
                let active = self.option().map(|active| Millis(active as i64));
                Piece::Consumer { name, seen, active, pending: 0 }
            }
            OWNED => Piece::Owned(self.id()),
            PRODUCERS => {
                let bounds = IdempotenceBounds { duration: self.number(), most: self.number() };
                Piece::Producers { bounds, count: 0 }
            }
            PRODUCER => Piece::Producer { name: self.bytes(), iids: 0 },
            IID => Piece::Iid { iid: self.bytes(), id: self.id() },
            TOTALS => {
                let totals = IdempotenceTotals { added: self.number(), duplicates: self.number() };
                Piece::Totals(totals)
            }
            other => panic!("a piece of a stream begins with {other}, which nobody writes"),
        })
    }
}

/// The head of a packed stream.
pub(super) fn head(packed: &[u8]) -> Head {
    let head = Pieces::of(packed).find_map(|piece| match piece {
        Piece::Head { head, .. } => Some(head),
        _ => None,
    });
    head.unwrap_or_default()
}

pub(super) fn unpack(packed: &[u8]) -> Stream {
    let mut stream = Stream::default();
    let whole = Pieces::of(packed).all(|piece| stream.add_piece(piece));
    debug_assert!(whole, "what is stored was whole when it was");
    stream
}

/// Whether a stream is stored in this form: at most one node, no groups and no producers.
pub(crate) fn stays_packed(packed: &[u8]) -> bool {
    let mut pieces = Pieces::of(packed);
    let mut next = pieces.next();
    if matches!(next, Some(Piece::Node { .. })) {
        next = pieces.next();
    }
    packed.len() <= MOST && pieces.0.is_empty() && matches!(next, None | Some(Piece::Head { .. }))
}

impl Stream {
    pub(super) fn add(&mut self, packed: Packed<'_>) -> bool {
        Pieces::of(packed.bytes()).all(|piece| self.add_piece(piece))
    }

    /// Encodes the stream if it qualifies for the packed form.
    fn pack(&self) -> Option<Vec<u8>> {
        let is_more = self.nodes.len() > 1 || self.group_count() > 0 || self.producers().is_some();
        if self.bytes > MOST || is_more {
            return None;
        }
        let (mut packed, mut cursor) = (Vec::with_capacity(self.bytes + 64), Cursor::default());
        packed.extend_from_slice(&[0; COUNT]);
        while let Some(piece) = cursor.next(self) {
            push(&mut packed, piece);
        }
        (packed.len() <= MOST).then_some(packed)
    }
}

impl Builder {
    /// Adds a piece to a stream, or to one part of it.
    pub fn push_piece(&mut self, piece: Piece<'_>) {
        push(&mut self.bytes, piece);
        if let Piece::Head { head, .. } = piece {
            self.about.count = u32::try_from(head.len).unwrap_or(u32::MAX);
        }
    }
}

impl<'a> Packed<'a> {
    /// The pieces of a packed stream, or of one part of it. Counts that would need lookahead are 0.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'a>> + use<'a> {
        debug_assert_eq!(self.kind(), Kind::Stream);
        Pieces::of(self.bytes())
    }
}

impl Table {
    /// The stream at `place`, or `None` if the value has another type.
    #[must_use]
    pub fn stream(&self, place: Place) -> Option<StreamRef<'_>> {
        self.typed::<StreamRef<'_>>(place)
    }

    /// Edits the stream at `place`.
    pub fn edit_stream<R>(
        &mut self,
        place: Place,
        key: &Key<'_>,
        edit: impl FnOnce(&mut Stream) -> R,
    ) -> (Place, R) {
        debug_assert_eq!(self.kind(place), Kind::Stream);
        let Some(StreamRef { shape: Shape::Packed(packed) }) = self.stream(place) else {
            let Some(Large::Stream(large)) = self.entries.outside_mut(place) else {
                panic!("the caller has seen that it is a stream")
            };
            return (place, large.edit(edit));
        };
        let (whole, mut stream) = (0..packed.len(), unpack(packed));
        let outcome = edit(&mut stream);
        let place = match stream.pack() {
            Some(packed) => {
                let count = usize::try_from(stream.head.len).unwrap_or(usize::MAX);
                let splice = Splice { range: whole, with: &packed, count, code: Form::Stream.code() };
                self.entries.splice(place, key, &splice)
            }
            None => self.make_large(place, key, Large::Stream(Box::new(LargeStream::new(stream)))),
        };
        (place, outcome)
    }
}
