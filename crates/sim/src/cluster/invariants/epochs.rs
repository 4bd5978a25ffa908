//! Epochs never go back: the one that a node claims under, and the one it has voted in, not even over a
//! power failure, since others have acted on them; the highest that it has seen, as long as its machine
//! runs.

use std::collections::BTreeMap;

use slot_routing::{Epoch, NodeId, Role};

use super::{Invariant, Seen};

#[derive(Debug, Default)]
pub(super) struct Epochs {
    claimed: BTreeMap<NodeId, Epoch>,
    voted: BTreeMap<NodeId, Epoch>,
    current: BTreeMap<NodeId, Epoch>,
}

impl Invariant for Epochs {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        match seen {
            Seen::Published { topology } => {
                let me = topology.me();
                rises(&mut self.current, me.id, topology.current_epoch, "current epoch")?;
                match me.role {
                    Role::Master => rises(&mut self.claimed, me.id, me.config_epoch, "claim's epoch"),
                    Role::Replica(_) => Ok(()),
                }
            }
            Seen::Voted { voter, epoch, .. } => rises(&mut self.voted, *voter, *epoch, "last vote's epoch"),
            Seen::PowerFailed { id } => {
                self.current.remove(id);
                Ok(())
            }
            Seen::Won { .. } => Ok(()),
        }
    }
}

fn rises(highest: &mut BTreeMap<NodeId, Epoch>, id: NodeId, epoch: Epoch, what: &str) -> Result<(), String> {
    let highest = highest.entry(id).or_default();
    if epoch < *highest {
        return Err(format!("the {what} of {id} went back from {highest} to {epoch}"));
    }
    *highest = epoch;
    Ok(())
}
