//! Hashes.

use std::ops::Range;

use keyspace::{Field, Key, Limits, Packed, Place, Table};

use super::Model;
use crate::allocator::{Quantum, ROBJ};
use crate::data::{Data, Parts};
use crate::structures::estimated::{self, Seen, Shape};
use crate::structures::own::{element_headers, text, values};
use crate::structures::redis::{self, MOST_FIELDS, Version, each_value, is_packed, packed_hash};
use crate::structures::valkey;

pub(super) struct Hashes;

impl Model for Hashes {
    fn element_bytes(&self, data: &Data) -> u64 {
        data.field_bytes + data.value_bytes
    }

    fn dumped(&self, data: &Data, length: fn(u64) -> u64) -> u64 {
        length(data.field_bytes)
    }

    fn redis(&self, q: Quantum, data: &Data, _version: Version) -> Parts {
        redis::hash(q, data)
    }

    fn valkey(&self, q: Quantum, data: &Data) -> Parts {
        if is_packed(data, MOST_FIELDS) {
            return packed_hash(q, data);
        }
        let fields = each_value(data, |len| valkey::field(q, data.field_bytes, len));
        q.allocation(0, ROBJ) + valkey::table(q, data.elements()) + fields
    }

    fn add(
        &self,
        (table, place, key): (&mut Table, Place, &Key<'_>),
        data: &Data,
        numbers: Range<u64>,
    ) -> Place {
        let names: Vec<Vec<u8>> = numbers.clone().map(|number| text(number, data.field_bytes)).collect();
        let values = values(data, numbers);
        let fields = names.iter().zip(&values).map(|(name, value)| Field { name, value, expiry: None });
        table.hash_set_all(place, key, fields, Limits::default().hash, |_| ())
    }

    fn headers(&self, data: &Data, is_structure: bool) -> f64 {
        element_headers(data, is_structure, 2.0, 0.0)
    }

    fn structure(&self, shape: &Shape) -> u64 {
        shape.elements * estimated::element(shape) + shape.timed_elements * estimated::TIME
    }

    fn see(&self, value: &Packed<'_>, seen: &mut Seen) {
        seen.elements += value.len() as u64;
        value.fields().for_each(|field| {
            seen.add_string(field.name);
            seen.add_string(field.value);
            seen.timed += u64::from(field.expiry.is_some());
        });
    }
}
