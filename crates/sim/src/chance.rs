//! Every decision of a run comes from here.

use std::time::Duration;

use migration::JobName;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use replication::ReplId;
use slot_routing::NodeId;

/// A seeded source of decisions.
#[derive(Debug, Clone)]
pub(crate) struct Chance(ChaCha8Rng);

impl Chance {
    #[must_use]
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `end`, which must not be zero.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    /// Whether something happens that happens `percent` times in a hundred.
    pub(crate) fn percent(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    /// A time between two, in milliseconds.
    pub(crate) fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.0.random_range(low * 1000..=high * 1000))
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0.random()
    }

    /// A generator of its own for a machine.
    pub(crate) fn split(&mut self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.number())
    }

    /// A node's name.
    pub(crate) fn id(&mut self) -> NodeId {
        NodeId::from_random(self.0.random())
    }

    /// The name of a job.
    pub(crate) fn job(&mut self) -> JobName {
        JobName::from_random(self.0.random())
    }

    /// The name of a replication history.
    pub(crate) fn history(&mut self) -> ReplId {
        ReplId::from_random(self.0.random())
    }

    /// Pairs of `hosts`, sender first, between which nothing gets through: one cut off, two halves, or one way only.
    pub(crate) fn partition(&mut self, hosts: usize) -> Vec<(usize, usize)> {
        let pairs = (0..hosts).flat_map(|a| (0..hosts).map(move |b| (a, b)));
        match self.below(3) {
            0 => {
                let alone = self.below(hosts);
                pairs.filter(|&(a, b)| (a == alone) != (b == alone)).collect()
            }
            1 => {
                let side: Vec<bool> = (0..hosts).map(|_| self.percent(50)).collect();
                pairs.filter(|&(a, b)| side[a] != side[b]).collect()
            }
            _ => {
                let (from, to) = (self.below(hosts), self.below(hosts));
                if from == to { Vec::new() } else { vec![(from, to)] }
            }
        }
    }

    /// One of these, which must not be none.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
