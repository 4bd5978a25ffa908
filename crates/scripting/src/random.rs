//! The generator of `math.random`: `drand48`, as in Redis. The sequence continues across scripts. Repeatable sequences
//! are not needed, since effects are replicated rather than scripts.

use std::cell::Cell;

const STATE_MASK: u64 = (1 << 48) - 1;
const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const ADDEND: u64 = 0xB;
const SEED_LOW_BITS: u64 = 0x330E;

#[derive(Debug)]
pub(crate) struct Random(Cell<u64>);

impl Random {
    /// Creates a generator. Each Lua state passes another `seed`, so that their sequences differ.
    pub(crate) fn new(seed: u64) -> Self {
        Self(Cell::new((seed << 16 | SEED_LOW_BITS) & STATE_MASK))
    }

    pub(crate) fn set_seed(&self, seed: i32) {
        self.0.set((u64::from(seed as u32) << 16) + SEED_LOW_BITS);
    }

    /// The next number in the range [0, 1).
    pub(crate) fn next_f64(&self) -> f64 {
        let state = self.0.get().wrapping_mul(MULTIPLIER).wrapping_add(ADDEND) & STATE_MASK;
        self.0.set(state);
        let bits = (state >> 17) as i64;
        let max = i64::from(i32::MAX);
        (bits % max) as f64 / max as f64
    }
}
