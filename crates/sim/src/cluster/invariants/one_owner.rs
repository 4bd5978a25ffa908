//! One owner per slot and epoch.
//!
//! For epochs that an election gave (but for what `takeovers` says). An epoch that a node takes without asking (for a
//! slot that an operator moved to it, a takeover, a collision) may coincide with another until the two nodes meet: that
//! is `claims`' matter.

use std::collections::BTreeSet;

use slot_routing::{Epoch, NodeId, Ownership, Role, SLOT_COUNT, Slot};

use super::Seen;
use crate::invariant::{Invariant, Once};

/// Looked at: enough to meet every master's slots, moved ones among them.
const STEP: usize = SLOT_COUNT / 60;

#[derive(Debug, Default)]
pub(super) struct OneOwner {
    elected: BTreeSet<(NodeId, Epoch)>,
    owners: Once<(Slot, Epoch), NodeId>,
}

impl Invariant<Seen<'_>> for OneOwner {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        match seen {
            Seen::Won { winner, epoch, agreed: true, .. } => {
                self.elected.insert((*winner, *epoch));
            }
            Seen::Published { topology } => {
                let me = topology.me();
                let (id, epoch) = (me.id, me.config_epoch);
                if me.role != Role::Master || !self.elected.contains(&(id, epoch)) {
                    return Ok(());
                }
                for slot in
                    Slot::all().step_by(STEP).filter(|slot| topology.ownership(*slot) == Ownership::Mine)
                {
                    self.owners
                        .record((slot, epoch), &id)
                        .map_err(|owner| format!("{owner} and {id} both own slot {slot} in epoch {epoch}"))?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
