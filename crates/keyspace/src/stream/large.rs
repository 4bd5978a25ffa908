//! A stream stored outside its entry, and the copies that snapshots have of it.

use super::{Producers, Stream, StreamCursor, StreamPart};
use crate::captured::{CapturedEntries, MultipartWalk, ValueOwner};
use crate::large::{Collection, LargeValue};
use crate::overflow::{self, Record, SnapshotOnlyBytes};
use crate::packed::PackedValue;
use crate::pages::FillLevel;
use crate::table::RemovedValue;
use crate::value::{PartElements, ValuePart};

/// A large stream, and a copy for each snapshot that has pinned it. Copying is O(1) because nodes are shared.
#[derive(Debug, Default)]
pub(crate) struct LargeStream {
    stream: Stream,
    pins: Vec<PinnedStream>,
}

/// The copy of the stream for one snapshot.
#[derive(Debug)]
struct PinnedStream {
    snapshot_bit: u32,
    stream: Stream,
    snapshot_only_bytes: SnapshotOnlyBytes,
}

impl LargeStream {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, pins: Vec::new() }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn edit<R>(&mut self, edit: impl FnOnce(&mut Stream) -> R) -> R {
        let before = overflow::total_replaced_bytes();
        let outcome = edit(&mut self.stream);
        if let Some(pin) = self.pins.last_mut() {
            pin.snapshot_only_bytes.add_bytes_replaced_since(before);
        }
        outcome
    }

    fn unpin(&mut self, snapshot_bit: u32) -> Option<PinnedStream> {
        let index = self.pins.iter().position(|pin| pin.snapshot_bit == snapshot_bit)?;
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
        RemovedValue::from_large(LargeValue::Stream(Box::new(LargeStream::new(self))))
    }
}

impl Collection for LargeStream {
    fn len(&self) -> usize {
        self.stream.head.len as usize
    }

    fn estimated_bytes(&self) -> usize {
        self.stream.estimated_bytes()
    }

    fn heap_bytes(&self) -> usize {
        self.stream.estimated_bytes()
    }

    fn fill_level(&self) -> FillLevel {
        FillLevel::Free
    }

    fn add_packed(&mut self, elements: PackedValue<'_>) -> bool {
        self.stream.add_pieces(elements)
    }

    fn copy(&self) -> LargeValue {
        LargeValue::Stream(Box::new(Self::new(self.stream.clone())))
    }

    fn pin(&mut self, snapshot_bit: u32) {
        if self.pins.iter().all(|pin| pin.snapshot_bit != snapshot_bit) {
            let kept = SnapshotOnlyBytes::with_limit(self.stream.estimated_bytes());
            self.pins.push(PinnedStream {
                snapshot_bit,
                stream: self.stream.clone(),
                snapshot_only_bytes: kept,
            });
        }
    }

    /// Hands the whole stream over to the snapshot, which then visits it part by part.
    fn walk(
        &mut self,
        snapshot_bit: u32,
        owner: ValueOwner<'_>,
        captured: &mut CapturedEntries,
    ) -> Option<usize> {
        let PinnedStream { stream, snapshot_only_bytes: kept, .. } = self.unpin(snapshot_bit)?;
        let next = StreamCursor::default();
        let showing = StreamWalk {
            stream,
            _snapshot_only_bytes: kept,
            part_start: next.clone(),
            part_end: next,
            is_first: true,
        };
        captured.add_multipart(owner, Box::new(showing));
        Some(0)
    }

    fn skip(&mut self, snapshot_bit: u32, dropped: &mut Vec<Record<LargeValue>>) -> Option<usize> {
        let PinnedStream { stream, .. } = self.unpin(snapshot_bit)?;
        dropped.push(Record::without_store(LargeValue::Stream(Box::new(Self::new(stream)))));
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
    _snapshot_only_bytes: SnapshotOnlyBytes,
    part_start: StreamCursor,
    part_end: StreamCursor,
    is_first: bool,
}

impl MultipartWalk for StreamWalk {
    fn next_part(&mut self) -> Option<ValuePart<'_>> {
        self.part_start = self.part_end.clone();
        let (mut pieces, mut bytes) = (0, 0);
        while pieces < MAX_PIECES_PER_PART && bytes < MAX_BYTES_PER_PART {
            let Some(piece) = self.part_end.next(&self.stream) else { break };
            bytes += piece.bytes();
            pieces += 1;
        }
        if pieces == 0 {
            return None;
        }
        let elements = PartElements::Stream(StreamPart {
            stream: &self.stream,
            start: &self.part_start,
            piece_count: pieces,
        });
        let first = std::mem::take(&mut self.is_first);
        Some(ValuePart { total_elements: self.stream.head.len as usize, is_first: first, elements })
    }
}
