//! Epochs never decrease. The claimed epoch survives even power failures because other nodes have
//! acted on it; the highest seen epoch survives as long as the machine has power and the node does
//! not die during a write.

use slot_routing::{Epoch, NodeId};

use super::ClusterObservation;
use crate::invariant::{Invariant, NonDecreasing};

#[derive(Debug, Default)]
pub(super) struct Epochs {
    claimed: NonDecreasing<NodeId, Epoch>,
    current: NonDecreasing<NodeId, Epoch>,
}

impl Invariant<ClusterObservation<'_>> for Epochs {
    fn check(&mut self, seen: &ClusterObservation<'_>) -> Result<(), String> {
        match seen {
            ClusterObservation::Published { topology } => {
                self.current.check_next(&topology.my_member().id, topology.current_epoch, "current epoch")
            }
            ClusterObservation::EpochClaimed { id, epoch } => {
                self.claimed.check_next(id, *epoch, "claim's epoch")
            }
            ClusterObservation::LostWrites { id } => {
                self.current.remove(id);
                Ok(())
            }
            // A node that was reset has no slots and claims no epoch.
            ClusterObservation::Reset { id } => {
                self.claimed.remove(id);
                Ok(())
            }
            ClusterObservation::Voted { .. } | ClusterObservation::ElectionWon { .. } => Ok(()),
        }
    }
}
