//! The invariants of the cluster, one file each.

use gossip::Gossip;
use slot_routing::{Epoch, NodeId, Topology};

use crate::InvariantName;
use crate::invariant::Invariant;

mod claims;
pub(super) mod coverage;
mod epochs;
mod freshness;
mod key_moves;
mod majority;
mod minority;
mod one_owner;
mod one_promotion;
mod one_vote;
mod whole_moves;

/// The events that the invariants check.
#[derive(Debug)]
pub(super) enum ClusterObservation<'a> {
    /// A voter sends its vote.
    VoteSent { voter: NodeId, epoch: Epoch, candidate: NodeId },
    /// A replica was elected. `voters` are the masters with slots in its view. `has_only_elected_voters` is false if a
    /// voter was promoted by TAKEOVER.
    ElectionWon { winner: NodeId, epoch: Epoch, voters: Vec<NodeId>, has_only_elected_voters: bool },
    /// A master announces the epoch under which it claims its slots.
    EpochClaimed { id: NodeId, epoch: Epoch },
    /// A node starts to route requests by this topology.
    TopologyPublished { topology: &'a Topology },
    /// A node died during a write, or its host lost power, so state that the node has not announced may be lost.
    WritesLost { id: NodeId },
    /// An operator reset the node with CLUSTER RESET.
    NodeReset { id: NodeId },
}

/// An invariant that checks events, with the name under which its violations are reported.
pub(super) type NamedInvariant = (InvariantName, Box<dyn for<'a> Invariant<ClusterObservation<'a>>>);

/// Returns all invariants that check events. `claims`, `freshness`, `key_moves`, `minority`, `whole_moves` and
/// `coverage` check states instead.
pub(super) fn all_invariants() -> Vec<NamedInvariant> {
    vec![
        (InvariantName::OneVote, Box::new(one_vote::OneVoteInvariant::default())),
        (InvariantName::Majority, Box::new(majority::MajorityInvariant::default())),
        (InvariantName::OnePromotion, Box::new(one_promotion::OnePromotionInvariant::default())),
        (InvariantName::OneOwner, Box::new(one_owner::OneOwnerInvariant::default())),
        (InvariantName::Epochs, Box::new(epochs::EpochsInvariant::default())),
    ]
}

/// Returns the masters with slots in a node's view.
pub(super) fn voters(gossip: &Gossip) -> impl Iterator<Item = NodeId> + '_ {
    gossip.nodes().map(|node| node.id).filter(|id| gossip.is_voter(*id))
}
