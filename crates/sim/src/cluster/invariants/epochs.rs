//! Epochs never decrease. The claimed epoch survives even power failures because other nodes have
//! acted on it; the highest seen epoch survives as long as the machine has power and the node does
//! not die during a write.

use slot_routing::{Epoch, NodeId};

use super::Seen;
use crate::invariant::{Invariant, Rising};

#[derive(Debug, Default)]
pub(super) struct Epochs {
    claimed: Rising<NodeId, Epoch>,
    current: Rising<NodeId, Epoch>,
}

impl Invariant<Seen<'_>> for Epochs {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        match seen {
            Seen::Published { topology } => {
                self.current.see(&topology.me().id, topology.current_epoch, "current epoch")
            }
            Seen::Claimed { id, epoch } => self.claimed.see(id, *epoch, "claim's epoch"),
            Seen::LostWrites { id } => {
                self.current.forget(id);
                Ok(())
            }
            // A node without slots makes no claim.
            Seen::Reset { id } => {
                self.claimed.forget(id);
                Ok(())
            }
            Seen::Voted { .. } | Seen::Won { .. } => Ok(()),
        }
    }
}
