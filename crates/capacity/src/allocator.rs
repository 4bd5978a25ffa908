//! The size classes of jemalloc: a request is rounded up to one of them (jemalloc(3), "SIZE CLASSES"). And what Redis
//! and Valkey allocate: strings with a head, runs of elements with lengths.

use crate::data::Parts;

/// The record of a value, beside what it points at.
pub(crate) const ROBJ: u64 = 16;

/// In how small steps the first classes lie: 8 as Redis and Valkey build it (`--with-lg-quantum=3`), 16 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantum(pub u64);

/// As Redis and Valkey build the one that they bring along.
pub const REDIS: Quantum = Quantum(8);
/// As it comes, and as distributions build it.
pub const DEFAULT: Quantum = Quantum(16);

impl Quantum {
    /// The size class of an allocation of so many bytes: four classes to each doubling, never less than a step apart.
    #[must_use]
    pub fn class(self, bytes: u64) -> u64 {
        if bytes <= 8 {
            return 8;
        }
        let step = (bytes.next_power_of_two() / 8).max(self.0);
        bytes.next_multiple_of(step)
    }

    /// An allocation of the client's bytes and of the structure around them.
    pub(crate) fn allocation(self, payload: u64, headers: u64) -> Parts {
        let asked = payload + headers;
        Parts {
            payload: payload as f64,
            headers: headers as f64,
            index: 0.0,
            rounding: (self.class(asked) - asked) as f64,
        }
    }

    /// An allocation that only finds others.
    pub(crate) fn index(self, bytes: u64) -> Parts {
        Parts { index: self.class(bytes) as f64, ..Parts::default() }
    }

    /// A string of bytes, with its head.
    pub(crate) fn sds(self, len: u64) -> Parts {
        self.allocation(len, sds_head(len))
    }

    /// An object whose elements lie in one run.
    pub(crate) fn listpack(self, payload: u64, heads: u64) -> Parts {
        /// Its length, its count and its end.
        const HEAD: u64 = 7;
        self.allocation(0, ROBJ) + self.allocation(payload, heads + HEAD)
    }
}

/// The head of an `sds` and the zero behind it.
pub(crate) fn sds_head(len: u64) -> u64 {
    1 + match len {
        0..32 => 1,
        32..256 => 3,
        256..65_536 => 5,
        _ => 9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_the_manual() {
        let steps = [(1, 8), (9, 16), (24, 24), (57, 64), (65, 80), (129, 160), (257, 320), (1025, 1280)];
        for (asked, given) in steps {
            assert_eq!(REDIS.class(asked), given, "{asked}");
        }
        assert_eq!((DEFAULT.class(17), DEFAULT.class(100), DEFAULT.class(5000)), (32, 112, 5120));
    }
}
