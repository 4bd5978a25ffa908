//! Making a new topology what this node routes by.
//!
//! Each slot keeps this node's role for it, read under its own lock; so ownership flips slot by slot and no command
//! waits for more than one slot. A slot that becomes ours flips before the topology is published, and one that leaves
//! us after it, so that a client is never sent from here to here.

use std::sync::Arc;

use slot_routing::{Ownership, Slot, Topology};

use super::Engine;
use crate::settings::Gate;

/// A topology that is published, and whose slots that are not ours have yet to be told.
#[derive(Debug)]
#[must_use]
pub struct Rerouting {
    before: Arc<Topology>,
    topology: Arc<Topology>,
    others: Vec<Slot>,
}

impl Engine {
    /// Routes by this from now on.
    pub fn route_by(&self, topology: Topology) {
        if let Some(rerouting) = self.begin_routing_by(topology) {
            self.end_routing(rerouting);
        }
    }

    /// The first half: the slots that become ours are. Nothing without cluster mode.
    pub fn begin_routing_by(&self, topology: impl Into<Arc<Topology>>) -> Option<Rerouting> {
        let (published, topology) = (self.topology.as_ref()?, topology.into());
        let before = published.load_full();
        let is_ours =
            |slot: &Slot| matches!(topology.ownership(*slot), Ownership::Mine | Ownership::Migrating);
        let changed = topology.changes_since(&before).into_iter();
        let (ours, others): (Vec<Slot>, Vec<Slot>) =
            changed.filter(|slot| self.keyspace.is_in_use(*slot)).partition(is_ours);
        self.flip(&topology, ours);
        published.store(topology.clone());
        Some(Rerouting { before, topology, others })
    }

    /// The second half: so do all others.
    pub fn end_routing(&self, rerouting: Rerouting) {
        let Rerouting { before, topology, others } = rerouting;
        self.flip(&topology, others);
        let (served, serves) = (before.slots_of_my_shard(), topology.slots_of_my_shard());
        let left = |slot: Slot| served.contains(slot) && !serves.contains(slot);
        self.pubsub.leave_slots(left);
        self.reset_slot_costs(self.keyspace.slots().filter(|slot| left(*slot)));
        self.settings.set_gate(Gate::CLUSTER_DOWN, !topology.serving);
        if !topology.serving {
            self.retry_waiters();
        }
    }

    /// Tells every slot what the topology that the server starts with says of it.
    pub fn begin_routing(&self) {
        if let Some(published) = &self.topology {
            let topology = published.load();
            self.settings.set_gate(Gate::CLUSTER_DOWN, !topology.serving);
            self.flip(&topology, self.keyspace.slots());
        }
    }

    fn flip(&self, topology: &Topology, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            self.set_ownership(slot, topology.ownership(slot));
        }
    }
}
