//! The slot map of the status page: the owner of each slot, and the number of keys or bytes in each slot on this node.

use serde::Serialize;
use slot_routing::Slot;

use crate::server::Server;

/// What the map shows for each slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotMetric {
    Keys,
    /// Memory in bytes. To compute it, each slot is locked in turn.
    Bytes,
}

impl SlotMetric {
    /// Parses the query string. `by=bytes` selects [`Self::Bytes`].
    pub(super) fn from_query(query: &str) -> Self {
        if query == "by=bytes" { Self::Bytes } else { Self::Keys }
    }
}

#[derive(Debug, Serialize)]
struct SlotMap {
    /// Ranges of slots with one owner: the first and last slot and the owner's id, which is empty outside of cluster
    /// mode.
    owners: Vec<(u16, u16, String)>,
    /// The shown number for each slot, indexed by slot.
    figures: Vec<usize>,
}

pub(super) fn slots_json(server: &Server, metric: SlotMetric) -> String {
    let keyspace = &server.engine.keyspace;
    let figures = Slot::all().map(|slot| match metric {
        SlotMetric::Keys => keyspace.keys_in_slot(slot),
        SlotMetric::Bytes if keyspace.keys_in_slot(slot) == 0 => 0,
        SlotMetric::Bytes => keyspace.lock(slot).heap_bytes(),
    });
    super::to_json(&SlotMap { owners: owned_ranges(server), figures: figures.collect() })
}

fn owned_ranges(server: &Server) -> Vec<(u16, u16, String)> {
    let Some(topology) = &server.engine.topology else {
        return vec![(0, Slot::all().len() as u16 - 1, String::new())];
    };
    let topology = topology.load();
    let mut runs: Vec<(u16, u16, String)> = Vec::new();
    for slot in Slot::all() {
        let Some(owner) = topology.owner(slot) else { continue };
        let (number, id) = (slot.number(), owner.id.to_string());
        match runs.last_mut() {
            Some((_, last, whose)) if *whose == id && *last + 1 == number => *last = number,
            _ => runs.push((number, number, id)),
        }
    }
    runs
}
