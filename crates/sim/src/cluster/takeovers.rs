//! Masters that became such by an operator's word, without a vote.
//!
//! TAKEOVER gives up what the elections promise. If a network is cut, the replica's side counts it among the
//! masters and the other side still counts the one whose place it took: both may have a majority, and elect
//! in one epoch. Two such majorities have no voter in common, so one of them has needed the vote of the
//! replica, or of a node that its vote made a master. The rules of elections are asked of all others.

use std::collections::BTreeSet;

use slot_routing::NodeId;

#[derive(Debug, Default)]
pub(super) struct Takeovers {
    /// Masters by an operator's word, and those elected with the vote of one.
    forced: BTreeSet<NodeId>,
    /// Candidates that have had the vote of one of them.
    helped: BTreeSet<NodeId>,
}

impl Takeovers {
    pub(super) fn take_over(&mut self, id: NodeId) {
        self.forced.insert(id);
    }

    pub(super) fn vote(&mut self, voter: NodeId, candidate: NodeId) {
        if self.forced.contains(&voter) {
            self.helped.insert(candidate);
        }
    }

    /// Takes in an elected node; returns whether it was elected by masters that had been elected, too.
    pub(super) fn elect(&mut self, winner: NodeId) -> bool {
        let agreed = !self.helped.contains(&winner);
        if agreed {
            self.forced.remove(&winner)
        } else {
            self.forced.insert(winner)
        };
        agreed
    }
}
