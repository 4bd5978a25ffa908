//! Making a new topology what this node routes by.
//!
//! Each slot keeps this node's role for it, read under its own lock; so ownership flips slot by slot and no command
//! waits for more than one slot. A slot that becomes ours flips before the topology is published, and one that leaves
//! us after it, so that a client is never sent from here to here.

use std::sync::Arc;

use engine::{Engine, Gate};
use slot_routing::{Ownership, Slot, Topology};

pub(super) fn publish(engine: &Engine, topology: Topology) {
    let Some(published) = &engine.topology else { return };
    let before = published.load_full();
    let (were, are) = (before.ownerships(), topology.ownerships());
    let changed = |slot: &Slot| were[slot.index()] != are[slot.index()];
    let (ours, others): (Vec<Slot>, Vec<Slot>) = Slot::all()
        .filter(changed)
        .partition(|&slot| matches!(topology.ownership(slot), Ownership::Mine | Ownership::Migrating));
    let topology = Arc::new(topology);
    flip(engine, &topology, ours);
    published.store(topology.clone());
    flip(engine, &topology, others);
    let of_my_shard = |topology: &Topology, slot: Slot| {
        topology.owner(slot).is_some_and(|owner| owner.shard == topology.me().shard)
    };
    let left = |slot: Slot| of_my_shard(&before, slot) && !of_my_shard(&topology, slot);
    engine.pubsub.leave_slots(left);
    engine.reset_slot_costs(Slot::all().filter(|slot| left(*slot)));
    engine.settings.set_gate(Gate::CLUSTER_DOWN, !topology.serving);
    if !topology.serving {
        engine.retry_waiters();
    }
}

/// Tells every slot what the topology that the server starts with says of it.
pub(crate) fn publish_initial(engine: &Engine) {
    if let Some(published) = &engine.topology {
        flip(engine, &published.load(), Slot::all());
    }
}

fn flip(engine: &Engine, topology: &Topology, slots: impl IntoIterator<Item = Slot>) {
    for slot in slots {
        engine.set_ownership(slot, topology.ownership(slot));
    }
}
