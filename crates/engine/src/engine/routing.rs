//! Publishes a new cluster topology to the command path.
//!
//! Each slot stores whether this node serves it; commands read this while the slot is locked. Ownership therefore
//! changes slot by slot, and no command waits for more than one slot. Gained slots change before the topology is
//! published and lost slots after it, so that a client is never redirected from this node to itself.

use std::sync::Arc;

use slot_routing::{Ownership, Slot, Topology};

use super::Engine;
use crate::settings::NodeFlags;

/// A published topology whose lost slots still have to be updated ([`Engine::end_topology_change`]).
#[derive(Debug)]
#[must_use]
pub struct TopologyChange {
    previous: Arc<Topology>,
    topology: Arc<Topology>,
    remaining_slots: Vec<Slot>,
}

impl Engine {
    /// Publishes a topology and updates all slots in one call.
    pub fn apply_topology(&self, topology: Topology) {
        if let Some(rerouting) = self.begin_topology_change(topology) {
            self.end_topology_change(rerouting);
        }
    }

    /// First half of a topology change: takes over gained slots and publishes the topology. Returns `None` without
    /// cluster mode.
    pub fn begin_topology_change(&self, topology: impl Into<Arc<Topology>>) -> Option<TopologyChange> {
        let (published, topology) = (self.topology.as_ref()?, topology.into());
        let before = published.load_full();
        let is_ours =
            |slot: &Slot| matches!(topology.ownership(*slot), Ownership::Local | Ownership::Migrating);
        let changed = topology.ownership_changes_since(&before).into_iter();
        let (ours, others): (Vec<Slot>, Vec<Slot>) =
            changed.filter(|slot| self.keyspace.is_usable(*slot)).partition(is_ours);
        self.update_ownership(&topology, ours);
        published.store(topology.clone());
        Some(TopologyChange { previous: before, topology, remaining_slots: others })
    }

    /// Second half of a topology change: updates all other changed slots.
    pub fn end_topology_change(&self, change: TopologyChange) {
        let TopologyChange { previous: before, topology, remaining_slots: others } = change;
        self.update_ownership(&topology, others);
        let (served, serves) = (before.slots_of_my_shard(), topology.slots_of_my_shard());
        let left = |slot: Slot| served.contains(slot) && !serves.contains(slot);
        self.notifications.pubsub.unsubscribe_moved_slots(left);
        self.diagnostics.reset_slot_costs(self.keyspace.slots().filter(|slot| left(*slot)));
        self.settings.set_node_flag(NodeFlags::CLUSTER_DOWN, !topology.is_serving);
        if !topology.is_serving {
            self.retry_waiters();
        }
    }

    /// Initializes the role of every slot from the topology at startup.
    pub fn init_slot_ownership(&self) {
        if let Some(published) = &self.topology {
            let topology = published.load();
            self.settings.set_node_flag(NodeFlags::CLUSTER_DOWN, !topology.is_serving);
            self.update_ownership(&topology, self.keyspace.slots());
        }
    }

    fn update_ownership(&self, topology: &Topology, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            self.set_ownership(slot, topology.ownership(slot));
        }
    }
}
