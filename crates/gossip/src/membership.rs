//! The members of the cluster: handshakes, addresses, and nodes learned from gossip.
//!
//! A node that is met by address gets a random temporary id. This node connects and sends MEET (or PING, if the other
//! node sent the MEET). The PONG carries the real id, which replaces the temporary one. Gossip spreads the nodes that a
//! trusted node knows.

use std::net::IpAddr;

use slot_routing::{Epoch, NodeId};

use crate::deadlines;
use crate::effect::Effect;
use crate::event::ClusterEvent;
use crate::forget_list::ForgetList;
use crate::node::{Address, Handshake, Node, NodeHealth, Role, has_data};
use crate::nodes::MAX_NODES;
use crate::random::Randomness;
use crate::state::ClusterState;
use crate::wire::{GossipEntry, Header, MessageBody, NodeFlags};

/// Maximum credible lead of another node's epoch: one failover per millisecond for seven weeks.
const MAX_EPOCH_LEAD: u64 = 1 << 32;

/// Starts a handshake with the node at `address` unless one is in progress.
pub(crate) fn start_handshake(
    state: &mut ClusterState,
    address: Address,
    sends_meet: bool,
    random: &mut Randomness,
) {
    let is_same = |node: &Node| {
        let there = (node.address.ip, node.address.bus_port);
        node.handshake.is_some() && there == (address.ip, address.bus_port)
    };
    if state.nodes.len() >= MAX_NODES || state.nodes().any(is_same) {
        return;
    }
    let (id, since) = (random.random_node_id(), state.now());
    let mut node = Node::new(id, address, since);
    node.handshake = Some(Handshake { started_at: since, sends_meet });
    state.nodes.insert(id, node);
}

/// Removes nodes whose handshake timed out.
pub(crate) fn drop_stale_handshakes(state: &mut ClusterState) -> Vec<Effect> {
    state.due_nodes(deadlines::handshake_deadline).into_iter().map(Effect::RemoveNode).collect()
}

/// Completes a handshake: replaces the id `temporary_id` of a node by the id in the header of the node's PONG.
pub(crate) fn finish_handshake(
    state: &mut ClusterState,
    temporary_id: NodeId,
    header: &Header,
) -> Vec<Effect> {
    let Some(mut node) = state.nodes.remove(&temporary_id) else { return Vec::new() };
    let id = header.sender;
    (node.id, node.shard) = (id, id);
    node.handshake = None;
    node.role = announced_role(header.flags);
    state.nodes.insert(id, node);
    vec![Effect::Log(ClusterEvent::HandshakeDone(id)), Effect::ConfigChanged]
}

/// Updates the address of `id` and closes the link to the old address.
pub(crate) fn update_address(state: &mut ClusterState, id: NodeId, address: Address) -> Vec<Effect> {
    let Some(ip) = address.ip.filter(|_| id != state.id()) else { return Vec::new() };
    let Some(node) = state.nodes.get_mut(&id).filter(|node| node.address != address) else {
        return Vec::new();
    };
    let moved = (node.address.ip, node.address.bus_port) != (address.ip, address.bus_port);
    node.address = address;
    let close = moved.then_some(Effect::CloseLink(id));
    let log = Effect::Log(ClusterEvent::AddressUpdated { id, ip, port: address.port });
    close.into_iter().chain([log, Effect::ConfigChanged]).collect()
}

/// Sets this node's IP address to `local_ip`, the local address of the socket on which a message arrived. The socket of
/// a MEET (`is_meet`) has precedence.
pub(crate) fn update_my_address(state: &mut ClusterState, local_ip: IpAddr, is_meet: bool) -> Vec<Effect> {
    if state.config().announced_address.ip.is_some() || local_ip.is_unspecified() {
        return Vec::new();
    }
    let me = state.myself_mut();
    if !(is_meet || me.address.ip.is_none()) || me.address.ip == Some(local_ip) {
        return Vec::new();
    }
    me.address.ip = Some(local_ip);
    vec![Effect::Log(ClusterEvent::MyAddressChanged(local_ip)), Effect::ConfigChanged]
}

/// Removes the address of `id`, because the node `actual` answers at that address.
pub(crate) fn forget_address(state: &mut ClusterState, id: NodeId, actual_id: NodeId) -> Vec<Effect> {
    state.known_node_mut(id).address = Address::default();
    vec![
        Effect::Log(ClusterEvent::MismatchedSender { expected_id: id, actual_id }),
        Effect::CloseLink(id),
        Effect::ConfigChanged,
    ]
}

/// Returns an epoch in the packet that no correct node can have reached, if there is one.
///
/// Each failover or slot move increments the epoch by one, so the lead of another node equals the number of failovers
/// and moves that this node missed, which is always far below [`MAX_EPOCH_LEAD`]. A forged epoch would stay the highest
/// forever: the next election would need an epoch beyond what the bus can carry, and no vote would be possible. A claim
/// epoch above the sender's own `currentEpoch` is impossible as well.
pub(crate) fn find_impossible_epoch(
    state: &ClusterState,
    header: &Header,
    body: &MessageBody,
) -> Option<Epoch> {
    let update = if let MessageBody::Update(update) = body { update.config_epoch } else { Epoch(0) };
    let highest = header.current_epoch.max(header.own_epoch()).max(update);
    let too_far = highest.0 > state.current_epoch().0.saturating_add(MAX_EPOCH_LEAD);
    let unseen = header.own_epoch() > header.current_epoch;
    (too_far || unseen).then_some(highest)
}

/// Updates the sender's entry with the data that every message carries. Returns `None` if the sender is unknown.
pub(crate) fn update_sender(state: &mut ClusterState, header: &Header) -> Option<Vec<Effect>> {
    if !state.is_known_node(header.sender) {
        return None;
    }
    let now = state.now();
    let mut effects = Vec::new();
    let node = state.known_node_mut(header.sender);
    node.contact_times.last_message_at = Some(now);
    if header.own_epoch() > node.config_epoch {
        effects.push(Effect::ConfigChanged);
    }
    if node.disables_failover != header.flags.contains(NodeFlags::NO_FAILOVER) {
        effects.push(Effect::Save);
    }
    if has_data(node.offset) != has_data(header.offset) {
        effects.push(Effect::Publish);
    }
    node.update_from_header(header);
    if header.current_epoch > state.current_epoch() {
        state.raise_epoch(header.current_epoch);
        effects.push(Effect::Save);
    }
    Some(effects)
}

/// Adds a node from a gossip entry. The sender is trusted, so the node belongs to the cluster unless it was forgotten
/// recently.
pub(crate) fn add_gossiped_node(
    state: &mut ClusterState,
    entry: &GossipEntry,
    forget_list: &ForgetList,
) -> Option<Effect> {
    let (now, address) = (state.now(), gossiped_address(entry));
    let unusable = entry.flags.contains(NodeFlags::NO_ADDRESS) || entry.flags.contains(NodeFlags::HANDSHAKE);
    let full = state.nodes.len() >= MAX_NODES;
    if unusable || full || address.ip.is_none() || forget_list.contains(entry.id, now) {
        return None;
    }
    let mut node = Node::new(entry.id, address, now);
    node.role = announced_role(entry.flags);
    if entry.flags.contains(NodeFlags::FAIL) {
        node.health = NodeHealth::Failed { since: now };
    }
    state.nodes.insert(entry.id, node);
    Some(Effect::ConfigChanged)
}

/// Updates the address of a failing node from `entry`: if the node has moved, the sender of `entry` may already reach
/// it at the new address.
pub(crate) fn update_gossiped_address(state: &mut ClusterState, entry: &GossipEntry) -> Vec<Effect> {
    let down = entry.flags.contains(NodeFlags::PFAIL) || entry.flags.contains(NodeFlags::FAIL);
    let node = state.node(entry.id);
    let unreachable = node.is_some_and(|node| !node.is_healthy() || node.address.ip.is_none());
    if unreachable && !down && !entry.flags.contains(NodeFlags::NO_ADDRESS) {
        update_address(state, entry.id, gossiped_address(entry))
    } else {
        Vec::new()
    }
}

/// Removes a node and all references to it from the table. Returns the node's role.
pub(crate) fn remove_node(state: &mut ClusterState, id: NodeId) -> Option<Role> {
    let removed = state.nodes.remove(&id).map(|node| node.role);
    state.slots.release_all(id);
    state.marks.on_node_removed(id);
    for node in state.nodes.values_mut().filter(|node| node.role == Role::Replica(Some(id))) {
        node.role = Role::Replica(None);
    }
    removed
}

/// Returns the role according to the flags. The master of a replica stays unknown until the replica itself announces
/// it.
fn announced_role(flags: NodeFlags) -> Role {
    if flags.contains(NodeFlags::REPLICA) { Role::Replica(None) } else { Role::Master }
}

fn gossiped_address(entry: &GossipEntry) -> Address {
    Address { ip: entry.ip, port: entry.port, secondary_port: entry.secondary_port, bus_port: entry.bus_port }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;
    use slot_routing::ReplOffset;

    use super::*;
    use crate::test_state::{TestCluster, id};

    fn test_address(last_octet: u8) -> Address {
        let ip = Some(Ipv4Addr::new(10, 0, 0, last_octet).into());
        Address { ip, port: 7000, secondary_port: 0, bus_port: 17_000 }
    }

    fn gossip_entry(index: u8, flags: NodeFlags) -> GossipEntry {
        let Address { ip, port, secondary_port: other_port, bus_port } = test_address(index);
        let (ping_sent, pong_received) = (0, 0);
        GossipEntry {
            id: id(index),
            ping_sent,
            pong_received,
            ip,
            port,
            bus_port,
            flags,
            secondary_port: other_port,
        }
    }

    #[test]
    fn handshake_replaces_the_temporary_id_or_times_out() {
        let mut cluster = TestCluster::new(2, &[]);
        let mut random = Randomness::new(ChaCha8Rng::seed_from_u64(1));
        for _ in 0..2 {
            start_handshake(&mut cluster.state, test_address(9), true, &mut random);
        }
        let temporary: Vec<NodeId> =
            cluster.state.nodes().filter(|node| node.handshake.is_some()).map(|node| node.id).collect();
        assert_eq!(temporary.len(), 1, "a second handshake with the same address");
        let header = Header { sender: id(9), ..cluster.header_of(1) };
        let effects = finish_handshake(&mut cluster.state, temporary[0], &header);
        assert_eq!(effects[0], Effect::Log(ClusterEvent::HandshakeDone(id(9))));
        assert!(cluster.state.is_known_node(id(9)));
        start_handshake(&mut cluster.state, test_address(8), true, &mut random);
        assert_eq!(drop_stale_handshakes(&mut cluster.state), []);
        cluster.advance_time(cluster.state.config().handshake_timeout());
        assert_eq!(drop_stale_handshakes(&mut cluster.state).len(), 1);
    }

    #[test]
    fn moved_node_is_reached_over_a_new_link() {
        let mut cluster = TestCluster::new(2, &[]);
        let effects = update_address(&mut cluster.state, id(1), test_address(1));
        assert_eq!(effects[0], Effect::CloseLink(id(1)));
        assert_eq!(update_address(&mut cluster.state, id(1), test_address(1)), []);
        let other_port = Address { port: 7001, ..test_address(1) };
        assert_eq!(
            update_address(&mut cluster.state, id(1), other_port).len(),
            2,
            "the bus port is the same"
        );
        assert_eq!(
            update_address(&mut cluster.state, id(0), test_address(1)),
            [],
            "a node knows its own address"
        );
    }

    #[test]
    fn own_address_is_learned_from_a_meet_unless_it_is_configured() {
        let mut cluster = TestCluster::new(2, &[]);
        let local = Ipv4Addr::new(10, 0, 0, 1).into();
        assert_eq!(update_my_address(&mut cluster.state, local, false), []);
        assert_eq!(update_my_address(&mut cluster.state, local, true).len(), 2);
        assert_eq!(update_my_address(&mut cluster.state, Ipv4Addr::UNSPECIFIED.into(), true), []);
        cluster.state.config_mut().announced_address.ip = Some(local);
        assert_eq!(update_my_address(&mut cluster.state, Ipv4Addr::LOCALHOST.into(), true), []);
    }

    #[test]
    fn impossible_epochs_are_found() {
        let cluster = TestCluster::new(2, &[]);
        let header = cluster.header_of(1);
        let find = |header: &Header| find_impossible_epoch(&cluster.state, header, &MessageBody::AuthAck);
        assert_eq!(find(&header), None);
        let far = Epoch(3 + MAX_EPOCH_LEAD);
        assert_eq!(find(&Header { current_epoch: far, ..header.clone() }), Some(far));
        assert_eq!(find(&Header { config_epoch: Epoch(3), ..header }), Some(Epoch(3)), "above its own");
    }

    #[test]
    fn every_message_updates_its_sender() {
        let mut cluster = TestCluster::new(2, &[]);
        let stranger = Header { sender: id(9), ..cluster.header_of(1) };
        assert_eq!(update_sender(&mut cluster.state, &stranger), None);
        let header = Header { current_epoch: Epoch(7), offset: ReplOffset(5), ..cluster.header_of(1) };
        let effects = update_sender(&mut cluster.state, &header);
        assert_eq!(effects, Some(vec![Effect::Publish, Effect::Save]));
        assert_eq!((cluster.state.current_epoch(), cluster.node(1).offset), (Epoch(7), ReplOffset(5)));
    }

    #[test]
    fn gossiped_nodes_are_added_unless_forgotten_or_unusable() {
        let mut cluster = TestCluster::new(2, &[]);
        let mut forgotten = ForgetList::default();
        forgotten.add(id(8), Duration::from_secs(60), cluster.state.now());
        for (index, flags, added) in [
            (5, NodeFlags::MASTER, true),
            (6, NodeFlags::HANDSHAKE, false),
            (7, NodeFlags::NO_ADDRESS, false),
            (8, NodeFlags::MASTER, false),
        ] {
            let effect = add_gossiped_node(&mut cluster.state, &gossip_entry(index, flags), &forgotten);
            assert_eq!((effect.is_some(), cluster.state.is_known_node(id(index))), (added, added), "{index}");
        }
    }

    #[test]
    fn removed_node_leaves_no_references() {
        let mut cluster = TestCluster::new(2, &[(2, 1)]);
        assert_eq!(remove_node(&mut cluster.state, id(1)), Some(Role::Master));
        assert_eq!(cluster.node(2).role, Role::Replica(None));
        assert_eq!(cluster.state.slots.slot_count(id(1)), 0);
    }
}
