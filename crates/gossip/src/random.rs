//! The source of random numbers for the state machine: a generator that the caller passes in.

use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use slot_routing::NodeId;

#[derive(Debug)]
pub(crate) struct Randomness(ChaCha8Rng);

impl Randomness {
    pub(crate) fn new(rng: ChaCha8Rng) -> Self {
        Self(rng)
    }

    /// Returns a random number below `bound`, or 0 if the bound is 0.
    pub(crate) fn random_below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.0.random_range(0..bound) }
    }

    pub(crate) fn random_node_id(&mut self) -> NodeId {
        let mut bytes = [0; 20];
        self.0.fill_bytes(&mut bytes);
        NodeId::from_random(bytes)
    }
}
