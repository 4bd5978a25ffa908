//! Every decision of a run comes from here.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A seeded source of decisions.
#[derive(Debug, Clone)]
pub struct Chance(ChaCha8Rng);

impl Chance {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `end`, which must not be zero.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    /// Whether something happens that happens `percent` times in a hundred.
    pub fn percent(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    /// A time between two, in milliseconds.
    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.0.random_range(low * 1000..=high * 1000))
    }

    pub fn number(&mut self) -> u64 {
        self.0.random()
    }

    /// One of these, which must not be none.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
