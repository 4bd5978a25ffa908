//! Epochs never decrease. The claimed epoch survives even a power failure, because other nodes have acted on it. The
//! highest seen epoch survives unless the host loses power or the node dies during a write.

use slot_routing::{Epoch, NodeId};

use super::ClusterObservation;
use crate::invariant::{Invariant, NonDecreasing};

#[derive(Debug, Default)]
pub(super) struct EpochsInvariant {
    claimed_epochs: NonDecreasing<NodeId, Epoch>,
    current_epochs: NonDecreasing<NodeId, Epoch>,
}

impl Invariant<ClusterObservation<'_>> for EpochsInvariant {
    fn check(&mut self, observation: &ClusterObservation<'_>) -> Result<(), String> {
        match observation {
            ClusterObservation::TopologyPublished { topology } => self.current_epochs.check_next(
                &topology.my_member().id,
                topology.current_epoch,
                "current epoch",
            ),
            ClusterObservation::EpochClaimed { id, epoch } => {
                self.claimed_epochs.check_next(id, *epoch, "claim's epoch")
            }
            ClusterObservation::WritesLost { id } => {
                self.current_epochs.remove(id);
                Ok(())
            }
            // A node that was reset has no slots, so it claims no epoch.
            ClusterObservation::NodeReset { id } => {
                self.claimed_epochs.remove(id);
                Ok(())
            }
            ClusterObservation::VoteSent { .. } | ClusterObservation::ElectionWon { .. } => Ok(()),
        }
    }
}
