//! A stream stored outside its entry, and the copies that snapshots have of it.

use super::{Producers, Stream, StreamCursor, StreamPart};
use crate::captured::{Captured, MultipartWalk, ValueOwner};
use crate::large::{Collection, Large};
use crate::overflow::{self, Record, SnapshotOnlyBytes};
use crate::packed::PackedValue;
use crate::pages::FillLevel;
use crate::table::RemovedValue;
use crate::value::{PartElements, ValuePart};

/// A large stream, and a copy for each snapshot that has pinned it. Copying is O(1) because nodes are shared.
#[derive(Debug, Default)]
pub(crate) struct LargeStream {
    stream: Stream,
    pins: Vec<Pin>,
}

/// The copy of the stream for one snapshot.
#[derive(Debug)]
struct Pin {
    snapshot_bit: u32,
    stream: Stream,
    kept_bytes: SnapshotOnlyBytes,
}

impl LargeStream {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, pins: Vec::new() }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn edit<R>(&mut self, edit: impl FnOnce(&mut Stream) -> R) -> R {
        let before = overflow::total_shed_bytes();
        let outcome = edit(&mut self.stream);
        if let Some(pin) = self.pins.last_mut() {
            pin.kept_bytes.add_shed_since(before);
        }
        outcome
    }

    fn unpin(&mut self, bit: u32) -> Option<Pin> {
        let index = self.pins.iter().position(|pin| pin.snapshot_bit == bit)?;
        Some(self.pins.swap_remove(index))
    }
}

impl Stream {
    /// Estimates the bytes freed by dropping the stream.
    fn estimated_bytes(&self) -> usize {
        const SAMPLED_NODES: usize = 64;
        let groups: usize = self.groups().take(SAMPLED_NODES).map(|(_, group)| group.estimated_bytes()).sum();
        let looked_at = self.group_count().clamp(1, SAMPLED_NODES);
        let producers = self.producers().map_or(0, Producers::estimated_bytes);
        self.bytes + self.nodes.len() * 96 + groups / looked_at * self.group_count() + producers
    }

    /// Converts the stream to a type that can be dropped by other code.
    pub fn into_dropped(self) -> RemovedValue {
        RemovedValue::of(Large::Stream(Box::new(LargeStream::new(self))))
    }
}

impl Collection for LargeStream {
    fn len(&self) -> usize {
        self.stream.head.len as usize
    }

    fn estimated_bytes(&self) -> usize {
        self.stream.estimated_bytes()
    }

    fn held_bytes(&self) -> usize {
        self.stream.estimated_bytes()
    }

    fn fill_level(&self) -> FillLevel {
        FillLevel::Free
    }

    fn add_packed(&mut self, elements: PackedValue<'_>) -> bool {
        self.stream.add(elements)
    }

    fn copy(&self) -> Large {
        Large::Stream(Box::new(Self::new(self.stream.clone())))
    }

    fn pin(&mut self, bit: u32) {
        if self.pins.iter().all(|pin| pin.snapshot_bit != bit) {
            let kept = SnapshotOnlyBytes::with_limit(self.stream.estimated_bytes());
            self.pins.push(Pin { snapshot_bit: bit, stream: self.stream.clone(), kept_bytes: kept });
        }
    }

    /// Hands the whole stream over to the snapshot, which then visits it part by part.
    fn walk(&mut self, bit: u32, of: ValueOwner<'_>, captured: &mut Captured) -> Option<usize> {
        let Pin { stream, kept_bytes: kept, .. } = self.unpin(bit)?;
        let next = StreamCursor::default();
        let showing = StreamWalk { stream, _kept: kept, from: next.clone(), next, first: true };
        captured.add_multipart(of, Box::new(showing));
        Some(0)
    }

    fn skip(&mut self, bit: u32, dropped: &mut Vec<Record<Large>>) -> Option<usize> {
        let Pin { stream, .. } = self.unpin(bit)?;
        dropped.push(Record::without_store(Large::Stream(Box::new(Self::new(stream)))));
        Some(0)
    }
}

/// Maximum number of pieces in one part. The bytes of a part are limited as well.
const MAX_PIECES_PER_PART: usize = 256;
const MAX_BYTES_PER_PART: usize = 32 << 10;

/// A stream that a snapshot visits, and the position reached so far.
#[derive(Debug)]
struct StreamWalk {
    stream: Stream,
    /// Counts the bytes as needed by the snapshot until all parts are visited.
    _kept: SnapshotOnlyBytes,
    from: StreamCursor,
    next: StreamCursor,
    first: bool,
}

impl MultipartWalk for StreamWalk {
    fn next_part(&mut self) -> Option<ValuePart<'_>> {
        self.from = self.next.clone();
        let (mut pieces, mut bytes) = (0, 0);
        while pieces < MAX_PIECES_PER_PART && bytes < MAX_BYTES_PER_PART {
            let Some(piece) = self.next.next(&self.stream) else { break };
            bytes += piece.bytes();
            pieces += 1;
        }
        if pieces == 0 {
            return None;
        }
        let elements = PartElements::Stream(StreamPart { stream: &self.stream, from: &self.from, pieces });
        let first = std::mem::take(&mut self.first);
        Some(ValuePart { total: self.stream.head.len as usize, first, elements })
    }
}
