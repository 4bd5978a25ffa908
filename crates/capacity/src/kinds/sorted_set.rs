//! Sorted sets.

use std::ops::Range;

use keyspace::{Key, Limits, Packed, Place, Table};

use super::Model;
use crate::allocator::{Quantum, ROBJ, sds_head};
use crate::data::{Data, Parts};
use crate::structures::estimated::{self, Seen, Shape};
use crate::structures::own::{element_headers, values};
use crate::structures::redis::{
    self, MOST_MEMBERS, Version, ZSET, each_value, is_packed, packed_zset, skiplist_node,
};
use crate::structures::valkey;

/// A score beside the header of its member.
const SCORE: f64 = 4.0;
/// A score in an RDB.
const DUMPED_SCORE: u64 = 8;
/// A member's place in the order: six bytes in a leaf that is 70 % full.
const ORDER: u64 = 9;

pub(super) struct SortedSets;

impl Model for SortedSets {
    fn dumped(&self, _data: &Data, _length: fn(u64) -> u64) -> u64 {
        DUMPED_SCORE
    }

    fn redis(&self, q: Quantum, data: &Data, _version: Version) -> Parts {
        redis::zset(q, data)
    }

    fn valkey(&self, q: Quantum, data: &Data) -> Parts {
        if is_packed(data, MOST_MEMBERS) {
            return packed_zset(q, data);
        }
        let nodes = each_value(data, |len| {
            let node = skiplist_node(q, 16 + 1 + sds_head(len), len);
            // The score is the client's.
            Parts { payload: node.payload + 8.0, index: node.index - 8.0, ..node }
        });
        let own = q.allocation(0, ROBJ) + Parts { headers: ZSET as f64, ..Parts::default() };
        own + valkey::table(q, data.elements()) + nodes
    }

    fn add(
        &self,
        (table, mut place, key): (&mut Table, Place, &Key<'_>),
        data: &Data,
        numbers: Range<u64>,
    ) -> Place {
        let bounds = Limits::default().sorted_set;
        for (number, name) in numbers.clone().zip(values(data, numbers)) {
            // In random order, as they mostly come.
            let score = (number.wrapping_mul(0x9e37_79b1) % (1 << 20)) as f64;
            place = table.sorted_set_update(place, key, &name, bounds, |_| Some(score));
        }
        place
    }

    fn headers(&self, data: &Data, is_structure: bool) -> f64 {
        element_headers(data, is_structure, 3.0, SCORE)
    }

    fn structure(&self, shape: &Shape) -> u64 {
        shape.elements * (estimated::element(shape) + ORDER)
    }

    fn see(&self, value: &Packed<'_>, seen: &mut Seen) {
        seen.elements += value.len() as u64;
        value.scored().for_each(|member| {
            seen.add_string(member.name);
            seen.payload += score_len(member.score);
        });
    }
}

/// Bytes that a score takes in a structure.
fn score_len(score: f64) -> u64 {
    if score.fract() == 0.0 && score.abs() <= f64::from(i32::MAX) { 4 } else { 8 }
}
