//! Lists.

use std::ops::Range;

use keyspace::{Key, Limits, ListEnd, Packed, Place, Table};

use super::Model;
use crate::allocator::Quantum;
use crate::data::{Data, Parts};
use crate::structures::estimated::{Seen, Shape};
use crate::structures::own::{element_headers, values};
use crate::structures::redis::{self, Version};

/// A number in front of an element and one behind it.
const RECORD: u64 = 2;
/// The free end of segments, and the branches above them, in percent.
const SEGMENTS_SHARE: u64 = 6;

pub(super) struct Lists;

impl Model for Lists {
    fn redis(&self, q: Quantum, data: &Data, version: Version) -> Parts {
        redis::list(q, data, version >= Version::Eight)
    }

    fn valkey(&self, q: Quantum, data: &Data) -> Parts {
        redis::list(q, data, true)
    }

    fn add(
        &self,
        (table, place, key): (&mut Table, Place, &Key<'_>),
        data: &Data,
        numbers: Range<u64>,
    ) -> Place {
        let values = values(data, numbers);
        let items = values.iter().map(Vec::as_slice);
        table.list_push(place, key, ListEnd::Tail, items, Limits::default().list)
    }

    fn headers(&self, data: &Data, is_structure: bool) -> f64 {
        element_headers(data, is_structure, 2.0, 0.0)
    }

    fn structure(&self, shape: &Shape) -> u64 {
        let records = shape.payload + shape.elements * RECORD;
        records + records * SEGMENTS_SHARE / 100
    }

    fn see(&self, value: &Packed<'_>, seen: &mut Seen) {
        seen.elements += value.len() as u64;
        value.items().for_each(|item| seen.add_bytes(item.len() as u64));
    }
}
