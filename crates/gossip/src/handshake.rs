//! How strangers become known: MEET, and the PONG that has the name of the node at an address.
//!
//! A node met by address gets a random stand-in name. We connect and say MEET (or PING, if it was the
//! other that introduced itself); the PONG tells its real name, and the stand-in is renamed. A node
//! that a trusted node knows becomes known to all by gossip.

use std::net::IpAddr;

use clock::Instant;
use slot_routing::NodeId;

use crate::contract::LinkId;
use crate::event::Event;
use crate::machine::Gossip;
use crate::node::{Address, Handshake, Node, Role};
use crate::wire::{Header, NodeFlags};

/// How many nodes are remembered at most, those in handshake included. Ten times what the protocol is
/// meant for; a hostile peer must not make us remember without end.
pub(crate) const MOST_NODES: usize = 10_000;

impl Gossip {
    /// Starts to get acquainted with the node at `address`, unless that is under way.
    pub(crate) fn start_handshake(&mut self, address: Address, meet: bool) {
        let same = |node: &&Node| {
            let there = (node.address.ip, node.address.bus_port);
            node.handshake.is_some() && there == (address.ip, address.bus_port)
        };
        if self.nodes.len() >= MOST_NODES || self.nodes.values().any(|node| same(&node)) {
            return;
        }
        let id = self.fresh_id();
        let mut node = Node::new(id, address, self.now);
        node.handshake = Some(Handshake { since: self.now, meet });
        self.nodes.insert(id, node);
    }

    /// Handshakes that take too long are given up.
    pub(crate) fn drop_stale_handshakes(&mut self) {
        for id in self.due_nodes(Self::handshake_deadline) {
            self.remove_node(id);
        }
    }

    pub(crate) fn handshake_deadline(&self, node: &Node) -> Option<Instant> {
        Some(node.handshake?.since + self.config.handshake_timeout())
    }

    /// The stand-in `id` at the end of `link` turned out to be the sender of `header`.
    /// Says whether there is now a node of that name behind this link.
    pub(crate) fn finish_handshake(&mut self, link: LinkId, id: NodeId, header: &Header) -> bool {
        let real = header.sender;
        if real == self.me || self.nodes.contains_key(&real) {
            // We met ourselves, or somebody we know: perhaps at a new address.
            self.remove_node(id);
            if real != self.me {
                self.update_address(real, Address::announced(header, self.peer_ip(link)));
            }
            return false;
        }
        let mut node = self.nodes.remove(&id).expect("the link belongs to it");
        node.id = real;
        node.shard = real;
        node.handshake = None;
        node.role = announced_role(header.flags);
        self.links.ours.insert(link, real);
        self.nodes.insert(real, node);
        self.log(Event::HandshakeDone(real));
        self.todo.save = true;
        self.todo.publish = true;
        true
    }

    /// Notes where `id` is reached now; a link to the old place is closed.
    pub(crate) fn update_address(&mut self, id: NodeId, address: Address) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.address == address || address.ip.is_none() || id == self.me {
            return;
        }
        let moved = (node.address.ip, node.address.bus_port) != (address.ip, address.bus_port);
        node.address = address;
        let event = address.ip.map(|ip| Event::AddressUpdated { id, ip, port: address.port });
        if moved {
            self.close_link(id);
        }
        self.out.extend(event.map(crate::contract::Action::Log));
        self.todo.save = true;
        self.todo.publish = true;
    }

    /// Learns our address from the link on which a node introduces itself: it reached us there.
    pub(crate) fn learn_my_address(&mut self, link: LinkId, introduced: bool) {
        if self.config.announce.ip.is_some() {
            return;
        }
        let Some(local) = self.links.theirs.get(&link).map(|inbound| inbound.local) else { return };
        let me = self.myself_mut();
        let unusable = |ip: IpAddr| ip.is_unspecified();
        if (introduced || me.address.ip.is_none()) && me.address.ip != Some(local) && !unusable(local) {
            me.address.ip = Some(local);
            self.log(Event::MyAddress(local));
            self.todo.save = true;
            self.todo.publish = true;
        }
    }
}

/// The role that flags say; a replica's own messages bring the name of its master.
pub(crate) fn announced_role(flags: NodeFlags) -> Role {
    if flags.has(NodeFlags::REPLICA) { Role::Replica(None) } else { Role::Master }
}
