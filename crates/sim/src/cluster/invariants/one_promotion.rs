//! At most one replica is elected per epoch, whichever master failed (with the exception described in `takeovers`).

use slot_routing::{Epoch, NodeId};

use super::ClusterObservation;
use crate::invariant::{Invariant, SetOnce};

#[derive(Debug, Default)]
pub(super) struct OnePromotionInvariant {
    winners: SetOnce<Epoch, NodeId>,
}

impl Invariant<ClusterObservation<'_>> for OnePromotionInvariant {
    fn check(&mut self, observation: &ClusterObservation<'_>) -> Result<(), String> {
        let ClusterObservation::ElectionWon { winner, epoch, has_only_elected_voters: true, .. } =
            observation
        else {
            return Ok(());
        };
        let settled = self.winners.record(*epoch, winner);
        settled.map_err(|first| format!("{first} and {winner} were both elected in epoch {epoch}"))
    }
}
