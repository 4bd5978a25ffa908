//! Each slot has one owner per epoch.
//!
//! This holds for epochs from elections (with the exception described in `takeovers`). Epochs taken without an election
//! (SETSLOT, TAKEOVER, collisions) may be equal until the nodes communicate; the invariant `claims` checks those.

use std::collections::BTreeSet;

use slot_routing::{Epoch, NodeId, Ownership, Role, SLOT_COUNT, Slot};

use super::ClusterObservation;
use crate::invariant::{Invariant, SetOnce};

/// Only every n-th slot is checked. The checked slots include some of every master and some that are migrated.
const CHECKED_SLOT_STEP: usize = SLOT_COUNT / 60;

#[derive(Debug, Default)]
pub(super) struct OneOwnerInvariant {
    elections: BTreeSet<(NodeId, Epoch)>,
    owners: SetOnce<(Slot, Epoch), NodeId>,
}

impl Invariant<ClusterObservation<'_>> for OneOwnerInvariant {
    fn check(&mut self, observation: &ClusterObservation<'_>) -> Result<(), String> {
        match observation {
            ClusterObservation::ElectionWon { winner, epoch, has_only_elected_voters: true, .. } => {
                self.elections.insert((*winner, *epoch));
            }
            ClusterObservation::TopologyPublished { topology } => {
                let me = topology.my_member();
                let (id, epoch) = (me.id, me.config_epoch);
                if me.role != Role::Master || !self.elections.contains(&(id, epoch)) {
                    return Ok(());
                }
                for slot in Slot::all()
                    .step_by(CHECKED_SLOT_STEP)
                    .filter(|slot| topology.ownership(*slot) == Ownership::Local)
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
