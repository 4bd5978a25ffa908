//! The source of all random decisions of a run.

use std::time::Duration;

use migration::JobName;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use replication::ReplId;
use slot_routing::NodeId;

/// A seeded source of random decisions.
#[derive(Debug, Clone)]
pub(crate) struct RandomSource(ChaCha8Rng);

impl RandomSource {
    #[must_use]
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Returns a number below `end`, which must not be zero.
    pub(crate) fn random_below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    /// Returns true with the given probability in percent.
    pub(crate) fn random_bool(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    /// Returns a random duration between `low` and `high` milliseconds.
    pub(crate) fn random_millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.0.random_range(low * 1000..=high * 1000))
    }

    pub(crate) fn random_number(&mut self) -> u64 {
        self.0.random()
    }

    /// Returns an independent random generator, for the decisions of a state machine.
    pub(crate) fn split_generator(&mut self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.random_number())
    }

    pub(crate) fn random_id(&mut self) -> NodeId {
        NodeId::from_random(self.0.random())
    }

    pub(crate) fn random_job_name(&mut self) -> JobName {
        JobName::from_random(self.0.random())
    }

    pub(crate) fn random_replication_id(&mut self) -> ReplId {
        ReplId::from_random(self.0.random())
    }

    /// Returns a random element of a slice, which must not be empty.
    pub(crate) fn pick_random<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.random_below(items.len())]
    }
}
