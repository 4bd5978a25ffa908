//! Strings.

use std::ops::Range;

use keyspace::{Key, Packed, Place, Table};

use super::Model;
use crate::allocator::Quantum;
use crate::data::{Data, Parts};
use crate::structures::estimated::{Seen, Shape};
use crate::structures::redis::{self, Version};

pub(super) struct Strings;

impl Model for Strings {
    fn redis(&self, q: Quantum, data: &Data, _version: Version) -> Parts {
        redis::string(q, data.value_bytes, data.integers)
    }

    /// It lies with its key.
    fn valkey(&self, _q: Quantum, _data: &Data) -> Parts {
        Parts::default()
    }

    fn add(&self, (_, place, _): (&mut Table, Place, &Key<'_>), _data: &Data, _numbers: Range<u64>) -> Place {
        place
    }

    fn headers(&self, _data: &Data, _is_structure: bool) -> f64 {
        0.0
    }

    fn structure(&self, shape: &Shape) -> u64 {
        shape.payload
    }

    fn see(&self, value: &Packed<'_>, seen: &mut Seen) {
        seen.elements = 1;
        seen.add_string(value.bytes());
    }
}
