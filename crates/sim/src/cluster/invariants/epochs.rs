//! Epochs never go back: the one that a node claims under, not even over a power failure, since others have
//! acted on it; the highest that it has seen, as long as its machine runs and it does not end in the middle of a
//! write.

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
            // It has no slots any more, so its claim says nothing.
            Seen::Reset { id } => {
                self.claimed.forget(id);
                Ok(())
            }
            Seen::Voted { .. } | Seen::Won { .. } => Ok(()),
        }
    }
}
