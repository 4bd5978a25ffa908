//! Tracks masters that an operator promoted without a vote.
//!
//! TAKEOVER breaks the guarantees of elections. During a partition, each side can have a majority and elect a replica
//! in the same epoch, because the sides count different masters. Since such majorities are disjoint, one of them
//! includes a master that was promoted by TAKEOVER or elected with such a master's vote. The election invariants exempt
//! these masters.

use std::collections::BTreeSet;

use slot_routing::NodeId;

#[derive(Debug, Default)]
pub(super) struct Takeovers {
    /// Masters that were promoted by TAKEOVER, and masters that were elected with the vote of another forced master.
    forced_masters: BTreeSet<NodeId>,
    /// Candidates that received a vote from one of the forced masters.
    candidates_of_forced_masters: BTreeSet<NodeId>,
}

impl Takeovers {
    pub(super) fn record_takeover(&mut self, id: NodeId) {
        self.forced_masters.insert(id);
    }

    pub(super) fn record_vote(&mut self, voter: NodeId, candidate: NodeId) {
        if self.forced_masters.contains(&voter) {
            self.candidates_of_forced_masters.insert(candidate);
        }
    }

    /// Records an elected node. Returns whether none of its voters was a forced master.
    pub(super) fn record_election(&mut self, winner: NodeId) -> bool {
        let agreed = !self.candidates_of_forced_masters.contains(&winner);
        if agreed {
            self.forced_masters.remove(&winner)
        } else {
            self.forced_masters.insert(winner)
        };
        agreed
    }
}
