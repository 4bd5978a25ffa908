//! Memory model of streams.

use std::ops::Range;

use keyspace::{EncodingLimits, EntryRef, Key, PackedValue, StreamId, StreamPiece, Table};

use super::MemoryModel;
use crate::allocator::Quantum;
use crate::data::{KeyGroup, MemoryBreakdown};
use crate::structures::estimated::{ElementCounts, KeyShape};
use crate::structures::own::{format_number, sample_values};
use crate::structures::redis::{self, RedisVersion};

/// Bytes of an entry's flags, id and lengths.
const ENTRY_OVERHEAD_BYTES: f64 = 8.0;
/// The Unix time of the first entry, in milliseconds.
const FIRST_MILLIS: u64 = 1_700_000_000_000;
/// The interval between entries.
const ENTRY_INTERVAL_MILLIS: u64 = 10;

pub(super) struct StreamMemoryModel;

impl MemoryModel for StreamMemoryModel {
    fn redis_memory(&self, quantum: Quantum, data: &KeyGroup, _version: RedisVersion) -> MemoryBreakdown {
        redis::stream_memory(quantum, data)
    }

    fn valkey_memory(&self, quantum: Quantum, data: &KeyGroup) -> MemoryBreakdown {
        redis::stream_memory(quantum, data)
    }

    fn add_to_sample(
        &self,
        table: &mut Table,
        mut place: EntryRef,
        key: &Key<'_>,
        data: &KeyGroup,
        numbers: Range<u64>,
    ) -> EntryRef {
        let (name, limits) = (format_number(0, data.field_bytes.max(1)), EncodingLimits::default());
        for (number, value) in numbers.clone().zip(sample_values(data, numbers)) {
            let id = StreamId { millis: FIRST_MILLIS + number * ENTRY_INTERVAL_MILLIS, sequence: 0 };
            // Append the entries one by one as XADD does, because the append pattern determines how full the pages are.
            let append = |stream: &mut keyspace::Stream| stream.append(id, &[&name, &value], limits.stream);
            place = table.edit_stream(place, key, append).0;
        }
        place
    }

    fn metadata_bytes(&self, data: &KeyGroup, _is_structure: bool) -> f64 {
        data.elements_per_key() as f64 * ENTRY_OVERHEAD_BYTES
    }

    /// Assumes full nodes: a node's allocation is shrunk to its content when the next node is created.
    fn estimate_structure(&self, shape: &KeyShape) -> u64 {
        shape.payload_bytes
    }

    fn count_elements(&self, value: &PackedValue<'_>, counts: &mut ElementCounts) {
        counts.elements += value.len() as u64;
        value.pieces().for_each(|piece| count_piece(&piece, counts));
    }
}

fn count_piece(piece: &StreamPiece<'_>, counts: &mut ElementCounts) {
    /// Bytes that a consumer group takes in the stream's trees.
    const GROUP_BYTES: u64 = 160;
    /// Bytes that a consumer takes in the stream's trees.
    const CONSUMER_BYTES: u64 = 96;
    /// Bytes that a pending entry takes in the stream's trees.
    const PENDING_ENTRY_BYTES: u64 = 56;
    /// Bytes of a stream node besides its entries.
    const NODE_METADATA_BYTES: u64 = 64;
    match piece {
        StreamPiece::Node { bytes, .. } => {
            counts.add_string(bytes);
            counts.payload_bytes += NODE_METADATA_BYTES;
        }
        StreamPiece::Group { name, .. } => counts.payload_bytes += GROUP_BYTES + name.len() as u64,
        StreamPiece::Consumer { name, .. } => counts.payload_bytes += CONSUMER_BYTES + name.len() as u64,
        StreamPiece::Pending { .. } => counts.payload_bytes += PENDING_ENTRY_BYTES,
        StreamPiece::Producer { name, .. } => counts.payload_bytes += CONSUMER_BYTES + name.len() as u64,
        StreamPiece::Iid { iid, .. } => counts.payload_bytes += PENDING_ENTRY_BYTES + iid.len() as u64,
        StreamPiece::Nodes(_)
        | StreamPiece::Head { .. }
        | StreamPiece::Consumers(_)
        | StreamPiece::ConsumerPending(_)
        | StreamPiece::Producers { .. }
        | StreamPiece::Totals(_) => {}
    }
}
