//! The RDB encodings of streams.
//!
//! | type | encoding |
//! | ---: | --- |
//! | 15 | (Redis 5) nodes; number of entries, last id; groups |
//! | 19 | (Redis 7.0) adds first id, highest deleted id and number of added entries after the last id, and to each group its number of read entries |
//! | 21 | (Redis 7.2) adds the last active time of a consumer |
//! | 26 | (Redis 8.6) adds idempotent producers after the groups |
//!
//! Nodes are encoded as their number, then two strings per node: the id as sixteen bytes, big-endian, and the listpack.
//! A group is encoded as its name and last id; the number of pending entries, each with its id in sixteen bytes, its
//! delivery time in eight, and its number of deliveries; the number of consumers, each with its name, seen time, number
//! of pending entries and their ids. Other numbers are encoded as lengths, and other ids as two lengths.
//!
//! Idempotent producers are encoded as the retention time in seconds, the maximum number of iids per producer, and the
//! number of producers; each has its name, its number of iids, and each iid with the id of its entry; finally the
//! numbers of added and of duplicate messages.
//!
//! Streams are written as type 19, the newest that Redis 7.0 reads and all later servers accept. If the active time of
//! a consumer differs from its seen time, type 21 preserves it, unless the reader may be Redis 7.0. A stream with
//! idempotent producers, a feature of Redis 8.6 only, is written as type 26; for Valkey the producers are omitted.

mod commands;

use std::io::{self, Read, Write};

use clock::Millis;
use keyspace::{
    IdempotenceBounds, IdempotenceTotals, PackedBuilder, StreamCursor, StreamHead, StreamId, StreamPart,
    StreamPiece, StreamRef, check_node, node_entries,
};

pub(super) use commands::StreamCommands;

use super::commands::Commands;
use super::{Codec, MultipartCodec, ValueBuffer};
use crate::Dialect;
use crate::decode::RdbReader;
use crate::encode::Encoder;
use crate::error::{RdbError, RdbErrorReason};

const TYPE_ORIGINAL: u8 = 15;
const TYPE_WITH_COUNTS: u8 = 19;
const TYPE_WITH_ACTIVE_TIMES: u8 = 21;
const TYPE_WITH_PRODUCERS: u8 = 26;

/// Approximate size of a part in bytes.
const PART_BYTES: usize = 128 << 10;
/// The time written for a consumer that was never active.
const NEVER_ACTIVE_TIME: i64 = -1;
/// The length written in place of an unknown number.
const UNKNOWN_COUNT: u64 = u64::MAX;
const ID_BYTES: usize = 16;

pub(super) struct StreamCodec;

impl Codec for StreamCodec {
    const TYPE_CODES: &'static [u8] =
        &[TYPE_ORIGINAL, TYPE_WITH_COUNTS, TYPE_WITH_ACTIVE_TIMES, TYPE_WITH_PRODUCERS];
    type Value<'a> = StreamRef<'a>;

    fn type_code(stream: &StreamRef<'_>, dialect: Dialect) -> u8 {
        select_type_code(dialect, stream.has_producers(), || stream.to_stream().has_active_times())
    }

    fn write<W: Write>(code: u8, stream: &StreamRef<'_>, out: &mut Encoder<W>) -> io::Result<()> {
        let (stream, mut cursor) = (stream.to_stream(), StreamCursor::default());
        while let Some(piece) = cursor.next(&stream) {
            write_piece(code, &piece, out)?;
        }
        Ok(())
    }

    fn add_commands(stream: &StreamRef<'_>, out: &mut Commands) {
        let (stream, mut cursor) = (stream.to_stream(), StreamCursor::default());
        while let Some(piece) = cursor.next(&stream) {
            commands::add_piece(&piece, out);
        }
    }

    /// Reads the first part. A stream too large to stay serialized always gets a second part, maybe empty; the caller
    /// that joins them checks that they are consistent.
    fn read<R: Read>(code: u8, source: &mut RdbReader<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError> {
        let nodes = source.read_len()?;
        buffer.remaining_elements.code = code;
        buffer.stream_progress =
            StreamProgress { read_stage: ReadStage::Nodes(nodes), ..StreamProgress::default() };
        Self::read_next_part(source, buffer)?;
        if !buffer.is_part() && !buffer.value().stays_packed() {
            buffer.remaining_elements.elements = 1;
        }
        Ok(())
    }
}

impl MultipartCodec for StreamCodec {
    type Part<'a> = StreamPart<'a>;

    fn part_code(part: &StreamPart<'_>, dialect: Dialect) -> u8 {
        select_type_code(dialect, part.has_producers(), || part.has_active_times())
    }

    fn write_head<W: Write>(_: u8, _: usize, _: &StreamPart<'_>, _: &mut Encoder<W>) -> io::Result<()> {
        Ok(())
    }

    fn write_part<W: Write>(code: u8, part: &StreamPart<'_>, out: &mut Encoder<W>) -> io::Result<()> {
        let mut outcome = Ok(());
        part.for_each(&mut |piece| {
            if outcome.is_ok() {
                outcome = write_piece(code, &piece, out);
            }
        });
        outcome
    }

    fn add_part_commands(part: &StreamPart<'_>, out: &mut Commands) {
        part.for_each(&mut |piece| commands::add_piece(&piece, out));
    }

    /// Reads pieces until a part is full or the value ends.
    fn read_next_part<R: Read>(source: &mut RdbReader<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError> {
        let ValueBuffer {
            packed,
            first_buffer: id,
            second_buffer: bytes,
            remaining_elements: remaining,
            stream_progress: stream_remaining,
            ..
        } = buffer;
        let mut reading = StreamReader {
            code: remaining.code,
            source,
            progress: stream_remaining,
            id_buffer: id,
            value_buffer: bytes,
        };
        while reading.progress.read_stage != ReadStage::Done && packed.packed().bytes().len() < PART_BYTES {
            reading.read_step(packed)?;
        }
        remaining.elements = u64::from(stream_remaining.read_stage != ReadStage::Done);
        Ok(())
    }
}

fn write_id<W: Write>(id: StreamId, out: &mut Encoder<W>) -> io::Result<()> {
    out.write_len(id.millis)?;
    out.write_len(id.sequence)
}

fn raw_id_bytes(id: StreamId) -> [u8; ID_BYTES] {
    let mut bytes = [0; ID_BYTES];
    bytes[..8].copy_from_slice(&id.millis.to_be_bytes());
    bytes[8..].copy_from_slice(&id.sequence.to_be_bytes());
    bytes
}

/// Selects the type code. `has_active_times` returns whether omitting the active times of consumers would lose
/// information.
fn select_type_code(dialect: Dialect, has_producers: bool, has_active_times: impl FnOnce() -> bool) -> u8 {
    match dialect {
        Dialect::Redis | Dialect::Redoubt if has_producers => TYPE_WITH_PRODUCERS,
        Dialect::Redis => TYPE_WITH_COUNTS,
        Dialect::Redoubt | Dialect::Valkey => {
            if has_active_times() {
                TYPE_WITH_ACTIVE_TIMES
            } else {
                TYPE_WITH_COUNTS
            }
        }
    }
}

fn write_piece<W: Write>(code: u8, piece: &StreamPiece<'_>, out: &mut Encoder<W>) -> io::Result<()> {
    match *piece {
        StreamPiece::Nodes(count) | StreamPiece::Consumers(count) => out.write_len(count as u64),
        StreamPiece::Node { id, bytes } => {
            out.write_string(&raw_id_bytes(id))?;
            out.write_string(bytes)
        }
        StreamPiece::Head { head, first_id: first, group_count: groups } => {
            out.write_len(head.len)?;
            write_id(head.last_id, out)?;
            write_id(first, out)?;
            write_id(head.max_deleted_id, out)?;
            out.write_len(head.entries_added)?;
            out.write_len(groups as u64)
        }
        StreamPiece::Group { name, last_delivered: last, entries_read: read, pending_count: pending } => {
            out.write_string(name)?;
            write_id(last, out)?;
            out.write_len(read.unwrap_or(UNKNOWN_COUNT))?;
            out.write_len(pending as u64)
        }
        StreamPiece::Pending { id, delivery_time: delivered, delivery_count: count } => {
            out.write_bytes(&raw_id_bytes(id))?;
            out.write_bytes(&delivered.0.to_le_bytes())?;
            out.write_len(count)
        }
        StreamPiece::Consumer { name, last_seen: seen, last_active: active, pending_count: pending } => {
            out.write_string(name)?;
            out.write_bytes(&seen.0.to_le_bytes())?;
            if matches!(code, TYPE_WITH_ACTIVE_TIMES | TYPE_WITH_PRODUCERS) {
                out.write_bytes(&active.map_or(NEVER_ACTIVE_TIME, |Millis(active)| active).to_le_bytes())?;
            }
            out.write_len(pending as u64)
        }
        StreamPiece::ConsumerPending(id) => out.write_bytes(&raw_id_bytes(id)),
        StreamPiece::Producers { .. }
        | StreamPiece::Producer { .. }
        | StreamPiece::Iid { .. }
        | StreamPiece::Totals(_)
            if code != TYPE_WITH_PRODUCERS =>
        {
            Ok(())
        }
        StreamPiece::Producers { bounds, producer_count: count } => {
            out.write_len(bounds.duration_secs)?;
            out.write_len(bounds.max_iids)?;
            out.write_len(count as u64)
        }
        StreamPiece::Producer { name, iid_count: iids } => {
            out.write_string(name)?;
            out.write_len(iids as u64)
        }
        StreamPiece::Iid { iid, id } => {
            out.write_string(iid)?;
            write_id(id, out)
        }
        StreamPiece::Totals(totals) => {
            out.write_len(totals.added)?;
            out.write_len(totals.duplicates)
        }
    }
}

/// How far a stream has been read, and what remains to be read.
#[derive(Debug, Default)]
pub(super) struct StreamProgress {
    read_stage: ReadStage,
    /// Number of live entries in the nodes read so far.
    live_entries: u64,
    last_read_id: StreamId,
    /// Id of the first live entry, recorded only if a group's entries-read counter must be derived from it.
    first_id: Option<StreamId>,
    /// Number of entries ever added.
    entries_added: u64,
    last_id: StreamId,
    remaining_groups: u64,
    /// Number of the current group's pending entries whose consumer has not been read yet.
    unassigned_pending_entries: u64,
    remaining_consumers: u64,
    remaining_producers: u64,
}

/// Which items come next in the input, with their remaining number where it is counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ReadStage {
    #[default]
    Done,
    Nodes(u64),
    Groups,
    Pending(u64),
    Consumers,
    ConsumerPending(u64),
    Producers,
    Iids(u64),
}

struct StreamReader<'a, R> {
    code: u8,
    source: &'a mut RdbReader<R>,
    progress: &'a mut StreamProgress,
    id_buffer: &'a mut Vec<u8>,
    value_buffer: &'a mut Vec<u8>,
}

impl<R: Read> StreamReader<'_, R> {
    fn bad_value<T>(&self, message: &'static str) -> Result<T, RdbError> {
        Err(self.source.error(RdbErrorReason::BadValue(message)))
    }

    fn read_id(&mut self) -> Result<StreamId, RdbError> {
        Ok(StreamId { millis: self.source.read_len()?, sequence: self.source.read_len()? })
    }

    fn read_raw_id(&mut self) -> Result<StreamId, RdbError> {
        Ok(decode_raw_id(self.source.read_array()?))
    }

    fn read_time(&mut self) -> Result<Millis, RdbError> {
        Ok(Millis(i64::from_le_bytes(self.source.read_array()?)))
    }

    /// Reads the next item, or the header of the next group of items.
    fn read_step(&mut self, packed: &mut PackedBuilder) -> Result<(), RdbError> {
        self.progress.read_stage = match self.progress.read_stage {
            ReadStage::Done => ReadStage::Done,
            ReadStage::Nodes(0) => self.read_head(packed)?,
            ReadStage::Nodes(left) => {
                self.read_node(packed)?;
                ReadStage::Nodes(left - 1)
            }
            ReadStage::Groups => self.read_group(packed)?,
            ReadStage::Pending(0) => {
                self.progress.remaining_consumers = self.source.read_len()?;
                ReadStage::Consumers
            }
            ReadStage::Pending(left) => {
                let (id, delivered) = (self.read_raw_id()?, self.read_time()?);
                packed.push_piece(StreamPiece::Pending {
                    id,
                    delivery_time: delivered,
                    delivery_count: self.source.read_len()?,
                });
                ReadStage::Pending(left - 1)
            }
            ReadStage::Consumers => self.read_consumer(packed)?,
            ReadStage::ConsumerPending(0) => ReadStage::Consumers,
            ReadStage::ConsumerPending(left) => {
                packed.push_piece(StreamPiece::ConsumerPending(self.read_raw_id()?));
                ReadStage::ConsumerPending(left - 1)
            }
            ReadStage::Producers => self.read_producer(packed)?,
            ReadStage::Iids(0) => ReadStage::Producers,
            ReadStage::Iids(left) => {
                self.source.read_string(self.value_buffer)?;
                let id = self.read_id()?;
                packed.push_piece(StreamPiece::Iid { iid: self.value_buffer, id });
                ReadStage::Iids(left - 1)
            }
        };
        Ok(())
    }

    fn read_node(&mut self, packed: &mut PackedBuilder) -> Result<(), RdbError> {
        self.source.read_string(self.id_buffer)?;
        let Ok(id) = <[u8; ID_BYTES]>::try_from(&self.id_buffer[..]) else {
            return self.bad_value("a node of a stream without an id");
        };
        self.source.read_string(self.value_buffer)?;
        let id = decode_raw_id(id);
        let Some((live, last)) = check_node(id, self.value_buffer) else {
            return self.bad_value("Stream listpack integrity check failed.");
        };
        if self.code == TYPE_ORIGINAL && self.progress.first_id.is_none() {
            node_entries(id, self.value_buffer, &mut |entry| {
                self.progress.first_id.get_or_insert(entry.id);
            });
        }
        self.progress.last_read_id = last;
        self.progress.live_entries = self.progress.live_entries.saturating_add(live);
        packed.push_piece(StreamPiece::Node { id, bytes: self.value_buffer });
        Ok(())
    }

    fn read_head(&mut self, packed: &mut PackedBuilder) -> Result<ReadStage, RdbError> {
        // Ignore the stored number of entries and count them, because old versions miscounted.
        let (_, last) = (self.source.read_len()?, self.read_id()?);
        let len = self.progress.live_entries;
        let (mut max_deleted, mut added) = (StreamId::MIN, len);
        if self.code != TYPE_ORIGINAL {
            // Skip the first id, which is derived from the entries.
            self.read_id()?;
            (max_deleted, added) = (self.read_id()?, self.source.read_len()?);
        }
        if last < self.progress.last_read_id {
            return self.bad_value("a stream with entries behind its last");
        }
        (self.progress.entries_added, self.progress.last_id) = (added, last);
        self.progress.remaining_groups = self.source.read_len()?;
        let head = StreamHead { len, last_id: last, max_deleted_id: max_deleted, entries_added: added };
        packed.push_piece(StreamPiece::Head { head, first_id: StreamId::MIN, group_count: 0 });
        Ok(ReadStage::Groups)
    }

    fn read_group(&mut self, packed: &mut PackedBuilder) -> Result<ReadStage, RdbError> {
        if self.progress.unassigned_pending_entries > 0 {
            return self.bad_value("entries of a stream that are pending with nobody");
        }
        let Some(left) = self.progress.remaining_groups.checked_sub(1) else {
            return self.read_after_groups(packed);
        };
        self.progress.remaining_groups = left;
        self.source.read_string(self.value_buffer)?;
        let last = self.read_id()?;
        let read = if self.code == TYPE_ORIGINAL {
            self.progress.entries_read_up_to(last)
        } else {
            Some(self.source.read_len()?).filter(|read| *read != UNKNOWN_COUNT)
        };
        packed.push_piece(StreamPiece::Group {
            name: self.value_buffer,
            last_delivered: last,
            entries_read: read,
            pending_count: 0,
        });
        self.progress.unassigned_pending_entries = self.source.read_len()?;
        Ok(ReadStage::Pending(self.progress.unassigned_pending_entries))
    }

    /// Starts reading the idempotent producers if the type code includes them; otherwise the stream is complete.
    fn read_after_groups(&mut self, packed: &mut PackedBuilder) -> Result<ReadStage, RdbError> {
        if self.code != TYPE_WITH_PRODUCERS {
            return Ok(ReadStage::Done);
        }
        let bounds =
            IdempotenceBounds { duration_secs: self.source.read_len()?, max_iids: self.source.read_len()? };
        self.progress.remaining_producers = self.source.read_len()?;
        packed.push_piece(StreamPiece::Producers { bounds, producer_count: 0 });
        Ok(ReadStage::Producers)
    }

    fn read_producer(&mut self, packed: &mut PackedBuilder) -> Result<ReadStage, RdbError> {
        let Some(left) = self.progress.remaining_producers.checked_sub(1) else {
            let totals =
                IdempotenceTotals { added: self.source.read_len()?, duplicates: self.source.read_len()? };
            packed.push_piece(StreamPiece::Totals(totals));
            return Ok(ReadStage::Done);
        };
        self.progress.remaining_producers = left;
        self.source.read_string(self.value_buffer)?;
        packed.push_piece(StreamPiece::Producer { name: self.value_buffer, iid_count: 0 });
        Ok(ReadStage::Iids(self.source.read_len()?))
    }

    fn read_consumer(&mut self, packed: &mut PackedBuilder) -> Result<ReadStage, RdbError> {
        let Some(left) = self.progress.remaining_consumers.checked_sub(1) else {
            return Ok(ReadStage::Groups);
        };
        self.progress.remaining_consumers = left;
        self.source.read_string(self.value_buffer)?;
        let seen = self.read_time()?;
        let active = if matches!(self.code, TYPE_WITH_ACTIVE_TIMES | TYPE_WITH_PRODUCERS) {
            self.read_time()?
        } else {
            seen
        };
        let active = (active.0 >= 0).then_some(active);
        packed.push_piece(StreamPiece::Consumer {
            name: self.value_buffer,
            last_seen: seen,
            last_active: active,
            pending_count: 0,
        });
        let pending = self.source.read_len()?;
        let Some(unowned) = self.progress.unassigned_pending_entries.checked_sub(pending) else {
            return self.bad_value("a consumer of a stream with more entries than are pending");
        };
        self.progress.unassigned_pending_entries = unowned;
        Ok(ReadStage::ConsumerPending(pending))
    }
}

impl StreamProgress {
    /// Returns how many entries a group has read whose last id is `id`, derived from the entries because Redis 5 does
    /// not record it.
    fn entries_read_up_to(&self, id: StreamId) -> Option<u64> {
        match self.first_id {
            _ if self.entries_added == 0 => Some(0),
            _ if id == self.last_id => Some(self.entries_added),
            _ if id > self.last_id => None,
            Some(first) if id < first => Some(0),
            Some(first) if id == first => Some(1),
            _ => None,
        }
    }
}

fn decode_raw_id(bytes: [u8; ID_BYTES]) -> StreamId {
    let number = u128::from_be_bytes(bytes);
    StreamId { millis: (number >> 64) as u64, sequence: number as u64 }
}

#[cfg(test)]
mod tests;
