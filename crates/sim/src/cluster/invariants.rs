//! The invariants of the cluster, one file each.

use gossip::Gossip;
use slot_routing::{Epoch, NodeId, Topology};

use crate::Rule;
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

/// The steps that the invariants look at.
#[derive(Debug)]
pub(super) enum Seen<'a> {
    /// A vote leaves its voter.
    Voted { voter: NodeId, epoch: Epoch, candidate: NodeId },
    /// A replica was elected; `voters` are the masters with slots in its eyes. `agreed`: without the vote
    /// of one that an operator made a master.
    Won { winner: NodeId, epoch: Epoch, voters: Vec<NodeId>, agreed: bool },
    /// A master tells somebody under which epoch it claims its slots.
    Claimed { id: NodeId, epoch: Epoch },
    /// A node routes by this from now on.
    Published { topology: &'a Topology },
    /// A node ended while it wrote, or its machine failed: what it had not told anybody may be lost.
    LostWrites { id: NodeId },
    /// An operator had it forget the cluster.
    Reset { id: NodeId },
}

/// One that looks at steps.
pub(super) type Named = (Rule, Box<dyn for<'a> Invariant<Seen<'a>>>);

/// All of them that look at steps; `claims`, `freshness`, `key_moves`, `minority`, `whole_moves` and `coverage` look at states.
pub(super) fn all() -> Vec<Named> {
    vec![
        (Rule::OneVote, Box::new(one_vote::OneVote::default())),
        (Rule::Majority, Box::new(majority::Majority::default())),
        (Rule::OnePromotion, Box::new(one_promotion::OnePromotion::default())),
        (Rule::OneOwner, Box::new(one_owner::OneOwner::default())),
        (Rule::Epochs, Box::new(epochs::Epochs::default())),
    ]
}

/// The masters with slots, as a node sees them.
pub(super) fn voters(gossip: &Gossip) -> impl Iterator<Item = NodeId> + '_ {
    gossip.nodes().map(|node| node.id).filter(|id| gossip.is_voter(*id))
}
