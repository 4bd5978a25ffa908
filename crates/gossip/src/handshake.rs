//! Handshakes: how nodes get to know each other through MEET and PONG.
//!
//! A node that is met by address gets a random temporary id. This node connects and sends MEET (or PING, if the other
//! node sent the MEET). The PONG carries the real id, which replaces the temporary one. Nodes known to a trusted node
//! spread by gossip.

use std::net::IpAddr;

use slot_routing::NodeId;

use crate::contract::LinkId;
use crate::deadlines;
use crate::event::ClusterEvent;
use crate::machine::Gossip;
use crate::node::{Address, Handshake, Node, Role};
use crate::wire::{Header, NodeFlags};

/// Maximum number of known nodes, including those in handshake: ten times the size that the protocol is designed for.
/// Limits the memory that a hostile peer can use up.
pub(crate) const MAX_NODES: usize = 10_000;

impl Gossip {
    /// Starts a handshake with the node at `address` unless one is in progress.
    pub(crate) fn start_handshake(&mut self, address: Address, meet: bool) {
        let same = |node: &&Node| {
            let there = (node.address.ip, node.address.bus_port);
            node.handshake.is_some() && there == (address.ip, address.bus_port)
        };
        if self.state.nodes.len() >= MAX_NODES || self.state.nodes.values().any(|node| same(&node)) {
            return;
        }
        let id = self.random.node_id();
        let mut node = Node::new(id, address, self.state.now);
        node.handshake = Some(Handshake { since: self.state.now, meet });
        self.state.nodes.insert(id, node);
    }

    /// Removes nodes whose handshake timed out.
    pub(crate) fn drop_stale_handshakes(&mut self) {
        for id in self.state.due_nodes(deadlines::handshake_deadline) {
            self.remove_node(id);
        }
    }

    /// Handles the PONG that completes the handshake of the temporary id. Returns whether the sender is now a known
    /// node on this link.
    pub(crate) fn finish_handshake(&mut self, link: LinkId, id: NodeId, header: &Header) -> bool {
        let real = header.sender;
        if real == self.state.me || self.state.nodes.contains_key(&real) {
            // The node at the address is already known, possibly from another address, or is this node itself.
            self.remove_node(id);
            if real != self.state.me {
                self.update_address(real, Address::announced(header, self.peer_ip(link)));
            }
            return false;
        }
        let mut node = self.state.nodes.remove(&id).expect("the link belongs to it");
        node.id = real;
        node.shard = real;
        node.handshake = None;
        node.role = announced_role(header.flags);
        self.links.outbound.insert(link, real);
        self.state.nodes.insert(real, node);
        self.log(ClusterEvent::HandshakeDone(real));
        self.todo.save = true;
        self.todo.publish = true;
        true
    }

    /// Updates the address of `id`; a link to the old address is closed.
    pub(crate) fn update_address(&mut self, id: NodeId, address: Address) {
        let Some(node) = self.state.nodes.get_mut(&id) else { return };
        if node.address == address || address.ip.is_none() || id == self.state.me {
            return;
        }
        let moved = (node.address.ip, node.address.bus_port) != (address.ip, address.bus_port);
        node.address = address;
        let event = address.ip.map(|ip| ClusterEvent::AddressUpdated { id, ip, port: address.port });
        if moved {
            self.close_link(id);
        }
        self.out.extend(event.map(crate::contract::ClusterAction::Log));
        self.todo.save = true;
        self.todo.publish = true;
    }

    /// Learns this node's IP address from the socket on which a MEET arrived.
    pub(crate) fn update_my_address(&mut self, link: LinkId, introduced: bool) {
        if self.state.config.announce.ip.is_some() {
            return;
        }
        let Some(local) = self.links.inbound.get(&link).map(|inbound| inbound.local) else { return };
        let me = self.state.myself_mut();
        let unusable = |ip: IpAddr| ip.is_unspecified();
        if (introduced || me.address.ip.is_none()) && me.address.ip != Some(local) && !unusable(local) {
            me.address.ip = Some(local);
            self.log(ClusterEvent::MyAddress(local));
            self.todo.save = true;
            self.todo.publish = true;
        }
    }
}

/// The role according to the flags. The id of a replica's master is only in the replica's own messages.
pub(crate) fn announced_role(flags: NodeFlags) -> Role {
    if flags.has(NodeFlags::REPLICA) { Role::Replica(None) } else { Role::Master }
}
