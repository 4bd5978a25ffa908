//! After healing, every slot is served by one master, and all nodes agree on that master.

use gossip::Node;
use slot_routing::{Epoch, NodeId, Role, Slot};

use crate::cluster::{ClusterHost, ClusterWorld};

/// Returns a description of the first disagreement, or `None` if all nodes agree.
pub(in crate::cluster) fn disagreement(world: &ClusterWorld) -> Option<String> {
    let ClusterWorld { hosts, sample_slots, .. } = world;
    for &slot in sample_slots {
        let takers = (0..hosts.len()).filter(|host| world.accepts_writes(*host, slot)).count();
        if takers != 1 {
            return Some(format!("{takers} nodes take writes for slot {slot}"));
        }
    }
    let ids: Vec<NodeId> = hosts.iter().filter_map(|host| Some(host.gossip.as_ref()?.id())).collect();
    let mut first = None;
    for (number, host) in hosts.iter().enumerate() {
        let view = cluster_view(host, sample_slots)?;
        let mut known: Vec<NodeId> = view.nodes.iter().map(|node| node.0).collect();
        known.retain(|id| ids.contains(id));
        if known.len() != ids.len() || view.nodes.len() != ids.len() {
            return Some(format!(
                "host {number} knows {} nodes, {} of them real",
                view.nodes.len(),
                known.len()
            ));
        }
        if !view.is_role_published {
            return Some(format!("host {number} is a master and has not said so"));
        }
        if view.doubtful_node_count > 0 || view.is_moving_slots {
            return Some(format!(
                "host {number} has doubts about {} nodes or moves slots",
                view.doubtful_node_count
            ));
        }
        if !host.gossip.as_ref()?.myself().is_master()
            && !world.simulation.data.process_states[number].is_in_sync()
        {
            return Some(format!("host {number} is a replica and not in sync"));
        }
        if first.get_or_insert_with(|| view.clone()) != &view {
            return Some(format!("host {number} and host 0 see different clusters"));
        }
        let mut epochs: Vec<Epoch> = view.nodes.iter().filter_map(|(_, claim)| claim.ok()).collect();
        epochs.sort_unstable();
        if epochs.windows(2).any(|pair| pair[0] == pair[1]) {
            return Some(format!("two masters have the same epoch: {epochs:?}"));
        }
    }
    None
}

/// The roles and slot owners in a node's view.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ClusterView {
    /// The known nodes: for a master its epoch, for a replica its master.
    nodes: Vec<(NodeId, Result<Epoch, Option<NodeId>>)>,
    owners: Vec<Option<NodeId>>,
    doubtful_node_count: usize,
    is_moving_slots: bool,
    /// Whether the node has published its current role.
    is_role_published: bool,
}

fn cluster_view(host: &ClusterHost, sample_slots: &[Slot]) -> Option<ClusterView> {
    let (gossip, topology) = (host.gossip.as_ref()?, host.topology.as_ref()?);
    let standing = |node: &Node| {
        let claim = if node.is_master() { Ok(node.config_epoch) } else { Err(node.master()) };
        (node.id, claim)
    };
    Some(ClusterView {
        nodes: gossip.nodes().map(standing).collect(),
        owners: sample_slots.iter().map(|slot| gossip.slot_owner(*slot)).collect(),
        doubtful_node_count: gossip
            .nodes()
            .filter(|node| !node.is_healthy() || node.handshake.is_some())
            .count(),
        is_role_published: topology.my_member().role == Role::Master || !gossip.myself().is_master(),
        is_moving_slots: !topology.migrating().is_empty() || !topology.importing().is_empty(),
    })
}
