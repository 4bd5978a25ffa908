//! Tracks masters that were promoted by an operator without a vote.
//!
//! TAKEOVER breaks the guarantees of elections. During a partition both sides can have a majority
//! and elect in one epoch, because each counts a different master. Such majorities are disjoint, so
//! one of them included a forced master or a node elected with a forced master's vote. The election
//! invariants exempt such nodes.

use std::collections::BTreeSet;

use slot_routing::NodeId;

#[derive(Debug, Default)]
pub(super) struct Takeovers {
    /// Masters promoted by TAKEOVER, and masters elected with their votes.
    forced: BTreeSet<NodeId>,
    /// Candidates that received a vote from one of the forced masters.
    voted_for_by_forced: BTreeSet<NodeId>,
}

impl Takeovers {
    pub(super) fn record_takeover(&mut self, id: NodeId) {
        self.forced.insert(id);
    }

    pub(super) fn record_vote(&mut self, voter: NodeId, candidate: NodeId) {
        if self.forced.contains(&voter) {
            self.voted_for_by_forced.insert(candidate);
        }
    }

    /// Records an elected node and returns whether its voters were all properly elected.
    pub(super) fn record_election(&mut self, winner: NodeId) -> bool {
        let agreed = !self.voted_for_by_forced.contains(&winner);
        if agreed {
            self.forced.remove(&winner)
        } else {
            self.forced.insert(winner)
        };
        agreed
    }
}
