//! Making a new topology what this node routes by.
//!
//! Each slot keeps what this node is to it, read under its own lock; so ownership flips slot by slot and
//! nobody waits for more than one slot. What becomes ours flips before the topology is published and what
//! leaves us after it, so that a client is never sent from here to here.

use std::sync::Arc;

use engine::Gate;
use slot_routing::{Ownership, Slot, SlotSet, Topology};

use crate::server::Server;

pub(super) fn publish(server: &Server, topology: Topology) {
    let Some(published) = &server.engine.topology else { return };
    let ours = |ownership| matches!(ownership, Ownership::Mine | Ownership::Migrating);
    flip(server, &topology, ours);
    let serving = topology.serving;
    published.store(Arc::new(topology));
    flip(server, &published.load(), |_| true);
    server.engine.settings.set_gate(Gate::CLUSTER_DOWN, !serving);
}

/// Brings the slots up to date whose new ownership is `wanted`.
fn flip(server: &Server, topology: &Topology, wanted: impl Fn(Ownership) -> bool) {
    for slot in Slot::all() {
        let ownership = topology.ownership(slot);
        if wanted(ownership) {
            let mut data = server.engine.keyspace.lock(slot);
            if data.ownership() != ownership {
                data.set_ownership(ownership);
            }
        }
    }
}

/// Deletes what is left here of slots that others serve now, and tells the log, so that our replicas
/// delete it too.
pub(super) fn drop_slots(server: &Server, slots: &SlotSet) {
    let engine = &server.engine;
    for slot in slots.iter() {
        let mut data = engine.keyspace.lock(slot);
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let mut position = Some(0);
        while let Some(from) = position {
            position = data.table(0).scan(from, usize::MAX, &mut |item| keys.push(item.key.to_vec()));
        }
        if keys.is_empty() {
            continue;
        }
        if engine.log.wanted() {
            let mut wire = Vec::new();
            for key in &keys {
                wire.clear();
                resp::encode_request(&mut wire, [&b"DEL"[..], key]);
                engine.log.append(0, &wire);
            }
        }
        drop(data.take(0));
    }
}

/// Deletes everything.
pub(super) fn drop_everything(server: &Server) {
    for slot in Slot::all() {
        let mut data = server.engine.keyspace.lock(slot);
        for db in 0..server.engine.keyspace.databases() {
            drop(data.take(db));
        }
    }
}
