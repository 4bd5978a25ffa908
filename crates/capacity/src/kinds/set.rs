//! Sets.

use std::ops::Range;

use keyspace::{Key, Limits, Packed, Place, Table};

use super::Model;
use crate::allocator::{Quantum, ROBJ};
use crate::data::{Data, Parts};
use crate::structures::estimated::{self, Seen, Shape};
use crate::structures::own::{element_headers, values};
use crate::structures::redis::{self, Version, each_value, packed_set};
use crate::structures::valkey;

pub(super) struct Sets;

impl Model for Sets {
    fn redis(&self, q: Quantum, data: &Data, version: Version) -> Parts {
        redis::set(q, data, version)
    }

    fn valkey(&self, q: Quantum, data: &Data) -> Parts {
        packed_set(q, data, true).unwrap_or_else(|| {
            let members = each_value(data, |len| q.sds(len));
            q.allocation(0, ROBJ) + valkey::table(q, data.elements()) + members
        })
    }

    fn add(
        &self,
        (table, place, key): (&mut Table, Place, &Key<'_>),
        data: &Data,
        numbers: Range<u64>,
    ) -> Place {
        let values = values(data, numbers);
        table.set_add_all(place, key, values.iter().map(Vec::as_slice), Limits::default().set).0
    }

    fn headers(&self, data: &Data, is_structure: bool) -> f64 {
        element_headers(data, is_structure, 1.0, 0.0)
    }

    fn structure(&self, shape: &Shape) -> u64 {
        shape.elements * estimated::element(shape)
    }

    fn see(&self, value: &Packed<'_>, seen: &mut Seen) {
        seen.elements += value.len() as u64;
        value.for_each_member(&mut |member| seen.add_string(&member));
    }
}
