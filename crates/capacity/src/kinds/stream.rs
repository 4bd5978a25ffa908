//! Streams.

use std::ops::Range;

use keyspace::{Key, Limits, Packed, Piece, Place, StreamId, Table};

use super::Model;
use crate::allocator::Quantum;
use crate::data::{Data, Parts};
use crate::structures::estimated::{Seen, Shape};
use crate::structures::own::{text, values};
use crate::structures::redis::{self, Version};

/// The flags, id and lengths of an entry.
const ENTRY: f64 = 8.0;
/// When the first entry was added, in milliseconds of Unix time, and how far entries are apart.
const FIRST_MILLIS: u64 = 1_700_000_000_000;
const MILLIS_APART: u64 = 10;

pub(super) struct Streams;

impl Model for Streams {
    fn redis(&self, q: Quantum, data: &Data, _version: Version) -> Parts {
        redis::stream(q, data)
    }

    fn valkey(&self, q: Quantum, data: &Data) -> Parts {
        redis::stream(q, data)
    }

    fn add(
        &self,
        (table, mut place, key): (&mut Table, Place, &Key<'_>),
        data: &Data,
        numbers: Range<u64>,
    ) -> Place {
        let (name, limits) = (text(0, data.field_bytes.max(1)), Limits::default());
        for (number, value) in numbers.clone().zip(values(data, numbers)) {
            let id = StreamId { millis: FIRST_MILLIS + number * MILLIS_APART, sequence: 0 };
            // One by one, as they come: that is how pages fill.
            let append = |stream: &mut keyspace::Stream| stream.append(id, &[&name, &value], limits.stream);
            place = table.edit_stream(place, key, append).0;
        }
        place
    }

    fn headers(&self, data: &Data, _is_structure: bool) -> f64 {
        data.elements() as f64 * ENTRY
    }

    /// Nodes that grow are shrunk to their bytes when the next begins.
    fn structure(&self, shape: &Shape) -> u64 {
        shape.payload
    }

    fn see(&self, value: &Packed<'_>, seen: &mut Seen) {
        seen.elements += value.len() as u64;
        value.pieces().for_each(|piece| see_piece(&piece, seen));
    }
}

fn see_piece(piece: &Piece<'_>, seen: &mut Seen) {
    /// Bytes of the records about a group, a consumer and a pending entry, in trees.
    const GROUP: u64 = 160;
    const CONSUMER: u64 = 96;
    const PENDING: u64 = 56;
    /// The same about a node.
    const NODE: u64 = 64;
    match piece {
        Piece::Node { bytes, .. } => {
            seen.add_string(bytes);
            seen.payload += NODE;
        }
        Piece::Group { name, .. } => seen.payload += GROUP + name.len() as u64,
        Piece::Consumer { name, .. } => seen.payload += CONSUMER + name.len() as u64,
        Piece::Pending { .. } => seen.payload += PENDING,
        Piece::Producer { name, .. } => seen.payload += CONSUMER + name.len() as u64,
        Piece::Iid { iid, .. } => seen.payload += PENDING + iid.len() as u64,
        Piece::Nodes(_)
        | Piece::Head { .. }
        | Piece::Consumers(_)
        | Piece::Owned(_)
        | Piece::Producers { .. }
        | Piece::Totals(_) => {}
    }
}
