//! A stream stored outside its entry, and the copies that snapshots hold.

use super::{Cursor, Producers, Stream, StreamPart};
use crate::captured::{Captured, InParts, Owner};
use crate::large::{Collection, Large};
use crate::overflow::{self, Kept, Record};
use crate::packed::Packed;
use crate::pages::Crowding;
use crate::table::Dropped;
use crate::value::{Elements, Part};

/// A large stream. A snapshot holds a copy, which is O(1) because nodes are shared.
#[derive(Debug, Default)]
pub(crate) struct LargeStream {
    stream: Stream,
    pins: Vec<Pin>,
}

/// The copy that a snapshot holds.
#[derive(Debug)]
struct Pin {
    bit: u32,
    stream: Stream,
    kept: Kept,
}

impl LargeStream {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, pins: Vec::new() }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn edit<R>(&mut self, edit: impl FnOnce(&mut Stream) -> R) -> R {
        let before = overflow::shed();
        let outcome = edit(&mut self.stream);
        if let Some(pin) = self.pins.last_mut() {
            pin.kept.add_shed_since(before);
        }
        outcome
    }

    fn unpin(&mut self, bit: u32) -> Option<Pin> {
        let index = self.pins.iter().position(|pin| pin.bit == bit)?;
        Some(self.pins.swap_remove(index))
    }
}

impl Stream {
    /// Estimates the bytes freed by dropping the stream.
    fn rough_bytes(&self) -> usize {
        const LOOKED_AT: usize = 64;
        let groups: usize = self.groups().take(LOOKED_AT).map(|(_, group)| group.rough_bytes()).sum();
        let looked_at = self.group_count().clamp(1, LOOKED_AT);
        let producers = self.producers().map_or(0, Producers::rough_bytes);
        self.bytes + self.nodes.len() * 96 + groups / looked_at * self.group_count() + producers
    }

    /// Converts the stream for dropping elsewhere.
    pub fn into_dropped(self) -> Dropped {
        Dropped::of(Large::Stream(Box::new(LargeStream::new(self))))
    }
}

impl Collection for LargeStream {
    fn len(&self) -> usize {
        self.stream.head.len as usize
    }

    fn rough_bytes(&self) -> usize {
        self.stream.rough_bytes()
    }

    fn held_bytes(&self) -> usize {
        self.stream.rough_bytes()
    }

    fn crowding(&self) -> Crowding {
        Crowding::Free
    }

    fn add(&mut self, elements: Packed<'_>) -> bool {
        self.stream.add(elements)
    }

    fn copy(&self) -> Large {
        Large::Stream(Box::new(Self::new(self.stream.clone())))
    }

    fn pin(&mut self, bit: u32) {
        if self.pins.iter().all(|pin| pin.bit != bit) {
            let kept = Kept::nothing_of(self.stream.rough_bytes());
            self.pins.push(Pin { bit, stream: self.stream.clone(), kept });
        }
    }

    /// Hands over the whole stream, which is then visited part by part.
    fn walk(&mut self, bit: u32, of: Owner<'_>, captured: &mut Captured) -> Option<usize> {
        let Pin { stream, kept, .. } = self.unpin(bit)?;
        let next = Cursor::default();
        let showing = Showing { stream, _kept: kept, from: next.clone(), next, first: true };
        captured.add_in_parts(of, Box::new(showing));
        Some(0)
    }

    fn skip(&mut self, bit: u32, dropped: &mut Vec<Record<Large>>) -> Option<usize> {
        let Pin { stream, .. } = self.unpin(bit)?;
        dropped.push(Record::loose(Large::Stream(Box::new(Self::new(stream)))));
        Some(0)
    }
}

/// Limits of one part: pieces, and bytes of nodes.
const PIECES: usize = 256;
const BYTES: usize = 32 << 10;

/// A stream that a walk took over.
#[derive(Debug)]
struct Showing {
    stream: Stream,
    /// Keeps the bytes accounted until all parts are visited.
    _kept: Kept,
    from: Cursor,
    next: Cursor,
    first: bool,
}

impl InParts for Showing {
    fn next_part(&mut self) -> Option<Part<'_>> {
        self.from = self.next.clone();
        let (mut pieces, mut bytes) = (0, 0);
        while pieces < PIECES && bytes < BYTES {
            let Some(piece) = self.next.next(&self.stream) else { break };
            bytes += piece.bytes();
            pieces += 1;
        }
        if pieces == 0 {
            return None;
        }
        let elements = Elements::Stream(StreamPart { stream: &self.stream, from: &self.from, pieces });
        let first = std::mem::take(&mut self.first);
        Some(Part { total: self.stream.head.len as usize, first, elements })
    }
}
