//! Models jemalloc's size classes (jemalloc(3), "SIZE CLASSES") and the basic allocations of Redis
//! and Valkey: sds strings and listpacks.

use crate::data::MemoryBreakdown;

/// Size of a `robj`, the header object of a value.
pub(crate) const ROBJ_BYTES: u64 = 16;

/// The spacing in bytes of the smallest size classes. Redis and Valkey build jemalloc with 8
/// (`--with-lg-quantum=3`); the default is 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantum(pub u64);

/// The quantum of the jemalloc that is bundled with Redis and Valkey.
pub const BUNDLED_QUANTUM: Quantum = Quantum(8);
/// The default quantum of jemalloc, which distributions use.
pub const DEFAULT_QUANTUM: Quantum = Quantum(16);

impl Quantum {
    /// Rounds `bytes` up to a size class. Each doubling has four classes, spaced at least a quantum
    /// apart.
    #[must_use]
    pub fn size_class(self, bytes: u64) -> u64 {
        if bytes <= 8 {
            return 8;
        }
        let step = (bytes.next_power_of_two() / 8).max(self.0);
        bytes.next_multiple_of(step)
    }

    /// Returns the cost of one allocation that holds `payload` client bytes and `headers` bytes of
    /// metadata.
    pub(crate) fn allocation_memory(self, payload: u64, headers: u64) -> MemoryBreakdown {
        let asked = payload + headers;
        MemoryBreakdown {
            payload: payload as f64,
            headers: headers as f64,
            index: 0.0,
            rounding: (self.size_class(asked) - asked) as f64,
        }
    }

    /// Returns the cost of an allocation that only serves key lookup, such as a bucket array.
    pub(crate) fn index_memory(self, bytes: u64) -> MemoryBreakdown {
        MemoryBreakdown { index: self.size_class(bytes) as f64, ..MemoryBreakdown::default() }
    }

    /// Returns the cost of an sds string of `len` bytes, with its header.
    pub(crate) fn sds_memory(self, len: u64) -> MemoryBreakdown {
        self.allocation_memory(len, sds_overhead(len))
    }

    /// Returns the cost of a listpack with its `robj`.
    pub(crate) fn listpack_memory(self, payload: u64, headers: u64) -> MemoryBreakdown {
        /// Total length (4 bytes), element count (2) and terminator (1).
        const LISTPACK_FRAME_BYTES: u64 = 7;
        self.allocation_memory(0, ROBJ_BYTES)
            + self.allocation_memory(payload, headers + LISTPACK_FRAME_BYTES)
    }
}

/// Returns the size of an `sds` header plus the terminating zero.
pub(crate) fn sds_overhead(len: u64) -> u64 {
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
    fn size_classes_match_the_jemalloc_manual() {
        let steps = [(1, 8), (9, 16), (24, 24), (57, 64), (65, 80), (129, 160), (257, 320), (1025, 1280)];
        for (asked, given) in steps {
            assert_eq!(BUNDLED_QUANTUM.size_class(asked), given, "{asked}");
        }
        assert_eq!(
            (
                DEFAULT_QUANTUM.size_class(17),
                DEFAULT_QUANTUM.size_class(100),
                DEFAULT_QUANTUM.size_class(5000)
            ),
            (32, 112, 5120)
        );
    }
}
