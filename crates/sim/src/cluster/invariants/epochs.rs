//! Epochs never decrease. The claimed epoch survives even a power failure, because other nodes have acted on it. The
//! highest seen epoch survives unless the host loses power or the node dies during a write.

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
            // A node that was reset has no slots, so it claims no epoch.
            ClusterObservation::Reset { id } => {
                self.claimed.remove(id);
                Ok(())
            }
            ClusterObservation::Voted { .. } | ClusterObservation::ElectionWon { .. } => Ok(()),
        }
    }
}
